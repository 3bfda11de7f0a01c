//! A strict reader of the Prometheus text format 0.0.4, written from its description and not from
//! the writer.

use std::collections::{BTreeMap, BTreeSet};

/// Name and labels of a series.
pub(super) type Series = (String, BTreeMap<String, String>);

#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// Type of each family.
    pub(super) types: BTreeMap<String, String>,
    pub(super) values: BTreeMap<Series, f64>,
}

impl Parsed {
    /// Returns the value of a series, which must exist.
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let series = (name.to_owned(), labels);
        *self.values.get(&series).unwrap_or_else(|| panic!("{series:?} in {:#?}", self.values))
    }
}

/// Parses a text, and panics on anything that a scraper would refuse.
pub(super) fn parse(text: &str) -> Parsed {
    let (mut parsed, mut helped, mut family) = (Parsed::default(), BTreeSet::new(), String::new());
    assert!(text.is_empty() || text.ends_with('\n'), "the last line ends");
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap();
            assert!(!text.is_empty() && helped.insert(name.to_owned()), "HELP of {name} once");
            family = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, family, "TYPE follows HELP");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
            assert!(parsed.types.insert(name.into(), kind.into()).is_none(), "TYPE of {name} once");
        } else {
            let (series, value) = sample(line);
            let kind = &parsed.types[&family];
            let suffix = series.0.strip_prefix(&*family).unwrap_or_else(|| panic!("{line}"));
            let is_right = match kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
                "counter" => suffix.is_empty() && family.ends_with("_total") && value >= 0.0,
                _ => suffix.is_empty(),
            };
            assert!(is_right, "{line} is of the {kind} {family}");
            assert!(parsed.values.insert(series, value).is_none(), "twice: {line}");
        }
    }
    check_histograms(&parsed);
    parsed
}

/// Buckets are cumulative, and that of infinity is the count.
fn check_histograms(parsed: &Parsed) {
    let mut last: BTreeMap<Series, Vec<(f64, f64)>> = BTreeMap::new();
    for ((name, labels), value) in &parsed.values {
        let Some(base) = name.strip_suffix("_bucket") else { continue };
        let mut labels = labels.clone();
        let le = number(&labels.remove("le").unwrap());
        last.entry((base.to_owned(), labels)).or_default().push((le, *value));
    }
    for ((base, labels), mut buckets) in last {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by_key(|bucket| bucket.1), "{base}: {buckets:?}");
        let all = buckets.last().unwrap();
        assert_eq!(all.0, f64::INFINITY, "{base}");
        assert_eq!(all.1, parsed.values[&(format!("{base}_count"), labels.clone())], "{base}");
        assert!(parsed.values.contains_key(&(format!("{base}_sum"), labels)), "{base}");
    }
}

fn sample(line: &str) -> (Series, f64) {
    let name_end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap();
    let (name, mut rest) = line.split_at(name_end);
    assert!(!name.starts_with(|c: char| c.is_ascii_digit()), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").unwrap();
            let (value, after) = quoted(after);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{label} twice: {line}");
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    ((name.to_owned(), labels), number(value))
}

/// Returns a label's value and what follows its closing quote.
fn quoted(text: &str) -> (String, &str) {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match characters.next().unwrap().1 {
                'n' => '\n',
                other @ ('\\' | '"') => other,
                other => panic!("\\{other}"),
            }),
            other => value.push(other),
        }
    }
    panic!("no closing quote: {text}");
}

fn number(text: &str) -> f64 {
    match text {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        other => {
            assert!(!other.contains("inf"), "{other}");
            other.parse().unwrap_or_else(|error| panic!("{other}: {error}"))
        }
    }
}

//! The text format of Prometheus, version 0.0.4.

use super::{
    Report, Sample,
    collector::{Point, PointValue},
    family::Family,
};
use std::{collections::BTreeMap, fmt::Write as _};

/// A family with its samples, each with the name of its limiter.
type Group<'a> = (Family, Vec<(&'a str, &'a Sample)>);

/// Writes all samples, family by family, in the order of their names.
pub(super) fn text(reports: &[Report]) -> String {
    let mut families: BTreeMap<&str, Group<'_>> = BTreeMap::new();
    for report in reports {
        for sample in &report.samples {
            let family = sample.family;
            let (known, samples) =
                families.entry(family.name).or_insert_with(|| (family, Vec::new()));
            // Two types of one name cannot be written; the first one stays.
            if known.kind == family.kind {
                samples.push((&report.name, sample));
            }
        }
    }
    let mut text = String::new();
    for (family, samples) in families.into_values() {
        head(&mut text, &family);
        for (limiter, sample) in samples {
            write_sample(&mut text, limiter, sample);
        }
    }
    text
}

fn head(text: &mut String, family: &Family) {
    let Family { name, kind, help, .. } = family;
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.name());
}

fn write_sample(text: &mut String, limiter: &str, sample: &Sample) {
    for Point { suffix, label, value } in sample.points() {
        let _ = write!(text, "{}{suffix}{{limiter=\"", sample.family.name);
        escape(text, limiter);
        text.push('"');
        if let Some((name, value)) = label {
            let _ = write!(text, ",{name}=\"");
            escape(text, &value);
            text.push('"');
        }
        let _ = match value {
            PointValue::Count(count) => writeln!(text, "}} {count}"),
            PointValue::Float(f64::INFINITY) => writeln!(text, "}} +Inf"),
            PointValue::Float(f64::NEG_INFINITY) => writeln!(text, "}} -Inf"),
            PointValue::Float(value) => writeln!(text, "}} {value}"),
        };
    }
}

fn escape(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

//! The text form of a quota, parsed and printed.
//!
//! ```text
//! quota    = "unlimited" | count ( "/" [ number ] unit | "per" duration ) { option }
//! option   = "burst" count | "initial" ( "full" | "empty" | count )
//! duration = { number unit }           for example 10s, 1h30min, 500ms
//! count    = digits, with "_" between them where you like, and an optional "k", "M" or "G"
//! unit     = ns us ms s min h day week month (30 days) year (365 days), and their long forms
//! ```

use super::{DAY, Initial, Quota, SECOND};
use std::{fmt, str::FromStr};

/// Unit names: the first of each row is the printed one. Rows from long to short.
const UNITS: [(u64, &[&str]); 10] = [
    (365 * DAY, &["year", "years", "y"]),
    (30 * DAY, &["month", "months", "mo"]),
    (7 * DAY, &["week", "weeks", "w"]),
    (DAY, &["day", "days", "d"]),
    (3_600 * SECOND, &["h", "hour", "hours", "hr"]),
    (60 * SECOND, &["min", "minute", "minutes", "m"]),
    (SECOND, &["s", "sec", "second", "seconds"]),
    (1_000_000, &["ms", "milli", "millisecond", "milliseconds"]),
    (1_000, &["us", "µs", "μs", "micro", "microsecond", "microseconds"]),
    (1, &["ns", "nano", "nanosecond", "nanoseconds"]),
];

/// Why a text is not a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseQuotaError {
    input: String,
    found: String,
    expected: &'static str,
}

impl fmt::Display for ParseQuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { input, found, expected } = self;
        write!(f, "\"{input}\" is not a quota: expected {expected}, found ")?;
        match found.as_str() {
            "" => f.write_str("the end"),
            found => write!(f, "\"{found}\""),
        }
    }
}

impl std::error::Error for ParseQuotaError {}

impl FromStr for Quota {
    type Err = ParseQuotaError;

    fn from_str(input: &str) -> Result<Self, Self::Err> {
        let mut parser = Parser { rest: input.trim() };
        parser.quota().map_err(|expected| ParseQuotaError {
            input: shorten(input, 80),
            found: shorten(parser.rest.split_whitespace().next().unwrap_or(""), 20),
            expected,
        })
    }
}

/// Keeps an error message short, whatever was fed in.
fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Takes a text apart from the left. On an error, `rest` starts at what was not understood.
struct Parser<'a> {
    rest: &'a str,
}

type Parsed<T> = Result<T, &'static str>;

impl Parser<'_> {
    fn quota(&mut self) -> Parsed<Quota> {
        let mut quota = if self.word(&["unlimited"]) { Quota::unlimited() } else { self.rate()? };
        let (mut has_burst, mut has_initial) = (false, false);
        while !self.rest.is_empty() {
            let before = self.rest;
            if self.word(&["burst"]) && !has_burst {
                has_burst = true;
                quota = quota.burst(self.count("a number after \"burst\", as in \"burst 50\"")?);
            } else if self.word(&["initial"]) && !has_initial {
                has_initial = true;
                quota = quota.initial(self.initial()?);
            } else {
                self.rest = before;
                return Err("\"burst N\" or \"initial full|empty|N\", each once");
            }
        }
        Ok(quota)
    }

    fn rate(&mut self) -> Parsed<Quota> {
        let count = self.count("a whole number, as in \"100/s\" or \"5 per 10s\"")?;
        if self.rest.starts_with(['.', ',']) {
            return Err("a whole number (write 2.5/s as \"5 per 2s\")");
        }
        if !self.symbol('/') && !self.word(&["per", "every"]) {
            return Err("\"/\" and a unit, or \"per\" and a duration, as in \"100/s\"");
        }
        // "100/s" and "5 per 10s", but also "100/10s" and "5 per s".
        let has_number = self.rest.starts_with(|c: char| c.is_ascii_digit());
        let period_ns = if has_number { self.duration()? } else { self.unit()? };
        Ok(Quota::of(count, period_ns))
    }

    fn initial(&mut self) -> Parsed<Initial> {
        if self.word(&["full"]) {
            return Ok(Initial::Full);
        }
        if self.word(&["empty"]) {
            return Ok(Initial::Empty);
        }
        self.count("\"full\", \"empty\" or a number after \"initial\"").map(Initial::Permits)
    }

    /// Reads one or more number-unit pairs, as in `1h30min`.
    fn duration(&mut self) -> Parsed<u64> {
        let mut sum = 0_u64;
        loop {
            let number = self.digits("a duration, as in \"10s\" or \"1h30min\"")?;
            let unit = self.unit()?;
            sum = number
                .checked_mul(unit)
                .and_then(|part| sum.checked_add(part))
                .ok_or("a duration below 584 years")?;
            if !self.rest.starts_with(|c: char| c.is_ascii_digit()) {
                return Ok(sum);
            }
        }
    }

    fn unit(&mut self) -> Parsed<u64> {
        let name = self.letters();
        let known = UNITS.iter().find(|(_, names)| names.contains(&name));
        let Some((nanos, _)) = known else {
            return Err("a unit: ns, us, ms, s, min, h, day, week, month or year");
        };
        self.skip(name.len());
        Ok(*nanos)
    }

    /// Reads a number with an optional `k`, `M` or `G`.
    fn count(&mut self, expected: &'static str) -> Parsed<u64> {
        let number = self.digits(expected)?;
        let factor = match self.letters() {
            "k" => 1_000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            _ => return Ok(number),
        };
        self.skip(1);
        number.checked_mul(factor).ok_or("a number below 2^64")
    }

    fn digits(&mut self, expected: &'static str) -> Parsed<u64> {
        let end =
            self.rest.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(self.rest.len());
        let text = &self.rest[..end];
        if !text.starts_with(|c: char| c.is_ascii_digit()) || text.ends_with('_') {
            return Err(expected);
        }
        let number = text
            .bytes()
            .filter(|byte| *byte != b'_')
            .try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
            .ok_or("a number below 2^64")?;
        self.skip(end);
        Ok(number)
    }

    /// Returns the letters that stand next, without taking them.
    fn letters(&self) -> &str {
        let end = self.rest.find(|c: char| !c.is_alphabetic()).unwrap_or(self.rest.len());
        &self.rest[..end]
    }

    fn word(&mut self, words: &[&str]) -> bool {
        let next = self.letters();
        let found = words.iter().any(|word| next.eq_ignore_ascii_case(word));
        if found {
            self.skip(next.len());
        }
        found
    }

    fn symbol(&mut self, symbol: char) -> bool {
        let found = self.rest.starts_with(symbol);
        if found {
            self.skip(symbol.len_utf8());
        }
        found
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest[bytes..].trim_start();
    }
}

impl fmt::Display for Quota {
    /// Writes the text form, which parses back to the same quota.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unlimited {
            f.write_str("unlimited")?;
        } else if let Some((_, names)) = UNITS.iter().find(|(ns, _)| *ns == self.period_ns) {
            write!(f, "{}/{}", self.count, names[0])?;
        } else {
            let fits = |unit: u64| self.period_ns != 0 && self.period_ns.is_multiple_of(unit);
            let largest = UNITS.iter().find(|(unit, _)| fits(*unit));
            let (unit, names) = largest.unwrap_or(&UNITS[UNITS.len() - 1]);
            write!(f, "{} per {}{}", self.count, self.period_ns / unit, names[0])?;
        }
        if let Some(burst) = self.burst {
            write!(f, " burst {burst}")?;
        }
        match self.initial {
            Initial::Full => Ok(()),
            Initial::Empty => f.write_str(" initial empty"),
            Initial::Permits(permits) => write!(f, " initial {permits}"),
        }
    }
}

#[cfg(feature = "serde")]
mod as_text {
    use super::Quota;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
    use std::fmt;

    impl Serialize for Quota {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    /// Reads the text form, and refuses a quota that no limiter would take.
    impl<'de> Deserialize<'de> for Quota {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Text;
            impl de::Visitor<'_> for Text {
                type Value = Quota;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a quota such as \"100/s burst 50\"")
                }
                fn visit_str<E: de::Error>(self, text: &str) -> Result<Quota, E> {
                    let quota: Quota = text.parse().map_err(E::custom)?;
                    quota.check().map_err(E::custom)?;
                    Ok(quota)
                }
            }
            deserializer.deserialize_str(Text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn reads_and_prints_the_forms_of_the_docs() {
        let ten_seconds = Quota::per(5, Duration::from_secs(10));
        for (text, quota, printed) in [
            ("100/s", Quota::per_second(100), "100/s"),
            ("1000/min burst 50", Quota::per_minute(1000).burst(50), "1000/min burst 50"),
            ("5 per 10s", ten_seconds, "5 per 10s"),
            ("5/10s", ten_seconds, "5 per 10s"),
            ("5 every 10 seconds", ten_seconds, "5 per 10s"),
            ("1/month", Quota::per_month(1), "1/month"),
            ("unlimited", Quota::unlimited(), "unlimited"),
            (" 1_000 / hour ", Quota::per_hour(1000), "1000/h"),
            ("10k per day", Quota::per_day(10_000), "10000/day"),
            ("700M/s", Quota::per_second(700_000_000), "700000000/s"),
            ("3 per 1h30min", Quota::per(3, Duration::from_secs(5400)), "3 per 90min"),
            ("0/s burst 10", Quota::once(10), "0/s burst 10"),
            (
                "2/s initial empty",
                Quota::per_second(2).initial(Initial::Empty),
                "2/s initial empty",
            ),
            (
                "2/s burst 9 initial 4",
                Quota::per_second(2).burst(9).initial(Initial::Permits(4)),
                "2/s burst 9 initial 4",
            ),
        ] {
            assert_eq!(text.parse(), Ok(quota), "{text}");
            assert_eq!(quota.to_string(), printed);
        }
    }

    #[test]
    fn says_what_it_expected_and_what_it_found() {
        for (text, error) in [
            (
                "",
                "\"\" is not a quota: expected a whole number, as in \"100/s\" or \"5 per 10s\", \
                  found the end",
            ),
            (
                "100",
                "\"100\" is not a quota: expected \"/\" and a unit, or \"per\" and a duration, \
                     as in \"100/s\", found the end",
            ),
            (
                "2.5/s",
                "\"2.5/s\" is not a quota: expected a whole number (write 2.5/s as \"5 per \
                       2s\"), found \".5/s\"",
            ),
            (
                "9/fortnight",
                "\"9/fortnight\" is not a quota: expected a unit: ns, us, ms, s, min, \
                             h, day, week, month or year, found \"fortnight\"",
            ),
            (
                "9/s bust 4",
                "\"9/s bust 4\" is not a quota: expected \"burst N\" or \"initial \
                            full|empty|N\", each once, found \"bust\"",
            ),
            (
                "9/s burst 4 burst 5",
                "\"9/s burst 4 burst 5\" is not a quota: expected \"burst N\" \
                                     or \"initial full|empty|N\", each once, found \"burst\"",
            ),
            (
                "99999999999999999999/s",
                "\"99999999999999999999/s\" is not a quota: expected a \
                                        number below 2^64, found \"99999999999999999999...\"",
            ),
        ] {
            assert_eq!(text.parse::<Quota>().unwrap_err().to_string(), error);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(
            count: u64, period_ns: u64, burst: Option<u64>, initial in 0..3_usize, permits: u64,
        ) {
            let initial = [Initial::Full, Initial::Empty, Initial::Permits(permits)][initial];
            let quota = Quota { burst, ..Quota::of(count, period_ns).initial(initial) };
            prop_assert_eq!(quota.to_string().parse(), Ok(quota));
        }

        #[test]
        fn no_text_panics(text in "[0-9a-zµ/_ .]{0,40}|\\PC{0,60}") {
            if let Err(error) = text.parse::<Quota>() {
                prop_assert!(error.to_string().contains("expected"));
            }
        }
    }
}

//! When events arrive: a small language, parsed into ticks.
//!
//! ```text
//! arrivals = item { "," item }
//! item     = [ duration ] [ "every" duration "for" duration ] [ "x" number ]
//! duration = "0" | { number unit }     for example 50ms or 1s500ms
//! unit     = ns us ms s min h day
//! ```
//!
//! An item has a time or a series, or both. Every time counts from the start, and a series leaves
//! out its end, so that `every 10ms for 1s` is a hundred events and the next second starts anew.

mod error;
mod parser;
pub(crate) mod suggest;

pub(crate) use error::ArrivalsError;

use parser::{Item, Parser};
use tollgate::Tick;

/// The most events that one run replays: enough to see, and a table of a few megabytes.
pub(crate) const EVENTS_MAX: u64 = 100_000;

/// Units of time, from long to short.
const UNITS: [(&str, u64); 7] = [
    ("day", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Returns the ticks that a text describes, in order of time.
pub(crate) fn parse(text: &str) -> Result<Vec<Tick>, ArrivalsError> {
    let mut ticks = Vec::new();
    let mut events = 0_u64;
    for item_text in text.split(',') {
        let item = Parser::new(item_text).item()?;
        events = events.saturating_add(item.events());
        // Counted before they are made: a short text can ask for more than memory holds.
        if events > EVENTS_MAX {
            return Err(ArrivalsError::TooMany { events });
        }
        if item.last_ns() > Tick::HORIZON.as_nanos() {
            return Err(ArrivalsError::TooLate { item: error::shorten(item_text.trim(), 40) });
        }
        ticks.extend(item.ticks());
    }
    ticks.sort();
    Ok(ticks)
}

impl Item {
    fn events(&self) -> u64 {
        self.times().saturating_mul(self.copies)
    }

    /// How many times the series has.
    fn times(&self) -> u64 {
        self.span_ns.div_ceil(self.every_ns)
    }

    fn last_ns(&self) -> u64 {
        self.from_ns.saturating_add(self.span_ns)
    }

    fn ticks(self) -> impl Iterator<Item = Tick> {
        // OVERFLOW: every tick lies before `last_ns`, which was found to be below the horizon.
        (0..self.events())
            .map(move |event| Tick::from_nanos(self.from_ns + event / self.copies * self.every_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn millis(text: &str) -> Vec<u64> {
        let ticks = parse(text).unwrap();
        ticks.iter().map(|t| t.as_nanos() / 1_000_000).collect()
    }

    #[test]
    fn reads_the_forms_of_the_help() {
        for (text, expected) in [
            ("0", vec![0]),
            ("100ms", vec![100]),
            ("0ms,0ms,100ms", vec![0, 0, 100]),
            ("1s x3", vec![1000, 1000, 1000]),
            ("1s x 3", vec![1000, 1000, 1000]),
            ("1s500ms", vec![1500]),
            ("1 s 500 ms", vec![1500]),
            ("every 50ms for 200ms", vec![0, 50, 100, 150]),
            ("every 50ms for 201ms", vec![0, 50, 100, 150, 200]),
            ("3s every 5ms for 10ms x2", vec![3000, 3000, 3005, 3005]),
            ("2s, 1s, 1s every 1s for 2s", vec![1000, 1000, 2000, 2000]),
            (" 1min ,  1h ", vec![60_000, 3_600_000]),
        ] {
            assert_eq!(millis(text), expected, "{text}");
        }
    }

    #[test]
    fn the_end_of_a_series_belongs_to_the_next_one() {
        assert_eq!(millis("every 10ms for 1s, 1s every 10ms for 1s").len(), 200);
        assert_eq!(parse("every 1ns for 100us").unwrap().len(), 100_000);
    }

    #[test]
    fn says_what_is_wrong_and_what_to_do() {
        for (text, error) in [
            (
                "",
                "arrival \"\" is not valid: expected a time or \"every\", found the end; write it \
                 as in \"0s, 1s x3, every 50ms for 2s\"",
            ),
            (
                "0s,,1s",
                "arrival \"\" is not valid: expected a time or \"every\", found the end; write it \
                 as in \"0s, 1s x3, every 50ms for 2s\"",
            ),
            (
                "5",
                "arrival \"5\" is not valid: expected a unit: ns, us, ms, s, min, h or day, found \
                 the end; write it as in \"0s, 1s x3, every 50ms for 2s\"",
            ),
            (
                "1.5s",
                "arrival \"1.5s\" is not valid: expected a whole number (write 1.5s as 1s500ms), \
                 found \".5s\"; write it as in \"0s, 1s x3, every 50ms for 2s\"",
            ),
            (
                "1s y3",
                "arrival \"1s y3\" is not valid: expected \"every\", \"x\" or a comma, found \
                 \"y3\"; write it as in \"0s, 1s x3, every 50ms for 2s\"",
            ),
            (
                "every 5ms",
                "arrival \"every 5ms\" is not valid: expected \"for\" and a duration, found the \
                 end; write it as in \"0s, 1s x3, every 50ms for 2s\"",
            ),
            (
                "every 0ms for 1s",
                "arrival \"every 0ms for 1s\" has no time between its events; give at least 1ns, \
                 or write x5 for five at once",
            ),
            (
                "every 1ms for 0s",
                "arrival \"every 1ms for 0s\" contains no events; give a longer time, or leave it \
                 out",
            ),
            ("1s x0", "arrival \"1s x0\" contains no events; use at least x1, or leave it out"),
            (
                "every 1ns for 1s",
                "these arrivals contain 1000000000 events or more, above the limit of 100000 per \
                 run; use a longer interval, a shorter time or fewer copies",
            ),
            (
                "0s x100000, 1s",
                "these arrivals contain 100001 events or more, above the limit of 100000 per run; \
                 use a longer interval, a shorter time or fewer copies",
            ),
            (
                "5000day",
                "arrival \"5000day\" lies beyond 11.4 years, the latest time that a limiter can \
                 represent; use an earlier one",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), error, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in prop_oneof![
            "[0-9a-z, .]{0,40}",
            "(0|[0-9]{1,20}(ns|s|day)|every|for|x|,| ){0,12}",
            "\\PC{0,60}",
        ]) {
            match parse(&text) {
                Ok(ticks) => {
                    prop_assert!(ticks.len() as u64 <= EVENTS_MAX);
                    prop_assert!(ticks.is_sorted() && !ticks.is_empty());
                }
                Err(error) => prop_assert!(error.to_string().contains(';')),
            }
        }

        #[test]
        fn a_series_has_a_time_in_each_interval(
            from in 0..5_000_u64, every in 1..500_u64, times in 1..200_u64, copies in 1..4_u64,
        ) {
            let span = every * times;
            let text = format!("{from}ms every {every}ms for {span}ms x{copies}");
            let expected = (0..times * copies).map(|i| from + i / copies * every);
            prop_assert_eq!(millis(&text), expected.collect::<Vec<_>>());
        }
    }
}

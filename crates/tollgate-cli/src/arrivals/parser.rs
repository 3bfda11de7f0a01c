//! Takes one item of the arrivals apart.

use super::{
    UNITS,
    error::{ArrivalsError, shorten},
};

/// One item: a series of times, with a number of events at each. A single time is a series of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) from_ns: u64,
    /// At least 1.
    pub(super) every_ns: u64,
    /// At least 1; the series ends before this much time has passed.
    pub(super) span_ns: u64,
    /// At least 1.
    pub(super) copies: u64,
}

/// Reads from the left. On an error, `rest` starts at what was not understood.
#[derive(Debug)]
pub(super) struct Parser<'a> {
    item: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    pub(super) fn new(item: &'a str) -> Self {
        let item = item.trim();
        Self { item, rest: item }
    }

    /// Reads the whole item.
    pub(super) fn item(mut self) -> Result<Item, ArrivalsError> {
        let mut item = Item { from_ns: 0, every_ns: 1, span_ns: 1, copies: 1 };
        let has_time = self.at_digit();
        if has_time {
            item.from_ns = self.duration()?;
        }
        if self.word("every") {
            (item.every_ns, item.span_ns) = self.series()?;
        } else if !has_time {
            return Err(self.expected("a time or \"every\""));
        }
        if self.word("x") {
            item.copies = self.copies()?;
        }
        match self.rest {
            "" => Ok(item),
            _ => Err(self.expected("\"every\", \"x\" or a comma")),
        }
    }

    fn series(&mut self) -> Result<(u64, u64), ArrivalsError> {
        let every_ns = self.duration()?;
        if !self.word("for") {
            return Err(self.expected("\"for\" and a duration"));
        }
        let span_ns = self.duration()?;
        let item = || shorten(self.item, 40);
        match (every_ns, span_ns) {
            (0, _) => Err(ArrivalsError::NoInterval { item: item() }),
            (_, 0) => Err(ArrivalsError::NoSpan { item: item() }),
            found => Ok(found),
        }
    }

    fn copies(&mut self) -> Result<u64, ArrivalsError> {
        match self.number()? {
            0 => Err(ArrivalsError::NoCopies { item: shorten(self.item, 40) }),
            copies => Ok(copies),
        }
    }

    /// Reads number-unit pairs, as in `1s500ms`; a lone zero needs no unit.
    fn duration(&mut self) -> Result<u64, ArrivalsError> {
        let mut sum_ns = 0_u64;
        loop {
            let number = self.number()?;
            if self.rest.starts_with('.') {
                return Err(self.expected("a whole number (write 1.5s as 1s500ms)"));
            }
            let unit = UNITS.iter().find(|(name, _)| self.letters() == *name);
            let unit_ns = match unit {
                Some((name, unit_ns)) => {
                    self.skip(name.len());
                    *unit_ns
                }
                None if number == 0 => 0,
                None => return Err(self.expected("a unit: ns, us, ms, s, min, h or day")),
            };
            let sum = number.checked_mul(unit_ns).and_then(|part_ns| sum_ns.checked_add(part_ns));
            sum_ns = sum.ok_or_else(|| ArrivalsError::TooLate { item: shorten(self.item, 40) })?;
            if !self.at_digit() {
                return Ok(sum_ns);
            }
        }
    }

    fn number(&mut self) -> Result<u64, ArrivalsError> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        if end == 0 {
            return Err(self.expected("a number"));
        }
        let number = self.rest[..end].parse().map_err(|_| self.expected("a number below 2^64"))?;
        self.skip(end);
        Ok(number)
    }

    fn at_digit(&self) -> bool {
        self.rest.starts_with(|c: char| c.is_ascii_digit())
    }

    /// Returns the letters that stand next, without taking them.
    fn letters(&self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_alphabetic()).unwrap_or(self.rest.len());
        &self.rest[..end]
    }

    fn word(&mut self, word: &str) -> bool {
        let found = self.letters() == word;
        if found {
            self.skip(word.len());
        }
        found
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest[bytes..].trim_start();
    }

    fn expected(&self, expected: &'static str) -> ArrivalsError {
        let found = self.rest.split_whitespace().next().unwrap_or("");
        ArrivalsError::NotUnderstood {
            item: shorten(self.item, 40),
            expected,
            found: shorten(found, 20),
        }
    }
}

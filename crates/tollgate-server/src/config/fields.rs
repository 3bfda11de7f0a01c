//! Typed access to the values of a tree. A value of the wrong type becomes an error with its place,
//! and reading goes on.

use super::{
    Place,
    duration::parse_duration,
    error::Errors,
    keys::{SECTIONS, Section, Shape},
    suggest::nearest,
    tree::{Entry, Kind, Node, NotWhole, Spot, shown, whole_number},
};
use std::{fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

/// Reads one file.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) file: Arc<str>,
    pub(super) errors: &'a mut Errors,
}

/// The keys and values of a section. All its keys are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'n> {
    pub(super) section: &'static Section,
    pub(super) spot: Spot,
    entries: &'n [Entry],
}

impl<'n> Fields<'n> {
    /// Returns a key with its value, unless the value is nothing.
    pub(super) fn entry(&self, name: &str) -> Option<&'n Entry> {
        debug_assert!(self.section.find(name).is_some(), "{name} is not in the table");
        self.entries.iter().find(|entry| &*entry.key == name && !entry.value.is_null())
    }

    pub(super) fn get(&self, name: &str) -> Option<&'n Node> {
        self.entry(name).map(|entry| &entry.value)
    }

    /// Returns the place of a key, or else of the section.
    pub(super) fn spot_of(&self, name: &str) -> Spot {
        self.entry(name).map_or(self.spot, |entry| entry.spot)
    }
}

impl Reader<'_> {
    pub(super) fn place(&self, spot: Spot) -> Place {
        Place::of(&self.file, spot)
    }

    pub(super) fn error(&mut self, spot: Spot, text: impl Into<String>) {
        let place = self.place(spot);
        self.errors.add(place, text);
    }

    /// Opens a section: complains about keys that it does not have.
    pub(super) fn section<'n>(
        &mut self,
        node: &'n Node,
        section: &'static Section,
    ) -> Option<Fields<'n>> {
        let Kind::Map(entries) = &node.kind else {
            let found = node.described();
            self.error(node.spot, format!("{} must be a map, not {found}", section.name));
            return None;
        };
        for entry in entries {
            if !entry.has_text_key {
                let key = shown(&entry.key);
                let text = format!("config error, key is not of type string: {key}");
                self.error(entry.spot, text);
            } else if section.find(&entry.key).is_none() {
                // A file of nothing but wrong keys must not take long.
                let text = match self.errors.is_full() {
                    true => String::new(),
                    false => unknown_key(&entry.key, section),
                };
                self.error(entry.spot, text);
            }
        }
        Some(Fields { section, spot: node.spot, entries })
    }

    /// Opens a section within a section.
    pub(super) fn inner<'n>(&mut self, fields: &Fields<'n>, name: &str) -> Option<Fields<'n>> {
        let entry = fields.entry(name)?;
        match fields.section.find(name)?.shape {
            Shape::Map(section) | Shape::WordOr(_, section) => {
                let inner = self.section(&entry.value, section)?;
                Some(Fields { spot: entry.spot, ..inner })
            }
            _ => None,
        }
    }

    /// Opens the sections of a list.
    pub(super) fn inner_list<'n>(&mut self, fields: &Fields<'n>, name: &str) -> Vec<Fields<'n>> {
        let section = fields.section.find(name).map(|key| key.shape);
        let (Some(node), Some(Shape::List(section))) = (fields.get(name), section) else {
            return Vec::new();
        };
        let Kind::List(items) = &node.kind else {
            let found = if name == "tokens" { "a string".into() } else { node.described() };
            self.error(node.spot, format!("'{name}' must be a list, not {found}"));
            return Vec::new();
        };
        items.iter().filter_map(|item| self.list_item(item, section)).collect()
    }

    pub(super) fn list_item<'n>(
        &mut self,
        item: &'n Node,
        section: &'static Section,
    ) -> Option<Fields<'n>> {
        if !matches!(item.kind, Kind::Map(_)) {
            // It may be the secret that belongs into a file.
            let is_token = section.name.contains("token");
            let found = if is_token { "a string".into() } else { item.described() };
            let text =
                format!("config error, yaml file contains list of type other than map: {found}");
            self.error(item.spot, text);
            return None;
        }
        self.section(item, section)
    }

    /// Reads a text. A number or a boolean counts as what is written.
    pub(super) fn text(&mut self, fields: &Fields<'_>, name: &str) -> Option<String> {
        let node = fields.get(name)?;
        self.text_of(node, name)
    }

    pub(super) fn text_of(&mut self, node: &Node, name: &str) -> Option<String> {
        let text = node.text().map(str::to_owned);
        if text.is_none() {
            self.error(node.spot, format!("'{name}' must be a string, not {}", node.described()));
        }
        text
    }

    /// Reads a text or a list of texts, with their places.
    pub(super) fn texts(&mut self, fields: &Fields<'_>, name: &str) -> Vec<(String, Spot)> {
        let Some(node) = fields.get(name) else { return Vec::new() };
        match &node.kind {
            Kind::List(items) => items
                .iter()
                .filter_map(|item| Some((self.text_of(item, name)?, item.spot)))
                .collect(),
            _ => self.text_of(node, name).map(|text| (text, node.spot)).into_iter().collect(),
        }
    }

    pub(super) fn path(&mut self, fields: &Fields<'_>, name: &str) -> Option<PathBuf> {
        let text = self.text(fields, name)?;
        if text.is_empty() {
            self.error(fields.spot_of(name), format!("'{name}' must be the path of a file"));
            return None;
        }
        Some(PathBuf::from(text))
    }

    pub(super) fn flag(&mut self, fields: &Fields<'_>, name: &str) -> Option<bool> {
        let node = fields.get(name)?;
        match node.kind {
            Kind::Bool(flag, _) => Some(flag),
            _ => {
                let found = node.described();
                self.error(node.spot, format!("'{name}' must be true or false, not {found}"));
                None
            }
        }
    }

    /// Reads a whole number.
    pub(super) fn count(&mut self, fields: &Fields<'_>, name: &str) -> Option<u64> {
        let node = fields.get(name)?;
        let number = match &node.kind {
            Kind::Number(text) => whole_number(text),
            _ => Err(NotWhole::NoNumber),
        };
        let why = match number {
            Ok(number) => return Some(number),
            Err(NotWhole::NoNumber) => "",
            Err(NotWhole::Negative) => ": it is below zero",
            Err(NotWhole::Fraction) => ": it has a fraction",
            Err(NotWhole::TooLarge) => ": it is too large",
            Err(NotWhole::LeadingZero) => {
                ": some parsers read a leading zero as octal; remove the zero"
            }
        };
        let found = node.described();
        self.error(node.spot, format!("'{name}' must be a whole number, not {found}{why}"));
        None
    }

    /// Reads a whole number that a smaller type can hold.
    pub(super) fn small<T: TryFrom<u64>>(&mut self, fields: &Fields<'_>, name: &str) -> Option<T> {
        let number = self.count(fields, name)?;
        let small = T::try_from(number).ok();
        if small.is_none() {
            let spot = fields.get(name).map_or(fields.spot, |node| node.spot);
            self.error(spot, format!("'{name}' is too large: {number}"));
        }
        small
    }

    /// Reads a duration above zero.
    pub(super) fn period(&mut self, fields: &Fields<'_>, name: &str) -> Option<Duration> {
        let period = self.period_or_zero(fields, name)?;
        if period.is_zero() {
            let spot = fields.get(name).map_or(fields.spot, |node| node.spot);
            self.error(spot, format!("'{name}' must be above zero"));
            return None;
        }
        Some(period)
    }

    pub(super) fn period_or_zero(&mut self, fields: &Fields<'_>, name: &str) -> Option<Duration> {
        let node = fields.get(name)?;
        let text = self.text_of(node, name)?;
        self.judged(node.spot, name, parse_duration(&text))
    }

    /// Returns true if the value is one of the words for off.
    pub(super) fn is_off(fields: &Fields<'_>, name: &str) -> bool {
        let word = |text: &str| text.eq_ignore_ascii_case("off");
        fields.get(name).and_then(Node::text).is_some_and(word)
    }

    /// Reads one of the words of the table, and returns its meaning.
    pub(super) fn word<T>(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        meaning: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let node = fields.get(name)?;
        let text = self.text_of(node, name)?;
        let found = meaning(&text);
        if found.is_none() && self.errors.is_full() {
            self.error(node.spot, "");
        } else if found.is_none() {
            let known: &[&str] = match fields.section.find(name).map(|key| key.shape) {
                Some(Shape::OneOf(known) | Shape::WordOr(known, _)) => known,
                _ => &[],
            };
            let hint = match nearest(&text, known.iter().copied()) {
                Some(near) => format!("did you mean '{near}'?"),
                None => format!("use one of {}", known.join(", ")),
            };
            self.error(
                node.spot,
                format!("'{}' is not a valid value of '{name}'; {hint}", shown(&text)),
            );
        }
        found
    }

    /// Reads a list of the words of the table, and what they stand for: at least one, and none twice.
    pub(super) fn words<T: PartialEq>(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        meaning: impl Fn(&str) -> Option<T>,
    ) -> Vec<T> {
        let known: &[&str] = match fields.section.find(name).map(|key| key.shape) {
            Some(Shape::Words(known)) => known,
            _ => &[],
        };
        let mut found = Vec::new();
        for (text, spot) in self.texts(fields, name) {
            match meaning(&text) {
                Some(value) if found.contains(&value) => {
                    self.error(spot, format!("'{text}' is listed twice in '{name}'; remove one"));
                }
                Some(value) => found.push(value),
                None => {
                    let hint = match nearest(&text, known.iter().copied()) {
                        Some(near) => format!("did you mean '{near}'?"),
                        None => format!("use {}", known.join(", ")),
                    };
                    self.error(
                        spot,
                        format!("'{}' is not allowed in {name}; {hint}", shown(&text)),
                    );
                }
            }
        }
        if matches!(fields.get(name), Some(node) if matches!(&node.kind, Kind::List(items) if items.is_empty()))
        {
            let text = format!("'{name}' is empty; use {}", known.join(", "));
            self.error(fields.spot_of(name), text);
        }
        found
    }

    /// Reads what a type reads of its text.
    pub(super) fn parsed<T>(&mut self, fields: &Fields<'_>, name: &str) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let node = fields.get(name)?;
        let text = self.text_of(node, name)?;
        self.judged(node.spot, name, text.parse())
    }

    fn judged<T, E: fmt::Display>(
        &mut self,
        spot: Spot,
        name: &str,
        result: Result<T, E>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.error(spot, format!("'{name}': {error}"));
                None
            }
        }
    }

    /// Complains about a key without which the section means nothing.
    pub(super) fn missing(&mut self, fields: &Fields<'_>, name: &str, example: &str) {
        if fields.get(name).is_none() {
            let text = format!("{} needs '{name}', for example {example}", fields.section.name);
            self.error(fields.spot, text);
        }
    }
}

fn unknown_key(key: &str, section: &Section) -> String {
    let names = |section: &&'static Section| section.keys.iter().map(|key| key.name);
    let home = |name: &str| SECTIONS.iter().find(|other| other.find(name).is_some());
    let everywhere = || SECTIONS.iter().flat_map(names);
    let hint = if let Some(other) = home(key) {
        format!("it belongs in {}, but this is {}", other.name, section.name)
    } else if let Some(near) = nearest(key, section.keys.iter().map(|key| key.name)) {
        format!("did you mean '{near}'?")
    } else if let Some((near, other)) =
        nearest(key, everywhere()).and_then(|near| Some((near, home(near)?)))
    {
        format!("did you mean '{near}', which belongs in {}?", other.name)
    } else {
        let known: Vec<&str> = section.keys.iter().map(|key| key.name).collect();
        format!("{} has {}", section.name, known.join(", "))
    };
    format!("config error, unknown key '{}'; {hint}", shown(key))
}

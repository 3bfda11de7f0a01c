//! The errors of a configuration: all of them at once, with their places.

use super::{Place, tree::Spot};
use std::{fmt, sync::Arc};

/// The most errors that are reported.
pub(super) const ERRORS_MAX: usize = 50;

/// One error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    place: Place,
    text: String,
    source_line: Option<String>,
}

impl ConfigError {
    /// Returns the place of the error.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the text of the error, without the place.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Writes `file:line:column: text` and the line of the file, with a mark below the place.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.file.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.text)?;
        match &self.source_line {
            Some(source) => write_snippet(f, source, &self.place),
            None => Ok(()),
        }
    }
}

/// All errors, in the order of the files and lines; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    errors: Vec<ConfigError>,
    left_out: usize,
}

impl ConfigErrors {
    /// Returns the errors; at most 50.
    #[must_use]
    pub fn errors(&self) -> &[ConfigError] {
        &self.errors
    }

    /// Returns how many errors there are beyond those.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{error}")?;
        }
        match self.left_out {
            0 => Ok(()),
            1 => write!(f, "\nand 1 more error"),
            more => write!(f, "\nand {more} more errors"),
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// A file as it was read.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: Arc<str>,
    pub(super) text: String,
}

/// Collects errors.
#[derive(Debug, Default)]
pub(super) struct Errors {
    pub(super) sources: Vec<Source>,
    /// How many regular expressions have been read.
    pub(super) expressions: usize,
    /// A file could not be read at all, so what others say about it cannot be judged.
    pub(super) is_partial: bool,
    errors: Vec<ConfigError>,
    left_out: usize,
}

impl Errors {
    /// Records an error.
    pub(super) fn add(&mut self, place: Place, text: impl Into<String>) {
        if self.is_full() {
            self.left_out += 1;
            return;
        }
        let text = text.into();
        // An alias repeats the errors of the value that it stands for.
        if self.errors.iter().any(|known| known.place == place && known.text == text) {
            return;
        }
        let source = self.sources.iter().find(|source| source.name == place.file);
        let source_line = source.and_then(|source| line_of(&source.text, place.line));
        self.errors.push(ConfigError { place, text, source_line });
    }

    /// Returns true if a further error is only counted, so that its text is not needed.
    pub(super) fn is_full(&self) -> bool {
        self.errors.len() >= ERRORS_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns the result if there are no errors.
    pub(super) fn finish<T>(self, result: T) -> Result<T, ConfigErrors> {
        let Self { sources, mut errors, left_out, .. } = self;
        if errors.is_empty() {
            return Ok(result);
        }
        let order = |place: &Place| {
            let file = sources.iter().position(|source| source.name == place.file);
            (file.unwrap_or(usize::MAX), place.line, place.column)
        };
        errors.sort_by_key(|error| order(&error.place));
        Err(ConfigErrors { errors, left_out })
    }
}

impl Place {
    pub(super) fn of(file: &Arc<str>, spot: Spot) -> Self {
        Self { file: file.clone(), line: spot.line, column: spot.column }
    }
}

/// Returns a line to show; `None` if it, or a section that it is in, may hold a secret.
fn line_of(text: &str, line: u32) -> Option<String> {
    let index = usize::try_from(line.checked_sub(1)?).ok()?;
    let found = text.lines().nth(index)?;
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '-']).len();
    // The lines above that are indented less and less are the sections that it is in.
    let mut within = indent(found);
    let mut hides = may_hold_secret(found);
    let before: Vec<&str> = text.lines().take(index).collect();
    for above in before.into_iter().rev() {
        if indent(above) < within && !above.trim().is_empty() {
            within = indent(above);
            hides |= may_hold_secret(above);
        }
    }
    // Longer lines are cut when they are shown.
    (!hides).then(|| found.chars().take(4096).collect())
}

/// Returns true if a line may hold a password: an address, a value whose name says so, or the
/// beginning of a section with such values. Such a line is not shown; its place is.
fn may_hold_secret(line: &str) -> bool {
    const NAMES: [&str; 8] = ["pass", "pw", "secret", "token", "auth", "cred", "redis", "stores"];
    let line = line.to_ascii_lowercase();
    let named = |word: &'static str| {
        let values = line.match_indices(word).map(|(at, word)| &line[at + word.len()..]);
        // The rest of the name, as in `passwords` or `token_file`.
        let values =
            values.map(|rest| rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'));
        let values = values.map(|rest| rest.trim_start_matches(['"', '\'', ' ']));
        values.filter_map(|rest| rest.strip_prefix([':', '=']))
    };
    // `forward_auth` is about proxies.
    let is_named = |word| word != "auth" || !line.contains("forward_auth");
    line.contains('@')
        || line.contains("://")
        || NAMES.into_iter().any(|word| is_named(word) && named(word).count() > 0)
        || ["store", "url"].into_iter().any(|word| named(word).any(|value| value.contains(':')))
}

fn write_snippet(f: &mut fmt::Formatter<'_>, source: &str, place: &Place) -> fmt::Result {
    /// Characters of the line that are shown, and how many of them before the place.
    const SHOWN: usize = 100;
    const BEFORE: usize = 60;
    let start = (place.column as usize).saturating_sub(1);
    let cut = start.saturating_sub(BEFORE);
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let shown: String = source.chars().skip(cut).take(SHOWN).map(plain).collect();
    let (number, space) = (place.line.to_string(), " ");
    let width = number.len();
    write!(f, "\n{space:width$} |\n{number} | {}", shown.trim_end())?;
    let before = start - cut;
    if before >= shown.chars().count() {
        return Ok(());
    }
    let marks = "^".repeat(word_length(shown.chars().skip(before)));
    write!(
        f,
        "\n{space:width$} | {space:before$}{marks}",
        space = if before == 0 { "" } else { space }
    )
}

/// Returns the length of the word that begins here: a quoted text, or up to a space or a sign.
fn word_length(mut chars: impl Iterator<Item = char>) -> usize {
    let Some(first) = chars.next() else { return 1 };
    let length = match first {
        '"' | '\'' => chars.position(|c| c == first).map(|index| index + 1),
        '[' | '{' => Some(0),
        _ => Some(chars.take_while(|c| !c.is_whitespace() && !":,]}".contains(*c)).count()),
    };
    length.unwrap_or(0) + 1
}

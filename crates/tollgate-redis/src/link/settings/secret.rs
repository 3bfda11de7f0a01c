//! Passwords, which nobody prints.

use std::{fmt, path::PathBuf};

/// A password, or the file that holds it. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Source);

#[derive(Clone, PartialEq, Eq)]
enum Source {
    Text(String),
    File(PathBuf),
}

impl Secret {
    /// Returns a password.
    pub fn new(password: impl Into<String>) -> Self {
        Self(Source::Text(password.into()))
    }

    /// Returns the password in a file, which is read for each connection: so it can be changed
    /// while the program runs. White space at its end does not count.
    pub fn in_file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// Returns the password.
    pub(in crate::link) fn read(&self) -> Result<String, String> {
        match &self.0 {
            Source::Text(text) => Ok(text.clone()),
            Source::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(text.trim_end().to_owned()),
                Err(error) => Err(format!("the password file {}: {error}", path.display())),
            },
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Text(_) => f.write_str("Secret(..)"),
            Source::File(path) => write!(f, "Secret(in {})", path.display()),
        }
    }
}

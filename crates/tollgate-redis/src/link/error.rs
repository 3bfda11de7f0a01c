//! The errors of the link.

use std::{error::Error, fmt};
use tollgate::store::StoreError;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkError {
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unavailable,
    Unknown,
    Refused,
}

impl LinkError {
    /// The command was not carried out: nothing was sent, or no server is there.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self { kind: Kind::Unavailable, text: text.into() }
    }

    /// The command was sent and there is no reply: it was carried out once or not at all.
    pub fn unknown(text: impl Into<String>) -> Self {
        Self { kind: Kind::Unknown, text: text.into() }
    }

    /// The server answered with an error: `OOM command not allowed ...`.
    pub fn refused(text: impl Into<String>) -> Self {
        Self { kind: Kind::Refused, text: text.into() }
    }

    /// Tells whether the command may have been carried out.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.kind == Kind::Unknown
    }

    /// Returns the code of a server's error: its first word.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        (self.kind == Kind::Refused).then(|| self.text.split(' ').next()).flatten()
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for LinkError {}

impl From<LinkError> for StoreError {
    fn from(error: LinkError) -> Self {
        match error.kind {
            Kind::Unknown => Self::timeout(error.text),
            Kind::Unavailable | Kind::Refused => Self::unavailable(error.text),
        }
    }
}

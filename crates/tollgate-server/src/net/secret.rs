//! Tokens and passwords.

use std::{fmt, io, path::Path};
use subtle::ConstantTimeEq;
use tollgate_redis::read_regular;

/// The longest file with a secret.
const MAX_BYTES: usize = 4096;

/// A token or password. It is compared in constant time and never shown.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// Returns a secret.
    #[must_use]
    pub fn new(text: impl AsRef<[u8]>) -> Self {
        Self(text.as_ref().into())
    }

    /// Reads a secret from a file, without its trailing line end.
    ///
    /// # Errors
    ///
    /// When it is not a regular file, cannot be read, is empty, or is longer than 4096 bytes.
    pub fn read(path: &Path) -> io::Result<Self> {
        let text = read_regular(path, MAX_BYTES)?;
        match text.trim_ascii_end() {
            [] => {
                let wrong =
                    format!("{} is empty; put the secret on its first line", path.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, wrong))
            }
            text => Ok(Self::new(text)),
        }
    }

    /// Returns the secret itself, to present it once more.
    pub(crate) const fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Tells whether the given secret is this one. Takes as long for a wrong one as for a right one
    /// of the same length.
    #[must_use]
    pub fn matches(&self, given: &[u8]) -> bool {
        self.0.ct_eq(given).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_matches_and_nobody_sees_it() {
        let secret = Secret::new("hunter2");
        assert!(secret.matches(b"hunter2"));
        for wrong in [&b""[..], b"hunter", b"hunter22", b"Hunter2"] {
            assert!(!secret.matches(wrong));
        }
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}

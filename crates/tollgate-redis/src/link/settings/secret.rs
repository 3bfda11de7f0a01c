//! Passwords, which nobody prints.

use crate::read_regular;
use std::{fmt, path::PathBuf, sync::Arc};
use tokio::sync::Semaphore;

/// The longest file with a password, in bytes.
const MAX_BYTES: usize = 4096;

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
            Source::File(path) => {
                let wrong = |error: &dyn fmt::Display| {
                    format!("the password file {}: {error}", path.display())
                };
                let bytes = read_regular(path, MAX_BYTES).map_err(|error| wrong(&error))?;
                let text = String::from_utf8(bytes).map_err(|error| wrong(&error))?;
                Ok(text.trim_end().to_owned())
            }
        }
    }

    /// Returns the password. A file is read on a thread of its own, after those that hold `one`: a
    /// file that does not answer blocks one thread, and nobody else.
    pub(in crate::link) async fn read_beside(
        &self,
        one: &Arc<Semaphore>,
    ) -> Result<String, String> {
        if let Source::Text(text) = &self.0 {
            return Ok(text.clone());
        }
        let permit = Arc::clone(one).acquire_owned().await.map_err(|error| error.to_string())?;
        let secret = self.clone();
        let read = move || {
            let _permit = permit;
            secret.read()
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?
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

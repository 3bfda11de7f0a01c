//! Passwords, which are never printed.

use crate::read_regular;
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Semaphore;

/// The longest file with a password, in bytes.
const MAX_BYTES: usize = 4096;

/// A password, or the file that holds it. Never printed.
#[derive(Clone)]
pub struct Secret(Source);

#[derive(Clone)]
enum Source {
    Text(String),
    /// The file, and what it held when it last held something.
    File(PathBuf, Arc<Mutex<Option<String>>>),
}

impl Secret {
    /// Returns a password.
    pub fn new(password: impl Into<String>) -> Self {
        Self(Source::Text(password.into()))
    }

    /// Returns the password in a file, which is read for each connection: so it can be changed
    /// while the program runs. White space at its end does not count. While the file is missing or
    /// empty, the password that it held before is used.
    pub fn in_file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into(), Arc::default()))
    }

    /// Checks that the file, if there is one, holds a password now.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or is empty.
    pub fn check(&self) -> Result<(), String> {
        match &self.0 {
            Source::Text(_) => Ok(()),
            Source::File(path, _) => read(path).map(drop),
        }
    }

    /// Returns the password.
    pub(in crate::link) fn read(&self) -> Result<String, String> {
        let (path, last) = match &self.0 {
            Source::Text(text) => return Ok(text.clone()),
            Source::File(path, last) => (path, last),
        };
        let found = read(path);
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        match (found, &*last) {
            (Ok(text), _) => Ok(last.insert(text).clone()),
            (Err(_), Some(last)) => Ok(last.clone()),
            (Err(error), None) => Err(error),
        }
    }

    /// Returns the password. A separate thread reads the file, after the current holder of `one`:
    /// an unresponsive file blocks one thread and nothing else.
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

fn read(path: &Path) -> Result<String, String> {
    let wrong = |text: &dyn fmt::Display| format!("the password file {}: {text}", path.display());
    let bytes = read_regular(path, MAX_BYTES).map_err(|error| wrong(&error))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong(&"it is not UTF-8"))?;
    match text.trim_end() {
        "" => Err(wrong(&"it is empty; put the password on its first line")),
        text => Ok(text.to_owned()),
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Source::Text(ours), Source::Text(theirs)) => ours == theirs,
            (Source::File(ours, _), Source::File(theirs, _)) => ours == theirs,
            _ => false,
        }
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Text(_) => f.write_str("Secret(..)"),
            Source::File(path, _) => write!(f, "Secret(in {})", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_and_an_empty_one_keeps_the_password() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let secret = Secret::in_file(&path);
        assert!(secret.read().unwrap_err().contains("password file"));
        std::fs::write(&path, " \n").unwrap();
        assert!(secret.read().unwrap_err().contains("is empty"));
        std::fs::write(&path, "one\n").unwrap();
        assert_eq!(secret.read().as_deref(), Ok("one"));
        std::fs::write(&path, "two\n").unwrap();
        assert_eq!((secret.read().as_deref(), secret.check()), (Ok("two"), Ok(())));
        std::fs::write(&path, "\n").unwrap();
        assert_eq!(secret.read().as_deref(), Ok("two"));
        assert!(secret.check().unwrap_err().contains("is empty"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(secret.clone().read().as_deref(), Ok("two"));
        assert!(secret.check().is_err());
        assert!(!format!("{secret:?}").contains("two"));
    }
}

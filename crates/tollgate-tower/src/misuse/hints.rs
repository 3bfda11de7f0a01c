//! Likely mistakes in the keys of a layer.

use super::{Sample, Warning};
use crate::{Info, Key};
use std::sync::{Mutex, PoisonError};

/// How many of the first requests are checked.
const FIRST: u32 = 64;
/// How many codes are remembered: more than there are.
const CODES_MAX: usize = 16;

/// Checks keys for [hints](Key::hint), and logs each code once per layer.
#[derive(Debug)]
pub(crate) struct Hints {
    sample: Sample,
    told: Mutex<Vec<&'static str>>,
}

impl Default for Hints {
    fn default() -> Self {
        Self { sample: Sample::first(FIRST), told: Mutex::default() }
    }
}

impl Hints {
    /// Checks some of the requests.
    #[inline]
    pub(crate) fn look<'a>(&self, keys: impl Iterator<Item = &'a Key>, info: &Info<'_>) {
        if self.sample.is_due() {
            self.look_now(keys, info);
        }
    }

    #[cold]
    fn look_now<'a>(&self, keys: impl Iterator<Item = &'a Key>, info: &Info<'_>) {
        for warning in self.found(keys, info) {
            warning.tell();
        }
    }

    /// Returns the new warnings that a request shows.
    fn found<'a>(&self, keys: impl Iterator<Item = &'a Key>, info: &Info<'_>) -> Vec<Warning> {
        let mut found = Vec::new();
        for hint in keys.filter_map(|key| key.hint(info)) {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.len() < CODES_MAX && !told.contains(&hint.code()) {
                told.push(hint.code());
                drop(told);
                let (code, docs, text) = (hint.code(), hint.docs(), hint.to_string());
                found.push(Warning { code, docs, text });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Peer;
    use http::Request;

    #[test]
    fn each_code_is_told_once_per_layer() {
        let keys = [Key::peer(), Key::peer(), Key::global()];
        let behind_proxy = Request::builder()
            .header("x-forwarded-for", "203.0.113.9")
            .extension(Peer(([10, 0, 0, 1], 4711).into()))
            .body(());
        let behind_proxy = behind_proxy.unwrap();
        let direct = Request::new(());
        let hints = Hints::default();
        let codes = |request: &Request<()>| -> Vec<_> {
            let found = hints.found(keys.iter(), &Info::of(request));
            found.iter().map(|warning| warning.code).collect()
        };
        assert_eq!(codes(&direct), ["TG-K52"]);
        assert_eq!(codes(&behind_proxy), ["TG-K51"]);
        assert_eq!((codes(&direct), codes(&behind_proxy)), (vec![], vec![]));
        let other = Hints::default().found(keys.iter(), &Info::of(&direct));
        assert_eq!(other.len(), 1, "another layer tells it by itself");
    }
}

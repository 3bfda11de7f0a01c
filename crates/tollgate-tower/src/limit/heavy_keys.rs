//! The heaviest keys of a policy: "who is my noisy tenant?"

use crate::key::KeyText;
use std::fmt;
use tollgate::{
    Decision, TopKeys,
    observe::{EventKey, KeyForm},
};

/// The ranking of one policy, over all its tiers.
#[derive(Debug)]
pub(super) struct HeavyKeys {
    pub(super) top: TopKeys,
    form: KeyForm,
}

/// A key as a ranking shows it.
struct KeyName<'a> {
    key: KeyText<'a>,
    form: KeyForm,
}

impl fmt::Display for KeyName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form {
            // Its text is already escaped.
            KeyForm::Plain => self.key.fmt(f),
            form => f.write_str(&EventKey::Plain(&self.key).text(form)),
        }
    }
}

impl HeavyKeys {
    /// INVARIANT: the builder has checked the capacity.
    pub(super) fn new(capacity: usize, form: KeyForm) -> Self {
        Self { top: TopKeys::new(capacity), form }
    }

    pub(super) fn record(&self, key: &[u8], decision: &Decision) {
        let name = KeyName { key: KeyText::of(key), form: self.form };
        self.top.record_decision(&name, self.top.fingerprint(key), decision);
    }
}

//! The log of changes by administrators.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tollgate::Tick;

/// The last changes. Older ones are in the log, under the target `tollgate::audit`.
#[derive(Debug, Default)]
pub struct Audit {
    entries: Mutex<VecDeque<AuditEntry>>,
    written: AtomicU64,
}

/// One change, or one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// When.
    pub at: Tick,
    /// Where the caller's connection came from: an address, or `unix`.
    pub who: String,
    /// The operation: its path.
    pub action: &'static str,
    /// The arguments, in one line.
    pub what: String,
    /// Why the change failed, if it did.
    pub error: Option<String>,
}

impl Audit {
    /// How many changes are kept.
    pub const MOST: usize = 1000;

    /// The most bytes of each text of an entry.
    const LONGEST: usize = 512;

    fn lock(&self) -> MutexGuard<'_, VecDeque<AuditEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a change to the log.
    pub fn note(&self, mut entry: AuditEntry) {
        shorten(&mut entry.what);
        if let Some(error) = &mut entry.error {
            shorten(error);
        }
        let AuditEntry { who, action, what, .. } = &entry;
        match &entry.error {
            None => tracing::info!(target: "tollgate::audit", %who, action, "{what}"),
            Some(error) => {
                tracing::warn!(target: "tollgate::audit", %who, action, %error, "{what}");
            }
        }
        let mut entries = self.lock();
        if entries.len() >= Self::MOST {
            entries.pop_front();
        }
        entries.push_back(entry);
        // ORDERING: Relaxed. The count only tells a dashboard to read the list again, under its lock.
        self.written.fetch_add(1, Relaxed);
    }

    /// Returns how many changes were recorded so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        // ORDERING: Relaxed, as in `note`.
        self.written.load(Relaxed)
    }

    /// Returns the last changes, the last first, at most `most`.
    #[must_use]
    pub fn last(&self, most: usize) -> Vec<AuditEntry> {
        self.lock().iter().rev().take(most).cloned().collect()
    }
}

/// Cuts a text that came from outside, and marks the cut by three dots.
fn shorten(text: &mut String) {
    if text.len() > Audit::LONGEST {
        let end = (0..=Audit::LONGEST).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push_str("...");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_thousand_and_no_long_texts() {
        let audit = Audit::default();
        for number in 0..Audit::MOST as u64 + 5 {
            let what = format!("{number} {}", "é".repeat(600));
            let who = "unix".to_owned();
            let at = Tick::from_secs(number);
            audit.note(AuditEntry { at, who, action: "/reset", what, error: None });
        }
        let last = audit.last(usize::MAX);
        assert_eq!((last.len(), last[0].at), (Audit::MOST, Tick::from_secs(1004)));
        assert!(last[0].what.len() <= Audit::LONGEST + 3 && last[0].what.ends_with("é..."));
        assert_eq!(audit.last(2).len(), 2);
    }
}

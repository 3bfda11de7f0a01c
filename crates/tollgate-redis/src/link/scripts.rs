//! The scripts that servers are to know.

use crate::Script;
use std::sync::{Mutex, PoisonError};

/// So many scripts are remembered; ours are few. Those beyond are sent when a server asks.
const SCRIPTS_MAX: usize = 128;

/// The scripts a server once did not know. They are loaded on every new connection, so that a server
/// that lost them is told once and not by each caller.
#[derive(Debug, Default)]
pub(super) struct Scripts(Mutex<Vec<(String, String)>>);

impl Scripts {
    pub(super) fn remember(&self, script: &Script) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < SCRIPTS_MAX && known.iter().all(|(sha, _)| sha != script.sha()) {
            known.push((script.sha().to_owned(), script.source().to_owned()));
        }
    }

    pub(super) fn sources(&self) -> Vec<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(_, source)| source.clone()).collect()
    }
}

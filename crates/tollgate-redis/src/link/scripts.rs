//! The scripts that new connections load.

use crate::Script;
use std::sync::{Mutex, PoisonError};

/// The most scripts that are remembered; this crate has few. Others are sent when a server lacks
/// them.
const SCRIPTS_MAX: usize = 128;

/// The scripts that a server once did not know. Every new connection loads them, so that a server
/// that lost them receives each script once and not from each caller.
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

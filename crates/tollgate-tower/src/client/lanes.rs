//! The lanes of all servers: a bounded number.

use super::{counts::Counts, lane::Manner, turn::Line};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tollgate::{Clock, Tick};

/// The lanes by the hash of their key.
#[derive(Debug)]
pub(super) struct Lanes {
    most: usize,
    max_waiting: usize,
    manner: Manner,
    clock: Clock,
    lines: Mutex<HashMap<u64, Entry>>,
    /// For keys that find no place.
    shared: Arc<Line>,
}

#[derive(Debug)]
struct Entry {
    line: Arc<Line>,
    used: Tick,
}

impl Lanes {
    pub(super) fn new(most: usize, max_waiting: usize, manner: Manner, clock: Clock) -> Self {
        let shared = Arc::new(Line::new(manner, clock.clone(), max_waiting));
        Self { most, max_waiting, manner, clock, lines: Mutex::default(), shared }
    }

    /// Returns the lane of a key. If all places are taken, an unused lane is forgotten: an idle
    /// one, otherwise the least recently used one. If all are in use, the key shares a lane with
    /// the others that find no place.
    pub(super) fn get(&self, key: u64, counts: &Counts) -> Arc<Line> {
        let now = self.clock.now();
        let mut lines = self.lines();
        if let Some(entry) = lines.get_mut(&key) {
            entry.used = now;
            return Arc::clone(&entry.line);
        }
        if lines.len() >= self.most {
            let unused = lines.iter().filter(|(_, entry)| Arc::strong_count(&entry.line) == 1);
            let oldest = unused.min_by_key(|(_, entry)| (!entry.line.is_idle(now), entry.used));
            let Some(oldest) = oldest.map(|(key, _)| *key) else {
                counts.crowded.add(1);
                return Arc::clone(&self.shared);
            };
            lines.remove(&oldest);
            counts.evicted.add(1);
        }
        let line = Arc::new(Line::new(self.manner, self.clock.clone(), self.max_waiting));
        lines.insert(key, Entry { line: Arc::clone(&line), used: now });
        line
    }

    pub(super) fn len(&self) -> usize {
        self.lines().len()
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

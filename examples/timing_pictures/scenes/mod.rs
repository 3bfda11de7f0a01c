//! The scenes of the pictures: short, and played by the shipped state machines on a manual clock.

mod batches;
mod bursts;
mod queues;

use super::drawing::Picture;
use std::{
    error::Error,
    sync::{Arc, Mutex, PoisonError},
};
use tollgate::ManualClock;

/// Returns all pictures.
pub(crate) fn all() -> Result<Vec<Picture>, Box<dyn Error>> {
    let mut pictures = queues::all()?;
    pictures.extend(bursts::all()?);
    pictures.extend(batches::all()?);
    Ok(pictures)
}

/// Records events with their times.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<(u64, String)>>>);

impl Log {
    fn note(&self, hand: &ManualClock, what: String) {
        let entry = (millis(hand), what);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    fn take(&self) -> Vec<(u64, String)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn millis(hand: &ManualClock) -> u64 {
    hand.now().as_nanos() / 1_000_000
}

//! Wakers to fire when no lock is held.

use crate::limits::few::Few;
use std::task::Waker;

/// Wakers in the order in which they are fired. As a rule they are few, and cost no allocation.
#[derive(Debug)]
pub(crate) struct Wakes(Few<Waker>);

impl Wakes {
    pub(crate) const fn new() -> Self {
        Self(Few::new())
    }

    pub(crate) fn push(&mut self, waker: impl Into<Option<Waker>>) {
        if let Some(waker) = waker.into() {
            self.0.push(waker);
        }
    }

    /// Wakes everybody, also if a waker panics: the others must not wait forever for it.
    pub(crate) fn fire(self) {
        struct Rest(Few<Waker>);
        impl Drop for Rest {
            fn drop(&mut self) {
                self.0.slice_mut().iter_mut().filter_map(Option::take).for_each(Waker::wake);
            }
        }
        drop(Rest(self.0));
    }
}

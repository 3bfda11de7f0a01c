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
        impl Rest {
            fn fire(&mut self) {
                self.0.slice_mut().iter_mut().filter_map(Option::take).for_each(Waker::wake);
            }
        }
        impl Drop for Rest {
            fn drop(&mut self) {
                self.fire();
            }
        }
        Rest(self.0).fire();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        task::Wake,
    };

    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            panic!("as a test");
        }
    }

    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn a_waker_that_panics_leaves_nobody_asleep() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let mut wakes = Wakes::new();
        wakes.push(Waker::from(Arc::clone(&count)));
        wakes.push(Waker::from(Arc::new(Bomb)));
        (0..20).for_each(|_| wakes.push(Waker::from(Arc::clone(&count))));
        assert!(catch_unwind(AssertUnwindSafe(|| wakes.fire())).is_err());
        assert_eq!(count.0.load(SeqCst), 21);
    }
}

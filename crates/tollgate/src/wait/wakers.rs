//! Wakers to fire when no lock is held.

use crate::multi::inline_vec::InlineVec;
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    task::Waker,
};

/// Wakers in the order in which they fire. Usually they are few, and cost no allocation.
#[derive(Debug)]
pub(crate) struct WakeList(InlineVec<Waker>);

impl WakeList {
    pub(crate) const fn new() -> Self {
        Self(InlineVec::new())
    }

    pub(crate) fn push(&mut self, waker: impl Into<Option<Waker>>) {
        if let Some(waker) = waker.into() {
            self.0.push(waker);
        }
    }

    /// Fires all wakers; see [`wake_all`].
    pub(crate) fn fire(mut self) {
        wake_all(self.0.slice_mut().iter_mut().filter_map(Option::take));
    }
}

/// Wakes all of them when it is dropped, which must be where no lock is held.
///
/// A waker that panics does not keep the others from being woken.
#[derive(Debug, Default)]
pub(crate) struct Wakers(pub(crate) Vec<Waker>);

impl Drop for Wakers {
    fn drop(&mut self) {
        wake_all(std::mem::take(&mut self.0).into_iter());
    }
}

/// Fires all wakers, even if one panics: the others must not wait forever. The first panic goes on
/// afterwards.
pub(crate) fn wake_all(wakers: impl Iterator<Item = Waker>) {
    let mut first = None;
    for waker in wakers {
        // UNWIND: a panic leaves only the data of the waker's author half done.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            match first {
                None => first = Some(panic),
                // Its drop may panic, too.
                Some(_) => std::mem::forget(panic),
            }
        }
    }
    match first {
        // Two panics at once would end the process.
        Some(panic) if std::thread::panicking() => std::mem::forget(panic),
        Some(panic) => resume_unwind(panic),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        task::Wake,
    };

    /// Counts, and panics if the flag is set.
    struct Woken(Arc<AtomicUsize>, bool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            // ORDERING: Relaxed. One thread counts.
            self.0.fetch_add(1, Relaxed);
            assert!(!self.1, "of the waker");
        }
    }

    #[test]
    fn wakers_that_panic_keep_nobody_asleep() {
        for count in [1, 3, 16, 17, 40] {
            let woken = Arc::new(AtomicUsize::new(0));
            let mut wakers = WakeList::new();
            for number in 0..count {
                wakers.push(Waker::from(Arc::new(Woken(Arc::clone(&woken), number % 2 == 0))));
            }
            assert!(catch_unwind(AssertUnwindSafe(|| wakers.fire())).is_err());
            // ORDERING: as above.
            assert_eq!(woken.load(Relaxed), count);
        }
    }
}

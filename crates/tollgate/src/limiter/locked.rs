//! A state too large for a word, behind a short lock.

use crate::{
    Inherit, Tick,
    algorithm::{Step, Succeed},
    sync::{Mutex, MutexGuard, lock},
};

/// A state with its parameters; the lock keeps them together.
#[derive(Debug)]
pub(crate) struct LockedCell<A: Step> {
    inner: Mutex<(A, A::State)>,
}

impl<A: Step> LockedCell<A> {
    pub(crate) fn new(algorithm: A, now: Tick) -> Self {
        let state = algorithm.initial(now);
        Self { inner: Mutex::new((algorithm, state)) }
    }

    /// Applies `step` to the state, atomically.
    pub(crate) fn update<R>(&self, mut step: impl FnMut(&A, &mut A::State) -> R) -> R {
        let mut inner = lock(&self.inner);
        let (algorithm, state) = &mut *inner;
        step(algorithm, state)
    }

    /// Locks the state until the result is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, (A, A::State)> {
        lock(&self.inner)
    }

    /// Reads the state without changing it.
    pub(crate) fn read<R>(&self, look: impl Fn(&A, &A::State) -> R) -> R {
        let inner = lock(&self.inner);
        look(&inner.0, &inner.1)
    }
}

impl<A: Succeed> LockedCell<A> {
    /// Changes the parameters; the state is carried over as `how` says.
    pub(crate) fn replace(&self, next: A, now: Tick, how: Inherit) {
        let mut inner = lock(&self.inner);
        let state = next.succeed(&inner.0, &inner.1, now, how);
        *inner = (next, state);
    }
}

//! The future of an add, and the error that gives a pair back.

use super::{
    Coalescer,
    machine::{AddEffects, AddOutcome},
};
use crate::wait::block_until;
use std::{
    fmt,
    hash::Hash,
    pin::Pin,
    task::{Context, Poll},
};

/// Waits for room in a batch; made by [`Coalescer::add`].
///
/// It needs no runtime: anything that polls it and honours its waker will do. It joins the queue
/// at the first poll, and first come is first served.
///
/// # Cancel safety
///
/// It may be dropped at any time. If it was not ready yet, its pair was not added; room that was
/// reserved for it goes to the next in the queue (`tests/flow/coalesce_waiting.rs`:
/// `dropping_an_add_at_any_poll_leaves_nothing`). [`into_pair`](Self::into_pair) keeps the pair.
#[must_use = "a future does nothing until it is polled or awaited"]
pub struct Add<K: Send + 'static, V: Send + 'static> {
    pub(super) coalescer: Coalescer<K, V>,
    pub(super) hash: u32,
    /// `None` once it was added or given back.
    pub(super) pair: Option<(K, V)>,
    /// Its number in the wait queue, while it waits.
    pub(super) number: Option<u64>,
}

// Nothing of it is ever pinned.
impl<K: Send + 'static, V: Send + 'static> Unpin for Add<K, V> {}

impl<K: Send + 'static, V: Send + 'static> Add<K, V> {
    /// Leaves the queue and returns the pair; none if it was ready already.
    #[must_use]
    pub fn into_pair(mut self) -> Option<(K, V)> {
        self.pair.take()
    }
}

impl<K: Hash + Eq + Send + 'static, V: Send + 'static> Add<K, V> {
    /// Waits on this thread.
    ///
    /// In async code it would hold up the runtime. Inside the action it does not wait: it gives the
    /// pair back if there is no room.
    ///
    /// # Errors
    ///
    /// [`AddError`] gives the pair back when the coalescer is stopped.
    pub fn block(mut self) -> Result<(), AddError<K, V>> {
        let coalescer = self.coalescer.clone();
        if coalescer.engine.is_inside() {
            let Some((key, value)) = self.into_pair() else { return Ok(()) };
            return coalescer.try_add(key, value).map_err(AddError::inside);
        }
        block_until(coalescer.engine.driver().clock(), |context| {
            match Pin::new(&mut self).poll(context) {
                Poll::Ready(added) => Ok(added),
                Poll::Pending => Err(None),
            }
        })
    }
}

impl<K: Hash + Eq + Send + 'static, V: Send + 'static> Future for Add<K, V> {
    type Output = Result<(), AddError<K, V>>;

    /// Once it was ready it stays pending.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { coalescer, hash, pair, number } = &mut *self;
        if pair.is_none() {
            return Poll::Pending;
        }
        let engine = &coalescer.engine;
        let mut outcome = AddOutcome::Full;
        if number.is_none() {
            let added = engine.event(|machine, now| machine.add(now, *hash, pair));
            outcome = added.map_or(AddOutcome::Closed, AddEffects::apply);
        }
        if outcome == AddOutcome::Full {
            // Cloning and dropping a waker runs foreign code too.
            let waker = context.waker().clone();
            let added =
                engine.event(|machine, now| machine.wait(now, (*hash, pair), number, waker));
            outcome = added.map_or(AddOutcome::Closed, AddEffects::apply);
        }
        match outcome {
            AddOutcome::Added => Poll::Ready(Ok(())),
            AddOutcome::Full => Poll::Pending,
            AddOutcome::Closed => {
                *number = None;
                pair.take().map_or(Poll::Pending, |pair| {
                    Poll::Ready(Err(AddError { pair, kind: AddErrorKind::Stopped }))
                })
            }
        }
    }
}

impl<K: Send + 'static, V: Send + 'static> Drop for Add<K, V> {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            // After a stop the queue is gone.
            drop(self.coalescer.engine.event(|machine, _| machine.leave(number)));
        }
    }
}

impl<K: Send + 'static, V: Send + 'static> fmt::Debug for Add<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Add").field("waits", &self.number.is_some()).finish_non_exhaustive()
    }
}

/// A pair that was not added.
pub struct AddError<K, V> {
    pub(super) pair: (K, V),
    pub(super) kind: AddErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddErrorKind {
    Full {
        max_size: usize,
    },
    Stopped,
    /// The action waits for room that only its own end can make.
    Inside {
        max_size: usize,
    },
}

impl<K, V> AddError<K, V> {
    /// Marks an error that the action itself got.
    fn inside(self) -> Self {
        match self.kind {
            AddErrorKind::Full { max_size } => {
                Self { kind: AddErrorKind::Inside { max_size }, ..self }
            }
            _ => self,
        }
    }

    /// Returns the key and the value that were not added.
    #[must_use]
    pub fn into_pair(self) -> (K, V) {
        self.pair
    }

    /// Tells whether there was no room; there will be when the flush under way has ended.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self.kind, AddErrorKind::Full { .. } | AddErrorKind::Inside { .. })
    }

    /// Tells whether the coalescer is stopped.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.kind, AddErrorKind::Stopped)
    }
}

impl<K, V> fmt::Display for AddError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            AddErrorKind::Full { max_size } => write!(
                f,
                "the next batch already has {max_size} keys while the last one is still being \
                 flushed; wait for room with `add`, or raise `max_size`"
            ),
            AddErrorKind::Stopped => f.write_str(
                "the coalescer is stopped; take the pair out of this error and add it elsewhere",
            ),
            AddErrorKind::Inside { max_size } => write!(
                f,
                "the next batch already has {max_size} keys, and the action cannot wait for itself \
                 to finish; use `try_add` inside the action, or raise `max_size`"
            ),
        }
    }
}

impl<K, V> fmt::Debug for AddError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddError").field("why", &self.kind).finish_non_exhaustive()
    }
}

impl<K, V> std::error::Error for AddError<K, V> {}

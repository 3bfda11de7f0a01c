//! For tests of stores: a suite that every one must pass. Feature `testing`.
//!
//! A store is right when [`conformance::run`] finds nothing to complain about. The suite moves the
//! store's time itself, through [`Subject`], so it neither sleeps nor depends on the machine. To test how
//! your code behaves when a store fails or is slow, write a wrapper with
//! [`forward_store!`](crate::store::forward_store).
//!
//! ```
//! use tollgate::{Clock, store::MemoryStore, testing::{block_on, conformance}};
//!
//! let report = block_on(conformance::run(async || {
//!     let (clock, hand) = Clock::manual();
//!     (MemoryStore::builder().clock(clock).build().unwrap(), hand)
//! }));
//! assert!(report.is_passed(), "{report}");
//! ```

pub mod conformance;

use crate::{
    ManualClock,
    store::{Operation, Store},
    wait::block_for,
};
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

/// A store under test, with its time in the hands of the test.
pub trait Subject: Sync {
    /// The store.
    type Store: Store;

    /// Returns the store.
    fn store(&self) -> &Self::Store;

    /// Moves the store's time ahead, as all its users see it.
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send;

    /// Returns the operations that the store supports, by default all. The suite wants every other
    /// operation to return [`StoreError::unsupported`](crate::store::StoreError::unsupported).
    fn operations(&self) -> &[Operation] {
        Operation::ALL
    }

    /// Returns by how much waits may be rounded up, by default not at all: one microsecond for a
    /// store that counts in those.
    fn rounding(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the wall time of the store's clock: windows are aligned to it.
    fn wall(&self) -> Duration {
        let clock = self.store().clock();
        clock.to_wall(clock.now())
    }
}

/// A store with every operation, and its clock.
impl<S: Store> Subject for (S, ManualClock) {
    type Store = S;

    fn store(&self) -> &S {
        &self.0
    }

    async fn advance(&self, by: Duration) {
        self.1.advance(by);
    }
}

/// Waits for a future on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    block_for(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(None),
    })
}

/// Runs futures side by side in one task, and returns their outputs in order.
pub async fn together<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        for (future, output) in running.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *output = Some(value);
            }
        }
        let is_done = running.iter().all(|(_, output)| output.is_some());
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
}

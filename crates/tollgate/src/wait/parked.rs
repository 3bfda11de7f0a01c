//! A plain thread that waits.

use crate::sync::thread::{self, Thread};
use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

/// A thread that waits.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(not(tollgate_loom))]
thread_local! {
    /// Made once for each thread, so that waiting allocates nothing.
    static WAKER: Waker = Waker::from(Arc::new(Parked(thread::current())));
}

/// Returns a waker that unparks this thread.
pub(crate) fn waker() -> Waker {
    #[cfg(not(tollgate_loom))]
    let waker = WAKER.with(Waker::clone);
    #[cfg(tollgate_loom)]
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    waker
}

/// Sleeps until this thread is woken, or for `most` if that is given.
#[allow(clippy::disallowed_methods, reason = "this is the sleeper")]
pub(crate) fn park(most: Option<Duration>) {
    match most {
        #[cfg(not(tollgate_loom))]
        Some(most) => thread::park_timeout(most),
        // Loom has no time: it explores that the wake-up comes first.
        _ => thread::park(),
    }
}

/// Polls a future on this thread until it is ready.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        // A wake-up since the poll has left its token, so this returns at once.
        park(None);
    }
}

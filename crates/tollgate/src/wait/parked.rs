//! A plain thread that waits.

use crate::{
    Clock, Tick,
    sync::thread::{self, Thread},
};
use std::{
    sync::Arc,
    task::{Context, Wake, Waker},
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

/// Polls on this thread until there is an answer.
///
/// A poll without one says until when the thread may sleep unless it is woken. On a manual clock the
/// hand wakes it.
pub(crate) fn block_until<R>(
    clock: &Clock,
    mut poll: impl FnMut(&mut Context<'_>) -> Result<R, Option<Tick>>,
) -> R {
    block_for(|context| {
        poll(context).map_err(|until| {
            let until = until.filter(|_| clock.hand().is_none());
            until.map(|until| until.since(clock.now()))
        })
    })
}

/// Polls on this thread until there is an answer. A poll without one says for how long the thread may
/// sleep unless it is woken.
pub(crate) fn block_for<R>(
    mut poll: impl FnMut(&mut Context<'_>) -> Result<R, Option<Duration>>,
) -> R {
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    loop {
        match poll(&mut context) {
            Ok(answer) => return answer,
            Err(longest) => park(longest),
        }
    }
}

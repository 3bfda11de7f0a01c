//! A clock that costs one load: a thread of its own writes the time every millisecond.

use super::{Tick, monotonic::Monotonic};
use std::{
    io,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// How often the thread wakes: the kernel's timers are not much finer.
pub(crate) const PERIOD: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Cached {
    now_ns: AtomicU64,
}

impl Cached {
    pub(super) fn start(source: Monotonic) -> io::Result<Arc<Self>> {
        let cached = Arc::new(Self { now_ns: AtomicU64::new(source.now().as_nanos()) });
        let weak = Arc::downgrade(&cached);
        thread::Builder::new().name("tollgate-clock".into()).spawn(move || run(source, &weak))?;
        Ok(cached)
    }

    #[inline]
    pub(super) fn now(&self) -> Tick {
        // ORDERING: Relaxed. The time is one word and publishes nothing else.
        Tick::from_nanos(self.now_ns.load(Relaxed))
    }
}

/// Writes the time until the last user is gone. It holds no strong reference while it sleeps, so it
/// ends at most one period after that.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
fn run(source: Monotonic, cached: &Weak<Cached>) {
    while let Some(cached) = cached.upgrade() {
        // ORDERING: Relaxed, as in `now`. `fetch_max` because time must not go backwards.
        cached.now_ns.fetch_max(source.now().as_nanos(), Relaxed);
        drop(cached);
        thread::sleep(PERIOD);
    }
}

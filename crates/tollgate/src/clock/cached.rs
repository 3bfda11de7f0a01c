//! A clock that costs one load: a thread of its own writes the time every millisecond.

use super::{Tick, monotonic::Monotonic};
use std::{
    fmt, io,
    sync::{
        Arc, Condvar, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// How often the thread wakes: the kernel's timers are not much finer.
pub(crate) const PERIOD: Duration = Duration::from_millis(1);

/// The cached time and the signal that ends the thread.
pub(super) struct Cached {
    now_ns: AtomicU64,
    stop: Arc<(Mutex<bool>, Condvar)>,
}

impl Cached {
    pub(super) fn start(source: Monotonic) -> io::Result<Arc<Self>> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let now_ns = AtomicU64::new(source.now().as_nanos());
        let cached = Arc::new(Self { now_ns, stop: Arc::clone(&stop) });
        let weak = Arc::downgrade(&cached);
        thread::Builder::new()
            .name("tollgate-clock".into())
            .spawn(move || run(source, &weak, &stop))?;
        Ok(cached)
    }

    #[inline]
    pub(super) fn now(&self) -> Tick {
        // ORDERING: Relaxed. The time is one word and publishes nothing else.
        Tick::from_nanos(self.now_ns.load(Relaxed))
    }
}

/// Writes the time until the last user is gone. It holds no strong reference while it waits.
fn run(source: Monotonic, cached: &Weak<Cached>, stop: &(Mutex<bool>, Condvar)) {
    let (stopped, signal) = stop;
    let mut guard = stopped.lock().unwrap_or_else(PoisonError::into_inner);
    while !*guard {
        let (next, _) = signal.wait_timeout(guard, PERIOD).unwrap_or_else(PoisonError::into_inner);
        guard = next;
        let Some(cached) = cached.upgrade() else {
            return;
        };
        // ORDERING: Relaxed, as in `now`. `fetch_max` because time must not go backwards.
        cached.now_ns.fetch_max(source.now().as_nanos(), Relaxed);
        // The last user may drop its reference just now: leave the lock before ours, because
        // `drop` takes it.
        drop(guard);
        drop(cached);
        guard = stopped.lock().unwrap_or_else(PoisonError::into_inner);
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        let (stopped, signal) = &*self.stop;
        *stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        signal.notify_all();
    }
}

impl fmt::Debug for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached").field("now", &self.now()).finish_non_exhaustive()
    }
}

//! Both kinds of limit behind one interface, and futures that a test polls.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};
use tollgate::{Acquire, Concurrency, ConcurrencyCounts, Full, KeyedConcurrency, Permit};

/// One limit, or one key among others: both pass the same suite.
#[derive(Clone, Debug)]
pub(crate) enum Host {
    Single(Concurrency),
    Keyed(KeyedConcurrency<str>),
}

const KEY: &str = "alice";

pub(crate) fn hosts(limit: u64, max_waiting: u64) -> [Host; 2] {
    let single = Concurrency::builder(limit).max_waiting(max_waiting).counted();
    let keyed = KeyedConcurrency::builder(limit).max_waiting(max_waiting).counted();
    [Host::Single(single.build().unwrap()), Host::Keyed(keyed.build().unwrap())]
}

impl Host {
    pub(crate) fn try_acquire_n(&self, cost: u64) -> Result<Permit, Full> {
        match self {
            Self::Single(limit) => limit.try_acquire_n(cost),
            Self::Keyed(limit) => limit.try_acquire_n(KEY, cost),
        }
    }

    pub(crate) fn acquire_n(&self, cost: u64) -> Waiter {
        Waiter::new(match self {
            Self::Single(limit) => limit.acquire_n(cost),
            Self::Keyed(limit) => limit.acquire_n(KEY, cost),
        })
    }

    pub(crate) fn acquire_blocking_n(&self, cost: u64) -> Result<Permit, Full> {
        match self {
            Self::Single(limit) => limit.acquire_n(cost).block(),
            Self::Keyed(limit) => limit.acquire_n(KEY, cost).block(),
        }
    }

    pub(crate) fn set_limit(&self, n: u64) {
        match self {
            Self::Single(limit) => limit.set_limit(n).unwrap(),
            Self::Keyed(limit) => limit.set_limit(n).unwrap(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Single(limit) => limit.close(),
            Self::Keyed(limit) => limit.close(),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Single(limit) => limit.is_closed(),
            Self::Keyed(limit) => limit.is_closed(),
        }
    }

    /// How many wait, while other threads may be active.
    pub(crate) fn waiting(&self) -> u64 {
        match self {
            Self::Single(limit) => limit.waiting(),
            Self::Keyed(limit) => limit.waiting(KEY),
        }
    }

    /// In flight, waiting, available; no other thread is active.
    pub(crate) fn level(&self) -> (u64, u64, u64) {
        match self {
            Self::Single(limit) => (limit.in_flight(), limit.waiting(), limit.available()),
            Self::Keyed(limit) => {
                assert_eq!(limit.total_in_flight(), limit.in_flight(KEY));
                assert_eq!(limit.total_waiting(), limit.waiting(KEY));
                (limit.in_flight(KEY), limit.waiting(KEY), limit.available(KEY))
            }
        }
    }

    pub(crate) fn counts(&self) -> ConcurrencyCounts {
        match self {
            Self::Single(limit) => limit.counts(),
            Self::Keyed(limit) => limit.counts(),
        }
    }

    /// Checks that no permit, no place and no key is left over.
    pub(crate) fn assert_idle(&self, available: u64, row: &str) {
        assert_eq!(self.level(), (0, 0, available), "{row}, {self:?}");
        if let Self::Keyed(limit) = self {
            assert!(limit.is_empty(), "{row}: a key is left");
        }
    }
}

/// A future and how often it was woken.
pub(crate) struct Waiter {
    future: Acquire,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Waiter {
    pub(crate) fn new(future: Acquire) -> Self {
        Self { future, woken: Arc::default() }
    }

    /// A future that already waits.
    pub(crate) fn queued(mut self) -> Self {
        assert!(self.poll().is_pending());
        self
    }

    pub(crate) fn poll(&mut self) -> Poll<Result<Permit, Full>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }

    /// Returns the answer, which must be there by now.
    pub(crate) fn answer(&mut self) -> Result<Permit, Full> {
        match self.poll() {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("no answer yet"),
        }
    }

    pub(crate) fn wakes(&self) -> usize {
        self.woken.0.load(SeqCst)
    }

    /// Polls with another waker from now on. Returns a function that counts the wakes of the old
    /// one.
    pub(crate) fn replace_waker(&mut self) -> impl Fn() -> usize + use<> {
        let old = std::mem::take(&mut self.woken);
        move || old.0.load(SeqCst)
    }

    pub(crate) fn into_future(self) -> Acquire {
        self.future
    }
}

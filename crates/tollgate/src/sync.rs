//! The one place that knows whether atomics come from `std` or from loom.
//!
//! Loom explores the interleavings of the paths built on these types. It is switched on by
//! `--cfg tollgate_loom`, a name of our own, because the plain `loom` flag changes other crates.

pub(crate) mod versioned;

#[cfg(tollgate_loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU8, AtomicU64, Ordering, fence},
    },
    thread::{self, yield_now},
};

#[cfg(not(tollgate_loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU8, AtomicU64, Ordering, fence},
    },
    thread::{self, yield_now},
};

/// Locks `mutex`, also after a panic elsewhere.
///
/// Every critical section of this crate leaves its data valid at each step, so a poisoned lock
/// says nothing about the state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A number that may have a bound.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds one, unless `most` is reached; tells whether it did.
    pub(crate) fn raise(&self, most: u64) -> bool {
        let next = |count: u64| (count < most).then_some(count + 1);
        // ORDERING: Relaxed, here and below. The number stands for itself, and an exchange never reads a stale one.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    pub(crate) fn add(&self, by: u64) {
        if by > 0 {
            self.0.fetch_add(by, Ordering::Relaxed);
        }
    }

    pub(crate) fn lower(&self, by: u64) {
        if by > 0 {
            self.0.fetch_sub(by, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Eight flags that choose the path of a decision.
#[derive(Debug)]
pub(crate) struct Flags(AtomicU8);

impl Flags {
    pub(crate) fn new(flags: u8) -> Self {
        Self(AtomicU8::new(flags))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u8 {
        // ORDERING: Relaxed, here and below. Each flag stands for itself and guards no other data; seeing
        // one late is a decision that happened a moment earlier.
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, flag: u8, on: bool) {
        if on {
            self.0.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!flag, Ordering::Relaxed);
        }
    }
}

/// A value alone on its cache lines, so that writing it disturbs no neighbour.
///
/// 128 bytes, because current x86 and Arm cores fetch lines of 64 bytes in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

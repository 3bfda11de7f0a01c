//! How many different keys there were: a `HyperLogLog`.
//!
//! # The idea
//!
//! A hash that begins with many zeros is rare, so having seen one tells of many hashes. The first
//! 12 bits of a hash choose one of m = 4096 registers, which keeps the longest run of zeros (plus
//! one) at the start of the other 52 bits. The registers together give an estimate with a standard
//! error of 1.04 / sqrt(m) = 1.6 %, for any number of keys up to far beyond 10^12; small numbers,
//! which leave registers empty, are nearly exact.
//!
//! The estimator is Ertl's improved one ("New cardinality estimation algorithms for HyperLogLog
//! sketches", 2017, algorithm 6): no tables, no switch between ranges, no bias where the original
//! has one. It uses floats: nothing is decided by it.
//!
//! Memory: 4096 bytes. A key seen before costs one read of a shared line that nobody writes any
//! more; registers change rarely, so threads do not fight.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const INDEX_BITS: u32 = 12;
const REGISTERS: usize = 1 << INDEX_BITS;
/// The bits of a hash in which zeros are counted.
const RUN_BITS: usize = 64 - INDEX_BITS as usize;

pub(super) struct Distinct {
    registers: Box<[AtomicU8]>,
}

impl Default for Distinct {
    fn default() -> Self {
        Self { registers: (0..REGISTERS).map(|_| AtomicU8::new(0)).collect() }
    }
}

impl Distinct {
    /// Adds a key by its hash, whose bits must be as good as random.
    pub(super) fn add(&self, hash: u64) {
        let register = &self.registers[(hash >> RUN_BITS) as usize];
        // The mark behind the last bit ends the run of a hash of zeros.
        let run = ((hash << INDEX_BITS) | (1 << (INDEX_BITS - 1))).leading_zeros() as u8 + 1;
        // ORDERING: Relaxed, both. A register stands for itself and only grows; a stale look leads
        // to a needless maximum.
        if register.load(Relaxed) < run {
            register.fetch_max(run, Relaxed);
        }
    }

    pub(super) fn clear(&self) {
        for register in &self.registers {
            // ORDERING: Relaxed. A key that is added meanwhile counts or not.
            register.store(0, Relaxed);
        }
    }

    pub(super) fn estimate(&self) -> u64 {
        let mut histogram = [0_u32; RUN_BITS + 2];
        for register in &self.registers {
            // ORDERING: Relaxed, as in `add`: an estimate of about now.
            histogram[usize::from(register.load(Relaxed))] += 1;
        }
        let m = REGISTERS as f64;
        let share = |run: usize| f64::from(histogram[run]) / m;
        let mut z = m * tau(1.0 - share(RUN_BITS + 1));
        for run in (1..=RUN_BITS).rev() {
            z = 0.5 * (z + f64::from(histogram[run]));
        }
        z += m * sigma(share(0));
        // For empty registers z is infinite, and the estimate zero.
        (m * m / (2.0 * std::f64::consts::LN_2 * z)).round() as u64
    }
}

/// The correction for registers that are still empty: x + sum of x^(2^k) x 2^(k-1), k from 1.
fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z <= before {
            return z;
        }
    }
}

/// The correction for registers that can grow no more.
fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z >= before {
            return z / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_at_the_edges() {
        let distinct = Distinct::default();
        distinct.add(0);
        distinct.add(u64::MAX);
        let run = |index: usize| distinct.registers[index].load(Relaxed);
        assert_eq!(usize::from(run(0)), RUN_BITS + 1);
        assert_eq!(run(REGISTERS - 1), 1);
    }

    #[test]
    fn nothing_is_estimated_as_nothing() {
        let distinct = Distinct::default();
        assert_eq!(distinct.estimate(), 0);
        distinct.add(12_345);
        assert_eq!(distinct.estimate(), 1);
        distinct.clear();
        assert_eq!(distinct.estimate(), 0);
    }

    #[test]
    fn full_registers_give_a_huge_number_and_no_panic() {
        let distinct = Distinct::default();
        for index in 0..REGISTERS as u64 {
            distinct.add(index << RUN_BITS);
        }
        assert!(distinct.estimate() > 1 << 60);
    }
}

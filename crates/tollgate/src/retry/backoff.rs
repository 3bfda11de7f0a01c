//! How long to pause between attempts.
//!
//! Full jitter (Brooker, "Exponential Backoff and Jitter") leaves all of a pause to chance, because
//! what is to be broken up is a herd: a fixed part would keep it together.

use crate::wait::Random;
use std::time::Duration;

/// How long to pause before each retry. The n-th pause, counted from 1:
///
/// | backoff | pause |
/// |---|---|
/// | [`full_jitter`](Self::full_jitter) | random, up to `min(most, base x 2^(n-1))` |
/// | [`decorrelated`](Self::decorrelated) | random, from `base` to 3 times the pause before, at most `most` |
/// | [`exponential`](Self::exponential) | `min(most, base x 2^(n-1))` |
/// | [`fibonacci`](Self::fibonacci) | `base` x 1, 1, 2, 3, 5, 8, ..., at most `most` |
/// | [`fixed`](Self::fixed) | always the same |
///
/// Without chance, clients that fail together come back together: use those for one client, or tests.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::Backoff;
///
/// let second = Duration::from_secs(1);
/// let pauses = Backoff::exponential(second, 5 * second).pauses(0);
/// assert_eq!(pauses.take(4).map(|it| it.as_secs()).collect::<Vec<_>>(), [1, 2, 4, 5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    shape: Shape,
    base: Duration,
    most: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    FullJitter,
    Decorrelated,
    Exponential,
    Fibonacci,
}

impl Backoff {
    /// Returns random pauses whose bound doubles from `base` up to `most`.
    #[must_use]
    pub const fn full_jitter(base: Duration, most: Duration) -> Self {
        Self { shape: Shape::FullJitter, base, most }
    }

    /// Returns random pauses of at least `base`, each at most three times the one before.
    #[must_use]
    pub const fn decorrelated(base: Duration, most: Duration) -> Self {
        Self { shape: Shape::Decorrelated, base, most }
    }

    /// Returns pauses that double from `base` up to `most`.
    #[must_use]
    pub const fn exponential(base: Duration, most: Duration) -> Self {
        Self { shape: Shape::Exponential, base, most }
    }

    /// Returns pauses that grow by the Fibonacci numbers from `base` up to `most`.
    #[must_use]
    pub const fn fibonacci(base: Duration, most: Duration) -> Self {
        Self { shape: Shape::Fibonacci, base, most }
    }

    /// Returns pauses that are always the same.
    #[must_use]
    pub const fn fixed(pause: Duration) -> Self {
        Self { shape: Shape::Exponential, base: pause, most: pause }
    }

    /// Returns the first bound and the longest pause.
    #[must_use]
    pub const fn bounds(&self) -> (Duration, Duration) {
        (self.base, self.most)
    }

    /// Returns the pauses of one call, in order; chance is drawn from `seed`.
    #[must_use]
    pub const fn pauses(&self, seed: u64) -> Pauses {
        let (next, last) = match self.shape {
            Shape::Fibonacci => (self.base, Duration::ZERO),
            _ => (self.base, self.base),
        };
        Pauses { backoff: *self, next, last, random: Random::new(seed) }
    }
}

/// The pauses of one call; made by [`Backoff::pauses`]. It never ends.
#[derive(Clone, Debug)]
pub struct Pauses {
    backoff: Backoff,
    /// The bound of the next pause.
    next: Duration,
    /// The pause before, or the bound before the next one.
    last: Duration,
    random: Random,
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let Backoff { shape, base, most } = self.backoff;
        let bound = self.next.min(most);
        let pause = match shape {
            Shape::FullJitter => self.random.up_to(bound),
            Shape::Decorrelated => {
                let upper = self.last.saturating_mul(3).min(most);
                base.saturating_add(self.random.up_to(upper.saturating_sub(base)))
            }
            Shape::Exponential | Shape::Fibonacci => bound,
        };
        (self.next, self.last) = match shape {
            Shape::FullJitter | Shape::Exponential => (bound.saturating_mul(2), bound),
            Shape::Fibonacci => (self.last.saturating_add(bound), bound),
            Shape::Decorrelated => (bound, pause),
        };
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_without_chance() {
        for (backoff, expected) in [
            (Backoff::exponential(SECOND, 10 * SECOND), [1, 2, 4, 8, 10, 10, 10]),
            (Backoff::fibonacci(SECOND, 10 * SECOND), [1, 1, 2, 3, 5, 8, 10]),
            (Backoff::fixed(3 * SECOND), [3, 3, 3, 3, 3, 3, 3]),
        ] {
            let pauses: Vec<_> = backoff.pauses(9).take(7).map(|it| it.as_secs()).collect();
            assert_eq!(pauses, expected, "{backoff:?}");
        }
        let endless = Backoff::exponential(Duration::MAX, Duration::MAX);
        assert_eq!(endless.pauses(0).nth(200), Some(Duration::MAX));
    }

    #[test]
    fn full_jitter_is_spread_over_all_of_the_bound() {
        let backoff = Backoff::full_jitter(SECOND, 8 * SECOND);
        for (index, bound) in [1, 2, 4, 8, 8].into_iter().enumerate() {
            let drawn: Vec<_> =
                (0..400).map(|seed| backoff.pauses(seed).nth(index).unwrap()).collect();
            let quarter = |n: u32| {
                let width = bound * SECOND / 4;
                let range = width * n..=width * (n + 1);
                drawn.iter().filter(|pause| range.contains(pause)).count()
            };
            // 100 are expected in each; the seeds are fixed.
            assert!((0..4).all(|n| quarter(n) >= 60), "pause {index}");
            assert!(drawn.iter().all(|pause| *pause <= bound * SECOND));
        }
        let never = Backoff::full_jitter(Duration::ZERO, Duration::ZERO);
        assert_eq!(never.pauses(1).nth(3), Some(Duration::ZERO));
    }

    #[test]
    fn decorrelated_stays_between_the_base_and_three_times_the_last() {
        for seed in 0..100 {
            let mut last = SECOND;
            for pause in Backoff::decorrelated(SECOND, 20 * SECOND).pauses(seed).take(20) {
                assert!((SECOND..=(last * 3).min(20 * SECOND)).contains(&pause), "{seed}");
                last = pause;
            }
        }
    }

    #[test]
    fn a_seed_repeats_its_pauses() {
        let drawn = |seed| -> Vec<_> {
            Backoff::full_jitter(SECOND, 9 * SECOND).pauses(seed).take(9).collect()
        };
        assert_eq!(drawn(4), drawn(4));
        assert_ne!(drawn(4), drawn(5));
    }
}

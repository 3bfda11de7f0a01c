//! Fixed window: a limit per window, counted from zero in each.
//!
//! # The idea
//!
//! Time is cut into windows of one length. Each has a count; an event passes if the count stays
//! within the limit. Windows either start at multiples of their length since the Unix epoch
//! (*aligned*: every process agrees, and `Reset` is a round time), or with the first event after
//! the last window ended (*anchored*: a window lasts its full length from the caller's first event).
//!
//! ```text
//! count' = count + cost                allowed if  count' <= limit
//! ```
//!
//! # State and units
//!
//! One word: the window's number in the upper bits and the count in the lower ones. How many
//! bits each gets follows from the window's length:
//!
//! | window | bits of the number | bits of the count | largest limit (half the count) |
//! |---|---|---|---|
//! | 1 ms | 39 | 22 | 2 million |
//! | 1 s | 29 | 32 | 2 thousand million |
//! | 1 day | 13 | 48 | 10^14 |
//!
//! An anchored window has the tick of its start for a number, rounded up to a multiple of a *grain*:
//! the finest of 1, 2, 5, 10, 20 .. ns that leaves the count 16 bits, or 3 more than the limit has.
//! That is 20 us for limits below 8192, whatever the window. Short windows make do with fewer bits
//! for the count, so that the grain stays below a 1024th of the window. Zero is the state of a
//! limiter never used.
//!
//! # Exact and approximate
//!
//! - At most `limit` per window, exactly. Across a border up to 2 x limit pass within one length:
//!   a full window's worth at its end and another at the start of the next.
//! - `retry` is the end of the window: exact. `full` is the same.
//! - An anchored window may last longer than its length by that rounding, and never shorter.
//!
//! # Time
//!
//! Standing still: nothing is freed. Backwards: counts as the start of the window of the state.
//! Far ahead: a fresh window.
//!
//! # Cost
//!
//! 8 bytes; one division.
//!
//! Source: the textbook counter, with the window in the state instead of in the key.

use super::{
    Algorithm, Idle, Inherit, PARAMETERS, Packed, Step, Succeed,
    inherit::{FRACTION, used_after},
    share,
    word_time::{self, HOST_BITS},
};
use crate::{
    Quota, QuotaError, Tick,
    decision::{Decision, Level},
};

/// A fixed window, aligned or anchored, with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    length_ns: u64,
    limit: u64,
    initial: u64,
    border: Border,
    count_bits: u8,
}

/// Where windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Border {
    /// At `k x length - phase`.
    Aligned { phase_ns: u64 },
    /// At the first event, rounded up to a multiple of the grain.
    Anchored { grain_ns: u64 },
}

/// The window that a state stands for at some time.
#[derive(Clone, Copy, Debug)]
struct View {
    /// Number of the window, from one.
    number: u64,
    count: u64,
    /// First nanosecond after the window.
    end_ns: u64,
}

/// Marks an anchored window among the packed parameters.
const ANCHORED: u64 = 1 << 63;

/// Bits that a word has for number and count together: one less than the host leaves.
pub(super) const WORD_BITS: u32 = 63 - HOST_BITS;

/// An anchored window's start is rounded to at most this part of its length.
const GRAIN_SHARE: u64 = 1024;

/// The grains an anchored window's start may be rounded to: round numbers, so that round times
/// stay exact.
fn grains() -> impl Iterator<Item = u64> {
    let decades = std::iter::successors(Some(1_u64), |decade| decade.checked_mul(10));
    decades.flat_map(|decade| [1, 2, 5].map(|digit| digit * decade)).take(48)
}

impl FixedWindow {
    /// Returns windows that start at multiples of their length after `epoch`, which is the time
    /// from the Unix epoch to the clock's origin ([`Clock::wall_offset`](crate::Clock)).
    ///
    /// # Errors
    ///
    /// As [`Quota::check_countable`]; also if the quota has a burst, or a limit too large for the
    /// word.
    pub fn aligned(quota: &Quota, epoch: std::time::Duration) -> Result<Self, QuotaError> {
        let limit = window_limit(quota, Algorithm::FixedWindow)?;
        let length_ns = quota.period_ns();
        let phase_ns = phase(epoch, length_ns);
        let count_bits = WORD_BITS - bits(Tick::HORIZON.as_nanos() / length_ns + 3);
        let most = 1 << (count_bits - 1);
        if limit > most {
            let algorithm = Algorithm::FixedWindow;
            return Err(QuotaError::LimitTooLarge { limit, most, algorithm });
        }
        Ok(Self {
            length_ns,
            limit,
            initial: quota.initial_permits(),
            border: Border::Aligned { phase_ns },
            count_bits: count_bits as u8,
        })
    }

    /// Returns windows that start with the first event after the last one ended.
    ///
    /// # Errors
    ///
    /// As for [`aligned`](Self::aligned).
    pub fn anchored(quota: &Quota) -> Result<Self, QuotaError> {
        let limit = window_limit(quota, Algorithm::AnchoredWindow)?;
        let length_ns = quota.period_ns();
        let start_bits = |grain: u64| bits(Tick::HORIZON.as_nanos() / grain + 2);
        let fine = |grain: &u64| *grain == 1 || *grain <= length_ns / GRAIN_SHARE;
        let with_bits = |count_bits: u32| {
            let mut grains = grains().take_while(fine);
            grains.find(|grain| start_bits(*grain) + count_bits <= WORD_BITS)
        };
        // The count needs at least one bit more than the limit, for what is forced beyond it.
        let found = with_bits((bits(limit) + 3).max(16)).or_else(|| with_bits(bits(limit) + 1));
        let Some(grain_ns) = found else {
            let coarsest = grains().take_while(fine).last().unwrap_or(1);
            let most = (1 << (WORD_BITS - start_bits(coarsest) - 1)) - 1;
            let algorithm = Algorithm::AnchoredWindow;
            return Err(QuotaError::LimitTooLarge { limit, most, algorithm });
        };
        Ok(Self {
            length_ns,
            limit,
            initial: quota.initial_permits(),
            border: Border::Anchored { grain_ns },
            count_bits: (WORD_BITS - start_bits(grain_ns)) as u8,
        })
    }

    /// Returns the same windows with another limit: the layout of the word does not depend on it
    /// if they are aligned. The caller has checked that the limit fits.
    pub(crate) const fn with_limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self.initial = limit;
        self
    }

    /// The largest count a word can hold.
    const fn count_max(&self) -> u64 {
        (1 << self.count_bits) - 1
    }

    /// Returns the window in force at `now`: the state's, or a fresh one.
    #[inline]
    fn view(&self, word: u64, now: Tick) -> View {
        let now_ns = now.min(Tick::HORIZON).as_nanos();
        let (number, count) = (word >> self.count_bits, word & self.count_max());
        match self.border {
            Border::Aligned { phase_ns } => {
                // OVERFLOW: horizon and phase are below 2^59 and 2^55.
                let current = (now_ns + phase_ns) / self.length_ns + 1;
                let count = if number >= current { count } else { 0 };
                let number = number.max(current);
                View { number, count, end_ns: number * self.length_ns - phase_ns }
            }
            Border::Anchored { grain_ns } => {
                let end_ns = |number: u64| (number - 1) * grain_ns + self.length_ns;
                if number > 0 && now_ns < end_ns(number) {
                    return View { number, count, end_ns: end_ns(number) };
                }
                let number = now_ns.div_ceil(grain_ns) + 1;
                View { number, count: 0, end_ns: end_ns(number) }
            }
        }
    }

    /// Returns the start of the window in force, and its count.
    pub(crate) fn opened(&self, word: u64, now: Tick) -> (Tick, u64) {
        let View { count, end_ns, .. } = self.view(word, now);
        (Tick::from_nanos(end_ns.saturating_sub(self.length_ns)), count)
    }

    /// Returns the word of a window that began at `start`; `None` if it is over.
    pub(crate) fn reopened(&self, start: Tick, count: u64, now: Tick) -> Option<u64> {
        let start_ns = start.min(Tick::HORIZON).as_nanos();
        let number = match self.border {
            Border::Aligned { phase_ns } => (start_ns + phase_ns) / self.length_ns + 1,
            Border::Anchored { grain_ns } => start_ns.div_ceil(grain_ns) + 1,
        };
        let word = number << self.count_bits | count.min(self.count_max());
        let view = self.view(word, now);
        (view.number == number && view.count > 0).then_some(word)
    }

    fn word(&self, view: View) -> u64 {
        debug_assert!(view.count <= self.count_max(), "count fits its bits");
        view.number << self.count_bits | view.count
    }
}

/// Returns the limit of a window quota.
pub(super) fn window_limit(quota: &Quota, algorithm: Algorithm) -> Result<u64, QuotaError> {
    quota.check_countable()?;
    let limit = quota.count();
    match quota.explicit_burst() {
        Some(burst) if burst != limit => Err(QuotaError::BurstOnWindow { burst, limit, algorithm }),
        _ => Ok(limit),
    }
}

/// Returns how far into a window the clock's origin lies.
pub(super) fn phase(epoch: std::time::Duration, length_ns: u64) -> u64 {
    // OVERFLOW: the remainder is below `length_ns`.
    (epoch.as_nanos() % u128::from(length_ns)) as u64
}

/// Returns how many bits a number takes.
pub(super) const fn bits(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

impl Step for FixedWindow {
    type State = u64;

    fn initial(&self, now: Tick) -> u64 {
        match self.limit - self.initial {
            0 => 0,
            missing => self.word(View { count: missing, ..self.view(0, now) }),
        }
    }

    #[inline]
    fn peek(&self, word: &u64, now: Tick, cost: u64) -> Decision {
        let View { count, end_ns, .. } = self.view(*word, now);
        let left = self.limit.saturating_sub(count);
        // A debt denies even a cost of nothing.
        let passes = cost <= left && count <= self.limit;
        let count = if passes { count + cost } else { count };
        let full = if count == 0 { 0 } else { end_ns };
        let remaining = self.limit.saturating_sub(count);
        let level =
            Level { at: now, limit: self.limit, remaining, full: word_time::from_nanos(full) };
        if passes {
            Decision::allowed(level, cost)
        } else if cost > self.limit {
            Decision::never(level, cost)
        } else {
            Decision::later(level, cost, word_time::from_nanos(end_ns))
        }
    }

    fn available(&self, word: &u64, now: Tick) -> u64 {
        self.limit.saturating_sub(self.view(*word, now).count)
    }

    fn charge(&self, word: &mut u64, now: Tick, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }
        let view = self.view(*word, now);
        let count = view.count.checked_add(cost).filter(|count| *count <= self.count_max());
        if let Some(count) = count {
            *word = self.word(View { count, ..view });
        }
        count.is_some()
    }

    fn chargeable(&self, word: &u64, now: Tick) -> u64 {
        self.count_max().saturating_sub(self.view(*word, now).count)
    }

    fn mark(&self, word: &u64, now: Tick) -> u64 {
        self.view(*word, now).number
    }

    /// Gives back within the same window; a late refund is dropped, because the new window never
    /// held the charge.
    fn give_back(&self, word: &mut u64, now: Tick, mark: u64, most: u64) -> u64 {
        let view = self.view(*word, now);
        if view.number != mark || view.count == 0 {
            return 0;
        }
        let amount = most.min(view.count);
        *word = self.word(View { count: view.count - amount, ..view });
        amount
    }
}

impl Packed for FixedWindow {
    #[inline]
    fn pack(&self, word: &u64) -> u64 {
        *word
    }

    #[inline]
    fn unpack(&self, word: u64) -> u64 {
        word
    }

    fn to_words(self) -> [u64; PARAMETERS] {
        // OVERFLOW: phase and grain are below 2^55, so a flag fits above them.
        let border = match self.border {
            Border::Aligned { phase_ns } => phase_ns,
            Border::Anchored { grain_ns } => ANCHORED | grain_ns,
        };
        // The initial count shares a word with its bits: limits are below 2^58.
        let small = self.initial << 6 | u64::from(self.count_bits);
        [self.length_ns, self.limit, border, small, 0, 0, 0, 0]
    }

    #[inline]
    fn from_words([length_ns, limit, border, small, ..]: [u64; PARAMETERS]) -> Self {
        let border = match border & ANCHORED {
            0 => Border::Aligned { phase_ns: border },
            _ => Border::Anchored { grain_ns: border & !ANCHORED },
        };
        Self { length_ns, limit, initial: small >> 6, border, count_bits: small as u8 & 0x3f }
    }
}

impl Idle for FixedWindow {
    fn is_idle(&self, word: &u64, now: Tick) -> bool {
        self.view(*word, now).count == 0
    }

    fn burden(&self, word: &u64, now: Tick) -> u64 {
        share(self.view(*word, now).count, self.limit)
    }
}

impl Succeed for FixedWindow {
    /// The window in force goes on if windows of both quotas begin and end alike; else a new one
    /// begins, with what was used.
    fn succeed(&self, old: &Self, word: &u64, now: Tick, how: Inherit) -> u64 {
        let view = old.view(*word, now);
        let same = (self.length_ns, self.border) == (old.length_ns, old.border);
        let window = if same { view } else { self.view(0, now) };
        match used_after(how, u128::from(view.count) << FRACTION, old.limit, self.limit) {
            None => self.initial(now),
            Some(used) => {
                let used = used.div_ceil(1 << FRACTION).min(u128::from(self.count_max()));
                self.word(View { count: used as u64, ..window })
            }
        }
    }
}

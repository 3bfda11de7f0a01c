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
//! One word: the end of the window and the count, as `window_word.rs` says. Zero if nothing is counted.
//! A word has room for at least twice the limit: limits are below 900 000 per millisecond,
//! 9 x 10^8 per second and 9 x 10^13 per day, and a two-hundredth of that if anchored.
//!
//! # Exact and approximate
//!
//! - At most `limit` per window, exactly. Across a border up to 2 x limit pass within one length:
//!   a full window's worth at its end and another at the start of the next.
//! - `retry` is the end of the window: exact. `full` is the same.
//! - An anchored window ends at a round time: it may last longer than its length by a thousandth, and
//!   never shorter. One that a refund has emptied is over.
//!
//! # Time
//!
//! Standing still: nothing is freed. Backwards: counts as the start of the window of the state.
//! Far ahead: a fresh window.
//!
//! # Cost
//!
//! 8 bytes; two divisions, or three for the first event of a window.
//!
//! Source: the textbook counter, with the window in the state instead of in the key.

use super::{
    Algorithm, Idle, Inherit, PARAMETERS, Packed, Step, Succeed, share,
    window::Window,
    window_word::{WindowWord, phase},
    word_time,
};
use crate::{Quota, QuotaError, Tick, decision::Decision};
use std::time::Duration;

/// A fixed window, aligned or anchored, with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    pub(super) window: Window,
    /// Aligned windows begin at `k x length - phase`; `None` if they begin at their first event.
    phase_ns: Option<u64>,
    word: WindowWord,
}

/// The window that a state stands for at some time.
#[derive(Clone, Copy, Debug)]
struct View {
    count: u64,
    /// First nanosecond after the window.
    end_ns: u64,
}

/// In place of a phase among the packed parameters.
const ANCHORED: u64 = u64::MAX;

impl FixedWindow {
    /// Returns windows that start at multiples of their length after `epoch`, which is the time
    /// from the Unix epoch to the clock's origin ([`Clock::wall_offset`](crate::Clock)).
    ///
    /// # Errors
    ///
    /// As [`Quota::check_countable`]; also if the quota has a burst, or a limit too large for the
    /// word.
    pub fn aligned(quota: &Quota, epoch: Duration) -> Result<Self, QuotaError> {
        Self::new(Algorithm::FixedWindow, quota, epoch)
    }

    /// Returns windows that start with the first event after the last one ended.
    ///
    /// # Errors
    ///
    /// As for [`aligned`](Self::aligned).
    pub fn anchored(quota: &Quota, epoch: Duration) -> Result<Self, QuotaError> {
        Self::new(Algorithm::AnchoredWindow, quota, epoch)
    }

    /// Returns anchored windows if the algorithm says so, and else aligned ones.
    pub(crate) fn new(
        algorithm: Algorithm,
        quota: &Quota,
        epoch: Duration,
    ) -> Result<Self, QuotaError> {
        let window = Window::new(quota, algorithm)?;
        let (phase_ns, parts) = match algorithm {
            Algorithm::AnchoredWindow => (None, 1000),
            _ => (Some(phase(epoch, window.length_ns)), 4),
        };
        let word = WindowWord::new(window.length_ns, parts, epoch);
        // The other half is for what is forced beyond the limit.
        let most = (word.range() - 1) / 2;
        if window.limit > most {
            return Err(QuotaError::LimitTooLarge { limit: window.limit, most, algorithm });
        }
        Ok(Self { window, phase_ns, word })
    }

    pub(crate) const fn is_anchored(&self) -> bool {
        self.phase_ns.is_none()
    }

    pub(crate) const fn algorithm(&self) -> Algorithm {
        if self.is_anchored() { Algorithm::AnchoredWindow } else { Algorithm::FixedWindow }
    }

    /// Returns the same windows with another limit, which the caller has checked.
    pub(crate) const fn with_limit(mut self, limit: u64) -> Self {
        self.window.limit = limit;
        self.window.initial = limit;
        self
    }

    /// The largest count a word can hold.
    const fn count_max(&self) -> u64 {
        self.word.range() - 1
    }

    /// Returns the end of a window that is in force at `now`, or would begin now.
    #[inline]
    const fn end_ns(&self, now: Tick) -> u64 {
        let now_ns = if now.as_nanos() < Tick::HORIZON.as_nanos() { now } else { Tick::HORIZON };
        let now_ns = now_ns.as_nanos();
        match self.phase_ns {
            // OVERFLOW: horizon and phase are below 2^59 and 2^55.
            Some(phase_ns) => {
                ((now_ns + phase_ns) / self.window.length_ns + 1) * self.window.length_ns - phase_ns
            }
            None => self.word.round_up(now_ns + self.window.length_ns),
        }
    }

    /// Returns the window in force at `now`: the state's, or a fresh one.
    #[inline]
    fn view(&self, word: u64, now: Tick) -> View {
        self.counted(word, now).unwrap_or_else(|| View { count: 0, end_ns: self.end_ns(now) })
    }

    /// Returns the state's window, if something is counted in it at `now`.
    #[inline]
    fn counted(&self, word: u64, now: Tick) -> Option<View> {
        if word <= word_time::from_tick(now) {
            return None;
        }
        let (rounded_ns, count) = self.word.split(word);
        // A word at rest may name a time before the first border.
        if count == 0 {
            return None;
        }
        let end_ns = match self.phase_ns {
            // OVERFLOW: what counts ends at a border after the origin.
            Some(phase_ns) => {
                (rounded_ns + phase_ns) / self.window.length_ns * self.window.length_ns - phase_ns
            }
            None => rounded_ns,
        };
        let is_over = end_ns <= now.min(Tick::HORIZON).as_nanos();
        (!is_over).then_some(View { count, end_ns })
    }

    #[inline]
    fn answer(&self, View { count, end_ns }: View, now: Tick, cost: u64) -> Decision {
        let full = |taken| if count + taken == 0 { 0 } else { end_ns };
        self.window.answer((now, cost), count, full, || end_ns)
    }

    #[inline]
    const fn word(&self, View { count, end_ns }: View) -> u64 {
        if count == 0 { 0 } else { self.word.join(end_ns, count) }
    }
}

impl Step for FixedWindow {
    type State = u64;

    fn initial(&self, now: Tick) -> u64 {
        match self.window.limit - self.window.initial {
            0 => 0,
            missing => self.word(View { count: missing, ..self.view(0, now) }),
        }
    }

    #[inline]
    fn peek(&self, word: &u64, now: Tick, cost: u64) -> Decision {
        self.answer(self.view(*word, now), now, cost)
    }

    /// Looks at the window once. In a window that counts already, a permit more is a word higher by one:
    /// two divisions instead of seven.
    #[inline(always)]
    fn decide(&self, word: &mut u64, now: Tick, cost: u64) -> Decision {
        let view = self.view(*word, now);
        let decision = self.answer(view, now, cost);
        if decision.is_allowed() && cost > 0 {
            // INVARIANT: a word has room for twice the limit.
            *word = match view.count {
                0 => self.word(View { count: cost, ..view }),
                _ => *word + cost,
            };
        }
        decision
    }

    fn available(&self, word: &u64, now: Tick) -> u64 {
        self.window.limit.saturating_sub(self.view(*word, now).count)
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
        self.view(*word, now).end_ns
    }

    /// Gives back within the same window; a late refund is dropped, because the new window never
    /// held the charge.
    fn give_back(&self, word: &mut u64, now: Tick, mark: u64, most: u64) -> u64 {
        let view = self.view(*word, now);
        if view.end_ns != mark || view.count == 0 {
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
        let phase_ns = self.phase_ns.unwrap_or(ANCHORED);
        let WindowWord { grain_ns, shift_ns } = self.word;
        let Window { length_ns, limit, initial } = self.window;
        [length_ns, limit, phase_ns, initial, grain_ns, shift_ns, 0, 0]
    }

    #[inline]
    fn from_words(words: [u64; PARAMETERS]) -> Self {
        let [length_ns, limit, phase_ns, initial, grain_ns, shift_ns, ..] = words;
        let phase_ns = Some(phase_ns).filter(|phase_ns| *phase_ns != ANCHORED);
        let window = Window { length_ns, limit, initial };
        Self { window, phase_ns, word: WindowWord { grain_ns, shift_ns } }
    }
}

impl Idle for FixedWindow {
    fn burden(&self, word: &u64, now: Tick) -> u64 {
        share(self.view(*word, now).count, self.window.limit)
    }
}

impl Succeed for FixedWindow {
    /// The window in force goes on if windows of both quotas begin and end alike; else a new one
    /// begins, with what was used.
    ///
    /// If it can be read in two ways, the word of a limiter at rest changes, too, so that no decision by the
    /// old quota can write to it.
    fn succeed(&self, old: &Self, word: &u64, now: Tick, how: Inherit) -> u64 {
        let view = old.view(*word, now);
        let same = (self.window.length_ns, self.phase_ns) == (old.window.length_ns, old.phase_ns);
        let window = if same { view } else { self.view(0, now) };
        let next = match self.window.carry(&old.window, view.count, how) {
            None => self.initial(now),
            Some(used) => self.word(View { count: used.min(self.count_max()), ..window }),
        };
        if next == 0 && !same { self.word.at_rest(*word, now) } else { next }
    }
}

//! Sliding window counter: two neighbouring windows stand in for the events of one.
//!
//! # The idea
//!
//! Count events per aligned window, and keep the last window's count. The window that ends now
//! covers a part of the last one; assume its events were spread evenly.
//!
//! ```text
//! e = time since the current window began, of length W
//! used = ceil(previous x (W - e) / W) - 1 + current   (only current if previous = 0)
//! allowed if  used + cost <= limit
//! ```
//!
//! The windows are half-open, (t - W, t]: what is exactly one window old is outside. So each event of the
//! previous window leaves at its border, not a nanosecond later.
//!
//! # State and units
//!
//! The number of the latest window in which something counts, its count, and the count of the window before.
//! They share a word (`window_word.rs`) up to a limit of 21 thousand a second or 1 million an hour. Above
//! that they are three words behind a short lock.
//!
//! # Costs above the limit
//!
//! A cost that is booked whatever is free (`force`) may exceed what its window can hold. The excess is
//! *carried*: it fills the windows after this one, one limit each, and nothing else passes meanwhile.
//!
//! ```text
//! 10/s, 25 booked in window 7:      window 7: 10     window 8: 10     window 9: 5
//! state: number 9, current 5, and a mark that the windows before it are full
//! ```
//!
//! So the state is of one size, however large the excess. It can be given back, the last window first. It
//! is at most what takes 4.5 years to pay off; more is refused. A limit of zero carries nothing.
//!
//! # Exact and approximate
//!
//! - The formula is evaluated in 128-bit integers: no rounding but the one to whole permits.
//! - The estimate errs by at most `previous x e / W` in either direction: by as much as `previous`
//!   when all its events fell on one edge, and by one permit that is rounded away. So up to
//!   limit + previous x e / W + 1 pass in some window of length W, and never more than 2 x limit.
//! - An excess that is given back in a later window leaves the window before as it was when the excess was
//!   booked, not full.
//! - `retry` and `full` are solved for `e` and exact: the first tick at which the formula says yes.
//!
//! # Time
//!
//! Standing still: nothing is freed. Backwards: counts as the start of the state's window. Far
//! ahead: full.
//!
//! # Cost
//!
//! 8 or 24 bytes; one 64-bit and one 128-bit division.
//!
//! Source: Cloudflare's counter of 2017, with whole permits and integers in place of floats. Departures:
//! (1) refused events are not counted; (2) the wait is solved for, not estimated.

use super::{
    Algorithm, Idle, Inherit, PARAMETERS, Packed, Step, Succeed, share,
    window::{COUNT_MAX, Window},
    window_word::{WindowWord, phase},
};
use crate::{Quota, QuotaError, Tick, decision::Decision};

/// A sliding window counter with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingCounter {
    pub(super) window: Window,
    phase_ns: u64,
    word: WindowWord,
    /// Each count in a word is below half of this, and the other half says that an excess is carried; zero
    /// if the state does not fit.
    radix: u64,
}

/// The state of a [`SlidingCounter`]: two neighbouring windows. All zero if never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwoWindows {
    /// Number of the current window, from one.
    number: u64,
    /// With [`CARRIED`] if an excess has filled the windows before the current one: then what counted in the
    /// window before the excess was booked.
    previous: u64,
    current: u64,
}

impl TwoWindows {
    /// Lets the current window be the latest one in which something counts.
    const fn settled(self) -> Self {
        match self {
            Self { previous: 0, current: 0, .. } => Self { number: 0, previous: 0, current: 0 },
            Self { number, previous, current: 0 } => {
                Self { number: number - 1, previous: 0, current: previous }
            }
            both => both,
        }
    }
}

/// Marks a state that carries an excess, in its previous count.
const CARRIED: u64 = 1 << 62;

/// The state as of some time.
#[derive(Clone, Copy, Debug)]
struct View {
    /// The current window counts all of an excess.
    windows: TwoWindows,
    /// Nanoseconds since the current window began.
    elapsed_ns: u64,
    /// How many windows the excess fills.
    carried: u64,
}

impl SlidingCounter {
    /// Returns the counter for a quota, with windows that start at multiples of their length after
    /// `epoch`, which is the time from the Unix epoch to the clock's origin.
    ///
    /// # Errors
    ///
    /// As [`Quota::check_countable`]; also if the quota has a burst.
    pub fn new(quota: &Quota, epoch: std::time::Duration) -> Result<Self, QuotaError> {
        let window = Window::new(quota, Algorithm::SlidingCounter)?;
        let word = WindowWord::new(window.length_ns, 4, epoch);
        let (phase_ns, radix) = (phase(epoch, window.length_ns), word.range().isqrt());
        let counter = Self { window, phase_ns, word, radix };
        Ok(if window.limit > counter.packed_limit_max() { counter.unpacked() } else { counter })
    }

    /// Tells whether the state fits in one word.
    pub(crate) const fn packs(&self) -> bool {
        self.radix > 0
    }

    /// The largest limit whose state fits in one word, for windows of this length.
    ///
    /// Half of what a word could count; the other half says that an excess is carried.
    pub(crate) const fn packed_limit_max(&self) -> u64 {
        (self.word.range().isqrt() / 2).saturating_sub(1)
    }

    /// The same counter for a host with room for three words.
    pub(crate) const fn unpacked(mut self) -> Self {
        self.radix = 0;
        self
    }

    /// The most that one window counts.
    const fn count_max(&self) -> u64 {
        if self.packs() { self.packed_limit_max() } else { COUNT_MAX }
    }

    fn view(&self, state: &TwoWindows, now: Tick) -> View {
        // OVERFLOW: horizon and phase are below 2^59 and 2^55.
        let since = now.min(Tick::HORIZON).as_nanos() + self.phase_ns;
        let number = since / self.window.length_ns + 1;
        let (mut windows, mut carried) = (*state, 0);
        match number.checked_sub(state.number) {
            None if state.previous >= CARRIED => {
                carried = state.number - number;
                let current = self.carried_cost(carried) + state.current;
                let previous = state.previous - CARRIED;
                windows = TwoWindows { number, previous, current };
            }
            Some(0) if state.previous >= CARRIED => windows.previous = self.window.limit,
            None | Some(0) => {}
            Some(1) => windows = TwoWindows { number, previous: state.current, current: 0 },
            Some(_) => windows = TwoWindows { number, previous: 0, current: 0 },
        }
        let elapsed_ns = since.saturating_sub((windows.number - 1) * self.window.length_ns);
        View { windows, elapsed_ns, carried }
    }

    /// Returns what fills so many windows.
    fn carried_cost(&self, carried: u64) -> u64 {
        // OVERFLOW: saturates only if the limit was raised since, and then at a debt of 2^60.
        self.window.limit.saturating_mul(carried).min(COUNT_MAX)
    }

    /// Carries what exceeds the limit into later windows.
    fn carry(&self, windows: TwoWindows) -> TwoWindows {
        let TwoWindows { number, previous, current } = windows;
        match current.saturating_sub(1).checked_div(self.window.limit) {
            None | Some(0) => windows.settled(),
            Some(carried) => TwoWindows {
                number: number + carried,
                previous: previous | CARRIED,
                current: current - carried * self.window.limit,
            },
        }
    }

    /// Returns the start of the current window, and the counts of the previous one and of it.
    pub(crate) fn opened(&self, state: &TwoWindows, now: Tick) -> (Tick, (u64, u64)) {
        let view = self.view(state, now);
        let windows = if view.carried > 0 { *state } else { view.windows };
        let TwoWindows { number, previous, current } = windows;
        let start_ns = ((number - 1) * self.window.length_ns).saturating_sub(self.phase_ns);
        (Tick::from_nanos(start_ns), (previous, current))
    }

    /// Returns two windows of which the later began at `start`; `None` if both are over.
    pub(crate) fn reopened(
        &self,
        start: Tick,
        (previous, current): (u64, u64),
        now: Tick,
    ) -> Option<TwoWindows> {
        let number =
            (start.min(Tick::HORIZON).as_nanos() + self.phase_ns) / self.window.length_ns + 1;
        let (carried, previous) = (previous & CARRIED, previous & (CARRIED - 1));
        let [previous, current] = [previous, current].map(|count| count.min(self.count_max()));
        let state = TwoWindows { number, previous: previous | carried, current };
        (!self.is_idle(&state, now)).then_some(state)
    }

    fn used(&self, view: &View) -> u64 {
        let weight = self.window.length_ns - view.elapsed_ns;
        let product = u128::from(view.windows.previous) * u128::from(weight);
        // ceil(x) - 1. OVERFLOW: the quotient is at most `previous`, and both counts are at most 2^60.
        let previous = product.saturating_sub(1) / u128::from(self.window.length_ns);
        previous as u64 + view.windows.current
    }

    /// Returns the first `e` at which ceil(previous x (W - e) / W) - 1 <= room, if there is one
    /// within the window.
    ///
    /// ceil(x) - 1 <= room is x <= room + 1, so W - e <= (room + 1) x W / previous.
    fn elapsed_until(&self, previous: u64, room: u64) -> Option<u64> {
        if previous <= room {
            return Some(0);
        }
        let bound = (u128::from(room) + 1) * u128::from(self.window.length_ns);
        // OVERFLOW: previous >= room + 1, so the quotient is at most W.
        let weight = (bound / u128::from(previous)) as u64;
        let elapsed = self.window.length_ns - weight;
        (elapsed < self.window.length_ns).then_some(elapsed)
    }

    /// Returns the first tick at which at most `room` is used, if nothing is added meanwhile.
    fn tick_until(&self, view: &View, room: u64) -> u64 {
        let TwoWindows { number, previous, current } = match view.carried {
            0 => view.windows,
            carried => TwoWindows {
                number: view.windows.number + carried,
                previous: self.window.limit,
                current: view.windows.current - self.carried_cost(carried),
            },
        };
        let here = room.checked_sub(current).and_then(|left| self.elapsed_until(previous, left));
        let (number, elapsed) = match here {
            Some(elapsed) => (number, elapsed),
            None => match self.elapsed_until(current, room) {
                Some(elapsed) => (number + 1, elapsed),
                None => (number + 2, 0),
            },
        };
        // OVERFLOW: two windows beyond the horizon at most.
        ((number - 1) * self.window.length_ns + elapsed).saturating_sub(self.phase_ns)
    }
}

impl Step for SlidingCounter {
    type State = TwoWindows;

    fn initial(&self, now: Tick) -> TwoWindows {
        match self.window.limit - self.window.initial {
            0 => TwoWindows::default(),
            missing => {
                let fresh = self.view(&TwoWindows::default(), now).windows;
                TwoWindows { current: missing, ..fresh }
            }
        }
    }

    fn peek(&self, state: &TwoWindows, now: Tick, cost: u64) -> Decision {
        let view = self.view(state, now);
        let full = |taken| {
            let mut view = view;
            view.windows.current += taken;
            let TwoWindows { previous, current, .. } = view.windows;
            if previous + current == 0 { 0 } else { self.tick_until(&view, 0) }
        };
        let retry = || self.tick_until(&view, self.window.limit - cost);
        self.window.answer((now, cost), self.used(&view), full, retry)
    }

    fn available(&self, state: &TwoWindows, now: Tick) -> u64 {
        self.window.limit.saturating_sub(self.used(&self.view(state, now)))
    }

    fn charge(&self, state: &mut TwoWindows, now: Tick, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }
        let windows = self.view(state, now).windows;
        let current = windows.current.saturating_add(cost);
        if current <= self.window.limit {
            *state = TwoWindows { current, ..windows };
            return true;
        }
        let fits = cost <= self.chargeable(state, now);
        if fits {
            *state = self.carry(TwoWindows { current, ..windows });
        }
        fits
    }

    fn chargeable(&self, state: &TwoWindows, now: Tick) -> u64 {
        let most = self.window.debt_max().unwrap_or(self.count_max());
        most.saturating_sub(self.view(state, now).windows.current)
    }

    fn mark(&self, state: &TwoWindows, now: Tick) -> u64 {
        self.view(state, now).windows.number
    }

    /// Gives back within the same window, and of an excess; a late refund is dropped.
    fn give_back(&self, state: &mut TwoWindows, now: Tick, mark: u64, most: u64) -> u64 {
        let windows = self.view(state, now).windows;
        let amount = most.min(windows.current);
        if windows.number != mark || amount == 0 {
            return 0;
        }
        *state = self.carry(TwoWindows { current: windows.current - amount, ..windows });
        amount
    }
}

impl Packed for SlidingCounter {
    /// The end is that of the window after the latest one in which something passed: until then it counts.
    fn pack(&self, state: &TwoWindows) -> u64 {
        debug_assert!(self.packs(), "the host asked before packing");
        let TwoWindows { number, previous, current } = state.settled();
        if current == 0 {
            return 0;
        }
        // OVERFLOW: two windows beyond the horizon and the largest debt at most.
        let end_ns = ((number + 1) * self.window.length_ns).saturating_sub(self.phase_ns);
        let half = if previous < CARRIED { 0 } else { self.radix / 2 };
        self.word.join(end_ns, (previous % CARRIED + half) * self.radix + current)
    }

    fn unpack(&self, word: u64) -> TwoWindows {
        let (rounded_ns, counts) = self.word.split(word);
        let (previous, current) = (counts / self.radix, counts % self.radix);
        if word == 0 || current == 0 {
            return TwoWindows::default();
        }
        let number = ((rounded_ns + self.phase_ns) / self.window.length_ns).saturating_sub(1);
        let carried = if previous < self.radix / 2 { 0 } else { CARRIED - self.radix / 2 };
        TwoWindows { number, previous: previous + carried, current }
    }

    fn to_words(self) -> [u64; PARAMETERS] {
        let Self { window: Window { length_ns, limit, initial }, phase_ns, radix, .. } = self;
        let WindowWord { grain_ns, shift_ns } = self.word;
        [length_ns, limit, initial, phase_ns, grain_ns, shift_ns, radix, 0]
    }

    fn from_words(words: [u64; PARAMETERS]) -> Self {
        let [length_ns, limit, initial, phase_ns, grain_ns, shift_ns, radix, ..] = words;
        let word = WindowWord { grain_ns, shift_ns };
        Self { window: Window { length_ns, limit, initial }, phase_ns, word, radix }
    }
}

impl Idle for SlidingCounter {
    fn burden(&self, state: &TwoWindows, now: Tick) -> u64 {
        let TwoWindows { previous, current, .. } = self.view(state, now).windows;
        share(previous + current, self.window.limit)
    }
}

impl Succeed for SlidingCounter {
    /// Both windows go on if those of both quotas begin and end alike, and only the difference is
    /// booked or forgotten. Else what was used counts from now: it then fades no sooner than it
    /// would have.
    fn succeed(&self, old: &Self, state: &TwoWindows, now: Tick, how: Inherit) -> TwoWindows {
        let view = old.view(state, now);
        let used = old.used(&view);
        let Some(after) = self.window.carry(&old.window, used, how) else {
            return self.initial(now);
        };
        let after = after.min(self.window.debt_max().unwrap_or(self.count_max()));
        let TwoWindows { previous, current, .. } = view.windows;
        let same = (self.window.length_ns, self.phase_ns) == (old.window.length_ns, old.phase_ns);
        // What the current window must hold for the sum to be `after`, if that can be.
        let kept = (current + after).checked_sub(used);
        let windows = match kept.filter(|_| same && previous <= self.count_max()) {
            Some(kept) => TwoWindows { current: kept, ..view.windows },
            None => {
                let fresh = self.view(&TwoWindows::default(), now).windows;
                TwoWindows { current: after, ..fresh }
            }
        };
        self.carry(windows)
    }
}

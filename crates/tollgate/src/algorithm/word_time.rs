//! The time that a state word holds: ninths of a nanosecond since the clock's origin.
//!
//! A permit of "N per second, minute, hour or day" lasts a whole number of ninths for nearly every
//! N that people write: every N made of 2, 3 and 5. So adding permits to a time is exact.
//!
//! | what | bound | in human terms |
//! |---|---|---|
//! | [`Tick::HORIZON`] | 45 x 2^56 | 11.4 years |
//! | all that is booked ahead, burst and debt | 18 x 2^56 | 4.5 years |
//! | sum, the largest time | 63 x 2^56 < 2^62 | leaves a bit for the host and one that says "owed" |

use crate::clock::Tick;

/// Set in a table's word that is booked beyond the burst of the quota by which it was booked: such a debt
/// stays whatever the quota becomes. The bit above is the host's.
pub(crate) const OWED: u64 = 1 << 62;
/// The furthest that a limiter may be booked ahead, burst and debt together: 4.5 years.
pub(crate) const AHEAD_MAX: u64 = PER_NANO << 57;
/// A time that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

pub(crate) const PER_NANO: u64 = 9;

/// Returns a tick as a word holds it; ticks beyond the horizon count as the horizon.
#[inline(always)]
pub(crate) const fn from_tick(tick: Tick) -> u64 {
    let tick = if tick.as_nanos() < Tick::HORIZON.as_nanos() { tick } else { Tick::HORIZON };
    tick.as_nanos() * PER_NANO
}

/// [`from_tick`] for a tick that may never come: beyond the horizon, it does not.
pub(crate) const fn from_nanos(nanos: u64) -> u64 {
    if nanos > Tick::HORIZON.as_nanos() { NEVER } else { nanos * PER_NANO }
}

/// Words of budgets that never refill begin here, above all times, so that the word alone says that it is
/// not idle.
pub(crate) const BUDGET_START: u64 = OWED - (1 << 50);

pub(crate) const fn is_budget(word: u64) -> bool {
    word >= BUDGET_START && word < OWED
}

/// Tells whether the clock reaches a time before its horizon.
#[inline]
pub(crate) const fn is_reached(time: u64) -> bool {
    time <= Tick::HORIZON.as_nanos() * PER_NANO
}

/// Tells whether a word of a table stands for nothing any more, whatever its rule.
#[inline]
pub(crate) const fn is_idle(word: u64, now: Tick) -> bool {
    word & (OWED - 1) <= from_tick(now)
}

/// Returns the first tick at or after a time; `None` if the clock never gets there.
#[inline]
pub(crate) const fn to_tick(time: u64) -> Option<Tick> {
    if is_reached(time) { Some(Tick::from_nanos(time.div_ceil(PER_NANO))) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_there_and_back_and_times_round_up() {
        for ns in [0, 1, 7, 1 << 40, Tick::HORIZON.as_nanos()] {
            let tick = Tick::from_nanos(ns);
            assert_eq!(to_tick(from_tick(tick)), Some(tick));
            assert_eq!(from_nanos(ns), from_tick(tick));
        }
        assert_eq!(to_tick(10), Some(Tick::from_nanos(2)));
        assert_eq!(from_tick(Tick::MAX), from_tick(Tick::HORIZON));
        assert_eq!((from_nanos(u64::MAX), to_tick(NEVER)), (NEVER, None));
    }

    #[test]
    fn the_largest_time_leaves_the_hosts_bits_free() {
        assert!(from_tick(Tick::MAX) + AHEAD_MAX < OWED);
    }
}

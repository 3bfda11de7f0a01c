//! How a change of quota carries the state over.

/// What a limiter keeps of its past when it is given a new quota.
///
/// With *left* for the permits that are free now, and *used* for burst minus left:
///
/// | | left afterwards | example: burst 100 -> 500 with 40 left | 100 -> 50 with 40 left |
/// |---|---|---|---|
/// | `Reset` | as a fresh limiter | 500 | 50 |
/// | `AsIs` | the same number, at most the new burst | 40 | 40 |
/// | `Proportional` | the same share of the burst | 200 | 20 |
/// | `Additive` | new burst minus used | 440 | -10: a debt |
///
/// Debt stays debt under all but `Reset`. Windows, and budgets that never refill, count whole permits: what is
/// left is rounded down. GCRA keeps fractions, so a `Proportional` change and its reverse lose nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Inherit {
    /// Forget the past.
    Reset,
    /// The permits that are left stay, up to the new burst.
    AsIs,
    /// The same share of the burst is left. The default: nobody gains or loses by a change.
    #[default]
    Proportional,
    /// The permits that are used stay used.
    Additive,
}

/// Fraction bits of the amounts below.
pub(super) const FRACTION: u32 = 64;

impl Inherit {
    /// Returns what is used after a change of the burst from `old` to `new`, given what was used
    /// before, both in 2^-64 permits; `None` means that the limiter starts anew. For stores outside
    /// this crate.
    ///
    /// Bursts are at most 10^15 permits, and what is used below 2^58.
    #[must_use]
    pub fn used_after(self, used: u128, old: u64, new: u64) -> Option<u128> {
        // OVERFLOW: capacities are at most 10^15 < 2^50 and debts below 2^58 permits, so every amount is
        // below 2^123.
        let (old_full, new_full) = ((old as i128) << FRACTION, (new as i128) << FRACTION);
        let left = old_full - used as i128;
        let left_after = match self {
            Self::Reset => return None,
            Self::AsIs => left.min(new_full),
            Self::Additive => new_full - used as i128,
            Self::Proportional if left <= 0 || old == 0 => left.min(0),
            Self::Proportional => share(left as u128, old, new) as i128,
        };
        Some((new_full - left_after) as u128)
    }
}

/// Returns amount x new / old, rounded up: a change takes nothing from what is left. `old` is not zero.
fn share(amount: u128, old: u64, new: u64) -> u128 {
    let (old, new) = (u128::from(old), u128::from(new));
    // In two parts, because the product would not fit.
    (amount / old).saturating_mul(new) + (amount % old * new).div_ceil(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proportional_change_there_and_back_loses_nothing() {
        for (old, new) in [(3, 7), (7, 3), (1, 3), (10, 1), (1, 999_999_999_999_999)] {
            for used in 0..=old {
                let used = u128::from(used) << FRACTION;
                let there = Inherit::Proportional.used_after(used, old, new).unwrap();
                let back = Inherit::Proportional.used_after(there, new, old).unwrap();
                assert!(back <= used, "{old}->{new}: {used} became {back}");
            }
        }
    }

    #[test]
    fn keeps_what_the_table_says() {
        let permits = |n: i128| n << FRACTION;
        for (how, old, left, new, after) in [
            (Inherit::AsIs, 100, 40, 500, 40),
            (Inherit::Proportional, 100, 40, 500, 200),
            (Inherit::Additive, 100, 40, 500, 440),
            (Inherit::AsIs, 100, 40, 50, 40),
            (Inherit::AsIs, 100, 80, 50, 50),
            (Inherit::Proportional, 100, 40, 50, 20),
            (Inherit::Additive, 100, 40, 50, -10),
            (Inherit::Proportional, 100, -30, 500, -30),
            (Inherit::Proportional, 0, 0, 500, 0),
            (Inherit::AsIs, 100, -30, 500, -30),
        ] {
            let used = permits(old - left) as u128;
            let got = how.used_after(used, old as u64, new as u64).unwrap();
            assert_eq!(permits(new) - got as i128, permits(after), "{how:?} {old}->{new}");
        }
        assert_eq!(Inherit::Reset.used_after(1, 1, 1), None);
    }
}

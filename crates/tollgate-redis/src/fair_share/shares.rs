//! How a capacity is shared: the formulas.
//!
//! `lua/allot.lua` has the same formulas. All amounts are integers, and every division rounds down, so
//! the shares of a table never add up to more than the capacity, and are below it by less than one
//! millionth for each process. The tests below and `fair_share/tests/` hold both to each other.
//!
//! With capacity C, wants w, weights g and equal parts e = C g / (sum of g):
//!
//! | sharing | share |
//! |---|---|
//! | static | the smaller of w and a constant |
//! | proportional | w if all fits or w <= e; else e + (w - e) x spare / more, where spare is what others leave of their parts, and more is what is wanted beyond the parts |
//! | fair | max-min: serve in the order of w / g, each with at most what is left x g / weights left |
//! | bands | from the highest band: what the band wants, at most what is left without the floors of the bands below; fair inside the band |
//!
//! Departures from Doorman: fair shares are filled to the end (Doorman stops after two rounds), weights
//! are given (Doorman counts the clients behind a client), and bands are ours.

use super::Rate;

/// How a capacity is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// Each gets what it wants, up to so much.
    Static {
        /// The most that one process gets.
        each: Rate,
    },
    /// Each has an equal part, by weight; what some leave goes to the others in proportion to how
    /// much more they want.
    Proportional,
    /// Max-min fairness, by weight, the default: no process gets more than it wants, and a share
    /// can grow only at the cost of one that is not larger for its weight.
    #[default]
    Fair,
    /// Higher bands first (0 is the highest, 7 the lowest), fair inside a band. Each band has a
    /// floor, so that none starves.
    Bands {
        /// The floor of each band, in millionths of the capacity: at most 125 000, an eighth.
        floor_ppm: u32,
    },
}

/// The claim of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// How much it could use.
    pub wants: Rate,
    /// Its weight, 1 to 1000.
    pub weight: u16,
    /// Its band, 0 (the highest) to 7.
    pub band: u8,
}

/// The number of bands.
pub(super) const BANDS: usize = 8;

/// From so much on, what is wanted beyond the parts is counted in units of [`COARSE`]: the script
/// has 53 bits.
const MORE_MAX: u64 = 1 << 51;
const COARSE: u64 = 512;

impl Sharing {
    /// Returns bands with the floor of 5 % each.
    #[must_use]
    pub const fn bands() -> Self {
        Self::Bands { floor_ppm: 50_000 }
    }

    /// Returns what each claim gets of `capacity`, in their order: where a fleet ends up when
    /// nothing changes for two refreshes.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_redis::{Claim, Rate, Sharing};
    ///
    /// let claims = [1000, 50, 10].map(|wants| Claim::new(Rate::per_second(wants)));
    /// let shares = Sharing::Fair.shares(Rate::per_second(120), &claims);
    /// assert_eq!(shares, [60, 50, 10].map(Rate::per_second));
    /// ```
    #[must_use]
    pub fn shares(&self, capacity: Rate, claims: &[Claim]) -> Vec<Rate> {
        let amount = capacity.as_micros();
        let shares = match *self {
            Self::Static { each } => {
                claims.iter().map(|it| it.wants.min(each).as_micros()).collect()
            }
            Self::Proportional => proportional(amount, claims),
            Self::Fair => fair(amount, claims),
            Self::Bands { floor_ppm } => bands(amount, floor_of(capacity, floor_ppm), claims),
        };
        shares.into_iter().map(Rate::from_micros).collect()
    }
}

impl Claim {
    /// Returns a claim of weight 1 in band 0.
    #[must_use]
    pub const fn new(wants: Rate) -> Self {
        Self { wants, weight: 1, band: 0 }
    }

    fn weight(&self) -> u128 {
        u128::from(self.weight.max(1))
    }

    fn wants(&self) -> u64 {
        self.wants.as_micros()
    }
}

/// Returns the floor of a band.
pub(super) fn floor_of(capacity: Rate, ppm: u32) -> u64 {
    scaled(capacity.as_micros(), u128::from(ppm), 1_000_000)
}

/// Returns amount x part / whole, rounded down.
///
/// OVERFLOW: amounts are below 2^64 and parts below 2^64; a part is not above the whole, so the result
/// is not above the amount. A whole of zero has no parts.
fn scaled(amount: u64, part: u128, whole: u128) -> u64 {
    (u128::from(amount) * part).checked_div(whole).unwrap_or_default() as u64
}

fn weights(claims: &[Claim]) -> u128 {
    claims.iter().map(Claim::weight).sum()
}

fn all_fits(amount: u64, claims: &[Claim]) -> bool {
    claims.iter().map(|it| u128::from(it.wants())).sum::<u128>() <= u128::from(amount)
}

fn wanted(claims: &[Claim]) -> Vec<u64> {
    claims.iter().map(Claim::wants).collect()
}

fn proportional(amount: u64, claims: &[Claim]) -> Vec<u64> {
    if all_fits(amount, claims) {
        return wanted(claims);
    }
    let weights = weights(claims);
    let parts: Vec<u64> = claims.iter().map(|it| scaled(amount, it.weight(), weights)).collect();
    let pairs = || claims.iter().map(Claim::wants).zip(parts.iter().copied());
    let spare: u64 = pairs().map(|(wants, part)| part.saturating_sub(wants)).sum();
    let more = |unit: u64| {
        pairs().map(|(wants, part)| u128::from(wants.saturating_sub(part) / unit)).sum::<u128>()
    };
    let unit = if more(1) < u128::from(MORE_MAX) { 1 } else { COARSE };
    let more = more(unit);
    let share = |(wants, part): (u64, u64)| {
        if wants <= part {
            wants
        } else {
            part + scaled(spare, u128::from((wants - part) / unit), more)
        }
    };
    pairs().map(share).collect()
}

fn fair(amount: u64, claims: &[Claim]) -> Vec<u64> {
    if all_fits(amount, claims) {
        return wanted(claims);
    }
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&claims[*a], &claims[*b]);
        let crosswise = |of: &Claim, by: &Claim| u128::from(of.wants()) * by.weight();
        crosswise(a, b).cmp(&crosswise(b, a))
    });
    let mut shares = vec![0; claims.len()];
    let (mut left, mut weights, mut full) = (amount, weights(claims), false);
    for at in order {
        let claim = &claims[at];
        let part = scaled(left, claim.weight(), weights);
        full |= claim.wants() > part;
        if full {
            shares[at] = part;
        } else {
            shares[at] = claim.wants();
            left -= claim.wants();
            weights -= claim.weight();
        }
    }
    shares
}

fn bands(amount: u64, floor: u64, claims: &[Claim]) -> Vec<u64> {
    let in_band =
        |band: usize| (0..claims.len()).filter(move |at| usize::from(claims[*at].band) == band);
    let sum = |band: usize| {
        let wants = in_band(band).map(|at| u128::from(claims[at].wants())).sum::<u128>();
        wants.min(u128::from(amount)) as u64
    };
    let sums: [u64; BANDS] = std::array::from_fn(sum);
    let mut lower: u64 = sums.iter().map(|sum| floor.min(*sum)).sum();
    let (mut left, mut shares) = (amount, vec![0; claims.len()]);
    for (band, sum) in sums.into_iter().enumerate() {
        // INVARIANT: the rest covers the floors of this band and those below, because the floors of
        // all are at most the capacity.
        lower -= floor.min(sum);
        let given = sum.min(left.saturating_sub(lower));
        left -= given;
        let inside: Vec<Claim> = in_band(band).map(|at| claims[at]).collect();
        for (at, share) in in_band(band).zip(fair(given, &inside)) {
            shares[at] = share;
        }
    }
    shares
}

#[cfg(test)]
mod tests;

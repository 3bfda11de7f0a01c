//! Which key comes next.
//!
//! A key is a number below `count`. Each connection has a stream of its own that depends only on the
//! seed and the number of the connection, so a run can be repeated key for key.

/// How keys are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spread {
    /// Always the first key.
    One,
    /// Each key as often as any other.
    Uniform,
    /// Few keys get most requests: the `k`-th gets `1 / k^exponent` of what the first gets.
    Zipf(f64),
    /// One after the other, shared out between the connections, and again from the start.
    Sequence,
}

/// The keys of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySpace {
    pub(crate) count: u64,
    pub(crate) spread: Spread,
    pub(crate) seed: u64,
}

impl KeySpace {
    /// Returns the stream of one connection out of `connections`.
    pub(crate) fn stream(&self, connection: u64, connections: u64) -> Keys {
        let random = Random::new(self.seed, connection);
        let kind = match self.spread {
            Spread::One => Kind::One,
            Spread::Uniform => Kind::Uniform { count: self.count },
            Spread::Zipf(exponent) => Kind::Zipf(Zipf::new(self.count, exponent)),
            Spread::Sequence => Kind::Sequence {
                next: connection % self.count,
                step: connections % self.count,
                count: self.count,
            },
        };
        Keys { random, kind }
    }
}

/// An endless stream of keys.
#[derive(Debug)]
pub(crate) struct Keys {
    random: Random,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    One,
    Uniform { count: u64 },
    Zipf(Zipf),
    Sequence { next: u64, step: u64, count: u64 },
}

impl Keys {
    /// Returns the next key.
    pub(crate) fn next(&mut self) -> u64 {
        match &mut self.kind {
            Kind::One => 0,
            Kind::Uniform { count } => self.random.below(*count),
            Kind::Zipf(zipf) => zipf.sample(&mut self.random),
            Kind::Sequence { next, step, count } => {
                let key = *next;
                // OVERFLOW: both are below `count`, which is at most 10^12.
                *next = (*next + *step) % *count;
                key
            }
        }
    }
}

/// SplitMix64: one multiplication chain per number, any seed is a good seed.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64, stream: u64) -> Self {
        // Neighbouring streams start at unrelated places: the state is mixed once.
        let mut random = Self(seed ^ stream.wrapping_mul(0xD134_2543_DE82_EF95));
        Self(random.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `count`. With at most 10^12 keys the bias is below 10^-7.
    fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }

    /// A number in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Zipf's law without a table, by rejection-inversion (Hörmann and Derflinger, 1996).
///
/// The steps `1 / k^exponent` are covered by a smooth curve whose integral can be inverted. A point
/// below the curve is drawn, and drawn again where it lies above the step; fewer than one in two is.
#[derive(Debug)]
struct Zipf {
    count: f64,
    exponent: f64,
    /// The integral at the left edge of the first step and at the right edge of the last.
    left: f64,
    right: f64,
    /// A point at most this far from its step is below it for sure.
    sure: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        let count = count as f64;
        let mut zipf = Self { count, exponent, left: 0.0, right: 0.0, sure: 0.0 };
        zipf.left = zipf.integral(1.5) - 1.0;
        zipf.right = zipf.integral(count + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.height(2.0));
        zipf
    }

    fn height(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    fn integral(&self, x: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { x.ln() } else { (x.powf(power) - 1.0) / power }
    }

    fn inverse(&self, area: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { area.exp() } else { (1.0 + area * power).powf(1.0 / power) }
    }

    fn sample(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.right + random.unit() * (self.left - self.right);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.sure || area >= self.integral(rank + 0.5) - self.height(rank) {
                return rank as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(spread: Spread, keys: u64, draws: usize) -> Vec<u64> {
        let space = KeySpace { count: keys, spread, seed: 1 };
        let mut stream = space.stream(0, 1);
        let mut counts = vec![0; usize::try_from(keys).unwrap()];
        for _ in 0..draws {
            counts[usize::try_from(stream.next()).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn the_same_seed_gives_the_same_keys_and_connections_differ() {
        let take = |seed, connection| {
            let mut keys =
                KeySpace { count: 1000, spread: Spread::Uniform, seed }.stream(connection, 50);
            (0..20).map(|_| keys.next()).collect::<Vec<u64>>()
        };
        assert_eq!(take(7, 3), take(7, 3));
        assert_ne!(take(7, 3), take(7, 4));
        assert_ne!(take(7, 3), take(8, 3));
    }

    #[test]
    fn uniform_keys_come_equally_often() {
        for (key, count) in counts(Spread::Uniform, 10, 100_000).into_iter().enumerate() {
            assert!((9_600..10_400).contains(&count), "key {key}: {count}");
        }
    }

    #[test]
    fn zipf_follows_its_law() {
        for exponent in [0.5, 1.0, 1.1, 2.0] {
            let counts = counts(Spread::Zipf(exponent), 100, 200_000);
            let total: f64 = (1..=100).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for rank in [1_u32, 2, 3, 10, 100] {
                let expected = 200_000.0 * f64::from(rank).powf(-exponent) / total;
                let found = counts[rank as usize - 1] as f64;
                let spread = 5.0 * expected.sqrt() + 1.0;
                assert!((found - expected).abs() < spread, "{exponent} {rank}: {found} {expected}");
            }
        }
    }

    #[test]
    fn one_key_is_a_valid_space_for_every_spread() {
        for spread in [Spread::One, Spread::Uniform, Spread::Zipf(1.1), Spread::Sequence] {
            let mut keys = KeySpace { count: 1, spread, seed: 0 }.stream(3, 7);
            assert!((0..100).all(|_| keys.next() == 0), "{spread:?}");
        }
    }

    #[test]
    fn a_sequence_is_shared_out_without_gaps() {
        let space = KeySpace { count: 12, spread: Spread::Sequence, seed: 0 };
        let mut seen: Vec<u64> = Vec::new();
        for connection in 0..3 {
            let mut keys = space.stream(connection, 3);
            seen.extend((0..4).map(|_| keys.next()));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..12).collect::<Vec<u64>>());
    }
}

//! Random traces: what both trees are driven with.

/// What is driven, and by which calls.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) host: Host,
    /// Time since the Unix epoch at the clock's origin.
    pub(crate) epoch_ns: u64,
    /// The first is in force at the beginning; calls change to the others.
    pub(crate) quotas: Vec<String>,
    pub(crate) calls: Vec<(u64, Call)>,
}

impl Trace {
    /// Whether a permit may take no whole number of nanoseconds by one of the quotas.
    pub(crate) fn is_uneven(&self) -> bool {
        let has_other_factor = |quota: &String| {
            let count = quota.split(' ').next().and_then(|count| count.parse::<u64>().ok());
            count.is_some_and(|mut count| {
                while let Some(factor) = [2, 5].into_iter().find(|n| count > 1 && count % n == 0) {
                    count /= factor;
                }
                count > 1
            })
        };
        self.quotas.iter().any(|quota| quota.ends_with("ns") || has_other_factor(quota))
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Host {
    Limiter(Algorithm),
    Keyed(Algorithm),
    /// Policies with the first quotas, in this order.
    Store(Vec<Kind>),
}

/// A number in `Algorithm::ALL`.
pub(crate) type Algorithm = usize;

/// All but anchored windows, which ended at finer times in the old tree.
const ALGORITHMS: [Algorithm; 4] = [0, 1, 3, 4];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Plain(Algorithm),
    /// The quota comes with the call.
    AdHoc,
    AdHocWindow,
}

/// What a call asks for. A limiter ignores key and policy; only demands of their own have the quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) policy: usize,
    pub(crate) key: u64,
    pub(crate) cost: u64,
    pub(crate) quota: usize,
}

/// Reservations are picked by their number among those that are open.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Try(Vec<Target>),
    Peek(Vec<Target>),
    UpTo(Target),
    Force(Target),
    Available(Target),
    Refund(Target),
    Reset(Target),
    /// Waits at most so many nanoseconds.
    Reserve(Vec<Target>, u64),
    Cancel(usize),
    Settle(usize, u64),
    Keep(usize),
    Change {
        quota: usize,
        how: usize,
    },
}

/// What a call answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    Decision {
        outcome: &'static str,
        cost: u64,
        limit: u64,
        remaining: u64,
        at: u64,
        retry_at: Option<u64>,
        full_at: Option<u64>,
        reason: &'static str,
        refusing: Vec<usize>,
    },
    Number(u64),
    Time(u64),
    Nothing,
    Refused(String),
}

impl Seen {
    /// The times and a number of permits in an answer, and the answer without them.
    pub(crate) fn split(&self) -> ([Option<u64>; 2], u64, Self) {
        let mut rest = self.clone();
        let (times, remaining) = match &mut rest {
            Self::Decision { retry_at, full_at, remaining, .. } => {
                ([retry_at.take(), full_at.take()], std::mem::take(remaining))
            }
            Self::Time(time) => ([Some(std::mem::take(time)), None], 0),
            Self::Number(permits) => ([None, None], std::mem::take(permits)),
            _ => ([None, None], 0),
        };
        (times, remaining, rest)
    }
}

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// (count, period, its nanoseconds): as people write them, and some that divide badly.
type Rate = (u64, &'static str, u64);

fn rate(random: &mut Random) -> Rate {
    const S: u64 = 1_000_000_000;
    let periods = [("1s", S), ("1min", 60 * S), ("1h", 3600 * S), ("1day", 86_400 * S)];
    let (period, ns) = random.pick(&periods);
    match random.below(3) {
        0 => random.pick(&[
            (7, "1min", 60 * S),
            (3, "1s", S),
            (1, "31day", 31 * 86_400 * S),
            (997, "1s", S),
            (7919, "1h", 3600 * S),
            (0, "1s", S),
        ]),
        1 => (1 + random.below(2000), period, ns),
        _ => (random.pick(&[1, 2, 5, 10, 20, 60, 100, 500, 1000, 5000]), period, ns),
    }
}

fn quota((count, period, _): Rate, (has_burst, least): (bool, u64), random: &mut Random) -> String {
    match random.below(12) {
        0 => "unlimited".to_owned(),
        1..6 if has_burst => {
            let burst = random.pick(&[0, 1, 2, 5, 10 * count, random.0 % 1000]);
            format!("{count} per {period} burst {}", burst.max(least))
        }
        1 if has_burst => {
            format!("{} per 1s", random.pick(&[1_000_000_000, 999_999_937, 700_000_001]))
        }
        1 => format!("{count} per {}ns", 50_000_000 + random.below(1_000_000_000)),
        _ => format!("{count} per {period}"),
    }
}

pub(crate) fn random(random: &mut Random) -> Trace {
    let algorithm = random.pick(&ALGORITHMS);
    let host = match random.below(3) {
        0 => Host::Limiter(algorithm),
        1 => Host::Keyed(algorithm),
        _ => {
            let kinds = (0..1 + random.below(4)).map(|_| match random.below(8) {
                0 => Kind::AdHoc,
                1 => Kind::AdHocWindow,
                _ => Kind::Plain(random.pick(&ALGORITHMS)),
            });
            Host::Store(kinds.collect())
        }
    };
    let (number, has_burst) = match &host {
        Host::Store(kinds) => {
            (kinds.len() + 2, kinds.iter().all(|kind| matches!(kind, Kind::Plain(0))))
        }
        _ => (1 + random.below(3) as usize, algorithm == 0),
    };
    // Nothing per second, for a limiter only: a key that is full is evicted, sooner or later.
    let least = u64::from(!matches!(host, Host::Limiter(_)));
    let rates = (0..number).map(|_| rate(random));
    let rates: Vec<Rate> =
        rates.map(|(count, period, ns)| (count.max(least), period, ns)).collect();
    let quotas = rates.iter().map(|rate| quota(*rate, (has_burst, least), random)).collect();
    // Costs and gaps about as large as the first quota's, so that it both passes and refuses.
    let (count, _, period_ns) = rates[0];
    let permits = count.clamp(1, 2000);
    let few_permits_ns = period_ns / permits * (1 + random.below(10));
    let scale_ns = random.pick(&[period_ns, few_permits_ns]);
    let bits = random.pick(&[1, 40, 50, 57]);
    let mut now = random.below(1 << bits);
    let calls = (0..1 + random.below(80)).map(|_| {
        now = match random.below(16) {
            0..6 => now,
            6 | 7 => now + random.below(5),
            8 => now + random.below(scale_ns * 20),
            // Not for keys: one that is full is evicted, sooner or later, and an earlier time could tell.
            9 if matches!(host, Host::Limiter(_)) => now.saturating_sub(random.below(scale_ns)),
            _ => now + random.below(scale_ns),
        };
        // Within the eleven years that a clock may run.
        now = now.min(1 << 58);
        (now, call(random, &host, permits, number as u64, scale_ns))
    });
    let calls = calls.collect();
    Trace { host, epoch_ns: random.below(1 << 60), quotas, calls }
}

fn call(random: &mut Random, host: &Host, permits: u64, quotas: u64, scale_ns: u64) -> Call {
    let policies = if let Host::Store(kinds) = host { kinds.len() as u64 } else { 1 };
    let target = |random: &mut Random| Target {
        policy: random.below(policies) as usize,
        key: random.below(3),
        cost: match random.below(4) {
            0 => random.below(permits * 5 / 4 + 2),
            1 => 1,
            _ => random.below(permits / 4 + 2),
        },
        quota: random.below(quotas) as usize,
    };
    let several = |random: &mut Random| -> Vec<Target> {
        let most = if policies > 1 { 4 } else { 1 };
        (0..1 + random.below(most)).map(|_| target(random)).collect()
    };
    let one = several(random)[0];
    match random.below(64) {
        0..26 => Call::Try(several(random)),
        26..30 => Call::Peek(several(random)),
        30..35 => Call::UpTo(one),
        35..39 => Call::Force(one),
        39 | 40 => Call::Available(one),
        41..44 => Call::Refund(one),
        44 => Call::Reset(one),
        45..53 => {
            let wait = random.pick(&[0, scale_ns, scale_ns.saturating_mul(100), 1 << 60]);
            Call::Reserve(several(random), random.below(wait + 1))
        }
        53..57 => Call::Cancel(random.below(8) as usize),
        57..60 => {
            Call::Settle(random.below(8) as usize, one.cost << random.pick(&[0, 0, 0, 1, 40]))
        }
        60 => Call::Keep(random.below(8) as usize),
        // By keys and stores a change of quota keeps the time now, and not the permits.
        _ if !matches!(host, Host::Limiter(_)) => Call::Keep(8),
        _ => Call::Change { quota: random.below(quotas) as usize, how: random.below(4) as usize },
    }
}

//! A descriptor's `rate_limit`.

use super::Place;
use std::{fmt, ops::RangeInclusive, str::FromStr, time::Duration};
use tollgate::Algorithm;

/// One limit of a descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Its place in the file.
    pub at: Place,
    /// The name under which others refer to it.
    pub name: Option<String>,
    /// Names of limits that do not apply to a request to which this one does.
    pub replaces: Vec<String>,
    /// How much.
    pub rate: Rate,
    /// By which algorithm; the file's default if not said.
    pub algorithm: Option<Algorithm>,
    /// Percentages of the limit, ascending: a key whose use reaches one is reported.
    pub warn: Vec<u8>,
}

impl Limit {
    /// The most thresholds of one limit: each is a time series.
    pub const WARN_MAX: usize = 8;
}

/// How many calls may be in flight at once: a descriptor's `concurrency`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// Its place in the file.
    pub at: Place,
    /// The name under which others refer to it.
    pub name: Option<String>,
    /// How many may be in flight, for each key.
    pub limit: u64,
    /// How long a caller that neither renews nor leaves holds its slot.
    pub lease: Duration,
}

impl Concurrency {
    /// The largest limit: the leases of one key are one set in the store.
    pub const LIMIT_MAX: u64 = 1_000_000;

    /// The lease if the file names none.
    pub const DEFAULT_LEASE: Duration = Duration::from_secs(60);

    /// The shortest and the longest lease.
    pub const LEASES: RangeInclusive<Duration> =
        Duration::from_millis(100)..=Duration::from_secs(24 * 3600);
}

/// The rate of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Everything: `unlimited: true`.
    Unlimited,
    /// `count` in each `per`. A count of zero refuses everything.
    Counted {
        /// How many.
        count: u64,
        /// In which time.
        per: Duration,
        /// The unit that was written, or that has just this length.
        unit: Option<Unit>,
        /// How many at once, if not `count`.
        burst: Option<u64>,
    },
}

/// The reference's units of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// One second.
    Second = 1,
    /// 60 seconds.
    Minute = 2,
    /// 3600 seconds.
    Hour = 3,
    /// 24 hours.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// 7 days.
    Week = 7,
}

impl Unit {
    /// All units, shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Returns the length.
    #[must_use]
    pub const fn length(self) -> Duration {
        const DAY: u64 = 86_400;
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        })
    }

    /// Returns the name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Returns the unit of just this length.
    #[must_use]
    pub fn of(length: Duration) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.length() == length)
    }

    /// Returns the unit with this number in Envoy's protocol.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| *unit as i32 == number)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no unit has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownUnit(pub String);

impl fmt::Display for UnknownUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid rate limit unit '{}'; use one of second", self.0)?;
        Unit::ALL[1..].iter().try_for_each(|unit| write!(f, ", {unit}"))
    }
}

impl std::error::Error for UnknownUnit {}

/// Reads a name in any case.
impl FromStr for Unit {
    type Err = UnknownUnit;

    fn from_str(name: &str) -> Result<Self, UnknownUnit> {
        let known = Self::ALL.into_iter().find(|unit| name.eq_ignore_ascii_case(unit.name()));
        known.ok_or_else(|| UnknownUnit(name.chars().take(40).collect()))
    }
}

/// The decision when the store cannot answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failure {
    /// Let pass.
    Open,
    /// Refuse.
    Closed,
    /// Decide in this process, by this process's share of the limit. A store that cannot do that lets
    /// pass.
    #[default]
    Local,
}

impl Failure {
    /// Returns what it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
        }
    }

    /// Returns the meaning of a word; `allow` and `deny` are synonyms of the first two.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "open" | "allow" => Some(Self::Open),
            "closed" | "deny" => Some(Self::Closed),
            "local" => Some(Self::Local),
            _ => None,
        }
    }
}

/// Blocks keys that are refused again and again: the library's `Escalation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// After this many denials
    pub after: u32,
    /// within this time
    pub within: Duration,
    /// a key is blocked for so long, each time for twice as long,
    pub first: Duration,
    /// up to this.
    pub most: Duration,
}

/// The limit of single values.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// Its place in the file.
    pub at: Place,
    /// The values that it is for.
    pub values: Vec<String>,
    /// How much they may.
    pub rate: Rate,
}

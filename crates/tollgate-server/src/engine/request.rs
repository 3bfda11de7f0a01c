//! Requests to the engine, as protocols build them.

use super::LeaseId;
use crate::{
    config::Unit,
    plan::{Entry, MAX_ENTRIES, NameError},
};
use std::{fmt, time::Duration};

/// One question about one or more descriptors or policies, decided as one.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The domain of descriptors. Unused for named subjects.
    pub domain: &'a str,
    /// The descriptors or policies.
    pub asks: &'a [Ask<'a>],
    /// The operation.
    pub verb: Verb,
}

/// The operation on the descriptors or policies of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take from all, or from none.
    Check,
    /// Return the answer that [`Check`](Self::Check) would give, and change nothing.
    Peek,
    /// Take, with the right to correct the cost within a time.
    Reserve(Duration),
    /// Take slots of a `concurrency` rule, until the caller leaves or its lease ends.
    Enter,
    /// Hold these slots for another lease, from now.
    Renew(LeaseId),
    /// Give these slots back.
    Leave(LeaseId),
}

impl Verb {
    /// Tells whether it is about `concurrency` rules; all others are about rates.
    #[must_use]
    pub const fn is_of_concurrency(self) -> bool {
        matches!(self, Self::Enter | Self::Renew(_) | Self::Leave(_))
    }
}

/// One descriptor or policy of a request.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The descriptor or policy that is counted.
    pub subject: Subject<'a>,
    /// How many hits it takes or gives back.
    pub hits: Hits,
    /// A limit that comes with the request, in place of a configured one.
    pub limit: Option<AdHocLimit>,
}

/// The descriptor or policy that is counted.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A descriptor: the plan finds its rules.
    Entries(&'a [Entry<'a>]),
    /// A policy by name, with its free values in the order of its path. A policy without free values
    /// takes an empty key, too.
    Named {
        /// The name of the policy.
        policy: &'a str,
        /// The values.
        keys: &'a [&'a [u8]],
    },
}

/// How many hits a request takes or gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Take this many; zero only peeks.
    Take(u64),
    /// Give back up to this many.
    Give(u64),
}

impl Hits {
    /// Returns the hits to take.
    #[must_use]
    pub const fn taken(self) -> u64 {
        match self {
            Self::Take(hits) => hits,
            Self::Give(_) => 0,
        }
    }
}

/// A limit that comes with the request: `count` in each unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdHocLimit {
    /// How many; zero refuses everything.
    pub count: u64,
    /// In which time.
    pub unit: Unit,
}

/// The most descriptors or policies in one request.
pub const MAX_ASKS: usize = 64;

/// Why a request cannot be decided. A refusal is no such error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// There are more limits in it than one decision can have.
    TooMany {
        /// How many.
        count: usize,
    },
    /// A descriptor has too many entries.
    TooManyEntries {
        /// How many.
        count: usize,
    },
    /// A name that is not the name of a policy.
    Name(NameError),
    /// The values do not fit the policy.
    Keys {
        /// The policy.
        policy: String,
        /// The names of its values.
        wanted: Vec<String>,
        /// How many were given.
        given: usize,
    },
    /// The limit that comes with the request is invalid.
    Limit(String),
    /// The policy does not limit what this verb is about.
    WrongVerb {
        /// The policy.
        policy: String,
        /// Whether the policy limits how many are in flight.
        is_concurrency: bool,
    },
    /// The limits of a reservation are in several stores.
    SeveralStores,
    /// The store failed, and this verb has no failure policy.
    Store(String),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { count } => write!(
                f,
                "{count} limits in one request, above the maximum of {MAX_ASKS}; split the request"
            ),
            Self::TooManyEntries { count } => write!(
                f,
                "a descriptor has {count} entries, above the maximum of {MAX_ENTRIES}; use fewer \
                 entries"
            ),
            Self::Name(error) => error.fmt(f),
            Self::Keys { policy, wanted, given } if wanted.is_empty() => {
                write!(
                    f,
                    "policy \"{policy}\" takes no key, but {}; leave it out",
                    keys_given(*given)
                )
            }
            Self::Keys { policy, wanted, given } => write!(
                f,
                "policy \"{policy}\" needs {} key{} ({}), but {}",
                wanted.len(),
                if wanted.len() == 1 { "" } else { "s" },
                wanted.join(", "),
                keys_given(*given)
            ),
            Self::Limit(text) => f.write_str(text),
            Self::WrongVerb { policy, is_concurrency: true } => write!(
                f,
                "policy \"{policy}\" limits how many are in flight at once; use enter, renew and \
                 leave"
            ),
            Self::WrongVerb { policy, is_concurrency: false } => write!(
                f,
                "policy \"{policy}\" limits a rate, not how many are in flight at once; use check"
            ),
            Self::SeveralStores => f.write_str(
                "the limits of one reservation must be in one store; reserve them one by one",
            ),
            Self::Store(text) => write!(f, "the store failed: {text}"),
        }
    }
}

/// Returns `no key was given`, `1 key was given`, `2 keys were given`.
fn keys_given(count: usize) -> String {
    match count {
        0 => "no key was given".into(),
        1 => "1 key was given".into(),
        count => format!("{count} keys were given"),
    }
}

impl std::error::Error for RequestError {}

impl From<NameError> for RequestError {
    fn from(error: NameError) -> Self {
        Self::Name(error)
    }
}

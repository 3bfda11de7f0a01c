//! The error of a rate limit layer's settings.

use crate::{
    answer::{LabelError, Refusal},
    key::KeyError,
};
use std::fmt;
use tollgate::QuotaError;

/// An invalid setting of a rate limit layer.
#[derive(Debug)]
pub struct LayerError {
    policy: Box<str>,
    why: Why,
}

#[derive(Debug)]
pub(super) enum Why {
    NoPolicy,
    TooMany { count: usize },
    SameName,
    NoLife,
    Percent { percent: u8 },
    Tiers,
    Key(KeyError),
    Quota(QuotaError),
    Label(LabelError),
    Free,
    TooDear { cost: u64, capacity: u64 },
    ZeroWait,
    TwoStores,
    PercentOfOne,
    NobodyWaits,
    NoTime,
    Nothing,
    Refusal { refusal: Refusal },
    UnnamedTier,
    Costs { count: usize },
    NeverCharged,
    TopKeys { capacity: usize },
}

crate::coded::coded!(LayerError, "TG-L01");

impl LayerError {
    pub(super) fn new(policy: &str, why: Why) -> Self {
        Self { policy: policy.into(), why }
    }

    const fn code_and_docs(&self) -> (&'static str, &'static str) {
        match &self.why {
            Why::NoPolicy => ("TG-L01", docs!("http.md#tg-l01")),
            Why::TooMany { .. } => ("TG-L02", docs!("http.md#tg-l02")),
            Why::SameName => ("TG-L03", docs!("http.md#tg-l03")),
            Why::NoLife => ("TG-L04", docs!("http.md#tg-l04")),
            Why::Percent { .. } => ("TG-L05", docs!("http.md#tg-l05")),
            Why::Tiers => ("TG-L06", docs!("http.md#tg-l06")),
            Why::Key(error) => (error.code(), error.docs()),
            Why::Quota(_) | Why::Nothing => ("TG-L07", docs!("http.md#tg-l07")),
            Why::Label(_) => ("TG-L08", docs!("http.md#tg-l08")),
            Why::Free => ("TG-L09", docs!("http.md#tg-l09")),
            Why::TooDear { .. } => ("TG-L10", docs!("http.md#tg-l10")),
            Why::ZeroWait => ("TG-L11", docs!("http.md#tg-l11")),
            Why::TwoStores => ("TG-L12", docs!("http.md#tg-l12")),
            Why::PercentOfOne => ("TG-L13", docs!("http.md#tg-l13")),
            Why::NobodyWaits => ("TG-L14", docs!("http.md#tg-l14")),
            Why::NoTime => ("TG-L15", docs!("http.md#tg-l15")),
            Why::Refusal { .. } => ("TG-L16", docs!("http.md#tg-l16")),
            Why::UnnamedTier => ("TG-L17", docs!("http.md#tg-l17")),
            Why::Costs { .. } => ("TG-L18", docs!("http.md#tg-l18")),
            Why::NeverCharged => ("TG-L19", docs!("http.md#tg-l19")),
            Why::TopKeys { .. } => ("TG-L20", docs!("http.md#tg-l20")),
        }
    }
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.policy.is_empty() {
            write!(f, "policy \"{}\": ", self.policy)?;
        }
        self.why.say(f)?;
        // The error of a key names its own place.
        if let Why::Key(_) = self.why {
            return Ok(());
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl std::error::Error for LayerError {}

impl Why {
    fn say(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(error) => write!(f, "{error}"),
            Self::Quota(error) => write!(f, "{error}"),
            Self::Label(error) => error.say(f),
            Self::NoPolicy => f.write_str("a layer without a policy limits nothing; add a policy"),
            Self::TooMany { count } => write!(
                f,
                "{count} policies are more than the {} that one decision can hold; use fewer",
                tollgate::Limits::MOST
            ),
            Self::NoLife => f.write_str(
                "`settle_within` is zero, so nothing could be settled; set it to the longest \
                 response time",
            ),
            Self::ZeroWait => {
                f.write_str("`wait_up_to` is 0 s; leave it out to deny requests at once")
            }
            Self::TwoStores => f.write_str(
                "`memory` or `store` is given more than once, but a layer has one store; keep one",
            ),
            Self::NobodyWaits => f.write_str(
                "`max_waiting` must be at least 1 and needs `wait_up_to`; add `wait_up_to`, or \
                 leave `max_waiting` out",
            ),
            Self::NoTime => f.write_str(
                "a `store_timeout` of 0 s leaves a store no time to respond; set it to the longest \
                 time that a request may wait",
            ),
            Self::TopKeys { capacity } => write!(
                f,
                "`top_keys` with a capacity of {capacity} is out of range; use 1 to {}, usually 100",
                tollgate::TopKeys::CAPACITY_MAX
            ),
            _ => self.say_of_policy(f),
        }
    }

    fn say_of_policy(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameName => f.write_str(
                "two policies or tiers with the same name would share their counts; give each a \
                 name of its own",
            ),
            Self::Percent { percent } => {
                write!(f, "{percent} percent of the keys is out of range; use 0 to 100")
            }
            Self::Tiers => f.write_str(
                "tiers need both `tier`, which defines them, and `tier_by`, which selects one; add \
                 the missing one",
            ),
            Self::Free => f.write_str(
                "a cost of 0 counts nothing; use 1 or more, or exclude requests with `only`",
            ),
            Self::TooDear { cost, capacity } => write!(
                f,
                "a cost of {cost} is above the {capacity} permits that can ever be free, so \
                 nothing would pass; raise the quota or its burst, or lower the cost"
            ),
            Self::PercentOfOne => f.write_str(
                "a percentage applies to keys, but this policy has no key, so it would be enforced \
                 for all requests or none; give it a key, or use `Mode::Shadow`",
            ),
            Self::Nothing => f.write_str(
                "a quota of 0 permits never lets a request pass; use 1 or more, or remove the \
                 route",
            ),
            Self::Refusal { refusal } => write!(
                f,
                "the refusal {refusal:?} says that a client may never pass, but permits come back; \
                 use `QuotaExceeded`, `ReducedCapacity` or `AbnormalUsage`"
            ),
            Self::UnnamedTier => {
                f.write_str("a tier has an empty name; give each tier a name, such as \"paid\"")
            }
            Self::Costs { count } => write!(
                f,
                "{count} costs are given by `cost`, `cost_by` and `cost_by_length`, but a policy \
                 has one cost; keep one"
            ),
            Self::NeverCharged => f.write_str(
                "`Charge::on_status` without a status charges nothing, so it would only limit \
                 simultaneous requests; list statuses, or use a `ConcurrencyLayer`",
            ),
            // INVARIANT: `say` has written all others.
            _ => Ok(()),
        }
    }
}

//! What is wrong with a layer.

use crate::{
    answer::{LabelError, Refusal},
    key::KeyError,
};
use std::fmt;
use tollgate::QuotaError;

/// What is wrong with a layer.
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
        }
    }
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.policy.is_empty() {
            write!(f, "policy \"{}\": ", self.policy)?;
        }
        self.why.say(f)?;
        // That of a key tells its place itself.
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
            Self::NoPolicy => f.write_str("a layer without a policy limits nothing; add one"),
            Self::TooMany { count } => write!(
                f,
                "{count} policies are more than the {} that one decision can hold; use fewer",
                tollgate::Limits::MOST
            ),
            Self::NoLife => f.write_str(
                "`settle_within` is zero, so nothing could be settled; give the longest response",
            ),
            Self::ZeroWait => f.write_str(
                "`wait_up_to` of 0 s is no wait; leave it out, so that requests are refused at once",
            ),
            Self::TwoStores => f.write_str(
                "`memory` and `store` are given more than once, and a layer has one; leave out all \
                 but one",
            ),
            Self::NobodyWaits => f.write_str(
                "`max_waiting` is for layers with `wait_up_to`, and at least 1; add that, or leave \
                 this out",
            ),
            Self::NoTime => f.write_str(
                "a `store_timeout` of 0 s leaves a store no time to answer; give the longest that a \
                 request may wait for it",
            ),
            _ => self.say_of_policy(f),
        }
    }

    fn say_of_policy(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameName => f.write_str(
                "two policies, or tiers, of one name would share their counts; give each its own",
            ),
            Self::Percent { percent } => {
                write!(f, "{percent} of a hundred keys is too many; give 0 to 100")
            }
            Self::Tiers => f.write_str(
                "tiers need both `tier`, which names them, and `tier_by`, which chooses",
            ),
            Self::Free => f.write_str(
                "a cost of 0 counts nothing; give 1 or more, or leave requests out by `only`",
            ),
            Self::TooDear { cost, capacity } => write!(
                f,
                "a cost of {cost} is more than the {capacity} permits that there can ever be, so \
                 nothing would pass; raise the quota or its burst, or lower the cost"
            ),
            Self::PercentOfOne => f.write_str(
                "a percentage is one of keys, and this policy has a single one, so it would be \
                 enforced for all or for nobody; give it a key, or take `Mode::Shadow`",
            ),
            Self::Nothing => f.write_str(
                "a quota of 0 permits lets nothing pass, ever; give 1 or more, or leave the route out \
                 of the service",
            ),
            Self::Refusal { refusal } => write!(
                f,
                "a refusal of {refusal:?} says that a client may not pass at all, but permits come \
                 back; take `QuotaExceeded`, `ReducedCapacity` or `AbnormalUsage`"
            ),
            Self::UnnamedTier => f.write_str(
                "a tier \"\" has no name to be told by; give each tier one, such as \"paid\"",
            ),
            Self::Costs { count } => write!(
                f,
                "{count} costs are given by `cost`, `cost_by` and `cost_by_length`, and a policy has \
                 one; leave out all but one"
            ),
            Self::NeverCharged => f.write_str(
                "`Charge::on_status` of no status charges nothing, so only what runs at once would be \
                 limited; list statuses, or use a `ConcurrencyLayer` for what runs at once",
            ),
            // INVARIANT: `say` has told all others.
            _ => Ok(()),
        }
    }
}

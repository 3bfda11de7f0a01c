//! The state of a rule at run time: counts, and temporary changes of an administrator.

use std::{
    cell::Cell,
    collections::VecDeque,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};
use tollgate::{Bans, Escalation, KeyedError, Tick, TopKeys};

/// Decisions are counted in this many places, so that threads do not contend.
const STRIPES: usize = 8;

/// The kind that a decision counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Passed, and was charged.
    Allowed,
    /// Refused by its quota.
    Denied,
    /// Would have been refused, and passed: shadow mode, or a percentage.
    Shadowed,
    /// Refused because the key is blocked.
    Blocked,
    /// Passed because the rule is bypassed.
    Bypassed,
    /// The store could not answer, and the rule admits then.
    FailedOpen,
    /// The store could not answer, and the rule denies then.
    FailedClosed,
    /// Denied because the table was full.
    Saturated,
    /// The store could not be reached, and this process's share admits.
    AllowedHere,
    /// The store could not be reached, and this process's share is used up.
    DeniedHere,
    /// Denied because a bound of the store is reached, such as that of open reservations.
    Full,
    /// This rule admits, but another one denied the request.
    RefusedElsewhere,
    /// Its quota is used up, but others in quota mode admit.
    QuotaSpent,
    /// Passed because it has no limit.
    Unlimited,
}

impl Counted {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::Allowed,
        Self::Denied,
        Self::Shadowed,
        Self::Blocked,
        Self::Bypassed,
        Self::FailedOpen,
        Self::FailedClosed,
        Self::Saturated,
        Self::AllowedHere,
        Self::DeniedHere,
        Self::Full,
        Self::RefusedElsewhere,
        Self::QuotaSpent,
        Self::Unlimited,
    ];

    /// Returns the result and the reason, as the metrics name them.
    #[must_use]
    pub const fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Allowed => ("allowed", "quota"),
            Self::Denied => ("denied", "quota"),
            Self::Shadowed => ("allowed", "shadow"),
            Self::Blocked => ("denied", "blocked"),
            Self::Bypassed => ("allowed", "bypassed"),
            Self::FailedOpen => ("allowed", "store-failed"),
            Self::FailedClosed => ("denied", "store-failed"),
            Self::Saturated => ("denied", "saturated"),
            Self::AllowedHere => ("allowed", "local"),
            Self::DeniedHere => ("denied", "local"),
            Self::Full => ("denied", "full"),
            Self::RefusedElsewhere => ("allowed", "refused-elsewhere"),
            Self::QuotaSpent => ("allowed", "quota-spent"),
            Self::Unlimited => ("allowed", "unlimited"),
        }
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    decisions: [AtomicU64; Counted::ALL.len()],
    permits: [AtomicU64; Counted::ALL.len()],
    charged: AtomicU64,
    returned: AtomicU64,
}

/// The counts of a rule, which outlive a reload.
#[derive(Debug)]
pub struct Live {
    /// Allocated at the first decision, as `top` is: both take 7 KB, and most of a hundred thousand
    /// rules decide nothing for a long time.
    stripes: OnceLock<Box<[Stripe; STRIPES]>>,
    /// The end of the bypass, during which everything passes.
    bypassed_until: AtomicU64,
    bans: Option<(Escalation, Bans)>,
    /// The last keys that were banned, with the ends of their bans.
    banned: Mutex<VecDeque<(Box<[u8]>, Tick)>>,
    /// How many keys `top` can hold; zero if keys are not tracked.
    top_keys: usize,
    top: OnceLock<TopKeys>,
    /// How often a key reached each percentage of its limit, from 1 % on. Allocated when one does.
    crossed: OnceLock<Box<[AtomicU64; 100]>>,
}

/// The counts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// Decisions, in the order of [`Counted::ALL`].
    pub decisions: [u64; Counted::ALL.len()],
    /// Permits that they asked for.
    pub permits: [u64; Counted::ALL.len()],
    /// Permits that the store was charged, by decisions and by settlements above the reserved cost.
    pub charged: u64,
    /// Permits given back to the store: by refunds, and by settlements below the reserved cost.
    pub returned: u64,
}

impl LiveCounts {
    /// Returns the number of decisions of a kind.
    #[must_use]
    pub const fn of(&self, kind: Counted) -> u64 {
        self.decisions[kind as usize]
    }

    /// Returns the number of denials.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.sum("denied")
    }

    /// Returns the number of admissions.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        self.sum("allowed")
    }

    fn sum(&self, result: &str) -> u64 {
        let same = |kind: &&Counted| kind.labels().0 == result;
        Counted::ALL.iter().filter(same).map(|kind| self.of(*kind)).sum()
    }
}

/// The number of the next thread.
static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn stripe() -> usize {
    STRIPE.with(|stripe| {
        if stripe.get() == usize::MAX {
            // ORDERING: Relaxed. Any number is fine.
            stripe.set(NEXT_STRIPE.fetch_add(1, Relaxed) % STRIPES);
        }
        stripe.get()
    })
}

impl Live {
    pub(super) fn new(ban: Option<Escalation>, top_keys: usize) -> Result<Self, KeyedError> {
        let bans = match ban {
            Some(ban) => Some((ban, Bans::new(ban, MOST_BANS)?)),
            None => None,
        };
        Ok(Self {
            stripes: OnceLock::new(),
            bypassed_until: AtomicU64::new(0),
            bans,
            banned: Mutex::default(),
            top_keys: top_keys.min(TopKeys::CAPACITY_MAX),
            top: OnceLock::new(),
            crossed: OnceLock::new(),
        })
    }

    /// Takes over the counts of another, and the end of its bypass.
    pub(super) fn after(self, other: &Self) -> Self {
        if other.stripes.get().is_some() {
            let LiveCounts { decisions, permits, charged, returned } = other.counts();
            let first = &self.stripes.get_or_init(Box::default)[0];
            first.charged.fetch_add(charged, Relaxed);
            first.returned.fetch_add(returned, Relaxed);
            for kind in 0..Counted::ALL.len() {
                first.decisions[kind].fetch_add(decisions[kind], Relaxed);
                first.permits[kind].fetch_add(permits[kind], Relaxed);
            }
        }
        for percent in 1..=100 {
            match other.crossed(percent) {
                0 => {}
                count => self.add_crossed(percent, count),
            }
        }
        self.bypassed_until.store(other.bypassed_until.load(Relaxed), Relaxed);
        self
    }

    /// Tells whether a rule with this ban and this number of top keys can keep these counts.
    pub(super) fn fits(&self, ban: Option<Escalation>, top_keys: usize) -> bool {
        let same_top = self.top_keys == top_keys.min(TopKeys::CAPACITY_MAX);
        self.bans.as_ref().map(|(ban, _)| *ban) == ban && same_top
    }

    /// Counts a decision.
    pub fn count(&self, kind: Counted, cost: u64) {
        let stripe = &self.stripes.get_or_init(Box::default)[stripe()];
        // ORDERING: Relaxed, here and below. The counts are statistics.
        stripe.decisions[kind as usize].fetch_add(1, Relaxed);
        stripe.permits[kind as usize].fetch_add(cost, Relaxed);
    }

    /// Counts permits that the store was charged.
    pub fn charged(&self, permits: u64) {
        if permits > 0 {
            let stripe = &self.stripes.get_or_init(Box::default)[stripe()];
            stripe.charged.fetch_add(permits, Relaxed);
        }
    }

    /// Counts permits that were given back to the store.
    pub fn returned(&self, permits: u64) {
        if permits > 0 {
            let stripe = &self.stripes.get_or_init(Box::default)[stripe()];
            stripe.returned.fetch_add(permits, Relaxed);
        }
    }

    /// Counts keys that have reached a percentage of their limit.
    ///
    /// # Panics
    ///
    /// If `percent` is not from 1 to 100.
    pub(crate) fn add_crossed(&self, percent: u8, count: u64) {
        let counts = self.crossed.get_or_init(|| Box::new([const { AtomicU64::new(0) }; 100]));
        // ORDERING: Relaxed, here and below. The counts are statistics.
        counts[usize::from(percent) - 1].fetch_add(count, Relaxed);
    }

    /// Returns how often a key has reached a percentage of its limit.
    #[must_use]
    pub fn crossed(&self, percent: u8) -> u64 {
        let index = usize::from(percent).checked_sub(1);
        let count = index.and_then(|index| self.crossed.get()?.get(index));
        count.map_or(0, |count| count.load(Relaxed))
    }

    /// Tells whether any decision was counted.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.stripes.get().is_some()
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> LiveCounts {
        let mut counts = LiveCounts::default();
        for stripe in self.stripes.get().into_iter().flat_map(|stripes| stripes.iter()) {
            for kind in 0..Counted::ALL.len() {
                counts.decisions[kind] += stripe.decisions[kind].load(Relaxed);
                counts.permits[kind] =
                    counts.permits[kind].wrapping_add(stripe.permits[kind].load(Relaxed));
            }
            counts.charged = counts.charged.wrapping_add(stripe.charged.load(Relaxed));
            counts.returned = counts.returned.wrapping_add(stripe.returned.load(Relaxed));
        }
        counts
    }

    /// Lets everything pass until that time; [`Tick::ZERO`] ends the bypass.
    pub fn bypass_until(&self, until: Tick) {
        self.bypassed_until.store(until.as_nanos(), Relaxed);
    }

    /// Returns the end of the bypass that is in force, if there is one.
    #[must_use]
    pub fn bypassed_until(&self, now: Tick) -> Option<Tick> {
        let until = Tick::from_nanos(self.bypassed_until.load(Relaxed));
        (until > now).then_some(until)
    }

    /// Returns the bans of repeatedly denied keys, if the rule has them.
    #[must_use]
    pub fn bans(&self) -> Option<&Bans> {
        self.bans.as_ref().map(|(_, bans)| bans)
    }

    /// Counts a denial of a key, which may begin a ban.
    pub(crate) fn strike(&self, key: &[u8], now: Tick) {
        let Some(until) = self.bans().and_then(|bans| bans.refused(key, now)) else { return };
        let mut banned = self.banned.lock().unwrap_or_else(PoisonError::into_inner);
        banned.retain(|(known, end)| **known != *key && *end > now);
        if banned.len() == BANNED_LISTED {
            banned.pop_front();
        }
        banned.push_back((key.into(), until));
    }

    /// Returns the keys that are banned now with the ends of their bans; of many, only the latest.
    #[must_use]
    pub fn banned(&self, now: Tick) -> Vec<(Box<[u8]>, Tick)> {
        let Some(bans) = self.bans() else { return Vec::new() };
        let mut banned = self.banned.lock().unwrap_or_else(PoisonError::into_inner);
        // An administrator may have ended a ban.
        banned.retain(|(key, _)| bans.blocked_until(key, now).is_some());
        banned.iter().cloned().collect()
    }

    /// Returns the most active and the most denied keys, if they are tracked.
    pub(super) fn top(&self) -> Option<&TopKeys> {
        (self.top_keys > 0).then(|| self.top.get_or_init(|| TopKeys::new(self.top_keys)))
    }
}

/// Banned keys of a rule that are listed by name.
const BANNED_LISTED: usize = 1000;

/// How many keys of a rule can have denials on record.
const MOST_BANS: u64 = 1 << 17;

//! Other crates, each as its own documentation uses it.

use super::{
    BASELINE, DENIED_BURST, FULL_RATE, HAMMERED_BURST, HAMMERED_RATE, PARTLY_BURST, PARTLY_RATE,
    PARTLY_USED,
};
use crate::grid::{Ask, Behind, Case, Row};
use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::DefaultClock,
    middleware::StateInformationMiddleware,
    state::{InMemoryState, NotKeyed},
};
use std::{
    hint::black_box,
    num::NonZeroU32,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

const HOUR: Duration = Duration::from_secs(3600);

fn nonzero(value: u64) -> NonZeroU32 {
    u32::try_from(value)
        .ok()
        .and_then(NonZeroU32::new)
        .expect("the numbers of the cases fit governor's")
}

fn governor_quota(case: Case) -> Quota {
    let (rate, burst) = match case {
        Case::Full => (FULL_RATE, FULL_RATE),
        Case::Partly | Case::Half => (PARTLY_RATE, PARTLY_BURST),
        Case::Denied => (1, DENIED_BURST),
        Case::Hammered => (HAMMERED_RATE, HAMMERED_BURST),
    };
    let quota = match case {
        Case::Denied => Quota::per_hour(nonzero(rate)),
        _ => Quota::per_second(nonzero(rate)),
    };
    quota.allow_burst(nonzero(burst))
}

/// Permits to take before a case is measured.
const fn used(case: Case) -> u64 {
    match case {
        Case::Partly => PARTLY_USED,
        Case::Denied => DENIED_BURST,
        Case::Full | Case::Half | Case::Hammered => 0,
    }
}

fn governor_default(case: Case) -> Option<DefaultDirectRateLimiter> {
    let limiter = RateLimiter::direct(governor_quota(case));
    if used(case) > 0 {
        limiter.check_n(nonzero(used(case))).ok()?.ok()?;
    }
    Some(limiter)
}

type Informed = RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>;

fn governor_informed(case: Case) -> Option<Informed> {
    let limiter =
        RateLimiter::direct(governor_quota(case)).with_middleware::<StateInformationMiddleware>();
    if used(case) > 0 {
        limiter.check_n(nonzero(used(case))).ok()?.ok()?;
    }
    Some(limiter)
}

#[inline(always)]
fn informed_call(limiter: &Informed) -> bool {
    match limiter.check() {
        Ok(snapshot) => {
            black_box(snapshot.remaining_burst_capacity());
            true
        }
        Err(not_until) => {
            black_box(&not_until);
            false
        }
    }
}

/// The row that all ratios refer to: governor with its defaults.
pub(crate) fn governor() -> Row {
    let build = |case| governor_default(case).map(Arc::new);
    Row::handle(BASELINE, build, Behind(GovernorPasses))
}

/// Reads the answer as a bool.
#[derive(Clone, Copy)]
struct GovernorPasses;

impl Ask<DefaultDirectRateLimiter> for GovernorPasses {
    #[inline(always)]
    fn ask(self, limiter: &DefaultDirectRateLimiter) -> bool {
        limiter.check().is_ok()
    }
}

fn governor_with_remaining() -> Row {
    let name = "governor 0.10, StateInformation, remaining read";
    Row::shared(name, governor_informed, informed_call)
}

fn ratelimit(case: Case) -> Option<ratelimit::Ratelimiter> {
    let (rate, burst, period) = match case {
        Case::Full => (FULL_RATE, FULL_RATE, Duration::from_secs(1)),
        Case::Partly | Case::Half => (PARTLY_RATE, PARTLY_BURST, Duration::from_secs(1)),
        Case::Denied => (1, DENIED_BURST, HOUR),
        Case::Hammered => (HAMMERED_RATE, HAMMERED_BURST, Duration::from_secs(1)),
    };
    ratelimit::Ratelimiter::builder(rate)
        .max_tokens(burst)
        .initial_available(burst - used(case))
        .period(period)
        .build()
        .ok()
}

fn leaky_bucket(case: Case) -> Option<leaky_bucket::RateLimiter> {
    let millisecond = Duration::from_millis(1);
    let (refill, interval, burst) = match case {
        Case::Full => (FULL_RATE / 1000, millisecond, FULL_RATE),
        Case::Partly | Case::Half => (1, millisecond, PARTLY_BURST),
        Case::Denied => (1, HOUR, DENIED_BURST),
        // Its finest interval is a millisecond, which is ten times the burst of this case.
        Case::Hammered => return None,
    };
    let limiter = leaky_bucket::RateLimiter::builder()
        .refill(refill as usize)
        .interval(interval)
        .max(burst as usize)
        .initial((burst - used(case)) as usize)
        .build();
    Some(limiter)
}

type Throttlecrab = Mutex<throttlecrab::RateLimiter<throttlecrab::PeriodicStore>>;

struct Throttle {
    inner: Throttlecrab,
    burst: i64,
    count: i64,
    period: i64,
}

impl Throttle {
    fn take(&self, cost: i64) -> bool {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (burst, count, period) = (self.burst, self.count, self.period);
        inner
            .rate_limit("key", burst, count, period, cost, SystemTime::now())
            .is_ok_and(|(allowed, _)| allowed)
    }
}

fn throttlecrab(case: Case) -> Option<Throttle> {
    let (burst, count, period) = match case {
        Case::Full => (FULL_RATE, FULL_RATE, 1),
        Case::Partly | Case::Half => (PARTLY_BURST, PARTLY_RATE, 1),
        Case::Denied => (DENIED_BURST, 1, 3600),
        Case::Hammered => (HAMMERED_BURST, HAMMERED_RATE, 1),
    };
    let store = throttlecrab::PeriodicStore::with_capacity(16);
    let limiter = Throttle {
        inner: Mutex::new(throttlecrab::RateLimiter::new(store)),
        burst: burst as i64,
        count: count as i64,
        period,
    };
    match case {
        Case::Denied => while limiter.take(1) {},
        Case::Partly => assert!(limiter.take(PARTLY_USED as i64)),
        Case::Full | Case::Half | Case::Hammered => {}
    }
    Some(limiter)
}

struct Gcra {
    state: Mutex<gcra::GcraState>,
    limit: gcra::RateLimit,
}

impl Gcra {
    fn take(&self, cost: u32) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.check_and_modify(&self.limit, cost).is_ok()
    }
}

fn gcra(case: Case) -> Option<Gcra> {
    // Its burst is the refill of one period.
    let (limit, period) = match case {
        Case::Full => (FULL_RATE, Duration::from_secs(1)),
        Case::Partly | Case::Half => {
            (PARTLY_BURST, Duration::from_secs(PARTLY_BURST / PARTLY_RATE))
        }
        Case::Denied => (DENIED_BURST, HOUR * DENIED_BURST as u32),
        Case::Hammered => (HAMMERED_BURST, Duration::from_micros(HAMMERED_BURST)),
    };
    let limiter =
        Gcra { state: Mutex::default(), limit: gcra::RateLimit::new(nonzero(limit).get(), period) };
    if used(case) > 0 {
        assert!(limiter.take(used(case) as u32));
    }
    Some(limiter)
}

fn async_rate_limiter(case: Case) -> Option<async_rate_limiter::RateLimiter> {
    let rate = match case {
        Case::Full => FULL_RATE,
        // It has no rates below one per second; one call in a second passes.
        Case::Denied => 1,
        Case::Hammered => HAMMERED_RATE,
        // It starts with one permit and refills only when empty, so it never saves up permits.
        Case::Partly | Case::Half => return None,
    };
    let limiter = async_rate_limiter::RateLimiter::new(rate as usize);
    if case == Case::Denied {
        while limiter.try_acquire().is_ok() {}
    }
    Some(limiter)
}

/// All crates except governor.
pub(crate) fn others() -> Vec<Row> {
    vec![
        governor_with_remaining(),
        Row::shared("ratelimit 2.0", ratelimit, |limiter| limiter.try_wait().is_ok()),
        Row::shared("leaky-bucket 1.1, try_acquire", leaky_bucket, |limiter| {
            limiter.try_acquire(1)
        }),
        Row::shared("throttlecrab 0.4, one key in a mutex", throttlecrab, |limiter| {
            limiter.take(1)
        }),
        Row::shared("gcra 0.6, in a mutex", gcra, |limiter| limiter.take(1)),
        Row::shared("async-rate-limiter 1.1, try_acquire", async_rate_limiter, |limiter| {
            limiter.try_acquire().is_ok()
        }),
    ]
}

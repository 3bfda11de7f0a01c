//! The server's limits, as a response reports them.

use super::{family, grpc, time};
use http::{HeaderMap, HeaderName, StatusCode, header};
use std::time::Duration;

/// How far ahead a time may lie before it counts as implausible, by default.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Reads the server's limits from responses.
///
/// It knows these families of headers, and reads the first one that is there:
///
/// 1. `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers, revisions 08 to 11
///    (also with the prefix `Beta-`);
/// 2. the same of revision 07, `RateLimit: limit=100, remaining=50, reset=30`;
/// 3. `RateLimit-Limit`, `-Remaining` and `-Reset` of revisions 00 to 06;
/// 4. `anthropic-ratelimit-requests-limit` and so on;
/// 5. `x-ratelimit-limit-requests` and so on, as OpenAI has them, for requests and tokens;
/// 6. `X-RateLimit-Limit`, `-Remaining`, `-Reset` or `-Reset-After`, and `X-Rate-Limit-*`;
/// 7. `X-RateLimit-Remaining-Minute` and so on, as Kong has them;
/// 8. `X-Shopify-Shop-Api-Call-Limit: 32/40`.
///
/// It also reads `Retry-After` in both forms, `retry-after-ms`, `x-ms-retry-after-ms`,
/// `x-amz-retry-after`, and gRPC's `grpc-status`, `grpc-retry-pushback-ms` and the `RetryInfo` in
/// `grpc-status-details-bin`.
///
/// A reset is a distance or a point in time: see [`LearnedPolicy::reset_after`]. A field with a
/// fault is ignored as a whole and counted; a name of more than 128 bytes is a fault. A response
/// from a cache (`Age` above zero) is not read.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use http::{Response, StatusCode};
/// use tollgate_tower::client::Reader;
///
/// let response = Response::builder()
///     .header("RateLimit-Policy", r#""burst";q=100;w=60"#)
///     .header("RateLimit", r#""burst";r=50;t=30"#)
///     .body(())?;
/// let wall = Duration::from_secs(1_800_000_000); // since the Unix epoch
/// let learned = Reader::new().read(StatusCode::OK, response.headers(), wall);
/// assert_eq!(learned.policies[0].remaining, 50);
/// assert_eq!(learned.policies[0].reset_after, Some(Duration::from_secs(30)));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    longest: Duration,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

/// The limits that one response reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Learned {
    /// The policies that it has figures of, at most sixteen.
    pub policies: Vec<LearnedPolicy>,
    /// Whether it is a refusal, and whose fault that is.
    pub refusal: Option<Refusal>,
    /// When to retry.
    pub retry: Option<RetryWhen>,
    /// Whether it comes from a cache: then nothing else is read.
    pub is_cached: bool,
    /// How many times were further ahead than is plausible, and were cut to the bound.
    pub clamped: u32,
    /// How many fields were malformed, and ignored.
    pub malformed: u32,
}

/// One policy, as a response reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LearnedPolicy {
    /// The name, if it has one.
    pub name: Option<Box<str>>,
    /// The unit that the policy counts.
    pub unit: Unit,
    /// How much a full window allows, if it is known.
    pub limit: Option<u64>,
    /// How much is left.
    pub remaining: u64,
    /// For how long no more than that may be used.
    ///
    /// Numbers above 10^12 are read as a Unix time in milliseconds, those above 10^9 in seconds,
    /// others as seconds from now. `2026-01-01T00:00:00Z` (with or without seconds), `6m0s` and
    /// HTTP dates are understood, too. Points in time are compared with the response's own `Date`,
    /// so that a difference of the clocks does not matter; without one, with our clock. If only the
    /// window is known, this is the window: the reset cannot take longer.
    pub reset_after: Option<Duration>,
    /// The length of a window, if it is known.
    pub window: Option<Duration>,
}

/// The unit that a policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// Requests.
    Requests,
    /// Requests that run at the same time.
    Concurrent,
    /// Anything else: tokens, bytes.
    Other,
}

/// Whose fault a refusal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The client is over its share, and nothing was done: 429, `RESOURCE_EXHAUSTED`, or 403 with a
    /// `Retry-After`, or with a vendor's header (such as `X-RateLimit-Remaining`) that says that no
    /// request is left, as GitHub has it.
    ///
    /// A 403 with the headers of the draft is not a refusal: a server that implements the draft
    /// refuses with 429, and its headers are also on the last request that passes.
    Client,
    /// The server is overloaded: 503, `UNAVAILABLE`. It may have done some of the work.
    Server,
}

/// When to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetryWhen {
    /// Not before this time has passed.
    After(Duration),
    /// Not at all: gRPC's pushback forbids it.
    Never,
}

impl Learned {
    /// Returns how long to wait before another try, if it is a refusal and names a time: `retry`, or
    /// else the latest reset of those policies of which nothing is left.
    pub(crate) fn named(&self) -> Option<Duration> {
        self.refusal?;
        match self.retry {
            Some(RetryWhen::After(after)) => Some(after),
            Some(RetryWhen::Never) | None => {
                self.empty().filter_map(|policy| policy.reset_after).max()
            }
        }
    }

    /// Returns the policies of which nothing is left.
    fn empty(&self) -> impl Iterator<Item = &LearnedPolicy> {
        self.policies.iter().filter(|policy| policy.remaining == 0)
    }
}

fn counts_requests(policy: &LearnedPolicy) -> bool {
    policy.unit == Unit::Requests
}

impl Reader {
    /// Returns a reader for which a time more than one hour ahead is implausible.
    #[must_use]
    pub const fn new() -> Self {
        Self { longest: LONGEST }
    }

    /// Sets how far ahead a time may lie, by default one hour. Beyond that it is cut to this, and
    /// counted in [`Learned::clamped`].
    #[must_use]
    pub const fn longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// Returns the bound that [`longest`](Self::longest) sets.
    #[must_use]
    pub const fn bound(&self) -> Duration {
        self.longest
    }

    /// Reads the limits in the status and the headers of a response. `wall` is the time now, since
    /// the Unix epoch.
    #[must_use]
    pub fn read(&self, status: StatusCode, headers: &HeaderMap, wall: Duration) -> Learned {
        let mut learned = Learned::default();
        if is_cached(headers) {
            learned.is_cached = true;
            return learned;
        }
        let date = text(headers, &header::DATE).and_then(|text| time::date(text, wall));
        let wall = date.unwrap_or(wall);
        // Most responses report no limits. Looking for each of 50 names takes 14 000 instructions.
        let has = |word| headers.keys().any(|name| name.as_str().contains(word));
        if has(family::WORD) {
            family::read(headers, wall, &mut learned);
        }
        if has("retry") || has("grpc") {
            learned.retry = retry(headers, wall, &mut learned.malformed);
        }
        learned.refusal = refusal(status, headers, &learned);
        for policy in &mut learned.policies {
            if policy.reset_after.is_none() && policy.unit != Unit::Concurrent {
                policy.reset_after = policy.window;
            }
            if let Some(after) = &mut policy.reset_after {
                self.clamp(after, &mut learned.clamped);
            }
        }
        if let Some(RetryWhen::After(after)) = &mut learned.retry {
            self.clamp(after, &mut learned.clamped);
        }
        learned
    }

    fn clamp(&self, after: &mut Duration, clamped: &mut u32) {
        if *after > self.longest {
            *after = self.longest;
            *clamped += 1;
        }
    }
}

/// Returns the text of the first line of a header.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn is_cached(headers: &HeaderMap) -> bool {
    let age = text(headers, &header::AGE).and_then(|text| time::decimal(text.trim()));
    age.is_some_and(|age| age > Duration::ZERO)
}

/// Returns the latest of all times to retry; "never" is the latest. The milliseconds of gRPC take
/// precedence over a `Retry-After` beside them, which is the same time rounded up.
fn retry(headers: &HeaderMap, wall: Duration, malformed: &mut u32) -> Option<RetryWhen> {
    let mut latest = None;
    match grpc::pushback(headers) {
        Some(RetryWhen::Never) => return Some(RetryWhen::Never),
        Some(RetryWhen::After(after)) => latest = Some(after),
        None => {}
    }
    match grpc::retry_info(headers) {
        Some(after) => latest = latest.max(after),
        None => *malformed += 1,
    }
    if latest.is_some() {
        return latest.map(RetryWhen::After);
    }
    if let Some(value) = headers.get(header::RETRY_AFTER) {
        let after = value.to_str().ok().and_then(|text| time::retry_after(text, wall));
        *malformed += u32::from(after.is_none());
        latest = latest.max(after);
    }
    for name in ["retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"] {
        if let Some(value) = headers.get(name) {
            let ms = value.to_str().ok().and_then(|text| time::decimal(text.trim()));
            *malformed += u32::from(ms.is_none());
            latest = latest.max(ms.map(|ms| ms / 1000));
        }
    }
    latest.map(RetryWhen::After)
}

fn refusal(status: StatusCode, headers: &HeaderMap, learned: &Learned) -> Option<Refusal> {
    match (status, grpc::status(headers)) {
        (StatusCode::TOO_MANY_REQUESTS, _) | (_, Some(8)) => Some(Refusal::Client),
        (StatusCode::SERVICE_UNAVAILABLE, _) | (_, Some(14)) => Some(Refusal::Server),
        (StatusCode::FORBIDDEN, _) => {
            let is_used_up = || !family::is_draft(headers) && learned.empty().any(counts_requests);
            (learned.retry.is_some() || is_used_up()).then_some(Refusal::Client)
        }
        _ => None,
    }
}

//! The headers of a response.

use super::{
    Label, Told, Verdict, Wait,
    date::Date,
    field::{LIST_MAX, push_parameter, retry_seconds, seconds},
    list::is_list,
    text::{FIELD_MAX, Line, Out, push_number},
};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tollgate::Clock;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const ENVOY_RATE_LIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");
/// Limit, remaining, reset.
const THREE: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const LEGACY: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Which headers are sent.
///
/// By default every response has `RateLimit` and `RateLimit-Policy`, and refusals also have
/// `Retry-After` and `Cache-Control: no-store`.
///
/// # Headers that are already there
///
/// A service further in may have limits of its own. Its `RateLimit` lines stay, and ours are added,
/// because both fields are lists. Lines that are not lists, as in revision 07 of the draft, are
/// removed: no client could parse them together with ours. Of headers with a single value, the set
/// with less remaining is sent, and the longer `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    draft: Option<Draft>,
    three_fields: bool,
    legacy: Legacy,
    on_success: OnSuccess,
    envoy: bool,
}

/// A revision of draft-ietf-httpapi-ratelimit-headers. It is no standard, and its form has changed
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Draft {
    /// Revision 11 of May 2026, whose form is that of 08 to 10: `RateLimit: "p";r=5;t=30` and
    /// `RateLimit-Policy: "p";q=10;w=60`.
    R11,
}

/// What `X-RateLimit-Reset` means. Clients disagree, so say what yours expect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Legacy {
    /// Sends no such headers, the default.
    #[default]
    Off,
    /// The second of the Unix epoch at which all permits are back. `Date` is sent, too, for clients
    /// whose clock is wrong.
    Epoch,
    /// The seconds until all permits are back.
    Delta,
}

/// Which headers are sent with a request that may pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnSuccess {
    /// Nothing: clients learn of a limit only when they reach it.
    Nothing,
    /// The remaining permits, the default.
    #[default]
    Left,
    /// The remaining permits, and `Retry-After` if none remain.
    LeftAndRetryAfter,
}

impl Default for Headers {
    fn default() -> Self {
        Self::new()
    }
}

impl Headers {
    /// Returns the headers that are sent by default.
    #[must_use]
    pub const fn new() -> Self {
        Self { draft: Some(Draft::R11), ..Self::bare() }
    }

    /// Returns the headers that every refusal has, and no others: `Retry-After` and
    /// `Cache-Control: no-store`.
    #[must_use]
    pub const fn bare() -> Self {
        Self {
            draft: None,
            three_fields: false,
            legacy: Legacy::Off,
            on_success: OnSuccess::Left,
            envoy: false,
        }
    }

    /// Sends `RateLimit` and `RateLimit-Policy` in the form of this revision.
    #[must_use]
    pub const fn draft(mut self, draft: Draft) -> Self {
        self.draft = Some(draft);
        self
    }

    /// Sends `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` as in revisions 00 to
    /// 06 of the draft, which many clients read. The last one is in seconds from now.
    #[must_use]
    pub const fn three_fields(mut self) -> Self {
        self.three_fields = true;
        self
    }

    /// Sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, by default not.
    #[must_use]
    pub const fn legacy(mut self, legacy: Legacy) -> Self {
        self.legacy = legacy;
        self
    }

    /// Sets which headers are sent with requests that may pass, by default [`OnSuccess::Left`].
    #[must_use]
    pub const fn on_success(mut self, on_success: OnSuccess) -> Self {
        self.on_success = on_success;
        self
    }

    /// Sends `x-envoy-ratelimited: true` with refusals, which keeps an Envoy from trying again.
    #[must_use]
    pub const fn envoy(mut self) -> Self {
        self.envoy = true;
        self
    }

    /// Tells whether requests that may pass get any headers.
    pub(crate) fn tells_success(&self) -> bool {
        self.on_success != OnSuccess::Nothing
    }

    /// Writes the headers of a response.
    pub fn write(&self, verdict: &Verdict<'_>, headers: &mut HeaderMap) {
        if !verdict.is_allowed() {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            if self.envoy {
                headers.insert(ENVOY_RATE_LIMITED, HeaderValue::from_static("true"));
            }
        } else if self.on_success == OnSuccess::Nothing {
            return;
        }
        if let Some(told) = verdict.binding() {
            if let Some(Draft::R11) = self.draft {
                write_r11(verdict, told, headers);
            }
            if self.three_fields {
                let reset = verdict.reset_after(told);
                write_three(told, reset.and_then(seconds), &THREE, headers);
            }
            self.write_legacy(verdict, told, headers);
        }
        self.write_retry_after(verdict, headers);
    }

    /// Writes the headers of the response to a request that passes the only limit that it has.
    pub(crate) fn write_passed(
        &self,
        told: &Told<'_>,
        (clock, at_once): (&Clock, bool),
        headers: &mut HeaderMap,
    ) {
        let Told { label, decision, .. } = told;
        let is_usual = *self == Self::new()
            && decision.remaining() > 0
            && decision.limit() == label.quota().capacity();
        // If the service has answered at once, no second has passed, so the clock need not be read.
        let now = if is_usual && at_once { decision.at() } else { clock.now().max(decision.at()) };
        if is_usual
            && let Some(full_at) = decision.full_at()
            && let Some(seconds) = seconds(full_at.since(now))
        {
            // The fast path: as below, with nothing left to choose.
            let mut out = Line::new();
            push_left(&mut out, label, decision.remaining(), Some(seconds));
            add_lines(headers, label.item().clone(), value(out.as_bytes()));
            return;
        }
        self.write(&Verdict::new(clock, now, std::slice::from_ref(told)), headers);
    }

    fn write_legacy(&self, verdict: &Verdict<'_>, told: &Told<'_>, headers: &mut HeaderMap) {
        let reset = || verdict.reset_after(told);
        let reset = match self.legacy {
            Legacy::Off => return,
            Legacy::Delta => reset(),
            Legacy::Epoch => {
                if !headers.contains_key(header::DATE) {
                    let date = value(Date::default().text(verdict.wall.as_secs()));
                    headers.insert(header::DATE, date);
                }
                reset().and_then(|reset| verdict.wall.checked_add(reset))
            }
        };
        write_three(told, reset.and_then(seconds), &LEGACY, headers);
    }

    fn write_retry_after(&self, verdict: &Verdict<'_>, headers: &mut HeaderMap) {
        let wait = match (verdict.wait(), verdict.binding()) {
            (Some(Wait::After(_)), _) => verdict.retry_after().map(retry_seconds),
            (None, Some(told))
                if self.on_success == OnSuccess::LeftAndRetryAfter
                    && told.decision().remaining() == 0 =>
            {
                verdict.told_seconds(told).map(|wait| wait.max(1))
            }
            _ => None,
        };
        let Some(wait) = wait else { return };
        // A date, or any other value, was written by someone else: it stays.
        let is_longer = match headers.get(header::RETRY_AFTER) {
            None => true,
            Some(there) => number(there).is_some_and(|there| there < wait),
        };
        if is_longer || !verdict.is_allowed() {
            headers.insert(header::RETRY_AFTER, number_value(wait));
        }
    }
}

/// Writes `RateLimit` and `RateLimit-Policy`.
fn write_r11(verdict: &Verdict<'_>, told: &Told<'_>, headers: &mut HeaderMap) {
    let (remaining, seconds) = (told.decision().remaining(), verdict.told_seconds(told));
    let mut out = Line::new();
    push_left(&mut out, told.label(), remaining, seconds);
    if let Some(partition) = told.partition {
        partition.push(&mut out);
    }
    add_lines(headers, policies(verdict, told), value(out.as_bytes()));
}

/// Adds our lines to fields that are lists. Lines of others stay if they are lists, too: a line of
/// revision 07, which is a dictionary, would make the whole field unreadable.
#[inline]
fn add_lines(headers: &mut HeaderMap, policies: HeaderValue, left: HeaderValue) {
    // `append` tells whether the field already had a line.
    if headers.append(RATE_LIMIT_POLICY, policies) {
        keep_lists(headers, &RATE_LIMIT_POLICY);
    }
    if headers.append(RATE_LIMIT, left) {
        keep_lists(headers, &RATE_LIMIT);
    }
}

/// Removes the lines that are not lists.
#[cold]
fn keep_lists(headers: &mut HeaderMap, name: &HeaderName) {
    if headers.get_all(name).iter().all(|line| is_list(line.as_bytes())) {
        return;
    }
    let lines: Vec<_> = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    for line in lines.into_iter().filter(|line| is_list(line.as_bytes())) {
        headers.append(name, line);
    }
}

/// Appends an item of `RateLimit`.
#[inline]
fn push_left(out: &mut Line, label: &Label, remaining: u64, seconds: Option<u64>) {
    out.put(label.left());
    push_number(out, remaining.min(FIELD_MAX));
    if let Some(seconds) = seconds {
        push_parameter(out, b";t=", seconds);
    }
}

/// Returns the list of policies, the binding one first.
fn policies(verdict: &Verdict<'_>, told: &Told<'_>) -> HeaderValue {
    let is_alone = verdict.parts().len() == 1 && told.partition.is_none();
    if is_alone && told.decision().limit() == told.label().quota().capacity() {
        return told.label().item().clone();
    }
    let mut out = Vec::with_capacity(256);
    for (index, one) in verdict.policies().enumerate() {
        let before = out.len();
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        one.label().push_item(&mut out, one.decision().limit());
        if let Some(partition) = one.partition {
            partition.push(&mut out);
        }
        if out.len() > LIST_MAX {
            out.truncate(before);
            break;
        }
    }
    value(&out)
}

/// Writes limit, remaining and reset, unless the headers that are already there are tighter.
fn write_three(
    told: &Told<'_>,
    reset: Option<u64>,
    names: &[HeaderName; 3],
    headers: &mut HeaderMap,
) {
    let decision = told.decision();
    let there = headers.get(&names[1]).and_then(number);
    if there.is_some_and(|there| there <= decision.remaining()) {
        return;
    }
    let [limit_name, remaining_name, reset_name] = names;
    headers.insert(limit_name, number_value(decision.limit()));
    headers.insert(remaining_name, number_value(decision.remaining()));
    match reset {
        Some(reset) => headers.insert(reset_name, number_value(reset)),
        None => headers.remove(reset_name),
    };
}

/// Reads a number that we did not write.
fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.trim().parse().ok()
}

fn number_value(number: u64) -> HeaderValue {
    let mut out = Line::new();
    push_number(&mut out, number.min(FIELD_MAX));
    value(out.as_bytes())
}

/// Returns the value of a header. Everything written here is visible ASCII and therefore valid; if
/// it were not, the value would be empty.
pub(super) fn value(bytes: &[u8]) -> HeaderValue {
    let value = HeaderValue::from_bytes(bytes);
    debug_assert!(value.is_ok(), "our fields are visible ASCII");
    value.unwrap_or(const { HeaderValue::from_static("") })
}

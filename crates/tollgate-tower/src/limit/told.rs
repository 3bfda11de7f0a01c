//! The part of a decision that clients see.

use super::{
    gate::Gate,
    pass::{OverLimit, Part, Pass, Stance, Way},
};
use crate::{
    Info, RefusedBy,
    answer::{Refusal, Told, Verdict, raw},
};
use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Request, Response};
use smallvec::SmallVec;
use std::hash::{BuildHasher, RandomState};
use tollgate::Tick;

const DECISION: HeaderName = HeaderName::from_static("x-tollgate-decision");
const POLICIES: HeaderName = HeaderName::from_static("x-tollgate-policies");

impl Gate {
    /// Runs `with` on the verdict.
    fn told<R>(&self, pass: &Pass, now: Tick, with: impl FnOnce(&Verdict<'_>) -> R) -> R {
        let of = |part: &Part| {
            let told = Told::new(&self.way(part)?.label, part.decision?);
            Some(if part.is_enforced() { told } else { told.shadow() })
        };
        // One policy is usual, and need not be moved into a list.
        let (one, several): (Option<Told<'_>>, SmallVec<[Told<'_>; 4]>);
        let told = if let [part] = &*pass.parts {
            one = of(part);
            one.as_slice()
        } else {
            several = pass.parts.iter().filter_map(of).collect();
            &several[..]
        };
        with(&Verdict::new(self.backend.clock(), now, told))
    }

    /// Returns the response to a request that is refused. A request that passes gets marks for the
    /// policies that it exceeds.
    pub(super) fn answer<B>(
        &self,
        pass: &Pass,
        request: &mut Request<B>,
    ) -> Option<Response<Bytes>> {
        self.tell(pass);
        if !pass.is_allowed {
            return Some(self.refusal(pass, &Info::of(request)));
        }
        let extensions = request.extensions_mut();
        self.misuse.count(extensions, pass.parts.iter().map(|part| part.limit));
        self.mark(pass.over().filter(|part| part.stance == Stance::Tagged), extensions);
        None
    }

    fn refusal(&self, pass: &Pass, info: &Info<'_>) -> Response<Bytes> {
        self.told(pass, pass.now, |verdict| {
            let verdict = match verdict.is_allowed() {
                // If no limit refuses, the store could not answer.
                true => verdict.refused(Refusal::ReducedCapacity),
                false => verdict.jittered(self.jitter, || RandomState::new().hash_one(0)),
            };
            let what = match () {
                () if pass.is_full => "full",
                () if pass.is_unknown() => "store-failed",
                () => "refused",
            };
            self.refuse(&verdict, info, |headers| self.explain(what, Some(pass), headers))
        })
    }

    /// Returns the response to a request that a policy counts, but that has no key.
    pub(super) fn no_key(&self, limit: usize, info: &Info<'_>) -> Response<Bytes> {
        self.instruments.no_key(self.limits.get(limit).map_or(usize::MAX, |limit| limit.first));
        let clock = self.backend.clock();
        let verdict = Verdict::new(clock, clock.now(), &[]).refused(Refusal::Unidentified);
        self.refuse(&verdict, info, |headers| {
            self.explain("no-key", None, headers);
            let name = self.limits.get(limit).and_then(|limit| limit.ways.first());
            let name = name.and_then(|way| HeaderValue::from_bytes(way.label.quoted()).ok());
            if let Some(name) = name.filter(|_| self.explains) {
                headers.append(POLICIES, name);
            }
        })
    }

    fn refuse(
        &self,
        verdict: &Verdict<'_>,
        info: &Info<'_>,
        explain: impl FnOnce(&mut HeaderMap),
    ) -> Response<Bytes> {
        let mut response = self.refusals.write(verdict, info, explain);
        let why = verdict.refusal().unwrap_or(Refusal::QuotaExceeded).why();
        let refused = RefusedBy::new("rate limit", why, verdict.retry_after());
        response.extensions_mut().insert(refused);
        response
    }

    /// Adds the headers for a request that has passed to its response.
    pub(super) fn decorate<B>(&self, pass: &Pass, response: &mut Response<B>) {
        if self.refusals.headers.tells_success() {
            // The service may have taken a while.
            let now = self.backend.clock().now().max(pass.now);
            self.told(pass, now, |verdict| {
                self.refusals.headers.write(verdict, response.headers_mut())
            });
        }
        let over = self.mark(pass.over(), response.extensions_mut());
        let what = match (pass.is_unknown(), over) {
            (true, _) => "store-failed",
            (_, true) => "over",
            _ => "allowed",
        };
        self.explain(what, Some(pass), response.headers_mut());
    }

    /// Adds the exceeded policies to those that other layers have marked; tells whether there are
    /// any.
    fn mark<'p>(
        &self,
        parts: impl Iterator<Item = &'p Part> + Clone,
        extensions: &mut Extensions,
    ) -> bool {
        if parts.clone().next().is_none() {
            return false;
        }
        let labels = parts.filter_map(|part| Some(self.way(part)?.label.clone()));
        let over = OverLimit::of(labels, extensions.get());
        let is_over = over.is_some();
        if let Some(over) = over {
            extensions.insert(over);
        }
        is_over
    }

    /// Adds the headers for troubleshooting, if they are enabled.
    fn explain(&self, what: &'static str, pass: Option<&Pass>, headers: &mut HeaderMap) {
        if !self.explains {
            return;
        }
        headers.append(DECISION, HeaderValue::from_static(what));
        let mut out = Vec::new();
        for part in pass.iter().flat_map(|pass| &pass.parts) {
            let Some(way) = self.way(part) else { continue };
            let before = out.len();
            if !out.is_empty() {
                out.extend_from_slice(b", ");
            }
            self.push_part(&mut out, part, way);
            if out.len() > raw::LIST_MAX {
                out.truncate(before);
                break;
            }
        }
        if let Some(value) = HeaderValue::from_bytes(&out).ok().filter(|_| !out.is_empty()) {
            headers.append(POLICIES, value);
        }
    }

    /// Appends the state of one policy: `"name";mode=shadow;cost=1;limit=5;remaining=0;wait=12000`.
    fn push_part(&self, out: &mut Vec<u8>, part: &Part, way: &Way) {
        out.extend_from_slice(way.label.quoted());
        let mode = self.limits.get(part.limit).map_or("enforce", |limit| limit.policy.mode.name());
        out.extend_from_slice(b";mode=");
        out.extend_from_slice(mode.as_bytes());
        raw::push_parameter(out, b";cost=", part.cost);
        let Some(decision) = part.decision else {
            return out.extend_from_slice(b";unknown");
        };
        raw::push_parameter(out, b";limit=", decision.limit());
        raw::push_parameter(out, b";remaining=", decision.remaining());
        match decision.retry_after(decision.at()) {
            _ if decision.is_allowed() => {}
            Some(wait) => {
                raw::push_parameter(out, b";wait=", raw::millis(wait).unwrap_or(u64::MAX));
            }
            None => out.extend_from_slice(b";never"),
        }
    }
}

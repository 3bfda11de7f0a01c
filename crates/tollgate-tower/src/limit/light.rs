//! The fast path: one policy, enforced, in memory, with a short key.
//!
//! It keeps little until the response is there, and allocates nothing. Any unusual request (a
//! refusal, a request that never ran) becomes a [`Pass`] and takes the general path.

use super::{
    backend::Backend,
    gate::{Decided, Gate, Nothing},
    pass::{Part, Pass},
    ticket::Taken,
};
use crate::{Info, answer::Told, key::ShortKey};
use http::{Extensions, HeaderMap};
use tollgate::{Decision, observe::Verb};

/// A request that passes: the state that its response needs.
pub(super) struct Light {
    way: usize,
    key: ShortKey,
    decision: Decision,
}

/// The result of the fast path.
pub(super) enum Asked {
    /// It passes.
    Yes,
    /// It was decided, but the rest is unusual.
    Known(Pass),
    /// It was not decided, but its policy, key and cost are known.
    Found(Pass),
    /// It takes the general path.
    No,
}

impl Light {
    const VERB: Verb = Verb::TryAcquire;

    /// Converts the request for the general path.
    pub(super) fn into_pass(self) -> Pass {
        let Self { way, key, decision } = self;
        let mut pass = Self::unasked(way, key, decision.cost());
        for part in &mut pass.parts {
            part.decision = Some(decision);
        }
        // Memory decides at the current time.
        pass.now = decision.at();
        pass.is_allowed = decision.is_allowed();
        pass
    }

    fn unasked(way: usize, key: ShortKey, cost: u64) -> Pass {
        Pass::new(vec![Part { way, cost, key: key.into(), ..Part::new(0) }], Self::VERB)
    }
}

impl Gate {
    /// Decides the usual case, and stores in `taken` what a request that passes was charged.
    pub(super) fn ask_light(&self, info: &Info<'_>, taken: &mut Taken) -> Result<Asked, Nothing> {
        let (Backend::Memory(store), [limit], true) = (&self.backend, &*self.limits, self.is_light)
        else {
            return Ok(Asked::No);
        };
        let (way, key, cost) = match limit.policy.key.find_short(info) {
            Some(key) => {
                let Some(cost) = limit.cost(info) else { return Err(Nothing::Free) };
                (limit.way(info), key, cost)
            }
            None => {
                let mut part = Part::new(0);
                if !limit.prepare(info, &mut part)? {
                    return Err(Nothing::Free);
                }
                match part.key.short() {
                    Some(key) => (part.way, key, part.cost),
                    None => return Ok(Asked::Found(Pass::new(vec![part], Light::VERB))),
                }
            }
        };
        let Some(of) = limit.ways.get(way) else { return Ok(Asked::No) };
        Ok(match store.acquire_one_now(&of.policy, key.as_bytes(), cost) {
            Ok(decision) if decision.is_allowed() => {
                *taken = Taken::Light(Light { way, key, decision });
                Asked::Yes
            }
            Ok(decision) => Asked::Known(Light { way, key, decision }.into_pass()),
            Err(error) => {
                let mut pass = Light::unasked(way, key, cost);
                self.conclude(&mut pass, Err(error));
                Asked::Known(pass)
            }
        })
    }

    /// Reports a request that passes.
    #[inline]
    pub(super) fn tell_light(&self, light: &Light, extensions: &mut Extensions) {
        if let Some(limit) = self.limits.first().filter(|_| self.is_observed) {
            let (key, decision) = (light.key.as_bytes(), &light.decision);
            let decided = Decided { key, verb: Light::VERB, decision, is_enforced: true };
            self.report(limit, light.way, &decided);
        }
        self.misuse.count(extensions, std::iter::once(0));
    }

    /// Adds the headers of a request that has passed to its response. If the service has answered
    /// `at_once`, the clock need not be read.
    pub(super) fn decorate_light(&self, light: &Light, at_once: bool, headers: &mut HeaderMap) {
        if !self.refusals.headers.tells_success() {
            return;
        }
        let Some(way) = self.limits.first().and_then(|limit| limit.ways.get(light.way)) else {
            return;
        };
        let told = Told::new(&way.label, light.decision);
        self.refusals.headers.write_passed(&told, (self.backend.clock(), at_once), headers);
    }
}

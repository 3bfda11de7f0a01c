//! The usual request by the shortest way: one policy, enforced, in memory, with a short key.
//!
//! Little is kept until its response is there, and nothing is allocated for it. Whatever is not usual
//! (a refusal, a request that never ran) becomes a [`Pass`] and goes the way of all others.

use super::{
    backend::Backend,
    gate::{Gate, Nothing},
    pass::{Part, Pass, Way},
    ticket::Taken,
};
use crate::{Info, key::ShortKey};
use http::{Extensions, Response};
use tollgate::{Decision, store::Demand, watch::Verb};

/// A request that passes: all that is needed of it later.
pub(super) struct Light {
    way: usize,
    key: ShortKey,
    decision: Decision,
}

/// What came of asking on the short way.
pub(super) enum Asked {
    /// It passes.
    Yes,
    /// It has been asked, and the rest is not usual.
    Known(Pass),
    /// It is for the long way.
    No,
}

impl Light {
    const VERB: Verb = Verb::TryAcquire;

    /// Returns the request as others are kept.
    pub(super) fn into_pass(self) -> Pass {
        let Self { way, key, decision } = self;
        let part = Part { way, cost: decision.cost(), key: key.into(), ..Part::new(0) };
        Self::pass(part, decision)
    }

    fn pass(mut part: Part, decision: Decision) -> Pass {
        part.decision = Some(decision);
        let mut pass = Pass::new(vec![part], Self::VERB);
        // What memory decided, it decided now.
        pass.now = decision.at();
        pass.is_allowed = decision.is_allowed();
        pass
    }
}

impl Gate {
    /// Asks, if this is the usual case, and notes what a request that passes has taken.
    pub(super) fn ask_light(&self, info: &Info<'_>, taken: &mut Taken) -> Result<Asked, Nothing> {
        let (Backend::Memory(store), [limit], true) = (&self.backend, &*self.limits, self.is_light)
        else {
            return Ok(Asked::No);
        };
        let mut part = Part::new(0);
        if !limit.prepare(info, &mut part)? {
            return Err(Nothing::Free);
        }
        let Some(way) = limit.ways.get(part.way) else { return Ok(Asked::No) };
        let demand = Demand::new(&way.policy, part.key.as_bytes(), part.cost);
        match store.acquire_now(&mut [demand]) {
            Ok(decision) => match part.key.short() {
                Some(key) if decision.is_allowed() => {
                    *taken = Taken::Light(Light { way: part.way, key, decision });
                    Ok(Asked::Yes)
                }
                _ => Ok(Asked::Known(Light::pass(part, decision))),
            },
            Err(error) => {
                let mut pass = Pass::new(vec![part], Light::VERB);
                self.conclude(&mut pass, Err(error));
                Ok(Asked::Known(pass))
            }
        }
    }

    /// Tells of a request that passes.
    pub(super) fn tell_light(&self, light: &Light, extensions: &mut Extensions) {
        if !self.watch.is_idle() {
            self.watch.decided(light.way, Light::VERB, &light.decision, true);
        }
        self.misuse.count(extensions, std::iter::once(0));
    }

    /// Adds to the response what those are told whose request has passed.
    pub(super) fn decorate_light<B>(&self, light: &Light, response: &mut Response<B>) {
        let way: Option<&Way> = self.limits.first().and_then(|limit| limit.ways.get(light.way));
        if let Some(way) = way.filter(|_| self.headers.tells_success()) {
            let (clock, headers) = (self.backend.clock(), response.headers_mut());
            self.headers.write_passed(&way.label, &light.decision, clock, headers);
        }
    }
}

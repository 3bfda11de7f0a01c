//! The charge of a request, from the decision until its response is there.

use super::{
    body::Meter,
    correct::{Actual, Amended, End},
    gate::{Gate, Nothing},
    light::{Asked, Light},
    pass::Pass,
    turn::Turn,
};
use crate::{
    Info, NotRun,
    queued::{self, Mark},
};
use bytes::Bytes;
use http::{Request, Response};
use std::sync::Arc;

/// The charge of a request that passes; given back if the request never runs.
pub(super) struct Ticket {
    pub(super) gate: Arc<Gate>,
    pub(super) taken: Taken,
    /// The mark by which layers further in report that the request left a queue.
    mark: Option<Mark>,
    pub(super) has_run: bool,
}

/// The form of a charge.
pub(super) enum Taken {
    Nothing,
    Light(Light),
    Pass(Pass),
}

/// The alternatives to running a request.
pub(super) enum Instead {
    Refused(Response<Bytes>),
    /// The decision is not there yet, or the request waits.
    Waits(Turn),
}

impl Taken {
    const fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Nothing)
    }

    fn into_pass(self) -> Option<Pass> {
        match self {
            Self::Nothing => None,
            Self::Light(light) => Some(light.into_pass()),
            Self::Pass(pass) => Some(pass),
        }
    }
}

impl Ticket {
    /// Returns a ticket without a charge.
    pub(super) const fn new(gate: Arc<Gate>) -> Self {
        Self { gate, taken: Taken::Nothing, mark: None, has_run: false }
    }

    /// Decides about a request; returns the alternative to running it, if any.
    #[inline]
    pub(super) fn ask<B>(&mut self, request: &mut Request<B>) -> Option<Instead> {
        let info = Info::of(request);
        self.gate.look(&info);
        match self.gate.ask_light(&info, &mut self.taken) {
            Ok(Asked::Yes) => self.answer(request).map(Instead::Refused),
            Ok(asked) => self.ask_long(asked, request),
            Err(nothing) => self.without(&nothing, &info),
        }
    }

    /// Decides on the general path.
    fn ask_long<B>(&mut self, asked: Asked, request: &mut Request<B>) -> Option<Instead> {
        let (gate, info) = (&self.gate, Info::of(request));
        let (mut pass, is_asked) = match asked {
            Asked::Known(pass) => (pass, true),
            Asked::Found(pass) => (pass, false),
            Asked::Yes | Asked::No => match gate.prepare(&info) {
                Ok(pass) => (pass, false),
                Err(nothing) => return self.without(&nothing, &info),
            },
        };
        if !is_asked && !gate.ask_now(&mut pass) {
            return Some(Instead::Waits(Turn::asks(gate, pass)));
        }
        if let Some(place) = gate.join(&pass) {
            return Some(Instead::Waits(Turn::sleeps(gate, pass, place)));
        }
        self.taken = Taken::Pass(pass);
        self.answer(request).map(Instead::Refused)
    }

    /// A request that no policy decides about.
    fn without(&self, nothing: &Nothing, info: &Info<'_>) -> Option<Instead> {
        match nothing {
            Nothing::Free => None,
            Nothing::NoKey(limit) => Some(Instead::Refused(self.gate.no_key(*limit, info))),
        }
    }

    /// Returns the response to a request that is refused. A request that passes is charged already,
    /// and the charge is given back even if observers panic here, or the service does.
    pub(super) fn answer<B>(&mut self, request: &mut Request<B>) -> Option<Response<Bytes>> {
        match &mut self.taken {
            Taken::Nothing => return None,
            Taken::Light(light) => self.gate.tell_light(light, request.extensions_mut()),
            Taken::Pass(pass) => {
                if let Some(response) = self.gate.answer(pass, request) {
                    return Some(response);
                }
                pass.usage = self.gate.usage(pass, request.extensions_mut());
            }
        }
        self.mark = queued::charge(request.extensions_mut());
        None
    }

    /// Adds the headers to the response of a fast-path request; tells whether it was one.
    #[inline]
    pub(super) fn finish_light<B>(&mut self, at_once: bool, response: &mut Response<B>) -> bool {
        match &self.taken {
            Taken::Nothing => return true,
            Taken::Light(light) if response.extensions().get::<NotRun>().is_none() => {
                self.gate.decorate_light(light, at_once, response.headers_mut());
            }
            _ => return false,
        }
        self.taken = Taken::Nothing;
        true
    }

    /// Adds the headers to a response, and settles its cost, now or when its body has ended.
    pub(super) fn finish<B>(
        &mut self,
        mut response: Response<B>,
    ) -> (Response<B>, Option<Box<Meter>>, Amended) {
        let Some(pass) = self.taken.take().into_pass() else { return (response, None, None) };
        // It stays in `self`: a closure of the user may panic here.
        self.taken = Taken::Pass(pass);
        let Taken::Pass(pass) = &mut self.taken else { return (response, None, None) };
        let gate = &self.gate;
        let has_run = response.extensions().get::<NotRun>().is_none();
        if has_run && !pass.is_reserved() {
            gate.decorate(pass, &mut response);
            self.taken = Taken::Nothing;
            return (response, None, None);
        }
        let (head, body) = response.into_parts();
        let actual = match has_run {
            true => gate.actual(pass, &head),
            false => Actual::nothing(pass.parts.len()),
        };
        let mut response = Response::from_parts(head, body);
        let taken: Vec<_> = pass.parts.iter().map(|part| part.decision).collect();
        gate.correct(pass, &actual);
        gate.decorate(pass, &mut response);
        // The decisions for clients differ from those that were charged.
        for (part, decision) in pass.parts.iter_mut().zip(taken) {
            part.decision = decision;
        }
        let Some(pass) = self.taken.take().into_pass() else { return (response, None, None) };
        let (mut meter, mut amended) = (None, None);
        if !has_run {
            amended = gate.give_back(pass);
        } else if actual.is_by_body() {
            let (gate, pass, end) = (Arc::clone(gate), Some(pass), End::default());
            meter = Some(Box::new(Meter { gate, pass, actual, end }));
        } else {
            amended = gate.settle(pass, &actual, End::default());
        }
        (response, meter, amended)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let has_run = self.has_run && !self.mark.as_ref().is_some_and(Mark::never_ran);
        match self.taken.take() {
            Taken::Nothing => {}
            Taken::Light(_) if has_run => {}
            Taken::Pass(pass) if has_run => self.gate.keep(pass),
            taken => {
                let _beside = taken.into_pass().map(|pass| self.gate.give_back(pass));
            }
        }
    }
}

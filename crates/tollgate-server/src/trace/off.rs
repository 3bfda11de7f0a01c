//! Stubs of tracing without the feature `otel`.

use super::{Done, TraceError, TraceSettings};
use crate::engine::Engine;

#[derive(Debug, Default)]
pub(super) struct Slot;

/// The caller, of which nothing is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller;

impl Caller {
    /// A request without a trace.
    pub(crate) const NOBODY: Self = Self;
}

/// A sampled request; none exists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begun {}

impl Slot {
    pub(super) fn start(&self, _: &TraceSettings) -> Result<(), TraceError> {
        let text = "this program was built without traces; build it with the feature `otel`";
        Err(TraceError(text.into()))
    }

    #[inline]
    pub(super) fn caller<'a>(&self, _: impl FnOnce() -> Option<&'a [u8]>) -> Caller {
        Caller
    }

    #[inline]
    pub(super) fn begin(&self, _: Caller) -> Option<Begun> {
        None
    }

    pub(super) fn end(&self, begun: Begun, _: &Engine, _: Done) {
        match begun {}
    }

    pub(super) fn finish(&self) {}
}

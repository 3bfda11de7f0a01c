//! Who leaves while it waits in a queue never ran, also if layers further out have let it pass.
//!
//! A layer that charges puts a mark into the extensions of the request, once there is a layer in this
//! process in which requests can wait: marks take time. Whoever leaves a queue with a mark says so in
//! it, and the layer that made the mark gives back. The future of that layer holds the one that waits,
//! and drops it before it looks; a service in between that runs its requests in tasks of its own
//! breaks this, and what was charged stays charged.
//!
//! A handler may copy the extensions to requests of its own. So who has passed one queue has run, as
//! far as its mark knows.

use http::Extensions;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// What a layer and those further in know of a request that was charged.
#[derive(Clone, Debug)]
pub(crate) struct Mark(Arc<State>);

#[derive(Debug)]
struct State {
    /// It has left a queue.
    has_left: AtomicBool,
    /// It has passed a queue.
    has_run: AtomicBool,
    /// That of the next layer further out.
    outer: Option<Mark>,
}

/// There is a layer in which requests can wait.
static HAS_QUEUES: AtomicBool = AtomicBool::new(false);

/// Notes that a layer is built in which requests can wait.
pub(crate) fn has_queue() {
    // ORDERING: Relaxed. A request that comes through the new layer comes by some way that orders it
    // behind this; others need no mark.
    HAS_QUEUES.store(true, Relaxed);
}

/// Marks a request that is charged, if there are queues.
#[inline]
pub(crate) fn charge(extensions: &mut Extensions) -> Option<Mark> {
    // ORDERING: Relaxed, as above.
    if HAS_QUEUES.load(Relaxed) { Some(marked(extensions)) } else { None }
}

fn marked(extensions: &mut Extensions) -> Mark {
    let outer = extensions.get::<Mark>().cloned();
    let state = State { has_left: AtomicBool::new(false), has_run: AtomicBool::new(false), outer };
    let mark = Mark(Arc::new(state));
    extensions.insert(mark.clone());
    mark
}

/// A request with these extensions has passed a queue.
pub(crate) fn pass(extensions: &Extensions) {
    each(extensions, |state| &state.has_run);
}

/// A request with these extensions leaves a queue.
pub(crate) fn leave(extensions: &Extensions) {
    each(extensions, |state| &state.has_left);
}

fn each(extensions: &Extensions, flag: impl Fn(&State) -> &AtomicBool) {
    let mut next = extensions.get::<Mark>();
    while let Some(Mark(state)) = next {
        // ORDERING: Relaxed. Whoever reads it has dropped, or polled, what wrote it.
        flag(state).store(true, Relaxed);
        next = state.outer.as_ref();
    }
}

impl Mark {
    /// Tells whether the request has left a queue, and passed none.
    pub(crate) fn never_ran(&self) -> bool {
        // ORDERING: Relaxed, as above.
        self.0.has_left.load(Relaxed) && !self.0.has_run.load(Relaxed)
    }
}

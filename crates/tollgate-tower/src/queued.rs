//! A request that is dropped while it waits in a queue never ran, even if outer layers have
//! admitted it.
//!
//! Once this process has a layer in which requests can wait, a layer that charges puts a mark into
//! the extensions of the request; without such a layer it does not, because marks take time. A
//! request that leaves a queue sets a flag in its mark, and the layer that made the mark gives the
//! charge back. The future of that layer holds the waiting request, and drops it before it reads
//! the mark. A service in between that runs its requests in tasks of its own breaks this, and the
//! charge stays.
//!
//! A handler may copy the extensions to requests of its own. So a request that has passed one queue
//! has run, as far as its mark shows.

use http::Extensions;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// The state of a charged request that its layer and the layers further in share.
#[derive(Clone, Debug)]
pub(crate) struct Mark(Arc<State>);

#[derive(Debug)]
struct State {
    /// It has left a queue.
    has_left: AtomicBool,
    /// It has passed a queue.
    has_run: AtomicBool,
    /// The mark of the next layer further out.
    outer: Option<Mark>,
}

/// Whether there is a layer in which requests can wait.
static HAS_QUEUES: AtomicBool = AtomicBool::new(false);

/// Records that a layer is built in which requests can wait.
pub(crate) fn has_queue() {
    // ORDERING: Relaxed. A request of the new layer gets there by a path that is ordered after
    // this; other requests need no mark.
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

/// Records that a request with these extensions has passed a queue.
pub(crate) fn pass(extensions: &Extensions) {
    each(extensions, |state| &state.has_run);
}

/// Records that a request with these extensions leaves a queue.
pub(crate) fn leave(extensions: &Extensions) {
    each(extensions, |state| &state.has_left);
}

fn each(extensions: &Extensions, flag: impl Fn(&State) -> &AtomicBool) {
    let mut next = extensions.get::<Mark>();
    while let Some(Mark(state)) = next {
        // ORDERING: Relaxed. The reader has dropped, or polled, the writer before.
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

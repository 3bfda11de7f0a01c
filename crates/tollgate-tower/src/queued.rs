//! Who leaves while it waits in a queue never ran, also if layers further out have let it pass.
//!
//! A layer that charges marks the request, once there is a layer in this process in which requests can
//! wait: a mark takes time. When a request with a mark leaves a queue further in, its
//! future is dropped by the future of the layer that has charged, on the same thread: so the one
//! can tell the other. A service in between that runs its requests in tasks of its own breaks this,
//! and what was charged stays charged. So it does for a request that a handler makes of its own, which
//! has no mark: the handler did run.

use http::Extensions;
use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// In the extensions of a request: it was charged further out.
#[derive(Clone, Copy, Debug)]
struct Charged;

thread_local! {
    static LEFT: Cell<bool> = const { Cell::new(false) };
}

/// There is a layer in which requests can wait.
static HAS_QUEUES: AtomicBool = AtomicBool::new(false);

/// Notes that a layer is built in which requests can wait.
pub(crate) fn has_queue() {
    // ORDERING: Relaxed. A request that comes through the new layer comes by some way that orders it
    // behind this; others need no mark.
    HAS_QUEUES.store(true, Relaxed);
}

/// Marks a request that is charged.
pub(crate) fn charge(extensions: &mut Extensions) {
    // ORDERING: Relaxed, as above.
    if HAS_QUEUES.load(Relaxed) {
        extensions.insert(Charged);
    }
}

/// A request with these extensions leaves a queue.
pub(crate) fn leave(extensions: &Extensions) {
    if extensions.get::<Charged>().is_some() {
        LEFT.with(|left| left.set(true));
    }
}

/// Tells whether a request that was charged has left a queue while this was dropped.
pub(crate) fn was_left(drop: impl FnOnce()) -> bool {
    LEFT.with(|left| left.set(false));
    drop();
    // It stays for those further out, who come next.
    LEFT.with(Cell::get)
}

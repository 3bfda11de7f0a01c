//! Who leaves while it waits in a queue never ran, also if layers further out have let it pass.
//!
//! A layer that charges marks the request. When a request with a mark leaves a queue further in, its
//! future is dropped by the future of the layer that has charged, on the same thread: so the one
//! can tell the other. A service in between that runs its requests in tasks of its own breaks this,
//! and what was charged stays charged. So it does for a request that a handler makes of its own, which
//! has no mark: the handler did run.

use http::Extensions;
use std::cell::Cell;

/// In the extensions of a request: it was charged further out.
#[derive(Clone, Copy, Debug)]
struct Charged;

thread_local! {
    static LEFT: Cell<bool> = const { Cell::new(false) };
}

/// Marks a request that is charged; tells whether it was before.
pub(crate) fn charge(extensions: &mut Extensions) -> bool {
    extensions.insert(Charged).is_some()
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

//! Likely mistakes that show only when requests come. Each is logged once, and no request is
//! refused for it.
//!
//! | code | | found by |
//! |---|---|---|
//! | `TG-K51` to `TG-K54` | addresses are not what they seem | [`Hints`] |
//! | `TG-L51` | a layer is built for each request, so it limits nothing | [`Built`] |
//! | `TG-L52` | one request is counted twice | [`Mark`](mark) |
//!
//! Most of these checks look at the first requests of a layer, and then at one of about a thousand:
//! a mistake in the setup affects all requests.

mod built;
mod hints;
mod mark;

pub(crate) use built::Built;
pub(crate) use hints::Hints;

use crate::{Info, Key};
use http::Extensions;
use mark::Marker;
use std::{
    cell::Cell,
    fmt,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// Checks that a rate limit layer is used as intended.
#[derive(Debug)]
pub(crate) struct Misuse {
    built: Built,
    hints: Hints,
    marker: Marker,
}

impl Misuse {
    /// Starts for a layer with policies of these names, at most 64. Its state `is_elsewhere` if
    /// other layers with the same names may share it, as in a store.
    #[track_caller]
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>, is_elsewhere: bool) -> Self {
        Self {
            built: Built::here(),
            hints: Hints::default(),
            marker: Marker::new(names, is_elsewhere),
        }
    }

    /// Looks at an arriving request, before it is decided.
    #[inline]
    pub(crate) fn look<'a>(&self, keys: impl Iterator<Item = &'a Key>, info: &Info<'_>) {
        self.built.count();
        self.hints.look(keys, info);
    }

    /// Looks at a request that passes the policies of these numbers, and marks some.
    #[inline]
    pub(crate) fn count(&self, extensions: &mut Extensions, policies: impl Iterator<Item = usize>) {
        self.marker.count(extensions, policies);
    }
}

/// A warning that is logged once.
#[derive(Debug)]
struct Warning {
    code: &'static str,
    docs: &'static str,
    /// The full text, with code and page.
    text: String,
}

impl Warning {
    fn new(code: &'static str, docs: &'static str, text: &impl fmt::Display) -> Self {
        Self { code, docs, text: format!("{text} ({code}, see {docs})") }
    }

    fn tell(&self) {
        let Self { code, docs, text } = self;
        tracing::warn!(target: "tollgate", code, docs, "{text}");
    }
}

/// Selects the first requests of a layer, and some later ones.
///
/// After the first ones it costs a load of a value that no thread writes any more, and a
/// thread-local count.
#[derive(Debug)]
struct Sample {
    first: u32,
    seen: AtomicU32,
}

/// After the first requests, one of this many is selected. It is a prime: several layers of one
/// request count on one thread in turns, and if the number of layers divided it, some layers would
/// never select a request.
const ONE_OF: u32 = 1021;

impl Sample {
    const fn first(first: u32) -> Self {
        Self { first, seen: AtomicU32::new(0) }
    }

    /// Tells whether to look at the current request.
    #[inline]
    fn is_due(&self) -> bool {
        // ORDERING: Relaxed. A count that publishes nothing; if several threads count the last of
        // the first ones at once, some more are looked at.
        // OVERFLOW: it is raised only while it is below `first`, by each thread once.
        if self.seen.load(Relaxed) < self.first {
            self.seen.fetch_add(1, Relaxed);
            return true;
        }
        thread_local! {
            static LEFT: Cell<u32> = const { Cell::new(ONE_OF) };
        }
        LEFT.with(|left| match left.get() {
            0 | 1 => {
                left.set(ONE_OF);
                true
            }
            some => {
                left.set(some - 1);
                false
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_are_looked_at_and_then_one_of_a_thousand_in_every_layer() {
        // Two layers, whose requests alternate.
        let (one, two) = (Sample::first(64), Sample::first(256));
        let mut seen = (0, 0);
        for request in 0..256 {
            let due = (one.is_due(), two.is_due());
            assert!(due.1, "request {request}");
            assert!(request >= 64 || due.0, "request {request}");
        }
        for _ in 0..10 * ONE_OF {
            seen.0 += u32::from(one.is_due());
            seen.1 += u32::from(two.is_due());
        }
        assert_eq!(seen, (10, 10));
    }
}

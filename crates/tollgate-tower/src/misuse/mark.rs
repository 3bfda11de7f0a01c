//! A request that is counted twice.
//!
//! Some requests are marked with the layers that have counted them. A layer that finds its own
//! mark, or one of a policy that it shares in a store, counts the request for the second time. It
//! logs that once, and counts the request all the same: a handler that makes several requests out
//! of one may have copied the mark, and those must be counted.

use super::{Sample, Warning};
use http::Extensions;
use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

/// How many of the first requests are marked.
const FIRST: u32 = 256;
/// How many requests each thread checks after one was marked.
const LOOKS: u32 = 64;
/// How many layers one mark holds.
const LAYERS_MAX: usize = 8;

/// Marks the requests of one layer.
#[derive(Debug)]
pub(super) struct Marker {
    layer: Layer,
    sample: Sample,
    is_told: AtomicBool,
}

/// A layer, as its marks describe it.
#[derive(Clone, Debug)]
struct Layer {
    /// Unique in this process.
    number: u64,
    names: Arc<[Box<str>]>,
    /// Its counts are in a store, where layers with the same names share them.
    is_elsewhere: bool,
}

/// The layers that have counted a request, each with its policies: a bit for each.
#[derive(Clone, Debug, Default)]
struct Mark {
    layers: Vec<(Layer, u64)>,
}

/// Requests that were marked so far.
static MARKED: AtomicU32 = AtomicU32::new(0);

/// Tells whether a request was marked so recently that it may be the next one on this thread.
/// Looking for the mark in every request would take longer than most of the work of a layer.
#[inline]
fn are_about() -> bool {
    thread_local! {
        /// The number of marked requests at this thread's last look, and how many more requests it
        /// checks.
        static SEEN: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }
    // ORDERING: Relaxed, as where it is written.
    let marked = MARKED.load(Relaxed);
    SEEN.with(|seen| match seen.get() {
        (before, 0) if before == marked => false,
        (before, left) => {
            seen.set((marked, if before == marked { left - 1 } else { LOOKS }));
            true
        }
    })
}

impl Marker {
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>, is_elsewhere: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed. Each layer takes a number; which one does not matter.
        let number = NEXT.fetch_add(1, Relaxed);
        let layer = Layer { number, names: names.map(Into::into).collect(), is_elsewhere };
        Self { layer, sample: Sample::first(FIRST), is_told: AtomicBool::new(false) }
    }

    /// Counts a request by the policies of these numbers.
    #[inline]
    pub(super) fn count(&self, extensions: &mut Extensions, policies: impl Iterator<Item = usize>) {
        // A layer further in rarely marks requests itself, and looks for the marks of others while
        // some are recent.
        let is_marked = are_about() && extensions.get::<Mark>().is_some();
        if (is_marked || self.sample.is_due())
            && let Some(warning) = self.counted(extensions, policies)
        {
            warning.tell();
        }
    }

    /// Marks a request; returns the warning to log, if any.
    fn counted(
        &self,
        extensions: &mut Extensions,
        policies: impl Iterator<Item = usize>,
    ) -> Option<Warning> {
        let own = policies.filter(|number| *number < 64).fold(0, |own, number| own | 1 << number);
        let mark = extensions.get_or_insert_default::<Mark>();
        let twice = mark.layers.iter().find_map(|(other, theirs)| {
            let name = self.layer.shares(own, other, *theirs)?;
            Some((name.to_owned(), other.number == self.layer.number))
        });
        if mark.layers.len() < LAYERS_MAX {
            mark.layers.push((self.layer.clone(), own));
            // ORDERING: Relaxed. A thread that sees it late checks late.
            MARKED.fetch_add(1, Relaxed);
        }
        let (name, is_own) = twice?;
        // ORDERING: Relaxed. One thread logs; nothing else depends on it.
        if self.is_told.swap(true, Relaxed) {
            return None;
        }
        let why = match is_own {
            true => "it passed the same layer twice",
            false => "it passed two layers that have a policy of this name in one store",
        };
        let text = format_args!(
            "one request was counted twice by \"{name}\": {why}; add the layer once, or give the \
             policies different names"
        );
        Some(Warning::new("TG-L52", docs!("http.md#tg-l52"), &text))
    }
}

impl Layer {
    /// Returns the name of a policy by which both layers have counted.
    fn shares<'a>(&'a self, own: u64, other: &Self, theirs: u64) -> Option<&'a str> {
        let counts = |mask: u64| move |number: usize| number < 64 && mask >> number & 1 == 1;
        let (own, theirs) = (counts(own), counts(theirs));
        let same = |number: usize, name: &str| {
            if self.number == other.number {
                return theirs(number);
            }
            let mut names = other.names.iter().enumerate();
            let is_shared = self.is_elsewhere && other.is_elsewhere;
            is_shared && names.any(|(number, other)| **other == *name && theirs(number))
        };
        let mut names = self.names.iter().enumerate();
        names.find(|(number, name)| own(*number) && same(*number, name)).map(|(_, name)| &**name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: bool = false;
    const ELSEWHERE: bool = true;

    fn marker(names: &[&'static str], is_elsewhere: bool) -> Marker {
        Marker::new(names.iter().copied(), is_elsewhere)
    }

    /// Makes two layers count one request, each by some of its policies.
    fn told(outer: (&Marker, &[usize]), inner: (&Marker, &[usize])) -> Option<String> {
        let mut extensions = Extensions::new();
        let first = outer.0.counted(&mut extensions, outer.1.iter().copied());
        assert!(first.is_none(), "{first:?}");
        let second = inner.0.counted(&mut extensions, inner.1.iter().copied());
        second.map(|warning| {
            assert_eq!(warning.code, "TG-L52");
            warning.text
        })
    }

    #[test]
    fn a_layer_that_is_there_twice_is_told_of_once() {
        let layer = marker(&["a", "b"], OWN);
        let text = told((&layer, &[0, 1]), (&layer, &[1])).unwrap();
        assert!(text.contains("twice by \"b\": it passed the same layer"), "{text}");
        assert!(text.ends_with(concat!("(TG-L52, see ", docs!("http.md#tg-l52"), ")")), "{text}");
        assert_eq!(told((&layer, &[0]), (&layer, &[0])), None, "told already");
    }

    #[test]
    fn only_what_counts_in_one_place_is_counted_twice() {
        let two = |one: bool, other: bool| (marker(&["a", "b"], one), marker(&["b", "c"], other));
        // where one is, where the other is, the policies by which each counts, whether it is logged
        for (row, (one, other, outer, inner, is_told)) in [
            (OWN, OWN, 1, 0, false),
            (OWN, ELSEWHERE, 1, 0, false),
            (ELSEWHERE, OWN, 1, 0, false),
            (ELSEWHERE, ELSEWHERE, 1, 0, true),
            (ELSEWHERE, ELSEWHERE, 0, 0, false),
            (ELSEWHERE, ELSEWHERE, 1, 1, false),
        ]
        .into_iter()
        .enumerate()
        {
            let (one, other) = two(one, other);
            let text = told((&one, &[outer]), (&other, &[inner]));
            assert_eq!(text.is_some(), is_told, "row {row}: {text:?}");
            assert!(text.is_none_or(|text| text.contains("twice by \"b\": it passed two layers")));
        }
        let layer = marker(&["a", "b"], ELSEWHERE);
        assert_eq!(told((&layer, &[0]), (&layer, &[1])), None, "by different policies");
    }

    #[test]
    fn the_first_requests_are_marked_and_marks_are_always_seen_and_bounded() {
        let (outer, inner) = (marker(&["a"], OWN), marker(&["a"], OWN));
        let marked = |extensions: &Extensions| {
            extensions.get::<Mark>().map_or(0, |mark: &Mark| mark.layers.len())
        };
        for request in 0..2 * FIRST {
            let mut extensions = Extensions::new();
            outer.count(&mut extensions, std::iter::once(0));
            if request < FIRST {
                assert_eq!(marked(&extensions), 1, "request {request}");
            }
        }
        // The inner one is past its first requests, and still sees the mark of the other.
        for _ in 0..FIRST {
            inner.count(&mut Extensions::new(), std::iter::once(0));
        }
        let mut extensions = Extensions::new();
        marker(&["a"], OWN).count(&mut extensions, std::iter::once(0));
        inner.count(&mut extensions, std::iter::once(0));
        assert_eq!(marked(&extensions), 2);
        for _ in 0..LOOKS {
            inner.count(&mut extensions, std::iter::once(0));
        }
        assert_eq!(marked(&extensions), LAYERS_MAX);
    }

    #[test]
    fn a_policy_beyond_the_most_that_a_layer_may_have_is_nothing() {
        let layer = marker(&["a"], OWN);
        assert_eq!(told((&layer, &[64, 100]), (&layer, &[64, 100])), None);
    }
}

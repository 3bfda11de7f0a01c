//! A layer that is built for each request.
//!
//! Every layer starts with full quotas, so a layer that is built in a handler, or in the closure
//! that makes a service for each request, never refuses a request. The sign is this: layers of one
//! place in the code come and go, and none of them ever sees a second request.

use super::Warning;
use std::{
    panic::Location,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

/// How many layers of one place have to be dropped like this: one or two in a test mean nothing.
const LAYERS_MIN: u32 = 8;
/// How many places are remembered; later ones are ignored.
const PLACES_MAX: usize = 64;

/// Where a layer was built, and whether it saw more than one request; dropped with the layer.
#[derive(Debug)]
pub(crate) struct Built {
    place: &'static Location<'static>,
    places: &'static Places,
    /// 0, 1 or 2: higher counts do not matter.
    seen: AtomicU8,
}

impl Built {
    /// Starts for a layer that is built by the caller of the function marked `#[track_caller]`.
    #[track_caller]
    pub(crate) fn here() -> Self {
        static ALL: Places = Places::new(PLACES_MAX);
        Self::in_places(&ALL)
    }

    #[track_caller]
    fn in_places(places: &'static Places) -> Self {
        Self { place: Location::caller(), places, seen: AtomicU8::new(0) }
    }

    /// Counts a request: a load, after the first two.
    #[inline]
    pub(crate) fn count(&self) {
        // ORDERING: Relaxed. A count that publishes nothing.
        if self.seen.load(Relaxed) < 2 {
            self.count_up();
        }
    }

    #[cold]
    fn count_up(&self) {
        // ORDERING: Relaxed, as above. Exactly one thread is the second.
        let before = self.seen.fetch_update(Relaxed, Relaxed, |seen| (seen < 2).then(|| seen + 1));
        if before == Ok(1) {
            self.places.lives(self.place);
        }
    }

    /// Records the drop of the layer; returns the warning to log, if any.
    fn gone(&self) -> Option<Warning> {
        // ORDERING: Relaxed, as above. The thread that drops the layer has it for itself.
        (self.seen.load(Relaxed) == 1).then(|| self.places.gone(self.place)).flatten()
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        if let Some(warning) = self.gone() {
            warning.tell();
        }
    }
}

/// Places in the code whose layers are dropped after one request.
#[derive(Debug)]
struct Places {
    most: usize,
    known: Mutex<Vec<Place>>,
}

#[derive(Debug)]
struct Place {
    place: &'static Location<'static>,
    /// Layers that were dropped after one request; `None` if there is nothing to report, or no
    /// longer.
    gone: Option<u32>,
}

impl Places {
    const fn new(most: usize) -> Self {
        Self { most, known: Mutex::new(Vec::new()) }
    }

    /// Records that a layer of this place has seen a second request: the place is correct.
    fn lives(&self, place: &'static Location<'static>) {
        self.note(place, |known| known.gone = None);
    }

    /// Records that a layer of this place was dropped after one request.
    fn gone(&self, place: &'static Location<'static>) -> Option<Warning> {
        let is_told = self.note(place, |known| {
            known.gone = known.gone.map(|gone| gone.saturating_add(1));
            known.gone.take_if(|gone| *gone >= LAYERS_MIN).is_some()
        });
        is_told.unwrap_or_default().then(|| {
            let text = format_args!(
                "{LAYERS_MIN} layers built at {place} have each seen one request and were dropped: \
                 a layer that is built for each request starts with a full quota each time and \
                 limits nothing; build it once and clone it"
            );
            Warning::new("TG-L51", docs!("http.md#tg-l51"), &text)
        })
    }

    /// Changes the record of a place, unless too many others are recorded.
    fn note<R>(
        &self,
        place: &'static Location<'static>,
        change: impl FnOnce(&mut Place) -> R,
    ) -> Option<R> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match known.iter().position(|known| known.place == place) {
            Some(at) => at,
            None if known.len() < self.most => {
                known.push(Place { place, gone: Some(0) });
                known.len() - 1
            }
            None => return None,
        };
        known.get_mut(at).map(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes this many requests through a layer of one place, and drops it; returns the code of
    /// the warning.
    fn layer(places: &'static Places, requests: usize) -> Option<&'static str> {
        let built = Built::in_places(places);
        (0..requests).for_each(|_| built.count());
        let told = built.gone();
        std::mem::forget(built);
        told.map(|warning| {
            assert!(warning.text.contains("built.rs:"), "{warning:?}");
            warning.code
        })
    }

    fn places() -> &'static Places {
        Box::leak(Box::new(Places::new(PLACES_MAX)))
    }

    #[test]
    fn layers_that_go_after_one_request_are_told_of_once() {
        let places = places();
        let told: Vec<_> = (0..20).filter_map(|number| Some((number, layer(places, 1)?))).collect();
        assert_eq!(told, [(7, "TG-L51")]);
    }

    #[test]
    fn a_place_whose_layers_live_is_never_told_of() {
        for requests in [2, 3, 1000] {
            let places = places();
            let before = (0..7).find_map(|_| layer(places, 1));
            assert_eq!((before, layer(places, requests)), (None, None));
            assert_eq!((0..20).find_map(|_| layer(places, 1)), None, "{requests}");
        }
    }

    #[test]
    fn a_layer_that_still_lives_counts_too_and_one_without_requests_does_not() {
        let places = places();
        assert_eq!((0..20).find_map(|_| layer(places, 0)), None, "never used");
        let place = || Built::in_places(places);
        let alive = place();
        alive.count();
        alive.count();
        for _ in 0..20 {
            let built = place();
            built.count();
            assert!(built.gone().is_none());
        }
    }

    #[test]
    fn places_are_bounded_and_those_that_come_later_are_not_looked_at() {
        let places: &'static Places = Box::leak(Box::new(Places::new(1)));
        assert_eq!(layer(places, 1), None);
        for _ in 0..20 {
            let elsewhere = Built::in_places(places);
            elsewhere.count();
            assert!(elsewhere.gone().is_none());
        }
        assert_eq!(places.known.lock().unwrap().len(), 1);
        assert_eq!((0..7).find_map(|_| layer(places, 1)), Some("TG-L51"), "the known one is");
    }
}

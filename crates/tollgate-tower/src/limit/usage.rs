//! What a service reports of a request while it works on it.

use http::Extensions;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Where a service reports what a request has really cost, for policies with
/// [`Settle::reported`](super::Settle::reported): while it works, or while the body of its response
/// is sent. It is in the extensions of the request, one for all layers.
///
/// What is reported after the body has ended counts for nothing.
///
/// # Examples
///
/// A language model that says what it has used. The handle can go along with a stream, and report
/// while that is sent:
///
/// ```
/// use axum::Extension;
/// use tollgate::Quota;
/// use tollgate_tower::{Policy, Settle, Usage, answer::Unit, key::Key};
///
/// let tokens = Policy::new("tokens", Quota::per_minute(100_000))
///     .key(Key::bearer())
///     .unit(Unit::Other("tokens".into()))
///     .cost(2_000)
///     .settle(Settle::reported());
///
/// async fn chat(Extension(usage): Extension<Usage>) -> String {
///     let (answer, tokens) = ("of the model".to_owned(), 12);
///     usage.add(tokens);
///     answer
/// }
/// # let _ = (tokens, chat);
/// ```
#[derive(Clone)]
pub struct Usage {
    /// [`NOTHING`], or what was reported.
    reported: Arc<AtomicU64>,
}

const NOTHING: u64 = u64::MAX;

impl Usage {
    /// Returns that of a request; one that is new if there is none.
    pub(super) fn of(extensions: &mut Extensions) -> Self {
        let new = || Self { reported: Arc::new(AtomicU64::new(NOTHING)) };
        extensions.get_or_insert_with(new).clone()
    }

    /// Adds to what was reported so far.
    pub fn add(&self, permits: u64) {
        let more = |before: u64| {
            let before = if before == NOTHING { 0 } else { before };
            Some(before.saturating_add(permits).min(NOTHING - 1))
        };
        // ORDERING: Relaxed, here and below. A number that publishes nothing; whoever settles has
        // polled, or dropped, what reports.
        let _before = self.reported.fetch_update(Relaxed, Relaxed, more);
    }

    /// Reports all of it, instead of what was reported before.
    pub fn set(&self, permits: u64) {
        self.reported.store(permits.min(NOTHING - 1), Relaxed);
    }

    /// Returns what was reported, if something was.
    #[must_use]
    pub fn reported(&self) -> Option<u64> {
        Some(self.reported.load(Relaxed)).filter(|reported| *reported != NOTHING)
    }
}

impl fmt::Debug for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Usage").field(&self.reported()).finish()
    }
}

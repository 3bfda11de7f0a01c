//! The cost that a service reports while it works on a request.

use http::Extensions;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The value by which a service reports the actual cost of a request, for policies with
/// [`Settle::reported`](super::Settle::reported): while it works, or while the body of its response
/// is sent. It is in the extensions of the request, and all layers share it.
///
/// Reports after the end of the body are ignored.
///
/// # Examples
///
/// A language model that reports its use of tokens. The handle can go along with a stream, and
/// report while that is sent:
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
    /// [`NOTHING`], or the reported cost.
    reported: Arc<AtomicU64>,
}

const NOTHING: u64 = u64::MAX;

impl Usage {
    /// Returns the value of a request; a new one if there is none.
    pub(super) fn of(extensions: &mut Extensions) -> Self {
        let new = || Self { reported: Arc::new(AtomicU64::new(NOTHING)) };
        extensions.get_or_insert_with(new).clone()
    }

    /// Adds to the cost that was reported so far.
    pub fn add(&self, permits: u64) {
        let more = |before: u64| {
            let before = if before == NOTHING { 0 } else { before };
            Some(before.saturating_add(permits).min(NOTHING - 1))
        };
        // ORDERING: Relaxed, here and below. The number publishes nothing else; the task that
        // settles has polled, or dropped, the code that reports.
        let _before = self.reported.fetch_update(Relaxed, Relaxed, more);
    }

    /// Reports the total cost, and replaces the cost that was reported before.
    pub fn set(&self, permits: u64) {
        self.reported.store(permits.min(NOTHING - 1), Relaxed);
    }

    /// Returns the reported cost, if any.
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

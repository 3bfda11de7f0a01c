//! What can go wrong with a store.

use super::Operation;
use crate::{KeyedError, LimitsError, QuotaError};
use std::{error::Error, fmt};

/// Why a store could not answer. Never a denial: that is a [`Decision`](crate::Decision).
#[derive(Debug)]
pub struct StoreError {
    kind: Kind,
    text: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Invalid,
    Unsupported,
    Full,
    Unavailable,
    Timeout,
}

impl StoreError {
    fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), source: None }
    }

    /// The call makes no sense; repeating it does not help.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, text)
    }

    /// The store does not have this operation. No failure policy answers this error.
    #[must_use]
    pub fn unsupported(operation: Operation) -> Self {
        let (name, way_out) = (operation.name(), "implement it, or use a store that has it");
        Self::new(Kind::Unsupported, format!("the store does not support `{name}`; {way_out}"))
    }

    /// A bound of the store is reached (reservations, permits, quotas).
    pub fn full(text: impl Into<String>) -> Self {
        Self::new(Kind::Full, text)
    }

    /// The store cannot be reached, or refuses to work. Nothing was charged.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, text)
    }

    /// No answer in time: the call was charged once or not at all.
    pub fn timeout(text: impl Into<String>) -> Self {
        Self::new(Kind::Timeout, text)
    }

    /// Adds what caused it.
    #[must_use]
    pub fn because(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Tells whether the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self.kind, Kind::Invalid | Kind::Unsupported)
    }

    /// Tells whether the outcome of the call is unknown: it was charged once or not at all.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::Timeout
    }

    /// Tells whether a bound of the store is reached.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kind == Kind::Full
    }

    /// Tells whether the store could not be reached, or did not answer in time. This is the only
    /// failure that a failure policy answers: a bound that is reached, a call that makes no sense, or
    /// an operation that the store does not have is refused, because it would pass without a limit
    /// otherwise.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self.kind, Kind::Unavailable | Kind::Timeout)
    }

    /// Tells whether the store does not have this operation.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.kind == Kind::Unsupported
    }

    /// Tells whether the call makes no sense.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.kind == Kind::Invalid
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl From<QuotaError> for StoreError {
    fn from(error: QuotaError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<KeyedError> for StoreError {
    fn from(error: KeyedError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<LimitsError> for StoreError {
    fn from(error: LimitsError) -> Self {
        Self::invalid(error.to_string())
    }
}

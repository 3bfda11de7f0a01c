//! How urgent a call is.

use std::fmt;

/// How urgent a call is, in eight levels: 0 is served first, 7 last.
///
/// The levels are the urgencies of the HTTP `Priority` header (RFC 9218), so that a header needs no translation. A call
/// that says nothing has [`NORMAL`](Self::NORMAL), 3.
///
/// # Examples
///
/// ```
/// use tollgate::Priority;
///
/// assert!(Priority::CRITICAL.is_above(Priority::NORMAL));
/// assert_eq!(Priority::new(7), Some(Priority::BACKGROUND));
/// assert_eq!(Priority::new(8), None);
/// assert_eq!(Priority::default().urgency(), 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "Criticality")]
pub struct Priority(u8);

impl Priority {
    /// How many levels there are.
    pub const LEVELS: usize = 8;
    /// Without it the service does not work: health checks, payments. Level 0.
    pub const CRITICAL: Self = Self(0);
    /// A person waits for it. Level 1.
    pub const HIGH: Self = Self(1);
    /// Nothing is known about it. Level 3.
    pub const NORMAL: Self = Self(3);
    /// It can be repeated later. Level 5.
    pub const LOW: Self = Self(5);
    /// Nobody waits for it: prefetching, batches. Level 7.
    pub const BACKGROUND: Self = Self(7);

    /// Returns the priority with this urgency; `None` if it is above 7.
    #[must_use]
    pub const fn new(urgency: u8) -> Option<Self> {
        if urgency < Self::LEVELS as u8 { Some(Self(urgency)) } else { None }
    }

    /// Returns the urgency: 0 to 7, where 0 is the most urgent.
    #[must_use]
    pub const fn urgency(self) -> u8 {
        self.0
    }

    /// Tells whether this is served before `other`.
    #[must_use]
    pub const fn is_above(self, other: Self) -> bool {
        self.0 < other.0
    }

    pub(crate) const fn level(self) -> usize {
        self.0 as usize
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CRITICAL => f.write_str("critical"),
            Self::HIGH => f.write_str("high"),
            Self::NORMAL => f.write_str("normal"),
            Self::LOW => f.write_str("low"),
            Self::BACKGROUND => f.write_str("background"),
            Self(urgency) => write!(f, "urgency {urgency}"),
        }
    }
}

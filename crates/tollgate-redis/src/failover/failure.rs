//! The failure policy: what decides when the store cannot.

use super::GuardError;
use std::{collections::HashMap, fmt, str::FromStr};

/// How the demands of a policy are decided while the store cannot be reached.
///
/// # Examples
///
/// ```
/// use tollgate_redis::FailurePolicy;
///
/// assert_eq!("closed".parse(), Ok(FailurePolicy::Closed));
/// assert_eq!("allow".parse(), Ok(FailurePolicy::Open));
/// assert_eq!(FailurePolicy::default().to_string(), "local");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// All passes: nothing is limited and nothing is counted.
    #[doc(alias = "allow")]
    Open,
    /// Nothing passes.
    #[doc(alias = "deny")]
    Closed,
    /// A limiter in this process decides, with this process's share of the quota: the default.
    #[default]
    Local,
}

impl FailurePolicy {
    /// All of them, in the order of the docs.
    pub const ALL: [Self; 3] = [Self::Open, Self::Closed, Self::Local];

    /// Returns the name used in configuration, metrics and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
        }
    }
}

impl fmt::Display for FailurePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no failure policy has.
///
/// # Examples
///
/// ```
/// use tollgate_redis::{FailurePolicy, UnknownFailurePolicy};
///
/// let unknown: Result<FailurePolicy, UnknownFailurePolicy> = "ajar".parse();
/// assert_eq!(
///     unknown.unwrap_err().to_string(),
///     "\"ajar\" is not a failure policy; use open (allow), closed (deny) or local"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFailurePolicy(String);

impl fmt::Display for UnknownFailurePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        write!(f, "\"{name}\" is not a failure policy; use open (allow), closed (deny) or local")
    }
}

impl std::error::Error for UnknownFailurePolicy {}

impl FromStr for FailurePolicy {
    type Err = UnknownFailurePolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "open" | "allow" => Ok(Self::Open),
            "closed" | "deny" => Ok(Self::Closed),
            "local" => Ok(Self::Local),
            _ => Err(UnknownFailurePolicy(name.chars().take(40).collect())),
        }
    }
}

/// Which failure policy holds for which policy: one for all, and others by name.
///
/// # Examples
///
/// ```
/// use tollgate_redis::{FailurePolicy, Failures};
///
/// let failures = Failures::all(FailurePolicy::Open).but("logins", FailurePolicy::Closed);
/// assert_eq!(failures.of("logins"), FailurePolicy::Closed);
/// assert_eq!(failures.of("pages"), FailurePolicy::Open);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    default: FailurePolicy,
    by_name: HashMap<Box<str>, FailurePolicy>,
}

impl Failures {
    /// How many policies can have a failure policy of their own.
    pub const NAMES_MAX: usize = 65_536;

    /// Returns one failure policy for all policies.
    #[must_use]
    pub fn all(default: FailurePolicy) -> Self {
        Self { default, by_name: HashMap::new() }
    }

    /// Gives the policy of a name, or the permits of a name, another one.
    #[must_use]
    pub fn but(mut self, name: impl Into<Box<str>>, failure: FailurePolicy) -> Self {
        self.by_name.insert(name.into(), failure);
        self
    }

    /// Returns the one for all that have none of their own.
    #[must_use]
    pub const fn default_for_all(&self) -> FailurePolicy {
        self.default
    }

    /// Returns the failure policy of a policy or of permits.
    #[must_use]
    pub fn of(&self, name: &str) -> FailurePolicy {
        self.by_name.get(name).copied().unwrap_or(self.default)
    }

    /// Tells whether any policy may be decided locally.
    pub(super) fn has_local(&self) -> bool {
        let mut each = self.by_name.values().chain([&self.default]);
        each.any(|failure| *failure == FailurePolicy::Local)
    }

    pub(super) fn set_default(&mut self, default: FailurePolicy) {
        self.default = default;
    }

    pub(super) fn check(&self) -> Result<(), GuardError> {
        match self.by_name.len() {
            0..=Self::NAMES_MAX => Ok(()),
            names => Err(GuardError::new(format!(
                "{names} policies have a failure policy of their own, above the maximum of {}; \
                 make the most frequent one the default",
                Self::NAMES_MAX
            ))),
        }
    }
}

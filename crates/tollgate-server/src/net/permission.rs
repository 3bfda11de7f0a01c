//! The permissions of a client.

use std::{fmt, str::FromStr};

/// One thing that a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Look: peek, policies, reflection, and what the admin listener shows.
    Read,
    /// Take permits: check and reserve.
    Check,
    /// Give permits back: settle, cancel, refund, reset, negative hits.
    Settle,
    /// Change something on the admin listener.
    Administer,
}

impl Permission {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Check, Self::Settle, Self::Administer];

    /// Returns the name used in the configuration and in errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Check => "check",
            Self::Settle => "settle",
            Self::Administer => "administer",
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Permission {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|one| one.name() == text).ok_or(())
    }
}

/// A set of permissions.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions(u8);

impl Permissions {
    /// No permission.
    pub const NONE: Self = Self(0);
    /// The permissions of a listener without a secret, and of a listener's own token or password.
    pub const CLIENT: Self =
        Self::NONE.with(Permission::Read).with(Permission::Check).with(Permission::Settle);

    /// Returns the set with one more permission.
    #[must_use]
    pub const fn with(self, permission: Permission) -> Self {
        Self(self.0 | 1 << permission as u8)
    }

    /// Returns the permissions that are in one of the two sets.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the permission is in the set.
    #[must_use]
    pub const fn has(self, permission: Permission) -> bool {
        self.0 & 1 << permission as u8 != 0
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Permission::ALL.iter().filter(|one| self.has(**one))).finish()
    }
}

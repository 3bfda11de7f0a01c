//! The errors of trees and paths.

use crate::{ConfigError, Decision, Denied, Limits};
use std::fmt;

impl From<PathError> for ConfigError {
    fn from(error: PathError) -> Self {
        Self::new(error.to_string())
    }
}

/// Why a path leads nowhere. Not a denial: no limiter decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathError {
    /// The path has more parts than there are levels below the root.
    TooLong {
        /// Parts of the path.
        parts: usize,
        /// Levels below the root on this path.
        levels: usize,
    },
    /// There is no such class below its parent.
    UnknownClass {
        /// The part of the path, at most 40 characters of it.
        name: String,
        /// Where the path had come to.
        parent: String,
    },
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { parts, levels } => write!(
                f,
                "a path of {parts} parts is longer than the {levels} levels below the root; leave \
                 parts out, or add levels"
            ),
            Self::UnknownClass { name, parent } => write!(
                f,
                "there is no class \"{name}\" below \"{parent}\"; use a declared one, or add a \
                 keyed level"
            ),
        }
    }
}

impl std::error::Error for PathError {}

/// Why nothing was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreserved {
    /// Some level refused.
    Denied(Decision),
    /// The path leads nowhere.
    Path(PathError),
}

impl fmt::Display for Unreserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(decision) => Denied(*decision).fmt(f),
            Self::Path(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unreserved {}

impl From<PathError> for Unreserved {
    fn from(error: PathError) -> Self {
        Self::Path(error)
    }
}

/// Checks that no level or class before this one has its name.
pub(super) fn check_name<'a>(
    name: &str,
    mut before: impl Iterator<Item = &'a str>,
) -> Result<(), ConfigError> {
    match before.any(|known| known == name) {
        true => Err(ConfigError::new(format!(
            "\"{name}\" is used twice; give each level or class a name of its own"
        ))),
        false => Ok(()),
    }
}

/// Checks that a decision can name a level that has so many above it.
pub(super) fn check_depth(above: usize, name: &str) -> Result<(), ConfigError> {
    match above < Limits::MOST {
        true => Ok(()),
        false => Err(ConfigError::new(format!(
            "\"{name}\" would be level 65, and a decision names at most 64; use fewer levels"
        ))),
    }
}

pub(super) fn not_keyed(name: &str, what: &str) -> ConfigError {
    ConfigError::new(format!(
        "\"{name}\" is a single node and has no {what}; remove it, or make the level keyed"
    ))
}

pub(super) fn unknown_name(name: &str) -> ConfigError {
    ConfigError::new(format!(
        "there is no level or class \"{name}\"; use a name given to the builder"
    ))
}

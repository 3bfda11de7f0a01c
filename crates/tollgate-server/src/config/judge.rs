//! Judges what files say together: what each of them could not know alone.

use super::{Config, error::Errors};

pub(super) fn judge(_config: &Config, _errors: &mut Errors) {}

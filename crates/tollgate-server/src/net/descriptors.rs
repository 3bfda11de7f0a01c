//! File descriptors: how many the process may have, and how many connections that allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that connections leave: for the last connections of the admin listener, for listeners,
/// files, Redis servers, and the runtime.
pub(crate) const RESERVED: usize = 128;

/// Those of [`RESERVED`] that are left to connections of the admin listener.
pub(super) const ADMIN_DESCRIPTORS: usize = 64;

/// Lets the process have as many file descriptors as it may, and returns how many those are. `None` if
/// the system sets no bound.
#[must_use]
pub fn raise_descriptor_limit() -> Option<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // A limit that cannot be raised stays as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current
}

/// Returns how many connections of all listeners together the descriptor limit allows.
///
/// # Errors
///
/// When it leaves none, or fewer than the configuration wants for one listener.
pub(crate) fn connections_allowed(wanted: Option<usize>) -> Result<usize, String> {
    allowed(getrlimit(Resource::Nofile).current, wanted)
}

fn allowed(descriptors: Option<u64>, wanted: Option<usize>) -> Result<usize, String> {
    // OVERFLOW: a limit beyond the address space is as good as none.
    let descriptors = descriptors.unwrap_or(u64::MAX);
    let allowed =
        usize::try_from(descriptors.saturating_sub(RESERVED as u64)).unwrap_or(usize::MAX);
    match wanted {
        _ if allowed == 0 => Err(format!(
            "the descriptor limit of {descriptors} leaves none for connections: {RESERVED} are \
             reserved; raise it with `ulimit -n` or LimitNOFILE"
        )),
        Some(wanted) if wanted > allowed => Err(format!(
            "max_connections of {wanted} is above {allowed}, which the descriptor limit of \
             {descriptors} allows ({RESERVED} are reserved); lower it, or raise the limit with \
             `ulimit -n` or LimitNOFILE"
        )),
        _ => Ok(allowed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_above_the_descriptor_limit_is_an_error_that_names_both() {
        for (row, (descriptors, wanted, expected)) in [
            (Some(1024), None, Ok(896)),
            (Some(1024), Some(896), Ok(896)),
            (Some(1024), Some(897), Err(["max_connections of 897", "limit of 1024"])),
            (Some(128), None, Err(["limit of 128", "128 are reserved"])),
            (None, Some(1_000_000), Ok(usize::MAX - RESERVED)),
        ]
        .into_iter()
        .enumerate()
        {
            match (allowed(descriptors, wanted), expected) {
                (Err(error), Err(parts)) => {
                    assert!(parts.iter().all(|part| error.contains(part)), "row {row}: {error}");
                }
                (got, expected) => assert_eq!(got.ok(), expected.ok(), "row {row}"),
            }
        }
    }
}

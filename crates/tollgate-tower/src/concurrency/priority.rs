//! How urgent a request is.

use crate::{Info, key::Trust};
use http::HeaderMap;
use std::sync::Arc;
use tollgate::Priority;

/// Finds the priority of a request; `None` if it knows none.
pub(crate) type PriorityBy = Arc<dyn Fn(&Info<'_>) -> Option<Priority> + Send + Sync>;

/// Where priorities come from.
#[derive(Clone, Default)]
pub(crate) struct PrioritySource {
    pub(crate) by: Option<PriorityBy>,
    /// Peers whose `Priority` header is believed.
    pub(super) trust: Option<Trust>,
}

impl PrioritySource {
    /// Returns what the closure says, else the extensions, else a believed header.
    pub(crate) fn of(&self, info: &Info<'_>) -> Priority {
        let by = self.by.as_ref().and_then(|by| by(info));
        by.or_else(|| info.extensions().get().copied())
            .or_else(|| {
                let trust = self.trust.as_ref()?;
                if trust.believes(info.peer()?.ip()) { from_header(info.headers()) } else { None }
            })
            .unwrap_or_default()
    }
}

/// Reads `u` of the `Priority` header (RFC 9218), of which the last one counts.
///
/// Metadata of gRPC are headers, so a client sets `priority: u=1` there, too.
fn from_header(headers: &HeaderMap) -> Option<Priority> {
    let lines = headers.get_all("priority").into_iter().filter_map(|line| line.to_str().ok());
    let members = lines.flat_map(|line| line.split(','));
    let mut urgencies = members.filter_map(|member| {
        let value = member.split(';').next()?.trim_matches([' ', '\t']).strip_prefix("u=")?;
        match value.as_bytes() {
            [digit @ b'0'..=b'7'] => Priority::new(digit - b'0'),
            _ => None,
        }
    });
    urgencies.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_urgency_is_read_as_rfc_9218_writes_it() {
        for (row, (lines, expected)) in [
            (&["u=0"][..], Some(0)),
            (&["i, u=7"], Some(7)),
            (&["u=1;x=2, i"], Some(1)),
            (&["u=1", "u=5"], Some(5)),
            (&["u=8"], None),
            (&["u=-1"], None),
            (&["u=1.0"], None),
            (&["u=\"1\""], None),
            (&["i"], None),
            (&["xu=1"], None),
            (&[""], None),
        ]
        .into_iter()
        .enumerate()
        {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("priority", http::HeaderValue::from_static(line));
            }
            let found = from_header(&headers).map(Priority::urgency);
            assert_eq!(found, expected, "row {row}, {lines:?}");
        }
    }
}

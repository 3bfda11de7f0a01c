//! A request, independent of the version of HTTP.

use crate::net::browser::Headers;
use std::borrow::Cow;

/// A request whose body is complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) method: &'a str,
    /// The path, without the query.
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    pub(super) fields: Fields<'a>,
    pub(super) body: &'a [u8],
}

impl<'a> Call<'a> {
    /// Splits a target into path and query. An absolute one loses its scheme and host.
    pub(super) fn split(target: &'a str) -> (&'a str, &'a str) {
        let local = match target.split_once("://") {
            Some((_, rest)) if !target.starts_with('/') => {
                rest.find(['/', '?']).map_or("/", |at| &rest[at..])
            }
            _ => target,
        };
        let local = local.split('#').next().unwrap_or(local);
        local.split_once('?').unwrap_or((local, ""))
    }
}

/// Where a header's name and value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) name: (u32, u32),
    pub(super) value: (u32, u32),
}

/// The headers of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) spans: &'a [Span],
}

impl<'a> Fields<'a> {
    fn slice(&self, (start, end): (u32, u32)) -> &'a [u8] {
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Returns all headers in their order.
    pub(super) fn all(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.spans.iter().map(move |span| (self.slice(span.name), self.slice(span.value)))
    }

    /// Returns the values of a header; the case of its name does not matter.
    pub(super) fn values(self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let is_named = move |(its, _): &(&[u8], &[u8])| its.eq_ignore_ascii_case(name.as_bytes());
        self.all().filter(is_named).map(|(_, value)| value)
    }

    /// Returns the headers that identify a browser's page, and the `Authorization`, in one pass.
    pub(super) fn caller(self) -> (Headers<'a>, Option<&'a [u8]>) {
        let (mut headers, mut authorization) = (Headers::default(), None);
        for (name, value) in self.all() {
            let slot = match name.len() {
                4 if name.eq_ignore_ascii_case(b"host") => &mut headers.host,
                6 if name.eq_ignore_ascii_case(b"origin") => &mut headers.origin,
                13 if name.eq_ignore_ascii_case(b"authorization") => &mut authorization,
                14 if name.eq_ignore_ascii_case(b"sec-fetch-site") => &mut headers.site,
                _ => continue,
            };
            slot.get_or_insert(value);
        }
        (headers, authorization)
    }

    /// Returns the value of a header; of several headers with one name, their list. Bytes that are
    /// not UTF-8 are replaced and not ignored, so that nobody evades a limit with them. An empty
    /// value counts as none.
    pub(super) fn text(self, name: &str) -> Option<Cow<'a, str>> {
        let mut values = self.values(name);
        let first = String::from_utf8_lossy(values.next()?);
        let mut text = first;
        for more in values {
            let text = text.to_mut();
            text.push_str(", ");
            text.push_str(&String::from_utf8_lossy(more));
        }
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_path_and_query() {
        for (target, path, query) in [
            ("/", "/", ""),
            ("/v1/check?policy=a&key=b?c", "/v1/check", "policy=a&key=b?c"),
            ("http://host:80/x?y", "/x", "y"),
            ("http://host", "/", ""),
            ("http://host?y", "", "y"),
            ("/x?u=http://y", "/x", "u=http://y"),
            ("/x#f?y", "/x", ""),
            ("*", "*", ""),
        ] {
            assert_eq!(Call::split(target), (path, query), "{target}");
        }
    }
}

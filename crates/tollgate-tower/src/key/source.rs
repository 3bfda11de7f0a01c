//! The source of each part of a key.

use super::{
    ClientAddress, Key, KeyBytes, KeyError, KeySource, Missing,
    bytes::Tag,
    digest::HashKey,
    forwarded::{List, is_token},
};
use crate::Info;
use http::{HeaderName, HeaderValue, Method, header};
use std::{fmt, sync::Arc};

/// The most parts of a combination: their number fits into a byte, and real keys need far fewer.
const PARTS_MAX: usize = 64;

/// The source of one part of a key.
#[derive(Clone)]
pub(super) enum Source {
    Global,
    Client(Arc<ClientAddress>),
    Header(Result<HeaderName, Arc<str>>),
    Bearer,
    Cookie(Arc<str>),
    Route,
    Path,
    Method,
    Custom(Arc<dyn KeySource>),
    All(Arc<[Key]>),
    Any(Arc<[Key]>),
}

/// The result of looking for a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    Known,
    Missing,
    /// There are several values where one is needed.
    Ambiguous,
}

impl From<bool> for Wrote {
    fn from(there: bool) -> Self {
        if there { Self::Known } else { Self::Missing }
    }
}

impl Source {
    /// Appends the part. If there is none, the caller removes the bytes that were appended.
    pub(super) fn write(&self, info: &Info<'_>, key: &mut KeyBytes, hash: &HashKey) -> Wrote {
        match self {
            Self::Global => key.tag(Tag::Global),
            Self::Client(client) => return client.write(info, key).into(),
            Self::Header(Err(_)) => return Wrote::Missing,
            Self::Header(Ok(name)) => {
                return hide(only(lines(info, name)), (key, Tag::Header), hash);
            }
            Self::Bearer => {
                let line = only(lines(info, &header::AUTHORIZATION));
                return hide(line.map(|line| line.and_then(bearer)), (key, Tag::Bearer), hash);
            }
            Self::Cookie(name) => {
                return hide(only(cookies(info, name)), (key, Tag::Cookie), hash);
            }
            Self::Route => match info.route() {
                Some(route) => key.tagged(Tag::Route, route.as_bytes()),
                None => return Wrote::Missing,
            },
            Self::Path => key.tagged(Tag::Path, info.uri().path().as_bytes()),
            Self::Method => key.tagged(Tag::Method, method(info.method())),
            Self::Custom(source) => return key.group(|key| source.write(info, key)).into(),
            // A combination of nothing would be an empty key that all requests share.
            Self::All(keys) if keys.is_empty() => return Wrote::Missing,
            Self::All(keys) => {
                let mut parts = keys.iter().map(|part| part.write_as_part(info, key, hash));
                return parts.find(|wrote| *wrote != Wrote::Known).unwrap_or(Wrote::Known);
            }
            Self::Any(keys) => return any(keys, info, key, hash),
        }
        Wrote::Known
    }

    /// Tells whether every request has the part.
    fn is_always_there(&self) -> bool {
        match self {
            Self::Global | Self::Path | Self::Method => true,
            Self::All(keys) => keys.iter().all(Key::is_always_there),
            Self::Any(keys) => keys.iter().any(Key::is_always_there),
            _ => false,
        }
    }

    /// Tells whether any part hashes a secret.
    pub(super) fn hashes(&self) -> bool {
        match self {
            Self::Header(_) | Self::Bearer | Self::Cookie(_) => true,
            Self::All(keys) | Self::Any(keys) => keys.iter().any(|key| key.source.hashes()),
            _ => false,
        }
    }

    pub(super) fn check(&self) -> Result<(), KeyError> {
        match self {
            Self::Client(client) => client.check(),
            Self::Header(Err(name)) => Err(KeyError::HeaderName { name: name.to_string() }),
            Self::Header(Ok(name)) if List::is_one(name) => {
                Err(KeyError::ListAsValue { header: name.to_string() })
            }
            Self::Cookie(name) if name.is_empty() || !name.bytes().all(is_token) => {
                Err(KeyError::CookieName { name: name.to_string() })
            }
            Self::All(keys) => check_parts("all", keys),
            Self::Any(keys) => {
                check_parts("any", keys)?;
                let always = keys.iter().position(Key::is_always_there);
                match always.filter(|position| position + 1 < keys.len()) {
                    Some(position) => Err(KeyError::Unreachable { position }),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

impl Key {
    fn is_always_there(&self) -> bool {
        self.missing == Some(Missing::Anonymous) || self.source.is_always_there()
    }

    /// Appends this key as a part of another. A missing part leaves the key as it was.
    pub(super) fn write_as_part(
        &self,
        info: &Info<'_>,
        key: &mut KeyBytes,
        hash: &HashKey,
    ) -> Wrote {
        let before = key.mark();
        let hash = self.hash_key.as_ref().map_or(hash, |(hash, _)| hash);
        let wrote = self.source.write(info, key, hash);
        if wrote == Wrote::Known {
            return wrote;
        }
        key.back_to(before);
        if wrote == Wrote::Missing && self.missing == Some(Missing::Anonymous) {
            key.tag(Tag::Anonymous);
            return Wrote::Known;
        }
        wrote
    }
}

/// Appends the first part that is present, and its position: the same value in another position is
/// another client.
fn any(keys: &[Key], info: &Info<'_>, key: &mut KeyBytes, hash: &HashKey) -> Wrote {
    for (position, part) in (0..=u8::MAX).zip(keys) {
        let before = key.mark();
        key.tagged(Tag::Choice, &[position]);
        match part.write_as_part(info, key, hash) {
            Wrote::Missing => key.back_to(before),
            wrote => return wrote,
        }
    }
    Wrote::Missing
}

fn check_parts(combination: &'static str, keys: &[Key]) -> Result<(), KeyError> {
    if keys.is_empty() {
        return Err(KeyError::Empty { combination });
    }
    if keys.len() > PARTS_MAX {
        return Err(KeyError::TooMany { parts: keys.len(), most: PARTS_MAX });
    }
    for (position, key) in keys.iter().enumerate() {
        let said = match key.missing {
            Some(Missing::Refuse) => "or_refuse",
            Some(Missing::Skip) => "or_skip",
            Some(Missing::Anonymous) | None => {
                key.check()?;
                continue;
            }
        };
        return Err(KeyError::MissingOfPart { position, said });
    }
    Ok(())
}

/// A secret if there is one; an error if there are several where one is needed.
type Secret<'a> = Result<Option<&'a [u8]>, Ambiguous>;

#[derive(Clone, Copy)]
struct Ambiguous;

/// Appends the hash of a secret, if there is one.
fn hide(secret: Secret<'_>, (key, tag): (&mut KeyBytes, Tag), hash: &HashKey) -> Wrote {
    match secret {
        Err(Ambiguous) => Wrote::Ambiguous,
        // An empty secret identifies no client.
        Ok(None | Some([])) => Wrote::Missing,
        Ok(Some(secret)) => {
            key.tagged(tag, &hash.hide(secret));
            Wrote::Known
        }
    }
}

/// Returns the only value. Several are fine if they are equal. Otherwise it is unknown which of
/// them other programs use, and a client could have a fresh key with each request.
fn only<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Secret<'a> {
    let Some(first) = values.next() else { return Ok(None) };
    if values.all(|value| value == first) { Ok(Some(first)) } else { Err(Ambiguous) }
}

fn lines<'a>(info: &Info<'a>, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let lines = info.headers().get_all(name).into_iter();
    lines.map(HeaderValue::as_bytes).map(<[u8]>::trim_ascii)
}

/// Returns the token of `Bearer ...` (RFC 6750, section 2.1); the scheme is case-insensitive.
fn bearer(line: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = line.split_at_checked(6)?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && rest.starts_with(b" ");
    is_bearer.then(|| rest.trim_ascii_start())
}

/// Returns the values of the cookies of that name (RFC 6265, section 4.2), without their quotes.
fn cookies<'a>(info: &Info<'a>, name: &str) -> impl Iterator<Item = &'a [u8]> {
    let lines = lines(info, &header::COOKIE);
    let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
    pairs.filter_map(move |pair| {
        let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        let inner = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        Some(inner.unwrap_or(value))
    })
}

/// Returns the name of a method. All unknown methods count as one: otherwise a client could have
/// many keys by making some up.
fn method(method: &Method) -> &[u8] {
    match *method {
        Method::GET
        | Method::HEAD
        | Method::POST
        | Method::PUT
        | Method::PATCH
        | Method::DELETE
        | Method::OPTIONS
        | Method::CONNECT
        | Method::TRACE => method.as_str().as_bytes(),
        _ => b"other",
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Global => f.write_str("global"),
            Self::Client(client) => client.fmt(f),
            Self::Header(Ok(name)) => write!(f, "header({name})"),
            Self::Header(Err(name)) => write!(f, "header({name:?})"),
            Self::Bearer => f.write_str("bearer"),
            Self::Cookie(name) => write!(f, "cookie({name:?})"),
            Self::Route => f.write_str("route"),
            Self::Path => f.write_str("path"),
            Self::Method => f.write_str("method"),
            Self::Custom(_) => f.write_str("custom"),
            Self::All(keys) => f.debug_tuple("all").field(keys).finish(),
            Self::Any(keys) => f.debug_tuple("any").field(keys).finish(),
        }
    }
}

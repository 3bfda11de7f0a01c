//! Sessions of browsers: a signed cookie in place of the `Authorization` header.
//!
//! A browser cannot send `Authorization` with an event stream, so the dashboard logs in once. The cookie
//! is `EXPIRES.MAC`: the Unix second at which it ends, and HMAC-SHA-256 over it with the token as its key.
//! The server keeps no list of sessions, so they need no bound, survive a restart, and end at once when
//! the token is replaced.
//!
//! Scripts cannot read the cookie (`HttpOnly`), and browsers do not send it with requests that come from
//! other sites (`SameSite=Strict`).

use crate::net::Secret;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, header};
use sha2::Sha256;
use std::{fmt::Write, time::Duration};

/// How long a session lasts: a working day.
const LIFE: Duration = Duration::from_secs(12 * 3600);

/// Distinguishes this use of the token from any other.
const CONTEXT: &[u8] = b"tollgate: session of the dashboard, version 1\n";

/// Returns the name of the cookie. Browsers accept `__Host-` only over TLS, and only from the host itself.
const fn name(is_tls: bool) -> &'static str {
    if is_tls { "__Host-tollgate" } else { "tollgate" }
}

fn mac(secret: &Secret, expires: u64) -> Option<Hmac<Sha256>> {
    // HMAC takes keys of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.bytes()).ok()?;
    mac.update(CONTEXT);
    mac.update(&expires.to_be_bytes());
    Some(mac)
}

/// Returns the `Set-Cookie` header that begins a session; `wall` is the time since 1970.
pub(super) fn begin(secret: &Secret, wall: Duration, is_tls: bool) -> String {
    let expires = wall.saturating_add(LIFE).as_secs();
    let mut value = format!("{expires}.");
    for byte in mac(secret, expires).map(|mac| mac.finalize().into_bytes()).unwrap_or_default() {
        // Writing to a String cannot fail.
        let _ = write!(value, "{byte:02x}");
    }
    cookie(&value, LIFE, is_tls)
}

/// Returns the `Set-Cookie` header that ends a session.
pub(super) fn end(is_tls: bool) -> String {
    cookie("", Duration::ZERO, is_tls)
}

fn cookie(value: &str, age: Duration, is_tls: bool) -> String {
    let (name, age) = (name(is_tls), age.as_secs());
    let secure = if is_tls { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}")
}

/// The session that a request carries. It is checked by [`is_signed_by`](Self::is_signed_by).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    expires: u64,
    mac: [u8; 32],
}

impl Session {
    /// Finds the session in the cookies of a request; `None` if there is none, or it has ended.
    pub(super) fn find(headers: &HeaderMap, wall: Duration, is_tls: bool) -> Option<Self> {
        let cookies =
            headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|value| value.split(';')).filter_map(|one| one.trim().split_once('='));
        let (_, value) = pairs.find(|(known, _)| *known == name(is_tls))?;
        let (expires, digits) = value.split_once('.')?;
        let expires: u64 = expires.parse().ok()?;
        if wall.as_secs() >= expires || digits.len() != 64 || !digits.is_ascii() {
            return None;
        }
        let mut mac = [0; 32];
        for (at, byte) in mac.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self { expires, mac })
    }

    /// Returns true if this secret has signed the session. Takes the same time for every wrong one.
    pub(super) fn is_signed_by(&self, secret: &Secret) -> bool {
        mac(secret, self.expires).is_some_and(|mac| mac.verify_slice(&self.mac).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Duration = Duration::from_secs(1_767_268_800);

    fn sent(cookie: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, format!("theme=dark; {cookie}").parse().unwrap());
        headers
    }

    #[test]
    fn a_session_is_valid_for_its_token_until_it_ends() {
        let (secret, other) = (Secret::new("open sesame"), Secret::new("open sesamf"));
        for is_tls in [false, true] {
            let set = begin(&secret, NOON, is_tls);
            assert!(
                set.contains("; HttpOnly; SameSite=Strict") && set.contains("Max-Age=43200"),
                "{set}"
            );
            assert_eq!(
                (set.starts_with("__Host-"), set.ends_with("; Secure")),
                (is_tls, is_tls),
                "{set}"
            );
            let headers = sent(set.split(';').next().unwrap());
            let session = Session::find(&headers, NOON, is_tls).unwrap();
            assert!(session.is_signed_by(&secret) && !session.is_signed_by(&other));
            let last = NOON + LIFE - Duration::from_secs(1);
            assert!(Session::find(&headers, last, is_tls).is_some());
            assert_eq!(Session::find(&headers, NOON + LIFE, is_tls), None);
            assert_eq!(Session::find(&headers, NOON, !is_tls), None, "the other name");
        }
    }

    #[test]
    fn what_a_client_makes_up_is_no_session() {
        let secret = Secret::new("open sesame");
        let good = begin(&secret, NOON, false);
        let value = good.split(';').next().unwrap();
        let longer = value.replacen("1767312000", "1767312001", 1);
        assert_ne!(longer, value);
        assert!(!Session::find(&sent(&longer), NOON, false).unwrap().is_signed_by(&secret));
        for wrong in [
            "tollgate=",
            "tollgate=1",
            "tollgate=.",
            "tollgate=9999999999.",
            "tollgate=x.00",
            "tollgate=9999999999.zz",
            "other=1",
        ] {
            assert_eq!(Session::find(&sent(wrong), NOON, false), None, "{wrong}");
        }
        let wide = format!("tollgate=9999999999.{}", "é".repeat(32));
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, http::HeaderValue::from_bytes(wide.as_bytes()).unwrap());
        assert_eq!(Session::find(&headers, NOON, false), None);
        let digits = format!("tollgate=9999999999.{}", "0".repeat(64));
        assert!(!Session::find(&sent(&digits), NOON, false).unwrap().is_signed_by(&secret));
    }
}

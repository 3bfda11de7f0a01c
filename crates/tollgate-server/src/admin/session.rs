//! Sessions of browsers: a signed cookie in place of the `Authorization` header.
//!
//! A browser cannot send `Authorization` with an event stream, so the dashboard logs in once. The cookie
//! is `EXPIRES.MAC`: the Unix second at which it ends, and HMAC-SHA-256 over it with the token as its key.
//! The server keeps no list of sessions, so they need no bound, survive a restart, and end at once when
//! the token is replaced.
//!
//! Scripts cannot read the cookie (`HttpOnly`), and browsers do not send it with requests that come from
//! other sites (`SameSite=Strict`).

use crate::net::{Access, AuthError, Client, Permissions, Secret, bearer};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, header};
use sha2::Sha256;
use std::{fmt::Write, time::Duration};

/// How long a session lasts: a working day.
const LIFE: Duration = Duration::from_secs(12 * 3600);

/// Distinguishes this use of the token from any other.
const CONTEXT: &[u8] = b"tollgate: session of the dashboard, version 1\n";

/// Returns the name of the cookie. Browsers accept `__Host-` only over TLS, and only from the host itself. They send
/// a cookie to all ports of its host, so the name has the port: services on one host do not end each other's sessions.
fn name(headers: &HeaderMap, is_tls: bool) -> String {
    let name = if is_tls { "__Host-tollgate" } else { "tollgate" };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    match host.and_then(|host| host.rsplit_once(':')?.1.parse::<u16>().ok()) {
        Some(port) => format!("{name}-{port}"),
        None => name.to_owned(),
    }
}

fn mac(secret: &Secret, expires: u64) -> Option<Hmac<Sha256>> {
    // HMAC takes keys of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.bytes()).ok()?;
    mac.update(CONTEXT);
    mac.update(&expires.to_be_bytes());
    Some(mac)
}

/// Returns the `Set-Cookie` header that begins a session; `wall` is the time since 1970.
pub(super) fn begin(secret: &Secret, wall: Duration, headers: &HeaderMap, is_tls: bool) -> String {
    let expires = wall.saturating_add(LIFE).as_secs();
    let mut value = format!("{expires}.");
    for byte in mac(secret, expires).map(|mac| mac.finalize().into_bytes()).unwrap_or_default() {
        // Writing to a String cannot fail.
        let _ = write!(value, "{byte:02x}");
    }
    cookie((&name(headers, is_tls), &value), LIFE, is_tls)
}

/// Returns the `Set-Cookie` header that ends a session.
pub(super) fn end(headers: &HeaderMap, is_tls: bool) -> String {
    cookie((&name(headers, is_tls), ""), Duration::ZERO, is_tls)
}

fn cookie((name, value): (&str, &str), age: Duration, is_tls: bool) -> String {
    let age = age.as_secs();
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
        let name = name(headers, is_tls);
        let (_, value) = pairs.find(|(known, _)| *known == name)?;
        let (expires, digits) = value.split_once('.')?;
        let expires: u64 = expires.parse().ok()?;
        if digits.len() != 64 || !digits.is_ascii() {
            return None;
        }
        let mut mac = [0; 32];
        for (at, byte) in mac.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self { expires, mac }).filter(|session| !session.has_ended(wall))
    }

    const fn has_ended(&self, wall: Duration) -> bool {
        wall.as_secs() >= self.expires
    }

    /// Returns true if this secret has signed the session. Takes the same time for every wrong one.
    pub(super) fn is_signed_by(&self, secret: &Secret) -> bool {
        mac(secret, self.expires).is_some_and(|mac| mac.verify_slice(&self.mac).is_ok())
    }
}

/// The credentials of a request: the `Authorization` header, or else a session.
#[derive(Debug)]
pub(super) struct Credentials {
    secret: Option<Secret>,
    session: Option<Session>,
}

impl Credentials {
    pub(super) fn find(headers: &HeaderMap, wall: Duration, is_tls: bool) -> Self {
        let header = headers.get(header::AUTHORIZATION);
        let secret = header.and_then(|value| bearer(value.as_bytes())).map(Secret::new);
        let session = match secret {
            None => Session::find(headers, wall, is_tls),
            Some(_) => None,
        };
        Self { secret, session }
    }

    /// Returns true if a session was sent, valid or not.
    pub(super) const fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Returns what the sender may do.
    ///
    /// # Errors
    ///
    /// When the listener asks for a secret, and neither the secret nor the session is valid.
    pub(super) fn granted(
        &self,
        access: &Access,
        client: &Client,
        wall: Duration,
    ) -> Result<Permissions, AuthError> {
        let session = self.session.as_ref().filter(|session| !session.has_ended(wall));
        let by_session = session.and_then(|session| {
            access.granted(client.listener, |token| session.is_signed_by(token))
        });
        match by_session {
            Some(granted) => Ok(granted),
            // A session that no token has signed is a guess of a token.
            None if session.is_some() && access.has_tokens(client.listener) => {
                Err(AuthError::WrongSecret)
            }
            None => access.authenticate(client, self.secret.as_ref().map(Secret::bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Duration = Duration::from_secs(1_767_268_800);

    fn to(host: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::HOST, host.parse().unwrap())])
    }

    fn sent(cookie: &str) -> HeaderMap {
        let mut headers = to("localhost");
        headers.insert(header::COOKIE, format!("theme=dark; {cookie}").parse().unwrap());
        headers
    }

    #[test]
    fn a_session_is_valid_for_its_token_until_it_ends() {
        let (secret, other) = (Secret::new("open sesame"), Secret::new("open sesamf"));
        for is_tls in [false, true] {
            let set = begin(&secret, NOON, &to("localhost"), is_tls);
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
    fn each_port_of_a_host_has_its_own_session() {
        // Host header, name
        for (host, expected) in [
            ("localhost:6070", "tollgate-6070"),
            ("[::1]:6071", "tollgate-6071"),
            ("[::1]", "tollgate"),
            ("admin.test", "tollgate"),
            ("admin.test:x", "tollgate"),
            ("admin.test:99999", "tollgate"),
        ] {
            assert_eq!(name(&to(host), false), expected, "{host}");
            let ended = end(&to(host), true);
            assert!(ended.starts_with(&format!("__Host-{expected}=;")), "{ended}");
        }
    }

    #[test]
    fn what_a_client_makes_up_is_no_session() {
        let secret = Secret::new("open sesame");
        let good = begin(&secret, NOON, &to("localhost"), false);
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

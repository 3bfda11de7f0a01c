//! Keeps web pages from calling the service through a visitor's browser.
//!
//! A browser sends the page's `Origin` with every request that can change something, and with none
//! that a page could forge. A page whose name resolves to this server's address (DNS rebinding) is
//! its own origin, but then `Host` is a name that this server does not have.

use super::{Access, Client};
use std::fmt;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// A web page of another origin has sent it.
    Origin(String),
    /// It is addressed to a name that this server does not have.
    Host(String),
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Origin(origin) => write!(
                f,
                "a web page of another origin (\"{origin}\") sent this; list the origin in \
                 `origins` of the `server` section if its pages may call this server"
            ),
            Self::Host(host) => write!(
                f,
                "\"{host}\" is not a name of this server; if it should be, list it in `hosts` of \
                 the `server` section"
            ),
        }
    }
}

/// The headers that show the origin and the destination of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Headers<'a> {
    pub(crate) host: Option<&'a [u8]>,
    pub(crate) origin: Option<&'a [u8]>,
    /// `Sec-Fetch-Site`: browsers send it also with requests that have no `Origin`, such as those of
    /// an `<img>`.
    pub(crate) site: Option<&'a [u8]>,
}

impl Access {
    /// Checks where a request comes from, and where it goes.
    pub(crate) fn check_browser(
        &self,
        client: &Client,
        headers: &Headers<'_>,
    ) -> Result<(), Foreign> {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        if let Some(host) = headers.host
            && self.asks_for_host(client)
            && !self.is_host(client, &text(host))
        {
            return Err(Foreign::Host(shown(host)));
        }
        match (headers.origin, headers.site) {
            (Some(origin), _) => {
                let is_own = self.is_origin(&text(origin), headers.host.map(text).as_deref());
                if is_own { Ok(()) } else { Err(Foreign::Origin(shown(origin))) }
            }
            (None, None | Some(b"same-origin" | b"none")) => Ok(()),
            (None, Some(site)) => Err(Foreign::Origin(shown(site))),
        }
    }

    /// Returns true if `Host` must be a name of this server: where `hosts` says which names it has,
    /// and where nothing else keeps out a page that resolves its name to this address.
    fn asks_for_host(&self, client: &Client) -> bool {
        let is_loopback = client.local.is_some_and(|local| local.ip().to_canonical().is_loopback());
        !self.hosts.is_empty() || is_loopback && !self.has_tokens(client.listener)
    }

    fn is_host(&self, client: &Client, host: &str) -> bool {
        let name = bare_host(host);
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        let is_ours = match bare.parse::<std::net::IpAddr>().map(|address| address.to_canonical()) {
            Ok(address) => {
                let local = client.local.map(|local| local.ip().to_canonical());
                address.is_loopback() || local == Some(address)
            }
            Err(_) => name == "localhost",
        };
        is_ours || self.hosts.iter().any(|known| bare_host(known) == name)
    }

    fn is_origin(&self, origin: &str, host: Option<&str>) -> bool {
        if self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        let usual = match scheme {
            "http" => "80",
            "https" => "443",
            _ => return false,
        };
        host.is_some_and(|host| {
            bare_host(host) == bare_host(authority)
                && port(host).unwrap_or(usual) == port(authority).unwrap_or(usual)
        })
    }
}

/// Returns a value for an error: short, and without what a terminal obeys.
fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value).chars().filter(|c| !c.is_control()).take(80).collect()
}

/// Returns the port of a host, if it has one.
fn port(host: &str) -> Option<&str> {
    let (_, port) = host.rsplit_once(':')?;
    (!port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())).then_some(port)
}

/// Returns a host in lower case, without port and last dot: spellings of one host are one host.
pub(crate) fn bare_host(host: &str) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') && port.bytes().all(|b| b.is_ascii_digit()) => {
            name
        }
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Returns true if a content type is JSON, with or without parameters. A web page cannot send it to
/// another origin without that origin's consent.
pub(crate) fn is_json(kind: &[u8]) -> bool {
    let name = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let ends = |end: &[u8]| {
        name.len() >= end.len() && name[name.len() - end.len()..].eq_ignore_ascii_case(end)
    };
    name.eq_ignore_ascii_case(b"application/json") || ends(b"+json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Listener, Secret, Token};

    fn client(local: &str) -> Client {
        let local = Some(local.parse().unwrap());
        Client { listener: Listener::Http, peer: local, local }
    }

    #[test]
    fn spellings_of_one_host_are_one_host() {
        for (host, expected) in [
            ("Example.COM", "example.com"),
            ("example.com:8080", "example.com"),
            ("example.com.", "example.com"),
            ("example.com.:80", "example.com"),
            ("[2001:db8::1]:443", "[2001:db8::1]"),
            ("[2001:db8::1]", "[2001:db8::1]"),
        ] {
            assert_eq!(bare_host(host), expected, "{host}");
        }
    }

    #[test]
    fn a_page_of_another_origin_is_foreign() {
        let access = Access { origins: vec!["https://ui.test".into()], ..Access::default() };
        for (origin, host, is_own) in [
            ("http://localhost:8080", "localhost:8080", true),
            ("http://LOCALHOST:8080", "localhost:8080", true),
            ("http://localhost", "localhost", true),
            ("http://localhost", "localhost:80", true),
            ("https://localhost", "localhost:443", true),
            ("http://127.0.0.1:8080", "127.0.0.1:8080", true),
            ("http://[::1]:8080", "[::1]:8080", true),
            ("https://ui.test", "localhost:8080", true),
            ("https://ui.test:1", "localhost:8080", false),
            ("http://localhost:3000", "localhost:8080", false),
            ("http://localhost", "localhost:8080", false),
            ("http://evil.test", "localhost:8080", false),
            ("http://localhost.evil.test:8080", "localhost:8080", false),
            ("null", "localhost:8080", false),
            ("", "localhost:8080", false),
            ("file://", "localhost:8080", false),
            ("chrome-extension://localhost:8080", "localhost:8080", false),
        ] {
            let (host, origin) = (Some(host.as_bytes()), Some(origin.as_bytes()));
            let told = access
                .check_browser(&client("127.0.0.1:8080"), &Headers { host, origin, site: None });
            assert_eq!(told.is_ok(), is_own, "{told:?}");
        }
        // An image of another page has no `Origin`.
        for (site, is_own) in
            [("same-origin", true), ("none", true), ("same-site", false), ("cross-site", false)]
        {
            let headers = Headers { site: Some(site.as_bytes()), ..Headers::default() };
            let told = access.check_browser(&client("127.0.0.1:8080"), &headers);
            assert_eq!(told.is_ok(), is_own, "{site}");
        }
    }

    #[test]
    fn a_name_that_the_server_does_not_have_is_foreign() {
        let open = Access::default();
        let named = Access { hosts: vec!["Limits.test".into()], ..Access::default() };
        let token = Token::of(Listener::Http, Secret::new("x"));
        let guarded = Access { tokens: vec![token], ..Access::default() };
        for (access, local, host, is_known) in [
            (&open, "127.0.0.1:8080", "127.0.0.1:8080", true),
            (&open, "127.0.0.1:8080", "localhost:8080", true),
            (&open, "127.0.0.1:8080", "LOCALHOST.", true),
            (&open, "127.0.0.1:8080", "127.9.9.9", true),
            (&open, "127.0.0.1:8080", "[::1]:8080", true),
            (&open, "[::1]:8080", "[::1]:8080", true),
            (&open, "[::ffff:127.0.0.1]:8080", "evil.test", false),
            (&open, "127.0.0.1:8080", "evil.test:8080", false),
            (&open, "127.0.0.1:8080", "127.0.0.1.evil.test", false),
            (&open, "127.0.0.1:8080", "192.0.2.1:8080", false),
            (&open, "127.0.0.1:8080", "", false),
            // Others can reach it anyway.
            (&open, "192.0.2.1:8080", "anything.test", true),
            (&guarded, "127.0.0.1:8080", "anything.test", true),
            (&named, "192.0.2.1:8080", "limits.test:8080", true),
            (&named, "192.0.2.1:8080", "192.0.2.1:8080", true),
            (&named, "192.0.2.1:8080", "evil.test", false),
            (&named, "127.0.0.1:8080", "limits.test", true),
        ] {
            let headers = Headers { host: Some(host.as_bytes()), ..Headers::default() };
            let told = access.check_browser(&client(local), &headers);
            assert_eq!(told.is_ok(), is_known, "{local} {host} {told:?}");
        }
    }
}

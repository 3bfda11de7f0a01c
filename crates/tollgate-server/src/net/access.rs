//! Permissions on each listener: tokens, passwords, negative hits, hosts and origins.
//!
//! Every protocol calls [`Access::authenticate`] with the secret of its client, and checks that the
//! result has the permission that a request needs. A reload replaces the whole [`Access`].

use super::{Connection, Listener, Permission, Permissions, Secret, Stream};
use crate::config::ServerSettings;
use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};
use tollgate_tower::key::ClientAddress;

/// A secret, where it is valid, and what it grants there.
#[derive(Clone, Debug)]
pub struct Token {
    secret: Secret,
    listeners: Vec<Listener>,
    permissions: Permissions,
}

impl Token {
    /// Returns a token.
    #[must_use]
    pub fn new(secret: Secret, listeners: &[Listener], permissions: Permissions) -> Self {
        Self { secret, listeners: listeners.into(), permissions }
    }

    /// Returns the token that `http_token_file`, `resp_password_file` or `admin_token_file` names:
    /// it grants all that its listener offers.
    #[must_use]
    pub fn of(listener: Listener, secret: Secret) -> Self {
        Self::new(secret, &[listener], offered(listener))
    }
}

/// Returns all permissions that mean something on a listener.
const fn offered(listener: Listener) -> Permissions {
    match listener {
        Listener::Admin => Permissions::NONE.with(Permission::Read).with(Permission::Administer),
        Listener::Http | Listener::Grpc | Listener::Resp => Permissions::CLIENT,
    }
}

/// The permissions on each listener.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// All tokens and passwords. A listener that none names asks for no secret.
    pub tokens: Vec<Token>,
    /// Whether `is_negative_hits` (gRPC, `/json`) gives permits back.
    pub negative_hits: bool,
    /// Names by which clients call this server, beside loopback and the address itself.
    pub hosts: Vec<String>,
    /// Origins of web pages that may call this server, beside its own.
    pub origins: Vec<String>,
}

/// Why a client gets no permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// The listener asks for a secret, and the client has sent none.
    NoSecret,
    /// The client has sent a secret that is not valid on this listener.
    WrongSecret,
}

impl Access {
    /// Returns the rules of a server that has these tokens.
    #[must_use]
    pub fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// Reads the secrets that a configuration names.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, or holds no secret.
    pub fn read(server: &ServerSettings) -> Result<Self, String> {
        let read = |path: &PathBuf| {
            Secret::read(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let mut tokens = Vec::new();
        for (listener, path) in [
            (Listener::Http, &server.http_token_file),
            (Listener::Resp, &server.resp_password_file),
            (Listener::Admin, &server.admin_token_file),
        ] {
            if let Some(path) = path {
                tokens.push(Token::of(listener, read(path)?));
            }
        }
        for token in &server.tokens {
            tokens.push(Token::new(read(&token.file)?, &token.listeners, token.permissions));
        }
        Ok(Self {
            tokens,
            negative_hits: server.negative_hits.unwrap_or(false),
            hosts: server.hosts.clone(),
            origins: server.origins.clone(),
        })
    }

    /// Returns true if a listener asks for a secret.
    #[must_use]
    pub fn has_tokens(&self, listener: Listener) -> bool {
        self.tokens.iter().any(|token| token.listeners.contains(&listener))
    }

    /// Returns what a client may do. Takes as long for a wrong secret as for a right one.
    ///
    /// # Errors
    ///
    /// When the listener asks for a secret, and the client has sent none or a wrong one.
    pub fn authenticate(
        &self,
        client: &Client,
        secret: Option<&[u8]>,
    ) -> Result<Permissions, AuthError> {
        let listener = client.listener;
        if !self.has_tokens(listener) {
            let offered = offered(listener);
            return Ok(match (listener, client.peer) {
                // Whoever can connect over TCP could else change everything.
                (Listener::Admin, Some(_)) => Permissions::NONE.with(Permission::Read),
                _ => offered,
            });
        }
        let Some(secret) = secret else { return Err(AuthError::NoSecret) };
        self.granted(listener, |token| token.matches(secret)).ok_or(AuthError::WrongSecret)
    }

    /// Returns the permissions of a listener's tokens that `is_it` finds; checks every token.
    pub(crate) fn granted(
        &self,
        listener: Listener,
        is_it: impl Fn(&Secret) -> bool,
    ) -> Option<Permissions> {
        let tokens = self.tokens.iter().filter(|token| token.listeners.contains(&listener));
        tokens
            .filter(|token| is_it(&token.secret))
            .fold(None, |granted, token| Some(token.permissions.or(granted.unwrap_or_default())))
    }

    /// Returns why a client with these permissions may not send negative hits; `None` if it may.
    #[must_use]
    pub fn refuses_negative_hits(&self, granted: Permissions) -> Option<&'static str> {
        match () {
            () if !self.negative_hits => Some(
                "this server rejects negative hits; set `negative_hits: true` in its `server` \
                 section to let clients give permits back",
            ),
            () if !granted.has(Permission::Settle) => {
                Some("negative hits need the permission `settle`, which this token does not grant")
            }
            () => None,
        }
    }
}

/// The properties of a connection that [`Access`] checks.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The listener that it has connected to.
    pub listener: Listener,
    /// Its address; none for Unix sockets.
    pub peer: Option<SocketAddr>,
    /// The address that it has connected to; none for Unix sockets.
    pub local: Option<SocketAddr>,
}

impl Client {
    /// Returns the client of a connection.
    #[must_use]
    pub fn new(stream: &Stream, connection: &Connection) -> Self {
        let local = stream.local();
        // A Unix socket has no address, so one who has one came over TCP.
        Self { listener: connection.listener, peer: connection.peer.or(local), local }
    }

    /// Returns the source that wrong secrets are counted by: an IPv4 address, the /64 network of an
    /// IPv6 address, or `::` for all Unix sockets.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.peer.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |peer| network(peer.ip()))
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "{peer}"),
            None => f.write_str("unix"),
        }
    }
}

/// Returns an IPv4 address as it is, even if it is written as IPv6 or comes through NAT64, and the
/// /64 network of an IPv6 address: one client has at least that many addresses.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    ClientAddress::peer().counted(address)
}

/// Returns the token of an `Authorization` header. Its scheme may be in any case.
#[must_use]
pub fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

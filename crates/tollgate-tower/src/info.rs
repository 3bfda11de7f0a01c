//! The parts of a request that layers read before it runs.

use http::{Extensions, HeaderMap, Method, Request, Uri, Version, header};
use std::{borrow::Cow, net::SocketAddr};

/// The parts of a request that layers read before it runs: all but its body.
#[derive(Clone, Copy, Debug)]
pub struct Info<'a> {
    method: &'a Method,
    uri: &'a Uri,
    version: Version,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

/// The address of the other end of the connection.
///
/// Put it into the extensions of a request where neither axum's `ConnectInfo` nor tonic's
/// `TcpConnectInfo` is there (features `axum` and `tonic`). It takes precedence over both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub SocketAddr);

impl<'a> Info<'a> {
    /// Returns the info of a request.
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// Returns the method.
    #[must_use]
    pub const fn method(&self) -> &'a Method {
        self.method
    }

    /// Returns the URI.
    #[must_use]
    pub const fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// Returns the HTTP version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the headers.
    #[must_use]
    pub const fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// Returns the values that other layers have attached to the request.
    #[must_use]
    pub const fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// Returns the server that a request is for, as host and port in lower case: the authority of its
    /// URI, else its `Host` header; empty if it has neither.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Request;
    /// use tollgate_tower::Info;
    ///
    /// let request = Request::get("http://me@API.example:8080/path").body(())?;
    /// assert_eq!(Info::of(&request).authority(), "api.example:8080");
    /// # Ok::<(), http::Error>(())
    /// ```
    #[must_use]
    pub fn authority(&self) -> Cow<'a, str> {
        let host = || self.headers.get(header::HOST)?.to_str().ok();
        let text = self.uri.authority().map(http::uri::Authority::as_str).or_else(host);
        let text = text.unwrap_or_default();
        let text = text.rsplit('@').next().unwrap_or(text);
        match text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => text.to_ascii_lowercase().into(),
            false => text.into(),
        }
    }

    /// Returns the address of the other end of the connection, if the extensions have it.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        if let Some(Peer(address)) = self.extensions.get() {
            return Some(*address);
        }
        #[cfg(feature = "axum")]
        if let Some(axum::extract::ConnectInfo(address)) = self.extensions.get() {
            return Some(*address);
        }
        #[cfg(feature = "axum")]
        if let Some(axum::extract::connect_info::MockConnectInfo(address)) = self.extensions.get() {
            return Some(*address);
        }
        #[cfg(feature = "tonic")]
        if let Some(info) = self.extensions.get::<tonic::transport::server::TcpConnectInfo>() {
            return info.remote_addr();
        }
        None
    }

    /// Returns the route that a router has matched, as it was written (`/users/{id}`): axum's
    /// matched path (feature `axum`). A call of gRPC has none: its method is the
    /// [path](crate::Key::path).
    #[must_use]
    pub fn route(&self) -> Option<&'a str> {
        #[cfg(feature = "axum")]
        if let Some(path) = self.extensions.get::<axum::extract::MatchedPath>() {
            return Some(path.as_str());
        }
        None
    }

    /// Tells whether this is a call of gRPC.
    #[must_use]
    pub fn is_grpc(&self) -> bool {
        is_grpc(self.headers)
    }
}

/// Tells whether these are the headers of a call of gRPC, or of its answer.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(http::header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    kind.and_then(|kind| kind.strip_prefix(b"application/grpc"))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"+") || rest.starts_with(b";"))
}

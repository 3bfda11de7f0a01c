//! Maps requests to their handlers, and checks the permissions of the caller.

use super::{
    change,
    events::Events,
    explain::explain,
    policies::{policies, policy},
    query::{Query, decoded},
    read,
    reply::{
        Extra, Problem, Reply, events_reply, json_reply, json_text_reply, metrics_reply, redirect,
        text_reply, with_cookie,
    },
    session::{self, Credentials},
    ui,
};
use crate::{
    metrics::{Exposition, Format},
    net::{
        AuthError, Client, Listener, Penalty, Permission, Permissions, Secret,
        browser::{Foreign, Headers, is_json},
    },
    server::Shared,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::Value;
use std::{
    convert::Infallible,
    fmt::Write,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// The connection that a request came by.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) client: Client,
    pub(super) is_tls: bool,
    /// Set while the connection is in use; its idle timeout clears it.
    pub(super) active: Arc<AtomicBool>,
}

/// The access that an endpoint needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everybody.
    Open,
    /// Everybody, but the response shows whether a token is right: a wrong token delays it.
    Page,
    /// Callers with the token, if one is set.
    Read,
    /// Callers with the token; if none is set, callers over the Unix socket.
    Change,
}

/// The endpoints: method, path, access, and description.
const ENDPOINTS: [(&str, &str, Access, &str); 27] = [
    ("GET", "/", Access::Open, "this list; browsers get the dashboard"),
    ("GET", "/ui/", Access::Page, "the dashboard; with a token set, its login page"),
    ("GET", "/ui/{file}", Access::Open, "scripts and styles of the dashboard"),
    ("POST", "/login", Access::Open, "token=...: begins the session of a browser"),
    ("POST", "/logout", Access::Open, "ends it"),
    ("GET", "/events", Access::Read, "live figures as server-sent events"),
    ("GET", "/health", Access::Open, "the process is alive"),
    (
        "GET",
        "/ready",
        Access::Open,
        "200 while it serves, 503 while it starts or shuts down; with ?strict=1 also 503 while \
         degraded",
    ),
    ("GET", "/version", Access::Open, "version of tollgate"),
    ("GET", "/metrics", Access::Open, "metrics for Prometheus"),
    ("GET", "/health/detail", Access::Read, "current problems: ?percent=95&least=20"),
    (
        "GET",
        "/policies",
        Access::Read,
        "?domain= &filter= &only= &sort= &limit= &offset= &history=",
    ),
    ("GET", "/policies/{name}", Access::Read, "one policy, by name, domain/name or id"),
    ("GET", "/top", Access::Read, "the most active and the most denied keys: ?policy= &n="),
    ("GET", "/key", Access::Read, "one key: ?policy= &key= (once for each value)"),
    (
        "GET",
        "/explain",
        Access::Read,
        "which limits a request would meet, and why: ?domain= &entry=key=value &cost=",
    ),
    (
        "GET",
        "/specials",
        Access::Read,
        "blocked and overridden keys, bypassed policies, and until when",
    ),
    ("GET", "/config", Access::Read, "files, version, result of the last load"),
    ("GET", "/store", Access::Read, "kind, keys, bytes, errors, snapshots"),
    ("GET", "/audit", Access::Read, "the last changes: ?n="),
    ("POST", "/reset", Access::Change, "{policy, key | keys}: reset a key's usage"),
    ("POST", "/block", Access::Change, "{policy, key | keys, for_ms}: block a key"),
    ("POST", "/unblock", Access::Change, "{policy, key | keys}: end a block or ban"),
    ("POST", "/override", Access::Change, "{policy, key | keys, limit, for_ms}: set a key's quota"),
    ("POST", "/override/clear", Access::Change, "{policy, key | keys}; also DELETE /override"),
    (
        "POST",
        "/bypass",
        Access::Change,
        "{policy, for_ms}: let every request pass; for_ms 0 ends it",
    ),
    ("POST", "/reload", Access::Change, "reload the configuration"),
];

/// The beginnings of paths that end with a name.
const POLICY: &str = "/policies/";
const FILE: &str = "/ui/";

/// Answers a request.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    peer: &Peer,
    request: Request<Incoming>,
) -> Result<Reply, Infallible> {
    let mut reply = match respond(shared, peer, request).await {
        Ok(reply) => reply,
        Err(problem) => {
            if problem.status.is_client_error() {
                shared.traffic(Listener::Admin).bad_request();
            }
            problem.into_reply()
        }
    };
    if *shared.drain().borrow() {
        reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(reply)
}

async fn respond(
    shared: &Arc<Shared>,
    peer: &Peer,
    request: Request<Incoming>,
) -> Result<Reply, Problem> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    if path == "/login" && head.method == Method::GET {
        // The browser reloads the page after a wrong token.
        return Ok(redirect(FILE));
    }
    let (action, access) = endpoint(&head.method, path)?;
    let credentials = Credentials::find(&head.headers, wall(shared), peer.is_tls);
    let granted = authorize(shared, peer, (access, &credentials), &head.headers).await?;
    let query = Query::parse(head.uri.query().unwrap_or("")).map_err(Problem::bad)?;
    if access == Access::Change {
        query.only(&[]).map_err(Problem::bad)?;
        let body = read_body(shared, body).await?;
        check_type(&head.headers, &body)?;
        return change::change(shared, &peer.client, action, &body).await;
    }
    let value = match action {
        "/" if accepts(&head.headers, "text/html") => return Ok(redirect(FILE)),
        "/" => return Ok(text_reply(index())),
        "/ui/" if granted.has(Permission::Read) => return file(ui::PAGE, &head.headers),
        "/ui/" => {
            // Ends an invalid session, so that the browser does not send it again.
            let ends = credentials.has_session().then(|| session::end(&head.headers, peer.is_tls));
            return Ok(with_cookie(ui::login(StatusCode::OK, ""), ends));
        }
        // Only `/ui/` serves the page, because it checks the session.
        "/ui/{file}" => {
            let name = path[FILE.len()..].trim_end_matches(ui::PAGE);
            return file(name, &head.headers);
        }
        "/login" => {
            let body = read_body(shared, body).await?;
            return login(shared, peer, &head.headers, body).await;
        }
        "/logout" => {
            let ends = session::end(&head.headers, peer.is_tls);
            return Ok(with_cookie(redirect(FILE), Some(ends)));
        }
        "/events" => {
            let reader = Reader { client: peer.client, credentials, granted };
            return Events::open(shared, &peer.active, reader).map(events_reply);
        }
        "/metrics" => {
            let accepted = head.headers.get(header::ACCEPT);
            let accepted = accepted.and_then(|accepted| accepted.to_str().ok()).unwrap_or("");
            return Ok(metrics_reply(Exposition::new(shared, Format::accepted(accepted))));
        }
        "/health" => read::health(&query),
        "/ready" => return read::ready(shared, &query),
        "/version" => read::version(&query),
        "/health/detail" => return read::detail(shared, &query),
        "/policies" => return policies(shared, &query).await.map(json_text_reply),
        "/policies/{name}" => {
            let name = decoded(&path[POLICY.len()..], false).map_err(Problem::bad)?;
            policy(shared, &String::from_utf8_lossy(&name), &query)
        }
        "/top" => read::top(shared, &query),
        "/key" => read::key(shared, &query).await,
        "/explain" => explain(shared, &query).await,
        "/specials" => read::specials(shared, &query),
        "/config" => read::config(shared, &query),
        "/store" => read::store(shared, &query),
        _ => read::audit(shared, &query),
    };
    value.map(|value: Value| json_reply(StatusCode::OK, &value))
}

/// Finds the endpoint of a request: its path in the list, and the access that it needs.
fn endpoint(method: &Method, path: &str) -> Result<(&'static str, Access), Problem> {
    let goes_on = |start: &str| path.len() > start.len() && path.starts_with(start);
    let path = match () {
        () if goes_on(POLICY) => "/policies/{name}",
        () if goes_on(FILE) => "/ui/{file}",
        () => path,
    };
    let Some((wanted, known, access, _)) = ENDPOINTS.iter().find(|(_, known, ..)| *known == path)
    else {
        let path: String = path.chars().take(80).collect();
        let text = format!("there is nothing at \"{path}\"; `endpoints` lists all paths");
        let endpoints = ENDPOINTS.iter().map(|(method, path, ..)| format!("{method} {path}"));
        let extra = Some(Extra::Endpoints(endpoints.collect()));
        return Err(Problem { extra, ..Problem::new(StatusCode::NOT_FOUND, text) });
    };
    let is_head = *wanted == "GET" && method == Method::HEAD;
    match (*known, method) {
        ("/override", &Method::DELETE) => Ok(("/override/clear", Access::Change)),
        _ if is_head || method.as_str() == *wanted => Ok((known, *access)),
        _ => {
            let text = format!("{known} accepts {wanted}, not {method}");
            let extra = Some(Extra::Allow(wanted));
            Err(Problem { extra, ..Problem::new(StatusCode::METHOD_NOT_ALLOWED, text) })
        }
    }
}

/// Returns what the sender of a request may do.
///
/// # Errors
///
/// When the sender lacks the permission that the endpoint needs, with the reason.
async fn authorize(
    shared: &Shared,
    peer: &Peer,
    (endpoint, credentials): (Access, &Credentials),
    headers: &HeaderMap,
) -> Result<Permissions, Problem> {
    let Peer { client, .. } = peer;
    let header = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    let access = shared.access();
    // Only `Origin` matters: a request without it changes nothing here.
    let browser =
        Headers { host: header(header::HOST), origin: header(header::ORIGIN), site: None };
    access.check_browser(client, &browser).map_err(|foreign| {
        let status = match foreign {
            Foreign::Origin(_) => StatusCode::FORBIDDEN,
            Foreign::Host(_) => StatusCode::MISDIRECTED_REQUEST,
        };
        Problem::new(status, foreign.to_string())
    })?;
    let granted = credentials.granted(&access, client, wall(shared));
    let has_tokens = access.has_tokens(Listener::Admin);
    // A reload must not wait for a request that waits below.
    drop(access);
    let is_wrong = granted == Err(AuthError::WrongSecret) && endpoint != Access::Open;
    let closes = is_wrong && Penalty::of(shared, client).served(shared).await;
    let needed = match endpoint {
        Access::Open | Access::Page if !closes => return Ok(granted.unwrap_or_default()),
        Access::Open | Access::Page | Access::Read => Permission::Read,
        Access::Change => Permission::Administer,
    };
    let by_session = has_tokens && granted.is_ok() && credentials.has_session();
    if needed == Permission::Administer && by_session && browser.origin.is_none() {
        let text = "a session may change something only from a page of this server, and this \
                    request has no `Origin`; send the token as `Authorization: Bearer ...`";
        return Err(Problem::new(StatusCode::FORBIDDEN, text));
    }
    match granted {
        Ok(granted) if granted.has(needed) => Ok(granted),
        Ok(_) if has_tokens => {
            let text =
                format!("this needs the permission `{needed}`, which this token does not grant");
            Err(Problem::new(StatusCode::FORBIDDEN, text))
        }
        Ok(_) => Err(Problem::new(StatusCode::FORBIDDEN, NO_TOKEN)),
        Err(_) => {
            let text = "send the token of this server as `Authorization: Bearer ...`";
            let extra = Some(Extra::Authenticate { closes });
            Err(Problem { extra, ..Problem::new(StatusCode::UNAUTHORIZED, text) })
        }
    }
}

/// Why nobody can change anything over TCP.
const NO_TOKEN: &str = "changes need a token, and none is set: start the server with \
    `admin_token_file`, or use a Unix socket as `admin` endpoint";

/// The reader of a stream, and what it may do.
#[derive(Debug)]
pub(super) struct Reader {
    client: Client,
    credentials: Credentials,
    granted: Permissions,
}

impl Reader {
    pub(super) const fn may_change(&self) -> bool {
        self.granted.has(Permission::Administer)
    }

    /// Returns why the page offers no actions; `None` if it does.
    pub(super) fn read_only_because(&self, shared: &Shared) -> Option<&'static str> {
        (!self.may_change()).then(|| match shared.access().has_tokens(Listener::Admin) {
            true => "your token grants `read`, and changes need `administer`",
            false => NO_TOKEN,
        })
    }

    /// Tells whether the reader has the permissions that it had when the stream began: its session
    /// has not ended, and no reload has removed its token.
    pub(super) fn is_unchanged(&self, shared: &Shared) -> bool {
        self.credentials.granted(&shared.access(), &self.client, wall(shared)) == Ok(self.granted)
    }
}

fn wall(shared: &Shared) -> Duration {
    shared.engine.clock().to_wall(shared.engine.now())
}

/// Begins the session of a browser, if the form holds a right token.
async fn login(
    shared: &Shared,
    peer: &Peer,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Reply, Problem> {
    let form = Query::parse(&String::from_utf8_lossy(&body)).map_err(Problem::bad)?;
    form.only(&["token"]).map_err(Problem::bad)?;
    // People paste the token with its line end.
    let token = form.all("token").next().unwrap_or_default().trim_ascii();
    let granted = shared.access().authenticate(&peer.client, Some(token));
    match granted {
        Ok(granted) if granted.has(Permission::Read) => {
            let secret = Secret::new(token);
            let begins = session::begin(&secret, wall(shared), headers, peer.is_tls);
            Ok(with_cookie(redirect(FILE), Some(begins)))
        }
        Ok(_) => Ok(ui::login(
            StatusCode::FORBIDDEN,
            "This token does not grant the permission to read.",
        )),
        Err(_) => {
            let closes = Penalty::of(shared, &peer.client).served(shared).await;
            let mut reply =
                ui::login(StatusCode::UNAUTHORIZED, "That is not the token of this server.");
            if closes {
                reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(reply)
        }
    }
}

/// Returns true if a client accepts a type by its name.
fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|one| {
        let name = one.split(';').next().unwrap_or_default();
        name.trim().eq_ignore_ascii_case(kind)
    })
}

/// Returns a file of the dashboard.
fn file(name: &str, headers: &HeaderMap) -> Result<Reply, Problem> {
    let known = headers.get(header::IF_NONE_MATCH).map(HeaderValue::as_bytes);
    ui::file(name, known).ok_or_else(|| {
        let name: String = name.chars().take(80).collect();
        Problem::new(StatusCode::NOT_FOUND, format!("the dashboard has no file \"{name}\""))
    })
}

/// Refuses a body that a web page could send to any server without a preflight request.
fn check_type(headers: &HeaderMap, body: &[u8]) -> Result<(), Problem> {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if kind.map_or(body.is_empty(), is_json) {
        return Ok(());
    }
    let kind: String = String::from_utf8_lossy(kind.unwrap_or_default()).chars().take(80).collect();
    let text = format!("Content-Type is \"{kind}\"; send application/json (`curl --json`)");
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
}

async fn read_body(shared: &Shared, body: Incoming) -> Result<Bytes, Problem> {
    let (most, time) = (shared.settings.max_request, shared.settings.request_timeout);
    match tokio::time::timeout(time, Limited::new(body, most).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is longer than {most} bytes"),
        )),
        Ok(Err(error)) => Err(Problem::bad(format!("the body could not be read: {error}"))),
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} ms", time.as_millis()),
        )),
    }
}

fn index() -> String {
    let mut text = format!("tollgate {}, admin API\n\n", env!("CARGO_PKG_VERSION"));
    for (method, path, access, does) in &ENDPOINTS {
        let mark = if *access == Access::Change { "*" } else { " " };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{method:<4} {path:<18}{mark} {does}");
    }
    text.push_str("\n* changes something: needs a token that grants `administer`, or a Unix socket if no token is set\n");
    text
}

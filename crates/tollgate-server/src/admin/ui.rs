//! The dashboard: files that are compiled into the program, so that it needs no network and no build step.
//!
//! uPlot (`ui/uplot.js`, `ui/uplot.css`, MIT, `ui/uplot.LICENSE`) draws the charts; the rest is written
//! here. The policy below lets the page run only scripts and styles of this server and talk only to it.

use super::reply::{Reply, reply};
use http::{HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The policy of these pages: what a browser may load and do.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// The page itself.
pub(super) const PAGE: &str = "index.html";

/// Name, content type, bytes.
const FILES: [(&str, &str, &[u8]); 12] = [
    (PAGE, HTML, include_bytes!("ui/index.html")),
    ("app.js", SCRIPT, include_bytes!("ui/app.js")),
    ("policy_views.js", SCRIPT, include_bytes!("ui/policy_views.js")),
    ("key_views.js", SCRIPT, include_bytes!("ui/key_views.js")),
    ("state_views.js", SCRIPT, include_bytes!("ui/state_views.js")),
    ("parts.js", SCRIPT, include_bytes!("ui/parts.js")),
    ("actions.js", SCRIPT, include_bytes!("ui/actions.js")),
    ("draw.js", SCRIPT, include_bytes!("ui/draw.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("ui/icon.svg")),
    ("app.css", STYLE, include_bytes!("ui/app.css")),
    ("uplot.js", SCRIPT, include_bytes!("ui/uplot.js")),
    ("uplot.css", STYLE, include_bytes!("ui/uplot.css")),
];

/// Returns a file of the dashboard; `None` if there is none of that name. `known` is the `If-None-Match`
/// header of the request.
pub(super) fn file(name: &str, known: Option<&[u8]>) -> Option<Reply> {
    let (_, kind, bytes) = FILES.iter().find(|(known, ..)| *known == name)?;
    let tag = tag(bytes);
    let mut reply = match known {
        Some(known) if known == tag.as_bytes() => reply(StatusCode::NOT_MODIFIED, kind, ""),
        _ => reply(StatusCode::OK, kind, *bytes),
    };
    if let Ok(tag) = HeaderValue::try_from(tag) {
        reply.headers_mut().insert(header::ETAG, tag);
    }
    // Browsers ask again each time, and get 304 if nothing has changed.
    reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Some(protected(reply))
}

/// Returns the login page, with a notice. It is text of ours, never of a client.
pub(super) fn login(status: StatusCode, notice: &'static str) -> Reply {
    let page = include_str!("ui/login.html").replace("{notice}", notice);
    protected(reply(status, HTML, page))
}

/// Adds the headers that keep a browser from doing more than these pages need.
fn protected(mut reply: Reply) -> Reply {
    let headers = reply.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Not `no-referrer`: browsers would send the login with `Origin: null`.
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    reply
}

/// Returns the entity tag of a file: the first 16 bytes of its SHA-256.
fn tag(bytes: &[u8]) -> String {
    let mut tag = String::from("\"");
    for byte in &Sha256::digest(bytes)[..16] {
        // Writing to a String cannot fail.
        let _ = write!(tag, "{byte:02x}");
    }
    tag.push('"');
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files are those that the project uPlot has published as version 1.6.32 (`dist/uPlot.iife.min.js`
    /// and `dist/uPlot.min.css` of its npm package).
    #[test]
    fn the_vendored_chart_library_is_unchanged() {
        let sum = |name: &str| {
            let (.., bytes) = FILES.iter().find(|(known, ..)| *known == name).unwrap();
            Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let script = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f";
        let style = "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04";
        assert_eq!((sum("uplot.js").as_str(), sum("uplot.css").as_str()), (script, style));
    }

    #[test]
    fn no_file_refers_to_another_server_or_needs_inline_code() {
        for (name, kind, bytes) in FILES {
            let text = std::str::from_utf8(bytes).unwrap();
            if name.starts_with("uplot") {
                continue;
            }
            assert!(!text.contains("innerHTML"), "{name}: keys are hostile text; use textContent");
            let outside = text.match_indices("://").map(|(at, _)| &text[at.saturating_sub(5)..]);
            let outside: Vec<_> =
                outside.filter(|rest| !rest.starts_with("http://www.w3.org/2000/svg")).collect();
            assert!(
                outside.iter().all(|rest| rest[5..].starts_with("://www.w3.org/2000/svg")),
                "{name}"
            );
            if kind == HTML {
                assert!(!text.contains("style=") && !text.contains(" onclick"), "{name}");
            }
        }
    }
}

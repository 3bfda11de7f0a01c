//! What clients choose reaches the log without its control characters.

use crate::process::{Service, http};

const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 1/year}}
";

#[test]
fn keys_cannot_forge_lines_or_reach_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    for (format, escaped) in [
        ("text", r"a\u{1b}[31m\nERROR forged\u{9b}2J\u{202e}"),
        ("json", r"a\u001b[31m\nERROR forged"),
    ] {
        let flags = ["--denial-log", "1", "--log-keys", "--log-format", format];
        let service = Service::start(folder.path(), YAML, &flags);
        let key = r"a\u001b[31m\nERROR forged\u009b2J\u202e";
        let body = format!(r#"{{"policy":"k","key":"{key}"}}"#);
        assert_eq!(http(service.http, "POST", "/v1/check", &body).0, 200);
        assert_eq!(http(service.http, "POST", "/v1/check", &body).0, 429);
        let line = service.log_line("denied");
        assert!(line.contains(escaped), "{line:?}");
        assert!(!line.contains('\x1b'), "{line:?}");
    }
}

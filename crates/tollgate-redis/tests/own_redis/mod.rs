//! A server for one test, on a port that the system gives to nobody, stopped by its process id.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::Duration,
};
use tollgate_redis::{Link, Settings};

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    /// Starts a server and waits until it answers.
    pub(crate) async fn start() -> Self {
        Self::start_on(free_port()).await
    }

    /// Ends the server and starts one with nothing in it, on the same port.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) async fn again(self) -> Self {
        let port = self.port;
        drop(self);
        Self::start_on(port).await
    }

    async fn start_on(port: u16) -> Self {
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server runs; install it with `apt-get install redis-server`");
        let server = Self { child, port };
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        for _ in 0..500 {
            pause.tick().await;
            if server.link().ready(Duration::from_secs(1)).await.is_ok() {
                return server;
            }
        }
        panic!("redis-server on port {port} does not answer within 10 s");
    }

    /// Returns a link with patience for a busy machine.
    pub(crate) fn link(&self) -> Link {
        let mut settings: Settings = format!("redis://127.0.0.1:{}", self.port).parse().unwrap();
        settings.deadline = Duration::from_secs(5);
        Link::open(settings).unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a free port below those that the system gives out by itself.
fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97).wrapping_add(CALLS.fetch_add(1, SeqCst) * 13);
    let mut ports = (0..12_000).map(|step| 20_000 + (start.wrapping_add(step) % 12_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

//! Starts real servers, each on a free port, stopped by its own process id.
#![allow(dead_code, reason = "each test uses its part")]

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Returns a free port below those that the system gives out by itself.
pub(crate) fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97).wrapping_add(CALLS.fetch_add(1, SeqCst) * 13);
    let mut ports = (0..12_000).map(|step| 20_000 + (start.wrapping_add(step) % 12_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

/// A server that runs.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) folder: tempfile::TempDir,
    args: Vec<String>,
    child: Child,
}

impl Server {
    /// Starts one with more arguments.
    pub(crate) async fn start(args: &[&str]) -> Self {
        Self::start_at(free_port(), args).await
    }

    pub(crate) async fn start_at(port: u16, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut all: Vec<String> = Vec::new();
        if !args.iter().any(|arg| arg.ends_with(".conf")) {
            let base = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""];
            all.extend(base.map(String::from));
        }
        all.extend(args.iter().map(ToString::to_string));
        let child = spawn(&all, folder.path());
        let server = Self { port, folder, args: all, child };
        server.answers().await;
        server
    }

    /// Waits until it answers.
    pub(crate) async fn answers(&self) {
        let answered = async {
            loop {
                if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)).await
                    && stream.write_all(b"PING\r\n").await.is_ok()
                    && stream.read_u8().await.is_ok()
                {
                    return;
                }
                pause(5).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), answered)
            .await
            .expect("redis-server answers");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, at the same port, and does not wait for it.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.args, self.folder.path());
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs redis-cli against it, and returns what it prints.
    pub(crate) fn cli(&self, args: &[&str]) -> String {
        cli(self.port, args)
    }
}

pub(crate) fn cli(port: u16, args: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .args(["-p", &port.to_string()])
        .args(args)
        .output()
        .expect("redis-cli; install redis-tools");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn spawn(args: &[String], folder: &std::path::Path) -> Child {
    Command::new("redis-server")
        .args(args)
        .current_dir(folder)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server; install redis-server")
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets some milliseconds pass.
pub(crate) async fn pause(ms: u64) {
    let _ = tokio::time::timeout(Duration::from_millis(ms), std::future::pending::<()>()).await;
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            pause(2).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), wait).await.unwrap_or_else(|_| panic!("{what}"));
}

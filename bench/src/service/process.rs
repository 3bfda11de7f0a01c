//! Servers as processes: started on free ports, stopped by their own process.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that ends when this is dropped.
pub(super) struct Server {
    child: Child,
}

impl Server {
    /// Starts a process and discards its output.
    pub(super) fn spawn(command: &mut Command) -> Result<Self, String> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Ok(Self { child }),
            Err(error) => Err(format!("{}: {error}", command.get_program().display())),
        }
    }

    /// Returns the resident bytes of the process.
    pub(super) fn resident_bytes(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().trim_end_matches(" kB").trim().parse::<f64>().ok()? * 1024.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a port without a listener.
pub(super) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

/// Waits until a server accepts, and answers a question if one is given.
pub(super) fn wait_for(
    server: &mut Server,
    address: &str,
    question: Option<(&str, &str)>,
) -> Result<(), String> {
    let start = Instant::now();
    loop {
        if let Ok(Some(status)) = server.child.try_wait() {
            return Err(format!("the server ended at once: {status}"));
        }
        let ready = match question {
            None => TcpStream::connect(address).is_ok(),
            Some((question, start)) => {
                ask(address, question).is_some_and(|answer| answer.starts_with(start))
            }
        };
        if ready {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("the server does not answer on {address}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a few bytes and returns the first that come back.
pub(super) fn ask(address: &str, question: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.write_all(question.as_bytes()).ok()?;
    let mut answer = [0; 512];
    let count = stream.read(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..count]).into_owned())
}

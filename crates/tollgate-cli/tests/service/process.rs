//! A server process, and plain clients.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

/// How long a reply may take before the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A `tollgate serve` on free ports. It is killed when dropped.
pub(crate) struct Service {
    child: Child,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) admin: SocketAddr,
    folder: PathBuf,
    log: Mutex<mpsc::Receiver<String>>,
}

pub(crate) const TOKEN: &str = "let me in";

impl Service {
    /// Starts a server with its files in `folder`.
    pub(crate) fn start(folder: &Path, yaml: &str, flags: &[&str]) -> Self {
        let config = folder.join("limits.yaml");
        std::fs::write(&config, yaml).unwrap();
        let token = folder.join("token");
        std::fs::write(&token, TOKEN).unwrap();
        let mut command = serve();
        command.arg(&config).arg("--admin-token-file").arg(&token).args(flags);
        Self::spawn(folder, &mut command)
    }

    /// Starts a server by a command of [`serve`].
    pub(crate) fn spawn(folder: &Path, command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (found, log) = endpoints(child.stderr.take().unwrap());
        let address = |name: &str| {
            let line = found.iter().find(|line| line.starts_with(&format!("listening {name} ")));
            let line = line.unwrap_or_else(|| panic!("no {name} in {found:?}"));
            line.split(' ').nth(2).unwrap().parse().unwrap()
        };
        let (http, grpc) = (address("http"), address("grpc"));
        let (resp, admin) = (address("resp"), address("admin"));
        Self { child, http, grpc, resp, admin, folder: folder.into(), log: log.into() }
    }

    /// Returns the next line of the log that has this in it.
    pub(crate) fn log_line(&self, part: &str) -> String {
        loop {
            let line = self.log.lock().unwrap().recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("no line of the log has {part:?}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    pub(crate) fn write_config(&self, yaml: &str) {
        // As editors and ConfigMaps do: the new file takes the place of the old one at once.
        let (path, new) = (self.folder.join("limits.yaml"), self.folder.join("new"));
        std::fs::write(&new, yaml).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let done = Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
        assert!(done.success(), "kill -{name} {pid}");
    }

    /// Waits for the process to end. Tells whether it ended well.
    pub(crate) fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The memory that the process has now, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    pub(crate) fn admin(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        http(self.admin, method, path, body)
    }

    pub(crate) fn client(&self) -> Resp {
        Resp::connect(self.resp)
    }
}

/// Returns `tollgate serve` on free ports.
pub(crate) fn serve() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("serve");
    for listener in ["--http", "--grpc", "--resp", "--admin"] {
        command.args([listener, "127.0.0.1:0"]);
    }
    command
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the greeting; what comes later is read at once, so that the server never waits for it.
fn endpoints(stderr: impl Read + Send + 'static) -> (Vec<String>, mpsc::Receiver<String>) {
    let (found, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            // The warnings and errors of a service show why a test fails.
            if line.contains(" WARN ") || line.contains(" ERROR ") {
                eprintln!("{line}");
            }
            let json: Option<serde_json::Value> = serde_json::from_str(&line).ok();
            let line = match json.as_ref().map(|json| &json["fields"]) {
                Some(fields) if fields["message"] == "listening" => {
                    let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
                    format!("listening {} {}", text("listener"), text("address"))
                }
                _ => line,
            };
            let _ = found.send(line);
        }
    });
    let mut all = Vec::new();
    while all.iter().filter(|line: &&String| line.starts_with("listening ")).count() < 4 {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) => all.push(line),
            Err(_) => panic!("the server did not start: {all:#?}"),
        }
    }
    (all, lines)
}

/// A plain client of the Redis protocol.
pub(crate) struct Resp {
    stream: BufReader<TcpStream>,
}

impl Resp {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, command: &str, times: usize) {
        let line = format!("{command}\r\n").repeat(times);
        self.stream.get_mut().write_all(line.as_bytes()).unwrap();
    }

    /// Reads one reply as text: arrays as `[a, b]`.
    pub(crate) fn reply(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "*" => {
                let count: usize = rest.parse().unwrap();
                let items: Result<Vec<_>, _> = (0..count).map(|_| self.reply()).collect();
                Ok(format!("[{}]", items?.join(", ")))
            }
            "$" if rest != "-1" => {
                let mut text = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut text)?;
                Ok(String::from_utf8_lossy(&text).trim_end().into())
            }
            "+" | ":" => Ok(rest.into()),
            _ => Ok(line.trim_end().into()),
        }
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.send(command, 1);
        self.reply().unwrap()
    }

    /// Sends a command several times at once, and counts the replies whose first item is 1.
    pub(crate) fn count_ones(&mut self, command: &str, times: usize) -> std::io::Result<usize> {
        self.send(command, times);
        let mut ones = 0;
        for _ in 0..times {
            let reply = self.reply()?;
            assert!(reply.starts_with('['), "{reply}");
            ones += usize::from(reply.starts_with("[1,"));
        }
        Ok(ones)
    }
}

/// Sends one request on a new connection.
pub(crate) fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.into())
}

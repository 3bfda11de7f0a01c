//! One server.

mod builder;

pub use builder::{RedisBuilder, Tls};

use crate::{
    Flavor,
    faketime::{FakeTime, duration_ns},
    port::Port,
    program::{Process, Start},
    resp::{self, Endpoint},
    tls::Certificates,
    wait::{poll, within},
};
use rustix::process::Signal;
use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

/// How long a server may take until it answers. It takes some ten milliseconds on an idle machine.
const READY: Duration = Duration::from_secs(20);

/// A server of its own, in a folder of its own. It is killed when this value is dropped.
///
/// # Examples
///
/// ```
/// use tollgate_rig::{Flavor, Redis};
///
/// let redis = Redis::start(Flavor::Redis);
/// assert_eq!(redis.cli(&["SET", "key", "value"]), "OK");
/// assert!(redis.url().starts_with("redis://127.0.0.1:"));
/// ```
#[derive(Debug)]
pub struct Redis {
    flavor: Flavor,
    sentinel: bool,
    password: Option<String>,
    certificates: Option<Certificates>,
    process: Process,
    frozen: bool,
    faketime: Option<FakeTime>,
    /// The plain port, unless TLS is the only way in.
    plain: Option<Port>,
    /// The port with TLS.
    secure: Option<Port>,
    /// The bus of a cluster.
    bus: Option<Port>,
    // Dropped after the process that uses it.
    folder: TempDir,
}

impl Redis {
    /// Starts a server without password, without persistence, on a free port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// If the program is missing or does not answer within 20 s. The message has its log.
    #[must_use]
    pub fn start(flavor: Flavor) -> Self {
        Self::builder(flavor).start()
    }

    /// Starts to describe a server.
    pub fn builder(flavor: Flavor) -> RedisBuilder {
        RedisBuilder::new(flavor)
    }

    /// Returns which server this is.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Returns the address of the plain port, or of the port with TLS if that is the only one.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.plain.as_ref().or(self.secure.as_ref()).expect("a server has a port").address()
    }

    /// Returns the address of the port with TLS, if there is one.
    #[must_use]
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(Port::address)
    }

    /// Returns the address as a URL, with the password: `redis://` for the plain port, `rediss://`
    /// if TLS is the only way in.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.plain.is_some() { "redis" } else { "rediss" };
        format!("{scheme}://{}{}", self.credentials(), self.address())
    }

    /// Returns the URL of the port with TLS, if there is one, with the password.
    #[must_use]
    pub fn tls_url(&self) -> Option<String> {
        Some(format!("rediss://{}{}", self.credentials(), self.tls_address()?))
    }

    /// Returns the Unix socket, for `redis+unix://`. Every server has one, except Sentinels.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Returns the certificates that were made for it, if it has TLS.
    #[must_use]
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Returns its folder, with its configuration, data and log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Tells whether the process is there. One that is frozen is.
    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Kills it with `SIGKILL`, and waits until it is gone. The port stays ours.
    pub fn kill(&mut self) {
        let pid = self.pid();
        self.process.kill();
        if self.faketime.is_some() {
            FakeTime::clean_up(pid);
        }
    }

    /// Ends it with `SIGTERM`, and waits until it is gone: connections are closed in order, and what
    /// is to be kept is written.
    pub fn stop(&mut self) {
        let pid = self.pid();
        self.process.signal(Signal::TERM);
        self.process.wait();
        if self.faketime.is_some() {
            FakeTime::clean_up(pid);
        }
    }

    /// Stops it in its tracks with `SIGSTOP`: connections stay, and the kernel accepts more.
    pub fn freeze(&mut self) {
        self.process.signal(Signal::STOP);
        self.frozen = true;
    }

    /// Lets it go on after [`Redis::freeze`].
    pub fn thaw(&mut self) {
        self.process.signal(Signal::CONT);
        self.frozen = false;
    }

    /// Kills it if it runs, and starts it anew on the same port, in the same folder.
    ///
    /// # Panics
    ///
    /// If it does not answer within 20 s.
    pub fn restart(&mut self) {
        self.launch();
        self.await_ready();
    }

    /// Sends a command and returns the reply as text, as `redis-cli --raw` does: the parts of an array
    /// are lines. An error is returned as its text.
    ///
    /// # Panics
    ///
    /// If there is no reply within 5 s.
    #[must_use]
    pub fn cli(&self, command: &[&str]) -> String {
        self.try_cli(command).unwrap_or_else(|error| error)
    }

    /// Like [`Redis::cli`], with errors of the server apart.
    ///
    /// # Errors
    ///
    /// The server's, as text.
    ///
    /// # Panics
    ///
    /// If there is no reply within 5 s.
    pub fn try_cli(&self, command: &[&str]) -> Result<String, String> {
        resp::exchange(&self.endpoint(), self.password.as_deref(), command).unwrap_or_else(
            |error| panic!("{command:?} to {}: {error}\n{}", self.address(), self.log()),
        )
    }

    /// Returns a section of `INFO`, by field.
    #[must_use]
    pub fn info(&self, section: &str) -> BTreeMap<String, String> {
        fields(&self.cli(&["INFO", section]))
    }

    /// Returns the time that its process spent on a processor so far.
    ///
    /// # Panics
    ///
    /// If it does not say.
    #[must_use]
    pub fn used_cpu(&self) -> Duration {
        let info = self.info("cpu");
        ["used_cpu_user", "used_cpu_sys"]
            .map(|field| info.get(field).and_then(|text| text.parse().ok()).expect("seconds"))
            .map(Duration::from_secs_f64)
            .iter()
            .sum()
    }

    /// Returns the server's time.
    ///
    /// # Panics
    ///
    /// If it does not say.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        let reply = self.cli(&["TIME"]);
        let (seconds, micros) = reply.split_once('\n').expect("two numbers");
        let seconds = Duration::from_secs(seconds.parse().expect("seconds"));
        let micros = Duration::from_micros(micros.parse().expect("microseconds"));
        SystemTime::UNIX_EPOCH + seconds + micros
    }

    /// Moves the server's clock forward.
    ///
    /// # Panics
    ///
    /// If it was not started with [`RedisBuilder::faketime`].
    pub fn advance(&mut self, by: Duration) {
        self.fake().step(duration_ns(by));
        self.await_clock();
    }

    /// Moves the server's clock back.
    ///
    /// # Panics
    ///
    /// If it was not started with [`RedisBuilder::faketime`].
    pub fn set_back(&mut self, by: Duration) {
        self.fake().step(-duration_ns(by));
        self.await_clock();
    }

    /// Sets the server's clock, which runs on from there.
    ///
    /// # Panics
    ///
    /// If it was not started with [`RedisBuilder::faketime`], or the time is before 1970.
    pub fn set_time(&mut self, time: SystemTime) {
        self.fake().set(time);
        self.await_clock();
    }

    /// Sets the server's clock, which stands still there: only [`Redis::advance`] and its like move it.
    ///
    /// # Panics
    ///
    /// If it was not started with [`RedisBuilder::faketime`], or the time is before 1970.
    pub fn stop_time(&mut self, time: SystemTime) {
        self.fake().stand_still(time);
        self.await_clock();
    }

    /// Returns the end of the server's log.
    #[must_use]
    pub fn log(&self) -> String {
        let log = fs::read(self.folder.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let from = text.len().saturating_sub(4_000);
        text.char_indices().find(|(at, _)| *at >= from).map_or("", |(at, _)| &text[at..]).to_owned()
    }

    fn fake(&mut self) -> &mut FakeTime {
        self.faketime.as_mut().expect("clock of a server started without faketime()")
    }

    /// Waits until the server shows the time that was set, as Valkey looks at the clock only once in a
    /// millisecond. One that does not run or is frozen will find it when it goes on.
    fn await_clock(&mut self) {
        if self.frozen || !self.is_running() {
            return;
        }
        within(Duration::from_secs(5), "the server's clock follows", || {
            let early = self.fake().expected();
            let seen = self.time();
            let late = self.fake().expected();
            seen + FakeTime::SLACK >= early && seen <= late + FakeTime::SLACK
        });
    }

    fn credentials(&self) -> String {
        self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default()
    }

    /// Tells whether it is neither killed nor frozen by us.
    pub(crate) fn is_up(&self) -> bool {
        !self.frozen && !self.process.is_known_to_have_ended()
    }

    pub(crate) fn bus_port(&self) -> Option<u16> {
        self.bus.as_ref().map(Port::number)
    }

    /// Starts the program, once more if it ran before, and does not wait for it.
    pub(crate) fn launch(&mut self) {
        self.kill();
        // A socket that is left of a killed server would look like one that refuses.
        drop(fs::remove_file(self.socket()));
        self.frozen = false;
        let mode = self.sentinel.then_some("--sentinel");
        let start = start(self.flavor, self.folder.path(), mode, self.faketime.as_ref());
        self.process = Process::start(start);
    }

    /// Waits until this very process answers: another server on our port would answer too.
    pub(crate) fn await_ready(&mut self) {
        if let Err(why) = self.try_ready() {
            panic!(
                "{} on {}: {why}\n{}",
                self.flavor.server().display(),
                self.address(),
                self.log()
            );
        }
    }

    fn try_ready(&mut self) -> Result<(), String> {
        let pid = self.pid().to_string();
        let answer = poll(READY, || {
            if let Some(status) = self.process.ended() {
                return Some(Err(format!("ended early, {status}")));
            }
            let reply = resp::exchange(&self.endpoint(), self.password.as_deref(), &["INFO"]);
            match reply.ok()?.map(|text| fields(&text)) {
                Ok(info) if info.get("process_id") != Some(&pid) => {
                    Some(Err("another server has this port".to_owned()))
                }
                // It answers this while it reads what it kept, but nothing else. Sentinels keep nothing.
                Ok(info) => info.get("loading").is_none_or(|it| it == "0").then_some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        });
        answer.unwrap_or_else(|| Err(format!("no answer within {READY:?}")))
    }

    fn endpoint(&self) -> Endpoint {
        // The socket works whatever TLS asks for. A Sentinel has none.
        if self.sentinel { Endpoint::Tcp(self.address()) } else { Endpoint::Unix(self.socket()) }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn start(flavor: Flavor, folder: &Path, mode: Option<&str>, faketime: Option<&FakeTime>) -> Start {
    let file = folder.join("conf").to_string_lossy().into_owned();
    Start {
        program: flavor.server(),
        arguments: std::iter::once(file).chain(mode.map(str::to_owned)).collect(),
        variables: faketime.map(FakeTime::variables).unwrap_or_default(),
        log: folder.join("log"),
    }
}

/// Returns the lines `name:value` of a reply of `INFO` and its like.
pub(crate) fn fields(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

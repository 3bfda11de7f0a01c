//! The session of a connection: its client's state, and the dispatch of its commands.

use super::{
    command::{self, Command},
    parse::{Args, Words},
    reply::{Replies, Version},
    throttle::{milliseconds, ttl_seconds},
    transaction::Transaction,
};
use crate::{
    engine::{Answer, Engine, Verb},
    net::{Access, AuthError, Client, Penalty, Permission, Permissions, Secret, Traffic},
    plan::Plan,
    server::Shared,
    trace::Tally,
};
use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tollgate::Tick;

/// The values that the commands of a batch share.
pub(super) struct Batch<'a> {
    pub(super) engine: &'a Engine,
    pub(super) plan: &'a Plan,
    pub(super) now: Tick,
}

/// Which replies the client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wanted {
    #[default]
    All,
    None,
    /// The next one is not wanted.
    Skip,
}

/// One connection.
pub(super) struct Session {
    shared: Arc<Shared>,
    pub(super) id: u64,
    pub(super) client: Client,
    pub(super) name: String,
    pub(super) library: (String, String),
    pub(super) wanted: Wanted,
    /// The access settings that granted the permissions below.
    access: Arc<Access>,
    /// The secret that the client has authenticated with.
    secret: Option<Secret>,
    /// The permissions of the client; none while it has to authenticate.
    granted: Option<Permissions>,
    /// The delay before the reply to a wrong password.
    pub(super) penalty: Option<Penalty>,
    is_closing: bool,
    /// The commands queued since `MULTI`.
    pub(super) transaction: Option<Transaction>,
    /// The commands that `EXEC` has still to run.
    pub(super) queued: VecDeque<Words>,
    pub(super) replies: Replies,
    pub(super) answer: Answer,
    /// Counts the decisions of a traced batch.
    pub(super) tally: Tally,
}

impl Session {
    pub(super) fn new(shared: &Arc<Shared>, client: Client) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let access = Arc::clone(&shared.access());
        Self {
            granted: access.authenticate(&client, None).ok(),
            access,
            secret: None,
            penalty: None,
            shared: Arc::clone(shared),
            // ORDERING: Relaxed. Each number is used once.
            id: NEXT.fetch_add(1, Relaxed),
            client,
            name: String::new(),
            library: Default::default(),
            wanted: Wanted::All,
            is_closing: false,
            transaction: None,
            queued: VecDeque::new(),
            replies: Replies::default(),
            answer: Answer::new(),
            tally: Tally::default(),
        }
    }

    /// Returns a session for one command that runs concurrently with others.
    pub(super) fn fork(&self) -> Self {
        let mut replies = Replies::default();
        replies.set_version(self.replies.version());
        Self {
            shared: Arc::clone(&self.shared),
            id: self.id,
            client: self.client,
            access: Arc::clone(&self.access),
            secret: None,
            granted: self.granted,
            penalty: None,
            name: String::new(),
            library: Default::default(),
            wanted: Wanted::All,
            is_closing: false,
            transaction: None,
            queued: VecDeque::new(),
            replies,
            answer: Answer::new(),
            tally: self.tally.fork(),
        }
    }

    /// Adds the replies and the counts of a fork.
    pub(super) fn join(&mut self, fork: &mut Self) {
        self.replies.append(&fork.replies);
        self.tally.join(std::mem::take(&mut fork.tally));
    }

    /// Returns how much memory it keeps: replies, queued commands, and the client's names.
    pub(super) fn held(&self) -> usize {
        let queued = self.transaction.as_ref().map_or(0, Transaction::bytes);
        let names = self.name.capacity() + self.library.0.capacity() + self.library.1.capacity();
        // OVERFLOW: all of it is in memory.
        self.replies.capacity() + queued + names
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn traffic(&self) -> &Traffic {
        self.shared.traffic(self.client.listener)
    }

    /// Tells whether the client has yet to authenticate.
    pub(super) const fn is_stranger(&self) -> bool {
        self.granted.is_none()
    }

    /// Applies the access settings of a reload. Returns false if the client has authenticated with
    /// a secret that is no longer valid.
    pub(super) fn renew_access(&mut self) -> bool {
        let access = self.shared.access();
        if Arc::ptr_eq(&access, &self.access) {
            return true;
        }
        self.access = Arc::clone(&access);
        let granted = access.authenticate(&self.client, self.secret.as_ref().map(Secret::bytes));
        self.granted = granted.ok();
        granted != Err(AuthError::WrongSecret)
    }

    /// Returns true if clients must authenticate.
    pub(super) fn has_password(&self) -> bool {
        self.access.has_tokens(self.client.listener)
    }

    /// Authenticates the client. A wrong password changes nothing.
    pub(super) fn authenticate(&mut self, user: &[u8], password: &[u8]) -> bool {
        // Checks both, so that the time reveals nothing.
        let granted = self.access.authenticate(&self.client, Some(password));
        let is_right = granted.is_ok() & (user == b"default");
        if is_right {
            self.granted = granted.ok();
            self.secret = self.has_password().then(|| Secret::new(password));
        } else {
            self.penalty = Some(Penalty::of(&self.shared, &self.client));
        }
        is_right
    }

    /// Returns true if the client has this permission; otherwise replies with an error.
    pub(super) fn may(&mut self, permission: Permission) -> bool {
        let may = self.granted.is_some_and(|granted| granted.has(permission));
        if !may {
            self.wrong(format_args!(
                "NOPERM this command needs the permission '{permission}', which this password does \
                 not grant"
            ));
        }
        may
    }

    /// Tells whether the connection closes after the replies.
    pub(super) const fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Closes the connection after the replies.
    pub(super) const fn close(&mut self) {
        self.is_closing = true;
    }

    /// Resets the client's state.
    pub(super) fn start_afresh(&mut self) {
        self.granted = self.access.authenticate(&self.client, None).ok();
        self.secret = None;
        self.name.clear();
        self.wanted = Wanted::All;
        self.transaction = None;
        self.replies.set_version(Version::Two);
    }

    /// Replies with an error, and counts the bad request.
    #[cold]
    pub(super) fn wrong(&mut self, text: fmt::Arguments<'_>) {
        self.traffic().bad_request();
        self.replies.error(text);
    }

    /// Runs a command, and adds its reply.
    pub(super) async fn run(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        let (start, wanted) = (self.replies.bytes().len(), self.wanted);
        self.dispatch(batch, args).await;
        match (wanted, self.wanted) {
            // All are wanted, or `CLIENT REPLY ON` has just changed that.
            (_, Wanted::All) => {}
            // This command follows `CLIENT REPLY SKIP`.
            (Wanted::Skip, Wanted::Skip) => {
                self.replies.truncate(start);
                self.wanted = Wanted::All;
            }
            _ => self.replies.truncate(start),
        }
    }

    fn quit(&mut self) {
        self.replies.word("OK");
        self.close();
    }

    async fn dispatch(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        let Some(spec) = command::find(args.at(0)) else {
            self.abort();
            return self.unknown(args);
        };
        if self.is_stranger() && !spec.is_open {
            return self.wrong(format_args!("NOAUTH Authentication required."));
        }
        if !spec.takes(args.len()) {
            self.abort();
            return self
                .wrong(format_args!("ERR wrong number of arguments for '{}' command", spec.name));
        }
        if spec.needs.is_some_and(|needed| !self.may(needed)) {
            self.abort();
            return;
        }
        if self.queues(spec, args) {
            return;
        }
        match spec.command {
            Command::ClThrottle => self.cl_throttle(batch, args).await,
            Command::Throttle => self.throttle(batch, args).await,
            Command::Check => self.check(batch, args, Verb::Check).await,
            Command::Peek => self.check(batch, args, Verb::Peek).await,
            Command::Descriptor => self.descriptor(batch, args).await,
            Command::Reserve => self.reserve(batch, args).await,
            Command::Settle | Command::Cancel => self.settle(batch, args).await,
            Command::Refund => self.refund(batch, args).await,
            Command::Reset => self.reset(batch, args).await,
            Command::Enter => self.enter(batch, args).await,
            Command::Renew | Command::Leave => self.hold(batch, args, spec.command).await,
            Command::Report => self.report(batch, args),
            Command::Policies => self.policies(batch.plan),
            Command::Del => self.del(batch, args).await,
            Command::Exists => self.exists(batch, args).await,
            Command::Ttl => self.ttl(batch, args.at(1), ttl_seconds).await,
            Command::Pttl => self.ttl(batch, args.at(1), milliseconds).await,
            Command::Ping => self.ping(args),
            Command::Echo => self.replies.bulk(args.at(1)),
            Command::Hello => self.hello(args),
            Command::Auth => self.auth(args),
            Command::Quit => self.quit(),
            Command::ResetConnection => {
                self.start_afresh();
                self.replies.word("RESET");
            }
            Command::Select => self.select(args),
            Command::Client => self.client(args),
            Command::Commands => self.commands(args),
            Command::Info => self.info(batch, args),
            Command::Config => self.config(args),
            Command::DbSize => self.db_size(batch),
            Command::Time => self.time(batch),
            Command::Cluster => {
                self.wrong(format_args!("ERR This instance has cluster support disabled"));
            }
            Command::Multi => self.multi(),
            Command::Exec => self.exec(),
            Command::Discard => self.discard(),
            Command::Watch => self.watch(),
            Command::Unwatch => self.replies.word("OK"),
            Command::Subscribe => self.wrong(format_args!(
                "ERR '{}' is not supported: this server has no pub/sub",
                spec.name
            )),
        }
    }

    /// Refuses a command in Redis's words.
    #[cold]
    fn unknown(&mut self, args: &Args<'_>) {
        let name = args.at(0);
        // A browser that was tricked into talking to this port: like Redis, reply nothing.
        if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
            self.traffic().bad_request();
            return self.close();
        }
        if self.is_stranger() {
            return self.wrong(format_args!("NOAUTH Authentication required."));
        }
        const SHOWN: usize = 128;
        let mut shown = String::new();
        for arg in args.iter_from(1) {
            if shown.len() >= SHOWN {
                break;
            }
            let room = SHOWN - shown.len();
            let arg = String::from_utf8_lossy(&arg[..arg.len().min(room)]);
            shown.extend(["'", &arg, "' "]);
        }
        let name = String::from_utf8_lossy(&name[..name.len().min(SHOWN)]);
        self.wrong(format_args!("ERR unknown command '{name}', with args beginning with: {shown}"));
    }
}

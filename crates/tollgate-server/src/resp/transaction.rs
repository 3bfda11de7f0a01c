//! `MULTI`, `EXEC` and `DISCARD`: commands are queued, and then run in order.
//!
//! Redis clients wrap their pipelines in a transaction by default. `EXEC` hands the queue to the loop that
//! runs the commands of a connection, so its replies are written in parts like all others. Each command
//! decides atomically by itself; decisions of other connections may come between two of them.

use super::{
    command::{Command, Spec, is},
    parse::{Args, Words},
    session::Session,
};
use std::collections::VecDeque;

/// The most commands of one transaction.
const COMMANDS_MAX: usize = 1024;

/// The overhead of a queued command in addition to its arguments, and of an argument in addition to
/// its bytes.
const OVERHEAD: (usize, usize) = (64, 8);

/// The commands since `MULTI`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    queue: VecDeque<Words>,
    bytes: usize,
    /// A command was refused, so `EXEC` will be.
    is_aborted: bool,
}

impl Transaction {
    /// Returns how much memory it has.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Session {
    /// `MULTI`
    pub(super) fn multi(&mut self) {
        if self.is_queueing() {
            return self.wrong(format_args!("ERR MULTI calls can not be nested"));
        }
        self.transaction = Some(Transaction::default());
        self.replies.word("OK");
    }

    /// `EXEC`: starts the array of replies. The commands are run next: see [`Self::next_queued`].
    pub(super) fn exec(&mut self) {
        match self.transaction.take() {
            None => self.wrong(format_args!("ERR EXEC without MULTI")),
            Some(transaction) if transaction.is_aborted => self
                .wrong(format_args!("EXECABORT Transaction discarded because of previous errors.")),
            Some(transaction) => {
                self.replies.array(transaction.queue.len());
                self.queued = transaction.queue;
            }
        }
    }

    /// `DISCARD`
    pub(super) fn discard(&mut self) {
        match self.transaction.take() {
            None => self.wrong(format_args!("ERR DISCARD without MULTI")),
            Some(_) => self.replies.word("OK"),
        }
    }

    /// `WATCH`
    pub(super) fn watch(&mut self) {
        if self.is_queueing() {
            return self.wrong(format_args!("ERR WATCH inside MULTI is not allowed"));
        }
        self.wrong(format_args!(
            "ERR 'watch' is not supported: each decision reads and charges its key in one step, so \
             there is nothing to watch; leave it out"
        ));
    }

    /// Returns the next command of a transaction that `EXEC` has begun to run.
    pub(super) fn next_queued(&mut self) -> Option<Words> {
        self.queued.pop_front()
    }

    /// Tells whether commands are queued and not run.
    pub(super) const fn is_queueing(&self) -> bool {
        self.transaction.is_some()
    }

    /// Records that a command was refused, if there is a transaction. Frees its queued commands.
    pub(super) fn abort(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            *transaction = Transaction { is_aborted: true, ..Transaction::default() };
        }
    }

    /// Queues a command. Tells whether that is done; a command that ends or makes a transaction is run.
    pub(super) fn queues(&mut self, spec: &Spec, args: &Args<'_>) -> bool {
        if !self.is_queueing() {
            return false;
        }
        let most = self.shared().settings.max_request;
        let Some(transaction) = &mut self.transaction else { return false };
        if let Command::Multi
        | Command::Exec
        | Command::Discard
        | Command::Watch
        | Command::Quit
        | Command::ResetConnection = spec.command
        {
            return false;
        }
        if spec.command == Command::Client && is(args.at(1), "REPLY") {
            self.abort();
            self.wrong(format_args!("ERR CLIENT REPLY is not allowed inside a transaction"));
            return true;
        }
        // OVERFLOW: each argument is in a buffer of this process, and so are all queued ones.
        let length = args.iter_from(0).map(|arg| arg.len() + OVERHEAD.1).sum::<usize>();
        transaction.bytes += length + OVERHEAD.0;
        if transaction.bytes > most || transaction.queue.len() == COMMANDS_MAX {
            self.abort();
            self.wrong(format_args!(
                "ERR a transaction has at most {COMMANDS_MAX} commands and {most} bytes; send EXEC \
                 earlier, or a pipeline without MULTI"
            ));
            return true;
        }
        if !transaction.is_aborted {
            transaction.queue.push_back(args.to_words());
        }
        self.replies.word("QUEUED");
        true
    }
}

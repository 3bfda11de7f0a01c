//! Commands that wait for a store wait together.
//!
//! With a store behind a network each decision is a round trip. A client that sends sixteen commands
//! at once must not wait for sixteen of them one after the other, so commands that only decide are
//! begun in their order without waiting, and their replies are put in their order. All others wait
//! until those before them are done, and those behind them wait for them: a `DEL` between two
//! `CL.THROTTLE` does what it looks like.

use super::{
    command::{self, Command},
    parse::{Args, Words},
    session::{Batch, Session, Wanted},
};
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

/// Commands of a connection that wait at once.
const AT_ONCE: usize = 64;

/// Commands that were read, and are to be run together.
#[derive(Debug, Default)]
pub(super) struct Together {
    waiting: Vec<Words>,
}

impl Together {
    /// Keeps a command for later, if it may be run beside those before it.
    pub(super) fn takes(&mut self, session: &Session, args: &Args<'_>) -> bool {
        let is_apart = !session.is_stranger()
            && !session.is_queueing()
            && session.wanted == Wanted::All
            && command::find(args.at(0)).is_some_and(|spec| {
                matches!(
                    spec.command,
                    Command::ClThrottle
                        | Command::Throttle
                        | Command::Check
                        | Command::Peek
                        | Command::Descriptor
                        | Command::Enter
                )
            });
        if is_apart {
            self.waiting.push(args.to_words());
        }
        is_apart
    }

    /// Tells whether no more should be read before these are run.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= AT_ONCE
    }

    /// Runs all, and adds their replies in order.
    pub(super) async fn run(&mut self, session: &mut Session, batch: &Batch<'_>) {
        match &self.waiting[..] {
            [] => return,
            [one] => session.run(batch, &one.args()).await,
            many => {
                let mut forks: Vec<Session> = many.iter().map(|_| session.fork()).collect();
                let each = forks.iter_mut().zip(many);
                all(each.map(|(fork, words)| async move { fork.run(batch, &words.args()).await }))
                    .await;
                forks.iter_mut().for_each(|fork| session.join(fork));
            }
        }
        self.waiting.clear();
    }
}

/// Runs futures side by side; each is begun in its order.
async fn all<F: Future<Output = ()>>(futures: impl Iterator<Item = F>) {
    let mut running: Vec<Option<Pin<Box<F>>>> = futures.map(|one| Some(Box::pin(one))).collect();
    poll_fn(|context| {
        let mut waits = false;
        for slot in &mut running {
            let Some(future) = slot else { continue };
            match future.as_mut().poll(context) {
                Poll::Ready(()) => *slot = None,
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

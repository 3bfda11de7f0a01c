//! Shares of one capacity for many processes, with one script as the coordinator.
//!
//! A fleet may send 500 requests a second to a partner. Calling the store for every request is
//! slow; 500/n each is unfair when some processes are busy and some are idle. Here each process
//! reports every few seconds how much it could use, and gets a share for a while (a lease). Its own
//! limiter enforces the share without calls to the store.
//!
//! ```text
//!  FairShare --(has, wants, weight, band)--> allot.lua: drop dead rows, share, write the own row
//!      |     <--------- share, lease ------
//!      '-- limiter(): the share as its quota
//! ```
//!
//! The idea is Doorman's. The script runs atomically in the server, so it *is* the coordinator:
//! there is no election. Its time is the server's, and leases are sent as durations.
//!
//! # Bounds
//!
//! With capacity C, N processes, and the burst of each share b x share:
//!
//! | while | the shares in force add up to at most |
//! |---|---|
//! | all is well, or processes crash | C |
//! | the table is lost (flush, restart, eviction) | C; newcomers get nothing for one lease |
//! | the store is away for all | C during the leases, then N x safe capacity: at most C if that is not configured |
//! | the store is away for k processes only | C + k x safe capacity, from the end of their leases |
//! | a failover loses writes | C + what was granted in the writes that were lost, for one refresh |
//! | the server's clock jumps ahead by d | C + what was held in leases that end early, for one refresh |
//!
//! For one refresh and one report after demand has moved, and for one lease after a process was
//! killed, a part of C may stay unused.
//!
//! # Algorithm
//!
//! A grant is never above the formula (`fair_share/shares.rs`), nor above C minus the most that all
//! others *may* hold. That is the larger of the share that a process last reported and its last
//! grant: a reply can be lost, and a smaller share is in force only after its holder has reported
//! so, which it does at once. Reports are numbered, so a late one changes nothing.

mod demand;
mod holder;
mod rate;
mod report;
mod resource;
mod shares;
mod task;

pub use holder::Mode;
pub use rate::Rate;
pub use resource::{Member, Resource};
pub use shares::{Claim, Sharing};

use crate::{JoinError, Link, Script, fleet::runtime};
use report::Registration;
use std::{sync::Arc, time::Duration};
use task::Shared;
use tokio::task::JoinHandle;
use tollgate::{Clock, Limiter};

/// This process's share of a [`Resource`]. Dropping it gives the share back, in the background.
///
/// # Examples
///
/// ```no_run
/// use tollgate_redis::{FairShare, Link, Member, Rate, Resource};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let link = Link::open("redis://localhost:6379".parse()?)?;
/// let partner = Resource::new("partner", Rate::per_second(500));
/// let fair_share = FairShare::join(link, partner, Member::new())?;
///
/// // No call to the store: the limiter has the share as its quota.
/// if fair_share.limiter().try_acquire().is_allowed() {
///     println!("go, {} of it all is ours", fair_share.share());
/// }
/// fair_share.leave().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it gives the share back"]
pub struct FairShare {
    shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
}

/// The state of a [`FairShare`], for people and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FairShareStatus {
    /// The share in force.
    pub share: Rate,
    /// The demand in the last report.
    pub wants: Rate,
    /// Where the share comes from.
    pub mode: Mode,
    /// The remaining time of the lease.
    pub lease_left: Duration,
    /// How many processes share the resource, according to the last answer.
    pub clients: Option<u32>,
    /// Reports so far with an answer.
    pub answers: u64,
    /// Reports so far without an answer.
    pub failures: u64,
    /// Why the last report got no answer, or was refused.
    pub last_error: Option<String>,
}

impl FairShare {
    /// Joins, and reports in the background from now on. Needs a tokio runtime.
    ///
    /// The share is zero until the first answer. In a fleet that starts from nothing, the first
    /// shares come after the time of [`learning`](Resource::learning).
    ///
    /// # Errors
    ///
    /// When the settings are invalid, or there is no runtime.
    pub fn join(link: Link, resource: Resource, member: Member) -> Result<Self, JoinError> {
        let registration = Registration::new(Script::new(report::SOURCE), resource, member)?;
        let runtime = runtime()?;
        let shared = Arc::new(Shared::new(registration, Clock::monotonic())?);
        let task = runtime.spawn(task::run(link, shared.clone()));
        Ok(Self { shared, task: Some(task) })
    }

    /// Sets how much this process could use, from now on; the task reports it soon.
    ///
    /// Without it, demand is the mean over a refresh of the calls to the
    /// [`limiter`](Self::limiter), and a quarter more.
    ///
    /// # Errors
    ///
    /// When it is above [`Rate::MAX`].
    pub fn wants(&self, rate: Rate) -> Result<(), JoinError> {
        if rate > Rate::MAX {
            return Err(JoinError::new(format!("{rate} is above {}", Rate::MAX)));
        }
        self.shared.want(Some(rate));
        Ok(())
    }

    /// Goes back to measuring demand, after [`wants`](Self::wants).
    pub fn wants_as_measured(&self) {
        self.shared.want(None);
    }

    /// Returns the share in force.
    #[must_use]
    pub fn share(&self) -> Rate {
        self.shared.share()
    }

    /// Returns the limiter that has the share as its quota. Clones are the same limiter.
    ///
    /// After the `FairShare` is gone, the limiter denies everything. Its quota lags behind the
    /// share by the time that the task needs to run: a process that was stopped for longer than a
    /// lease uses its old share for that time when it continues.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        self.shared.limiter()
    }

    /// Returns the state, for people and metrics.
    #[must_use]
    pub fn status(&self) -> FairShareStatus {
        self.shared.status()
    }

    /// Gives the share back, and waits until others can have it or the store does not answer.
    pub async fn leave(mut self) {
        self.shared.close();
        if let Some(task) = self.task.take() {
            // The task ends by itself; if the runtime ends first, there is nothing to wait for.
            let _ = task.await;
        }
    }
}

impl Drop for FairShare {
    fn drop(&mut self) {
        self.shared.close();
    }
}

#[cfg(test)]
mod tests;

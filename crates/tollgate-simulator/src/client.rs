//! The measures by which callers protect themselves and the server.

use crate::Admission;
use std::fmt;
use tollgate::{RetryPolicy, hedge::HedgePolicy};

/// A caller: the checks that each of its attempts has to pass before it is sent, and how it repeats
/// them.
///
/// Without checks and policies it sends every call once.
///
/// # Examples
///
/// Two clients, each with a breaker and a retry budget of its own:
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Breaker, Clock, RetryPolicy};
/// use tollgate_simulator::{Client, Server, ServiceTime, Simulation, Workload};
///
/// let server = Server::new(1, ServiceTime::Constant(Duration::from_millis(10)));
/// let simulation = Simulation::new(Workload::new().constant(10.0, Duration::from_secs(5)), server)
///     .clients(|clock, seed| {
///         let client = |seed| {
///             let breaker = Breaker::builder().clock(clock.clone()).seed(seed).build();
///             let retry = RetryPolicy::builder().clock(clock.clone()).seed(seed).build();
///             Client::new().gate(breaker.expect("defaults")).retry(retry.expect("defaults"))
///         };
///         vec![client(seed), client(seed + 1)]
///     });
/// assert_eq!(simulation.run_unlimited(1).served(0..5), 1.0);
/// ```
#[derive(Default)]
#[must_use]
pub struct Client {
    pub(crate) gates: Vec<Box<dyn Admission>>,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) hedge: Option<HedgePolicy>,
}

impl Client {
    /// Returns a client that sends every call once.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check that every attempt has to pass, from the outside to the inside. If it refuses,
    /// the call fails at once, and the checks outside of it learn nothing
    /// ([`CallOutcome::Ignore`]).
    ///
    /// [`CallOutcome::Ignore`]: tollgate::CallOutcome::Ignore
    pub fn gate(mut self, gate: impl Admission + 'static) -> Self {
        self.gates.push(Box::new(gate));
        self
    }

    /// Repeats attempts that the server refused, that failed or that took too long.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Sends slow calls a second time; each repetition too.
    pub fn hedge(mut self, policy: HedgePolicy) -> Self {
        self.hedge = Some(policy);
        self
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("gates", &self.gates.len())
            .field("retry", &self.retry)
            .field("hedge", &self.hedge)
            .finish()
    }
}

//! A workload, clients, limits and a server on one manual clock.

use crate::{Admission, Client, FixedLimit, Report, Server, Workload, limited_by, run::Run};
use std::{fmt, sync::Arc, time::Duration};
use tollgate::{Clock, ManualClock, Tick};

/// A workload that calls a server, with limits in between.
///
/// An attempt is good if it ends within its deadline. An attempt that ends later ends with
/// [`CallOutcome::Overload`](tollgate::CallOutcome::Overload): its client has given up at the
/// deadline, while the server works on it and it holds its place in the limit until then. A refused
/// call is lost, unless its [`Client`] repeats it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_simulator::{FixedLimit, Server, ServiceTime, Simulation, Workload, limited_by};
///
/// let server = Server::new(1, ServiceTime::Constant(Duration::from_millis(100)));
/// let workload = Workload::new().constant(20.0, Duration::from_secs(10));
/// let report = Simulation::new(workload, server).run(1, |clock| vec![limited_by(FixedLimit(1), clock)]);
/// assert!(report.goodput(0..10) > 0.98); // of the ten a second that the server can do
/// assert_eq!(report.refused(0..10), 0.5);
/// ```
#[derive(Clone)]
#[must_use]
pub struct Simulation {
    pub(crate) workload: Workload,
    pub(crate) server: Server,
    pub(crate) deadline: Duration,
    clients: Arc<BuildClients>,
}

/// Builds clients on the clock of a run, from its seed.
type BuildClients = dyn Fn(&Clock, u64) -> Vec<Client>;

impl Simulation {
    /// Returns a simulation with a deadline of 200 ms and one client that sends every call once.
    pub fn new(workload: Workload, server: Server) -> Self {
        let clients = Arc::new(|_: &Clock, _| vec![Client::new()]);
        Self { workload, server, deadline: Duration::from_millis(200), clients }
    }

    /// Sets the time within which an attempt is good, by default 200 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the clients, on the clock and from the seed of a run; calls are spread over them in turn.
    pub fn clients(mut self, build: impl Fn(&Clock, u64) -> Vec<Client> + 'static) -> Self {
        self.clients = Arc::new(build);
        self
    }

    /// Runs it with the limits that `build` returns in front of the server; attempts are spread
    /// over them in turn. To a client, their refusal is an answer of the server: an overload.
    ///
    /// # Panics
    ///
    /// If there is no limit or no client.
    pub fn run<A>(&self, seed: u64, build: impl FnOnce(&Clock) -> Vec<A>) -> Report
    where
        A: Admission + 'static,
    {
        let hand = ManualClock::new();
        let limits = build(&hand.clock()).into_iter().map(|it| Box::new(it) as _).collect();
        let clients = (self.clients)(&hand.clock(), seed);
        Run::new(self, seed, (hand, clients, limits))
            .until(Tick::ZERO.saturating_add(self.workload.length()))
    }

    /// Runs it without a limit in front of the server.
    ///
    /// # Panics
    ///
    /// If there is no client.
    #[must_use]
    pub fn run_unlimited(&self, seed: u64) -> Report {
        self.run(seed, |clock| vec![limited_by(FixedLimit::none(), clock)])
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("workload", &self.workload)
            .field("server", &self.server)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

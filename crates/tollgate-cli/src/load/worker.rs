//! The threads that send.
//!
//! Each worker has its own runtime on one thread and every n-th connection. All connect first; then
//! all start together.

use super::{
    clock::Clock,
    gate::{self, Gate, Gates},
    grpc::Grpc,
    keys::Keys,
    pipe::{Pipe, Scan},
    plan::{Plan, Wire},
    schedule::{Pace, Schedule},
    tally::Tally,
};
use crate::target::Stream;
use std::{
    io,
    sync::{
        Arc, Barrier, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tokio::{
    runtime::Builder,
    sync::{Notify, Semaphore},
    task::JoinSet,
};

/// How long a connection may take to be made: the first of a worker, and the others. A server that is
/// not there is reported within a second; one that answers may be slow to take fifty at once.
const CONNECT_TIMEOUTS: (Duration, Duration) = (Duration::from_millis(900), Duration::from_secs(5));

/// Ends a run early.
#[derive(Debug, Default)]
pub(crate) struct Halt {
    no_more: AtomicBool,
    abandon: Notify,
}

// ORDERING: Relaxed throughout. The flag publishes nothing else, and is looked at again before each
// request; seeing it a little late sends one request more.
impl Halt {
    /// Asks for no more requests; what is in flight is waited for.
    pub(crate) fn set(&self) {
        self.no_more.store(true, Relaxed);
    }

    /// Whether no more requests are wanted.
    pub(crate) fn is_set(&self) -> bool {
        self.no_more.load(Relaxed)
    }

    /// Gives up on what is in flight.
    pub(crate) fn abandon(&self) {
        self.set();
        self.abandon.notify_waiters();
    }
}

/// The parts of the run that a connection needs.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) connection: u64,
    pub(crate) schedule: Schedule,
    pub(crate) clock: Clock,
    pub(crate) tally: Arc<Mutex<Tally>>,
    pub(crate) halt: Arc<Halt>,
}

/// The state that all workers share.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) start: Barrier,
    pub(crate) clock: OnceLock<Clock>,
    /// Ends all of it.
    pub(crate) halt: Arc<Halt>,
}

/// A worker and its counts, which may be read while it runs.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) tally: Arc<Mutex<Tally>>,
    pub(crate) thread: thread::JoinHandle<io::Result<()>>,
}

impl Worker {
    /// Starts a thread; `done` gets a permit when it ends.
    pub(crate) fn spawn(run: &Arc<Run>, number: u64, done: &Arc<Semaphore>) -> io::Result<Self> {
        let tally = Arc::new(Mutex::new(Tally::new().map_err(io::Error::other)?));
        let (run, shared) = (Arc::clone(run), Arc::clone(&tally));
        let done = Done(Arc::clone(done));
        let thread = thread::Builder::new().name(format!("load-{number}")).spawn(move || {
            let _done = done;
            work(&run, number, &shared)
        })?;
        Ok(Self { tally, thread })
    }
}

/// Says so when it goes, even if the thread panics.
struct Done(Arc<Semaphore>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

fn work(run: &Run, number: u64, tally: &Arc<Mutex<Tally>>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let streams = runtime.as_ref().map(|runtime| runtime.block_on(connect(run, number, tally)));
    run.start.wait();
    let clock = *run.clock.get_or_init(Clock::start);
    let streams = streams.unwrap_or_default();
    let schedule = run.plan.schedule;
    runtime?.block_on(async {
        let mut tasks = JoinSet::new();
        // A plan has at most 10000 connections.
        let mut gates: Gates = vec![None; schedule.connections as usize];
        for (connection, stream) in streams {
            let gate = Arc::new(Gate::default());
            if let Some(place) = gates.get_mut(connection as usize) {
                *place = Some(Arc::clone(&gate));
            }
            let lane = Lane {
                connection,
                schedule,
                clock,
                tally: Arc::clone(tally),
                halt: Arc::clone(&run.halt),
            };
            spawn(&mut tasks, &run.plan, (lane, gate), stream);
        }
        if let Pace::Open { .. } = schedule.pace {
            let keeper = gate::keep(gates, schedule, clock, Arc::clone(&run.halt));
            tokio::select! {
                () = all(&mut tasks) => {}
                () = keeper => {}
                () = run.halt.abandon.notified() => {}
            }
        } else {
            tokio::select! {
                () = all(&mut tasks) => {}
                () = run.halt.abandon.notified() => {}
            }
        }
        tasks.abort_all();
    });
    Ok(())
}

async fn all(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

/// Connects all that belong to a worker; what fails is counted.
async fn connect(run: &Run, number: u64, tally: &Mutex<Tally>) -> Vec<(u64, Stream)> {
    let mut streams = Vec::new();
    let mine = (number..run.plan.schedule.connections).step_by(run.plan.threads as usize);
    for connection in mine {
        let target = &run.plan.target;
        let (first, others) = CONNECT_TIMEOUTS;
        let limit = if streams.is_empty() { first } else { others };
        let tried = tokio::time::timeout(limit, target.connect()).await;
        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        let problem = match tried {
            Ok(Ok(stream)) => {
                tally.connected += 1;
                streams.push((connection, stream));
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no response within {limit:?}"),
        };
        tally.fail(|| format!("cannot connect to {target}: {problem}"));
        // The first to fail speaks for those that would.
        if streams.is_empty() {
            break;
        }
    }
    streams
}

fn spawn(tasks: &mut JoinSet<()>, plan: &Plan, (lane, gate): (Lane, Arc<Gate>), stream: Stream) {
    let keys = plan.keys.stream(lane.connection, plan.schedule.connections);
    match &plan.wire {
        Wire::Resp(scan) => pipe(tasks, plan, Part { lane, gate, keys }, (*scan, stream)),
        Wire::Http(scan) => pipe(tasks, plan, Part { lane, gate, keys }, (*scan, stream)),
        Wire::Grpc { uri, streams } => {
            let template = Arc::clone(&plan.template);
            let (uri, streams) = (uri.clone(), *streams);
            tasks.spawn(Grpc { lane, template, keys, gate, uri, streams }.run(stream));
        }
    }
}

/// The parts that every kind of connection needs.
struct Part {
    lane: Lane,
    gate: Arc<Gate>,
    keys: Keys,
}

fn pipe<S: Scan>(tasks: &mut JoinSet<()>, plan: &Plan, part: Part, (scan, stream): (S, Stream)) {
    let Part { lane, gate, keys } = part;
    let (target, template) = (Arc::clone(&plan.target), Arc::clone(&plan.template));
    tasks.spawn(Pipe { lane, target, template, scan, keys, gate }.run(stream));
}

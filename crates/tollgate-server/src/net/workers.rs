//! The threads that serve connections.

use super::{
    Bound, Connection, Listener, RefusalReason, Stream, descriptors::ADMIN_DESCRIPTORS,
    listen::Raw, tls::TlsOf,
};
use crate::{admin, http, resp, rls, server::Shared};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tokio::{
    net::{TcpStream, UnixStream},
    runtime,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};

/// Connections that wait for a worker to take them.
const QUEUE: usize = 1024;

/// How long the threads have to drop their connections at the end.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// How long accepting pauses when the process has no file descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection on its way to a worker. It counts as open, so that the bound holds while it waits.
struct Job {
    raw: Raw,
    connection: Connection,
}

struct Worker {
    jobs: mpsc::Sender<Job>,
    /// Connections that it has or is about to get.
    busy: Arc<AtomicUsize>,
    /// Closed when the thread has ended.
    ended: oneshot::Receiver<()>,
}

/// The threads that serve connections.
pub(crate) struct Workers {
    workers: Vec<Worker>,
    shared: Arc<Shared>,
}

impl Workers {
    /// Starts the threads.
    pub(crate) fn start(shared: &Arc<Shared>, tls: &Arc<TlsOf>) -> io::Result<Self> {
        let count = shared.settings.workers.max(1);
        let start = |index: usize| {
            let (jobs, inbox) = mpsc::channel(QUEUE);
            let busy = Arc::new(AtomicUsize::new(0));
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let task = work(inbox, Arc::clone(tls), Arc::clone(&busy));
            let (alive, ended) = oneshot::channel();
            thread::Builder::new().name(format!("tollgate-{index}")).spawn(move || {
                // Dropped last, also if a task panics.
                let _alive: oneshot::Sender<()> = alive;
                let runtime = runtime;
                runtime.block_on(task);
            })?;
            Ok(Worker { jobs, busy, ended })
        };
        let workers = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(Self { workers, shared: Arc::clone(shared) })
    }

    /// Accepts connections, and gives each to the worker with the fewest.
    pub(crate) async fn accept(&self, bound: Bound) -> io::Result<()> {
        let listener = bound.listener;
        let socket = bound.into_async()?;
        loop {
            match socket.accept().await {
                Ok((raw, peer)) => self.hand_over(raw, listener, peer),
                Err(error) => {
                    // Out of descriptors, or the other end is gone already.
                    tracing::warn!(%listener, "cannot accept a connection: {error}");
                    let _ = timeout(PAUSE, std::future::pending::<()>()).await;
                }
            }
        }
    }

    fn hand_over(&self, raw: Raw, listener: Listener, peer: Option<SocketAddr>) {
        let traffic = self.shared.traffic(listener);
        if let Some(reason) = self.refuses(listener) {
            traffic.turned_away();
            traffic.refused(reason);
            return;
        }
        // ORDERING: Relaxed. Which worker is least busy is a guess anyhow.
        let least = self.workers.iter().min_by_key(|worker| worker.busy.load(Relaxed));
        let Some(worker) = least else { return };
        worker.busy.fetch_add(1, Relaxed);
        let job =
            Job { raw, connection: Connection::new(Arc::clone(&self.shared), listener, peer) };
        if worker.jobs.try_send(job).is_err() {
            worker.busy.fetch_sub(1, Relaxed);
            traffic.turned_away();
        }
    }

    /// Returns which bound one more connection of a listener would exceed, if one.
    fn refuses(&self, listener: Listener) -> Option<RefusalReason> {
        let Shared { settings, memory, .. } = &*self.shared;
        let open = |listener: Listener| self.shared.traffic(listener).counts().open;
        let extra = if listener == Listener::Admin { ADMIN_DESCRIPTORS } else { 0 };
        let most = settings.max_descriptors.saturating_add(extra) as u64;
        if Listener::ALL.into_iter().map(open).sum::<u64>() >= most {
            Some(RefusalReason::Descriptors)
        } else if open(listener) >= settings.max_connections as u64 {
            Some(RefusalReason::Connections)
        } else if !memory.admits(listener) {
            Some(RefusalReason::Memory)
        } else {
            None
        }
    }

    /// Closes every connection and ends the threads. A thread that does not end within
    /// [`END_TIMEOUT`] is abandoned: it must not keep the process from writing its snapshots.
    pub(crate) async fn end(self) {
        // Signals every worker before waiting, so that their times overlap.
        let ended: Vec<_> = self.workers.into_iter().map(|worker| worker.ended).collect();
        let all = async {
            for worker in ended {
                // Nothing is ever sent: an error says that the thread has ended.
                let _ = worker.await;
            }
        };
        if timeout(END_TIMEOUT, all).await.is_err() {
            tracing::warn!("a worker thread is blocked; the process exits without waiting for it");
        }
    }
}

/// One worker: serves what it is given until its inbox is closed, and then drops what it has.
async fn work(mut inbox: mpsc::Receiver<Job>, tls: Arc<TlsOf>, busy: Arc<AtomicUsize>) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = tasks.join_next() => { busy.fetch_sub(1, Relaxed); }
            job = inbox.recv() => match job {
                Some(job) => {
                    tasks.spawn(serve(job, Arc::clone(&tls)));
                }
                None => break,
            },
        }
    }
}

async fn serve(job: Job, tls: Arc<TlsOf>) {
    let Job { raw, connection } = job;
    let listener = connection.listener;
    let mut drain = connection.shared.drain();
    let opened = tokio::select! {
        biased;
        opened = open(raw, listener, &connection, &tls) => opened,
        // The client has sent no request yet, so shutdown does not wait for a handshake.
        _ = drain.wait_for(|draining| *draining) => None,
    };
    let Some(stream) = opened else {
        connection.traffic().turned_away();
        return;
    };
    match listener {
        Listener::Http => http::serve(stream, connection).await,
        Listener::Grpc => rls::serve(stream, connection).await,
        Listener::Resp => resp::serve(stream, connection).await,
        Listener::Admin => admin::serve(stream, connection).await,
    }
}

/// Makes a stream of a connection, with TLS if its listener has that.
async fn open(
    raw: Raw,
    listener: Listener,
    connection: &Connection,
    tls: &TlsOf,
) -> Option<Stream> {
    let limit = connection.shared.settings.request_timeout;
    match raw {
        Raw::Tcp(stream) => {
            let stream = TcpStream::from_std(stream).ok()?;
            tls.tcp(listener, stream, limit).await
        }
        Raw::Unix(stream) => {
            let stream = UnixStream::from_std(stream).ok()?;
            tls.unix(listener, stream, limit).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config,
        engine::{Backend, Engine},
        plan::Plan,
        server::Settings,
    };
    use std::io::Write;
    use tollgate::store::MemoryStore;

    fn workers(settings: Settings) -> Workers {
        let config = Config::from_text("test.yaml", "domain: d").expect("it is sound");
        let plan = Plan::compile(config, None).expect("it is sound");
        let engine = Engine::new(plan, vec![Backend::Memory(MemoryStore::new())]);
        let shared = Shared::new(engine, settings);
        Workers::start(&shared, &Arc::new(TlsOf::default())).expect("threads can be started")
    }

    fn connect(workers: &Workers, listener: Listener) -> std::os::unix::net::UnixStream {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        theirs.set_nonblocking(true).expect("it is open");
        workers.hand_over(Raw::Unix(theirs), listener, None);
        ours
    }

    #[tokio::test]
    async fn the_end_closes_connections_in_the_middle_of_a_request() {
        let workers = workers(Settings { workers: 4, ..Settings::default() });
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let mut client = connect(&workers, Listener::Resp);
                client.write_all(b"*2\r\n$4\r\n").expect("it is open");
                client
            })
            .collect();
        let shared = Arc::clone(&workers.shared);
        workers.end().await;
        assert_eq!(shared.traffic(Listener::Resp).counts().open, 0);
        drop(clients);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_is_blocked_does_not_hold_the_end_up() {
        let mut workers = workers(Settings { workers: 1, ..Settings::default() });
        let ((jobs, _inbox), busy) = (mpsc::channel(1), Arc::default());
        let (alive, ended) = oneshot::channel();
        workers.workers.push(Worker { jobs, busy, ended });
        workers.end().await;
        drop(alive);
    }

    /// Those that waited for a worker were not counted.
    #[tokio::test]
    async fn connections_are_bounded_before_a_worker_takes_them() {
        let workers = workers(Settings { workers: 1, max_connections: 2, ..Settings::default() });
        let clients: Vec<_> = (0..50).map(|_| connect(&workers, Listener::Resp)).collect();
        let counts = workers.shared.traffic(Listener::Resp).counts();
        assert_eq!((counts.open, counts.accepted, counts.turned_away), (2, 2, 48));
        assert_eq!(counts.refused[RefusalReason::Connections as usize], 48);
        drop(clients);
        workers.end().await;
    }

    /// Descriptors and memory are reserved for the admin listener.
    #[tokio::test]
    async fn connections_are_bounded_over_all_listeners_and_admins_come_in_nevertheless() {
        let few = Settings { workers: 1, max_descriptors: 3, ..Settings::default() };
        let small = Settings { workers: 1, connection_memory_bytes: 3 * (8 << 10), ..few.clone() };
        let small = Settings { max_descriptors: usize::MAX, ..small };
        for (settings, reason) in
            [(few, RefusalReason::Descriptors), (small, RefusalReason::Memory)]
        {
            let workers = workers(settings);
            let clients: Vec<_> = [Listener::Resp, Listener::Http, Listener::Grpc]
                .into_iter()
                .flat_map(|listener| [connect(&workers, listener), connect(&workers, listener)])
                .collect();
            let counts = |listener| workers.shared.traffic(listener).counts();
            assert_eq!(counts(Listener::Resp).open, 2);
            assert_eq!((counts(Listener::Http).open, counts(Listener::Grpc).open), (1, 0));
            assert_eq!(counts(Listener::Grpc).refused[reason as usize], 2);
            let admin = connect(&workers, Listener::Admin);
            assert_eq!(counts(Listener::Admin).open, 1);
            drop((clients, admin));
            workers.end().await;
        }
    }
}

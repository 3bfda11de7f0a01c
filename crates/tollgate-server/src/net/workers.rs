//! The threads that serve connections.

use super::{Bound, Connection, Listener, Stream, listen::Raw, tls::TlsOf};
use crate::{admin, http, resp, rls, server::Shared};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::{
    net::{TcpStream, UnixStream},
    runtime,
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};

/// Connections that wait for a worker to take them.
const QUEUE: usize = 1024;

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
    thread: JoinHandle<()>,
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
            let task = work(inbox, (Arc::clone(shared), Arc::clone(tls)), Arc::clone(&busy));
            let thread = thread::Builder::new()
                .name(format!("tollgate-{index}"))
                .spawn(move || runtime.block_on(task))?;
            Ok(Worker { jobs, busy, thread })
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
                    tracing::warn!(%listener, "a connection could not be accepted: {error}");
                    let _ = timeout(PAUSE, std::future::pending::<()>()).await;
                }
            }
        }
    }

    fn hand_over(&self, raw: Raw, listener: Listener, peer: Option<SocketAddr>) {
        let traffic = self.shared.traffic(listener);
        if traffic.counts().open >= self.shared.settings.max_connections as u64 {
            traffic.turned_away();
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

    /// Waits until every connection has ended, or the time is up.
    pub(crate) fn finish(self) {
        // All are told before one is waited for: their time runs at once.
        let told = |Worker { thread, .. }: Worker| thread;
        let threads: Vec<_> = self.workers.into_iter().map(told).collect();
        for thread in threads {
            // A worker that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// One worker: serves what it is given until there is nothing more to come, and then gives what it has
/// a while to finish.
async fn work(
    mut inbox: mpsc::Receiver<Job>,
    (shared, tls): (Arc<Shared>, Arc<TlsOf>),
    busy: Arc<AtomicUsize>,
) {
    let mut tasks = JoinSet::new();
    let mut draining = shared.drain();
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
    let finish = async { while tasks.join_next().await.is_some() {} };
    let _ = draining.wait_for(|draining| *draining).await;
    let _ = timeout(shared.settings.drain_timeout, finish).await;
}

async fn serve(job: Job, tls: Arc<TlsOf>) {
    let Job { raw, connection } = job;
    let listener = connection.listener;
    let mut drain = connection.shared.drain();
    let opened = tokio::select! {
        biased;
        opened = open(raw, listener, &connection, &tls) => opened,
        // Nothing was asked yet, so shutdown does not wait for a handshake.
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
    use tollgate::{Clock, store::MemoryStore};

    fn workers(settings: Settings) -> Workers {
        let config = Config::from_text("test.yaml", "domain: d").expect("it is sound");
        let plan = Plan::compile(config, None).expect("it is sound");
        let engine = Engine::new(plan, vec![Backend::Memory(MemoryStore::new())]);
        let shared = Shared::new(engine, settings);
        Workers::start(&shared, &Arc::new(TlsOf::default())).expect("threads can be started")
    }

    fn connect(workers: &Workers) -> std::os::unix::net::UnixStream {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        theirs.set_nonblocking(true).expect("it is open");
        workers.hand_over(Raw::Unix(theirs), Listener::Resp, None);
        ours
    }

    /// Each had its time when the one before it was done.
    #[test]
    fn all_workers_drain_at_once() {
        let (drain_timeout, clock) = (Duration::from_millis(400), Clock::monotonic());
        let workers = workers(Settings { workers: 4, drain_timeout, ..Settings::default() });
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let mut client = connect(&workers);
                client.write_all(b"*2\r\n$4\r\n").expect("it is open");
                client
            })
            .collect();
        let (shared, start) = (Arc::clone(&workers.shared), clock.now());
        shared.start_draining();
        workers.finish();
        let took = clock.now().since(start);
        assert!(took < 3 * drain_timeout, "{took:?}");
        assert_eq!(shared.traffic(Listener::Resp).counts().open, 0);
        drop(clients);
    }

    /// Those that waited for a worker were not counted.
    #[test]
    fn connections_are_bounded_before_a_worker_takes_them() {
        let workers = workers(Settings { workers: 1, max_connections: 2, ..Settings::default() });
        let clients: Vec<_> = (0..50).map(|_| connect(&workers)).collect();
        let counts = workers.shared.traffic(Listener::Resp).counts();
        assert_eq!((counts.open, counts.accepted, counts.turned_away), (2, 2, 48));
        workers.shared.start_draining();
        drop(clients);
        workers.finish();
    }
}

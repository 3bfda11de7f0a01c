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

/// A connection on its way to a worker.
struct Job {
    raw: Raw,
    listener: Listener,
    peer: Option<SocketAddr>,
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
                Ok((raw, peer)) => self.hand_over(Job { raw, listener, peer }),
                Err(error) => {
                    // Out of descriptors, or the other end is gone already.
                    tracing::warn!(%listener, "a connection could not be accepted: {error}");
                    let _ = timeout(PAUSE, std::future::pending::<()>()).await;
                }
            }
        }
    }

    fn hand_over(&self, job: Job) {
        let traffic = self.shared.traffic(job.listener);
        if traffic.counts().open >= self.shared.settings.max_connections as u64 {
            traffic.turned_away();
            return;
        }
        // ORDERING: Relaxed. Which worker is least busy is a guess anyhow.
        let least = self.workers.iter().min_by_key(|worker| worker.busy.load(Relaxed));
        let Some(worker) = least else { return };
        worker.busy.fetch_add(1, Relaxed);
        if worker.jobs.try_send(job).is_err() {
            worker.busy.fetch_sub(1, Relaxed);
            traffic.turned_away();
        }
    }

    /// Waits until every connection has ended, or the time is up.
    pub(crate) fn finish(self) {
        for Worker { jobs, thread, .. } in self.workers {
            drop(jobs);
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
                    let (shared, tls) = (Arc::clone(&shared), Arc::clone(&tls));
                    tasks.spawn(serve(job, shared, tls));
                }
                None => break,
            },
        }
    }
    let finish = async { while tasks.join_next().await.is_some() {} };
    let _ = draining.wait_for(|draining| *draining).await;
    let _ = timeout(shared.settings.drain_timeout, finish).await;
}

async fn serve(job: Job, shared: Arc<Shared>, tls: Arc<TlsOf>) {
    let Job { raw, listener, peer } = job;
    let mut drain = shared.drain();
    let connection = Connection::new(shared, listener, peer);
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

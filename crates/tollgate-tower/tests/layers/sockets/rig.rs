//! A server with a limit, whose every step a test can see.

use axum::{
    Router,
    body::Body,
    routing::{get, post},
};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
};
use tollgate::{
    Clock, ManualClock, Quota,
    store::{self, Demand, MemoryStore, MemoryStoreBuilder, Store},
};
use tollgate_tower::{Info, Key, Policy, RateLimitBuilder, RateLimitLayer, key::KeyBytes};
use tower::{Layer, ServiceExt, util::MapRequestLayer};

/// The server that speaks HTTP.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Server {
    /// `axum::serve`, with the layer behind the routing.
    Axum,
    /// A loop of hyper-util, with the layer around the router.
    Hyper,
}

pub(crate) const SERVERS: [Server; 2] = [Server::Axum, Server::Hyper];

pub(crate) type Sender = mpsc::UnboundedSender<Bytes>;

/// A body that is fed by a test, and ends when the sender is gone.
struct Fed(mpsc::UnboundedReceiver<Bytes>);

impl http_body::Body for Fed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// The observable state of requests: the marks are counted by their owners.
struct Seen {
    asked: AtomicUsize,
    ran: AtomicUsize,
    there: Arc<()>,
    running: Arc<()>,
    bodies: mpsc::UnboundedSender<Sender>,
    uploads: mpsc::UnboundedSender<Result<usize, String>>,
}

/// A mark in the extensions of a request.
#[derive(Clone)]
struct There(#[allow(dead_code, reason = "it is counted")] Arc<()>);

impl Seen {
    fn enter(&self) -> Arc<()> {
        // ORDERING: SeqCst here and below, which a test can afford.
        self.ran.fetch_add(1, SeqCst);
        Arc::clone(&self.running)
    }
}

type With<T, U = T> = Box<dyn FnOnce(T) -> U>;

/// The settings of a server.
pub(crate) struct Setup {
    server: Server,
    quota: Quota,
    policy: With<Policy>,
    layer: With<RateLimitBuilder>,
    memory: With<MemoryStoreBuilder>,
    inner: With<Router>,
    afar: Option<Afar>,
}

/// Makes a shared store in front of a memory.
type Afar = Box<dyn FnOnce(MemoryStore) -> Box<dyn tollgate::store::DynStore>>;

impl Setup {
    /// A server with one limit for all requests.
    pub(crate) fn new(server: Server, quota: Quota) -> Self {
        Self {
            server,
            quota,
            policy: Box::new(|policy| policy),
            layer: Box::new(|layer| layer),
            memory: Box::new(|memory| memory),
            inner: Box::new(|routes| routes),
            afar: None,
        }
    }

    pub(crate) fn policy(mut self, with: impl FnOnce(Policy) -> Policy + 'static) -> Self {
        self.policy = Box::new(with);
        self
    }

    pub(crate) fn layer(
        mut self,
        with: impl FnOnce(RateLimitBuilder) -> RateLimitBuilder + 'static,
    ) -> Self {
        self.layer = Box::new(with);
        self
    }

    pub(crate) fn memory(
        mut self,
        with: impl FnOnce(MemoryStoreBuilder) -> MemoryStoreBuilder + 'static,
    ) -> Self {
        self.memory = Box::new(with);
        self
    }

    /// Uses a shared store, which keeps its state in the memory.
    pub(crate) fn afar(
        mut self,
        afar: impl FnOnce(MemoryStore) -> Box<dyn tollgate::store::DynStore> + 'static,
    ) -> Self {
        self.afar = Some(Box::new(afar));
        self
    }

    /// Wraps the routes, further in than the limit.
    pub(crate) fn inner(mut self, with: impl FnOnce(Router) -> Router + 'static) -> Self {
        self.inner = Box::new(with);
        self
    }

    pub(crate) async fn serve(self) -> Rig {
        let (clock, hand) = Clock::manual();
        let memory = (self.memory)(MemoryStore::builder().clock(clock)).build().unwrap();
        let (bodies_in, bodies) = mpsc::unbounded_channel();
        let (uploads_in, uploads) = mpsc::unbounded_channel();
        let seen = Arc::new(Seen {
            asked: AtomicUsize::new(0),
            ran: AtomicUsize::new(0),
            there: Arc::new(()),
            running: Arc::new(()),
            bodies: bodies_in,
            uploads: uploads_in,
        });
        let counts = Arc::clone(&seen);
        let policy = (self.policy)(Policy::new("p", self.quota)).only(move |_| {
            counts.asked.fetch_add(1, SeqCst);
            true
        });
        let builder = RateLimitLayer::builder().policy(policy);
        let builder = match self.afar {
            Some(afar) => builder.store(afar(memory.clone())),
            None => builder.memory(memory.clone()),
        };
        let limits = (self.layer)(builder).build().unwrap();
        let app = (self.inner)(routes(&seen));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(());
        let marks = Arc::clone(&seen);
        let server = match self.server {
            Server::Axum => tokio::spawn(by_axum(listener, app.layer(limits), marks, stopped)),
            Server::Hyper => tokio::spawn(by_hyper(listener, limits.layer(app), marks, stopped)),
        };
        Rig { address, hand, bodies, uploads, stop, server, seen, memory, quota: self.quota }
    }
}

/// A running server.
pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    pub(crate) hand: ManualClock,
    /// Senders of the bodies of `/fed`.
    pub(crate) bodies: mpsc::UnboundedReceiver<Sender>,
    /// The reads of uploads: each frame, 0 at the end, and errors.
    pub(crate) uploads: mpsc::UnboundedReceiver<Result<usize, String>>,
    /// Signals the server to finish.
    pub(crate) stop: watch::Sender<()>,
    pub(crate) server: JoinHandle<()>,
    pub(crate) memory: MemoryStore,
    seen: Arc<Seen>,
    quota: Quota,
}

impl Rig {
    /// Requests that reached the limit. Since all is on one thread, they wait now or have passed.
    pub(crate) fn asked(&self) -> usize {
        self.seen.asked.load(SeqCst)
    }

    /// Requests that reached a handler.
    pub(crate) fn ran(&self) -> usize {
        self.seen.ran.load(SeqCst)
    }

    /// Requests that are neither dropped nor in a handler.
    pub(crate) fn there(&self) -> usize {
        Arc::strong_count(&self.seen.there) - 1
    }

    /// Running handlers.
    pub(crate) fn running(&self) -> usize {
        Arc::strong_count(&self.seen.running) - 1
    }

    /// Returns how many permits are left, and takes none.
    pub(crate) async fn left(&self) -> u64 {
        let mut key = KeyBytes::new();
        assert!(Key::global().find(&Info::of(&Request::new(())), &mut key).is_counted());
        let policy = store::Policy::new("p", self.quota).unwrap();
        let mut demands = [Demand::new(&policy, key.as_bytes(), 1)];
        let peeked = self.memory.peek(&mut demands).await.unwrap();
        if peeked.is_allowed() { peeked.remaining() + 1 } else { 0 }
    }
}

fn routes(seen: &Arc<Seen>) -> Router {
    let with = || Arc::clone(seen);
    let (hello, hangs, fed, upload) = (with(), with(), with(), with());
    Router::new()
        .route("/", get(move || async move { drop(hello.enter()) }))
        .route(
            "/hangs",
            get(move || async move {
                let _running = hangs.enter();
                std::future::pending::<()>().await
            }),
        )
        .route(
            "/fed",
            get(move || async move {
                let _running = fed.enter();
                let (sender, receiver) = mpsc::unbounded_channel();
                fed.bodies.send(sender).unwrap();
                Response::new(Body::new(Fed(receiver)))
            }),
        )
        .route("/upload", post(move |body: Body| read(upload, body)))
}

/// Reads an upload, and reports its frames.
async fn read(seen: Arc<Seen>, mut body: Body) -> (StatusCode, String) {
    let _running = seen.enter();
    let mut sum = 0;
    while let Some(frame) = body.frame().await {
        let read = frame.map(|frame| frame.data_ref().map_or(0, Bytes::len));
        sum += read.as_ref().map_or(0, |length| *length);
        let has_failed = read.is_err();
        let _ = seen.uploads.send(read.map_err(|error| error.to_string()));
        if has_failed {
            return (StatusCode::BAD_REQUEST, "cut off".into());
        }
    }
    let _ = seen.uploads.send(Ok(0));
    (StatusCode::OK, sum.to_string())
}

async fn by_axum(
    listener: TcpListener,
    app: Router,
    seen: Arc<Seen>,
    mut stopped: watch::Receiver<()>,
) {
    let app = app.layer(MapRequestLayer::new(move |mut request: axum::extract::Request| {
        request.extensions_mut().insert(There(Arc::clone(&seen.there)));
        request
    }));
    let stop = async move { drop(stopped.changed().await) };
    axum::serve(listener, app).with_graceful_shutdown(stop).await.unwrap();
}

async fn by_hyper(
    listener: TcpListener,
    app: tollgate_tower::RateLimit<Router>,
    seen: Arc<Seen>,
    mut stopped: watch::Receiver<()>,
) {
    let app = app.map_request(move |mut request: Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(There(Arc::clone(&seen.there)));
        request
    });
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => continue,
        };
        let (service, mut stopped) = (TowerToHyperService::new(app.clone()), stopped.clone());
        connections.spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => return,
                _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        });
    }
    while connections.join_next().await.is_some() {}
}

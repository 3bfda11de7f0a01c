//! A limit holds over many connections that stay open, over clones of a router and over several
//! layers with one memory, under the load of a real client: it is neither exceeded nor left unused,
//! by any algorithm. The bounds are those of docs/guarantees.md.

mod log;
mod windows;
mod wrk;

use axum::{Router, extract::Request, middleware, middleware::Next, routing::get};
use log::{Log, Seen};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tollgate::{Algorithm, Clock, Quota, store::MemoryStore};
use tollgate_tower::{
    Key, Policy, RateLimitLayer,
    key::{ClientAddress, Trust},
};
use windows::Windows;
use wrk::{Counted, Load};

/// Connections of each client; there is one client for each server.
const CONNECTIONS: u64 = 32;
const SECONDS: u32 = 2;

/// State that all servers of a test share.
struct Site {
    clock: Clock,
    log: Arc<Log>,
    /// Requests that reached the application.
    served: Arc<AtomicU64>,
}

impl Site {
    fn new() -> Self {
        Self { clock: Clock::monotonic(), log: Arc::default(), served: Arc::default() }
    }

    fn memory(&self) -> MemoryStore {
        MemoryStore::builder().clock(self.clock.clone()).build().unwrap()
    }

    /// Returns an application behind a layer, which records the result of each request.
    fn app(&self, layer: RateLimitLayer) -> Router {
        let served = Arc::clone(&self.served);
        let count = move || {
            // ORDERING: SeqCst for simplicity: read when all servers have ended.
            served.fetch_add(1, SeqCst);
            async { "hello" }
        };
        let (clock, log) = (self.clock.clone(), Arc::clone(&self.log));
        let stamp = move |request: Request, next: Next| {
            let (clock, log) = (clock.clone(), Arc::clone(&log));
            async move {
                let address = header(request.headers(), "x-forwarded-for");
                let before = clock.now();
                let response = next.run(request).await;
                let after = clock.now();
                let refused_by = match response.status().as_u16() {
                    200 => None,
                    429 => Some(header(response.headers(), "ratelimit")),
                    other => panic!("{other} was neither passed nor refused"),
                };
                log.note(Seen { before, after, address, refused_by });
                response
            }
        };
        Router::new().route("/", get(count)).layer(layer).layer(middleware::from_fn(stamp))
    }

    /// Serves each router by itself, loads all of them, and returns the requests seen when all
    /// connections have ended.
    async fn load(&self, routers: Vec<Router>, addresses: u32) -> Vec<Seen> {
        let (stop, stopped) = watch::channel(false);
        let (mut servers, mut clients) = (JoinSet::new(), JoinSet::new());
        let load = Load { connections: CONNECTIONS, seconds: SECONDS, addresses };
        let most_open = CONNECTIONS * routers.len() as u64;
        for router in routers {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let server: SocketAddr = listener.local_addr().unwrap();
            let mut stopped = stopped.clone();
            let end = async move { drop(stopped.changed().await) };
            servers.spawn(async move {
                axum::serve(listener, router).with_graceful_shutdown(end).await.unwrap();
            });
            clients.spawn_blocking(move || wrk::load(server, load));
        }
        let counted: Vec<Counted> = clients.join_all().await;
        stop.send(true).unwrap();
        servers.join_all().await;
        let seen = self.log.take();
        self.agree(&seen, &counted, most_open);
        seen
    }

    /// Checks that client, log and application have counted the same. The clients do not count the
    /// requests that were in transit when they stopped: at most one for each connection.
    fn agree(&self, seen: &[Seen], counted: &[Counted], most_open: u64) {
        let refused = seen.iter().filter(|seen| seen.refused_by.is_some()).count() as u64;
        let passed = seen.len() as u64 - refused;
        let (told_passed, told_refused) = counted
            .iter()
            .fold((0, 0), |(passed, refused), it| (passed + it.passed, refused + it.refused));
        // ORDERING: SeqCst for simplicity, as above.
        assert_eq!(self.served.load(SeqCst), passed, "what passed ran, and nothing else");
        assert!(told_passed <= passed && told_refused <= refused, "{counted:?}, {passed} passed");
        let open = passed + refused - told_passed - told_refused;
        assert!(open <= most_open, "{open} requests were lost, of {most_open} connections");
    }
}

fn header(headers: &axum::http::HeaderMap, name: &str) -> String {
    headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

/// Returns the requests that were admitted, and those that the policy `name` has refused.
fn parted<'a>(name: &str, seen: &[&'a Seen]) -> (Vec<&'a Seen>, Vec<&'a Seen>) {
    let admitted = seen.iter().copied().filter(|it| it.refused_by.is_none());
    // The header begins with the policy that refuses for the longest time.
    let quoted = format!("\"{name}\";");
    let by_it = |it: &&Seen| it.refused_by.as_ref().is_some_and(|by| by.starts_with(&quoted));
    (admitted.collect(), seen.iter().copied().filter(by_it).collect())
}

/// Checks one policy from both sides, and prints its figures.
fn held(name: &str, quota: Quota, seen: &[&Seen]) {
    let (admitted, refused) = parted(name, seen);
    log::never_above(quota, &admitted);
    let least = log::used(quota, &admitted, &refused);
    println!(
        "{name} ({quota}): {} of {} admitted, at least {least} were there, {} refused by it",
        admitted.len(),
        seen.len(),
        refused.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_limit_holds_over_all_connections_and_clones_of_a_router() {
    let (site, quota) = (Site::new(), Quota::per_second(400).burst(50));
    let layer = RateLimitLayer::builder().memory(site.memory());
    let layer = layer.policy(Policy::new("global", quota)).build().unwrap();
    // Three servers: two clones of one router, and another router behind a clone of the layer.
    let router = site.app(layer.clone());
    let seen = site.load(vec![router.clone(), router, site.app(layer)], 0).await;
    held("global", quota, &seen.iter().collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_by_address_hold_together_with_one_for_all() {
    let (site, addresses) = (Site::new(), 3);
    // The addresses together get 300 each second until the burst for all is used, and 240 then: so
    // each limit is the tighter one for a while.
    let (each, all) = (Quota::per_second(100).burst(20), Quota::per_second(240).burst(100));
    let client = ClientAddress::x_forwarded_for(Trust::hops(1));
    let layer = RateLimitLayer::builder()
        .memory(site.memory())
        .policy(Policy::new("address", each).key(Key::client(client)))
        .policy(Policy::new("global", all))
        .build()
        .unwrap();
    let router = site.app(layer);
    let seen = site.load(vec![router.clone(), router], addresses).await;
    held("global", all, &seen.iter().collect::<Vec<_>>());
    for number in 1..=addresses {
        let address = format!("192.0.2.{number}");
        let of_it: Vec<_> = seen.iter().filter(|seen| seen.address.ends_with(&address)).collect();
        held("address", each, &of_it);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_with_one_memory_share_the_limit() {
    let (site, quota) = (Site::new(), Quota::per_second(300).burst(60));
    let memory = site.memory();
    let layer = || {
        let layer = RateLimitLayer::builder().memory(memory.clone());
        layer.policy(Policy::new("global", quota)).build().unwrap()
    };
    let routers = vec![site.app(layer()), site.app(layer())];
    let seen = site.load(routers, 0).await;
    held("global", quota, &seen.iter().collect::<Vec<_>>());
}

/// Loads two clones of a router whose limit counts in windows, eight of them and a part.
async fn windows_hold(algorithm: Algorithm) {
    let (site, quota) = (Site::new(), Quota::per(60, Duration::from_millis(250)));
    let layer = RateLimitLayer::builder().memory(site.memory());
    let layer = layer.policy(Policy::new("window", quota).algorithm(algorithm)).build().unwrap();
    let router = site.app(layer);
    let seen = site.load(vec![router.clone(), router], 0).await;
    let (admitted, refused) = parted("window", &seen.iter().collect::<Vec<_>>());
    let windows = Windows::new((algorithm, quota), &site.clock, &admitted);
    windows.never_above();
    windows.used(&refused);
    println!("{algorithm:?} ({quota}): {} of {} admitted", admitted.len(), seen.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_window_holds() {
    windows_hold(Algorithm::FixedWindow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_anchored_window_holds() {
    windows_hold(Algorithm::AnchoredWindow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sliding_counter_holds() {
    windows_hold(Algorithm::SlidingCounter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sliding_log_holds() {
    windows_hold(Algorithm::SlidingLog).await;
}

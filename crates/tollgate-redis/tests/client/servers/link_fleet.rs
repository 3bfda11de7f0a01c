//! The link against a Cluster, Sentinels, and TLS.

use crate::servers::link_support::{PATIENCE, command, open, told, until};
use tollgate_redis::{Command, Link, LinkError, Reply, Route, Script, slot_of};
use tollgate_rig::{Cluster, Flavor, Redis, Sentinel, free_port};

/// Sends a command to the slot of its first key.
async fn call(link: &Link, words: &[&str]) -> Result<Reply, LinkError> {
    link.call(Route::Slot(slot_of(words[1].as_bytes())), command(words)).await
}

/// Returns an address with two nodes: the link discovers the others.
fn url_of(cluster: &Cluster) -> String {
    let [first, second] = [0, 1].map(|node| cluster.nodes()[node].address());
    format!("redis+cluster://{first},{second}")
}

#[tokio::test]
async fn calls_go_to_the_primary_of_their_slot_and_follow_it() {
    let cluster = Cluster::builder(Flavor::Redis).replicas(0).start();
    let link = open(&format!("{}?deadline=5s", url_of(&cluster))).await;
    assert!(link.is_cluster());
    for key in 0..100 {
        let key = format!("key:{key}");
        assert_eq!(call(&link, &["INCR", &key]).await, Ok(Reply::Int(1)), "{key}");
    }
    assert_eq!(link.nodes().len(), 3);

    // A slot during its migration: the link asks the new server for keys that have moved.
    let slot = slot_of(b"{m}a");
    assert_eq!(call(&link, &["INCR", "{m}a"]).await, Ok(Reply::Int(1)));
    let from = cluster.owner(slot);
    let migration = cluster.migrate(slot, (from + 1) % 3);
    assert_eq!(call(&link, &["INCR", "{m}new"]).await, Ok(Reply::Int(1)), "ASK");
    assert_eq!(call(&link, &["INCR", "{m}a"]).await, Ok(Reply::Int(2)), "still here");
    let script = Script::new("return redis.call('INCR', KEYS[1])");
    let mut scripted = script.call(1, 0);
    scripted.push(b"{m}new");
    let reply = link.run(Route::Slot(slot), &script, scripted).await;
    assert_eq!(reply, Ok(Reply::Int(2)), "NOSCRIPT behind ASK");
    let split = call(&link, &["MGET", "{m}a", "{m}new"]).await.unwrap_err();
    assert_eq!(split.code(), Some("TRYAGAIN"));

    // The slot has moved: the first call is redirected, and soon no more.
    migration.finish();
    assert_eq!(call(&link, &["INCR", "{m}a"]).await, Ok(Reply::Int(3)), "MOVED");
    let old = cluster.nodes()[from].address().to_string();
    let calls_at_old = || link.nodes().iter().find(|node| node.address == old).unwrap().calls;
    until("the map is read anew", async || {
        let before = calls_at_old();
        call(&link, &["INCR", "{m}a"]).await.unwrap();
        calls_at_old() == before
    })
    .await;
}

#[tokio::test]
async fn a_replica_takes_over_when_a_primary_dies() {
    let mut cluster = Cluster::start(Flavor::Redis);
    let link = open(&format!("{}?deadline=200ms", url_of(&cluster))).await;
    until("well", async || call(&link, &["SET", "k", "v"]).await.is_ok()).await;
    let primary = cluster.owner(slot_of(b"k"));
    cluster.node_mut(primary).kill();
    until("noticed", async || call(&link, &["SET", "k", "v"]).await.is_err()).await;
    until("taken over", async || call(&link, &["SET", "k", "v"]).await.is_ok()).await;
    let nodes = link.nodes();
    let dead = cluster.nodes()[primary].address().to_string();
    assert!(nodes.iter().all(|node| node.address != dead), "{nodes:?}");
}

#[tokio::test]
async fn a_slot_that_nobody_serves_is_unavailable() {
    let server = Redis::builder(Flavor::Redis).cluster();
    let server = server.line("cluster-require-full-coverage no").start();
    let url = format!("redis+cluster://{}?deadline=5s", server.address());
    let link = Link::open(url.parse().unwrap()).unwrap();
    told(&link, "reports no slots").await;
    assert_eq!(server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "100"]), "OK");
    link.ready(PATIENCE).await.unwrap();
    let error = link.call(Route::Slot(101), Command::new("PING", 0)).await.unwrap_err();
    assert!(!error.is_unknown() && error.to_string().contains("serves slot 101"), "{error}");
}

#[tokio::test]
async fn the_sentinels_name_the_new_primary() {
    let mut rig = Sentinel::start(Flavor::Redis);
    let (nobody, name) = (free_port(), rig.name().to_owned());
    let sentinels = format!("{nobody},{}", rig.sentinels()[0].address());
    let link = open(&format!("redis+sentinel://{sentinels}/{name}/0?deadline=200ms")).await;
    until("well", async || call(&link, &["SET", "k", "v"]).await.is_ok()).await;
    let old = rig.kill_primary();
    until("noticed", async || call(&link, &["SET", "k", "v"]).await.is_err()).await;
    until("failed over", async || call(&link, &["SET", "k", "v"]).await.is_ok()).await;
    assert_eq!(link.nodes()[0].address, rig.servers()[1 - old].address().to_string());

    let wrong = format!("redis+sentinel://{sentinels}/other");
    let link = Link::open(wrong.parse().unwrap()).unwrap();
    told(&link, "no primary named \"other\"").await;
}

#[tokio::test]
async fn a_primary_that_was_demoted_is_left_within_one_call() {
    let [first, second] = [(); 2].map(|()| Redis::start(Flavor::Redis));
    let [from, to] = [&first, &second].map(|server| server.address().port().to_string());
    let sentinel = Redis::builder(Flavor::Redis).sentinel();
    let sentinel = sentinel.line(&format!("sentinel monitor main 127.0.0.1 {from} 1")).start();
    let url = format!("redis+sentinel://{}/main?deadline=5s", sentinel.address());
    let link = open(&url).await;
    assert_eq!(call(&link, &["INCR", "n"]).await, Ok(Reply::Int(1)));
    // The Sentinel gets another primary, and the old one turns read-only; the connection stays
    // open.
    assert_eq!(sentinel.cli(&["SENTINEL", "REMOVE", "main"]), "OK");
    let words = ["SENTINEL", "MONITOR", "main", "127.0.0.1", &to, "1"];
    assert_eq!(sentinel.cli(&words), "OK");
    assert_eq!(first.cli(&["REPLICAOF", "127.0.0.1", &to]), "OK");
    until("read-only", async || first.cli(&["SET", "x", "y"]).contains("READONLY")).await;
    let reply = call(&link, &["INCR", "n"]).await;
    assert!(matches!(reply, Ok(Reply::Int(_))), "{reply:?}");
    assert_eq!(link.nodes()[0].address, second.address().to_string());
}

#[cfg(feature = "tls")]
mod tls {
    use super::*;
    use std::time::Duration;
    use tollgate_rig::Tls;

    #[tokio::test]
    async fn tls_trusts_only_whom_it_should() {
        // Its certificate is for localhost and 127.0.0.1, so 127.0.0.2 is not among its names.
        let server = Redis::builder(Flavor::Redis).tls(Tls::Only).client_certificates();
        let server = server.line("bind 127.0.0.1 127.0.0.2").start();
        let port = server.address().port();
        let made = server.certificates().unwrap();
        let ca = made.authority.display();
        let own =
            format!("cert={}&key={}", made.client.certificate.display(), made.client.key.display());

        let at = format!("rediss://127.0.0.2:{port}?deadline=5s&connect_timeout=5s");
        let link = open(&format!("{at}&ca={ca}&server_name=localhost&{own}")).await;
        assert_eq!(call(&link, &["INCR", "n"]).await, Ok(Reply::Int(1)));
        let big = "x".repeat(1 << 19);
        assert_eq!(call(&link, &["ECHO", &big]).await, Ok(Reply::Bytes(big.into_bytes())));

        for (parameters, expected) in [
            (format!("ca={ca}&{own}"), "not valid for name"),
            (format!("ca={ca}&server_name=other.test&{own}"), "not valid for name"),
            (format!("server_name=localhost&{own}"), "UnknownIssuer"),
        ] {
            match Link::open(format!("{at}&{parameters}").parse().unwrap()) {
                Ok(link) => drop(told(&link, expected).await),
                // A machine without any certificates.
                Err(error) => {
                    let error = error.to_string().replace("no certificates", "UnknownIssuer");
                    assert!(error.contains(expected), "{parameters}: {error}");
                }
            }
        }
        let url = format!("{at}&ca={ca}&server_name=localhost");
        let link = Link::open(url.parse().unwrap()).unwrap();
        assert!(link.ready(Duration::from_millis(300)).await.is_err(), "no certificate of its own");
        let missing = format!("{at}&ca={ca}.none");
        let error = Link::open(missing.parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains(".none"), "{error}");
    }
}

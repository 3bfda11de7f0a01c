//! The link against a Cluster, Sentinels, and TLS.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod starter;

use starter::{Server, cli, free_port, until};
use std::time::Duration;
use tollgate_redis::{Command, Link, LinkError, Reply, Route, Script, slot_of};

const PATIENCE: Duration = Duration::from_secs(5);

async fn open(url: &str) -> Link {
    let link = Link::open(url.parse().unwrap()).unwrap();
    link.ready(PATIENCE).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    link
}

/// Calls by the slot of the first key.
async fn call(link: &Link, words: &[&str]) -> Result<Reply, LinkError> {
    let mut command = Command::new(words[0], words.len() - 1);
    words[1..].iter().for_each(|word| command.push(word.as_bytes()));
    link.call(Route::Slot(slot_of(words[1].as_bytes())), command).await
}

struct Fleet {
    servers: Vec<Server>,
}

impl Fleet {
    /// Starts a Cluster of three primaries, each with so many replicas.
    async fn start(replicas: usize) -> Self {
        let mut servers = Vec::new();
        while servers.len() < 3 * (1 + replicas) {
            let (port, bus) = (free_port(), free_port());
            let bus = bus.to_string();
            let args = [
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                "500",
                "--repl-diskless-sync-delay",
                "0",
            ];
            servers.push(Server::start_at(port, &args).await);
        }
        let addresses: Vec<_> =
            servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        let output = std::process::Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(&addresses)
            .args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let fleet = Self { servers };
        until("the cluster is well", async || {
            fleet.servers.iter().all(|server| {
                let info = server.cli(&["INFO", "replication"]);
                server.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && (info.contains("role:master") || info.contains("master_link_status:up"))
            })
        })
        .await;
        fleet
    }

    fn url(&self) -> String {
        let [first, second] = [self.servers[0].port, self.servers[1].port];
        format!("redis+cluster://127.0.0.1:{first},127.0.0.1:{second}")
    }

    fn id_of(&self, at: usize) -> String {
        self.servers[at].cli(&["CLUSTER", "MYID"])
    }

    /// Returns who serves a key, by its place.
    fn primary_of(&self, key: &str) -> usize {
        let slot = i64::from(slot_of(key.as_bytes()));
        let text = self.servers[0].cli(&["CLUSTER", "SLOTS"]);
        let words: Vec<&str> = text.lines().collect();
        // first, last, host, port, id, ...: the range that holds the slot
        let at = words.windows(4).position(|it| {
            let range = (it[0].parse::<i64>(), it[1].parse::<i64>());
            matches!(range, (Ok(first), Ok(last)) if (first..=last).contains(&slot))
                && it[2] == "127.0.0.1"
        });
        let port: u16 = words[at.unwrap() + 3].parse().unwrap();
        self.servers.iter().position(|server| server.port == port).unwrap()
    }
}

#[tokio::test]
async fn calls_go_to_the_primary_of_their_slot_and_follow_it() {
    let fleet = Fleet::start(0).await;
    let link = open(&format!("{}?deadline=5s", fleet.url())).await;
    assert!(link.is_cluster());
    for key in 0..100 {
        let key = format!("key:{key}");
        assert_eq!(call(&link, &["INCR", &key]).await, Ok(Reply::Int(1)), "{key}");
    }
    assert_eq!(link.nodes().len(), 3);

    // A slot on its way: what is not there any more is asked for at the other server.
    let slot = slot_of(b"{m}a").to_string();
    assert_eq!(call(&link, &["INCR", "{m}a"]).await, Ok(Reply::Int(1)));
    let from = fleet.primary_of("{m}a");
    let to = (from + 1) % 3;
    let (from_id, to_id) = (fleet.id_of(from), fleet.id_of(to));
    let set = |at: usize, words: &[&str]| {
        let words = [&["CLUSTER", "SETSLOT", &slot], words].concat();
        assert_eq!(fleet.servers[at].cli(&words), "OK");
    };
    set(to, &["IMPORTING", &from_id]);
    set(from, &["MIGRATING", &to_id]);
    assert_eq!(call(&link, &["INCR", "{m}new"]).await, Ok(Reply::Int(1)), "ASK");
    assert_eq!(call(&link, &["INCR", "{m}a"]).await, Ok(Reply::Int(2)), "still here");
    let script = Script::new("return redis.call('INCR', KEYS[1])");
    let mut scripted = script.call(1, 0);
    scripted.push(b"{m}new");
    let reply = link.run(Route::Slot(slot_of(b"{m}new")), &script, scripted).await;
    assert_eq!(reply, Ok(Reply::Int(2)), "NOSCRIPT behind ASK");
    let split = call(&link, &["MGET", "{m}a", "{m}new"]).await.unwrap_err();
    assert_eq!(split.code(), Some("TRYAGAIN"));

    // The slot has moved: the first call is redirected, and soon none.
    let port = fleet.servers[to].port.to_string();
    let moved = ["MIGRATE", "127.0.0.1", &port, "{m}a", "0", "1000"];
    assert_eq!(fleet.servers[from].cli(&moved), "OK");
    set(to, &["NODE", &to_id]);
    set(from, &["NODE", &to_id]);
    assert_eq!(call(&link, &["INCR", "{m}a"]).await, Ok(Reply::Int(3)), "MOVED");
    let calls_at = |port: u16| {
        let nodes = link.nodes();
        let node = nodes.iter().find(|it| it.address == format!("127.0.0.1:{port}"));
        node.unwrap().calls
    };
    until("the map is read anew", async || {
        let before = calls_at(fleet.servers[from].port);
        call(&link, &["INCR", "{m}a"]).await.unwrap();
        calls_at(fleet.servers[from].port) == before
    })
    .await;
}

#[tokio::test]
async fn a_replica_takes_over_when_a_primary_dies() {
    let mut fleet = Fleet::start(1).await;
    let link = open(&format!("{}?deadline=200ms", fleet.url())).await;
    assert_eq!(call(&link, &["SET", "k", "v"]).await, Ok(Reply::Bytes(b"OK".into())));
    let primary = fleet.primary_of("k");
    fleet.servers[primary].kill();
    until("noticed", async || call(&link, &["SET", "k", "v"]).await.is_err()).await;
    until("taken over", async || call(&link, &["SET", "k", "v"]).await.is_ok()).await;
    let nodes = link.nodes();
    let dead = format!("127.0.0.1:{}", fleet.servers[primary].port);
    assert!(nodes.iter().all(|node| node.address != dead), "{nodes:?}");
}

#[tokio::test]
async fn a_slot_that_nobody_serves_is_unavailable() {
    let server = {
        let bus = free_port().to_string();
        let args = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        let more = ["--cluster-require-full-coverage", "no"];
        Server::start(&[&args[..], &more].concat()).await
    };
    let url = format!("redis+cluster://127.0.0.1:{}?deadline=5s", server.port);
    let link = Link::open(url.parse().unwrap()).unwrap();
    let error = link.ready(Duration::from_millis(100)).await.unwrap_err().to_string();
    assert!(error.contains("knows of no slots"), "{error}");
    assert_eq!(server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "100"]), "OK");
    link.ready(PATIENCE).await.unwrap();
    let error = link.call(Route::Slot(101), Command::new("PING", 0)).await.unwrap_err();
    assert!(!error.is_unknown() && error.to_string().contains("serves slot 101"), "{error}");
}

#[tokio::test]
async fn the_sentinels_name_the_new_primary() {
    let mut primary = Server::start(&["--repl-diskless-sync-delay", "0"]).await;
    let port = primary.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]).await;
    until("in sync", async || {
        replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let sentinel_port = free_port();
    let config = folder.path().join("sentinel.conf");
    let text = format!(
        "port {sentinel_port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {port} 1\n\
         sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n"
    );
    std::fs::write(&config, text).unwrap();
    let args = [config.to_str().unwrap(), "--sentinel"];
    let sentinel = Server::start_at(sentinel_port, &args).await;
    until("the replica is known", async || {
        sentinel.cli(&["SENTINEL", "replicas", "main"]).contains(&replica.port.to_string())
    })
    .await;

    let nobody = free_port();
    let sentinels = format!("127.0.0.1:{nobody},127.0.0.1:{sentinel_port}");
    let link = open(&format!("redis+sentinel://{sentinels}/main/0?deadline=200ms")).await;
    assert_eq!(call(&link, &["SET", "k", "v"]).await, Ok(Reply::Bytes(b"OK".into())));
    primary.kill();
    until("noticed", async || call(&link, &["SET", "k", "v"]).await.is_err()).await;
    until("failed over", async || call(&link, &["SET", "k", "v"]).await.is_ok()).await;
    assert_eq!(link.nodes()[0].address, format!("127.0.0.1:{}", replica.port));

    let wrong = format!("redis+sentinel://{sentinels}/other");
    let link = Link::open(wrong.parse().unwrap()).unwrap();
    let error = link.ready(Duration::from_millis(200)).await.unwrap_err().to_string();
    assert!(error.contains("no primary by the name \"other\""), "{error}");
}

#[tokio::test]
async fn a_primary_that_was_demoted_is_left_within_one_call() {
    let first = Server::start(&[]).await;
    let second = Server::start(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let sentinel_port = free_port();
    let config = folder.path().join("sentinel.conf");
    let monitor = |port: u16| format!("sentinel monitor main 127.0.0.1 {port} 1\n");
    let text = format!("port {sentinel_port}\nbind 127.0.0.1\n{}", monitor(first.port));
    std::fs::write(&config, text).unwrap();
    let _sentinel =
        Server::start_at(sentinel_port, &[config.to_str().unwrap(), "--sentinel"]).await;
    let url = format!("redis+sentinel://127.0.0.1:{sentinel_port}/main?deadline=5s");
    let link = open(&url).await;
    assert_eq!(call(&link, &["INCR", "n"]).await, Ok(Reply::Int(1)));
    // The Sentinel is told of another primary, and the old one turns read-only; the connection stays.
    assert_eq!(cli(sentinel_port, &["SENTINEL", "REMOVE", "main"]), "OK");
    let port = second.port.to_string();
    let words = ["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, "1"];
    assert_eq!(cli(sentinel_port, &words), "OK");
    let words = ["REPLICAOF", "127.0.0.1", &port];
    assert_eq!(first.cli(&words), "OK");
    until("read-only", async || first.cli(&["SET", "x", "y"]).contains("READONLY")).await;
    let reply = call(&link, &["INCR", "n"]).await;
    assert!(matches!(reply, Ok(Reply::Int(_))), "{reply:?}");
    assert_eq!(link.nodes()[0].address, format!("127.0.0.1:{port}"));
}

#[cfg(feature = "tls")]
mod tls {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use std::path::Path;

    /// Writes an authority and a certificate of `name` that it has signed.
    fn certificates(folder: &Path, name: &str) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority of its own");
        let ca = params.self_signed(&key).unwrap();
        std::fs::write(folder.join("ca.pem"), ca.pem()).unwrap();
        let issuer = Issuer::from_params(&params, &key);
        let server_key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let server = params.signed_by(&server_key, &issuer).unwrap();
        std::fs::write(folder.join("cert.pem"), server.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), server_key.serialize_pem()).unwrap();
    }

    #[tokio::test]
    async fn tls_trusts_only_whom_it_should() {
        let folder = tempfile::tempdir().unwrap();
        certificates(folder.path(), "redis.test");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (ca, cert, key) = (path("ca.pem"), path("cert.pem"), path("key.pem"));
        let tls_port = free_port();
        let tls = tls_port.to_string();
        let names = ["--tls-port", "--tls-ca-cert-file", "--tls-cert-file", "--tls-key-file"];
        let values = [&tls, &ca, &cert, &key];
        let args: Vec<&str> =
            names.iter().zip(values).flat_map(|(name, value)| [*name, value.as_str()]).collect();
        let server = Server::start(&args).await;

        let at = format!("rediss://127.0.0.1:{tls_port}?deadline=5s&connect_timeout=5s");
        let own = format!("cert={cert}&key={key}");
        let link = open(&format!("{at}&ca={ca}&server_name=redis.test&{own}")).await;
        assert_eq!(call(&link, &["INCR", "n"]).await, Ok(Reply::Int(1)));
        let big = "x".repeat(1 << 19);
        assert_eq!(call(&link, &["ECHO", &big]).await, Ok(Reply::Bytes(big.into_bytes())));

        for (parameters, expected) in [
            (format!("ca={ca}&{own}"), "not valid for name"),
            (format!("ca={ca}&server_name=other.test&{own}"), "not valid for name"),
            (format!("server_name=redis.test&{own}"), "UnknownIssuer"),
        ] {
            let link = Link::open(format!("{at}&{parameters}").parse().unwrap());
            let error = match link {
                Ok(link) => link.ready(Duration::from_millis(500)).await.unwrap_err().to_string(),
                // A machine without any certificates.
                Err(error) => error.to_string().replace("no certificates", "UnknownIssuer"),
            };
            assert!(error.contains(expected), "{parameters}: {error}");
        }
        let url = format!("{at}&ca={ca}&server_name=redis.test");
        let link = Link::open(url.parse().unwrap()).unwrap();
        assert!(link.ready(Duration::from_millis(300)).await.is_err(), "no certificate of its own");
        let missing = format!("{at}&ca={ca}.none");
        let error = Link::open(missing.parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains(".none"), "{error}");
        drop(server);
    }
}

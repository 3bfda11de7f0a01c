//! Bad days of several servers.

use super::{
    day::Day,
    fleet::{KEY, until},
};
use std::time::Duration;
use tollgate::{
    Quota,
    store::{Demand, Policy, Store},
};
use tollgate_redis::{Link, RedisStore, Settings, slot_of};
use tollgate_rig::{Cluster, Flavor, Sentinel};

/// A cluster, and which of its nodes were killed.
struct Nodes {
    cluster: Cluster,
    killed: Vec<usize>,
}

impl Nodes {
    fn owner(&self) -> usize {
        self.cluster.owner(slot_of(KEY))
    }

    /// Lets replicas take over, or not: so a failover comes when it is time to mend, and no sooner.
    fn set_failover(&self, may_fail_over: bool) {
        let value = if may_fail_over { "no" } else { "yes" };
        for (number, node) in self.cluster.nodes().iter().enumerate() {
            if !self.killed.contains(&number) {
                let reply = node.cli(&["CONFIG", "SET", "cluster-replica-no-failover", value]);
                assert_eq!(reply, "OK");
            }
        }
    }

    fn kill(&mut self, node: usize) {
        self.cluster.node_mut(node).kill();
        self.killed.push(node);
    }
}

pub(crate) fn failover(flavor: Flavor) -> Day {
    let cluster = Cluster::start(flavor);
    let breaks = |nodes: &mut Nodes| {
        nodes.set_failover(false);
        nodes.kill(nodes.owner());
    };
    let mends = |nodes: &mut Nodes| {
        nodes.set_failover(true);
        nodes.cluster.wait_for_failover(nodes.killed[0]);
    };
    let url = cluster.url();
    let nodes = Nodes { cluster, killed: Vec::new() };
    // A replica may lack the last moment.
    Day::new("Cluster: primary killed, replica takes over", &url, nodes, (breaks, mends))
        .says(&["Connection refused"])
        .forgets()
}

pub(crate) fn down(flavor: Flavor) -> Day {
    let cluster = Cluster::builder(flavor).replicas(0).start();
    let breaks = |nodes: &mut Nodes| {
        let owner = nodes.owner();
        let others = nodes.cluster.primaries().into_iter().filter(|node| *node != owner);
        others.collect::<Vec<_>>().into_iter().for_each(|node| nodes.kill(node));
        nodes.cluster.wait_until_down();
    };
    let mends = |nodes: &mut Nodes| {
        let Nodes { cluster, killed } = nodes;
        killed.iter().for_each(|node| cluster.node_mut(*node).restart());
        cluster.wait_until_ok();
    };
    let url = cluster.url();
    let nodes = Nodes { cluster, killed: Vec::new() };
    Day::new("Cluster: majority killed, restarted", &url, nodes, (breaks, mends))
        .says(&["CLUSTERDOWN"])
}

pub(crate) fn sentinels(flavor: Flavor) -> Day {
    let sentinel = Sentinel::start(flavor);
    // They notice when it is time to mend, and no sooner.
    fn set_patience(sentinel: &Sentinel, ms: &str) {
        for one in sentinel.sentinels() {
            let option = ["SENTINEL", "SET", sentinel.name(), "down-after-milliseconds", ms];
            assert_eq!(one.cli(&option), "OK");
        }
    }
    let breaks = |(sentinel, killed): &mut (Sentinel, usize)| {
        set_patience(sentinel, "600000");
        *killed = sentinel.kill_primary();
    };
    let mends = |(sentinel, killed): &mut (Sentinel, usize)| {
        set_patience(sentinel, "1000");
        sentinel.wait_for_switch(*killed);
    };
    Day::new("Sentinel: primary killed", &sentinel.url(), (sentinel, 0), (breaks, mends))
        .says(&["Connection refused"])
        .forgets()
}

/// One of two slots may have taken its part, the other cannot be reached: the outcome of the whole
/// is unknown, so that no caller books it again.
pub(crate) async fn half_unknown() {
    let mut cluster = Cluster::builder(Flavor::Redis).replicas(0).start();
    // Long enough that a busy machine sends the call within it.
    let settings: Settings = cluster.url().parse().unwrap();
    let link = Link::open(settings.deadline(Duration::from_secs(1))).unwrap();
    let store = RedisStore::new(link).unwrap();
    let policy = Policy::new("halves", Quota::per_year(1000)).unwrap();
    let owner = |key: &[u8; 1]| cluster.owner(slot_of(key));
    let first = *b"a";
    let second = (b'b'..=b'z').map(|key| [key]).find(|key| owner(key) != owner(&first)).unwrap();
    let (frozen, killed) = (owner(&first), owner(&second));
    let take = async |keys: [[u8; 1]; 2]| {
        let mut demands = keys.each_ref().map(|key| Demand::new(&policy, key, 1));
        store.acquire(&mut demands).await
    };
    until("all is well", async || take([first, second]).await.is_ok()).await;
    cluster.node_mut(frozen).freeze();
    cluster.node_mut(killed).kill();
    for keys in [[first, second], [second, first]] {
        let error = take(keys).await.unwrap_err();
        assert!(error.is_timeout(), "{keys:?}: {error}");
    }
    cluster.node_mut(frozen).thaw();
}

//! Bad days of several servers.

use super::{day::Day, fleet::KEY};
use tollgate_redis::slot_of;
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

    fn kill(&mut self, node: usize) {
        self.cluster.node_mut(node).kill();
        self.killed.push(node);
    }
}

pub(crate) fn failover() -> Day {
    let cluster = Cluster::start(Flavor::Redis);
    let breaks = |nodes: &mut Nodes| nodes.kill(nodes.owner());
    let mends = |nodes: &mut Nodes| {
        nodes.cluster.wait_for_failover(nodes.killed[0]);
    };
    let url = cluster.url();
    let nodes = Nodes { cluster, killed: Vec::new() };
    // A replica may lack the last moment.
    Day::new("Cluster: primary killed, replica takes over", &url, nodes, (breaks, mends))
        .says(&["refused", "closed"])
        .forgets()
}

pub(crate) fn down() -> Day {
    let cluster = Cluster::builder(Flavor::Redis).replicas(0).start();
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

pub(crate) fn sentinels() -> Day {
    let sentinel = Sentinel::start(Flavor::Redis);
    let breaks = |(sentinel, killed): &mut (Sentinel, usize)| *killed = sentinel.kill_primary();
    let mends = |(sentinel, killed): &mut (Sentinel, usize)| {
        sentinel.wait_for_switch(*killed);
    };
    Day::new("Sentinel: primary killed", &sentinel.url(), (sentinel, 0), (breaks, mends))
        .says(&["refused", "closed"])
        .forgets()
}

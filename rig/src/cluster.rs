//! A Cluster of real servers that fails over within seconds.

mod migration;
mod view;

pub use migration::Migration;

use crate::{Flavor, Redis, redis::fields, wait::within};
use std::time::Duration;
use view::View;

/// How long a change of the whole cluster may take. Starting takes 3 to 4 s, a failover 2 to 3 s.
const BOUND: Duration = Duration::from_secs(40);

/// The number of slots.
const SLOTS: u32 = 16_384;

/// A Cluster. Its servers are killed when this value is dropped.
///
/// A server is named by its place in [`Cluster::nodes`], which never changes.
///
/// # Examples
///
/// ```no_run
/// use tollgate_rig::{Cluster, Flavor};
///
/// let mut cluster = Cluster::start(Flavor::Redis);
/// let old = cluster.owner(0);
/// cluster.node_mut(old).kill();
/// cluster.wait_for_failover(old);
/// assert_ne!(cluster.owner(0), old);
/// ```
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Redis>,
    ids: Vec<String>,
    password: Option<String>,
}

/// What a Cluster is to be like.
#[derive(Clone, Debug)]
#[must_use]
pub struct ClusterBuilder {
    flavor: Flavor,
    primaries: usize,
    replicas: usize,
    password: Option<String>,
    lines: Vec<String>,
}

#[allow(clippy::must_use_candidate, reason = "waiting is the point, not how long it took")]
impl Cluster {
    /// Starts three primaries with a replica each.
    ///
    /// A node is given up after 1 s, a replica then takes over. It returns when all slots are served, all
    /// nodes agree on that, and all replicas are in step.
    ///
    /// # Panics
    ///
    /// If the program is missing or it takes more than 40 s.
    #[must_use]
    pub fn start(flavor: Flavor) -> Self {
        Self::builder(flavor).start()
    }

    /// Starts to describe a Cluster.
    pub fn builder(flavor: Flavor) -> ClusterBuilder {
        ClusterBuilder { flavor, primaries: 3, replicas: 1, password: None, lines: Vec::new() }
    }

    /// Returns the addresses of all nodes as one URL, `redis+cluster://`, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        let login = self.password.as_ref().map(|it| format!(":{it}@")).unwrap_or_default();
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        format!("redis+cluster://{login}{}", nodes.join(","))
    }

    /// Returns all nodes: at the start, primaries come first.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Returns a node, to be killed, frozen or restarted.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn node_mut(&mut self, node: usize) -> &mut Redis {
        &mut self.nodes[node]
    }

    /// Returns the node that owns a slot, as the nodes that run see it.
    ///
    /// # Panics
    ///
    /// If nobody owns it.
    #[must_use]
    pub fn owner(&self, slot: u16) -> usize {
        let view = self.view();
        view.owner(slot).unwrap_or_else(|| panic!("nobody owns slot {slot}:\n{view:?}"))
    }

    /// Returns the nodes that own slots.
    #[must_use]
    pub fn primaries(&self) -> Vec<usize> {
        self.view().primaries()
    }

    /// Returns the replicas of a node.
    #[must_use]
    pub fn replicas(&self, primary: usize) -> Vec<usize> {
        self.view().replicas(primary)
    }

    /// Waits until a replica has taken the place of a node, and all that run agree. Returns how long it
    /// took.
    ///
    /// # Panics
    ///
    /// If that takes more than 40 s.
    pub fn wait_for_failover(&self, old: usize) -> Duration {
        within(BOUND, "another node owns the slots", || {
            self.views().all(|view| !view.primaries().contains(&old)) && self.is_ok()
        })
    }

    /// Restarts a node that was killed, and waits until it is a part of the Cluster again.
    ///
    /// # Panics
    ///
    /// If that takes more than 40 s.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].restart();
        self.wait_until_ok();
    }

    /// Waits until all slots are served, all nodes that run agree on it, and the replicas among them
    /// are in step. Returns how long it took.
    ///
    /// # Panics
    ///
    /// If that takes more than 40 s.
    pub fn wait_until_ok(&self) -> Duration {
        within(BOUND, "the cluster is whole", || self.is_ok() && self.are_replicas_in_step())
    }

    /// Waits until all nodes that run say that the Cluster is down. Returns how long it took.
    ///
    /// # Panics
    ///
    /// If that takes more than 40 s.
    pub fn wait_until_down(&self) -> Duration {
        within(BOUND, "the cluster is down", || self.running().all(|node| state(node) == "fail"))
    }

    /// Swaps a replica with its primary, in order: no write is lost.
    ///
    /// # Panics
    ///
    /// If the node is no replica, or it takes more than 40 s.
    pub fn promote(&self, replica: usize) {
        let reply = self.nodes[replica].cli(&["CLUSTER", "FAILOVER"]);
        assert_eq!(reply, "OK", "node {replica} takes over");
        within(BOUND, "the replica took over", || {
            self.views().all(|view| view.primaries().contains(&replica)) && self.is_ok()
        });
    }

    /// Begins to move a slot: keys that are not there yet are answered with `ASK`. See [`Migration`].
    ///
    /// # Panics
    ///
    /// If `to` owns the slot already.
    pub fn migrate(&self, slot: u16, to: usize) -> Migration<'_> {
        Migration::begin(self, slot, to)
    }

    fn running(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_up())
    }

    fn views(&self) -> impl Iterator<Item = View> {
        self.running().map(|node| View::of(node, &self.ids))
    }

    /// Returns how the first node that runs sees it.
    fn view(&self) -> View {
        self.views().next().expect("a node runs")
    }

    fn is_ok(&self) -> bool {
        let mut seen = self.views();
        let Some(first) = seen.next() else {
            return false;
        };
        seen.all(|other| other == first) && self.running().all(|node| state(node) == "ok")
    }

    fn are_replicas_in_step(&self) -> bool {
        self.running().all(|node| {
            let info = node.info("replication");
            info["role"] == "master" || info["master_link_status"] == "up"
        })
    }
}

impl ClusterBuilder {
    /// Sets the number of primaries, 3 by default. Fewer cannot fail over.
    pub fn primaries(mut self, primaries: usize) -> Self {
        self.primaries = primaries;
        self
    }

    /// Sets the number of replicas of each primary, 1 by default.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Asks everybody for a password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a line to the configuration of every node, such as `cluster-require-full-coverage no`.
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Starts it, and waits until it is whole.
    ///
    /// # Panics
    ///
    /// If the program is missing, or it takes more than 40 s.
    #[must_use]
    pub fn start(self) -> Cluster {
        let count = self.primaries * (1 + self.replicas);
        let mut nodes: Vec<_> = (0..count).map(|_| self.node()).collect();
        nodes.iter_mut().for_each(Redis::await_ready);
        let ids = nodes.iter().map(|node| node.cli(&["CLUSTER", "MYID"])).collect();
        let cluster = Cluster { nodes, ids, password: self.password };
        cluster.assign_slots(self.primaries);
        cluster.introduce();
        for replica in self.primaries..count {
            let primary = &cluster.ids[replica % self.primaries];
            let node = &cluster.nodes[replica];
            within(BOUND, "it becomes a replica", || {
                node.cli(&["CLUSTER", "REPLICATE", primary]) == "OK"
            });
        }
        within(BOUND, "all know the replicas", || {
            cluster.views().all(|view| view.replicas_count() == count - self.primaries)
        });
        cluster.wait_until_ok();
        cluster
    }

    fn node(&self) -> Redis {
        let mut builder = Redis::builder(self.flavor)
            .cluster()
            .line("cluster-node-timeout 1000")
            // A replica may take over however long it had no news of its primary.
            .line("cluster-replica-validity-factor 0");
        if let Some(password) = &self.password {
            builder = builder.password(password);
        }
        self.lines.iter().fold(builder, |builder, line| builder.line(line)).launch()
    }
}

impl Cluster {
    fn assign_slots(&self, primaries: usize) {
        let primaries = u32::try_from(primaries).expect("fewer primaries than slots");
        for (node, redis) in (0..primaries).zip(&self.nodes) {
            let (first, end) = (node * SLOTS / primaries, (node + 1) * SLOTS / primaries);
            let range = [first.to_string(), (end - 1).to_string()];
            let reply = redis.cli(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]);
            assert_eq!(reply, "OK", "slots of node {node}");
        }
        // Epochs that differ from the start need not be made different by and by.
        for (epoch, redis) in (1..).zip(&self.nodes) {
            let reply = redis.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]);
            assert_eq!(reply, "OK", "epoch of node {epoch}");
        }
    }

    /// Makes all nodes known to each other: at once, as gossip takes its time.
    fn introduce(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[at + 1..] {
                let port = other.address().port().to_string();
                let bus = other.bus_port().expect("a node has a bus").to_string();
                let reply = node.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
                assert_eq!(reply, "OK", "nodes meet");
            }
        }
        let count = self.nodes.len();
        within(BOUND, "all nodes know each other", || {
            self.views().all(|view| view.known() == count)
        });
    }
}

fn state(node: &Redis) -> String {
    fields(&node.cli(&["CLUSTER", "INFO"])).remove("cluster_state").unwrap_or_default()
}

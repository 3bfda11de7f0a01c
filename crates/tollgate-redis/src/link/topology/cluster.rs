//! The slot map of a Cluster.

use super::View;
use crate::{
    Reply,
    link::{
        LinkError, Route,
        connect::Role,
        node::{Common, Node},
        settings::Address,
        slot::SLOTS,
        wait::{backoff, pause},
    },
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::timeout;

/// The shortest time between two refreshes.
const GAP: Duration = Duration::from_millis(50);

/// The most servers of a map, and of those named by redirections between two refreshes.
const NODES_MAX: usize = 1000;

/// Marks a slot without a server.
const NOBODY: u16 = u16::MAX;

/// The slot map of a Cluster. A task reads it at the start, when a server redirects or is lost, and
/// periodically.
#[derive(Debug)]
pub(in crate::link) struct Cluster {
    common: Arc<Common>,
    seeds: Vec<Address>,
    pub(super) view: View<Map>,
    /// Servers that redirections have named since the map was read.
    named: Mutex<Vec<Arc<Node>>>,
}

/// The server of each slot.
#[derive(Debug)]
pub(super) struct Map {
    /// The index in `nodes` for each slot.
    slots: Vec<u16>,
    nodes: Vec<Arc<Node>>,
}

impl Map {
    pub(super) fn node(&self, route: Route) -> Result<Arc<Node>, LinkError> {
        match route {
            Route::Slot(slot) => {
                let at = self.slots.get(usize::from(slot)).copied().unwrap_or(NOBODY);
                self.nodes.get(usize::from(at)).map(Arc::clone).ok_or_else(|| {
                    LinkError::unavailable(format!("no server of the Cluster serves slot {slot}"))
                })
            }
            Route::Any => {
                let first = fastrand::usize(..self.nodes.len().max(1));
                let (before, after) = self.nodes.split_at(first.min(self.nodes.len()));
                let turn = || after.iter().chain(before);
                let node = turn().find(|node| node.is_usable()).or_else(|| turn().next());
                node.map(Arc::clone)
                    .ok_or_else(|| LinkError::unavailable("the Cluster has no servers"))
            }
        }
    }
}

impl Cluster {
    pub(super) fn new(common: &Arc<Common>, seeds: Vec<Address>) -> Arc<Self> {
        Arc::new(Self {
            common: Arc::clone(common),
            seeds,
            view: View::new(),
            named: Mutex::default(),
        })
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.view.get().map_or_else(Vec::new, |map| map.nodes.clone());
        nodes.extend(self.named.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        nodes
    }

    /// Returns the server at an address that a redirection has named.
    pub(super) fn node_at(&self, address: Address) -> Option<Arc<Node>> {
        if let Some(node) = self.nodes().into_iter().find(|node| *node.address() == address) {
            return Some(node);
        }
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = named.iter().find(|node| *node.address() == address) {
            return Some(Arc::clone(node));
        }
        if named.len() >= NODES_MAX {
            return None;
        }
        let node = Node::new(&self.common, address, Role::Any);
        named.push(Arc::clone(&node));
        Some(node)
    }

    /// Updates the view forever.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut failed = 0;
        loop {
            let answer = self.read().await.map(Arc::new);
            let is_well = answer.is_ok();
            if let Err(error) = &answer {
                tracing::warn!("cannot read the slots of the Cluster: {error}");
            }
            self.view.publish(answer);
            self.common.changed();
            pause(GAP).await;
            let is_lost = |node: &Arc<Node>| node.state().is_lost();
            failed = match is_well && !self.nodes().iter().any(is_lost) {
                true => 0,
                false => failed + 1,
            };
            let wait = match failed {
                0 => self.common.connector.settings.refresh,
                _ => backoff(2 * GAP, Duration::from_secs(1), failed),
            };
            let _ = timeout(wait, self.common.trouble.notified()).await;
        }
    }

    /// Reads the map from the first server that returns it: those in use first, then the seeds.
    async fn read(&self) -> Result<Map, String> {
        let mut known = self.nodes();
        fastrand::shuffle(&mut known);
        known.sort_by_key(|node| !node.is_usable());
        let known: Vec<_> = known.into_iter().map(|node| node.address().clone()).collect();
        let mut last = String::from("no server");
        for address in known.iter().chain(&self.seeds) {
            match self.read_from(address).await {
                Ok(map) => return Ok(map),
                Err(error) => last = format!("{address}: {error}"),
            }
        }
        Err(last)
    }

    async fn read_from(&self, address: &Address) -> Result<Map, String> {
        let connector = &self.common.connector;
        let mut connection = connector.connect(address, Role::Any).await?;
        let question = connection.expect("CLUSTER", &["SLOTS"]);
        let reply = timeout(connector.settings.connect_timeout, question).await;
        let reply = reply.map_err(|_| "no answer".to_owned())??;
        let ranges = ranges(&reply, address).ok_or("the reply to CLUSTER SLOTS is not valid")?;
        if ranges.is_empty() {
            return Err("it reports no slots".into());
        }
        let old = self.nodes();
        let mut map = Map { slots: vec![NOBODY; SLOTS], nodes: Vec::new() };
        for (slots, address) in ranges {
            let known = map.nodes.iter().position(|node| *node.address() == address);
            let at = known.unwrap_or_else(|| {
                let node = old.iter().find(|node| *node.address() == address).map(Arc::clone);
                let new = || Node::new(&self.common, address, Role::Any);
                map.nodes.push(node.unwrap_or_else(new));
                map.nodes.len() - 1
            });
            if at >= NODES_MAX {
                return Err(format!("more than {NODES_MAX} primaries"));
            }
            map.slots[slots].fill(at as u16);
        }
        // The first call must not wait for a connection.
        map.nodes.iter().for_each(|node| node.start());
        // Servers that were named meanwhile are in the map now, or were named in error.
        self.named.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(map)
    }
}

type Slots = std::ops::RangeInclusive<usize>;

/// Reads `[[first, last, [host, port, ...], replicas...], ...]`.
fn ranges(reply: &Reply, asked: &Address) -> Option<Vec<(Slots, Address)>> {
    let range = |range: &Reply| {
        let parts = range.parts()?;
        let slot = |at: usize| {
            let number = usize::try_from(parts.get(at)?.int()?).ok()?;
            (number < SLOTS).then_some(number)
        };
        let (first, last, primary) = (slot(0)?, slot(1)?, parts.get(2)?.parts()?);
        let port = u16::try_from(primary.get(1)?.int()?).ok()?;
        let host = match primary.first()? {
            Reply::Bytes(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
            // The server does not know its own name: it is the one that was asked.
            _ => match asked {
                Address::Tcp { host, .. } => host.clone(),
                Address::Unix(_) => return None,
            },
        };
        (first <= last).then_some((first..=last, Address::Tcp { host, port }))
    };
    reply.parts()?.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_or_refused() {
        let asked = Address::Tcp { host: "asked".into(), port: 1 };
        let tcp = |host: &str, port| Address::Tcp { host: host.into(), port };
        let text = |text: &str| Reply::Bytes(text.into());
        let range = |first, last, host: Reply| {
            let primary = Reply::Array(vec![host, Reply::Int(7000), text("id")]);
            Reply::Array(vec![Reply::Int(first), Reply::Int(last), primary])
        };
        for (reply, expected) in [
            (range(0, 5, text("h")), Some(vec![(0..=5, tcp("h", 7000))])),
            (range(0, 5, text("")), Some(vec![(0..=5, tcp("asked", 7000))])),
            (range(0, 5, Reply::Nil), Some(vec![(0..=5, tcp("asked", 7000))])),
            (range(0, 16384, text("h")), None),
            (range(6, 5, text("h")), None),
            (range(-1, 5, text("h")), None),
            (Reply::Int(1), None),
            (Reply::Array(vec![]), None),
        ] {
            assert_eq!(ranges(&Reply::Array(vec![reply.clone()]), &asked), expected, "{reply:?}");
        }
        assert_eq!(ranges(&Reply::Nil, &asked), None);
    }
}

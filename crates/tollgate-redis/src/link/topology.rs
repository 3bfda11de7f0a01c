//! The primaries: the one server, the primary that the Sentinels report, or those of a Cluster's
//! slots.

mod cluster;
mod sentinel;

use super::{
    LinkError, Route,
    node::{Common, Node},
    settings::{Address, Place},
    wait::{Deadline, race},
};
use crate::link::connect::Role;
use cluster::Cluster;
use sentinel::Sentinel;
use std::sync::Arc;
use tokio::{sync::watch, task::AbortHandle};

/// How the link finds the primary.
#[derive(Debug)]
pub(super) enum Topology {
    One(Arc<Node>),
    Sentinel(Arc<Sentinel>, AbortHandle),
    Cluster(Arc<Cluster>, AbortHandle),
}

impl Topology {
    pub(super) fn open(common: &Arc<Common>) -> Self {
        match &common.connector.settings.place {
            Place::One(address) => {
                let node = Node::new(common, address.clone(), Role::Any);
                node.start();
                Self::One(node)
            }
            Place::Sentinel { sentinels, name } => {
                let it = Sentinel::new(common, sentinels.clone(), name.clone());
                let task = common.runtime.spawn(Arc::clone(&it).keep()).abort_handle();
                Self::Sentinel(it, task)
            }
            Place::Cluster(seeds) => {
                let it = Cluster::new(common, seeds.clone());
                let task = common.runtime.spawn(Arc::clone(&it).keep()).abort_handle();
                Self::Cluster(it, task)
            }
        }
    }

    /// Returns the server for a route.
    pub(super) async fn node(
        &self,
        route: Route,
        deadline: Deadline<'_>,
    ) -> Result<Arc<Node>, LinkError> {
        match self {
            Self::One(node) => Ok(Arc::clone(node)),
            Self::Sentinel(it, _) => it.view.current(deadline).await,
            Self::Cluster(it, _) => it.view.current(deadline).await?.node(route),
        }
    }

    /// Returns the server at an address that a redirection has named.
    pub(super) fn node_at(&self, address: Address) -> Option<Arc<Node>> {
        match self {
            Self::Cluster(it, _) => it.node_at(address),
            Self::One(_) | Self::Sentinel(..) => None,
        }
    }

    /// Waits until the task has asked for the primary again. Returns false if the deadline comes
    /// first, or if there is only one server.
    pub(super) async fn asked_anew(&self, common: &Common, deadline: Deadline<'_>) -> bool {
        let asked = match self {
            Self::One(_) => return false,
            Self::Sentinel(it, _) => race(deadline, it.view.next_round(common)).await,
            Self::Cluster(it, _) => race(deadline, it.view.next_round(common)).await,
        };
        asked.is_some()
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Self::One(node) => vec![Arc::clone(node)],
            Self::Sentinel(it, _) => it.view.get().into_iter().collect(),
            Self::Cluster(it, _) => it.nodes(),
        }
    }

    /// Returns the error of the last question for the primary.
    pub(super) fn last_error(&self) -> Option<String> {
        match self {
            Self::One(_) => None,
            Self::Sentinel(it, _) => it.view.error(),
            Self::Cluster(it, _) => it.view.error(),
        }
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        match self {
            Self::One(_) => {}
            Self::Sentinel(_, task) | Self::Cluster(_, task) => task.abort(),
        }
    }
}

/// The current value, updated by a task.
#[derive(Debug)]
struct View<T>(watch::Sender<Seen<T>>);

#[derive(Debug)]
struct Seen<T> {
    value: Option<Arc<T>>,
    error: Option<String>,
    /// The number of rounds so far.
    rounds: u64,
}

impl<T> View<T> {
    fn new() -> Self {
        Self(watch::Sender::new(Seen { value: None, error: None, rounds: 0 }))
    }

    fn get(&self) -> Option<Arc<T>> {
        self.0.borrow().value.clone()
    }

    fn error(&self) -> Option<String> {
        self.0.borrow().error.clone()
    }

    /// Returns the current value; before the first round, waits for it.
    async fn current(&self, deadline: Deadline<'_>) -> Result<Arc<T>, LinkError> {
        {
            let seen = self.0.borrow();
            if let Some(value) = &seen.value {
                return Ok(Arc::clone(value));
            }
            if seen.rounds > 0 {
                return Err(LinkError::unavailable(seen.error.as_deref().unwrap_or("not known")));
            }
        }
        let mut receiver = self.0.subscribe();
        let first = race(deadline, receiver.wait_for(|seen| seen.rounds > 0)).await;
        match first {
            Some(Ok(seen)) => match &seen.value {
                Some(value) => Ok(Arc::clone(value)),
                None => Err(LinkError::unavailable(seen.error.as_deref().unwrap_or("not known"))),
            },
            _ => Err(LinkError::unavailable("no Sentinel has reported the primary yet")),
        }
    }

    /// Makes the task start another round, and waits until it is over.
    async fn next_round(&self, common: &Common) {
        let mut receiver = self.0.subscribe();
        let now = receiver.borrow().rounds;
        common.trouble.notify_one();
        let _ = receiver.wait_for(|seen| seen.rounds > now).await;
    }

    /// Publishes the result of a round; after an error, the old value stays.
    fn publish(&self, answer: Result<Arc<T>, String>) {
        self.0.send_modify(|seen| {
            match answer {
                Ok(value) => (seen.value, seen.error) = (Some(value), None),
                Err(error) => seen.error = Some(error),
            }
            seen.rounds += 1;
        });
    }
}

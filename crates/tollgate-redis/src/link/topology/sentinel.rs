//! The Sentinels, which report the primary.

use super::View;
use crate::link::{
    connect::Role,
    node::{Common, Node},
    settings::Address,
    wait::{backoff, pause},
};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// The shortest time between two rounds.
const GAP: Duration = Duration::from_millis(50);

/// The Sentinels. A task asks them at the start, whenever the primary is lost or is no longer
/// primary, and periodically.
#[derive(Debug)]
pub(in crate::link) struct Sentinel {
    common: Arc<Common>,
    sentinels: Vec<Address>,
    name: String,
    pub(super) view: View<Node>,
}

impl Sentinel {
    pub(super) fn new(common: &Arc<Common>, sentinels: Vec<Address>, name: String) -> Arc<Self> {
        Arc::new(Self { common: Arc::clone(common), sentinels, name, view: View::new() })
    }

    /// Updates the view forever.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut failed = 0;
        loop {
            let answer = self.ask().await.map(|address| match self.view.get() {
                Some(node) if *node.address() == address => node,
                _ => {
                    tracing::info!("the primary {} is {address}", self.name);
                    Node::new(&self.common, address, Role::Primary)
                }
            });
            if let Ok(node) = &answer {
                node.start();
            }
            let is_well = answer.is_ok();
            self.view.publish(answer);
            self.common.changed();
            pause(GAP).await;
            failed = if is_well && self.view.get().is_some_and(|node| node.is_usable()) {
                0
            } else {
                failed + 1
            };
            let wait = match failed {
                0 => self.common.connector.settings.refresh,
                _ => backoff(GAP, Duration::from_secs(1), failed),
            };
            let _ = timeout(wait, self.common.trouble.notified()).await;
        }
    }

    /// Asks one Sentinel after another for the address of the primary.
    async fn ask(&self) -> Result<Address, String> {
        let mut last = String::from("no Sentinel");
        for sentinel in &self.sentinels {
            match self.ask_one(sentinel).await {
                Ok(address) => return Ok(address),
                Err(error) => last = format!("Sentinel {sentinel}: {error}"),
            }
        }
        tracing::warn!("{last}");
        Err(last)
    }

    async fn ask_one(&self, sentinel: &Address) -> Result<Address, String> {
        let connector = &self.common.connector;
        let mut connection = connector.connect(sentinel, Role::Sentinel).await?;
        let words = ["get-master-addr-by-name", &self.name];
        let question = connection.expect("SENTINEL", &words);
        let reply = timeout(connector.settings.connect_timeout, question).await;
        let reply = reply.map_err(|_| "no answer".to_owned())??;
        let text = |at: usize| {
            let bytes = reply.parts()?.get(at)?.bytes()?;
            std::str::from_utf8(bytes).ok()
        };
        match (text(0), text(1).and_then(|port| port.parse().ok())) {
            (Some(host), Some(port)) => Ok(Address::Tcp { host: host.to_owned(), port }),
            _ => Err(format!("it has no primary named {:?}", self.name)),
        }
    }
}

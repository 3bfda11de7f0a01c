//! A slot on its way from one node to another.

use super::{BOUND, Cluster};
use crate::wait::within;

/// A slot on its way from one node to another.
///
/// Until [`Migration::finish`] the old owner answers for the keys it still has, and says `ASK` for
/// all others; afterwards it says `MOVED`. Dropping it leaves the slot on its way, as a migration
/// that was broken off does.
#[derive(Debug)]
#[must_use = "dropping it leaves the slot on its way"]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: usize,
    to: usize,
}

impl<'a> Migration<'a> {
    pub(super) fn begin(cluster: &'a Cluster, slot: u16, to: usize) -> Self {
        let from = cluster.owner(slot);
        assert_ne!(from, to, "slot {slot} is there already");
        let migration = Self { cluster, slot: slot.to_string(), from, to };
        migration.set(to, &["IMPORTING", &cluster.ids[from]]);
        migration.set(from, &["MIGRATING", &cluster.ids[to]]);
        migration
    }

    /// Returns the old owner.
    #[must_use]
    pub fn from(&self) -> usize {
        self.from
    }

    /// Moves all keys that the old owner has, and returns how many those were.
    ///
    /// # Panics
    ///
    /// If a key cannot be moved, or there are more than a thousand.
    #[allow(clippy::must_use_candidate, reason = "moving is the point, not how many")]
    pub fn move_keys(&self) -> usize {
        let old = &self.cluster.nodes[self.from];
        let new = self.cluster.nodes[self.to].address();
        let keys = old.cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1001"]);
        let keys: Vec<_> = keys.lines().collect();
        assert!(keys.len() <= 1_000, "too many keys in slot {}", self.slot);
        if keys.is_empty() {
            return 0;
        }
        let (host, port) = (new.ip().to_string(), new.port().to_string());
        let mut command = vec!["MIGRATE", &host, &port, "", "0", "5000"];
        if let Some(password) = &self.cluster.password {
            command.extend(["AUTH", password]);
        }
        command.push("KEYS");
        command.extend(&keys);
        assert_eq!(old.cli(&command), "OK", "keys move");
        keys.len()
    }

    /// Moves the rest of the keys, makes the new node the owner, and waits until all agree.
    ///
    /// # Panics
    ///
    /// If that takes more than 40 s.
    pub fn finish(self) {
        self.move_keys();
        let owner = ["NODE", &self.cluster.ids[self.to]];
        // The new owner first, so that the slot is never nobody's; then the other primaries.
        self.set(self.to, &owner);
        for node in self.cluster.primaries() {
            if node != self.to {
                self.set(node, &owner);
            }
        }
        let slot = self.slot.parse().expect("it was a number");
        within(BOUND, "all know the new owner", || {
            self.cluster.views().all(|view| view.owner(slot) == Some(self.to))
                && self.cluster.is_ok()
        });
    }

    fn set(&self, node: usize, what: &[&str]) {
        let command = [&["CLUSTER", "SETSLOT", &self.slot], what].concat();
        assert_eq!(self.cluster.nodes[node].cli(&command), "OK", "{command:?} on node {node}");
    }
}

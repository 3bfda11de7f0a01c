//! A client that takes and gives back permits: reservations that are settled, cancelled or left to
//! expire, refunds, and slots.

use super::{
    service::{Http, Metrics, Reply},
    verdict::Counted,
};
use serde_json::{Value, json};
use std::io;

/// Keys with reservations, and keys with checks and refunds.
pub(super) const HELD_KEYS: u64 = 500;
pub(super) const REFUNDED_KEYS: u64 = 100;

/// Keys with slots. Those with an odd number never leave, so the rule denies them until their
/// leases end.
const SLOT_KEYS: u64 = 10;

/// The operations so far, as the client counts them.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    turns: u64,
    /// Calls that charge `held`: checks and reservations.
    charges: u64,
    /// Permits that `held` was charged, and permits that it got back.
    charged: u64,
    returned: u64,
    entered: u64,
    turned_away: u64,
}

impl Reservations {
    /// Runs the next operation.
    pub(super) async fn act(&mut self, http: &mut Http) -> io::Result<()> {
        let turn = self.turns;
        self.turns += 1;
        match turn % 4 {
            0 | 1 => self.reserve(http, turn).await,
            2 => self.refund(http, turn).await,
            _ => self.enter(http, turn).await,
        }
    }

    async fn reserve(&mut self, http: &mut Http, turn: u64) -> io::Result<()> {
        let key = format!("held-{}", turn % HELD_KEYS);
        let cost = 2 + turn % 7;
        let body = json!({"policy": "held", "key": key, "cost": cost, "life_ms": 5000});
        let reserved = expect("/v1/reserve", http.post("/v1/reserve", &body).await?)?;
        self.charges += 1;
        self.charged += cost;
        let actual = match turn % 16 {
            // The reservation expires, and stays charged.
            0 | 1 => return Ok(()),
            4 | 5 => 0,
            8 | 9 => cost + 3,
            _ => cost - 1,
        };
        let body = json!({"id": reserved["id"], "actual": actual});
        expect("/v1/settle", http.post("/v1/settle", &body).await?)?;
        self.charged += actual.saturating_sub(cost);
        self.returned += cost.saturating_sub(actual);
        Ok(())
    }

    async fn refund(&mut self, http: &mut Http, turn: u64) -> io::Result<()> {
        let key = format!("refunded-{}", turn % REFUNDED_KEYS);
        let body = json!({"policy": "held", "key": key, "cost": 3});
        expect("/v1/check", http.post("/v1/check", &body).await?)?;
        self.charges += 1;
        self.charged += 3;
        let body = json!({"policy": "held", "key": key, "cost": 2});
        let told = expect("/v1/refund", http.post("/v1/refund", &body).await?)?;
        self.returned += told["refunded"].as_u64().unwrap_or_default();
        Ok(())
    }

    /// Takes a slot; every other key leaves it, the others wait for the end of the lease.
    async fn enter(&mut self, http: &mut Http, turn: u64) -> io::Result<()> {
        let key = format!("slot-{}", turn / 4 % SLOT_KEYS);
        let mut body = json!({"policy": "slots", "key": key});
        let told = http.post("/v1/enter", &body).await?;
        if told.status == 429 {
            self.turned_away += 1;
            return Ok(());
        }
        let told = expect("/v1/enter", told)?;
        self.entered += 1;
        if turn % 8 == 3 {
            body["id"] = told["id"].clone();
            expect("/v1/leave", http.post("/v1/leave", &body).await?)?;
        }
        Ok(())
    }

    /// Returns the expected counts of the service beside the actual ones. `used` is the use of the
    /// keys by the store's own count.
    pub(super) fn rows(&self, metrics: &Metrics, used: u64) -> Vec<Counted> {
        let exact = |what: &str, expected: u64, counted: u64| {
            Counted::up_to(what.to_owned(), (expected, 0), counted)
        };
        let charged = metrics.of_policy("tollgate_charged_permits_total", "held");
        let returned = metrics.of_policy("tollgate_returned_permits_total", "held");
        vec![
            exact("held allowed", self.charges, metrics.decisions("held", "allowed")),
            exact("held charged permits", self.charged, charged),
            exact("held returned permits", self.returned, returned),
            exact("held used, by the store", self.charged.saturating_sub(self.returned), used),
            exact("slots allowed", self.entered, metrics.decisions("slots", "allowed")),
            exact("slots denied", self.turned_away, metrics.decisions("slots", "denied")),
        ]
    }
}

/// Returns the body of a successful reply, otherwise an error.
fn expect(path: &str, reply: Reply) -> io::Result<Value> {
    match reply.status {
        200 => Ok(reply.body),
        status => Err(io::Error::other(format!("{path} answered {status}: {}", reply.body))),
    }
}

//! Slots of `concurrency` rules: enter, renew, leave, and leases that end.

use super::{Bench, ask, entries, plan};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tollgate::{
    Clock,
    store::{Entered, MemoryStore, PermitId, Permits, Store, StoreError, forward_store},
    testing::block_on,
};
use tollgate_server::{
    engine::{Answer, Ask, Backend, Code, Engine, Entry, Hits, LeaseId, Request, Subject, Verb},
    plan::Counted,
};

const YAML: &str = "descriptors:
  - key: user
    concurrency: {name: exports, limit: 2, lease: 10s}
    rate_limit: {name: pages, unit: hour, requests_per_unit: 3}
  - {key: job, concurrency: {name: jobs, limit: 5}}
";

fn named<'a>(policy: &'a str, keys: &'a [&'a [u8]], cost: u64) -> Ask<'a> {
    Ask { subject: Subject::Named { policy, keys }, hits: Hits::Take(cost), limit: None }
}

impl Bench {
    fn enter(&mut self, policy: &str, key: &str, cost: u64) -> Entry {
        let keys = [key.as_bytes()];
        self.ask(&[named(policy, &keys, cost)], Verb::Enter);
        *self.answer.entry().unwrap()
    }

    /// Renews or leaves. Tells whether the lease was there.
    fn hold(&mut self, policy: &str, key: &str, verb: Verb) -> bool {
        let keys = [key.as_bytes()];
        self.ask(&[named(policy, &keys, 1)], verb)
    }

    fn error(&mut self, asks: &[Ask<'_>], verb: Verb) -> String {
        let (plan, now) = (self.engine.plan_arc(), self.engine.now());
        let request = Request { domain: "d", asks, verb };
        block_on(self.engine.decide(&plan, now, &request, &mut self.answer))
            .unwrap_err()
            .to_string()
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn each_key_has_its_slots_and_gets_them_back() {
    let mut bench = Bench::new(YAML);
    let first = bench.enter("exports", "ann", 1);
    assert_eq!((first.in_flight, first.retry_after, first.reason), (Some(1), None, "quota"));
    bench.hand.advance(secs(4));
    let second = bench.enter("exports", "ann", 1).id.unwrap();
    let refused = bench.enter("exports", "ann", 1);
    assert_eq!((refused.id, refused.in_flight), (None, Some(2)));
    assert_eq!(refused.retry_after, Some(secs(6)), "then the first lease ends");
    assert_eq!(bench.codes(), [Code::Denied]);
    assert!(bench.enter("exports", "bob", 2).id.is_some(), "another key");
    assert!(bench.hold("exports", "ann", Verb::Leave(second)));
    assert!(!bench.hold("exports", "ann", Verb::Leave(second)), "only once");
    assert!(bench.enter("exports", "ann", 1).id.is_some());
    let never = bench.enter("exports", "ann", 3);
    assert_eq!((never.retry_after, never.reason), (None, "cost-above-limit"));
    let plan = bench.engine.plan_arc();
    let counts = plan.rule(plan.named("exports").unwrap()).live().counts();
    assert_eq!((counts.of(Counted::Allowed), counts.of(Counted::Denied)), (4, 2));
    assert_eq!(bench.engine.in_flight(&plan)["d:user#concurrency"], 4);
    assert_eq!(bench.engine.in_flight(&plan)["d:job#concurrency"], 0);
}

#[test]
fn a_holder_that_does_not_renew_loses_its_slot() {
    let mut bench = Bench::new(YAML);
    let dead = bench.enter("exports", "ann", 1).id.unwrap();
    let alive = bench.enter("exports", "ann", 1).id.unwrap();
    bench.hand.advance(secs(9));
    assert!(bench.hold("exports", "ann", Verb::Renew(alive)));
    assert!(bench.enter("exports", "ann", 1).id.is_none());
    bench.hand.advance(secs(1));
    assert!(!bench.hold("exports", "ann", Verb::Renew(dead)), "it has just ended");
    assert!(!bench.hold("exports", "ann", Verb::Leave(dead)));
    assert!(bench.enter("exports", "ann", 1).id.is_some());
    bench.hand.advance(secs(8));
    assert!(bench.hold("exports", "ann", Verb::Renew(alive)), "19 s after it has entered");
    let plan = bench.engine.plan_arc();
    bench.hand.advance(secs(100));
    assert_eq!(bench.engine.in_flight(&plan)["d:user#concurrency"], 0);
}

#[test]
fn a_lease_is_of_no_use_with_another_key_or_policy() {
    let mut bench = Bench::new(YAML);
    let id = bench.enter("exports", "ann", 1).id.unwrap();
    let forged: LeaseId = id.to_string().replacen("1-", "2-", 1).parse().unwrap();
    for (policy, key, id) in
        [("exports", "bob", id), ("jobs", "ann", id), ("exports", "ann", forged)]
    {
        assert!(!bench.hold(policy, key, Verb::Leave(id)), "{policy} {key} {id}");
        assert!(!bench.hold(policy, key, Verb::Renew(id)), "{policy} {key} {id}");
    }
    assert!(bench.hold("d/exports", "ann", Verb::Renew(id)), "by another name of the policy");
    assert!(bench.hold("exports", "ann", Verb::Leave(id)));
}

#[test]
fn rates_and_slots_do_not_meet() {
    let mut bench = Bench::new(YAML);
    let entries = entries("user=ann");
    let asks = [ask(&entries, Hits::Take(1))];
    // The descriptor has both: each verb uses its own rule.
    assert!(bench.ask(&asks, Verb::Enter) && bench.ask(&asks, Verb::Enter));
    assert!(!bench.ask(&asks, Verb::Enter));
    assert_eq!(bench.drain(&["user=ann"]), 3);
    assert_eq!(bench.drain(&["job=7"]), 200, "a check is not limited by slots");
    let other = super::entries("nothing=1");
    assert!(bench.ask(&[ask(&other, Hits::Take(1))], Verb::Enter));
    assert!(bench.answer.entry().is_none(), "no rule applies");
    let keys: [&[u8]; 1] = [b"ann"];
    assert_eq!(
        bench.error(&[named("exports", &keys, 1)], Verb::Check),
        "policy \"exports\" limits how many are in flight at once; use enter, renew and leave"
    );
    assert_eq!(
        bench.error(&[named("pages", &keys, 1)], Verb::Enter),
        "policy \"pages\" limits a rate, not how many are in flight at once; use check"
    );
    assert_eq!(
        bench.error(&[named("jobs", &keys, 1), named("exports", &keys, 1)], Verb::Enter),
        "enter takes slots of one policy or descriptor, but 2 were given; enter them one by one"
    );
    for cost in [0, 1 << 14, u64::MAX] {
        assert_eq!(
            bench.error(&[named("jobs", &keys, cost)], Verb::Enter),
            format!("cost {cost} is out of range; one call can take from 1 to 16383 slots")
        );
    }
}

#[test]
fn a_reload_keeps_what_is_in_flight() {
    let mut bench = Bench::new(YAML);
    let ids = [0, 1].map(|_| bench.enter("exports", "ann", 1).id.unwrap());
    bench.load(&YAML.replace("limit: 2, lease: 10s", "limit: 1, lease: 20s"));
    assert!(bench.enter("exports", "ann", 1).id.is_none());
    assert!(bench.hold("exports", "ann", Verb::Renew(ids[0])), "nobody is thrown out");
    assert!(bench.hold("exports", "ann", Verb::Leave(ids[1])));
    assert!(bench.enter("exports", "ann", 1).id.is_none(), "one is in flight still");
    bench.hand.advance(secs(19));
    assert!(bench.hold("exports", "ann", Verb::Renew(ids[0])), "by the new lease");
    bench.load(&YAML.replace("limit: 2", "limit: 3").replace("name: exports, ", ""));
    let by_id = "d:user#concurrency";
    assert_eq!(bench.enter(by_id, "ann", 2).in_flight, Some(3));
    let plan = bench.engine.plan_arc();
    let counts = plan.rule(plan.named(by_id).unwrap()).live().counts();
    assert_eq!((counts.of(Counted::Allowed), counts.of(Counted::Denied)), (3, 2), "they go on");
}

#[test]
fn shadow_mode_bypass_and_blocks_apply() {
    let yaml = "descriptors:\n  - {key: k, shadow_mode: true, concurrency: {name: s, limit: 1}}
  - {key: j, concurrency: {name: e, limit: 1}}\n";
    let mut bench = Bench::new(yaml);
    assert!(bench.enter("s", "a", 1).id.is_some());
    let over = bench.enter("s", "a", 1);
    assert_eq!((over.id, over.in_flight, over.reason), (None, Some(1), "shadow"));
    assert!(bench.answer.is_allowed() && over.retry_after.is_none(), "nothing to wait for");
    let plan = bench.engine.plan_arc();
    let (rule, now) = (plan.rule(plan.named("e").unwrap()), bench.engine.now());
    rule.live().bypass_until(now.saturating_add(secs(5)));
    assert_eq!(bench.enter("e", "a", 1).reason, "bypassed");
    assert!(bench.answer.is_allowed());
    rule.live().bypass_until(tollgate::Tick::ZERO);
    let end = now.saturating_add(secs(7));
    let block = |special: &mut tollgate_server::engine::Special| special.blocked_until = Some(end);
    bench.engine.overlay().change((rule, b"a"), now, block).unwrap();
    let blocked = bench.enter("e", "a", 1);
    assert_eq!((blocked.reason, blocked.retry_after), ("blocked", Some(secs(7))));
    assert!(!bench.answer.is_allowed());
}

#[test]
fn a_store_that_is_full_says_so() {
    let (clock, hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).max_permits(2).build().unwrap();
    let engine = Engine::new(plan(YAML, None), vec![Backend::Memory(store)]);
    let mut bench = Bench { engine, hand, answer: Answer::new() };
    for key in ["a", "b"] {
        assert!(bench.enter("jobs", key, 1).id.is_some());
    }
    assert_eq!(bench.enter("jobs", "c", 1).reason, "full");
    assert_eq!(bench.codes(), [Code::Full]);
    assert!(bench.answer.bound().unwrap().contains("raise max_permits"));
    assert_eq!(bench.engine.health().bounds_reached(), 1);
    bench.hand.advance(secs(60));
    assert!(bench.enter("jobs", "c", 1).id.is_some(), "the leases of the others have ended");
}

/// A store that can be away, as a guarded one tells it, or as one tells it that nothing guards.
struct Away {
    inner: MemoryStore,
    is_away: AtomicBool,
    entered: Option<Entered>,
}

impl Store for Away {
    forward_store!(self => &self.inner, except enter renew);

    async fn enter(&self, permits: &Permits<'_>, life: Duration) -> Result<Entered, StoreError> {
        match (self.is_away.load(SeqCst), self.entered) {
            (false, _) => self.inner.enter(permits, life).await,
            (true, Some(entered)) => Ok(entered),
            (true, None) => Err(StoreError::unavailable("the server is away")),
        }
    }

    async fn renew(
        &self,
        permits: &Permits<'_>,
        id: PermitId,
        life: Duration,
    ) -> Result<bool, StoreError> {
        match self.is_away.load(SeqCst) {
            true => Err(StoreError::unavailable("the server is away")),
            false => self.inner.renew(permits, id, life).await,
        }
    }
}

#[test]
fn each_rule_decides_by_its_failure_policy_while_the_store_is_away() {
    let told = |id: Option<u64>| {
        let (id, retry_after) = (id.map(PermitId), id.is_none().then_some(secs(1)));
        Some(Entered { id, in_flight: 1, retry_after, is_degraded: true })
    };
    // failure, what the store says, code, reason, whether the number in flight is known
    for (row, (failure, entered, code, reason, is_counted)) in [
        ("open", told(Some(7)), Code::FailedOpen, "store-failed", false),
        ("closed", told(None), Code::FailedClosed, "store-failed", false),
        ("local", told(Some(7)), Code::Allowed, "local", true),
        ("local", told(None), Code::Denied, "local", true),
        ("open", None, Code::FailedOpen, "store-failed", false),
        ("closed", None, Code::FailedClosed, "store-failed", false),
        ("local", None, Code::FailedOpen, "store-failed", false),
    ]
    .into_iter()
    .enumerate()
    {
        let yaml = format!(
            "descriptors:\n  - {{key: k, failure: {failure}, concurrency: {{name: c, limit: 3}}}}\n"
        );
        let (clock, hand) = Clock::manual();
        let inner = MemoryStore::builder().clock(clock).build().unwrap();
        let away = Arc::new(Away { inner, is_away: AtomicBool::new(false), entered });
        let engine = Engine::new(plan(&yaml, None), vec![Backend::Other(away.clone())]);
        let mut bench = Bench { engine, hand, answer: Answer::new() };
        let held = bench.enter("c", "a", 1).id.unwrap();
        assert!(!bench.answer.is_degraded(), "row {row}");
        away.is_away.store(true, SeqCst);
        let entry = bench.enter("c", "a", 1);
        assert_eq!((bench.codes()[0], entry.reason), (code, reason), "row {row}");
        assert_eq!(bench.answer.is_allowed(), !code.is_refused(), "row {row}");
        assert_eq!(entry.in_flight.is_some(), is_counted, "row {row}");
        assert!(bench.answer.is_degraded(), "row {row}");
        let keys: [&[u8]; 1] = [b"a"];
        let error = bench.error(&[named("c", &keys, 1)], Verb::Renew(held));
        assert_eq!(error, "the store failed: the server is away", "row {row}");
        away.is_away.store(false, SeqCst);
        assert!(bench.hold("c", "a", Verb::Renew(held)), "row {row}: it was not lost meanwhile");
    }
}

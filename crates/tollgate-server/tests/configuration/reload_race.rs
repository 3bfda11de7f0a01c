//! Reloads that change a quota while others decide by it.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
};
use tollgate::{Clock, store::MemoryStore, testing::block_on};
use tollgate_server::{
    config::Config,
    engine::{Answer, Ask, Backend, Engine, Hits, Request, Subject, Verb},
    plan::{Entry, Plan},
};

fn plan(count: u64, old: Option<&Plan>) -> Plan {
    let yaml = format!(
        "domain: d\ndescriptors:\n  - {{key: k, rate_limit: {{unit: year, requests_per_unit: {count}}}}}\n"
    );
    Plan::compile(Config::from_text("t.yaml", &yaml).unwrap(), old).unwrap()
}

/// Takes this many hits from a key, a few times by the same plan. Returns how many calls passed,
/// and the permits that remained after the last decision.
fn take(engine: &Engine, hits: u64, times: usize) -> (u64, u64) {
    let entries = [Entry::new("k", "1")];
    let asks = [Ask { subject: Subject::Entries(&entries), hits: Hits::Take(hits), limit: None }];
    let request = Request { domain: "d", asks: &asks, verb: Verb::Check };
    let (plan, now, mut answer) = (engine.plan(), engine.now(), Answer::new());
    let mut taken = 0;
    for _ in 0..times {
        block_on(engine.decide(&plan, now, &request, &mut answer)).unwrap();
        taken += if answer.is_allowed() { hits } else { 0 };
    }
    (taken, answer.report(&plan, now).unwrap().remaining)
}

#[test]
fn what_is_used_stays_used_whoever_decides_while_the_quota_changes() {
    const LIMIT: u64 = 10_000_000;
    let (clock, _hand) = Clock::manual();
    let store = Backend::Memory(MemoryStore::builder().clock(clock).build().unwrap());
    let engine = Engine::new(plan(LIMIT, None), vec![store]);
    let (stop, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    taken.fetch_add(take(&engine, 1, 64).0, SeqCst);
                }
            });
        }
        // Up, down, and now and then unchanged.
        for round in 0..600_u64 {
            let (old, limit) = (engine.plan_arc(), LIMIT * [1, 1, 2, 3][round as usize % 4]);
            engine.install(plan(limit, Some(&old)));
        }
        stop.store(true, SeqCst);
    });
    let limit = engine.plan().rules()[0].kind().count().unwrap();
    assert_eq!(limit - take(&engine, 0, 1).1, taken.load(SeqCst), "not one more or less");
}

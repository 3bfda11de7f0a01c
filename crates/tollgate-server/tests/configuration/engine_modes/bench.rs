//! An engine with a clock that is set by hand, and stores that can fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tollgate::{
    Clock, ManualClock,
    store::{MemoryStore, Operation, Store, StoreError, forward_store},
    testing::block_on,
};
use tollgate_server::{
    config::Config,
    engine::{Answer, Ask, Backend, Code, Engine, Hits, Request, RequestError, Subject, Verb},
    plan::{Entry, Plan},
};

#[allow(dead_code, reason = "not all tests need all")]
pub(crate) struct Bench {
    pub(crate) engine: Engine,
    pub(crate) hand: ManualClock,
    pub(crate) answer: Answer,
    /// Whether the declared stores fail.
    pub(crate) fails: Arc<AtomicBool>,
}

impl Bench {
    pub(crate) fn new(yaml: &str) -> Self {
        let (clock, hand) = Clock::manual();
        let fails = Arc::new(AtomicBool::new(false));
        let plan = plan(yaml, None);
        let store = || MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let mut stores = vec![Backend::Memory(store())];
        for _ in &plan.config().stores {
            stores.push(Backend::Other(Arc::new(Shaky(store(), Arc::clone(&fails)))));
        }
        Self { engine: Engine::new(plan, stores), hand, answer: Answer::new(), fails }
    }

    pub(crate) fn try_ask(&mut self, asks: &[Ask<'_>], verb: Verb) -> Result<bool, RequestError> {
        let (plan, now) = (self.engine.plan_arc(), self.engine.now());
        let request = Request { domain: "d", asks, verb };
        block_on(self.engine.decide(&plan, now, &request, &mut self.answer))?;
        Ok(self.answer.is_allowed())
    }

    pub(crate) fn ask(&mut self, asks: &[Ask<'_>], verb: Verb) -> bool {
        self.try_ask(asks, verb).unwrap()
    }

    /// Sends a request with descriptors, each written as `key=value|key=value`, and their hits.
    pub(crate) fn verb(&mut self, descriptors: &[(&str, Hits)], verb: Verb) -> bool {
        let lists: Vec<_> = descriptors.iter().map(|(text, hits)| (entries(text), *hits)).collect();
        let asks: Vec<_> = lists.iter().map(|(entries, hits)| ask(entries, *hits)).collect();
        self.ask(&asks, verb)
    }

    pub(crate) fn check(&mut self, descriptors: &[&str]) -> bool {
        let each: Vec<_> = descriptors.iter().map(|text| (*text, Hits::Take(1))).collect();
        self.verb(&each, Verb::Check)
    }

    pub(crate) fn codes(&self) -> Vec<Code> {
        self.answer.statuses().iter().map(|status| status.code).collect()
    }

    /// Returns the remaining permits of each ask.
    pub(crate) fn remaining(&self) -> Vec<Option<u64>> {
        let (plan, now) = (self.engine.plan_arc(), self.engine.now());
        let statuses = self.answer.statuses().iter();
        let told = |status| self.answer.report_at(&plan, status, now);
        statuses.map(|status| told(status).map(|told| told.remaining)).collect()
    }

    /// Returns the time until the retry.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let (plan, now) = (self.engine.plan_arc(), self.engine.now());
        self.answer.report(&plan, now)?.retry_after
    }

    /// Returns the remaining permits of a key.
    pub(crate) fn left(&mut self, descriptor: &str) -> u64 {
        self.verb(&[(descriptor, Hits::Take(0))], Verb::Peek);
        self.remaining()[0].unwrap()
    }

    pub(crate) fn load(&self, yaml: &str) {
        let old = self.engine.plan_arc();
        self.engine.install(plan(yaml, Some(&old)));
    }
}

pub(crate) fn plan(yaml: &str, old: Option<&Plan>) -> Plan {
    let config = Config::from_text("test.yaml", &format!("domain: d\n{yaml}"));
    Plan::compile(config.unwrap_or_else(|errors| panic!("{errors}")), old).unwrap()
}

pub(crate) fn entries(text: &str) -> Vec<Entry<'_>> {
    let pairs = text.split('|').map(|part| part.split_once('=').unwrap());
    pairs.map(|(key, value)| Entry::new(key, value)).collect()
}

pub(crate) fn ask<'a>(entries: &'a [Entry<'a>], hits: Hits) -> Ask<'a> {
    Ask { subject: Subject::Entries(entries), hits, limit: None }
}

/// A store that fails on request.
struct Shaky(MemoryStore, Arc<AtomicBool>);

impl Shaky {
    async fn run<T>(
        &self,
        _operation: Operation,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        // ORDERING: SeqCst. A test.
        match self.1.load(SeqCst) {
            true => Err(StoreError::unavailable("it was told to fail")),
            false => call.await,
        }
    }
}

impl Store for Shaky {
    forward_store!(self => &self.0, through run);
}

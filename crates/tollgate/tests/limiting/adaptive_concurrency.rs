//! A law that moves a concurrency limit: which calls are admitted, the law's samples, and shares.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    CallOutcome, Clock, Concurrency, ManualClock, Priority, Tick,
    adaptive::{
        AdaptiveConcurrency, Law, LimitReason, Partitions, Sample,
        law::{Aimd, ProbingGradient},
    },
};

/// A law that records its samples and returns the limit that the test sets.
#[derive(Clone, Debug)]
struct Script {
    heard: Arc<Mutex<Vec<Sample>>>,
    limit: Arc<AtomicU64>,
}

impl Script {
    fn new(limit: u64) -> Self {
        Self { heard: Arc::default(), limit: Arc::new(AtomicU64::new(limit)) }
    }

    fn samples(&self) -> Vec<Sample> {
        self.heard.lock().unwrap().clone()
    }
}

impl Law for Script {
    fn observe(&mut self, sample: &Sample) -> u64 {
        self.heard.lock().unwrap().push(*sample);
        self.limit.load(SeqCst)
    }

    fn limit(&self) -> u64 {
        self.limit.load(SeqCst)
    }

    fn reason(&self) -> LimitReason {
        LimitReason::Holding
    }

    fn name(&self) -> &'static str {
        "script"
    }
}

fn scripted(limit: u64) -> (AdaptiveConcurrency, Script, ManualClock) {
    let (clock, hand) = Clock::manual();
    let script = Script::new(limit);
    let queue = Concurrency::builder(0).max_waiting(8).clock(clock).build().unwrap();
    (AdaptiveConcurrency::over(queue, script.clone()), script, hand)
}

#[test]
fn a_call_that_ends_is_a_sample_and_one_that_does_not_is_none() {
    use CallOutcome::{Failure, Ignore, Overload, Success};
    let (limit, script, hand) = scripted(3);
    let first = limit.try_acquire().unwrap();
    hand.advance(Duration::from_millis(5));
    let second = limit.try_acquire().unwrap();
    let third = limit.try_acquire().unwrap();
    let full = limit.try_acquire().unwrap_err();
    assert_eq!((full.limit(), full.in_flight()), (3, 3));
    hand.advance(Duration::from_millis(20));
    second.end(Success);
    first.end(Overload);
    drop(third);
    for outcome in [Failure, Ignore] {
        limit.try_acquire().unwrap().end(outcome);
    }
    limit.bypass().end(Success);
    let (ended, ms) = (Tick::from_millis(25), Tick::from_millis);
    assert_eq!(
        script.samples(),
        [
            Sample { began: ms(5), ended, in_flight: 2, outcome: Success },
            Sample { began: ms(0), ended, in_flight: 1, outcome: Overload },
        ]
    );
    assert_eq!((limit.report().in_flight, limit.report().law), (0, "script"));
}

#[test]
fn a_slot_is_held_after_its_call_was_measured() {
    let (limit, script, hand) = scripted(1);
    let mut call = limit.try_acquire().unwrap();
    hand.advance(Duration::from_millis(7));
    call.measure(CallOutcome::Success); // the head of the response
    hand.advance(Duration::from_secs(60));
    call.measure(CallOutcome::Overload); // only the first one counts
    assert_eq!(limit.report().in_flight, 1);
    call.end(CallOutcome::Overload);
    assert_eq!(limit.report().in_flight, 0);
    let heard = script.samples();
    assert_eq!((heard.len(), heard[0].rtt()), (1, Duration::from_millis(7)));
}

#[test]
fn what_the_law_says_is_enforced_and_never_less_than_one() {
    let (limit, script, _hand) = scripted(5);
    assert_eq!(limit.report().limit, 5);
    for (said, enforced) in
        [(7, 7), (0, 1), (u64::MAX, Concurrency::LIMIT_MAX), (2, 2), (2, 2), (3, 3)]
    {
        script.limit.store(said, SeqCst);
        limit.try_acquire().unwrap().end(CallOutcome::Success);
        assert_eq!(limit.concurrency().limit(), enforced, "the law said {said}");
    }
}

#[test]
fn waiters_are_admitted_when_the_law_raises_the_limit() {
    let (limit, script, hand) = scripted(1);
    let held = limit.try_acquire().unwrap();
    let mut normal = Box::pin(limit.acquire());
    let mut urgent =
        Box::pin(limit.acquire().priority(Priority::HIGH).within(Duration::from_secs(1)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(normal.as_mut().poll(&mut context).is_pending());
    assert!(urgent.as_mut().poll(&mut context).is_pending());
    script.limit.store(2, SeqCst);
    held.end(CallOutcome::Success);
    let mut admitted = Vec::new();
    for wait in [&mut normal, &mut urgent] {
        match wait.as_mut().poll(&mut context) {
            Poll::Ready(call) => admitted.push(call.unwrap()),
            Poll::Pending => panic!("there are two slots"),
        }
    }
    let mut late = Box::pin(limit.acquire().until(Tick::from_secs(2)));
    assert!(late.as_mut().poll(&mut context).is_pending());
    hand.set(Tick::from_secs(2));
    match late.as_mut().poll(&mut context) {
        Poll::Ready(Err(full)) => assert!(full.is_timed_out()),
        other => panic!("{other:?}"),
    }
    drop(admitted);
    assert_eq!((limit.report().in_flight, limit.report().waiting), (0, 0));
    assert!(limit.acquire().block().is_ok());
}

/// Calls that began before a probe are no measure of a service without a queue.
#[test]
fn a_probe_hears_only_calls_that_began_after_it() {
    let (clock, hand) = Clock::manual();
    let law = ProbingGradient::builder().initial(40).probe_samples(4).probe_at(2).build().unwrap();
    let queue = Concurrency::builder(0).clock(clock).build().unwrap();
    let limit = AdaptiveConcurrency::over(queue, law);
    let old: Vec<_> = (0..40).filter_map(|_| limit.try_acquire().ok()).collect();
    hand.advance(Duration::from_millis(900));
    old.into_iter().for_each(|call| call.end(CallOutcome::Success));
    while limit.report().reason == LimitReason::Probing || limit.report().limit <= 2 {
        let Ok(call) = limit.try_acquire() else { panic!("{limit:?}") };
        hand.advance(Duration::from_millis(10));
        call.end(CallOutcome::Success);
    }
    assert!(limit.report().limit > 2, "it goes on with its limit: {limit:?}");
}

#[test]
fn in_flight_never_exceeds_the_limit_whatever_64_threads_do() {
    let law = Aimd::builder().initial(20).min(1).max(40).backoff(0.5).build().unwrap();
    let queue = Concurrency::builder(0).max_waiting(100).counted().build().unwrap();
    let limit = AdaptiveConcurrency::over(queue, law);
    let most = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..64 {
            let (limit, most) = (limit.clone(), Arc::clone(&most));
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..300 {
                    let call = match random.u8(..4) {
                        0 => limit.acquire().block(),
                        _ => limit.try_acquire(),
                    };
                    let Ok(call) = call else { continue };
                    most.fetch_max(limit.report().in_flight, SeqCst);
                    match random.u8(..8) {
                        0 => drop(call),
                        1 => call.end(CallOutcome::Overload),
                        2 => call.end(CallOutcome::Failure),
                        _ => call.end(CallOutcome::Success),
                    }
                }
            });
        }
    });
    let report = limit.report();
    assert_eq!((report.in_flight, report.waiting), (0, 0));
    assert!(most.load(SeqCst) <= 40);
    assert!(limit.concurrency().counts().peak_in_flight <= 40);
    assert!((1..=40).contains(&report.limit));
}

#[test]
fn a_partition_gets_its_share_of_a_full_limit_and_lends_it_otherwise() {
    let (limit, script, _hand) = scripted(10);
    let parts = Partitions::builder(&limit).share("web", 70).share("jobs", 25).build().unwrap();
    let take = |name: &str, count: usize| -> Vec<_> {
        (0..count).map_while(|_| parts.try_acquire(name).ok()).collect()
    };
    let jobs = take("jobs", 99);
    assert_eq!(jobs.len(), 10, "nobody else wants anything");
    let web = take("web", 99);
    assert_eq!(web.len(), 7, "seven of ten, although the limit is full");
    assert_eq!(limit.report().in_flight, 17);
    assert!(parts.try_acquire("jobs").is_err() && parts.try_acquire("other").is_err());
    drop(jobs);
    assert_eq!((parts.in_flight("jobs"), parts.in_flight("web")), (0, 7));
    let other = take("other", 99);
    assert_eq!(other.len(), 3, "what is free is anybody's");
    let jobs = take("jobs", 99);
    assert_eq!(jobs.len(), 3, "a quarter of ten, rounded up");
    drop((web, other, jobs));
    script.limit.store(1, SeqCst);
    parts.try_acquire("web").unwrap().end(CallOutcome::Success);
    let (_web, jobs) = (parts.try_acquire("web").unwrap(), take("jobs", 99));
    assert_eq!(jobs.len(), 1, "at least one each");
    drop((_web, jobs));
    assert_eq!(limit.report().in_flight, 0);
    limit.concurrency().close();
    assert!(parts.try_acquire("web").unwrap_err().is_closed());
}

#[test]
fn shares_that_make_no_sense_are_refused() {
    let limit = AdaptiveConcurrency::new();
    let build = |shares: &[(&str, u8)]| {
        let builder = Partitions::builder(&limit);
        shares.iter().fold(builder, |builder, (name, share)| builder.share(name, *share)).build()
    };
    assert!(build(&[]).is_ok() && build(&[("a", 100)]).is_ok() && build(&[("a", 0)]).is_ok());
    let error = build(&[("a", 60), ("b", 41)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the shares are 101 percent together, and more than 100 cannot be guaranteed; lower some of them"
    );
    let error = build(&[("a", 10), ("a", 10)]).unwrap_err();
    assert_eq!(error.to_string(), "partition \"a\" is declared twice; give each one share");
}

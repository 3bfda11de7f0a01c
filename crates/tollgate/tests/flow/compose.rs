//! Two stages in a row: a debouncer, and a pace after it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tollgate::{
    Debouncer, DebouncerBuilder, Driver, Edge, Fired, Limiter, ManualClock, OnDrop, Quota, Tick,
    WeakDebouncer,
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A run: when, with what, for how many triggers.
type Run = (u64, u32, u64);

struct Scene {
    hand: ManualClock,
    chain: Debouncer<u32>,
    runs: Arc<Mutex<Vec<Run>>>,
}

fn millis(tick: Tick) -> u64 {
    tick.as_nanos() / 1_000_000
}

impl Scene {
    fn new(
        debounce: DebouncerBuilder,
        then: impl FnOnce(DebouncerBuilder, &ManualClock) -> DebouncerBuilder,
    ) -> Self {
        let hand = ManualClock::new();
        let runs = Arc::new(Mutex::new(Vec::new()));
        let (log, clock) = (Arc::clone(&runs), hand.clone());
        let chain = then(debounce.driver(Driver::manual(&hand)), &hand)
            .start(move |fired: Fired<u32>| {
                let at = millis(clock.now());
                log.lock().unwrap().push((at, *fired.value(), fired.triggers()));
            })
            .unwrap();
        Self { hand, chain, runs }
    }

    /// Triggers at each time, with the time as the value.
    fn play(&self, triggers: &[u64]) -> Vec<Run> {
        for &at in triggers {
            self.hand.set(Tick::from_millis(at));
            assert!(self.chain.trigger(u32::try_from(at).unwrap()));
        }
        self.hand.advance(ms(100_000));
        self.runs()
    }

    fn runs(&self) -> Vec<Run> {
        self.runs.lock().unwrap().clone()
    }
}

fn throttled(debounce: DebouncerBuilder) -> Scene {
    Scene::new(debounce, |debounce, _| debounce.at_most_every(ms(100)))
}

fn limited(quota: Quota) -> (Scene, Limiter) {
    let mut kept = None;
    let scene = Scene::new(Debouncer::builder(ms(20)), |debounce, hand| {
        let limiter = Limiter::builder(quota).clock(hand.clock()).build().unwrap();
        let builder = debounce.limit(&limiter);
        kept = Some(limiter);
        builder
    });
    (scene, kept.unwrap())
}

#[test]
fn a_run_waits_for_silence_and_then_for_its_interval() {
    let quiet = || Debouncer::builder(ms(20));
    // debouncer, triggers, expected: when, with what, for how many
    let table: &[(&str, DebouncerBuilder, &[u64], &[Run])] = &[
        ("one burst", quiet(), &[0, 10, 15], &[(35, 15, 3)]),
        ("two bursts far apart", quiet(), &[0, 200], &[(20, 0, 1), (220, 200, 1)]),
        ("the second waits", quiet(), &[0, 30], &[(20, 0, 1), (120, 30, 1)]),
        ("the last wins", quiet(), &[0, 30, 60, 65], &[(20, 0, 1), (120, 65, 3)]),
        // The burst of 115 is not over when the interval is: the value that fired before runs.
        (
            "a burst over the end",
            quiet(),
            &[0, 30, 115],
            &[(20, 0, 1), (120, 30, 1), (220, 115, 1)],
        ),
        ("at the tick", quiet(), &[0, 100], &[(20, 0, 1), (120, 100, 1)]),
        ("a tick late", quiet(), &[0, 101], &[(20, 0, 1), (121, 101, 1)]),
        (
            "without silence",
            quiet().max_wait(ms(40)),
            &[0, 15, 30, 45, 60, 75, 90, 105, 120],
            &[(40, 30, 3), (140, 120, 6)],
        ),
        (
            "both edges",
            quiet().both_edges(),
            &[0, 5, 200],
            &[(0, 0, 1), (100, 5, 1), (200, 200, 1)],
        ),
        ("leading edge", quiet().leading(), &[0, 5, 50, 55], &[(0, 0, 1), (100, 50, 1)]),
    ];
    for (row, (name, debounce, triggers, expected)) in table.iter().enumerate() {
        let scene = throttled(debounce.clone());
        assert_eq!(scene.play(triggers), *expected, "row {row}: {name}");
        assert_eq!(scene.hand.timers(), 0, "row {row}: {name}");
        assert!(!scene.chain.is_pending());
    }
}

#[test]
fn a_limiter_shared_with_others_holds_a_run_back() {
    let (scene, limiter) = limited(Quota::per_second(10).burst(1));
    scene.chain.trigger(1);
    assert!(limiter.try_acquire().is_allowed()); // another user of the limiter, at 0 ms
    scene.hand.advance(ms(50));
    assert!(scene.runs().is_empty() && scene.chain.is_pending());
    scene.chain.trigger(2);
    scene.hand.advance(ms(49));
    assert!(scene.runs().is_empty());
    scene.hand.advance(ms(1));
    assert_eq!(scene.runs(), [(100, 2, 2)]);
    // With a burst the first runs do not wait.
    let (scene, _limiter) = limited(Quota::per_second(10).burst(2));
    let expected = [(20, 0, 1), (50, 30, 1), (120, 60, 1), (220, 190, 2)];
    assert_eq!(scene.play(&[0, 30, 60, 130, 190]), expected);
}

#[test]
#[cfg(feature = "tokio")]
fn a_run_has_its_turn_although_others_wait_all_the_time() {
    use std::task::{Context, Waker};
    let (scene, limiter) = limited(Quota::per_second(1_000).burst(1));
    let mut context = Context::from_waker(Waker::noop());
    let mut crowd = Vec::new();
    scene.chain.trigger(1);
    for _ in 0..100 {
        crowd.resize_with(4, || Box::pin(limiter.acquire()));
        crowd.retain_mut(|wait| wait.as_mut().poll(&mut context).is_pending());
        scene.hand.advance(ms(1));
    }
    assert_eq!(scene.runs().len(), 1);
}

#[test]
fn a_run_that_is_cancelled_gives_back_what_it_had_booked() {
    let (scene, limiter) = limited(Quota::per_second(10).burst(1));
    assert!(limiter.try_acquire().is_allowed());
    scene.chain.trigger(1);
    scene.hand.advance(ms(20));
    // At 20 ms, the slot of 100 ms is booked.
    assert_eq!(limiter.peek().retry_after(limiter.now()), Some(ms(180)));
    assert!(scene.chain.cancel());
    assert_eq!(limiter.peek().retry_after(limiter.now()), Some(ms(80)));
    scene.chain.trigger(2);
    scene.hand.advance(ms(20));
    scene.chain.stop();
    assert_eq!(limiter.peek().retry_after(limiter.now()), Some(ms(60)));
}

#[test]
fn a_budget_that_is_raised_lets_what_waits_run() {
    let (scene, limiter) = limited(Quota::once(1));
    assert_eq!(scene.play(&[0, 30]), [(20, 0, 1)]);
    assert!(scene.chain.is_pending());
    limiter.set_quota(Quota::once(2), tollgate::Inherit::Reset).unwrap();
    scene.hand.advance(ms(1_000));
    assert_eq!(scene.runs().len(), 2);
    assert!(!scene.chain.is_pending());
}

#[test]
fn flush_cancel_and_the_end_in_every_state() {
    let new = || throttled(Debouncer::builder(ms(20)));
    // Idle.
    let scene = new();
    assert!(!scene.chain.flush() && !scene.chain.cancel() && !scene.chain.is_pending());
    // In a burst: a flush runs at once, if the pace allows it.
    scene.chain.trigger(1);
    assert!(scene.chain.is_pending() && scene.chain.flush());
    assert_eq!(scene.runs(), [(0, 1, 1)]);
    // In a burst, within the interval: it waits for that, and the edge says why it fired.
    scene.hand.advance(ms(10));
    scene.chain.trigger(2);
    assert!(scene.chain.flush() && scene.chain.is_pending());
    scene.hand.advance(ms(89));
    assert_eq!(scene.runs().len(), 1);
    scene.hand.advance(ms(1));
    assert_eq!(scene.runs()[1..], [(100, 2, 1)]);
    // Cancel clears both stages, but not the pace.
    scene.chain.trigger(3);
    scene.hand.advance(ms(20));
    scene.chain.trigger(4);
    assert!(scene.chain.cancel() && !scene.chain.is_pending() && !scene.chain.cancel());
    scene.chain.trigger(5);
    scene.hand.advance(ms(1_000));
    assert_eq!(scene.runs()[2..], [(200, 5, 1)]);
    // A stop drops the pending value; no trigger is accepted after it.
    scene.chain.trigger(6);
    scene.chain.stop_and_wait(ms(0)).block().unwrap();
    assert!(scene.chain.is_stopped() && !scene.chain.trigger(7) && !scene.chain.flush());
    scene.hand.advance(ms(1_000));
    assert_eq!(scene.runs().len(), 3);
    // A finish runs it, at its pace.
    let scene = new();
    scene.chain.trigger(1);
    scene.hand.advance(ms(20));
    scene.chain.trigger(2);
    scene.chain.finish();
    assert!(!scene.chain.trigger(3));
    let error = scene.chain.finish_and_wait(ms(0)).block().unwrap_err();
    assert!(!error.is_inside());
    scene.hand.advance(ms(100));
    assert_eq!(scene.runs(), [(20, 1, 1), (120, 2, 1)]);
    scene.chain.finish_and_wait(ms(0)).block().unwrap();
    assert_eq!(scene.hand.timers(), 0);
    // With nothing to run it ends at once.
    let scene = new();
    scene.chain.finish_and_wait(ms(0)).block().unwrap();
}

#[test]
fn dropping_the_last_handle_does_what_was_declared() {
    for (on_drop, expected) in [(OnDrop::Cancel, 1), (OnDrop::Flush, 2)] {
        let Scene { hand, chain, runs } = throttled(Debouncer::builder(ms(20)).on_drop(on_drop));
        let other = chain.clone();
        chain.trigger(1);
        hand.advance(ms(20));
        chain.trigger(2);
        drop(chain);
        assert!(other.is_pending());
        drop(other);
        hand.advance(ms(1_000));
        assert_eq!(runs.lock().unwrap().len(), expected, "{on_drop:?}");
        assert_eq!((hand.timers(), Arc::strong_count(&runs)), (0, 1));
    }
}

#[test]
fn values_that_call_back_when_they_are_dropped_do_not_block() {
    struct Calls(u32, Box<dyn Fn() + Send>);
    impl Drop for Calls {
        fn drop(&mut self) {
            (self.1)();
        }
    }
    let calls = |chain: &Debouncer<Calls>, value| {
        let chain = chain.clone();
        let busy = move || {
            assert!(chain.is_pending() || chain.is_running() || chain.is_stopped());
        };
        Calls(value, Box::new(busy))
    };
    let hand = ManualClock::new();
    let (sender, seen) = std::sync::mpsc::channel();
    let debounce = Debouncer::builder(ms(20)).driver(Driver::manual(&hand));
    let chain = debounce
        .at_most_every(ms(100))
        .start(move |fired: Fired<Calls>| sender.send((fired.value().0, fired.triggers())).unwrap())
        .unwrap();
    for value in 1..5 {
        // Within a burst, and from the first stage into the second.
        chain.trigger(calls(&chain, value));
        chain.trigger(calls(&chain, value * 10));
        hand.advance(ms(20));
    }
    hand.advance(ms(1_000));
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [(10, 2), (40, 6)]);
    chain.trigger(calls(&chain, 9));
    chain.stop();
}

#[test]
fn a_run_that_panics_is_reported_and_the_action_may_trigger_again() {
    let hand = ManualClock::new();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&reports);
    let own: Arc<Mutex<Option<WeakDebouncer<u32>>>> = Arc::default();
    let handle = Arc::clone(&own);
    let runs = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&runs);
    let debounce = Debouncer::builder(ms(20))
        .driver(Driver::manual(&hand))
        .on_panic(move |panicked| told.lock().unwrap().push(panicked.message().to_owned()));
    let clock = hand.clone();
    let chain = debounce
        .at_most_every(ms(100))
        .start(move |fired: Fired<u32>| {
            log.lock().unwrap().push((millis(clock.now()), fired.edge()));
            let chain = handle.lock().unwrap().as_ref().unwrap().upgrade().unwrap();
            if fired.into_value() == 1 {
                assert!(chain.is_running());
                chain.trigger(2);
                panic!("one");
            }
        })
        .unwrap();
    *own.lock().unwrap() = Some(chain.downgrade());
    chain.trigger(1);
    hand.advance(ms(1_000));
    assert_eq!(*runs.lock().unwrap(), [(20, Edge::Trailing), (120, Edge::Trailing)]);
    assert_eq!((chain.panics(), reports.lock().unwrap().as_slice()), (1, &["one".to_owned()][..]));
    drop(chain);
    assert!(own.lock().unwrap().as_ref().unwrap().upgrade().is_none());
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let quiet = || Debouncer::builder(ms(20));
    let limiter = Limiter::new(Quota::per_second(1).burst(0)).unwrap();
    for (row, (builder, expected)) in [
        (Debouncer::builder(ms(0)).at_most_every(ms(1)), "a delay of 0 s collapses nothing;"),
        (quiet().at_most_every(ms(0)), "the interval is zero;"),
        (quiet().limit(&limiter), "the limiter never admits cost 1;"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = builder.start(|_: Fired<()>| {}).unwrap_err().to_string();
        assert!(error.starts_with(expected), "row {row}: {error}");
    }
}

#[test]
fn a_thread_drives_it_by_default() {
    let (sender, seen) = std::sync::mpsc::channel();
    let chain = Debouncer::builder(ms(1))
        .at_most_every(ms(2))
        .start(move |fired: Fired<u32>| sender.send(fired.into_value()).unwrap())
        .unwrap();
    for value in 0..3 {
        chain.trigger(value);
        assert_eq!(seen.recv().unwrap(), value);
    }
    chain.stop_and_wait(ms(10_000)).block().unwrap();
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn an_action_may_be_a_future_on_paused_time() {
    let clock = tollgate::Clock::tokio();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let (log, time) = (Arc::clone(&runs), clock.clone());
    let chain = Debouncer::builder(ms(20))
        .at_most_every(ms(100))
        .start_async(move |fired: Fired<u32>| {
            log.lock().unwrap().push((millis(time.now()), fired.into_value()));
            async {
                tokio::task::yield_now().await;
            }
        })
        .unwrap();
    for value in 1..=3 {
        chain.trigger(value);
        let _passed = tokio::time::timeout(ms(30), std::future::pending::<()>()).await;
    }
    chain.finish_and_wait(ms(5_000)).await.unwrap();
    assert_eq!(*runs.lock().unwrap(), [(20, 1), (120, 3)]);
}

//! Debouncers and throttles on a manual clock: every edge, every state, in tables.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};
use tollgate::{
    ConfigError, Debouncer, DebouncerBuilder, Driver, Edge, Fired, ManualClock, Throttle, Tick,
    WeakDebouncer,
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A run: when, with which value, why, and for how many triggers.
type Run = (u64, u64, Edge, u64);

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Run>>>);

impl Log {
    fn note(&self, hand: &ManualClock, fired: &Fired<u64>) {
        let at_ms = hand.now().as_nanos() / 1_000_000;
        self.0.lock().unwrap().push((at_ms, *fired.value(), fired.edge(), fired.triggers()));
    }

    fn taken(&self) -> Vec<Run> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn start(builder: DebouncerBuilder) -> (Debouncer<u64>, ManualClock, Log) {
    let (hand, log) = (ManualClock::new(), Log::default());
    let (clock, notes) = (hand.clone(), log.clone());
    let action = move |fired: Fired<u64>| notes.note(&clock, &fired);
    let debouncer = builder.driver(Driver::manual(&hand)).start(action).unwrap();
    (debouncer, hand, log)
}

/// Triggers at the given times, with the times as values, and then waits for all runs.
fn runs(builder: DebouncerBuilder, at_ms: &[u64]) -> Vec<Run> {
    let (debouncer, hand, log) = start(builder);
    for at_ms in at_ms {
        hand.set(Tick::from_millis(*at_ms));
        assert!(debouncer.trigger(*at_ms));
    }
    hand.advance(ms(10_000));
    assert!(!debouncer.is_pending());
    assert_eq!(hand.timers(), 0);
    log.taken()
}

#[test]
fn edges_and_the_longest_wait() {
    use Edge::{Leading, MaxWait, Trailing};
    let delay = || Debouncer::builder(ms(100));
    // A burst with a trigger every 60 ms, then one more after silence.
    let burst = [0, 60, 120, 180, 240, 500];
    let rows: [(&str, DebouncerBuilder, Vec<Run>); 6] = [
        ("trailing", delay(), vec![(340, 240, Trailing, 5), (600, 500, Trailing, 1)]),
        ("leading", delay().leading(), vec![(0, 0, Leading, 1), (500, 500, Leading, 1)]),
        (
            "both",
            delay().both_edges(),
            vec![(0, 0, Leading, 1), (340, 240, Trailing, 4), (500, 500, Leading, 1)],
        ),
        (
            "trailing, at most 150 ms",
            delay().max_wait(ms(150)),
            // The wait of the second part counts from the cut, but its burst begins at 180 ms.
            vec![(150, 120, MaxWait, 3), (300, 240, MaxWait, 2), (600, 500, Trailing, 1)],
        ),
        (
            "leading, at most 150 ms",
            delay().leading().max_wait(ms(150)),
            vec![(0, 0, Leading, 1), (180, 180, Leading, 1), (500, 500, Leading, 1)],
        ),
        (
            "both, at most 150 ms",
            delay().both_edges().max_wait(ms(150)),
            vec![
                (0, 0, Leading, 1),
                (150, 120, MaxWait, 2),
                (300, 240, MaxWait, 2),
                (500, 500, Leading, 1),
            ],
        ),
    ];
    for (name, builder, expected) in rows {
        assert_eq!(runs(builder, &burst), expected, "{name}");
    }
}

#[test]
fn a_trigger_before_at_and_after_the_deadline() {
    use Edge::{Leading, Trailing};
    let rows: [(u64, Vec<Run>, Vec<Run>); 3] = [
        (99, vec![(199, 99, Trailing, 2)], vec![(0, 0, Leading, 1), (199, 99, Trailing, 1)]),
        (
            100,
            vec![(100, 0, Trailing, 1), (200, 100, Trailing, 1)],
            vec![(0, 0, Leading, 1), (100, 100, Leading, 1)],
        ),
        (
            101,
            vec![(100, 0, Trailing, 1), (201, 101, Trailing, 1)],
            vec![(0, 0, Leading, 1), (101, 101, Leading, 1)],
        ),
    ];
    for (second, trailing, both) in rows {
        let delay = || Debouncer::builder(ms(100));
        assert_eq!(runs(delay(), &[0, second]), trailing, "second at {second} ms");
        assert_eq!(runs(delay().both_edges(), &[0, second]), both, "second at {second} ms");
    }
}

#[test]
fn the_longest_wait_is_armed_on_the_first_trigger_of_every_burst() {
    let triggers: Vec<u64> =
        (0..10).map(|n| n * 50).chain((0..10).map(|n| 2_000 + n * 50)).collect();
    let cut = runs(Debouncer::builder(ms(100)).max_wait(ms(420)), &triggers);
    let at: Vec<u64> = cut.iter().map(|run| run.0).collect();
    assert_eq!(at, [420, 550, 2_420, 2_550]);
    let counts: u64 = cut.iter().map(|run| run.3).sum();
    assert_eq!(counts, 20);
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Flush,
    Cancel,
}

/// The edges, the triggers so far, and the verb with its time; its result and whether a run is
/// pending before and after; and when it runs with which value, with one more trigger at 210 ms.
type Row = (&'static str, &'static [u64], (u64, Verb), (bool, bool, bool), &'static [(u64, u64)]);

#[test]
fn flush_and_cancel_in_every_state() {
    use Verb::{Cancel, Flush};
    const NOTHING: (bool, bool, bool) = (false, false, false);
    const A_BURST: (bool, bool, bool) = (true, false, false);
    const A_RUN: (bool, bool, bool) = (true, true, false);
    let rows: [Row; 12] = [
        ("trailing", &[], (50, Flush), NOTHING, &[(310, 210)]),
        ("trailing", &[], (50, Cancel), NOTHING, &[(310, 210)]),
        ("trailing", &[0], (50, Flush), A_RUN, &[(50, 0), (310, 210)]),
        ("trailing", &[0], (50, Cancel), A_RUN, &[(310, 210)]),
        ("trailing", &[0], (150, Flush), NOTHING, &[(100, 0), (310, 210)]),
        ("trailing", &[0], (150, Cancel), NOTHING, &[(100, 0), (310, 210)]),
        ("leading", &[0, 20], (50, Flush), A_BURST, &[(0, 0), (210, 210)]),
        ("leading", &[0, 20], (50, Cancel), A_BURST, &[(0, 0), (210, 210)]),
        ("both", &[0], (50, Flush), A_BURST, &[(0, 0), (210, 210)]),
        ("both", &[0], (50, Cancel), A_BURST, &[(0, 0), (210, 210)]),
        ("both", &[0, 20], (50, Flush), A_RUN, &[(0, 0), (50, 20), (210, 210)]),
        ("both", &[0, 20], (50, Cancel), A_RUN, &[(0, 0), (210, 210)]),
    ];
    for (number, row) in rows.iter().enumerate() {
        plays(row, number);
    }
}

fn plays(row: &Row, number: usize) {
    let (edges, triggers, (at_ms, verb), (before, says, after), expected) = *row;
    let context = format!("row {number}: {edges}, {triggers:?}, {verb:?} at {at_ms} ms");
    let builder = Debouncer::builder(ms(100));
    let builder = match edges {
        "leading" => builder.leading(),
        "both" => builder.both_edges(),
        _ => builder.trailing(),
    };
    let (debouncer, hand, log) = start(builder);
    for at_ms in triggers {
        hand.set(Tick::from_millis(*at_ms));
        debouncer.trigger(*at_ms);
    }
    hand.set(Tick::from_millis(at_ms));
    assert_eq!(debouncer.is_pending(), before, "{context}");
    let said = match verb {
        Verb::Flush => debouncer.flush(),
        Verb::Cancel => debouncer.cancel(),
    };
    assert_eq!((said, debouncer.is_pending()), (says, after), "{context}");
    hand.set(Tick::from_millis(210));
    debouncer.trigger(210);
    hand.advance(ms(1_000));
    let ran: Vec<(u64, u64)> = log.taken().iter().map(|run| (run.0, run.1)).collect();
    assert_eq!(ran, expected, "{context}");
}

#[test]
fn a_trigger_after_a_flush_waits_for_the_delay_and_after_a_cancel_begins_anew() {
    let (debouncer, hand, log) = start(Debouncer::builder(ms(100)).both_edges());
    debouncer.trigger(1);
    hand.advance(ms(10));
    debouncer.trigger(2);
    assert!(debouncer.flush());
    debouncer.trigger(3); // there was no silence, so no leading edge
    assert_eq!(log.taken(), [(0, 1, Edge::Leading, 1), (10, 2, Edge::Flush, 1)]);
    assert!(debouncer.cancel());
    debouncer.trigger(4);
    assert_eq!(log.taken(), [(10, 4, Edge::Leading, 1)]);
    hand.advance(ms(1_000));
    assert_eq!(log.taken(), []);
}

/// A call of an action on its own debouncer, and the runs that result.
#[test]
fn an_action_may_call_its_own_debouncer() {
    use Edge::{Flush, Leading, Trailing};
    type Inside = fn(&WeakDebouncer<u64>, u64);
    let again: Inside = |me, value| assert!(me.trigger(value + 1));
    let twice: Inside = |me, value| {
        me.trigger(value + 1);
        me.trigger(value + 2);
        assert!(me.upgrade().unwrap().is_running());
    };
    let at_once: Inside = |me, value| {
        me.trigger(value + 1);
        assert!(me.upgrade().unwrap().flush());
        assert!(me.upgrade().unwrap().is_pending());
    };
    let never_mind: Inside = |me, value| {
        me.trigger(value + 1);
        assert!(me.upgrade().unwrap().cancel());
    };
    let stops: Inside = |me, value| {
        let me = me.upgrade().unwrap();
        me.stop();
        assert!(!me.trigger(value + 1));
        assert!(me.stop_and_wait(ms(100)).block().unwrap_err().is_inside());
    };
    let delay = || Debouncer::builder(ms(100));
    let rows: [(&str, DebouncerBuilder, Inside, Vec<Run>); 7] = [
        ("again", delay(), again, vec![(100, 0, Trailing, 1), (200, 1, Trailing, 1)]),
        ("twice", delay(), twice, vec![(100, 0, Trailing, 1), (200, 2, Trailing, 2)]),
        ("at once", delay(), at_once, vec![(100, 0, Trailing, 1), (100, 1, Flush, 1)]),
        ("never mind", delay(), never_mind, vec![(100, 0, Trailing, 1)]),
        ("stops", delay(), stops, vec![(100, 0, Trailing, 1)]),
        ("lead", delay().leading(), again, vec![(0, 0, Leading, 1)]),
        ("both", delay().both_edges(), again, vec![(0, 0, Leading, 1), (100, 1, Trailing, 1)]),
    ];
    for (name, builder, inside, expected) in rows {
        let (hand, log) = (ManualClock::new(), Log::default());
        let myself: Arc<OnceLock<WeakDebouncer<u64>>> = Arc::default();
        let (clock, notes, me) = (hand.clone(), log.clone(), Arc::clone(&myself));
        let mut runs = 0;
        let debouncer = builder
            .driver(Driver::manual(&hand))
            .start(move |fired: Fired<u64>| {
                notes.note(&clock, &fired);
                runs += 1;
                if runs == 1 {
                    inside(me.get().unwrap(), fired.into_value());
                }
            })
            .unwrap();
        myself.set(debouncer.downgrade()).unwrap();
        debouncer.trigger(0);
        hand.advance(ms(1_000));
        assert_eq!(log.taken(), expected, "{name}");
        drop(debouncer);
        assert!(!myself.get().unwrap().trigger(9), "{name}: the last handle is gone");
    }
}

#[test]
fn an_action_is_told_when_it_was_triggered() {
    let hand = ManualClock::new();
    let (sender, told) = std::sync::mpsc::channel();
    let debouncer = Debouncer::builder(ms(100))
        .driver(Driver::manual(&hand))
        .start(move |fired: Fired<()>| {
            sender.send((fired.first_triggered_at(), fired.triggered_at())).unwrap();
        })
        .unwrap();
    hand.set(Tick::from_millis(5));
    debouncer.trigger(());
    hand.set(Tick::from_millis(35));
    debouncer.trigger(());
    hand.advance(ms(500));
    assert_eq!(told.try_recv(), Ok((Tick::from_millis(5), Tick::from_millis(35))));
}

#[test]
fn time_that_goes_backwards_stands_still() {
    let (debouncer, hand, log) = start(Debouncer::builder(ms(100)).both_edges());
    hand.set(Tick::from_millis(1_000));
    debouncer.trigger(1);
    hand.set(Tick::from_millis(10));
    debouncer.trigger(2);
    assert_eq!(log.taken(), [(1_000, 1, Edge::Leading, 1)]);
    hand.set(Tick::from_millis(1_100));
    assert_eq!(log.taken(), [(1_100, 2, Edge::Trailing, 1)]);
}

#[test]
fn at_the_end_of_time_nothing_falls_due_and_nothing_hangs() {
    let (debouncer, hand, log) = start(Debouncer::builder(ms(100)));
    debouncer.trigger(1);
    hand.set(Tick::MAX);
    assert_eq!(log.taken(), [(100, 1, Edge::Trailing, 1)]);
    debouncer.trigger(2);
    hand.advance(ms(100));
    assert!(log.taken().is_empty() && debouncer.is_pending());
    assert!(debouncer.flush());
    assert_eq!(log.taken().len(), 1);
}

#[test]
fn a_throttle_runs_at_most_once_an_interval() {
    let every_40_ms: Vec<u64> = (0..10).map(|n| n * 40).collect();
    let interval = || Throttle::builder(ms(100));
    // The triggers, and when it runs with which value, for each choice of edges.
    let rows = [
        (interval(), vec![(0, 0), (100, 80), (200, 200), (300, 280), (420, 360)]),
        (interval().leading(), vec![(0, 0), (120, 120), (240, 240), (360, 360)]),
        (interval().trailing(), vec![(100, 80), (200, 200), (300, 280), (420, 360)]),
    ];
    for (row, (builder, expected)) in rows.into_iter().enumerate() {
        let (hand, log) = (ManualClock::new(), Log::default());
        let (clock, notes) = (hand.clone(), log.clone());
        let throttle = builder
            .driver(Driver::manual(&hand))
            .start(move |fired| notes.note(&clock, &fired))
            .unwrap();
        for at_ms in &every_40_ms {
            hand.set(Tick::from_millis(*at_ms));
            assert!(throttle.trigger(*at_ms));
        }
        assert!(throttle.is_pending());
        hand.advance(ms(1_000));
        let ran: Vec<(u64, u64)> = log.taken().iter().map(|run| (run.0, run.1)).collect();
        assert_eq!(ran, expected, "row {row}");
        assert!(!throttle.is_pending() && !throttle.is_running());
    }
}

#[test]
fn nonsense_does_not_start() {
    let none = |_: Fired<()>| {};
    let error = Debouncer::new(Duration::ZERO, none).unwrap_err();
    assert!(error.to_string().contains("a delay of 0 s"), "{error}");
    let error = Debouncer::builder(ms(100)).max_wait(ms(99)).start(none).unwrap_err();
    assert!(error.to_string().contains("99ms is shorter than the delay 100ms"));
    let error = Throttle::new(Duration::ZERO, none).unwrap_err();
    assert!(error.to_string().contains("an interval of 0 s"), "{error}");
    assert!(Debouncer::builder(ms(100)).max_wait(ms(100)).start(none).is_ok());
}

#[test]
fn public_types_are_shareable_and_printable() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    // A value that is not `Sync` may still be passed.
    type Value = std::cell::Cell<u64>;
    shared::<Debouncer<Value>>();
    shared::<WeakDebouncer<Value>>();
    shared::<DebouncerBuilder>();
    shared::<Throttle<Value>>();
    shared::<tollgate::ThrottleBuilder>();
    shared::<Driver>();
    shared::<tollgate::StopAndWait>();
    error::<ConfigError>();
    error::<tollgate::StillRunning>();
    error::<tollgate::Panicked>();
    error::<tollgate::NoRuntime>();
}

#[cfg(feature = "tokio")]
#[test]
fn an_action_that_is_a_future_needs_a_runtime() {
    let action = |_: Fired<()>| std::future::ready(());
    let error = Debouncer::builder(ms(1)).start_async(action).unwrap_err();
    assert_eq!(error, tollgate::NoRuntime.into());
    let threaded = Debouncer::builder(ms(1)).driver(Driver::thread());
    let error = threaded.start_async(action).unwrap_err();
    assert!(error.to_string().starts_with("an async action needs a tokio runtime;"), "{error}");
    let error = Throttle::builder(ms(1)).start_async(action).unwrap_err();
    assert_eq!(error, tollgate::NoRuntime.into());
}

//! Debouncers by key, on the manual clock.

use std::{
    sync::{
        Arc, Mutex, Weak,
        mpsc::{self, Receiver},
    },
    time::Duration,
};
use tollgate::{
    Driver, Edge, KeyedDebouncer, KeyedDebouncerBuilder, ManualClock, OnDrop, WhenKeysFull,
};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

type Builder = KeyedDebouncerBuilder<&'static str, u32>;
type Setup = fn(Builder) -> Builder;
type EdgeRow = (&'static str, Setup, &'static [(u32, Edge)]);
type Runs = Receiver<(&'static str, u32, Edge)>;
type Started = (KeyedDebouncer<&'static str, u32>, ManualClock, Runs);

/// Starts debouncers of 100 ms on a manual clock, and lists their runs.
fn start(setup: impl FnOnce(Builder) -> Builder) -> Started {
    let (hand, (sender, runs)) = (ManualClock::new(), mpsc::channel());
    let builder = KeyedDebouncer::builder(ms(100)).driver(Driver::manual(&hand));
    let debouncer = setup(builder)
        .start(move |key, fired| {
            let edge = fired.edge();
            sender.send((key, fired.into_value(), edge)).unwrap_or(());
        })
        .unwrap();
    (debouncer, hand, runs)
}

fn values(runs: &Runs) -> Vec<(&'static str, u32)> {
    runs.try_iter().map(|(key, value, _)| (key, value)).collect()
}

#[test]
fn each_key_fires_by_itself_in_the_order_they_fall_due() {
    let (debouncer, hand, runs) = start(|builder| builder);
    for (key, value) in [("a", 1), ("b", 2), ("c", 3)] {
        debouncer.trigger(key, value).unwrap();
        hand.advance(ms(10));
    }
    debouncer.trigger("a", 4).unwrap();
    assert_eq!((debouncer.len(), hand.timers()), (3, 1), "one timer for all");
    hand.advance(ms(99));
    assert_eq!(values(&runs), [("b", 2), ("c", 3)]);
    assert!(debouncer.is_pending("a") && !debouncer.is_pending("b"));
    hand.advance(ms(1));
    assert_eq!(values(&runs), [("a", 4)]);
    assert_eq!((debouncer.len(), hand.timers()), (0, 0), "nothing is left");
}

#[test]
fn edges_and_the_longest_wait_are_those_of_a_debouncer() {
    use Edge::{Leading, MaxWait, Trailing};
    // A trigger at 0, 60, 120, 180 ms.
    let rows: [EdgeRow; 5] = [
        ("trailing", |it| it.trailing(), &[(3, Trailing)]),
        ("leading", |it| it.leading(), &[(0, Leading)]),
        ("both", |it| it.both_edges(), &[(0, Leading), (3, Trailing)]),
        ("longest wait", |it| it.max_wait(ms(150)), &[(2, MaxWait), (3, Trailing)]),
        ("the last edge counts", |it| it.leading().trailing(), &[(3, Trailing)]),
    ];
    for (name, setup, expected) in rows {
        let (debouncer, hand, runs) = start(setup);
        for value in 0..4 {
            debouncer.trigger("a", value).unwrap();
            hand.advance(ms(60));
        }
        hand.advance(ms(1000));
        let seen: Vec<_> = runs.try_iter().map(|(_, value, edge)| (value, edge)).collect();
        assert_eq!(seen, expected, "{name}");
        assert_eq!((debouncer.len(), hand.timers()), (0, 0), "{name}");
    }
}

#[test]
fn flush_and_cancel_touch_one_key_or_all() {
    let (debouncer, hand, runs) = start(|builder| builder);
    let trigger_all = || {
        for (key, value) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
            debouncer.trigger(key, value).unwrap();
            hand.advance(ms(1));
        }
    };
    trigger_all();
    assert!(debouncer.flush("c") && !debouncer.flush("c") && !debouncer.flush("nobody"));
    assert_eq!(values(&runs), [("c", 3)]);
    assert!(debouncer.cancel("b") && !debouncer.cancel("b") && !debouncer.cancel("nobody"));
    assert_eq!(debouncer.len(), 3, "a flushed key counts until its delay is over");
    assert_eq!((debouncer.flush_all(), values(&runs)), (2, vec![("a", 1), ("d", 4)]));
    assert_eq!(debouncer.flush_all(), 0);
    hand.advance(ms(100));
    assert_eq!((debouncer.len(), hand.timers()), (0, 0));
    trigger_all();
    assert_eq!((debouncer.cancel_all(), debouncer.len(), debouncer.cancel_all()), (4, 0, 0));
    hand.advance(ms(1000));
    assert_eq!(values(&runs), []);
    debouncer.trigger("a", 9).unwrap();
    hand.advance(ms(100));
    assert_eq!(values(&runs), [("a", 9)]);
}

#[test]
fn a_trigger_soon_after_a_flush_belongs_to_the_old_burst() {
    let (debouncer, hand, runs) = start(|builder| builder.both_edges());
    debouncer.trigger("a", 1).unwrap();
    debouncer.trigger("a", 2).unwrap();
    debouncer.flush("a");
    hand.advance(ms(50));
    debouncer.trigger("a", 3).unwrap();
    hand.advance(ms(100));
    let edges: Vec<_> = runs.try_iter().map(|(_, value, edge)| (value, edge)).collect();
    assert_eq!(edges, [(1, Edge::Leading), (2, Edge::Flush), (3, Edge::Trailing)]);
}

#[test]
fn a_new_key_is_refused_when_as_many_are_held_as_may_be() {
    let (debouncer, hand, runs) = start(|builder| builder.max_keys(2));
    debouncer.trigger("a", 1).unwrap();
    debouncer.trigger("b", 2).unwrap();
    let refused = debouncer.trigger("c", 3).unwrap_err();
    assert!(refused.is_full() && !refused.is_stopped());
    let text = refused.to_string();
    assert!(text.contains("2 keys") && text.contains("FireFirst"), "{text}");
    assert_eq!(refused.into_parts(), ("c", 3), "it comes back");
    debouncer.trigger("a", 4).unwrap();
    hand.advance(ms(100));
    debouncer.trigger("c", 5).unwrap();
    hand.advance(ms(100));
    assert_eq!(values(&runs), [("a", 4), ("b", 2), ("c", 5)]);
}

#[test]
fn or_the_key_that_is_due_first_fires_early() {
    let full = WhenKeysFull::FireFirst;
    let (debouncer, hand, runs) = start(|builder| builder.max_keys(2).when_full(full));
    for (key, value) in [("a", 1), ("b", 2), ("c", 3)] {
        debouncer.trigger(key, value).unwrap();
        hand.advance(ms(1));
    }
    let seen: Vec<_> = runs.try_iter().collect();
    assert_eq!(seen, [("a", 1, Edge::Flush)]);
    assert_eq!(debouncer.len(), 2);
    debouncer.trigger("a", 4).unwrap();
    hand.advance(ms(100));
    assert_eq!(values(&runs), [("b", 2), ("c", 3), ("a", 4)]);
}

#[test]
fn what_is_pending_is_lost_or_kept_as_declared() {
    let pending = |debouncer: &KeyedDebouncer<_, _>| {
        debouncer.trigger("a", 1).unwrap();
        debouncer.trigger("b", 2).unwrap();
    };
    type End = fn(KeyedDebouncer<&'static str, u32>);
    let rows: [(&str, OnDrop, End, usize); 6] = [
        ("stop", OnDrop::Flush, |it| it.stop(), 0),
        ("stop and wait", OnDrop::Flush, |it| it.stop_and_wait(ms(0)).block().unwrap(), 0),
        ("finish", OnDrop::Cancel, |it| it.finish(), 2),
        ("finish and wait", OnDrop::Cancel, |it| it.finish_and_wait(ms(0)).block().unwrap(), 2),
        ("drop, cancel", OnDrop::Cancel, drop, 0),
        ("drop, flush", OnDrop::Flush, drop, 2),
    ];
    for (name, on_drop, end, expected) in rows {
        let (debouncer, hand, runs) = start(|builder| builder.on_drop(on_drop));
        pending(&debouncer);
        let other = debouncer.clone();
        drop(other);
        end(debouncer);
        hand.advance(ms(1000));
        // The action captures the sender, so the list ends only if the action was released.
        let ran = runs.iter().count();
        assert_eq!((ran, hand.timers()), (expected, 0), "{name}");
    }
}

#[test]
fn after_a_stop_the_key_and_the_value_come_back() {
    let (debouncer, _hand, _runs) = start(|builder| builder);
    debouncer.stop();
    let refused = debouncer.trigger("a", 1).unwrap_err();
    assert!(refused.is_stopped() && !refused.is_full());
    assert!(refused.to_string().contains("stopped"));
    assert_eq!(refused.into_parts(), ("a", 1));
    assert!(debouncer.is_stopped() && !debouncer.flush("a") && !debouncer.is_pending("a"));
}

#[test]
fn an_action_that_panics_is_reported_and_the_next_key_fires() {
    let (hand, (sender, runs)) = (ManualClock::new(), mpsc::channel());
    let reports = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&reports);
    let debouncer = KeyedDebouncer::builder(ms(100))
        .driver(Driver::manual(&hand))
        .on_panic(move |panicked| log.lock().unwrap().push(panicked.message().to_owned()))
        .start(move |key: u32, fired| {
            assert_ne!(key, 1, "not this one");
            sender.send((key, fired.triggers())).unwrap();
        })
        .unwrap();
    for key in [1, 2, 2] {
        debouncer.trigger(key, ()).unwrap();
    }
    hand.advance(ms(100));
    assert_eq!(runs.try_iter().collect::<Vec<_>>(), [(2, 2)]);
    assert_eq!(debouncer.panics(), 1);
    assert!(reports.lock().unwrap()[0].contains("not this one"));
}

#[test]
fn an_action_may_trigger_flush_and_cancel() {
    let hand = ManualClock::new();
    let (runs, cell) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
    let (log, own) = (Arc::clone(&runs), Arc::clone(&cell));
    let debouncer = KeyedDebouncer::<&str, u32>::builder(ms(100))
        .driver(Driver::manual(&hand))
        .start(move |key, fired| {
            log.lock().unwrap().push((key, *fired.value()));
            let own: KeyedDebouncer<_, _> = own.lock().unwrap().clone().unwrap();
            if fired.into_value() == 1 {
                own.trigger(key, 2).unwrap();
                own.trigger("other", 3).unwrap();
                assert!(own.flush("other") && own.cancel("third"));
            }
        })
        .unwrap();
    *cell.lock().unwrap() = Some(debouncer.clone());
    debouncer.trigger("a", 1).unwrap();
    hand.advance(ms(50));
    debouncer.trigger("third", 1).unwrap();
    hand.advance(ms(150));
    assert_eq!(*runs.lock().unwrap(), [("a", 1), ("other", 3), ("a", 2)]);
    debouncer.stop();
    *cell.lock().unwrap() = None;
}

/// Calls back when it is dropped: a deadlock, if a lock is held then.
#[derive(Clone)]
struct Nosy(Weak<KeyedDebouncer<NosyKey, Nosy>>);

#[derive(Clone)]
struct NosyKey(u32, Weak<KeyedDebouncer<NosyKey, Nosy>>);

impl PartialEq for NosyKey {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for NosyKey {}

impl std::hash::Hash for NosyKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Nosy {
    fn drop(&mut self) {
        self.0.upgrade().inspect(|debouncer| assert!(debouncer.len() < 100));
    }
}

impl Drop for NosyKey {
    fn drop(&mut self) {
        self.1.upgrade().inspect(|debouncer| assert!(debouncer.len() < 100));
    }
}

#[test]
fn keys_and_values_are_dropped_without_the_lock() {
    type Nosier = KeyedDebouncerBuilder<NosyKey, Nosy>;
    let setups: [fn(Nosier) -> Nosier; 4] = [
        |it| it.leading(),
        |it| it.both_edges().max_wait(ms(150)),
        |it| it.max_keys(1).when_full(WhenKeysFull::FireFirst),
        |it| it.max_keys(1).leading().when_full(WhenKeysFull::FireFirst),
    ];
    for setup in setups {
        let hand = ManualClock::new();
        let builder = KeyedDebouncer::builder(ms(100)).driver(Driver::manual(&hand));
        let debouncer = Arc::new(setup(builder).start(|key, fired| drop((key, fired))).unwrap());
        let weak = Arc::downgrade(&debouncer);
        let trigger = |key| {
            drop(debouncer.trigger(NosyKey(key, weak.clone()), Nosy(weak.clone())));
        };
        for key in [1, 1, 2, 2, 1] {
            trigger(key);
            hand.advance(ms(60));
        }
        debouncer.flush_all();
        hand.advance(ms(1000));
        assert_eq!(debouncer.len(), 0);
        trigger(1);
        trigger(1);
        debouncer.cancel(&NosyKey(1, Weak::new()));
        trigger(1);
        debouncer.cancel_all();
        trigger(1);
        trigger(1);
        debouncer.finish();
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_value_rule_and_way_out() {
    type Keyed = KeyedDebouncer<u32, u32>;
    let start = |builder: KeyedDebouncerBuilder<u32, u32>| builder.start(|_, _| ()).unwrap_err();
    let (max_wait, delay) = (ms(50), ms(100));
    for (builder, words) in [
        (Keyed::builder(ms(0)), ["a delay of 0 s", "give a longer"]),
        (Keyed::builder(delay).max_wait(max_wait), ["50ms", "raise the first"]),
        (Keyed::builder(delay).max_keys(0), ["max_keys 0", "use 1"]),
        (Keyed::builder(delay).max_keys(usize::MAX), ["max_keys 18", "268435456"]),
    ] {
        let found = start(builder);
        for word in words {
            assert!(found.to_string().contains(word), "{found}");
        }
    }
    assert!(Keyed::builder(delay).max_wait(delay).start(|_, _| ()).is_ok());
}

#[test]
fn the_longest_delay_is_no_overflow() {
    let hand = ManualClock::new();
    let debouncer = KeyedDebouncer::builder(Duration::MAX)
        .driver(Driver::manual(&hand))
        .start(|_: u8, _| ())
        .unwrap();
    hand.advance(ms(1));
    debouncer.trigger(1, ()).unwrap();
    hand.advance(Duration::from_secs(1 << 30));
    assert!(debouncer.is_pending(&1) && debouncer.flush(&1) && debouncer.cancel_all() == 0);
}

#[test]
fn a_hundred_thousand_keys_come_and_go() {
    let hand = ManualClock::new();
    let runs = Arc::new(Mutex::new(0_u64));
    let count = Arc::clone(&runs);
    let debouncer = KeyedDebouncer::builder(ms(100))
        .driver(Driver::manual(&hand))
        .max_keys(100_000)
        .start(move |_: u32, _| *count.lock().unwrap() += 1)
        .unwrap();
    for key in 0..100_000 {
        debouncer.trigger(key, ()).unwrap();
    }
    assert!(debouncer.trigger(100_000, ()).is_err_and(|refused| refused.is_full()));
    assert_eq!((debouncer.len(), hand.timers()), (100_000, 1));
    hand.advance(ms(100));
    assert_eq!((debouncer.len(), hand.timers(), *runs.lock().unwrap()), (0, 0, 100_000));
}

#[test]
fn types_are_shareable_and_printable() {
    fn shared<T: Send + Sync + std::fmt::Debug>(_: &T) {}
    let (debouncer, _hand, _runs) = start(|builder| builder);
    shared(&debouncer);
    assert!(format!("{debouncer:?}").contains("max_keys: 65536"));
    shared(&KeyedDebouncer::<u32, u32>::builder(ms(1)));
}

//! When batches leave, their content, and the end of a coalescer.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tollgate::{
    Batch, Coalescer, CoalescerBuilder, Driver, FlushCause, Limiter, ManualClock, OnDrop, Quota,
    Tick,
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A coalescer of keys on a manual clock, and the batches that it has flushed: when, why, which
/// keys.
struct Scene {
    hand: ManualClock,
    keys: Coalescer<char, ()>,
    flushed: Arc<Mutex<Vec<String>>>,
}

impl Scene {
    fn new(set: impl FnOnce(CoalescerBuilder<char, ()>) -> CoalescerBuilder<char, ()>) -> Self {
        let hand = ManualClock::new();
        let flushed = Arc::new(Mutex::new(Vec::new()));
        let (log, clock) = (Arc::clone(&flushed), hand.clone());
        let keys = set(Coalescer::set().driver(Driver::manual(&hand)))
            .start(move |batch: Batch<char, ()>| {
                let at = clock.now().as_nanos() / 1_000_000;
                let cause = batch.cause();
                let keys: String = batch.into_keys().collect();
                log.lock().unwrap().push(format!("{at} {cause} {keys}"));
            })
            .unwrap();
        Self { hand, keys, flushed }
    }

    /// Adds each key at its time, as in `0a 10b`, and then moves the clock on. `!` flushes, `.`
    /// stops.
    fn play(&self, adds: &str) {
        for add in adds.split_whitespace() {
            let (at, key) = add.split_at(add.len() - 1);
            self.hand.set(Tick::from_millis(at.parse().unwrap()));
            match key {
                "!" => assert!(self.keys.flush(), "nothing to flush: {add}"),
                "." => self.keys.stop(),
                key => self.keys.try_insert(key.parse().unwrap()).unwrap(),
            }
        }
        self.hand.advance(ms(10_000));
    }

    /// When, why, which keys.
    fn flushed(&self) -> Vec<String> {
        self.flushed.lock().unwrap().clone()
    }
}

type Setting = fn(CoalescerBuilder<char, ()>) -> CoalescerBuilder<char, ()>;

fn check(table: &[(&str, Setting, &str, &[&str])]) {
    for (row, (name, setting, adds, expected)) in table.iter().enumerate() {
        let scene = Scene::new(setting);
        scene.play(adds);
        assert_eq!(scene.flushed(), *expected, "row {row}: {name}");
        assert_eq!(scene.hand.timers(), 0, "row {row}: {name}");
    }
}

#[test]
fn a_batch_leaves_when_its_time_has_come() {
    let window: Setting = |keys| keys.window(ms(100));
    let quiet: Setting = |keys| keys.quiet(ms(100));
    let capped: Setting = |keys| keys.quiet(ms(100)).max_wait(ms(250));
    let equal: Setting = |keys| keys.quiet(ms(100)).max_wait(ms(100));
    let at_once: Setting = |keys| keys.window(ms(0));
    check(&[
        ("first key", window, "0a 99b", &["100 window ab"]),
        ("at the tick", window, "0a 100b", &["100 window a", "200 window b"]),
        ("a known key", window, "0a 50a 60b 70a", &["100 window ab"]),
        ("order", window, "0c 0a 0b 0c", &["100 window cab"]),
        ("asked for", window, "0a 30b 40! 60c", &["40 flush ab", "160 window c"]),
        ("at the end", window, "0a 30b 40.", &["40 finish ab"]),
        ("no window", at_once, "0a 0a 7b", &["0 window a", "0 window a", "7 window b"]),
        ("silence", quiet, "0a 99b 198c", &["298 quiet abc"]),
        ("at the tick", quiet, "0a 100b", &["100 quiet a", "200 quiet b"]),
        ("a known key prolongs", quiet, "0a 90a 180a", &["280 quiet a"]),
        ("asked for", quiet, "0a 90b 120! 130c", &["120 flush ab", "230 quiet c"]),
        ("short of the cap", capped, "0a 90b", &["190 quiet ab"]),
        ("cap", capped, "0a 90b 180c 249d 260e", &["250 max_wait abcd", "360 quiet e"]),
        ("at the cap", capped, "0a 90b 180c 250d", &["250 max_wait abc", "350 quiet d"]),
        ("cap and silence at once", capped, "0a 75b 150c", &["250 quiet abc"]),
        (
            "a cap for each batch",
            capped,
            "0a 300b 390c 480d 540e",
            &["100 quiet a", "550 max_wait bcde"],
        ),
        ("a cap of the quiet time", equal, "0a 50b", &["100 max_wait ab"]),
    ]);
}

#[test]
fn a_batch_leaves_when_it_is_full_and_not_before_its_turn() {
    let size: Setting = |keys| keys.max_size(3);
    let one: Setting = |keys| keys.max_size(1);
    let window: Setting = |keys| keys.window(ms(100)).max_size(3);
    let quiet: Setting = |keys| keys.quiet(ms(100)).max_size(3);
    let paced: Setting = |keys| keys.window(ms(10)).at_most_every(ms(100)).max_size(3);
    check(&[
        ("full", size, "0a 5b 9a 9c 9d 20!", &["9 size abc", "20 flush d"]),
        ("each for itself", one, "0a 5a 9b", &["0 size a", "5 size a", "9 size b"]),
        ("full before the window", window, "0a 1b 2c 3d", &["2 size abc", "103 window d"]),
        ("full before silence", quiet, "0a 99b 198c", &["198 size abc"]),
        // Due at 30 ms, but it waits for the pace and still takes `d`.
        ("paced", paced, "0a 20b 25c 31d 115e", &["10 window a", "110 window bcd", "210 window e"]),
        ("paced and full", paced, "0a 20b 21c 22d", &["10 window a", "110 size bcd"]),
        ("paced, asked for", paced, "0a 20b 25! 26c", &["10 window a", "110 flush bc"]),
        ("paced, at the end", paced, "0a 20b 25.", &["10 window a", "110 finish b"]),
        ("slower than the pace", paced, "0a 200b", &["10 window a", "210 window b"]),
    ]);
}

#[test]
fn a_batch_says_when_it_began_and_for_how_many_adds_it_stands() {
    let hand = ManualClock::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let keys = Coalescer::fold(|held: &mut String, new: String| held.push_str(&new))
        .window(ms(100))
        .driver(Driver::manual(&hand))
        .start(move |batch| log.lock().unwrap().push(batch))
        .unwrap();
    hand.set(Tick::from_millis(5));
    for (at, key, value) in [(5, 1, "a"), (10, 2, "x"), (20, 1, "b"), (30, 1, "c"), (35, 2, "y")] {
        hand.set(Tick::from_millis(at));
        keys.try_add(key, value.to_owned()).unwrap();
        assert_eq!(keys.len(), if at < 10 { 1 } else { 2 });
    }
    hand.advance(ms(100));
    let batch = seen.lock().unwrap().pop().unwrap();
    assert_eq!(batch.first_at(), Tick::from_millis(5));
    assert_eq!(batch.last_at(), Tick::from_millis(35));
    assert_eq!((batch.adds(), batch.len(), batch.cause()), (5, 2, FlushCause::Window));
    // Folded in the order of the adds, listed in the order of the keys.
    assert_eq!(batch.into_entries(), [(1, "abc".to_owned()), (2, "xy".to_owned())]);
    assert!(keys.is_empty());
}

#[test]
fn the_last_value_wins_if_that_is_asked_for() {
    let hand = ManualClock::new();
    let (sender, seen) = std::sync::mpsc::channel();
    let keys = Coalescer::last()
        .window(ms(1))
        .driver(Driver::manual(&hand))
        .start(move |batch: Batch<_, _>| sender.send(batch.into_entries()).unwrap())
        .unwrap();
    for (key, value) in [('a', 1), ('b', 2), ('a', 3)] {
        keys.try_add(key, value).unwrap();
    }
    hand.advance(ms(1));
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [[('a', 3), ('b', 2)]]);
}

#[test]
fn what_does_not_fit_together_is_refused_with_a_way_out() {
    let (clock, _hand) = tollgate::Clock::manual();
    let closed = Limiter::builder(Quota::per_second(1).burst(0)).clock(clock).build().unwrap();
    let size_max = Coalescer::<char, ()>::SIZE_MAX;
    let new = Coalescer::<char, ()>::set;
    for (row, (builder, words)) in [
        (new(), "set `window`, `quiet` or `max_size`"),
        (new().window(ms(5)).quiet(ms(2)), "window 5ms and quiet 2ms are both set"),
        (new().max_wait(ms(5)), "use `window` instead"),
        (new().window(ms(9)).max_wait(ms(5)), "max_wait 5ms caps a quiet time"),
        (new().quiet(ms(9)).max_wait(ms(5)), "max_wait 5ms is below quiet 9ms"),
        (new().quiet(ms(0)), "`window` of zero"),
        (new().max_size(0), "use 1 to 16777216"),
        (new().max_size(size_max + 1), "max_size 16777217"),
        (new().window(ms(1)).at_most_every(ms(0)), "the interval is zero"),
        (new().window(ms(1)).limit(&closed), "raise its burst"),
        (new().window(ms(1)).limit(&closed).at_most_every(ms(3)), "use one of them"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = builder.start(|_| {}).unwrap_err();
        assert!(error.to_string().contains(words), "row {row}: {error}");
    }
}

#[test]
fn what_is_collected_can_be_taken_back() {
    let scene = Scene::new(|keys| keys.window(ms(10)).at_most_every(ms(100)));
    scene.play("0a");
    // The second batch waits for the pace.
    for (at, key) in [(20_000, 'a'), (20_015, 'b'), (20_030, 'c'), (20_045, 'b')] {
        scene.hand.set(Tick::from_millis(at));
        scene.keys.try_insert(key).unwrap();
    }
    assert_eq!(scene.flushed().len(), 2);
    assert_eq!(scene.keys.len(), 2);
    assert_eq!(scene.keys.discard(), [('b', ()), ('c', ())]);
    assert!(scene.keys.is_empty() && !scene.keys.flush());
    scene.play("30000d");
    assert_eq!(scene.flushed()[2..], ["30010 window d"]);
}

#[test]
fn after_a_stop_pairs_come_back() {
    let scene = Scene::new(|keys| keys.window(ms(10)));
    scene.keys.try_insert('a').unwrap();
    scene.keys.stop_and_wait(ms(0)).block().unwrap();
    assert_eq!(scene.flushed(), ["0 finish a"]);
    assert!(scene.keys.is_stopped());
    let error = scene.keys.try_insert('b').unwrap_err();
    assert!(error.is_stopped() && !error.is_full());
    assert_eq!(error.into_pair(), ('b', ()));
    let error = scene.keys.insert('c').block().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the coalescer is stopped; take the pair out of this error and add it elsewhere"
    );
    assert!(!scene.keys.flush() && scene.keys.discard().is_empty());
    scene.keys.stop();
    scene.hand.advance(ms(100));
    assert_eq!(scene.flushed().len(), 1);
    assert_eq!(scene.hand.timers(), 0);
}

#[test]
fn dropping_the_last_handle_does_what_was_declared() {
    for (on_drop, expected) in [(None, 1), (Some(OnDrop::Flush), 1), (Some(OnDrop::Cancel), 0)] {
        let captured = Arc::new(());
        let held = Arc::clone(&captured);
        let value = Arc::new(());
        let flushed = Arc::new(Mutex::new(0));
        let log = Arc::clone(&flushed);
        let hand = ManualClock::new();
        let mut builder = Coalescer::last().window(ms(10)).driver(Driver::manual(&hand));
        if let Some(on_drop) = on_drop {
            builder = builder.on_drop(on_drop);
        }
        let keys = builder
            .start(move |batch: Batch<char, Arc<()>>| {
                let _held = &held;
                *log.lock().unwrap() += batch.len();
            })
            .unwrap();
        keys.try_add('a', Arc::clone(&value)).unwrap();
        let other = keys.clone();
        drop(keys);
        assert_eq!(*flushed.lock().unwrap(), 0);
        drop(other);
        assert_eq!(*flushed.lock().unwrap(), expected, "{on_drop:?}");
        assert_eq!((Arc::strong_count(&captured), Arc::strong_count(&value)), (1, 1));
        assert_eq!(hand.timers(), 0);
    }
}

#[test]
fn a_batch_is_bounded_by_default() {
    let hand = ManualClock::new();
    let (sender, seen) = std::sync::mpsc::channel();
    let keys = Coalescer::set()
        .window(ms(10))
        .driver(Driver::manual(&hand))
        .start(move |batch: Batch<u32, ()>| sender.send((batch.cause(), batch.len())).unwrap())
        .unwrap();
    (0..10_001).for_each(|key| keys.try_insert(key).unwrap());
    drop(keys);
    let expected = [(FlushCause::Size, 10_000), (FlushCause::Finish, 1)];
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_limiter_paces_batches() {
    let hand = ManualClock::new();
    let limiter =
        Limiter::builder(Quota::per_second(10).burst(2)).clock(hand.clock()).build().unwrap();
    let flushed = Arc::new(Mutex::new(Vec::new()));
    let (log, clock) = (Arc::clone(&flushed), hand.clone());
    let keys = Coalescer::set()
        .window(ms(0))
        .limit(&limiter)
        .driver(Driver::manual(&hand))
        .start(move |batch: Batch<u64, ()>| {
            let at = clock.now().as_nanos() / 1_000_000;
            log.lock().unwrap().push((at, batch.into_keys().collect::<Vec<_>>()));
        })
        .unwrap();
    for at in [0, 10, 20, 30, 40, 50] {
        hand.set(Tick::from_millis(at));
        keys.try_insert(at).unwrap();
    }
    hand.advance(ms(1_000));
    let expected = [(0, vec![0]), (10, vec![10]), (100, vec![20, 30, 40, 50])];
    assert_eq!(*flushed.lock().unwrap(), expected);
    assert_eq!(hand.timers(), 0);
}

#[test]
fn public_types_are_shareable_and_printable() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    shared::<Coalescer<String, u64>>();
    shared::<Batch<String, u64>>();
    shared::<tollgate::Add<String, u64>>();
    shared::<tollgate::AddError<String, u64>>();
    shared::<tollgate::FlushPanicked>();
    shared::<tollgate::Debouncer<String>>();
    shared::<tollgate::DebouncerBuilder>();
}

//! The action of a coalescer: the thread that runs it, the calls that it may make, and its panics.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tollgate::{Batch, Coalescer, Driver, FlushCause, ManualClock, WeakCoalescer};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_flush_that_panics_is_reported_with_its_size_and_the_next_one_runs() {
    let hand = ManualClock::new();
    let (seen, reports) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (log, told) = (Arc::clone(&seen), Arc::clone(&reports));
    let keys = Coalescer::set()
        .max_size(2)
        .driver(Driver::manual(&hand))
        .on_panic(move |panicked| {
            told.lock().unwrap().push((panicked.entries(), panicked.message().to_owned()));
        })
        .start(move |batch: Batch<i32, ()>| {
            let keys: Vec<_> = batch.into_keys().collect();
            assert!(keys != [1, 2], "one and two");
            log.lock().unwrap().push(keys);
        })
        .unwrap();
    (0..6).for_each(|n| keys.try_insert(n + 1).unwrap());
    assert_eq!(*seen.lock().unwrap(), [[3, 4], [5, 6]]);
    assert_eq!(*reports.lock().unwrap(), [(2, "one and two".to_owned())]);
    assert_eq!(keys.panics(), 1);
}

#[test]
fn a_fold_that_panics_reaches_who_adds_and_nobody_else() {
    let hand = ManualClock::new();
    let (sender, seen) = std::sync::mpsc::channel();
    let sums = Coalescer::fold(|held: &mut u32, new: u32| *held = held.checked_add(new).unwrap())
        .window(ms(10))
        .driver(Driver::manual(&hand))
        .start(move |batch: Batch<char, u32>| sender.send(batch.into_entries()).unwrap())
        .unwrap();
    sums.try_add('a', u32::MAX).unwrap();
    let add = || sums.try_add('a', 1);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(add)).unwrap_err();
    sums.try_add('b', 1).unwrap();
    sums.try_add('b', 1).unwrap();
    hand.advance(ms(10));
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [[('a', u32::MAX), ('b', 2)]]);
    assert_eq!(sums.panics(), 0);
}

#[test]
fn an_action_may_add_to_its_own_coalescer() {
    let hand = ManualClock::new();
    let handle: Arc<Mutex<Option<WeakCoalescer<u32, ()>>>> = Arc::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (own, log) = (Arc::clone(&handle), Arc::clone(&seen));
    let keys = Coalescer::set()
        .max_size(2)
        .driver(Driver::manual(&hand))
        .start(move |batch: Batch<u32, ()>| {
            let keys: Vec<_> = batch.into_keys().collect();
            let own = own.lock().unwrap().as_ref().unwrap().upgrade().unwrap();
            if keys[0] == 1 {
                assert!(own.is_running());
                own.try_insert(10).unwrap();
                own.insert(11).block().unwrap();
                own.try_insert(10).unwrap(); // it is there already
                assert!(own.try_insert(12).unwrap_err().is_full());
                // The action does not wait for itself.
                let error = own.insert(12).block().unwrap_err();
                assert!(error.to_string().contains("cannot wait for itself to finish"), "{error}");
            }
            log.lock().unwrap().push(keys);
        })
        .unwrap();
    *handle.lock().unwrap() = Some(keys.downgrade());
    keys.try_insert(1).unwrap();
    keys.try_insert(2).unwrap();
    assert_eq!(*seen.lock().unwrap(), [[1, 2], [10, 11]]);
    assert_eq!(keys.panics(), 0);
    drop(keys);
    assert!(handle.lock().unwrap().as_ref().unwrap().upgrade().is_none());
    assert_eq!(Arc::strong_count(&seen), 1, "the action is dropped with the last handle");
}

#[test]
fn an_action_may_stop_its_own_coalescer() {
    let hand = ManualClock::new();
    let handle: Arc<Mutex<Option<WeakCoalescer<u32, ()>>>> = Arc::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (own, log) = (Arc::clone(&handle), Arc::clone(&seen));
    let keys = Coalescer::set()
        .max_size(2)
        .driver(Driver::manual(&hand))
        .start(move |batch: Batch<u32, ()>| {
            log.lock().unwrap().push((batch.cause(), batch.into_keys().collect::<Vec<_>>()));
            let own = own.lock().unwrap().as_ref().unwrap().upgrade().unwrap();
            let _late = own.try_insert(3);
            let error = own.stop_and_wait(ms(10)).block().unwrap_err();
            assert!(error.is_inside());
        })
        .unwrap();
    *handle.lock().unwrap() = Some(keys.downgrade());
    keys.try_insert(1).unwrap();
    keys.try_insert(2).unwrap();
    // Keys that were added before the stop are flushed after it.
    let expected = [(FlushCause::Size, vec![1, 2]), (FlushCause::Finish, vec![3])];
    assert_eq!(*seen.lock().unwrap(), expected);
    keys.stop_and_wait(ms(0)).block().unwrap();
    assert_eq!(keys.panics(), 0);
}

#[test]
fn values_that_call_back_when_they_are_dropped_do_not_block() {
    struct Calls(Option<Coalescer<u32, Calls>>);
    impl Drop for Calls {
        fn drop(&mut self) {
            if let Some(keys) = &self.0 {
                let _any = (keys.len(), keys.try_add(9, Calls(None)));
            }
        }
    }
    let hand = ManualClock::new();
    let keys = Coalescer::last()
        .window(ms(10))
        .driver(Driver::manual(&hand))
        .start(|_: Batch<u32, Calls>| {})
        .unwrap();
    keys.try_add(1, Calls(Some(keys.clone()))).unwrap();
    keys.try_add(1, Calls(Some(keys.clone()))).unwrap(); // drops the first
    assert_eq!(keys.len(), 2);
    hand.advance(ms(10));
    keys.try_add(1, Calls(Some(keys.clone()))).unwrap();
    drop(keys.discard());
    assert_eq!(keys.len(), 1);
    keys.stop();
    assert!(keys.try_add(2, Calls(Some(keys.clone()))).is_err());
}

#[test]
fn a_thread_drives_it_by_default() {
    let (sender, seen) = std::sync::mpsc::channel();
    let keys = Coalescer::set()
        .quiet(ms(1))
        .start(move |batch: Batch<char, ()>| {
            sender.send((batch.cause(), batch.len())).unwrap();
        })
        .unwrap();
    keys.try_insert('a').unwrap();
    assert_eq!(seen.recv().unwrap(), (FlushCause::Quiet, 1));
    keys.try_insert('b').unwrap();
    keys.stop_and_wait(ms(10_000)).block().unwrap();
    assert_eq!(seen.try_iter().map(|(_, len)| len).sum::<usize>(), 1);
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn an_action_may_be_a_future_on_paused_time() {
    let clock = tollgate::Clock::tokio();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (flushed, time) = (Arc::clone(&log), clock.clone());
    let keys = Coalescer::set()
        .window(ms(100))
        .max_size(3)
        .start_async(move |batch: Batch<char, ()>| {
            let (flushed, time) = (Arc::clone(&flushed), time.clone());
            async move {
                let began = time.now().as_nanos() / 1_000_000;
                // As long as a call to a slow database.
                let _slow = tokio::time::timeout(ms(500), std::future::pending::<()>()).await;
                flushed.lock().unwrap().push((began, batch.into_keys().collect::<String>()));
            }
        })
        .unwrap();
    for key in ['a', 'b'] {
        keys.try_insert(key).unwrap();
    }
    tokio::time::advance(ms(200)).await;
    tokio::task::yield_now().await;
    // The first batch is under way, so these are the next, and one waits.
    for key in ['c', 'd', 'e', 'f'] {
        keys.insert(key).await.unwrap();
    }
    let done = clock.now();
    assert!(
        done >= tollgate::Tick::from_millis(600),
        "the fourth key waited for the first flush: {done:?}"
    );
    keys.stop_and_wait(ms(5_000)).await.unwrap();
    let flushed: Vec<String> =
        log.lock().unwrap().iter().map(|(_, keys): &(u64, String)| keys.clone()).collect();
    assert_eq!(flushed, ["ab", "cde", "f"]);
}

#[cfg(feature = "tokio")]
#[test]
fn an_action_that_is_a_future_needs_a_runtime() {
    let none = Coalescer::<char, ()>::set().window(ms(1)).start_async(|_| async {});
    assert_eq!(none.unwrap_err(), tollgate::NoRuntime.into());
    let thread = Coalescer::<char, ()>::set().window(ms(1)).driver(Driver::thread());
    let error = thread.start_async(|_| async {}).unwrap_err().to_string();
    assert!(error.starts_with("an async action needs a tokio runtime;"), "{error}");
}

//! Whatever foreign code does (wakers, keys and values that panic or call back, runtimes without
//! timers, actions that never rest), waiting calls continue.
#![cfg(feature = "tokio")]

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver, Sender},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};
use tokio::runtime::{Builder, Handle, Runtime};
use tollgate::{
    Admission, AdmissionError, Coalescer, Debouncer, Driver, Fired, KeyedDebouncer, Limiter,
    ManualClock, Quota, Refused, WeakCoalescer, WeakDebouncer, WhenKeysFull,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// Returns the handle of a runtime that a thread drives, for as long as the tests run.
fn background() -> Handle {
    let runtime = runtime();
    let handle = runtime.handle().clone();
    thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
}

/// Runs `run` on a thread of its own, and fails if that takes too long.
fn ends<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || sender.send(run()));
    ended.recv_timeout(5 * SECOND).expect("it ends, and well")
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("of the waker");
    }
}

struct Notes(Sender<()>);

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        self.0.send(()).unwrap_or(());
    }
}

/// Returns a waker that panics, one that records its wakes, and these records.
fn wakers() -> (Waker, Waker, Receiver<()>) {
    let (sender, notes) = mpsc::channel();
    (Waker::from(Arc::new(Panics)), Waker::from(Arc::new(Notes(sender))), notes)
}

#[test]
fn a_task_that_always_has_something_to_do_lets_others_have_their_turn() {
    ends(|| {
        runtime().block_on(async {
            let myself: Arc<OnceLock<WeakCoalescer<u8, ()>>> = Arc::default();
            let again = Arc::clone(&myself);
            let busy = Coalescer::set()
                .window(Duration::ZERO)
                .driver(Driver::tokio().unwrap())
                .start(move |_| {
                    let busy = again.get().and_then(WeakCoalescer::upgrade);
                    busy.map_or(Ok(()), |busy| busy.try_insert(1)).unwrap_or(());
                })
                .unwrap();
            myself.get_or_init(|| busy.downgrade());
            busy.try_insert(1).unwrap();
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            busy.stop();
        });
    });
}

#[test]
fn a_waker_that_panics_keeps_nobody_from_hearing_of_the_end() {
    let hand = ManualClock::new();
    let (end, ended) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    let slow = Debouncer::builder(MS)
        .leading()
        .driver(Driver::manual(&hand))
        .start(move |_: Fired<u8>| {
            begin.send(()).unwrap();
            ended.recv().unwrap_or(());
        })
        .unwrap();
    let inside = slow.clone();
    let runs = thread::spawn(move || inside.trigger(1));
    begun.recv().unwrap();
    let (panics, notes, noted) = wakers();
    let mut first = pin!(slow.stop_and_wait(SECOND));
    let mut second = pin!(slow.stop_and_wait(SECOND));
    assert!(first.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&notes)).is_pending());
    drop(end);
    noted.recv_timeout(5 * SECOND).unwrap();
    assert!(runs.join().unwrap(), "it does not reach who ran the action");
    assert_eq!(second.as_mut().poll(&mut Context::from_waker(&notes)), Poll::Ready(Ok(())));
}

#[test]
fn a_waker_that_panics_keeps_nobody_in_the_line_of_a_coalescer() {
    let hand = ManualClock::new();
    let keys = Coalescer::set()
        .max_size(2)
        .at_most_every(SECOND)
        .driver(Driver::manual(&hand))
        .start(|_| ())
        .unwrap();
    (0..4).for_each(|key| keys.try_insert(key).unwrap());
    let (panics, notes, noted) = wakers();
    let (mut first, mut second) = (pin!(keys.insert(4)), pin!(keys.insert(5)));
    assert!(first.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&notes)).is_pending());
    hand.advance(SECOND);
    noted.try_recv().unwrap();
    assert!(second.as_mut().poll(&mut Context::from_waker(&notes)).is_ready());
}

/// A key that cannot be cloned if it is 1.
#[derive(PartialEq, Eq, Hash)]
struct Key(u8);

impl Clone for Key {
    fn clone(&self) -> Self {
        assert_ne!(self.0, 1, "of the key");
        Self(self.0)
    }
}

#[test]
fn a_key_whose_clone_panics_stops_nobody() {
    let hand = ManualClock::new();
    for driver in [Driver::thread(), Driver::manual(&hand), Driver::on(background())] {
        let name = format!("{driver:?}");
        let (sender, ran) = mpsc::channel();
        let (told, reports) = mpsc::channel();
        let keys = KeyedDebouncer::builder(SECOND)
            .leading()
            .driver(driver)
            .on_panic(move |panicked| told.send(panicked.message().to_owned()).unwrap_or(()))
            .start(move |key: Key, _| sender.send(key.0).unwrap_or(()))
            .unwrap();
        keys.trigger(Key(1), ()).unwrap();
        assert!(reports.recv_timeout(5 * SECOND).unwrap().contains("of the key"), "{name}");
        keys.trigger(Key(2), ()).unwrap();
        assert_eq!(ran.recv_timeout(5 * SECOND), Ok(2), "{name}");
        assert_eq!(keys.panics(), 1, "{name}");
        assert!(!keys.is_stopped(), "{name}");
    }
}

#[test]
fn waiting_for_the_end_in_a_runtime_without_timers_is_an_error() {
    let (end, ended) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    let slow = Debouncer::builder(MS)
        .leading()
        .start(move |_: Fired<u8>| {
            begin.send(()).unwrap();
            ended.recv().unwrap_or(());
        })
        .unwrap();
    slow.trigger(1);
    begun.recv().unwrap();
    let without = Builder::new_current_thread().build().unwrap();
    let answer = without.block_on(slow.stop_and_wait(SECOND));
    assert!(answer.unwrap_err().to_string().contains("timers"));
    drop(end);
}

#[test]
fn admission_in_a_runtime_without_timers_is_an_error_and_gives_back() {
    let rate = Limiter::new(Quota::per_hour(1)).unwrap();
    let admission = Admission::new().rate(&rate);
    drop(admission.try_acquire().unwrap());
    let before = rate.peek().retry_at();
    let without = Builder::new_current_thread().build().unwrap();
    let answer = without.block_on(admission.acquire(Duration::MAX));
    assert!(matches!(answer, Err(AdmissionError::Rate(Refused::NoRuntime(_)))));
    assert_eq!(rate.peek().retry_at(), before);
}

#[test]
fn a_flush_counts_what_fires_early_to_make_room() {
    let hand = ManualClock::new();
    let myself: Arc<OnceLock<KeyedDebouncer<u8, u8>>> = Arc::default();
    let (sender, seen) = mpsc::channel();
    let inside = Arc::clone(&myself);
    let keys = KeyedDebouncer::builder(SECOND)
        .max_keys(1)
        .when_full(WhenKeysFull::FireFirst)
        .driver(Driver::manual(&hand))
        .start(move |key, _| {
            let keys = inside.get().unwrap();
            if key == 0 {
                (1..3).for_each(|key| keys.trigger(key, 0).unwrap());
                let said = [1, 2, 3].map(|key| (keys.is_pending(&key), keys.flush(&key)));
                sender.send((said, keys.flush_all())).unwrap_or(());
            }
        })
        .unwrap();
    myself.get_or_init(|| keys.clone());
    keys.trigger(0, 0).unwrap();
    hand.advance(SECOND);
    let said = [(true, true), (true, true), (false, false)];
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [(said, 2)]);
    keys.stop();
}

#[test]
fn a_pace_without_end_does_not_lose_what_waits_for_it() {
    let (sender, flushed) = mpsc::channel();
    let hand = ManualClock::new();
    let keys = Coalescer::set()
        .max_size(1)
        .at_most_every(Duration::MAX)
        .driver(Driver::manual(&hand))
        .start(move |batch| sender.send(batch.into_keys().collect::<Vec<_>>()).unwrap_or(()))
        .unwrap();
    (1..3).for_each(|key| keys.try_insert(key).unwrap());
    assert_eq!(flushed.try_iter().collect::<Vec<_>>(), [[1]]);
    let mut ended = pin!(keys.stop_and_wait(SECOND));
    let mut context = Context::from_waker(Waker::noop());
    assert!(ended.as_mut().poll(&mut context).is_pending(), "the second one is still to come");
    hand.advance(SECOND);
    let Poll::Ready(answer) = ended.as_mut().poll(&mut context) else { panic!("time is over") };
    assert!(answer.is_err());
}

type Myself = Arc<OnceLock<WeakDebouncer<CallsBack>>>;

/// A value that uses its debouncer when it is dropped.
struct CallsBack(Myself);

impl Drop for CallsBack {
    fn drop(&mut self) {
        if let Some(debouncer) = self.0.get().and_then(WeakDebouncer::upgrade) {
            debouncer.flush();
            debouncer.cancel();
            debouncer.stop_and_wait(MS).block().unwrap_or(());
        }
    }
}

#[test]
fn values_that_call_back_when_they_are_dropped_find_no_lock() {
    ends(|| {
        let hand = ManualClock::new();
        for driver in [Driver::thread(), Driver::on(background()), Driver::manual(&hand)] {
            let is_manual = format!("{driver:?}").contains("manual");
            for how in 0..6 {
                let myself: Myself = Arc::default();
                let debouncer = Debouncer::builder(60 * SECOND)
                    .driver(driver.clone())
                    .start(|_: Fired<CallsBack>| ())
                    .unwrap();
                myself.get_or_init(|| debouncer.downgrade());
                debouncer.trigger(CallsBack(Arc::clone(&myself)));
                match how {
                    0 => assert!(debouncer.trigger(CallsBack(Arc::clone(&myself)))),
                    1 => assert!(debouncer.cancel()),
                    2 => assert!(debouncer.flush()),
                    3 => debouncer.stop(),
                    4 => debouncer.finish(),
                    _ => hand.advance(60 * SECOND),
                }
                let end = debouncer.stop_and_wait(SECOND);
                // Nothing runs on a manual clock now, so the stop does not have to wait.
                assert!(end.block().is_ok(), "how {how}, manual {is_manual}");
            }
        }
    });
}

#[test]
fn stopping_from_many_threads_waits_for_the_run_under_way() {
    for _ in 0..100 {
        let runs = Arc::new(AtomicBool::new(false));
        let inside = Arc::clone(&runs);
        let busy = Debouncer::builder(Duration::from_micros(50))
            .both_edges()
            .start(move |_: Fired<u8>| {
                // ORDERING: Relaxed. The end of the wait orders it after the run.
                inside.store(true, Relaxed);
                thread::yield_now();
                inside.store(false, Relaxed);
            })
            .unwrap();
        thread::scope(|scope| {
            scope.spawn(|| (0..20).take_while(|value| busy.trigger(*value)).count());
            for _ in 0..2 {
                scope.spawn(|| {
                    thread::yield_now();
                    busy.stop_and_wait(5 * SECOND).block().unwrap();
                    // ORDERING: as above.
                    assert!(!runs.load(Relaxed));
                });
            }
        });
    }
}

#[test]
fn a_future_that_panics_on_its_first_poll_is_one_panic() {
    runtime().block_on(async {
        let (sender, told) = mpsc::channel();
        let panics = Debouncer::builder(MS)
            .leading()
            .on_panic(move |panicked| sender.send(panicked.message().to_owned()).unwrap_or(()))
            .start_async(|_: Fired<u8>| poll_fn(|_| panic!("of the future")))
            .unwrap();
        panics.trigger(1);
        while panics.panics() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["of the future"]);
        assert!(catch_unwind(AssertUnwindSafe(|| panics.stop())).is_ok());
    });
}

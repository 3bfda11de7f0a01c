//! The drivers: a thread with the real clock, tokio with its time paused, and runtimes that go away.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};
use tollgate::{Clock, Debouncer, DebouncerBuilder, Driver, Fired, ManualClock, OnDrop};

/// Far longer than any step here takes: a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3_600);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The end of its channel shows that it was dropped.
struct Captured(#[allow(dead_code, reason = "its drop is what counts")] mpsc::Sender<()>);

fn captured() -> (Captured, mpsc::Receiver<()>) {
    let (sender, gone) = mpsc::channel();
    (Captured(sender), gone)
}

fn is_gone(gone: &mpsc::Receiver<()>) -> bool {
    gone.try_recv() == Err(mpsc::TryRecvError::Disconnected)
}

fn waits_until_gone(gone: &mpsc::Receiver<()>) {
    assert_eq!(gone.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn a_thread_runs_the_action_after_the_delay() {
    let clock = Clock::monotonic();
    let (sender, ran) = mpsc::channel();
    let (delay, theirs) = (ms(20), clock.clone());
    let debouncer = Debouncer::new(delay, move |fired: Fired<u64>| {
        sender.send((thread::current().id(), theirs.now(), fired)).unwrap();
    })
    .unwrap();
    for burst in 0..3 {
        for value in 0..100 {
            assert!(debouncer.trigger(100 * burst + value));
        }
        let (by, at, fired) = ran.recv_timeout(LONG).unwrap();
        assert_ne!(by, thread::current().id());
        assert!(at.since(fired.triggered_at()) >= delay);
        assert_eq!(*fired.value(), 100 * burst + 99);
    }
    assert!(ran.try_recv().is_err());
}

#[test]
fn a_flush_and_a_finish_wake_a_thread_that_sleeps() {
    let (sender, ran) = mpsc::channel();
    let debouncer =
        Debouncer::new(HOUR, move |fired: Fired<u64>| sender.send(fired.into_value()).unwrap())
            .unwrap();
    debouncer.trigger(1);
    assert!(debouncer.flush());
    assert_eq!(ran.recv_timeout(LONG), Ok(1));
    assert!(!debouncer.flush());
    debouncer.trigger(2);
    assert_eq!(debouncer.finish_and_wait(LONG).block(), Ok(()));
    assert_eq!(ran.try_recv(), Ok(2));
    assert_eq!(ran.try_recv(), Err(mpsc::TryRecvError::Disconnected), "the action is released");
    assert!(debouncer.is_stopped() && !debouncer.trigger(3) && !debouncer.is_pending());
}

/// An action that reports its start and waits until it may end.
fn slow(
    builder: DebouncerBuilder,
) -> (Debouncer<u64>, mpsc::Receiver<Fired<u64>>, mpsc::Sender<()>) {
    let (sender, begun) = mpsc::channel();
    let (may_end, gate) = mpsc::channel();
    let action = move |fired| {
        sender.send(fired).unwrap();
        gate.recv().unwrap();
    };
    (builder.start(action).unwrap(), begun, may_end)
}

#[test]
fn what_fires_while_the_action_is_slow_is_one_run_with_the_last_value() {
    let (debouncer, begun, may_end) = slow(Debouncer::builder(HOUR));
    debouncer.trigger(1);
    debouncer.flush();
    assert_eq!(begun.recv_timeout(LONG).unwrap().into_value(), 1);
    for value in 2..=5 {
        debouncer.trigger(value);
        assert!(debouncer.flush());
    }
    assert!(debouncer.is_running() && debouncer.is_pending());
    may_end.send(()).unwrap();
    let merged = begun.recv_timeout(LONG).unwrap();
    assert_eq!((*merged.value(), merged.triggers()), (5, 4));
    may_end.send(()).unwrap();
    assert_eq!(debouncer.finish_and_wait(LONG).block(), Ok(()));
    assert!(begun.try_recv().is_err());
}

#[test]
fn a_stop_waits_for_a_run_under_way_but_not_for_ever() {
    let (debouncer, begun, may_end) = slow(Debouncer::builder(HOUR).leading());
    debouncer.trigger(1);
    begun.recv_timeout(LONG).unwrap();
    let late = debouncer.stop_and_wait(ms(5)).block().unwrap_err();
    assert!(!late.is_inside() && late.to_string().contains("5ms"));
    assert!(debouncer.is_running() && debouncer.is_stopped());
    may_end.send(()).unwrap();
    assert_eq!(debouncer.stop_and_wait(LONG).block(), Ok(()));
    assert!(begun.recv().is_err(), "the action is released");
}

#[test]
fn dropping_the_last_handle_forgets_or_runs_what_is_pending_and_releases_the_action() {
    let hand = ManualClock::new();
    for (driver, name) in [(Driver::thread(), "thread"), (Driver::manual(&hand), "manual")] {
        for (on_drop, expected) in [(OnDrop::Cancel, vec![]), (OnDrop::Flush, vec![7])] {
            let (sender, ran) = mpsc::channel();
            let first = Debouncer::builder(HOUR)
                .driver(driver.clone())
                .on_drop(on_drop)
                .start(move |fired: Fired<u64>| sender.send(fired.into_value()).unwrap())
                .unwrap();
            let second = first.clone();
            first.trigger(7);
            drop(first);
            assert!(second.is_pending());
            drop(second);
            // The channel ends when the action is dropped.
            let ran: Vec<u64> = ran.iter().collect();
            assert_eq!(ran, expected, "{name}, {on_drop:?}");
        }
    }
    assert_eq!(hand.timers(), 0);
}

#[test]
fn an_action_may_own_the_last_handle_and_drop_it() {
    let hand = ManualClock::new();
    for driver in [Driver::thread(), Driver::manual(&hand)] {
        for on_drop in [OnDrop::Cancel, OnDrop::Flush] {
            let slot: Arc<Mutex<Option<Debouncer<u64>>>> = Arc::default();
            let ((captured, gone), own) = (captured(), Arc::clone(&slot));
            let debouncer = Debouncer::builder(HOUR)
                .leading()
                .driver(driver.clone())
                .on_drop(on_drop)
                .start(move |_| {
                    let _ = &captured;
                    drop(own.lock().unwrap().take());
                })
                .unwrap();
            let weak = debouncer.downgrade();
            *slot.lock().unwrap() = Some(debouncer);
            assert!(weak.trigger(1));
            waits_until_gone(&gone);
            assert!(weak.upgrade().is_none());
        }
    }
}

#[test]
fn a_panic_is_counted_and_reported_and_the_next_run_comes() {
    let hand = ManualClock::new();
    for driver in [Driver::thread(), Driver::manual(&hand)] {
        let (sender, ran) = mpsc::channel();
        let (reporter, reports) = mpsc::channel();
        let debouncer = Debouncer::builder(HOUR)
            .driver(driver)
            .on_panic(move |panicked| {
                reporter.send(panicked.message().to_owned()).unwrap();
                assert!(panicked.message() != "twice", "reporters may panic, too");
            })
            .start(move |fired: Fired<&str>| match fired.into_value() {
                "fine" => sender.send(()).unwrap(),
                value => panic!("{value}"),
            })
            .unwrap();
        for value in ["once", "twice"] {
            debouncer.trigger(value);
            debouncer.flush();
            assert_eq!(reports.recv_timeout(LONG).unwrap(), value);
        }
        debouncer.trigger("fine");
        debouncer.flush();
        ran.recv_timeout(LONG).unwrap();
        assert_eq!(debouncer.panics(), 2);
        debouncer.stop_and_wait(LONG).block().unwrap();
        assert!(reports.try_recv() == Err(mpsc::TryRecvError::Disconnected));
    }
}

/// Panics when it is dropped, after its channel has ended.
struct Touchy(Captured);

impl Drop for Touchy {
    fn drop(&mut self) {
        let _ = &self.0;
        if !thread::panicking() {
            panic!("touchy");
        }
    }
}

#[test]
fn what_panics_when_it_is_dropped_holds_nobody_up() {
    // The value that the action captured.
    let (captured, gone) = captured();
    let touchy = Touchy(captured);
    let debouncer =
        Debouncer::new(HOUR, move |_: Fired<()>| assert!(!thread::panicking(), "{:p}", &touchy))
            .unwrap();
    assert_eq!(debouncer.stop_and_wait(LONG).block(), Ok(()));
    assert!(is_gone(&gone));
    assert_eq!(debouncer.panics(), 1);
    // The value of the panic.
    let (captured, gone) = self::captured();
    let mut touchy = Some(Touchy(captured));
    let debouncer = Debouncer::new(HOUR, move |_: Fired<()>| {
        if let Some(touchy) = touchy.take() {
            std::panic::panic_any(touchy);
        }
    })
    .unwrap();
    debouncer.trigger(());
    debouncer.flush();
    waits_until_gone(&gone);
    debouncer.trigger(());
    assert_eq!(debouncer.finish_and_wait(LONG).block(), Ok(()));
    assert_eq!(debouncer.panics(), 1);
}

/// A value that calls its debouncer when it is dropped: no lock may be held then.
struct Meddler(Option<Debouncer<Option<Meddler>>>);

impl Drop for Meddler {
    fn drop(&mut self) {
        if let Some(debouncer) = &self.0 {
            assert!(debouncer.panics() == 0);
            debouncer.trigger(None);
        }
    }
}

#[test]
fn values_are_dropped_without_the_lock() {
    let hand = ManualClock::new();
    type Verb = fn(&Debouncer<Option<Meddler>>, &ManualClock);
    let verbs: [(&str, Verb); 6] = [
        ("trigger", |debouncer, _| assert!(debouncer.trigger(None))),
        ("cancel", |debouncer, _| assert!(debouncer.cancel())),
        ("stop", |debouncer, _| debouncer.stop()),
        ("finish", |debouncer, _| debouncer.finish()),
        ("time", |_, hand| hand.advance(ms(1_000))),
        ("flush", |debouncer, _| assert!(debouncer.flush())),
    ];
    for (name, verb) in verbs {
        for leading in [false, true] {
            let builder = Debouncer::builder(ms(100)).driver(Driver::manual(&hand));
            let builder = if leading { builder.both_edges() } else { builder };
            let debouncer = builder.start(|_: Fired<Option<Meddler>>| {}).unwrap();
            debouncer.trigger(None);
            debouncer.trigger(Some(Meddler(Some(debouncer.clone()))));
            verb(&debouncer, &hand);
            debouncer.stop();
            assert!(!debouncer.trigger(Some(Meddler(Some(debouncer.clone())))), "{name}");
        }
    }
}

#[cfg(feature = "tokio")]
mod on_tokio {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use tokio::runtime::{Builder, Runtime};
    use tollgate::Throttle;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().build().unwrap()
    }

    /// Lets all other tasks run until paused time has moved on by itself.
    async fn pass(time: Duration) {
        assert!(tokio::time::timeout(time, std::future::pending::<()>()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn it_follows_paused_time() {
        let clock = Clock::tokio();
        let begin = clock.now();
        let runs: Arc<Mutex<Vec<(u128, u64)>>> = Arc::default();
        let (log, theirs) = (Arc::clone(&runs), clock.clone());
        let debouncer = Debouncer::builder(ms(100))
            .max_wait(ms(250))
            .both_edges()
            .driver(Driver::tokio().unwrap())
            .start(move |fired: Fired<u64>| {
                let at_ms = theirs.now().since(begin).as_millis();
                log.lock().unwrap().push((at_ms, fired.into_value()));
            })
            .unwrap();
        for value in 0..5 {
            debouncer.trigger(value);
            pass(ms(60)).await;
        }
        pass(ms(2_000)).await;
        assert_eq!(*runs.lock().unwrap(), [(0, 0), (250, 4)]);
        assert!(!debouncer.is_pending());
    }

    #[tokio::test(start_paused = true)]
    async fn an_action_may_be_a_future_and_the_next_waits_for_it() {
        let (sender, ran) = mpsc::channel();
        let inside = Arc::new(AtomicU64::new(0));
        let clock = Clock::tokio();
        let begin = clock.now();
        let throttle = Throttle::builder(ms(100))
            .start_async(move |fired: Fired<u64>| {
                let (sender, inside, clock) = (sender.clone(), Arc::clone(&inside), clock.clone());
                async move {
                    // ORDERING: SeqCst. It is a test, and one thread.
                    assert_eq!(inside.fetch_add(1, SeqCst), 0);
                    sender
                        .send((clock.now().since(begin).as_millis(), fired.into_value()))
                        .unwrap();
                    pass(ms(250)).await;
                    inside.fetch_sub(1, SeqCst);
                }
            })
            .unwrap();
        for value in 0..10 {
            throttle.trigger(value);
            pass(ms(50)).await;
        }
        assert_eq!(throttle.finish_and_wait(LONG).await, Ok(()));
        let runs: Vec<(u128, u64)> = ran.iter().collect();
        let values: Vec<u64> = runs.iter().map(|run| run.1).collect();
        assert_eq!(values.first(), Some(&0));
        assert_eq!(values.last(), Some(&9));
        assert!(runs.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 250), "{runs:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_that_panics_or_waits_for_its_own_end_holds_nobody_up() {
        let slot: Arc<Mutex<Option<Debouncer<u64>>>> = Arc::default();
        let (sender, said) = mpsc::channel();
        let me = Arc::clone(&slot);
        let debouncer = Debouncer::builder(HOUR)
            .start_async(move |fired: Fired<u64>| {
                assert!(*fired.value() != 1, "before it is a future");
                let (me, sender) = (me.lock().unwrap().clone(), sender.clone());
                async move {
                    tokio::task::yield_now().await;
                    assert!(*fired.value() != 2, "inside the future");
                    let end = me.unwrap().stop_and_wait(LONG).await;
                    sender.send(end.unwrap_err().is_inside()).unwrap();
                }
            })
            .unwrap();
        *slot.lock().unwrap() = Some(debouncer.clone());
        for value in 1..=3 {
            debouncer.trigger(value);
            debouncer.flush();
            while debouncer.is_pending() || debouncer.is_running() {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(debouncer.panics(), 2);
        assert_eq!(said.try_recv(), Ok(true));
        assert_eq!(debouncer.stop_and_wait(LONG).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_is_awaited_at_most_as_long_as_said() {
        let (sender, begun) = mpsc::channel();
        let debouncer = Debouncer::builder(HOUR)
            .leading()
            .start_async(move |_: Fired<()>| {
                let sender = sender.clone();
                async move {
                    sender.send(()).unwrap();
                    pass(ms(500)).await;
                }
            })
            .unwrap();
        debouncer.trigger(());
        tokio::task::yield_now().await;
        begun.try_recv().unwrap();
        assert!(debouncer.stop_and_wait(ms(499)).await.is_err());
        assert_eq!(debouncer.stop_and_wait(ms(10)).await, Ok(()));
    }

    /// Asleep, with an action under way, idle: a runtime that shuts down stops the debouncer and
    /// releases everything.
    #[test]
    fn a_runtime_that_shuts_down_stops_what_it_drives() {
        for state in ["asleep", "running", "idle", "not yet polled"] {
            let runtime = runtime();
            let (captured, gone) = captured();
            let captured = Arc::new(captured);
            let debouncer = Debouncer::builder(HOUR)
                .driver(Driver::on(runtime.handle().clone()))
                .start_async(move |_: Fired<u64>| {
                    let captured = Arc::clone(&captured);
                    async move {
                        std::future::pending::<()>().await;
                        drop(captured);
                    }
                })
                .unwrap();
            if state != "idle" {
                debouncer.trigger(1);
            }
            if state == "running" {
                debouncer.flush();
            }
            if state != "not yet polled" {
                runtime.block_on(tokio::task::yield_now());
            }
            assert_eq!(debouncer.is_running(), state == "running");
            drop(runtime);
            if state == "idle" {
                debouncer.trigger(2); // discovers that the runtime is gone
            }
            assert!(is_gone(&gone), "{state}");
            assert!(debouncer.is_stopped() && !debouncer.is_pending(), "{state}");
            assert!(!debouncer.trigger(3) && !debouncer.flush(), "{state}");
            assert_eq!(debouncer.stop_and_wait(LONG).block(), Ok(()), "{state}");
        }
    }

    #[test]
    fn a_runtime_shut_down_under_a_finish_ends_the_wait() {
        let runtime = runtime();
        let debouncer = Debouncer::builder(HOUR)
            .driver(Driver::on(runtime.handle().clone()))
            .on_drop(OnDrop::Flush)
            .start(|_: Fired<u64>| {})
            .unwrap();
        debouncer.trigger(1);
        let end = debouncer.finish_and_wait(LONG);
        drop(debouncer);
        let waiter = thread::spawn(move || end.block());
        drop(runtime);
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }
}

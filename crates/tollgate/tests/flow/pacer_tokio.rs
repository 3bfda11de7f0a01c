//! A pacer in tasks, on tokio's paused time and on a manual clock.
#![cfg(feature = "tokio")]

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};
use tollgate::{Driver, ManualClock, Pacer, Queued, Quota, Tick};

fn ms(ms: u64) -> Tick {
    Tick::from_millis(ms)
}

const fn wait_ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A pacer of 10/s in this runtime.
fn ten(capacity: u64) -> Pacer {
    let driver = Driver::tokio().unwrap();
    Pacer::builder(Quota::per_second(10)).capacity(capacity).driver(driver).start().unwrap()
}

/// A pacer of 10/s on a manual clock.
fn by_hand(hand: &ManualClock) -> Pacer {
    let driver = Driver::manual(hand);
    Pacer::builder(Quota::per_second(10)).capacity(4).driver(driver).start().unwrap()
}

type Log = Arc<Mutex<Vec<(u64, u32)>>>;

fn note(log: &Log, pacer: &Pacer, name: u32) {
    log.lock().unwrap().push((pacer.clock().now().as_nanos() / 1_000_000, name));
}

#[tokio::test(start_paused = true)]
async fn waits_come_at_their_slots() {
    let pacer = ten(10);
    let log = Log::default();
    let tasks: Vec<_> = (0..5)
        .map(|name| {
            let (pacer, log) = (pacer.clone(), Arc::clone(&log));
            tokio::spawn(async move {
                pacer.wait().await.unwrap();
                note(&log, &pacer, name);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*log.lock().unwrap(), [(0, 0), (100, 1), (200, 2), (300, 3), (400, 4)]);
    assert_eq!(pacer.queued(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let pacer = ten(1);
    let (first, second, third) = tokio::join!(pacer.wait(), pacer.wait_n(1), pacer.wait());
    let slots = [first.unwrap(), second.unwrap()];
    assert_eq!(slots[1].since(slots[0]), wait_ms(100));
    assert!(third.unwrap_err().is_full());
    assert!(pacer.wait_n(3).await.unwrap_err().is_never());
}

#[tokio::test(start_paused = true)]
async fn closures_and_futures_run_at_their_slots_and_slow_futures_delay_nobody() {
    let pacer = ten(10);
    let log = Log::default();
    for name in 0..6 {
        let (inside, log) = (pacer.clone(), Arc::clone(&log));
        let queued = if name % 2 == 0 {
            pacer.run(move || note(&log, &inside, name)).is_ok()
        } else {
            let slow = async move {
                note(&log, &inside, name);
                tokio::time::timeout(wait_ms(1_000), std::future::pending::<()>())
                    .await
                    .unwrap_err();
                note(&log, &inside, 10 + name);
            };
            pacer.run_async(slow).is_ok()
        };
        assert!(queued);
    }
    // The end waits for the futures too: the last begins at 500 ms and takes a second.
    let begin = pacer.clock().now();
    pacer.stop_and_wait(Queued::Drain, wait_ms(5_000)).await.unwrap();
    assert_eq!(pacer.clock().now().since(begin).as_millis(), 1_500);
    let starts = [(0, 0), (100, 1), (200, 2), (300, 3), (400, 4), (500, 5)];
    let ends = [(1_100, 11), (1_300, 13), (1_500, 15)];
    // Timers of tokio tick in milliseconds, and may be one late.
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 9);
    for ((at, name), (expected, expected_name)) in log.iter().zip(starts.iter().chain(&ends)) {
        assert_eq!(name, expected_name);
        assert!((*expected..=expected + 2).contains(at), "{name} at {at} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_comes_too_late_is_told_and_nothing_starts_again() {
    let pacer = ten(10);
    pacer.run_async(std::future::pending()).unwrap();
    tokio::task::yield_now().await;
    let late = pacer.stop_and_wait(Queued::Drop, wait_ms(50)).await.unwrap_err();
    assert!(!late.is_inside());
}

#[tokio::test(start_paused = true)]
async fn futures_that_panic_are_reported_and_counted() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tells = Arc::clone(&told);
    let pacer = Pacer::builder(Quota::per_second(10))
        .driver(Driver::tokio().unwrap())
        .on_panic(move |panicked| tells.lock().unwrap().push(panicked.message().to_owned()))
        .start()
        .unwrap();
    pacer.run_async(async { panic!("in a future") }).unwrap();
    pacer.run(|| panic!("in a closure")).unwrap();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    pacer.run_async(async move { sender.send(()).unwrap() }).unwrap();
    receiver.await.unwrap();
    pacer.stop_and_wait(Queued::Drain, wait_ms(1_000)).await.unwrap();
    assert_eq!(*told.lock().unwrap(), ["in a future", "in a closure"]);
    assert_eq!(pacer.panics(), 2);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_told_of_the_end_or_served_before_it() {
    for (queued, served) in [(Queued::Drop, 1), (Queued::Drain, 4)] {
        let pacer = ten(10);
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let pacer = pacer.clone();
                tokio::spawn(async move { pacer.wait().await })
            })
            .collect();
        // Each has taken its slot.
        while pacer.queued() < 3 {
            tokio::task::yield_now().await;
        }
        let begin = pacer.clock().now();
        pacer.stop_and_wait(queued, wait_ms(1_000)).await.unwrap();
        let waited = pacer.clock().now().since(begin).as_millis();
        assert!((0..=2).contains(&(waited - 100 * (served - 1))), "{queued:?}: {waited} ms");
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count() as u128, served);
        assert!(answers.iter().flat_map(|answer| answer.as_ref().err()).all(|e| e.is_stopped()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_when_the_last_who_waits_leaves() {
    let pacer = ten(10);
    let _now = pacer.slot().unwrap();
    let mut wait = Box::pin(pacer.wait());
    assert!(poll_once(wait.as_mut()).await.is_none());
    let begin = pacer.clock().now();
    pacer.stop(Queued::Drain);
    drop(wait);
    pacer.stop_and_wait(Queued::Drain, wait_ms(1_000)).await.unwrap();
    assert_eq!(pacer.clock().now(), begin);
}

async fn poll_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    std::future::poll_fn(|context| match std::pin::Pin::new(&mut future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

struct Count(Mutex<u32>);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
    }
}

#[test]
fn a_future_dropped_after_any_number_of_polls_gives_its_place_back() {
    // Waits hold the slots at 100, 200 and 300 ms. One is polled `polls` times, with the clock
    // moving on by 30 ms in between, and dropped.
    for index in 0..3_u64 {
        for polls in 0..=12 {
            let hand = ManualClock::new();
            let pacer = by_hand(&hand);
            let count = Arc::new(Count(Mutex::new(0)));
            let waker = Waker::from(Arc::clone(&count));
            let mut context = Context::from_waker(&waker);
            let _now = pacer.slot().unwrap();
            let mut waits: Vec<_> = (0..3).map(|_| Box::pin(pacer.wait())).collect();
            for (other, wait) in waits.iter_mut().enumerate() {
                // A future that is never polled never has a place.
                if polls > 0 || other as u64 != index {
                    assert!(wait.as_mut().poll(&mut context).is_pending());
                }
            }
            let row = format!("wait {index}, {polls} polls");
            if polls == 0 {
                drop(waits.remove(usize::try_from(index).unwrap()));
                assert_eq!(pacer.queued(), 2, "{row}");
                assert_eq!(pacer.slot().unwrap().at(), ms(300), "{row}");
                continue;
            }
            let mut wait = waits.remove(usize::try_from(index).unwrap());
            let at = 100 * (index + 1);
            let mut served = false;
            for _ in 1..polls {
                hand.advance(wait_ms(30));
                let now = hand.now().as_nanos() / 1_000_000;
                served = wait.as_mut().poll(&mut context).is_ready();
                assert_eq!(served, now >= at, "{row}");
                if served {
                    break;
                }
            }
            drop(wait);
            let now = hand.now();
            let next = pacer.slot().unwrap().at();
            let expected = if served { ms(400).max(now) } else { ms(at) };
            assert_eq!(next, expected, "{row}");
            drop(waits);
            assert_eq!(pacer.queued(), u64::from(next > now), "{row}");
            assert_eq!(hand.timers(), 0, "{row}: no timer is left");
        }
    }
}

#[test]
fn a_waker_is_called_at_the_slot_and_at_the_stop() {
    let hand = ManualClock::new();
    let pacer = by_hand(&hand);
    let [first, second] = [0, 1].map(|_| Arc::new(Count(Mutex::new(0))));
    let _now = pacer.slot().unwrap();
    let (mut one, mut two) = (pin!(pacer.wait()), pin!(pacer.wait()));
    let wakers = [Waker::from(Arc::clone(&first)), Waker::from(Arc::clone(&second))];
    assert!(one.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
    assert!(two.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
    // Another task polls the second one now.
    assert!(two.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());
    hand.set(ms(100));
    assert_eq!((*first.0.lock().unwrap(), *second.0.lock().unwrap()), (1, 0));
    assert_eq!(one.as_mut().poll(&mut Context::from_waker(&wakers[0])), Poll::Ready(Ok(ms(100))));
    pacer.stop(Queued::Drop);
    assert_eq!((*first.0.lock().unwrap(), *second.0.lock().unwrap()), (1, 1));
    match two.as_mut().poll(&mut Context::from_waker(&wakers[1])) {
        Poll::Ready(Err(refused)) => assert!(refused.is_stopped()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_future_needs_a_runtime_and_says_so() {
    let pacer = Pacer::builder(Quota::per_second(10)).start().unwrap();
    let rejected = pacer.run_async(std::future::ready(())).unwrap_err();
    assert!(rejected.overflow().is_no_runtime());
    assert_eq!(
        rejected.to_string(),
        "the driver of this pacer runs no futures; start it with `Driver::tokio`, or `run` a closure"
    );
    let mut context = Context::from_waker(Waker::noop());
    let _now = pacer.slot().unwrap();
    match pin!(pacer.wait()).poll(&mut context) {
        Poll::Ready(Err(refused)) => assert!(refused.is_no_runtime()),
        other => panic!("{other:?}"),
    }
    assert_eq!(pacer.queued(), 0);
}

#[test]
fn a_runtime_that_shuts_down_releases_everything() {
    let owned = Arc::new(());
    let runtime = current_thread();
    let pacer = runtime.block_on(async {
        let pacer = ten(10);
        let held = Arc::clone(&owned);
        let running = async move {
            let _held = held;
            std::future::pending::<()>().await;
        };
        pacer.run_async(running).unwrap();
        let held = Arc::clone(&owned);
        pacer.run(move || drop(held)).unwrap();
        let (waits, held) = (pacer.clone(), Arc::clone(&owned));
        tokio::spawn(async move {
            let _held = held;
            waits.wait().await
        });
        while pacer.queued() < 2 {
            tokio::task::yield_now().await;
        }
        pacer
    });
    drop(runtime);
    // The task, the wait and the job that was queued are gone.
    assert_eq!((Arc::strong_count(&owned), pacer.queued()), (1, 0));
    assert!(pacer.is_stopped());
    assert!(pacer.run(|| ()).unwrap_err().overflow().is_stopped());
    for queued in [Queued::Drain, Queued::Drop] {
        assert_eq!(pacer.stop_and_wait(queued, Duration::ZERO).block(), Ok(()));
    }
    assert_eq!(pacer.panics(), 0);
}

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

/// A pacer of 10/s on a runtime, from outside.
fn ten_on(runtime: &tokio::runtime::Runtime) -> Pacer {
    let driver = Driver::on(runtime.handle().clone());
    Pacer::builder(Quota::per_second(10)).driver(driver).start().unwrap()
}

/// Queues a closure and a future that own something.
fn queue_both(pacer: &Pacer, owned: &Arc<()>) {
    let [in_call, in_task] = [0, 1].map(|_| Arc::clone(owned));
    assert!(pacer.run(move || drop(in_call)).is_ok());
    // If the runtime is gone, the first call has discovered that.
    drop(pacer.run_async(async move { drop(in_task) }));
}

#[test]
fn jobs_queued_on_a_runtime_that_is_gone_are_dropped_and_a_stop_ends_at_once() {
    for is_queued_before in [true, false] {
        for queued in [Queued::Drop, Queued::Drain] {
            let (owned, runtime) = (Arc::new(()), current_thread());
            let pacer = ten_on(&runtime);
            if is_queued_before {
                queue_both(&pacer, &owned);
                drop(runtime);
            } else {
                drop(runtime);
                queue_both(&pacer, &owned);
            }
            let row = format!("{is_queued_before}, {queued:?}");
            assert_eq!(pacer.stop_and_wait(queued, Duration::ZERO).block(), Ok(()), "{row}");
            assert_eq!((Arc::strong_count(&owned), pacer.queued()), (1, 0), "{row}");
        }
    }
}

#[test]
fn a_drain_on_a_runtime_that_nobody_drives_waits_and_a_drop_ends_it() {
    let (owned, runtime) = (Arc::new(()), current_thread());
    let pacer = ten_on(&runtime);
    queue_both(&pacer, &owned);
    pacer.stop_and_wait(Queued::Drain, Duration::ZERO).block().unwrap_err();
    assert_eq!(Arc::strong_count(&owned), 3);
    assert_eq!(pacer.stop_and_wait(Queued::Drop, Duration::ZERO).block(), Ok(()));
    assert_eq!(Arc::strong_count(&owned), 1);
}

#[test]
fn a_drain_of_those_who_wait_elsewhere_ends_when_the_runtime_is_gone() {
    let runtime = current_thread();
    let pacer = ten_on(&runtime);
    let _now = pacer.slot().unwrap();
    drop(runtime);
    let elsewhere = current_thread();
    elsewhere.block_on(async {
        let mut wait = Box::pin(pacer.wait());
        assert!(poll_once(wait.as_mut()).await.is_none());
        assert_eq!(pacer.stop_and_wait(Queued::Drain, Duration::ZERO).await, Ok(()));
        assert!(wait.await.unwrap_err().is_stopped());
    });
}

/// Checks, when it is dropped, whether the end was reported already.
struct Witness {
    told: Arc<Mutex<bool>>,
    was_told: Arc<Mutex<Option<bool>>>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        *self.was_told.lock().unwrap() = Some(*self.told.lock().unwrap());
    }
}

/// Lets the tasks of a runtime run: the worker, and the tasks that it has started.
async fn pass() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

struct Tell(Arc<Mutex<bool>>);

impl Wake for Tell {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() = true;
    }
}

#[test]
fn the_end_is_told_once_the_last_future_is_dropped_and_the_reporter_released() {
    for shuts_down in [false, true] {
        let runtime = current_thread();
        let told = Arc::new(Mutex::new(false));
        let [of_future, of_reporter] = [0, 1].map(|_| Arc::new(Mutex::new(None)));
        let [in_future, in_reporter] = [&of_future, &of_reporter]
            .map(|was| Witness { told: Arc::clone(&told), was_told: Arc::clone(was) });
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let pacer = Pacer::builder(Quota::per_second(10))
            .driver(Driver::on(runtime.handle().clone()))
            .on_panic(move |_| assert!(!*in_reporter.told.lock().unwrap()))
            .start()
            .unwrap();
        let job = async move {
            let _in_future = in_future;
            receiver.await.unwrap();
            panic!("at its end");
        };
        pacer.run_async(job).unwrap();
        runtime.block_on(pass());
        let waker = Waker::from(Arc::new(Tell(Arc::clone(&told))));
        let mut end = pin!(pacer.stop_and_wait(Queued::Drop, Duration::from_secs(3_600)));
        let inside = runtime.enter();
        assert!(end.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(inside);
        assert_eq!(*of_future.lock().unwrap(), None);
        if shuts_down {
            drop(runtime);
        } else {
            sender.send(()).unwrap();
            runtime.block_on(pass());
        }
        let row = format!("shuts down: {shuts_down}");
        assert!(*told.lock().unwrap(), "{row}");
        assert_eq!(*of_future.lock().unwrap(), Some(false), "{row}");
        assert_eq!(*of_reporter.lock().unwrap(), Some(false), "{row}");
        assert_eq!(pacer.panics(), u64::from(!shuts_down), "{row}");
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("in a drop");
    }
}

#[tokio::test(start_paused = true)]
async fn a_future_that_panics_when_it_is_dropped_is_counted_and_holds_nobody_up() {
    let pacer = ten(10);
    let owned = PanicsWhenDropped;
    // It is part of the future, and is dropped with it.
    let job = std::future::poll_fn(move |_| {
        let _owned = &owned;
        Poll::Ready(())
    });
    pacer.run_async(job).unwrap();
    pacer.stop_and_wait(Queued::Drain, wait_ms(1_000)).await.unwrap();
    assert_eq!(pacer.panics(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_waits_for_its_own_end_is_told_at_once() {
    let pacer = ten(10);
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let inside = pacer.clone();
    let job = async move {
        // Not only at its first poll.
        tokio::task::yield_now().await;
        sender.send(inside.stop_and_wait(Queued::Drain, Duration::MAX).await).unwrap();
    };
    pacer.run_async(job).unwrap();
    assert!(receiver.await.unwrap().unwrap_err().is_inside());
    pacer.stop_and_wait(Queued::Drain, wait_ms(1_000)).await.unwrap();
}

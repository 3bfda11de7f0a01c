//! Debouncers by key on threads and in tokio tasks.

use std::{collections::HashMap, sync::mpsc, thread, time::Duration};
use tollgate::KeyedDebouncer;

/// So long that it passes only if a test has failed.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_thread_runs_what_is_due_and_ends() {
    let (sender, runs) = mpsc::channel();
    let debouncer = KeyedDebouncer::new(Duration::from_millis(2), move |key: u32, fired| {
        let name = thread::current().name().map(str::to_owned);
        sender.send((key, fired.into_value(), name)).unwrap();
    })
    .unwrap();
    for (key, value) in [(1, "a"), (2, "b")] {
        debouncer.trigger(key, value).unwrap();
    }
    let mut seen = [runs.recv_timeout(LONG).unwrap(), runs.recv_timeout(LONG).unwrap()];
    seen.sort_unstable();
    assert_eq!(seen.each_ref().map(|(key, value, _)| (*key, *value)), [(1, "a"), (2, "b")]);
    assert_eq!(seen[0].2.as_deref(), Some("tollgate"));
    debouncer.stop_and_wait(LONG).block().unwrap();
    assert!(runs.recv().is_err(), "the action is released");
}

#[test]
fn no_trigger_of_many_threads_is_lost() {
    let (sender, runs) = mpsc::channel();
    let debouncer = KeyedDebouncer::builder(Duration::from_micros(50))
        .max_wait(Duration::from_micros(200))
        .start(move |key: u32, fired| sender.send((key, fired.triggers())).unwrap())
        .unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            let debouncer = debouncer.clone();
            scope.spawn(move || {
                for number in 0..5000 {
                    debouncer.trigger(number % 37, number).unwrap();
                }
            });
        }
    });
    debouncer.finish_and_wait(LONG).block().unwrap();
    assert_eq!((debouncer.len(), debouncer.is_stopped()), (0, true));
    let mut sums = HashMap::new();
    runs.iter().for_each(|(key, triggers)| *sums.entry(key).or_insert(0) += triggers);
    assert_eq!((sums.len(), sums.values().sum::<u64>()), (37, 20_000));
}

#[test]
fn after_a_stop_nothing_starts_whoever_triggers() {
    for _ in 0..50 {
        let (sender, runs) = mpsc::channel();
        let debouncer = KeyedDebouncer::builder(Duration::from_secs(3600))
            .leading()
            .start(move |key: u32, _| sender.send(key).unwrap())
            .unwrap();
        let stopped = thread::scope(|scope| {
            for first in [0, 100] {
                let debouncer = debouncer.clone();
                scope.spawn(move || {
                    (first..first + 100).all(|key| debouncer.trigger(key, ()).is_ok())
                });
            }
            debouncer.stop_and_wait(LONG).block()
        });
        stopped.unwrap();
        // The sender is gone with the action, so this list ends.
        assert!(runs.iter().count() <= 200);
    }
}

#[cfg(feature = "tokio")]
mod tokio_time {
    use super::LONG;
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };
    use tokio::{runtime::Handle, sync::Semaphore, task::yield_now, time::advance};
    use tollgate::{Clock, Driver, KeyedDebouncer, ManualClock, OnDrop};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The runs of an action, on paused time.
    struct Runs {
        clock: Clock,
        /// The key and the value of each run, and the millisecond in which it began.
        begun: Mutex<Vec<(u32, &'static str, u64)>>,
        /// Each permit ends one run.
        ends: Semaphore,
    }

    impl Runs {
        fn new() -> Arc<Self> {
            let ends = Semaphore::new(0);
            Arc::new(Self { clock: Clock::tokio(), begun: Mutex::default(), ends })
        }

        /// Starts debouncers of 100 ms whose runs end when the test ends them.
        fn start(self: &Arc<Self>, on_drop: OnDrop) -> KeyedDebouncer<u32, &'static str> {
            let runs = Arc::clone(self);
            KeyedDebouncer::builder(ms(100))
                .on_drop(on_drop)
                .start_async(move |key, fired| {
                    let runs = Arc::clone(&runs);
                    async move {
                        let at_ms = runs.clock.now().as_nanos() / 1_000_000;
                        runs.begun.lock().unwrap().push((key, fired.into_value(), at_ms));
                        runs.ends.acquire().await.unwrap().forget();
                    }
                })
                .unwrap()
        }

        fn count(&self) -> usize {
            self.begun.lock().unwrap().len()
        }

        /// Ends a run after `by`, and waits until this many have begun.
        async fn end_one_after(&self, by: Duration, begun: usize) {
            advance(by).await;
            self.ends.add_permits(1);
            until(|| self.count() == begun).await;
        }
    }

    /// Lets the other tasks run until this holds. Time stands still: a task is always ready.
    async fn until(holds: impl Fn() -> bool) {
        for _ in 0..1000 {
            if holds() {
                return;
            }
            yield_now().await;
        }
        panic!("it does not hold after 1000 turns of every task");
    }

    #[tokio::test(start_paused = true)]
    async fn runs_of_several_keys_follow_each_other_on_paused_time() {
        let runs = Runs::new();
        let debouncer = runs.start(OnDrop::Cancel);
        debouncer.trigger(1, "a").unwrap();
        advance(ms(10)).await;
        debouncer.trigger(2, "b").unwrap();
        debouncer.trigger(3, "c").unwrap();
        advance(ms(40)).await;
        debouncer.trigger(1, "d").unwrap();
        debouncer.finish_and_wait(ms(1)).await.unwrap_err();
        assert_eq!(runs.count(), 1, "finishing fires at once, one after the other");
        // A millisecond has passed already.
        runs.end_one_after(ms(29), 2).await;
        runs.end_one_after(ms(30), 3).await;
        runs.end_one_after(ms(30), 3).await;
        debouncer.finish_and_wait(LONG).await.unwrap();
        assert_eq!(*runs.begun.lock().unwrap(), [(1, "d", 50), (2, "b", 80), (3, "c", 110)]);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_go_quiet_by_themselves() {
        let runs = Runs::new();
        let debouncer = runs.start(OnDrop::Cancel);
        for key in 0..3 {
            debouncer.trigger(key, "a").unwrap();
        }
        advance(ms(100)).await;
        until(|| runs.count() == 1).await;
        for begun in [2, 3, 3] {
            runs.end_one_after(ms(30), begun).await;
        }
        until(|| Handle::current().metrics().num_alive_tasks() == 0).await;
        assert_eq!(*runs.begun.lock().unwrap(), [(0, "a", 100), (1, "a", 130), (2, "a", 160)]);
        assert!(debouncer.is_empty() && !debouncer.is_running());
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_the_last_handle_keeps_or_loses_what_is_pending() {
        for (on_drop, expected) in [(OnDrop::Cancel, 0), (OnDrop::Flush, 2)] {
            let runs = Runs::new();
            let debouncer = runs.start(on_drop);
            debouncer.trigger(1, "a").unwrap();
            debouncer.trigger(2, "b").unwrap();
            drop(debouncer);
            runs.ends.add_permits(2);
            advance(ms(500)).await;
            // The action is released.
            until(|| Arc::strong_count(&runs) == 1).await;
            assert_eq!(runs.count(), expected, "{on_drop:?}");
        }
    }

    #[test]
    fn a_future_needs_a_runtime() {
        let builder = || KeyedDebouncer::<u32, ()>::builder(ms(1));
        let action = |_, _| std::future::ready(());
        let outside = builder().start_async(action).unwrap_err();
        assert_eq!(outside, tollgate::NoRuntime.into());
        let manual = Driver::manual(&ManualClock::new());
        let manual = builder().driver(manual).start_async(action).unwrap_err();
        assert!(manual.to_string().starts_with("an async action needs a tokio runtime;"));
    }
}

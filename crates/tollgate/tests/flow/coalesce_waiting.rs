//! Adds that wait for room: first come, first served, and nothing is left over.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};
use tollgate::{Add, AddError, Batch, Coalescer, observe::Registry};

#[derive(Default)]
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        // ORDERING: Relaxed; the channels of the tests order what they check.
        self.0.fetch_add(1, Relaxed);
    }
}

impl Count {
    fn get(&self) -> u64 {
        // ORDERING: as above.
        self.0.load(Relaxed)
    }
}

/// A coalescer of two keys per batch, whose action waits for a signal of the test.
struct Gated {
    keys: Coalescer<u32, u32>,
    /// Receives each batch that has begun.
    begun: Receiver<Vec<(u32, u32)>>,
    /// Lets one batch end.
    gate: Sender<()>,
}

impl Gated {
    fn new() -> Self {
        let (begin, begun) = channel();
        let (gate, end) = channel();
        let keys = Coalescer::fold(|held: &mut u32, new| *held += new)
            .max_size(2)
            .start(move |batch: Batch<u32, u32>| {
                begin.send(batch.into_entries()).unwrap();
                end.recv().unwrap();
            })
            .unwrap();
        Self { keys, begun, gate }
    }

    /// One batch is with the action and the next one is full.
    fn full() -> Self {
        let gated = Self::new();
        gated.keys.try_add(1, 1).unwrap();
        gated.keys.try_add(2, 1).unwrap();
        assert_eq!(gated.begun.recv().unwrap(), [(1, 1), (2, 1)]);
        gated.keys.try_add(3, 1).unwrap();
        gated.keys.try_add(4, 1).unwrap();
        gated
    }

    fn end_one(&self) -> Vec<(u32, u32)> {
        self.gate.send(()).unwrap();
        self.begun.recv().unwrap()
    }

    /// Stops, and returns the batches that are flushed from now on.
    fn drain(self) -> Vec<Vec<(u32, u32)>> {
        self.keys.stop();
        for _ in 0..9 {
            // All batches may be over before the last signal.
            let _over = self.gate.send(());
        }
        self.keys.stop_and_wait(Duration::from_secs(10)).block().unwrap();
        self.begun.try_iter().collect()
    }
}

type Polled = Poll<Result<(), AddError<u32, u32>>>;

fn poll(add: &mut Add<u32, u32>, count: &Arc<Count>) -> Polled {
    let waker = Waker::from(Arc::clone(count));
    Pin::new(add).poll(&mut Context::from_waker(&waker))
}

#[test]
fn while_a_flush_runs_the_next_batch_fills_and_then_adds_come_back() {
    let gated = Gated::full();
    assert!(gated.keys.is_running());
    let error = gated.keys.try_add(5, 7).unwrap_err();
    assert!(error.is_full());
    assert!(error.to_string().starts_with("the next batch already has 2 keys"), "{error}");
    assert_eq!(error.into_pair(), (5, 7));
    gated.keys.try_add(3, 10).unwrap(); // the key is there already, and folds
    assert_eq!(gated.end_one(), [(3, 11), (4, 1)]);
    gated.keys.try_add(5, 7).unwrap();
    assert_eq!(gated.drain(), [[(5, 7)]]);
}

#[test]
fn an_add_that_waits_is_not_counted_as_denied() {
    let gated = Gated::full();
    let registry = Registry::new();
    registry.add("keys", &gated.keys).unwrap();
    let denied = || registry.list()[0].count("tollgate_decisions_total", "denied");
    let (mut add, count) = (gated.keys.add(5, 7), Arc::new(Count::default()));
    assert!(poll(&mut add, &count).is_pending());
    assert_eq!(denied(), Some(0));
    assert!(gated.keys.try_add(6, 7).unwrap_err().is_full());
    assert_eq!(denied(), Some(1));
    drop(add);
    drop(gated.drain());
}

#[test]
fn who_waits_is_served_in_order_and_nobody_overtakes() {
    let gated = Gated::full();
    let mut waiting: Vec<_> =
        (10..13).map(|key| (gated.keys.add(key, key), Arc::new(Count::default()))).collect();
    for (add, count) in &mut waiting {
        assert!(poll(add, count).is_pending());
    }
    assert_eq!(gated.keys.waiting(), 3);
    assert_eq!(gated.end_one(), [(3, 1), (4, 1)]);
    // Two have a reserved place now; they keep it, however late they are polled.
    assert_eq!(waiting.iter().map(|(_, count)| count.get()).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!((gated.keys.waiting(), gated.keys.len()), (1, 0));
    assert!(gated.keys.try_add(20, 20).unwrap_err().is_full());
    let (add, count) = &mut waiting[2];
    assert!(poll(add, count).is_pending());
    let (add, count) = &mut waiting[1];
    assert!(matches!(poll(add, count), Poll::Ready(Ok(()))));
    // Once a key is in, every add of that key can fold into it.
    gated.keys.try_add(11, 100).unwrap();
    let (add, count) = &mut waiting[0];
    assert!(matches!(poll(add, count), Poll::Ready(Ok(()))));
    assert_eq!(gated.end_one(), [(11, 111), (10, 10)]);
    let (mut add, count) = waiting.pop().unwrap();
    assert_eq!(count.get(), 1);
    assert!(matches!(poll(&mut add, &count), Poll::Ready(Ok(()))));
    assert!(poll(&mut add, &count).is_pending(), "it was ready once");
    assert_eq!(gated.drain(), [[(12, 12)]]);
}

#[test]
fn a_waiter_whose_key_comes_in_by_another_folds_at_once() {
    let gated = Gated::full();
    let counts: Vec<Arc<Count>> = (0..3).map(|_| Arc::default()).collect();
    let mut first = gated.keys.add(10, 1);
    let mut second = gated.keys.add(11, 1);
    let mut third = gated.keys.add(10, 5);
    assert!(poll(&mut first, &counts[0]).is_pending());
    assert!(poll(&mut second, &counts[1]).is_pending());
    assert!(poll(&mut third, &counts[2]).is_pending());
    gated.end_one();
    assert!(poll(&mut first, &counts[0]).is_ready());
    // The reason for the poll does not matter: its key is there.
    assert!(poll(&mut third, &counts[2]).is_ready());
    assert_eq!(gated.keys.waiting(), 0);
    drop(second); // gives its place back
    gated.keys.try_add(12, 1).unwrap();
    assert_eq!(gated.end_one(), [(10, 6), (12, 1)]);
    assert!(gated.drain().is_empty());
}

#[test]
fn a_seat_that_turns_out_unneeded_goes_to_the_next() {
    let gated = Gated::full();
    let counts: Vec<Arc<Count>> = (0..4).map(|_| Arc::default()).collect();
    // Two adds of one key have places; when the second folds, its place goes to the third.
    let mut adds: Vec<_> = [10, 10, 11, 12].map(|key| gated.keys.add(key, 1)).into();
    for (add, count) in adds.iter_mut().zip(&counts) {
        assert!(poll(add, count).is_pending());
    }
    gated.end_one();
    assert!(poll(&mut adds[0], &counts[0]).is_ready());
    assert_eq!(counts[2].get(), 0);
    assert!(poll(&mut adds[1], &counts[1]).is_ready());
    assert_eq!(counts[2].get(), 1);
    assert!(poll(&mut adds[2], &counts[2]).is_ready());
    assert_eq!(gated.end_one(), [(10, 2), (11, 1)]);
    assert_eq!(adds.pop().unwrap().into_pair(), Some((12, 1)));
    assert_eq!((gated.keys.waiting(), gated.keys.len()), (0, 0));
    assert!(gated.drain().is_empty());
}

#[test]
fn dropping_an_add_at_any_poll_leaves_nothing() {
    // polls before the flush ends, and after it; the future is dropped then
    for (before, after) in [(0, 0), (1, 0), (2, 0), (1, 1), (0, 1)] {
        for keeps_pair in [false, true] {
            let gated = Gated::full();
            let count = Arc::new(Count::default());
            let mut add = gated.keys.add(10, 1);
            let mut is_added = false;
            for _ in 0..before {
                assert!(poll(&mut add, &count).is_pending());
            }
            let mut others: Vec<_> =
                [11, 12, 13].map(|key| (gated.keys.add(key, 1), Arc::new(Count::default()))).into();
            others.iter_mut().for_each(|(other, count)| assert!(poll(other, count).is_pending()));
            gated.end_one();
            for _ in 0..after {
                is_added |= poll(&mut add, &count).is_ready();
            }
            let name = format!("{before} polls, {after} after the flush");
            if keeps_pair {
                assert_eq!(add.into_pair().is_some(), !is_added, "{name}");
            } else {
                drop(add);
            }
            // All room is for the others: two are woken, or one in addition to the key that was
            // added.
            let mut enter = || {
                // The set of woken adds is fixed before any of them is polled.
                let woken: Vec<_> =
                    others.iter_mut().filter(|(_, count)| count.get() > 0).collect();
                let polled = woken.into_iter().map(|(other, count)| poll(other, count));
                polled.filter(Poll::is_ready).count()
            };
            assert_eq!(enter(), if is_added { 1 } else { 2 }, "{name}");
            let batch = gated.end_one();
            assert_eq!(batch.iter().any(|(key, _)| *key == 10), is_added, "{name}");
            assert_eq!(enter(), if is_added { 2 } else { 1 }, "{name}");
            drop(others);
            assert_eq!(gated.keys.waiting(), 0, "{name}");
            drop(gated.drain());
        }
    }
}

#[test]
fn a_stop_gives_the_pairs_back_to_who_waits_and_flushes_the_rest() {
    let gated = Gated::full();
    let count = Arc::new(Count::default());
    let mut add = gated.keys.add(10, 5);
    assert!(poll(&mut add, &count).is_pending());
    let other = gated.keys.clone();
    let blocked = thread::spawn(move || other.add(11, 6).block());
    while gated.keys.waiting() < 2 {
        thread::yield_now();
    }
    gated.keys.stop();
    assert_eq!(count.get(), 1);
    let Poll::Ready(Err(error)) = poll(&mut add, &count) else { panic!("it is stopped") };
    assert!(error.is_stopped());
    assert_eq!(error.into_pair(), (10, 5));
    assert_eq!(blocked.join().unwrap().unwrap_err().into_pair(), (11, 6));
    assert_eq!(gated.drain(), [[(3, 1), (4, 1)]]);
}

#[test]
fn a_discard_makes_room_for_who_waits() {
    let gated = Gated::full();
    let other = gated.keys.clone();
    let blocked = thread::spawn(move || other.add(11, 6).block());
    while gated.keys.waiting() < 1 {
        thread::yield_now();
    }
    assert_eq!(gated.keys.discard(), [(3, 1), (4, 1)]);
    blocked.join().unwrap().unwrap();
    assert_eq!(gated.drain(), [[(11, 6)]]);
}

#[test]
fn a_waiting_add_keeps_the_coalescer_alive() {
    let Gated { keys, begun, gate } = Gated::full();
    let count = Arc::new(Count::default());
    let mut add = keys.add(10, 5);
    assert!(poll(&mut add, &count).is_pending());
    drop(keys);
    gate.send(()).unwrap();
    assert_eq!(begun.recv().unwrap(), [(3, 1), (4, 1)]);
    assert!(poll(&mut add, &count).is_ready());
    drop(add); // the last handle: flushes
    gate.send(()).unwrap();
    assert_eq!(begun.recv().unwrap(), [(10, 5)]);
    gate.send(()).unwrap();
    assert!(begun.recv().is_err(), "the action is dropped at the end");
}

#[test]
fn threads_that_hammer_and_stop_lose_nothing() {
    const THREADS: u64 = 4;
    const ADDS: u64 = 3_000;
    for round in 0..4_u64 {
        let seen = Arc::new(Mutex::new((0_u64, 0_u64)));
        let log = Arc::clone(&seen);
        let sums = Coalescer::fold(|held: &mut u64, new| *held += new)
            .window(Duration::from_micros(round * 50))
            .max_size(16)
            .start(move |batch: Batch<u64, u64>| {
                assert!(batch.len() <= 16);
                let mut seen = log.lock().unwrap();
                seen.0 += batch.adds();
                seen.1 += batch.into_iter().map(|(_, sum)| sum).sum::<u64>();
            })
            .unwrap();
        let adders: Vec<_> = (0..THREADS)
            .map(|thread| {
                let sums = sums.clone();
                thread::spawn(move || {
                    let (mut adds, mut total) = (0, 0);
                    for n in 0..ADDS {
                        let (key, value) = ((n * 7 + thread) % 40, n);
                        let added = match n % 3 {
                            0 => sums.try_add(key, value),
                            1 => sums.add(key, value).block(),
                            // Polled once and dropped: in, or not.
                            _ => match poll_once(sums.add(key, value)) {
                                Some(answer) => answer,
                                None => continue,
                            },
                        };
                        match added {
                            Ok(()) => (adds, total) = (adds + 1, total + value),
                            Err(error) => assert_eq!(error.into_pair(), (key, value)),
                        }
                        if thread == 0 && n == ADDS / 2 && round % 2 == 1 {
                            sums.stop();
                        }
                    }
                    (adds, total)
                })
            })
            .collect();
        let (mut adds, mut total) = (0, 0);
        for adder in adders {
            let (more, sum) = adder.join().unwrap();
            (adds, total) = (adds + more, total + sum);
        }
        sums.stop_and_wait(Duration::from_secs(30)).block().unwrap();
        assert_eq!(*seen.lock().unwrap(), (adds, total), "round {round}");
        assert_eq!((sums.panics(), sums.waiting(), sums.len()), (0, 0, 0));
    }
}

fn poll_once(mut add: Add<u64, u64>) -> Option<Result<(), AddError<u64, u64>>> {
    match Pin::new(&mut add).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_runtime_that_shuts_down_sends_away_who_waits() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (begin, begun) = channel();
    let keys = Coalescer::set()
        .max_size(1)
        .driver(tollgate::Driver::on(runtime.handle().clone()))
        .start_async(move |batch: Batch<u32, ()>| {
            begin.send(batch.len()).unwrap();
            std::future::pending()
        })
        .unwrap();
    keys.try_insert(1).unwrap();
    runtime.block_on(async {
        while begun.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
    });
    keys.try_insert(2).unwrap();
    let other = keys.clone();
    let blocked = thread::spawn(move || other.insert(3).block());
    while keys.waiting() < 1 {
        thread::yield_now();
    }
    drop(runtime);
    assert_eq!(blocked.join().unwrap().unwrap_err().into_pair(), (3, ()));
    assert!(keys.is_stopped());
}

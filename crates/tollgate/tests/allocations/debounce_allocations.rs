//! A trigger allocates no memory, with any driver.

use crate::counting::blocks;
use std::time::Duration;
use tollgate::{Debouncer, Driver, Fired, ManualClock, Throttle};

const TRIGGERS: u64 = 1_000;
const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_trigger_in_a_burst_asks_for_no_memory() {
    let hand = ManualClock::new();
    for (name, driver) in [("thread", Driver::thread()), ("manual", Driver::manual(&hand))] {
        for (edges, builder) in [
            ("trailing", Debouncer::builder(HOUR).max_wait(HOUR)),
            ("leading", Debouncer::builder(HOUR).leading()),
            ("both", Debouncer::builder(HOUR).both_edges()),
        ] {
            let builder = builder.driver(driver.clone());
            let debouncer = builder.start(|_: Fired<[u64; 4]>| {}).unwrap();
            debouncer.trigger([0; 4]); // begins the burst, and starts a worker
            let asked = blocks(|| {
                for value in 0..TRIGGERS {
                    debouncer.trigger([value; 4]);
                }
            });
            assert_eq!(asked, 0, "{name}, {edges}");
        }
    }
}

#[test]
fn a_run_on_a_manual_clock_asks_for_no_memory() {
    let hand = ManualClock::new();
    let throttle = Throttle::builder(Duration::from_millis(1))
        .leading()
        .driver(Driver::manual(&hand))
        .start(|_: Fired<u64>| {})
        .unwrap();
    let asked = blocks(|| {
        for value in 0..TRIGGERS {
            hand.advance(Duration::from_millis(1));
            throttle.trigger(value);
        }
    });
    assert_eq!(asked, 0);
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_trigger_in_a_burst_on_tokio_asks_for_no_memory() {
    let (sender, ran) = std::sync::mpsc::channel();
    let debouncer = Debouncer::builder(HOUR)
        .driver(Driver::tokio().unwrap())
        .start(move |fired: Fired<u64>| sender.send(fired.triggers()).unwrap())
        .unwrap();
    debouncer.trigger(0);
    tokio::task::yield_now().await; // the task goes to sleep
    let asked = blocks(|| {
        for value in 1..TRIGGERS {
            debouncer.trigger(value);
        }
    });
    assert_eq!(asked, 0);
    debouncer.finish_and_wait(HOUR).await.unwrap();
    assert_eq!(ran.recv(), Ok(TRIGGERS));
}

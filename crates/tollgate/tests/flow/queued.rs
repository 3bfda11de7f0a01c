//! Waits that a test polls by hand.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{ManualClock, Passed, Refused, Wait};

pub(crate) type Pinned = Pin<Box<Wait>>;

pub(crate) fn poll(wait: &mut Pinned) -> Poll<Result<Passed, Refused>> {
    wait.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Starts to wait.
pub(crate) fn queued(wait: Wait) -> Pinned {
    let mut wait = Box::pin(wait);
    assert!(poll(&mut wait).is_pending());
    wait
}

/// Returns when each wait passed, in milliseconds, by moving the clock until all have.
pub(crate) fn times(hand: &ManualClock, waits: &mut [Pinned]) -> Vec<u64> {
    let mut times = vec![None; waits.len()];
    for _ in 0..1000 {
        for (wait, time) in waits.iter_mut().zip(&mut times).filter(|(_, time)| time.is_none()) {
            if let Poll::Ready(answer) = poll(wait) {
                answer.unwrap();
                *time = Some(hand.now().as_nanos() / 1_000_000);
            }
        }
        hand.advance(Duration::from_millis(1));
    }
    times.into_iter().map(Option::unwrap).collect()
}

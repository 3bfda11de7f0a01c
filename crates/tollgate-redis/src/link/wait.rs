//! Waiting, with an end.

use std::{
    future::{pending, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};
use tokio::time::{Sleep, timeout};

/// When a call has waited long enough.
pub(super) type Deadline<'a> = Pin<&'a mut Sleep>;

/// Returns the deadline of a call that starts now. It costs nothing until it is waited for.
#[allow(clippy::disallowed_methods, reason = "a real call waits for a real server")]
pub(super) fn deadline(after: Duration) -> Sleep {
    tokio::time::sleep(after)
}

/// Waits for a future, or for the deadline: then it is `None`.
pub(super) async fn race<F: Future>(mut deadline: Deadline<'_>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        deadline.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Lets some time pass.
pub(super) async fn pause(time: Duration) {
    let _ = timeout(time, pending::<()>()).await;
}

/// Returns how long to wait after a number of failures: it doubles each time from `least` to
/// `most`, with a tenth of jitter, so that many processes do not return at the same moment.
pub(super) fn backoff(least: Duration, most: Duration, failures: u32) -> Duration {
    let doubled = failures.saturating_sub(1).min(20);
    least.saturating_mul(1 << doubled).min(most).mul_f64(0.9 + 0.2 * fastrand::f64())
}

//! Clients that disconnect, over real sockets: which permits are spent, which are given back, and
//! what stays open.
//!
//! Nothing here depends on time. The tests move the clock of the limits, all tasks run on one
//! thread, and each step waits until the one before is visible ([`until`]).

mod client;
mod handler;
mod inner;
mod many;
mod response;
mod rig;
mod store;
mod upload;
mod waits;

use std::time::Duration;
use tokio::time::timeout;

/// Longer than any step over loopback takes.
const LONG: Duration = Duration::from_secs(20);

/// Waits until a condition holds.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waits = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    assert!(timeout(LONG, waits).await.is_ok(), "it never came to this: {what}");
}

/// Waits for the next message of a channel.
async fn next<T>(receiver: &mut tokio::sync::mpsc::UnboundedReceiver<T>) -> T {
    timeout(LONG, receiver.recv()).await.unwrap().unwrap()
}

/// Polls a future that is ready at once.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it is ready at once"),
    }
}

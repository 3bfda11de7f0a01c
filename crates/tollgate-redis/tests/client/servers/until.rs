//! Waiting, in a task, for what other tasks and servers do.

use std::{future::pending, time::Duration};
use tokio::time::timeout;

/// More than anything here takes: a failover takes some seconds, on a busy machine some more.
const PATIENCE: Duration = Duration::from_secs(40);

/// Looks until something holds.
///
/// # Panics
///
/// If it does not hold within 40 s; `what` is in the message.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            // Lets two milliseconds pass before another look.
            let _ = timeout(Duration::from_millis(2), pending::<()>()).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}

//! Opens links, calls through them, and waits for what other tasks and servers do.

use std::{future::pending, time::Duration};
use tokio::time::timeout;
use tollgate_redis::{Command, Link, LinkError, Reply, Route};

/// How long a link may take to connect, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// More than anything here takes: a failover takes some seconds, on a busy machine some more.
const UNTIL_MAX: Duration = Duration::from_secs(40);

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
    timeout(UNTIL_MAX, wait).await.unwrap_or_else(|_| panic!("not within {UNTIL_MAX:?}: {what}"));
}

/// Opens a link and waits until it is ready.
pub(crate) async fn open(url: &str) -> Link {
    let link = Link::open(url.parse().unwrap()).unwrap();
    link.ready(PATIENCE).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    link
}

/// Waits until [`Link::ready`] fails with this text, and returns the whole error.
pub(crate) async fn told(link: &Link, expected: &str) -> String {
    let mut said = String::new();
    until(expected, async || {
        said = link.ready(Duration::from_millis(100)).await.unwrap_err().to_string();
        said.contains(expected)
    })
    .await;
    said
}

pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0], words.len() - 1);
    words[1..].iter().for_each(|word| command.push(word.as_bytes()));
    command
}

/// Calls any server.
pub(crate) async fn call(link: &Link, words: &[&str]) -> Result<Reply, LinkError> {
    link.call(Route::Any, command(words)).await
}

//! Timers of tokio that may not be there.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};
use tokio::time::Timeout;

/// Returns a future that ends after so long; `None`, and the future is gone, where there is no
/// runtime with timers.
///
/// A runtime does not tell whether it was built with timers: it panics when one is made. That panic
/// ends here. It leaves a message of the panic hook, and it still ends a process that is built with
/// `panic = "abort"`.
pub(crate) fn timeout<F: Future>(longest: Duration, future: F) -> Option<Timeout<F>> {
    if tokio::runtime::Handle::try_current().is_err() {
        return None;
    }
    // UNWIND: the future was not polled here, and is dropped.
    catch_unwind(AssertUnwindSafe(|| tokio::time::timeout(longest, future))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[test]
    fn a_timer_is_made_only_where_there_are_some() {
        let one = || timeout(Duration::from_millis(1), pending::<()>());
        assert!(one().is_none(), "no runtime");
        let mut builder = tokio::runtime::Builder::new_current_thread();
        assert!(builder.build().unwrap().block_on(async { one() }).is_none(), "no timers");
        let with_timers = builder.enable_time().build().unwrap();
        assert!(with_timers.block_on(async { one().unwrap().await }).is_err(), "the time is over");
    }
}

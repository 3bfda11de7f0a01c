//! The action that an engine runs, and its panics.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// What an engine runs, one job at a time.
pub(crate) enum Action<J> {
    Call(Box<dyn FnMut(J) + Send>),
    #[cfg(feature = "tokio")]
    Async(Box<dyn FnMut(J) -> Running + Send>),
    /// The returned future runs as a task of its own, beside the next job.
    #[cfg(feature = "tokio")]
    Detach(Box<dyn FnMut(J) -> Option<Running> + Send>),
}

/// An action under way.
#[cfg(feature = "tokio")]
pub(crate) type Running = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Called for every action that panicked.
pub(crate) type Reporter = Arc<dyn Fn(&Panicked) + Send + Sync>;

/// An action has panicked. The engine runs the next one all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked {
    message: String,
}

impl Panicked {
    pub(super) fn new(payload: &(dyn Any + Send)) -> Self {
        let message = match payload.downcast_ref::<&str>() {
            Some(message) => (*message).to_owned(),
            None => payload.downcast_ref::<String>().cloned().unwrap_or_default(),
        };
        Self { message }
    }

    /// Returns the message of the panic; empty if it had none.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the action panicked: {}; the next one runs anyway", self.message)
    }
}

impl std::error::Error for Panicked {}

/// Runs code of the caller, and catches its panic.
pub(crate) fn guarded<R>(run: impl FnOnce() -> R) -> Result<R, Panicked> {
    // UNWIND: a panic leaves only the caller's own data half done.
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let panicked = Panicked::new(&*payload);
        // The payload is code of the caller, too: if its drop panics, the second payload leaks.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
        panicked
    })
}

/// An action, and the reporter of its panics. The engine drops both when it has stopped.
pub(super) struct Duty<J> {
    pub(super) action: Action<J>,
    pub(super) report: Option<Reporter>,
}

impl<J> Duty<J> {
    /// Reports a panic. A reporter that panics is not reported.
    pub(super) fn report(&self, panicked: &Panicked) {
        if let Some(report) = &self.report {
            drop(guarded(|| report(panicked)));
        }
    }
}

impl<J> Action<J> {
    /// Runs a job to its end on this thread.
    pub(super) fn run(&mut self, job: J) -> Result<(), Panicked> {
        match self {
            Self::Call(call) => guarded(|| call(job)),
            // INVARIANT: only a tokio driver is given such an action, and its worker awaits it.
            #[cfg(feature = "tokio")]
            Self::Async(_) | Self::Detach(_) => Ok(()),
        }
    }

    /// Runs a job to its end, or returns what is to run as a task of its own.
    #[cfg(feature = "tokio")]
    pub(super) async fn run_async(&mut self, job: J) -> Result<Option<Running>, Panicked> {
        match self {
            Self::Call(call) => guarded(|| call(job)).map(|()| None),
            Self::Detach(begin) => guarded(|| begin(job)),
            Self::Async(begin) => {
                let mut running = guarded(|| begin(job))?;
                let result = std::future::poll_fn(|context| {
                    match guarded(|| running.as_mut().poll(context)) {
                        Ok(poll) => poll.map(Ok),
                        Err(panicked) => std::task::Poll::Ready(Err(panicked)),
                    }
                })
                .await;
                // A future may panic when it is dropped, too.
                result.and(guarded(|| drop(running))).map(|()| None)
            }
        }
    }
}

//! Jobs that run as tasks of their own, beside those of the worker.

use super::{
    super::action::{Panicked, Reporter, Running, guarded},
    Inner, Kind, Machine,
};
use std::{
    cell::Cell,
    pin::Pin,
    ptr,
    sync::Arc,
    task::{Context, Poll},
};

thread_local! {
    /// The address of the engine whose detached job this thread polls; null if none.
    static POLLED: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// A job that runs as a task of its own. The end waits for it, as for one that runs on the worker.
struct Detached<M: Machine> {
    inner: Arc<Inner<M>>,
    /// None once it has ended.
    running: Option<Running>,
    report: Option<Reporter>,
}

impl<M: Machine> Inner<M> {
    /// Runs a job as a task of its own. The action is still running, so the engine does not end before
    /// the task is counted.
    pub(super) fn detach(this: &Arc<Self>, running: Running, report: Option<Reporter>) {
        let Kind::Tokio(runtime) = &this.driver.kind else { return };
        this.lock().detached += 1; // OVERFLOW: a task takes memory, so 2^64 do not fit.
        let detached = Detached { inner: Arc::clone(this), running: Some(running), report };
        // A runtime that shuts down drops it, here or later.
        drop(runtime.spawn(detached));
    }

    /// Tells whether the caller is a detached job.
    pub(super) fn is_detached_here(&self) -> bool {
        POLLED.get() == ptr::from_ref(self).cast()
    }

    /// Runs code of a detached job.
    fn guarded_inside<R>(&self, run: impl FnOnce() -> R) -> Result<R, Panicked> {
        let before = POLLED.replace(ptr::from_ref(self).cast());
        let result = guarded(run);
        POLLED.set(before);
        result
    }
}

impl<M: Machine> Future for Detached<M> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { inner, running: Some(running), .. } = &mut *self else {
            return Poll::Ready(());
        };
        let result = match inner.guarded_inside(|| running.as_mut().poll(context)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(())) => Ok(()),
            Err(panicked) => Err(panicked),
        };
        self.end(result);
        Poll::Ready(())
    }
}

impl<M: Machine> Detached<M> {
    /// Drops all that belongs to the caller, and then notes the end in the engine.
    fn end(&mut self, result: Result<(), Panicked>) {
        let Some(running) = self.running.take() else { return };
        let inner = &self.inner;
        // A future may panic when it is dropped, too.
        let result = result.and(inner.guarded_inside(|| drop(running)));
        let report = self.report.take();
        if let (Err(panicked), Some(report)) = (&result, &report) {
            // A reporter that panics is not reported.
            drop(inner.guarded_inside(|| report(panicked)));
        }
        // The reporter is dropped before the engine ends. Its drop may panic.
        let released = guarded(|| drop(report));
        let mut state = inner.lock();
        state.panics += u64::from(result.is_err()) + u64::from(released.is_err());
        state.detached -= 1; // OVERFLOW: `detach` has counted this one.
        inner.conclude(state);
    }
}

impl<M: Machine> Drop for Detached<M> {
    /// A runtime that shuts down drops what has not ended.
    fn drop(&mut self) {
        self.end(Ok(()));
    }
}

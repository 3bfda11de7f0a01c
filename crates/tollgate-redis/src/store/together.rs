//! Waiting for several calls at once.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Waits for all of them. Returns what they gave, in their order.
pub(super) async fn all<F: Future>(calls: Vec<F>) -> Vec<F::Output> {
    All { calls: calls.into_iter().map(|call| (Box::pin(call), None)).collect() }.await
}

/// A call, and what it gave once it is done.
type Call<F> = (Pin<Box<F>>, Option<<F as Future>::Output>);

struct All<F: Future> {
    calls: Vec<Call<F>>,
}

// Nothing is pinned in place: the calls are on the heap.
impl<F: Future> Unpin for All<F> {}

impl<F: Future> Future for All<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut is_ready = true;
        for (call, output) in &mut self.calls {
            if output.is_none() {
                match call.as_mut().poll(context) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => is_ready = false,
                }
            }
        }
        match is_ready {
            true => {
                let calls = std::mem::take(&mut self.calls);
                Poll::Ready(calls.into_iter().filter_map(|(_, output)| output).collect())
            }
            false => Poll::Pending,
        }
    }
}

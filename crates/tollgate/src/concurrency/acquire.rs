//! Waiting: the future, and its twin for plain threads.

use super::{Full, Permit, permit::Owner, queue::Entered};
use crate::{
    Priority, Tick,
    wait::{
        Patience, block_for,
        queue::{Request, Ticket},
    },
};
use std::{
    fmt,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

/// Waits its turn for permits; made by [`Concurrency::acquire`](super::Concurrency::acquire).
///
/// It takes its place in the queue when it is polled first, and permits may be set aside for it before it is polled
/// again. The most urgent [`priority`](Self::priority) is served first. Whoever is not served within
/// [`max_wait`](super::ConcurrencyBuilder::max_wait), or the time given here, is refused then.
///
/// It needs no runtime: anything that polls it and honours its waker will do. Only the deadline needs a timer: that of
/// tokio (feature `tokio`), a manual clock, or the thread itself in [`block`](Self::block). Elsewhere a late caller is
/// refused when it is polled, or when its turn comes.
///
/// # Cancel safety
///
/// It may be dropped at any time. Its place goes to the next, and permits that were set aside for
/// it go back, which wakes the next (`tests/limiting/concurrency.rs`:
/// `dropping_a_future_anywhere_conserves_everything`).
#[must_use = "a future does nothing until it is polled or awaited"]
pub struct Acquire {
    owner: Owner,
    cost: u64,
    priority: Priority,
    patience: Option<Patience>,
    is_task: bool,
    /// The place in the queue, with the deadline, while it waits.
    ticket: Option<(Ticket, Tick)>,
    /// Since when it waits, if that is counted.
    since: Option<Tick>,
}

impl Acquire {
    pub(super) const fn new(owner: Owner, cost: u64) -> Self {
        let priority = Priority::NORMAL;
        Self { owner, cost, priority, patience: None, is_task: true, ticket: None, since: None }
    }

    /// Waits for at most `longest`, counted from the first poll, instead of the limit's
    /// [`max_wait`](super::ConcurrencyBuilder::max_wait).
    pub fn within(mut self, longest: Duration) -> Self {
        self.patience = Some(Patience::Within(longest));
        self
    }

    /// Waits at most until `deadline` on the limit's clock, instead of its
    /// [`max_wait`](super::ConcurrencyBuilder::max_wait).
    pub fn until(mut self, deadline: Tick) -> Self {
        self.patience = Some(Patience::Until(deadline));
        self
    }

    /// Is served before those who are less urgent, whenever they came. If the queue is full, the newest of the least
    /// urgent has to leave it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Concurrency, Priority};
    ///
    /// # async fn work() {}
    /// async fn pay(limit: &Concurrency) -> Result<(), tollgate::Full> {
    ///     let _permit = limit.acquire().priority(Priority::CRITICAL).await?;
    ///     work().await;
    ///     Ok(())
    /// }
    /// ```
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Waits on this thread. In async code it would hold up the runtime.
    ///
    /// # Errors
    ///
    /// As the future.
    pub fn block(self) -> Result<Permit, Full> {
        let mut future = pin!(self.on_thread());
        block_for(|context| match future.as_mut().poll(context) {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => Err(future.next_look()),
        })
    }

    /// Waits without a timer: the thread that polls it sleeps for at most [`next_look`](Self::next_look).
    pub(crate) fn on_thread(mut self) -> Self {
        self.is_task = false;
        self
    }

    /// Returns for how long a thread that waits may sleep unless it is woken. On a manual clock the
    /// clock wakes it.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        let clock = &self.owner.timer().rules.clock;
        let (_, deadline) = self.ticket.filter(|_| clock.hand().is_none())?;
        Some(deadline.since(clock.now()))
    }

    fn request(&self) -> Request {
        let rules = &self.owner.timer().rules;
        let patience = self.patience.unwrap_or(Patience::Within(rules.max_wait));
        let since = match patience {
            Patience::Within(Duration::MAX) => Tick::ZERO,
            _ => rules.clock.now(),
        };
        let (cost, priority, is_task) = (self.cost, self.priority, self.is_task);
        Request { cost, priority, deadline: patience.deadline(since), since, is_task }
    }
}

impl Future for Acquire {
    type Output = Result<Permit, Full>;

    /// Once it was ready, another poll asks anew.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let owner = &this.owner;
        let Some((ticket, deadline)) = this.ticket else {
            let mut deadline = Tick::MAX;
            let request = || {
                let request = this.request();
                deadline = request.deadline;
                request
            };
            return match owner.enter(this.cost, request, context.waker()) {
                Entered::Passed => Poll::Ready(owner.permit(this.cost, Ok(()))),
                Entered::Refused(full) => Poll::Ready(owner.permit(this.cost, Err(full))),
                Entered::Waits(ticket) => {
                    if this.is_task && deadline < Tick::MAX {
                        owner.start_timer();
                    }
                    this.ticket = Some((ticket, deadline));
                    this.since = owner.tally().is_on().then(|| owner.timer().rules.clock.now());
                    Poll::Pending
                }
            };
        };
        let mut answer = owner.fetch(ticket, context.waker());
        if answer.is_pending() && deadline <= owner.timer().rules.clock.now() {
            owner.change(|queue, wakers| queue.expire(deadline, wakers));
            answer = owner.fetch(ticket, context.waker());
        }
        if let Poll::Ready(answer) = &answer {
            this.ticket = None;
            let since = this.since.take();
            if let (Ok(()), Some(since)) = (answer, since) {
                owner.tally().wait(owner.timer().rules.clock.now().since(since));
            }
        }
        answer.map(|answer| this.owner.permit(this.cost, answer))
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some((ticket, _)) = self.ticket {
            self.owner.leave(ticket);
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("cost", &self.cost)
            .field("priority", &self.priority)
            .field("waits", &self.ticket.is_some())
            .finish_non_exhaustive()
    }
}

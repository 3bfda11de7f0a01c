//! The worker of an engine on a manual clock: the thread that moves the hand.

use super::{Inner, Machine, Phase, Step, Worker};
use crate::{ManualClock, Tick, wait::driver::Kind};
use std::sync::Arc;

impl<M: Machine> Inner<M> {
    /// Runs what is due, and sets a timer of the hand for the rest.
    ///
    /// An action that makes a job due at once does not get here again: the worker is awake, so
    /// the loop below finds it when the action has returned.
    pub(super) fn work_inline(this: &Arc<Self>) {
        let Kind::Manual(hand) = &this.driver.kind else { return };
        loop {
            match this.step() {
                Step::Run(mut duty, job) => {
                    let result = duty.action.run(job);
                    this.done(duty, &result);
                }
                Step::Sleep(_) if Self::set_timer(this, hand) => break,
                Step::Sleep(_) => {}
                Step::Exit => break,
            }
        }
    }

    /// Leaves the rest to a timer; false if there is something to do at once.
    fn set_timer(this: &Arc<Self>, hand: &ManualClock) -> bool {
        let clock = this.driver.clock();
        let mut state = this.lock();
        // An event of another thread may have come since the step.
        let Some(until) = state.due() else { return false };
        if until <= clock.now() || state.phase == Phase::Stopped {
            return false;
        }
        let (later, number) = (Arc::clone(this), state.number());
        let id = hand.call_at(until, move |_: Tick| {
            if later.rises(number) {
                Self::work_inline(&later);
            }
        });
        state.worker = Worker::Timer { until, id, number };
        drop(state);
        // Another thread may have moved the hand past it before the timer was set.
        if until <= clock.now() && this.rises(number) {
            hand.cancel(id);
            return false;
        }
        true
    }

    /// Tells whether timer `number` is still the one to work.
    fn rises(&self, number: u64) -> bool {
        let mut state = self.lock();
        let is_due = matches!(&state.worker, Worker::Timer { number: set, .. } if *set == number);
        if is_due {
            state.worker = Worker::Awake;
        }
        is_due
    }
}

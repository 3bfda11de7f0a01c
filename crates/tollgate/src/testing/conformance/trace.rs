//! Random calls, beside the algorithms themselves.

use super::{Checked, holds, same, wait};
use crate::{
    Algorithm, Clock, Limiter, Quota,
    store::{Demand, Operation, Policy, Store},
    testing::Subject,
    wait::mix,
};
use std::time::Duration;

/// A small deterministic generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % bound
    }
}

const STEPS: usize = 300;

/// The same calls at the same times, by the store and by a limiter in this process: the same
/// answers, remaining permits and waits. A store that cannot force or refund acquires instead.
pub(super) async fn decides_as_the_core_does<S: Subject>(subject: &S) -> Checked {
    for (index, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        for quota in ["10/s", "7/min", "1000/h"] {
            let quota: Quota = quota.parse().map_err(|_| "a quota of the suite is wrong")?;
            replay(subject, algorithm, quota, &mut Random(index as u64)).await?;
        }
    }
    Ok(())
}

async fn replay<S: Subject>(
    subject: &S,
    algorithm: Algorithm,
    quota: Quota,
    random: &mut Random,
) -> Checked {
    let (clock, hand) = Clock::manual();
    // The same ticks as the store's: what is rounded to a grid is rounded alike.
    hand.set(subject.store().clock().now());
    clock.set_wall_offset(
        subject.wall().saturating_sub(Duration::from_nanos(clock.now().as_nanos())),
    );
    let twin = Limiter::builder(quota).algorithm(algorithm).clock(clock).build()?;
    let name = format!("trace {algorithm} {quota}");
    let policy = Policy::with_algorithm(name, quota, algorithm)?;
    let supports = |operation| subject.operations().contains(&operation);
    for step in 0..STEPS {
        if random.below(3) == 0 {
            // In multiples of 20 us, to which the limiters of this crate round the start of an
            // anchored window: so coarser and finer stores see the same times.
            let by = Duration::from_micros(20 * random.below(20_000));
            subject.advance(by).await;
            hand.advance(by);
        }
        let (mut verb, mut cost) = (random.below(10), random.below(4));
        if step % 60 == 30 {
            // Far above the limit: what exceeds it is owed, and paid off in the next windows.
            (verb, cost) = (1, 3 * quota.capacity() + cost);
        } else if (31..40).contains(&(step % 60)) {
            let period_us = quota.period().as_micros() as u64;
            let by = Duration::from_micros(period_us * random.below(80) / 100 / 20 * 20);
            subject.advance(by).await;
            hand.advance(by);
        }
        let mut demands = [Demand::new(&policy, b"key", cost)];
        let about = format!("{algorithm}, {quota}, step {step}, verb {verb}, cost {cost}");
        let store = subject.store();
        let (seen, expected) = match verb {
            0 => (store.peek(&mut demands).await?, twin.peek_n(cost)),
            1 if supports(Operation::Force) => (store.force(&demands[0]).await?, twin.force(cost)),
            2 if supports(Operation::Refund) => {
                let given = store.refund(&demands[0]).await?;
                same!(given, twin.refund(cost), "{about}: refunded");
                continue;
            }
            _ => (store.acquire(&mut demands).await?, twin.try_acquire_n(cost)),
        };
        same!(seen.is_allowed(), expected.is_allowed(), "{about}: allowed");
        same!(seen.is_never(), expected.is_never(), "{about}: never");
        same!(seen.remaining(), expected.remaining(), "{about}: remaining");
        let waits = (wait(subject, &seen), expected.retry_after(twin.now()));
        let close = match waits {
            (Some(seen), Some(expected)) => seen.abs_diff(expected) <= 2 * subject.rounding(),
            (seen, expected) => seen.is_some() == expected.is_some(),
        };
        holds!(close, "{about}: the waits are {waits:?}");
    }
    Ok(())
}

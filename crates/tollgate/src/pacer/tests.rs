//! The plan and the machine, without any clock.

use super::{Late, machine::PacerMachine, schedule::Schedule};
use crate::{Quota, Tick, wait::Machine};
use proptest::prelude::*;
use std::time::Duration;

fn ms(ms: u64) -> Tick {
    Tick::from_millis(ms)
}

fn pace(quota: Quota, capacity: u64) -> PacerMachine<u32> {
    PacerMachine::new(quota, capacity, Late::KeepPace)
}

/// Rates that do not divide a nanosecond, and some that do.
fn odd_rates() -> Vec<Quota> {
    vec![
        Quota::per_second(700),
        Quota::per(3, Duration::from_secs(7)),
        Quota::per_second(3),
        Quota::per_second(700_000_000),
        Quota::per_second(1_000_000_000),
        Quota::per(999_999_937, Duration::from_secs(1)),
        Quota::per_minute(7),
        Quota::per_second(50),
    ]
}

#[test]
fn slots_are_exact_over_long_runs() {
    for quota in odd_rates() {
        let (count, period) = (u128::from(quota.count()), u128::from(quota.period_ns()));
        let begin = Tick::from_nanos(123_456_789);
        let mut plan = Schedule::new(quota);
        let mut before = None;
        for k in 0..20_000_u64 {
            // Asked for at every other slot's own tick, and far ahead otherwise.
            let now = if k % 2 == 0 { before.unwrap_or(begin) } else { begin };
            let (next, at, last) = plan.book(now, 1).unwrap();
            plan = next;
            let exact = (u128::from(k) * period).div_ceil(count);
            assert_eq!(u128::from(at.as_nanos() - begin.as_nanos()), exact, "{quota}, slot {k}");
            assert_eq!(at, last);
            if let Some(before) = before {
                let gap = u128::from(at.as_nanos() - Tick::as_nanos(before));
                assert!(
                    gap == period / count || gap == period.div_ceil(count),
                    "{quota}, slot {k}"
                );
            }
            before = Some(at);
        }
    }
}

#[test]
fn whoever_comes_exactly_at_the_slot_loses_nothing_to_rounding() {
    // 700/s: an interval is 1 428 571 and 3/7 ns. After 700 slots exactly a second has passed.
    let quota = Quota::per_second(700);
    let mut pace = pace(quota, 1);
    let mut now = ms(5);
    for k in 0..=7_000_u64 {
        assert_eq!(pace.reserve(now, 1), Ok(now), "slot {k}");
        let at = pace.reserve(now, 1).unwrap();
        pace.cancel_slot(now, at);
        now = at;
    }
    // `now` is the slot after the last one.
    let ns = (7_001_u128 * 1_000_000_000).div_ceil(700);
    assert_eq!(u128::from(now.as_nanos() - ms(5).as_nanos()), ns);
}

#[test]
fn the_end_of_time_is_a_refusal() {
    let mut pace = pace(Quota::per_second(1), 10);
    let now = Tick::from_nanos(u64::MAX - 10);
    assert_eq!(pace.reserve(now, 1), Ok(now));
    assert!(pace.reserve(now, 1).unwrap_err().is_full());
    assert!(pace.reserve(now, 11).unwrap_err().is_full());
    assert!(pace.reserve(now, u64::MAX).unwrap_err().is_never());
}

#[test]
fn time_that_goes_backwards_moves_no_slot() {
    let mut pace = pace(Quota::per_second(10), 10);
    assert_eq!(pace.reserve(ms(1_000), 1), Ok(ms(1_000)));
    // It is a second early, which is a whole queue, so this one fits exactly not.
    assert!(pace.reserve(ms(0), 1).unwrap_err().is_full());
    assert_eq!(pace.reserve(ms(500), 1), Ok(ms(1_100)));
    assert_eq!(pace.reserve(ms(1_000), 1), Ok(ms(1_200)));
}

/// Takes out what runs at `now`.
fn runs(pace: &mut PacerMachine<u32>, now: Tick) -> Vec<u32> {
    std::iter::from_fn(|| pace.next(now)).collect()
}

#[test]
fn late_jobs_catch_up_or_keep_their_gap() {
    // (now, those that start), with five jobs at 0, 100 .. 400 ms, and a worker that sleeps from
    // 50 to 250 ms.
    type Rows = [(u64, &'static [u32]); 7];
    let keep_pace: Rows =
        [(0, &[0]), (250, &[1, 2]), (299, &[]), (300, &[3]), (350, &[]), (400, &[4]), (450, &[])];
    let keep_gap: Rows =
        [(0, &[0]), (250, &[1]), (349, &[]), (350, &[2]), (450, &[3]), (549, &[]), (550, &[4])];
    for (late, rows) in [(Late::KeepPace, keep_pace), (Late::KeepGap, keep_gap)] {
        let mut pace = PacerMachine::new(Quota::per_second(10), 10, late);
        for job in 0..5 {
            let at = pace.queue(ms(0), 1, || Some(job)).unwrap();
            assert_eq!(at, ms(100 * u64::from(job)), "slots come from the schedule, {late:?}");
        }
        for (now, expected) in rows {
            assert_eq!(runs(&mut pace, ms(now)), expected, "{late:?} at {now} ms");
        }
        assert_eq!(pace.due(), None, "{late:?}");
    }
}

#[test]
fn a_gap_is_as_long_as_the_cost() {
    let mut pace = PacerMachine::new(Quota::per_second(10), 10, Late::KeepGap);
    assert_eq!(pace.queue(ms(0), 3, || Some(0)), Ok(ms(0)));
    assert_eq!(pace.queue(ms(0), 1, || Some(1)), Ok(ms(300)));
    assert_eq!(runs(&mut pace, ms(40)), [0]);
    assert_eq!(pace.due(), Some(ms(340)));
    assert_eq!(runs(&mut pace, ms(340)), [1]);
}

#[test]
fn jobs_that_do_not_start_fill_the_queue() {
    let mut pace = pace(Quota::per_second(10), 3);
    for job in 0..4 {
        assert!(pace.queue(ms(0), 1, || Some(job)).is_ok());
    }
    // Nobody runs them. Their slots pass, but they are still there.
    let refused = pace.queue(ms(5_000), 1, || Some(9)).unwrap_err();
    assert_eq!((refused.queued(), refused.capacity()), (3, 3));
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(100)));
    assert_eq!(pace.next(ms(5_000)), Some(0));
    assert_eq!(pace.queue(ms(5_000), 1, || Some(4)), Ok(ms(5_000)));
}

#[test]
fn a_job_that_is_gone_before_it_is_queued_leaves_no_trace() {
    let mut pace = pace(Quota::per_second(10), 3);
    assert_eq!(pace.queue(ms(0), 1, || None), Ok(ms(0)));
    assert_eq!((pace.queued(ms(0)), pace.due()), (0, None));
    assert_eq!(pace.reserve(ms(0), 1), Ok(ms(0)));
}

proptest! {
    #[test]
    fn whoever_retries_when_told_is_let_in_and_not_before(
        costs in prop::collection::vec(1..5_u64, 1..40), at in 0..3_000_u64,
        count in 1..9_u64, period in 9..2_000_u64, capacity in 4..12_u64, changes in any::<bool>(),
    ) {
        let quota = |count| Quota::per(count, Duration::from_nanos(period));
        // Twice the same, up to the question.
        let fill = || {
            let mut pace = pace(quota(count), capacity);
            for (k, cost) in costs.iter().enumerate() {
                let now = Tick::from_nanos(at * k as u64 / 40);
                let _ = pace.reserve(now, *cost);
                if changes && k == 7 {
                    pace.set_rate(now, quota(9 - count));
                }
            }
            pace
        };
        let now = Tick::from_nanos(at);
        let (mut early, mut in_time) = (fill(), fill());
        for cost in 1..5 {
            let (Err(refused), Err(_)) = (early.reserve(now, cost), in_time.reserve(now, cost)) else {
                continue;
            };
            let retry = now.saturating_add(refused.retry_after().unwrap());
            let before = retry.saturating_sub(Duration::from_nanos(1));
            prop_assert!(early.reserve(before, cost).is_err(), "at {before}, {refused}");
            prop_assert!(in_time.reserve(retry, cost).is_ok(), "at {retry}, {refused}");
            break;
        }
    }
}

mod model {
    //! The same by a list that is searched from its beginning each time.

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum State {
        Told,
        Job,
        Used,
        Hole,
        Gone,
    }

    #[derive(Clone, Copy, Debug)]
    struct Entry {
        at: u64,
        /// In parts of a nanosecond, `count` of them, by the rate of the time.
        exact: u128,
        cost: u64,
        state: State,
        epoch: u32,
    }

    struct Model {
        count: u128,
        period: u128,
        capacity: u64,
        epoch: u32,
        /// The next slot.
        exact: u128,
        entries: Vec<Entry>,
    }

    impl Model {
        fn pass(&mut self, now: u64) {
            for entry in &mut self.entries {
                match entry.state {
                    State::Told if entry.at <= now => entry.state = State::Used,
                    State::Hole if entry.at < now => entry.state = State::Gone,
                    _ => {}
                }
            }
        }

        fn head(&self, now: u64) -> Option<u64> {
            let jobs = self.entries.iter().filter(|entry| entry.state == State::Job);
            let first = jobs.min_by_key(|entry| entry.at)?;
            (first.at <= now).then_some(first.cost)
        }

        fn queued(&self, now: u64) -> u64 {
            let is_queued = |entry: &&Entry| matches!(entry.state, State::Told | State::Job);
            let all: u64 = self.entries.iter().filter(is_queued).map(|entry| entry.cost).sum();
            all - self.head(now).unwrap_or(0)
        }

        fn admit(&mut self, now: u64, cost: u64, state: State) -> Option<u64> {
            self.pass(now);
            let (queued, is_free) = (self.queued(now), self.head(now).is_none());
            let fits = |at: u64| queued + cost - u64::from(is_free && at <= now) <= self.capacity;
            let hole = self
                .entries
                .iter_mut()
                .filter(|entry| entry.state == State::Hole && entry.cost == cost)
                .min_by_key(|entry| entry.at);
            if let Some(hole) = hole {
                if !fits(hole.at) {
                    return None;
                }
                let new = Entry { state, ..*hole };
                hole.state = State::Gone;
                self.entries.push(new);
                return Some(new.at);
            }
            let mut exact = self.exact;
            if exact.div_ceil(self.count) < u128::from(now) {
                exact = u128::from(now) * self.count;
            }
            let at = u64::try_from(exact.div_ceil(self.count)).unwrap();
            let last = (exact + u128::from(cost - 1) * self.period).div_ceil(self.count);
            let most = (u128::from(self.capacity) * self.period).div_ceil(self.count);
            if last > u128::from(now) + most || !fits(at) {
                return None;
            }
            self.exact = exact + u128::from(cost) * self.period;
            self.entries.push(Entry { at, exact, cost, state, epoch: self.epoch });
            Some(at)
        }

        fn last(&self) -> Option<Entry> {
            let given = |entry: &&Entry| !matches!(entry.state, State::Hole | State::Gone);
            self.entries.iter().filter(given).max_by_key(|entry| entry.at).copied()
        }

        fn give_back(&mut self, entry: Entry) {
            let same = entry.epoch == self.epoch;
            self.exact = if same { entry.exact } else { u128::from(entry.at) * self.count };
        }

        fn free(&mut self, now: u64, index: usize) {
            let entry = self.entries[index];
            self.entries[index].state = State::Gone;
            let last = self.last().map(|last| last.at);
            if last.is_some_and(|last| entry.at < last) {
                if entry.at >= now {
                    self.entries[index].state = State::Hole;
                }
                return;
            }
            self.give_back(entry);
            let mut after: Vec<usize> = (0..self.entries.len())
                .filter(|i| self.entries[*i].state == State::Hole)
                .filter(|i| last.is_none_or(|last| self.entries[*i].at > last))
                .collect();
            after.sort_by_key(|i| std::cmp::Reverse(self.entries[*i].at));
            for index in after {
                self.entries[index].state = State::Gone;
                self.give_back(self.entries[index]);
            }
        }

        fn cancel_slot(&mut self, now: u64, index: usize) -> bool {
            self.pass(now);
            let entry = self.entries[index];
            let is_last = self.last().is_some_and(|last| last.at == entry.at);
            let can = match entry.state {
                State::Told => true,
                State::Used => is_last,
                _ => false,
            };
            if can {
                self.free(now, index);
            }
            can
        }

        fn set_rate(&mut self, now: u64, quota: Quota) {
            self.pass(now);
            for entry in &mut self.entries {
                if entry.state == State::Hole {
                    entry.state = State::Gone;
                }
            }
            let next = self.exact.div_ceil(self.count);
            (self.count, self.period) = (quota.count().into(), quota.period_ns().into());
            self.epoch += 1;
            self.exact = match self.last() {
                Some(last) => {
                    u128::from(last.at) * self.count + u128::from(last.cost) * self.period
                }
                None => next * self.count,
            };
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Advance(u64),
        ToNextSlot,
        Tell(u64),
        Queue(u64),
        Cancel(prop::sample::Index),
        Start,
        SetRate(u64, u64),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            2 => (0..5_000_u64).prop_map(Op::Advance),
            1 => Just(Op::ToNextSlot),
            5 => (1..4_u64).prop_map(Op::Tell),
            5 => (1..4_u64).prop_map(Op::Queue),
            5 => any::<prop::sample::Index>().prop_map(Op::Cancel),
            3 => Just(Op::Start),
            1 => (1..9_u64, 9..2_000_u64).prop_map(|(count, period)| Op::SetRate(count, period)),
        ];
        prop::collection::vec(op, 1..120)
    }

    fn quota(count: u64, period: u64) -> Quota {
        Quota::per(count, Duration::from_nanos(period))
    }

    /// Does one thing to both, and says what it was.
    fn step(pace: &mut PacerMachine<u32>, model: &mut Model, now: &mut u64, op: Op) {
        let tick = Tick::from_nanos(*now);
        match op {
            Op::Advance(by) => *now += by,
            Op::ToNextSlot => {
                let next = u64::try_from(model.exact.div_ceil(model.count)).unwrap();
                *now = next.max(*now);
            }
            Op::Tell(cost) => {
                let got = pace.reserve(tick, cost).map(Tick::as_nanos);
                assert_eq!(got.ok(), model.admit(*now, cost, State::Told));
            }
            Op::Queue(cost) => {
                let got = pace.queue(tick, cost, || Some(0)).map(Tick::as_nanos);
                assert_eq!(got.ok(), model.admit(*now, cost, State::Job));
            }
            Op::Cancel(index) if !model.entries.is_empty() => {
                let index = index.index(model.entries.len());
                let entry = model.entries[index];
                let at = Tick::from_nanos(entry.at);
                match entry.state {
                    State::Job => {
                        assert!(pace.cancel_job(tick, at).is_some());
                        model.free(*now, index);
                    }
                    // A slot that was given back has no owner who could do so again.
                    State::Told => {
                        assert_eq!(pace.cancel_slot(tick, at), model.cancel_slot(*now, index));
                    }
                    _ => {}
                }
            }
            Op::Cancel(_) => {}
            Op::Start => {
                let first = (0..model.entries.len())
                    .filter(|i| model.entries[*i].state == State::Job)
                    .min_by_key(|i| model.entries[*i].at)
                    .filter(|i| model.entries[*i].at <= *now);
                assert_eq!(pace.next(tick).is_some(), first.is_some());
                model.pass(*now);
                if let Some(first) = first {
                    model.entries[first].state = State::Used;
                }
            }
            Op::SetRate(count, period) => {
                pace.set_rate(tick, quota(count, period));
                model.set_rate(*now, quota(count, period));
            }
        }
    }

    proptest! {
        #[test]
        fn every_answer_is_that_of_the_naive_list(
            ops in ops(), count in 1..9_u64, period in 9..2_000_u64, capacity in 0..12_u64,
        ) {
            let mut pace = pace(quota(count, period), capacity);
            let mut model = Model {
                count: count.into(),
                period: period.into(),
                capacity,
                epoch: 0,
                exact: 0,
                entries: Vec::new(),
            };
            let mut now = 0;
            for op in &ops {
                step(&mut pace, &mut model, &mut now, *op);
                model.pass(now);
                prop_assert_eq!(pace.queued(Tick::from_nanos(now)), model.queued(now));
                prop_assert!(model.queued(now) <= capacity);
            }
            // Whatever was given back: by one rate, no two that were used are closer than the
            // interval that the first of them took.
            if ops.iter().any(|op| matches!(op, Op::SetRate(..))) {
                return Ok(());
            }
            let mut given: Vec<_> = model.entries.iter()
                .filter(|entry| !matches!(entry.state, State::Hole | State::Gone))
                .collect();
            given.sort_by_key(|entry| entry.at);
            for pair in given.windows(2) {
                prop_assert!(pair[1].at - pair[0].at >= pair[0].cost * period / count);
            }
        }
    }
}

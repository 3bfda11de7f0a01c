//! G5 for reservations: they give back exactly what is still outstanding.

use crate::support::*;
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Algorithm, Limiter, Refused, Reservation};

const BURST: &str = "10/s burst 10";

fn take(limiter: &Limiter, at_ms: u64, cost: u64) -> Reservation {
    limiter.reserve_at(ms(at_ms), cost, Duration::ZERO).unwrap()
}

#[test]
fn a_refund_counts_what_it_gives_back_of_a_permit() {
    // taken, time passes, refunded, counted, available then
    for (row, (cost, wait_ms, refunded, counted, left)) in [
        (1, 0, 1, 1, 10),
        (1, 1, 1, 1, 10),
        (3, 150, 3, 2, 10),
        (3, 150, 1, 1, 9),
        (1, 100, 1, 0, 10),
    ]
    .into_iter()
    .enumerate()
    {
        let (limiter, hand) = manual(Algorithm::Gcra, "10/s");
        assert!(limiter.try_acquire_n(cost).is_allowed());
        hand.advance(Duration::from_millis(wait_ms));
        assert_eq!((limiter.refund(refunded), limiter.available()), (counted, left), "row {row}");
    }
}

#[test]
fn a_cancel_at_once_undoes_the_take() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        let before = limiter.peek_at(ms(0), 3);
        assert_eq!(take(&limiter, 0, 7).cancel_at(ms(0)), 7, "{algorithm}");
        assert_eq!(limiter.peek_at(ms(0), 3), before, "{algorithm}");
    }
}

#[test]
fn a_cancel_gives_back_only_what_time_has_not_refilled() {
    let (limiter, _) = manual(Algorithm::Gcra, BURST);
    let reservation = take(&limiter, 0, 5);
    // 200 ms refill two of the five.
    assert_eq!(reservation.cancel_at(ms(200)), 3);
    assert_eq!(limiter.available_at(ms(200)), 10);
}

#[test]
fn a_cancel_after_the_refill_leaves_later_takes_alone() {
    let (limiter, _) = manual(Algorithm::Gcra, BURST);
    let first = take(&limiter, 0, 5);
    let second = take(&limiter, 1000, 5);
    assert_eq!(first.cancel_at(ms(1000)), 0);
    assert_eq!(limiter.available_at(ms(1000)), 5, "the second take is intact");
    second.keep();
}

#[test]
fn two_takes_of_one_instant_give_back_both_in_either_order() {
    for reversed in [false, true] {
        let (limiter, _) = manual(Algorithm::Gcra, BURST);
        let mut takes = vec![take(&limiter, 0, 4), take(&limiter, 0, 5)];
        if reversed {
            takes.reverse();
        }
        let back: u64 = takes.into_iter().map(|reservation| reservation.cancel_at(ms(0))).sum();
        assert_eq!((back, limiter.available_at(ms(0))), (9, 10), "reversed: {reversed}");
    }
}

#[test]
fn a_drop_keeps_the_permits_spent() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        drop(take(&limiter, 0, 4));
        take(&limiter, 0, 2).keep();
        assert_eq!(limiter.available_at(ms(0)), 4, "{algorithm}");
        assert_eq!(limiter.snapshot_at(ms(0)).open_reservations, 0);
    }
}

#[test]
fn a_panic_while_holding_a_reservation_keeps_it_spent_and_hurts_nobody() {
    let (limiter, _) = manual(Algorithm::Gcra, BURST);
    let held = limiter.clone();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _reservation = take(&held, 0, 4);
        panic!("the caller's own trouble");
    }));
    assert!(outcome.is_err());
    assert_eq!(limiter.available_at(ms(0)), 6);
    assert_eq!(limiter.snapshot_at(ms(0)).open_reservations, 0);
}

#[test]
fn settling_corrects_in_both_directions() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        let less = take(&limiter, 0, 6).settle_at(ms(0), 2);
        assert_eq!((less.remaining(), less.cost()), (8, 2), "{algorithm}");
        let more = take(&limiter, 0, 1).settle_at(ms(0), 12);
        assert!(more.is_allowed(), "{algorithm}");
        assert!(limiter.try_acquire_at(ms(0), 0).is_denied(), "{algorithm}: in debt");
    }
}

#[test]
fn a_late_refund_never_reaches_into_a_new_window() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::AnchoredWindow, Algorithm::SlidingCounter]
    {
        let (limiter, _) = manual(algorithm, "10/s");
        let old = take(&limiter, 0, 8);
        let _new = limiter.try_acquire_at(ms(2100), 5);
        assert_eq!(old.cancel_at(ms(2100)), 0, "{algorithm}");
        assert_eq!(limiter.available_at(ms(2100)), 5, "{algorithm}");
        // In the same window it does count.
        assert_eq!(take(&limiter, 2200, 3).cancel_at(ms(2300)), 3, "{algorithm}");
    }
}

#[test]
fn a_log_forgets_a_cancelled_entry_while_it_is_inside() {
    let (limiter, _) = manual(Algorithm::SlidingLog, "10/s");
    let reservation = take(&limiter, 0, 8);
    let _ = limiter.try_acquire_at(ms(500), 2);
    assert_eq!(reservation.cancel_at(ms(999)), 8);
    assert_eq!(limiter.available_at(ms(999)), 8);
    let reservation = take(&limiter, 1000, 4);
    assert_eq!(reservation.cancel_at(ms(2000)), 0, "outside: nothing to forget");
}

#[test]
fn reservations_ahead_wait_and_refuse_by_the_callers_bound() {
    let (limiter, _) = manual(Algorithm::Gcra, "10/s burst 1");
    let wait = |max_ms| limiter.reserve_at(ms(0), 1, Duration::from_millis(max_ms));
    assert_eq!(wait(0).unwrap().act_at(), ms(0));
    assert!(matches!(wait(99), Err(Refused::TooLong { .. })));
    let second = wait(100).unwrap();
    assert_eq!(second.delay(ms(0)), Duration::from_millis(100));
    // Giving the slot back makes it free again.
    assert_eq!(second.cancel_at(ms(0)), 1);
    assert_eq!(wait(100).unwrap().act_at(), ms(100));
}

#[test]
fn refusals_say_why_and_what_to_do() {
    let (gcra, _) = manual(Algorithm::Gcra, "10/s burst 2");
    let _ = gcra.up_to(2);
    let text = |refused: Refused| refused.to_string();
    assert_eq!(
        text(gcra.reserve(3).unwrap_err()),
        "cost 3 never passes a limit of 2; ask for less, or raise the limit"
    );
    assert_eq!(
        text(gcra.reserve_within(1, Duration::from_millis(50)).unwrap_err()),
        "cost 1 has to wait 100ms, more than 50ms; ask for less, or allow a longer wait"
    );
    let (window, _) = manual(Algorithm::FixedWindow, "2/s");
    let _ = window.up_to(2);
    assert_eq!(
        text(window.reserve(1).unwrap_err()),
        "cost 1 does not pass now, and a window cannot be reserved ahead; retry after 1s, or use \
         gcra"
    );
}

#[test]
fn an_anonymous_refund_gives_back_what_is_outstanding_at_most() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        let _ = limiter.try_acquire_at(ms(0), 6);
        assert_eq!(limiter.refund_at(ms(0), 4), 4, "{algorithm}");
        assert_eq!(limiter.available_at(ms(0)), 8, "{algorithm}");
        assert_eq!(limiter.refund_at(ms(0), 100), 2, "{algorithm}: never above full");
        assert_eq!(limiter.available_at(ms(0)), 10, "{algorithm}");
        assert_eq!(limiter.refund_at(ms(0), u64::MAX), 0, "{algorithm}");
    }
}

#[test]
fn an_anonymous_refund_lowers_the_claims_of_open_reservations() {
    let (limiter, _) = manual(Algorithm::Gcra, BURST);
    let reservation = take(&limiter, 0, 4);
    assert_eq!(limiter.refund_at(ms(0), 4), 4);
    assert_eq!(reservation.cancel_at(ms(0)), 0, "its permits are back already");
    assert_eq!(limiter.available_at(ms(0)), 10);
}

#[test]
fn nobody_gives_back_what_an_anonymous_refund_gave_back_already() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "2 per 10s");
        let reservation = take(&limiter, 1, 1);
        assert_eq!(limiter.refund_at(ms(1), 1), 1);
        assert!(limiter.try_acquire_at(ms(1), 1).is_allowed());
        assert_eq!(reservation.cancel_at(ms(1)), 0, "{algorithm}");
        assert_eq!(limiter.available_at(ms(1)), 1, "{algorithm}");

        let (limiter, _) = manual(algorithm, "20 per 10s");
        let mut lease = limiter.lease(8, Duration::from_secs(1));
        assert!(lease.try_acquire().is_allowed());
        assert_eq!(limiter.refund(8), 8);
        assert!(limiter.try_acquire_n(8).is_allowed());
        lease.give_back();
        assert_eq!(limiter.available(), 12, "{algorithm}");
    }
}

#[test]
fn a_limiter_booked_up_for_years_says_so() {
    let (limiter, _) = manual(Algorithm::Gcra, "1/s burst 1000");
    let refused = (0..1_000_000).find_map(|_| limiter.reserve(1000).map(Reservation::keep).err());
    let text = refused.unwrap().to_string();
    assert!(text.contains("cannot be booked further ahead; cancel reservations"), "{text}");
}

#[test]
fn a_reset_makes_open_reservations_final() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        let reservation = take(&limiter, 0, 4);
        limiter.reset_at(ms(0));
        let _ = limiter.try_acquire_at(ms(0), 5);
        assert_eq!(reservation.cancel_at(ms(0)), 0, "{algorithm}");
        assert_eq!(limiter.available_at(ms(0)), 5, "{algorithm}");
    }
}

#[test]
fn forgotten_reservations_do_not_pile_up() {
    let (limiter, _) = manual(Algorithm::Gcra, "1000/s burst 10");
    for step in 0..10_000 {
        std::mem::forget(take(&limiter, step * 10, 5));
    }
    assert!(limiter.snapshot_at(ms(100_000)).open_reservations <= 10);
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        for second in 0..200 {
            std::mem::forget(take(&limiter, second * 1000, 5));
            std::mem::forget(take(&limiter, second * 1000, 0));
        }
        let open = limiter.snapshot_at(ms(200_000)).open_reservations;
        assert!(open <= 10, "{algorithm}: {open}");
    }
}

// ---- the exact world beside it ------------------------------------------------------------------

/// One thing that happened: a take (positive) or a refund (negative), in nanoseconds of refill.
#[derive(Clone, Copy, Debug)]
enum Happened {
    Take { at: i128, amount: i128, id: usize },
    Refund { at: i128, amount: i128 },
}

/// Plays a history back without one take; returns how far the limiter is booked at `now`.
fn booked_without(history: &[Happened], left_out: Option<usize>, now: i128) -> i128 {
    let mut tat = 0_i128;
    for event in history {
        match *event {
            Happened::Take { id, .. } if Some(id) == left_out => {}
            Happened::Take { at, amount, .. } => tat = tat.max(at) + amount,
            Happened::Refund { at, amount } => tat -= amount.min((tat - at).max(0)),
        }
    }
    tat.max(now)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Never over-credits: a cancel gives back at most what the limiter would have had without the
    /// take. And in every interval, admitted minus refunded cost stays within burst + rate x w.
    #[test]
    fn a_cancel_never_credits_more_than_the_take_still_costs(
        steps in prop::collection::vec((0..4_u8, 0..600_u64, 1..6_u64, any::<prop::sample::Index>()), 1..150),
    ) {
        // 10/s, so a permit is 100 ms; burst 5.
        let (limiter, _) = manual(Algorithm::Gcra, "10/s burst 5");
        let permit = 100_000_000_i128;
        let mut history = Vec::new();
        let mut open: Vec<(usize, Reservation)> = Vec::new();
        let mut net: Vec<(i128, i128)> = Vec::new();
        let (mut now_ms, mut next_id) = (0_u64, 0_usize);
        for (verb, gap_ms, cost, pick) in steps {
            now_ms += if gap_ms < 300 { gap_ms / 100 } else { gap_ms };
            let (now, at) = (ms(now_ms), i128::from(now_ms) * 1_000_000);
            if verb < 3 || open.is_empty() {
                let Ok(reservation) = limiter.reserve_at(now, cost, Duration::ZERO) else { continue };
                let amount = i128::from(cost) * permit;
                history.push(Happened::Take { at, amount, id: next_id });
                net.push((at, amount));
                if verb == 0 {
                    reservation.keep();
                } else {
                    open.push((next_id, reservation));
                }
                next_id += 1;
            } else {
                let (id, reservation) = open.swap_remove(pick.index(open.len()));
                let before = limiter.peek_at(now, 0).full_at().unwrap();
                let _ = reservation.cancel_at(now);
                let after = limiter.peek_at(now, 0).full_at().unwrap();
                let amount = i128::from(before.as_nanos()) - i128::from(after.as_nanos());
                let with = booked_without(&history, None, at);
                let without = booked_without(&history, Some(id), at);
                prop_assert!(amount <= with - without, "gave {amount}, owed {}", with - without);
                history.push(Happened::Refund { at, amount });
                net.push((at, -amount));
            }
            // G1, net of refunds, over every interval that ends now.
            let mut sum = 0;
            for (from, amount) in net.iter().rev() {
                sum += amount;
                prop_assert!(sum <= 5 * permit + (at - from), "{sum} since {from} at {at}");
            }
        }
    }
}

#[test]
fn the_model_of_this_file_plays_histories_back() {
    let history = [
        Happened::Take { at: 0, amount: 500, id: 0 },
        Happened::Take { at: 300, amount: 100, id: 1 },
        Happened::Refund { at: 300, amount: 50 },
    ];
    assert_eq!(booked_without(&history, None, 0), 550);
    assert_eq!(booked_without(&history, Some(0), 0), 350);
    assert_eq!(booked_without(&history[..2], Some(1), 0), 500);
    assert_eq!(booked_without(&history, None, 900), 900);
}

/// Cancels in a long sliding log, whose sums are kept in blocks, compared with a plain list of
/// admissions.
#[test]
fn a_long_sliding_log_takes_cancels_in_any_order() {
    const LIMIT: u64 = 3000;
    let (limiter, _) = manual(Algorithm::SlidingLog, "3000/10s");
    let (mut passed, mut open) = (Vec::new(), Vec::new());
    let mut random = 1_u64;
    for step in 0..20_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (at_ms, pick) = (2 * step, (random >> 33) as usize);
        passed.retain(|(then_ms, _)| then_ms + 10_000 > at_ms);
        let used: u64 = passed.iter().map(|(_, cost)| cost).sum();
        let cost = pick as u64 % 4 * (step % 3);
        if cost > 0 && used + cost <= LIMIT {
            passed.push((at_ms, cost));
            open.push((at_ms, take(&limiter, at_ms, cost)));
        }
        // From time to time nothing is cancelled for a while, so that the log fills up.
        if step / 2000 % 3 > 0 && !open.is_empty() {
            let (then_ms, reservation) = open.swap_remove(pick % open.len());
            let known = passed.iter().position(|(tick_ms, _)| *tick_ms == then_ms);
            let expected = known.map_or(0, |index| passed.remove(index).1);
            assert_eq!(reservation.cancel_at(ms(at_ms)), expected, "step {step}");
        }
        let used: u64 = passed.iter().map(|(_, cost)| cost).sum();
        assert_eq!(limiter.available_at(ms(at_ms)), LIMIT - used, "step {step}");
        // How many of the oldest entries have to leave until half of the limit is free.
        let mut left = used;
        let leaves = passed.iter().find(|(_, cost)| {
            left -= cost;
            left <= LIMIT / 2
        });
        let wait = limiter.peek_at(ms(at_ms), LIMIT / 2).retry_at();
        let expected = leaves.filter(|_| used > LIMIT / 2).map(|(then_ms, _)| ms(then_ms + 10_000));
        assert_eq!(wait, expected, "step {step}");
    }
}

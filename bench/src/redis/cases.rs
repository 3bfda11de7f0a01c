//! The rows of the table of scripts.

use super::ask::Ask;
use std::time::Duration;
use tollgate::{Algorithm, Quota, store::Policy};

/// One row.
pub(super) struct Case {
    pub(super) name: String,
    /// The call for one key.
    pub(super) hot: Ask,
    /// The call for many keys; `None` if it would add no information.
    pub(super) many: Option<Ask>,
    /// The expected answer; if it is a denial, the keys are used up before.
    pub(super) is_allowed: bool,
}

impl Case {
    fn same(name: impl Into<String>, ask: Ask) -> Self {
        Self { name: name.into(), hot: ask.clone(), many: Some(ask), is_allowed: true }
    }
}

/// Never used up, however long the run is.
const ROOMY: u64 = 100_000_000;
const DAY: Duration = Duration::from_secs(86_400);

fn policy(name: &str, quota: Quota, algorithm: Algorithm) -> Result<Policy, String> {
    Policy::with_algorithm(name, quota, algorithm).map_err(|error| format!("{name}: {error}"))
}

/// Returns the rows, INCR first.
pub(super) fn all() -> Result<Vec<Case>, String> {
    let mut cases = vec![Case::same("INCR", Ask::Incr), Case::same("empty EVALSHA", Ask::Empty)];
    // T is a whole number of microseconds, or is not.
    let quotas = [
        ("gcra", Quota::per_second(1).burst(1_000_000), Quota::per_day(1)),
        ("gcra, 7/min", Quota::per_minute(7).burst(1_000_000), Quota::per(7, DAY * 10).burst(1)),
    ];
    for (name, roomy, tight) in quotas {
        both(&mut cases, name, roomy, tight)?;
    }
    let (ad_hoc, full) = (Policy::ad_hoc("adhoc"), Policy::ad_hoc("adhoc0"));
    let (roomy, tight) = (Quota::per_second(1).burst(1_000_000), Quota::per_day(1));
    cases.push(Case::same("gcra, quota in the call, allowed", Ask::AdHoc(ad_hoc, roomy)));
    cases.push(denied(Case::same("gcra, quota in the call, denied", Ask::AdHoc(full, tight))));
    for (name, algorithm) in [
        ("fixed window", Algorithm::FixedWindow),
        ("anchored window", Algorithm::AnchoredWindow),
        ("sliding counter", Algorithm::SlidingCounter),
    ] {
        let allowed = policy(name, Quota::per_day(ROOMY), algorithm)?;
        let refused = policy(&format!("{name}0"), Quota::per_day(1), algorithm)?;
        cases.push(Case::same(format!("{name}, allowed"), Ask::Take(vec![allowed])));
        cases.push(denied(Case::same(format!("{name}, denied"), Ask::Take(vec![refused]))));
    }
    for (name, limit, window_ms) in [("log of 100", 100, 1), ("log of 10 000", 10_000, 100)] {
        logs(&mut cases, name, limit, window_ms)?;
    }
    several(&mut cases)?;
    let one = policy("verbs", Quota::per_second(1).burst(ROOMY), Algorithm::Gcra)?;
    cases.push(Case::same("gcra, peek", Ask::Peek(one.clone())));
    cases.push(Case::same("gcra, up to 10", Ask::UpTo(one.clone())));
    cases.push(Case::same("gcra, reserve + settle", Ask::Reserve(one)));
    cases.push(Case::same("in flight, enter + leave", Ask::Enter));
    cases.push(Case::same("textbook GCRA, our link", Ask::Naive));
    cases.push(Case::same("textbook GCRA, redis-rs 1.8", Ask::NaivePeer));
    Ok(cases)
}

fn denied(case: Case) -> Case {
    Case { is_allowed: false, ..case }
}

fn both(cases: &mut Vec<Case>, name: &str, roomy: Quota, tight: Quota) -> Result<(), String> {
    let allowed = policy(name, roomy, Algorithm::Gcra)?;
    let refused = policy(&format!("{name}0"), tight, Algorithm::Gcra)?;
    cases.push(Case::same(format!("{name}, allowed"), Ask::Take(vec![allowed])));
    cases.push(denied(Case::same(format!("{name}, denied"), Ask::Take(vec![refused]))));
    Ok(())
}

/// A log that admits every call and still has as many entries as its limit allows needs a window as
/// short as its limit: 100 000 permits each second.
fn logs(cases: &mut Vec<Case>, name: &str, limit: u64, window_ms: u64) -> Result<(), String> {
    let log = Algorithm::SlidingLog;
    let busy = Quota::per(limit, Duration::from_millis(window_ms));
    let hot = Ask::Take(vec![policy(name, busy, log)?]);
    let is_small = limit == 100;
    // Nearly as many as a log in Redis can count.
    let many = policy(&format!("{name} many"), Quota::per_day(30_000), log)?;
    cases.push(Case {
        name: format!("{name}, allowed"),
        hot,
        many: is_small.then(|| Ask::Take(vec![many])),
        is_allowed: true,
    });
    let refused = Ask::Take(vec![policy(&format!("{name}0"), Quota::per_day(limit), log)?]);
    cases.push(Case {
        name: format!("{name}, denied"),
        hot: refused.clone(),
        many: is_small.then_some(refused),
        is_allowed: false,
    });
    Ok(())
}

/// Three limits of one key in one decision; if it is denied, by the last of them.
fn several(cases: &mut Vec<Case>) -> Result<(), String> {
    let roomy = |name: &str| policy(name, Quota::per_second(1).burst(1_000_000), Algorithm::Gcra);
    let last = policy("c0", Quota::per_day(1), Algorithm::Gcra)?;
    let allowed = Ask::Take(vec![roomy("a")?, roomy("b")?, roomy("c")?]);
    let refused = Ask::Take(vec![roomy("a0")?, roomy("b0")?, last]);
    cases.push(Case::same("3 limits (gcra), allowed", allowed));
    cases.push(denied(Case::same("3 limits (gcra), denied", refused)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_incr_is_the_first() {
        let cases = all().unwrap();
        assert_eq!(cases[0].name, "INCR");
        let mut names: Vec<_> = cases.iter().map(|case| &case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), cases.len());
    }

    #[test]
    fn what_is_denied_can_be_used_up() {
        for case in all().unwrap().iter().filter(|case| !case.is_allowed) {
            assert!((1..=10_000).contains(&case.hot.limit()), "{}", case.name);
        }
    }
}

use super::*;
use crate::{
    Algorithm, KeyedLimiter, Quota,
    keyed::core::{BYPASS, INSTRUMENTED, OBSERVED, OVERRIDDEN, WAITED},
};

fn policy(number: u64) -> Policy {
    let quota = Quota::per_hour(number);
    Policy::with_algorithm(format!("{number}"), quota, Algorithm::Gcra).expect("a sound quota")
}

fn key(policy: &Policy) -> Key<'_> {
    Key { fingerprint: policy.id(), policy: Some(policy), call: None }
}

/// Whatever is going on (a key is blocked, listed or waited for, or all is bypassed), the fast path
/// leaves it to the general one; and a single demand is answered as a list of one.
#[test]
fn the_fast_path_ends_when_there_is_more_to_do() {
    let limiter = KeyedLimiter::<[u8]>::builder(Quota::unlimited()).build().expect("sound");
    let (core, policy) = (&limiter.core, policy(5));
    let now = core.clock.now();
    let take = || core.take_one(&policy, b"key", now, 1);
    assert_eq!(take().expect_err("it is not in force"), None);
    core.admit(&policy).expect("a sound quota");
    let fingerprint = core.fingerprint_of(&policy, b"key");
    assert_eq!(fingerprint, core.seed.fingerprint(&(policy.id(), &b"key"[..])));
    assert_eq!(take().expect("there is room").remaining(), 4);
    let decision = core.take_any(Key { fingerprint, ..key(&policy) }, now, 1).expect("it is there");
    assert_eq!(decision.remaining(), 3);
    for mode in [BYPASS, OVERRIDDEN, INSTRUMENTED, WAITED, OBSERVED] {
        core.mode.set(mode, true);
        assert_eq!(take().expect_err("there is more to do"), None, "{mode}");
        core.mode.set(mode, false);
    }
    assert_eq!(take().expect("nothing is going on").remaining(), 2);
}

//! Properties of keyed limits only: isolation, bounds, and limits of their own.

use super::host::Waiter;
use tollgate::{Concurrency, ConcurrencyError, KeyedConcurrency, Permit};

fn limit(limit: u64) -> KeyedConcurrency<str> {
    KeyedConcurrency::builder(limit).max_waiting(4).build().unwrap()
}

fn wait(limit: &KeyedConcurrency<str>, key: &str, cost: u64) -> Waiter {
    Waiter::new(limit.acquire_n(key, cost))
}

#[test]
fn keys_do_not_disturb_each_other() {
    let limit = limit(2);
    let alice = [limit.try_acquire("alice").unwrap(), limit.try_acquire("alice").unwrap()];
    let mut waiter = wait(&limit, "alice", 1).queued();
    assert!(limit.try_acquire("alice").is_err());
    let bob = limit.try_acquire_n("bob", 2).unwrap();
    assert_eq!((limit.len(), limit.total_in_flight(), limit.total_waiting()), (2, 4, 1));
    assert_eq!(
        (limit.in_flight("alice"), limit.in_flight("bob"), limit.in_flight("eve")),
        (2, 2, 0)
    );
    assert_eq!((limit.waiting("alice"), limit.waiting("bob")), (1, 0));
    drop(bob);
    assert_eq!((limit.len(), limit.available("bob"), waiter.wakes()), (1, 2, 0));
    drop(alice);
    drop(waiter.answer().unwrap());
    assert_eq!((limit.len(), limit.total_in_flight()), (0, 0));
}

#[test]
fn permits_of_different_keys_do_not_merge() {
    let limit = limit(5);
    let mut alice = limit.try_acquire_n("alice", 2).unwrap();
    alice.merge(limit.try_acquire_n("alice", 3).unwrap()).unwrap();
    let bob = alice.merge(limit.try_acquire("bob").unwrap()).unwrap_err();
    assert_eq!((alice.cost(), bob.cost()), (5, 1));
    drop(alice);
    assert_eq!((limit.in_flight("alice"), limit.in_flight("bob"), limit.len()), (0, 1, 1));
}

#[test]
fn owned_borrowed_and_number_keys_work() {
    let owned: KeyedConcurrency<str> = KeyedConcurrency::new(1).unwrap();
    let _held = owned.try_acquire("alice").unwrap();
    assert!(owned.try_acquire(&String::from("alice")).is_err());
    let numbers: KeyedConcurrency<u64> = KeyedConcurrency::new(1).unwrap();
    let _held = numbers.try_acquire(&7).unwrap();
    assert!(numbers.acquire(&7).block().unwrap_err().is_queue_full());
    assert!(numbers.acquire_n(&8, 1).block().is_ok());
}

#[test]
fn the_number_of_keys_is_bounded_and_keys_in_use_go_on() {
    let limit: KeyedConcurrency<u64> =
        KeyedConcurrency::builder(2).max_keys(100).max_waiting(1).build().unwrap();
    let mut held: Vec<Permit> = (0..100).map(|key| limit.try_acquire(&key).unwrap()).collect();
    let full = limit.try_acquire(&100).unwrap_err();
    assert!(full.is_too_many_keys() && !full.is_never() && !full.is_queue_full());
    assert_eq!(
        full.to_string(),
        "100 keys are in use, the maximum of max_keys, and this one is new; retry when one of them \
         is done, or raise max_keys"
    );
    assert!(limit.acquire(&100).block().unwrap_err().is_too_many_keys());
    assert!(limit.try_acquire_n(&100, 3).unwrap_err().is_never(), "never comes first");
    assert!(limit.try_acquire_n(&100, 0).is_ok(), "a cost of nothing needs no memory");
    held.push(limit.try_acquire(&7).unwrap());
    assert_eq!((limit.len(), limit.total_in_flight()), (100, 101));
    held.swap_remove(3).release();
    held.push(limit.try_acquire(&100).unwrap());
    assert_eq!(limit.len(), 100);
    drop(held);
    assert_eq!((limit.len(), limit.total_in_flight()), (0, 0));
}

#[test]
fn waiters_of_all_keys_together_are_bounded() {
    let builder = KeyedConcurrency::<str>::builder(1).max_waiting(2).max_waiting_total(3);
    let limit = builder.build().unwrap();
    let held = ["a", "b"].map(|key| limit.try_acquire(key).unwrap());
    let first = [wait(&limit, "a", 1).queued(), wait(&limit, "a", 1).queued()];
    let full = wait(&limit, "a", 1).answer().unwrap_err();
    assert!(
        full.is_queue_full() && full.to_string().contains("2 wait, the maximum of max_waiting;")
    );
    let second = wait(&limit, "b", 1).queued();
    let full = wait(&limit, "b", 1).answer().unwrap_err();
    assert!(full.is_queue_full());
    assert_eq!(
        full.to_string(),
        "1 of 1 permits are in flight and 3 wait on all keys, the maximum of max_waiting_total; \
         retry cost 1 later, or raise it"
    );
    drop(first);
    assert_eq!(limit.total_waiting(), 1);
    let third = wait(&limit, "b", 1).queued();
    limit.close();
    assert_eq!((limit.total_waiting(), limit.len()), (0, 2));
    drop((held, second, third));
    assert_eq!((limit.total_waiting(), limit.len(), limit.total_in_flight()), (0, 0, 0));
}

#[test]
fn a_key_may_have_a_limit_of_its_own() {
    let builder = KeyedConcurrency::<str>::builder(2).max_waiting(4).max_key_limits(2);
    let limit = builder.build().unwrap();
    let _alice = limit.try_acquire_n("alice", 2).unwrap();
    let mut waiter = wait(&limit, "alice", 2).queued();
    limit.set_key_limit("alice", 4).unwrap();
    let more = waiter.answer().unwrap();
    assert_eq!((limit.key_limit("alice"), limit.key_limit("bob"), limit.limit()), (4, 2, 2));

    limit.set_limit(3).unwrap();
    assert_eq!((limit.key_limit("alice"), limit.key_limit("bob")), (4, 3), "its own stays");
    let mut big = wait(&limit, "alice", 4).queued();
    limit.clear_key_limit("alice");
    assert_eq!(limit.key_limit("alice"), 3);
    assert!(big.answer().unwrap_err().is_never(), "4 can never pass under 3");
    drop(more);

    limit.set_key_limit("alice", 0).unwrap();
    limit.set_key_limit("bob", 9).unwrap();
    limit.set_key_limit("bob", 8).unwrap();
    let error = limit.set_key_limit("eve", 1).unwrap_err();
    assert_eq!(error, ConcurrencyError::TooManyKeyLimits { max_key_limits: 2 });
    assert_eq!(
        error.to_string(),
        "2 keys have a limit of their own, the maximum of max_key_limits; clear one, or raise \
         max_key_limits"
    );
    assert_eq!((limit.key_limit("bob"), limit.key_limits()), (8, 2));
    limit.clear_key_limit("eve");
    limit.clear_key_limit("bob");
    assert_eq!(limit.key_limits(), 1);
    assert!(limit.try_acquire("alice").unwrap_err().is_never());
    let most = Concurrency::LIMIT_MAX + 1;
    assert_eq!(
        limit.set_key_limit("bob", most),
        Err(ConcurrencyError::LimitTooLarge { limit: most })
    );
}

#[test]
fn a_change_for_all_reaches_every_key() {
    let limit: KeyedConcurrency<u64> = KeyedConcurrency::builder(1).max_waiting(1).build().unwrap();
    let held: Vec<Permit> = (0..300).map(|key| limit.try_acquire(&key).unwrap()).collect();
    let mut waiters: Vec<Waiter> =
        (0..300).map(|key| Waiter::new(limit.acquire(&key)).queued()).collect();
    limit.set_limit(2).unwrap();
    let taken: Vec<Permit> = waiters.iter_mut().map(|waiter| waiter.answer().unwrap()).collect();
    assert_eq!((limit.total_in_flight(), limit.total_waiting()), (600, 0));
    limit.set_limit(0).unwrap();
    drop((held, taken));
    assert!(limit.is_empty());
    assert!(limit.try_acquire(&1).unwrap_err().is_never());
}

#[test]
fn an_answer_that_nobody_fetched_keeps_its_key_until_then() {
    let limit = limit(2);
    let held = limit.try_acquire("alice").unwrap();
    let mut refused = wait(&limit, "alice", 2).queued();
    limit.set_limit(1).unwrap();
    drop(held);
    assert_eq!((limit.len(), limit.in_flight("alice")), (1, 0));
    assert!(refused.answer().unwrap_err().is_never());
    assert_eq!(limit.len(), 0);
}

#[test]
fn nonsense_is_refused_by_name() {
    let build = |builder: tollgate::KeyedConcurrencyBuilder<str>| builder.build().unwrap_err();
    let keyed = || KeyedConcurrency::<str>::builder(1);
    assert_eq!(
        build(keyed().max_keys(0)).to_string(),
        "max_keys 0 would refuse every key; give at least 1, or a limit of 0 to let nothing pass"
    );
    let many = Concurrency::WAITING_MAX + 1;
    for (bound, builder) in [
        ("max_keys", keyed().max_keys(many)),
        ("max_waiting", keyed().max_waiting(many)),
        ("max_waiting_total", keyed().max_waiting_total(many)),
        ("max_key_limits", keyed().max_key_limits(many)),
    ] {
        assert_eq!(build(builder), ConcurrencyError::BoundTooLarge { bound, value: many });
    }
    let named = keyed().name("hosts").build().unwrap();
    assert_eq!((named.name(), named.max_keys(), named.is_closed()), ("hosts", 1_000_000, false));
}

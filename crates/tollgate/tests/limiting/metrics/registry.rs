//! What the registry keeps, refuses and lists.

use super::{CAPACITY, parser::parse};
use std::time::Duration;
use tollgate::{
    Breaker, Clock, Limiter, Quota,
    observe::{Registry, RegistryError},
};

#[test]
fn a_dropped_limiter_leaves_the_registry_and_its_name_is_free() {
    let registry = Registry::new();
    let limiter = Limiter::new(Quota::per_second(5)).unwrap();
    registry.add("api", &limiter).unwrap();
    let clone = limiter.clone();
    let twice = registry.add("api", &limiter);
    assert_eq!(twice, Err(RegistryError::NameTaken("api".into())));
    drop(limiter);
    assert_eq!(registry.list().len(), 1, "a clone is left");
    drop(clone);
    assert_eq!((registry.list().len(), registry.prometheus().as_str()), (0, ""));
    let other = Limiter::new(Quota::per_second(5)).unwrap();
    registry.add("api", &other).unwrap();
    assert!(registry.remove("api") && !registry.remove("api"));
}

#[test]
fn a_registry_is_bounded_and_refuses_names_that_it_cannot_keep_apart() {
    let registry = Registry::new();
    let limiter = Limiter::new(Quota::per_second(5)).unwrap();
    for name in ["", "a/b", &"x".repeat(Registry::NAME_MAX + 1)] {
        let error = registry.add(name, &limiter).unwrap_err();
        assert!(matches!(error, RegistryError::Name(_)), "{name}: {error}");
    }
    for number in 0..Registry::ENTRIES_MAX {
        registry.add(&number.to_string(), &limiter).unwrap();
    }
    let error = registry.add("more", &limiter).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the registry is full, so \"more\" cannot be added to its 1000 entries; use one keyed \
         limiter for many limiters of one kind"
    );
}

#[test]
fn hostile_names_stay_one_label_and_one_line() {
    let registry = Registry::new();
    let limiter = Limiter::new(Quota::per_second(5)).unwrap();
    let names = ["a\"} 1\nb{c=\"", "back\\slash", "newline\n", "ünï \u{202e}code"];
    names.iter().for_each(|name| registry.add(name, &limiter).unwrap());
    let text = parse(&registry.prometheus());
    for name in names {
        assert_eq!(text.value(CAPACITY, &[("limiter", name)]), 5.0, "{name:?}");
    }
    let lines: Vec<_> = registry.list().iter().map(ToString::to_string).collect();
    for (line, shown) in
        lines.iter().zip(["a\"} 1\\nb{c=\"", "back\\slash", "newline\\n", "ünï \\u{202e}code"])
    {
        assert_eq!(*line, format!("{shown} (limiter), 5/s, 5 of 5 free"));
    }
}

#[test]
fn the_list_is_one_line_for_each_limiter() {
    let (clock, hand) = Clock::manual();
    let registry = Registry::new();
    let limiter = Limiter::builder(Quota::per_second(1)).clock(clock.clone()).counted();
    let limiter = limiter.build().unwrap();
    let breaker = Breaker::builder().clock(clock).build().unwrap();
    registry.add("api", &limiter).unwrap();
    registry.add("db", &breaker).unwrap();
    let lines = || registry.list().iter().map(ToString::to_string).collect::<Vec<_>>();
    let idle = "api (limiter), 1/s, 1 of 1 free";
    assert_eq!(lines(), [idle, "db (breaker), closed"]);
    (0..200).for_each(|_| assert!(limiter.try_acquire_n(2).is_denied()));
    hand.advance(Duration::from_secs(10));
    assert_eq!(lines()[0], format!("{idle}, denies 100 %"));
    breaker.hold_open();
    assert_eq!(lines()[1], "db (breaker), held_open");
}

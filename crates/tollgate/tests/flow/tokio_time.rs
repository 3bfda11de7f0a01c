//! A limiter on tokio's paused time.
#![cfg(feature = "tokio")]

use std::time::Duration;
use tollgate::{Clock, Limiter, Quota};

#[tokio::test(start_paused = true)]
async fn follows_paused_time() {
    let limiter =
        Limiter::builder(Quota::per_second(10).burst(1)).clock(Clock::tokio()).build().unwrap();
    assert!(limiter.try_acquire().is_allowed());
    assert!(limiter.try_acquire().is_denied());
    tokio::time::advance(Duration::from_millis(99)).await;
    assert!(limiter.try_acquire().is_denied());
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(limiter.try_acquire().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_clone_of_the_clock_shows_the_same_time() {
    let clock = Clock::tokio();
    let other = clock.clone();
    tokio::time::advance(Duration::from_secs(3)).await;
    assert_eq!(clock.now(), other.now());
    assert_eq!(clock.now().as_nanos(), 3_000_000_000);
}

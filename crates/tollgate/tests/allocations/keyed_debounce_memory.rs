//! The memory that debouncers by key allocate.

use crate::counting::{blocks, bytes};
use std::time::Duration;
use tollgate::{Driver, KeyedDebouncer, ManualClock};

#[test]
fn a_trigger_of_a_key_that_is_held_allocates_nothing_and_quiet_keys_leave_nothing() {
    for leading in [false, true] {
        let hand = ManualClock::new();
        let builder = KeyedDebouncer::builder(Duration::from_secs(1));
        let builder = if leading { builder.leading() } else { builder };
        let debouncer = builder
            .max_wait(Duration::from_secs(4))
            .driver(Driver::manual(&hand))
            .start(|_: u64, _| ())
            .unwrap();
        // The manual clock runs everything on this thread.
        let empty = bytes();
        (0..10_000).for_each(|key| debouncer.trigger(key, key).unwrap());
        let full = bytes() - empty;
        assert!((10_000 * 150..10_000 * 1000).contains(&full), "{full} bytes for 10,000 keys");
        let asked = blocks(|| {
            for value in 0..5 {
                (0..10_000).for_each(|key| debouncer.trigger(key, value).unwrap());
            }
        });
        assert_eq!(asked, 0, "leading {leading}");
        hand.advance(Duration::from_secs(10));
        assert_eq!(debouncer.len(), 0);
        let left = bytes() - empty;
        assert!(left < 64 * 1024, "{left} bytes are left of {full}, leading {leading}");
    }
}

//! What debouncers by key ask of the allocator.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "an allocator that counts has no safe form")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicIsize, Ordering::Relaxed},
    time::Duration,
};
use tollgate::{Driver, KeyedDebouncer, ManualClock};

struct Counting;

thread_local! {
    static BLOCKS: Cell<u64> = const { Cell::new(0) };
}

/// Bytes in use.
static BYTES: AtomicIsize = AtomicIsize::new(0);

fn note(bytes: isize) {
    let _ = BLOCKS.try_with(|blocks| blocks.set(blocks.get() + 1));
    // ORDERING: Relaxed, a count that publishes nothing.
    BYTES.fetch_add(bytes, Relaxed);
}

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // ORDERING: Relaxed, as above.
        BYTES.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn blocks(of: impl FnOnce()) -> u64 {
    let before = BLOCKS.get();
    of();
    BLOCKS.get() - before
}

/// One test, because the bytes are those of the whole process.
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
        // ORDERING: Relaxed, only this thread allocates.
        let empty = BYTES.load(Relaxed);
        (0..10_000).for_each(|key| debouncer.trigger(key, key).unwrap());
        let full = BYTES.load(Relaxed) - empty;
        assert!((10_000 * 150..10_000 * 1000).contains(&full), "{full} bytes for 10,000 keys");
        let asked = blocks(|| {
            for value in 0..5 {
                (0..10_000).for_each(|key| debouncer.trigger(key, value).unwrap());
            }
        });
        assert_eq!(asked, 0, "leading {leading}");
        hand.advance(Duration::from_secs(10));
        assert_eq!(debouncer.len(), 0);
        let left = BYTES.load(Relaxed) - empty;
        assert!(left < 64 * 1024, "{left} bytes are left of {full}, leading {leading}");
    }
}

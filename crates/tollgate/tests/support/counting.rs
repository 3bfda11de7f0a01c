//! An allocator that counts, for whole test programs: `#[path = "support/counting.rs"] mod counting;`.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicIsize, Ordering::Relaxed},
};

thread_local! {
    static BLOCKS: Cell<u64> = const { Cell::new(0) };
}

/// Bytes in use, by all threads.
static BYTES: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is going away has no counter any more.
        let _ = BLOCKS.try_with(|blocks| blocks.set(blocks.get() + 1));
        // ORDERING: Relaxed, a count that publishes nothing.
        BYTES.fetch_add(layout.size() as isize, Relaxed);
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

/// Returns how many blocks this thread has asked for so far.
pub(crate) fn blocks_so_far() -> u64 {
    BLOCKS.with(Cell::get)
}

/// Returns how many blocks this thread asks for meanwhile.
pub(crate) fn blocks(run: impl FnOnce()) -> u64 {
    let before = blocks_so_far();
    run();
    blocks_so_far() - before
}

/// Returns how many bytes the process has in use.
pub(crate) fn bytes() -> isize {
    // ORDERING: Relaxed, as above.
    BYTES.load(Relaxed)
}

//! An allocator that counts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static BLOCKS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending no longer has a counter.
        let _ = BLOCKS.try_with(|blocks| blocks.set(blocks.get() + 1));
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + layout.size() as isize));
        // SAFETY: the caller's guarantees are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() - layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns how many blocks this thread has allocated so far.
pub(crate) fn blocks_so_far() -> u64 {
    BLOCKS.with(Cell::get)
}

/// Returns how many blocks this thread allocates during `run`.
pub(crate) fn blocks(run: impl FnOnce()) -> u64 {
    let before = blocks_so_far();
    run();
    blocks_so_far() - before
}

/// Returns how many bytes this thread has allocated and not freed.
pub(crate) fn bytes() -> isize {
    BYTES.with(Cell::get)
}

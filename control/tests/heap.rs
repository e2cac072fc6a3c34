//! The allocator of the binary keeps nothing of tables that are replaced again and again.
//!
//! With glibc's before 2.38 this grows by every table: 1,200 MiB.

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;

use mimalloc::MiMalloc;

/// As in `main.rs`.
#[global_allocator]
static HEAP: MiMalloc = MiMalloc;

/// A table of a snapshot: aligned to cache lines, written in full.
fn table(bytes: usize) -> (*mut u8, Layout) {
    let layout = Layout::from_size_align(bytes, 64).expect("a power of two");
    // SAFETY: the layout is not empty, and the block is written within its size.
    let block = unsafe {
        let block = alloc(layout);
        assert!(!block.is_null());
        block.write_bytes(1, bytes);
        block
    };
    (black_box(block), layout)
}

fn free((block, layout): (*mut u8, Layout)) {
    // SAFETY: `table` made both, and each is freed once below.
    unsafe { dealloc(block, layout) }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process has one");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its resident size");
    let kilobytes = line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    kilobytes.expect("a number") << 10
}

#[test]
fn tables_that_are_replaced_leave_no_memory_behind() {
    const BYTES: usize = 4 << 20;
    const ROUNDS: u32 = 300;
    // glibc takes blocks up to this size from its heap once one was freed.
    free(table(30 << 20));
    let mut standing = table(BYTES);
    let mut kept = Vec::with_capacity(ROUNDS as usize);
    let before = resident();
    for round in 0..ROUNDS {
        let next = table(BYTES);
        // What outlives a publication lies between tables: views, events, drains.
        kept.push(vec![round; 25]);
        free(std::mem::replace(&mut standing, next));
    }
    let grown = resident().saturating_sub(before) >> 20;
    free(standing);
    assert!(grown < 64, "{grown} MiB after {ROUNDS} tables of {} MiB", BYTES >> 20);
}

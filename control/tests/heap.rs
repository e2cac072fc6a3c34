//! Checks that the allocator of the binary retains no memory of tables that are replaced repeatedly.
//!
//! With glibc's allocator before 2.38, the memory grows by several hundred MiB.

use std::hint::black_box;

use mimalloc::MiMalloc;

/// The allocator of `main.rs`.
#[global_allocator]
static HEAP: MiMalloc = MiMalloc;

/// An entry of a table of the packet path, aligned to a cache line.
#[derive(Clone)]
#[repr(align(64))]
struct Entry {
    _line: [u8; 64],
}

/// A table of a snapshot, with all pages written.
fn table(bytes: usize) -> Vec<Entry> {
    black_box(vec![Entry { _line: [1; 64] }; bytes / size_of::<Entry>()])
}

fn resident() -> u64 {
    let status = procfs::process::Process::myself().and_then(|process| process.status());
    status.expect("this process has one").vmrss.expect("its resident size") << 10
}

#[test]
fn tables_that_are_replaced_leave_no_memory_behind() {
    const BYTES: usize = 4 << 20;
    const ROUNDS: u32 = 300;
    // After one block of up to this size is freed, glibc allocates such blocks from its heap.
    drop(table(30 << 20));
    let mut current = table(BYTES);
    let mut kept = Vec::with_capacity(ROUNDS as usize);
    let before = resident();
    for round in 0..ROUNDS {
        let next = table(BYTES);
        // Objects that outlive a publication lie between the tables: views, events, drains.
        kept.push(vec![round; 25]);
        drop(std::mem::replace(&mut current, next));
    }
    let grown = resident().saturating_sub(before) >> 20;
    assert!(grown < 64, "{grown} MiB after {ROUNDS} tables of {} MiB", BYTES >> 20);
}

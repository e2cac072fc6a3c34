//! Feeds seeded inputs to the readers of captures, and measures what they allocate.
//!
//! This is a separate binary, because its allocator counts and zeroes memory itself. With it, the fuzz run of the
//! pipeline, whose tables of 60 MiB the system zeroes, would take ten times as long.

mod seeds;

use seeds::{each_seed, runs};
use tidegate_capture::BLOCK_LEN_MAX;
use tidegate_pipeline::testing::fuzz;

#[test]
fn no_capture_panics_the_reader_or_makes_it_allocate_beyond_a_block() {
    each_seed("captures", runs(20_000), |bytes| {
        let used = allocation_counter::measure(|| {
            fuzz::captures(bytes);
        });
        let made = 2 * 4096 + bytes.len() as u64 * 8;
        assert!(used.bytes_max <= u64::from(BLOCK_LEN_MAX) + made, "{used:?} for {} bytes", bytes.len());
    });
}

//! A short fuzz run with every test run. It feeds seeded inputs to the harness that `make fuzz` drives for hours, and
//! repeats every input that ever failed (`regressions/`).
//!
//! `tidegate_core::testing::fuzz` has the generated frames and the checked properties. This file only supplies the
//! inputs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use tidegate_core::capture::BLOCK_LEN_MAX;
use tidegate_core::testing::fuzz;

/// The number of inputs of each kind. `TIDEGATE_FUZZ_RUNS` replaces it.
fn runs(usual: u64) -> u64 {
    std::env::var("TIDEGATE_FUZZ_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// SplitMix64 (Steele 2014): returns `len` bytes for a seed.
fn input(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0xd134_2543_de82_ef95);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(len).collect()
}

/// Runs each seed, and names the failing one with the input for `regressions/`.
fn each_seed(prefix: &str, count: u64, run: impl Fn(&[u8])) {
    for seed in 0..count {
        let bytes = input(seed, 200 + (seed % 12) as usize * 150);
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&bytes))) {
            let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{prefix}-{seed}"));
            std::fs::write(&file, &bytes).expect("the failing input is kept");
            eprintln!("seed {seed} fails; its input is {}", file.display());
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn no_frame_panics_and_each_is_accounted_for_once() {
    let reached = Mutex::new(BTreeMap::new());
    each_seed("pipeline", runs(20_000), |bytes| {
        let outcome = fuzz::pipeline(bytes);
        let mut reached = reached.lock().expect("a run that failed ends the test");
        for (reason, count) in outcome.reasons {
            *reached.entry(reason).or_insert(0) += count;
        }
    });
    let reached = reached.into_inner().expect("a run that failed ends the test");
    // A run of this kind and length does not reach these reasons. `drop_reasons.rs` has a frame for each.
    let beyond = [
        "frame_too_long",
        "fragment_beyond_end",
        "nat_conflict",
        "flow_table_full",
        "snat_ports_exhausted",
        "hand_over_loop",
        "not_contiguous",
        "no_buffer",
        "tx_queue_full",
        "link_down",
        "punt_queue_full",
        "punt_rate_limited",
        "hand_over_ring_full",
    ];
    let missed: Vec<_> = reached.iter().filter(|(_, count)| **count == 0).map(|(reason, _)| reason).collect();
    assert!(
        missed.iter().all(|reason| beyond.contains(&reason.1)),
        "the generator no longer reaches {missed:?}: {reached:#?}"
    );
}

#[test]
fn the_same_input_gives_the_same_verdicts_and_bytes() {
    for seed in 0..200 {
        let bytes = input(seed, 1500);
        assert_eq!(fuzz::pipeline(&bytes), fuzz::pipeline(&bytes), "seed {seed}");
    }
}

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

#[test]
fn inputs_that_once_failed_pass() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    for entry in std::fs::read_dir(&directory).expect("the directory of regressions is there") {
        let path = entry.expect("its entries can be read").path();
        let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).expect("a regression can be read");
        match name.split('-').next() {
            Some("pipeline") => drop(fuzz::pipeline(&bytes)),
            Some("captures") => drop(fuzz::captures(&bytes)),
            _ => {}
        }
    }
}

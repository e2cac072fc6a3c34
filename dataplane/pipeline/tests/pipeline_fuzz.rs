//! A short fuzz run. It feeds seeded inputs to the harness that `make fuzz` runs for hours, and repeats every input
//! that ever failed (`regressions/`).
//!
//! `tidegate_pipeline::testing::fuzz` generates the frames and checks their properties. This file only supplies the
//! inputs.

mod seeds;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use seeds::{each_seed, input, runs};
use tidegate_pipeline::testing::fuzz;

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
    // A run of this kind and length doesn't reach these reasons. `drop_reasons.rs` has a frame for each.
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
        // An INIT in fragments, or fragments of a flow whose ports change, are too rare.
        "sctp_fragment",
        // The worlds store every SYN that a backend refuses.
        "backend_refused",
        // The table of masqueraded flows is too large for so few packets.
        "masquerade_full",
        // The limits of bandwidth are too high for so few packets.
        "service_bandwidth",
    ];
    let missed: Vec<_> = reached.iter().filter(|(_, count)| **count == 0).map(|(reason, _)| reason).collect();
    assert!(
        missed.iter().all(|reason| beyond.contains(&reason.1)),
        "the generator no longer reaches {missed:?}: {reached:#?}"
    );
}

#[test]
fn equal_inputs_result_in_equal_verdicts_and_bytes() {
    for seed in 0..200 {
        let bytes = input(seed, 1500);
        assert_eq!(fuzz::pipeline(&bytes), fuzz::pipeline(&bytes), "seed {seed}");
    }
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

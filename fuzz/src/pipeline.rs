//! libFuzzer target for the pipeline. Every input is one run of `tidegate_pipeline::testing::fuzz::pipeline`, which defines
//! the input format and the invariants. `make fuzz` builds and runs it; failing inputs go to
//! `dataplane/pipeline/tests/regressions/`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tidegate_pipeline::testing::fuzz::pipeline(input);
});

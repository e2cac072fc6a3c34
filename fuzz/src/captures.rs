//! libFuzzer target for the reader of captures. Every input is one call of `tidegate_pipeline::testing::fuzz::captures`.
//! `make fuzz` builds and runs it; failing inputs go to `dataplane/pipeline/tests/regressions/`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tidegate_pipeline::testing::fuzz::captures(input);
});

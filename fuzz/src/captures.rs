//! libFuzzer over the reader of captures: every input is one call of `tidegate_core::testing::fuzz::captures`.
//! Built and started by `make fuzz`; what it finds goes to `dataplane/core/tests/regressions/`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tidegate_core::testing::fuzz::captures(input);
});

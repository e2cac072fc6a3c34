//! libFuzzer over the pipeline: every input is one run of `tidegate_core::testing::fuzz::pipeline`, which says what is
//! thrown and what must hold. Built and started by `make fuzz`; what it finds goes to `dataplane/core/tests/regressions/`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tidegate_core::testing::fuzz::pipeline(input);
});

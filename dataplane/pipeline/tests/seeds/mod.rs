//! Seeded inputs of the short fuzz runs.

use std::path::Path;

/// The number of inputs of each kind. `TIDEGATE_FUZZ_RUNS` replaces it.
pub(crate) fn runs(usual: u64) -> u64 {
    std::env::var("TIDEGATE_FUZZ_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// SplitMix64 (Steele 2014): returns `len` bytes for a seed.
pub(crate) fn input(seed: u64, len: usize) -> Vec<u8> {
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
pub(crate) fn each_seed(prefix: &str, count: u64, run: impl Fn(&[u8])) {
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

//! 1,024 steps of time: the exponential distribution in integers, as a constant table.
//!
//! Entry `k` is `-ln((k + 1/2) / 1024)` times 2^20, rounded to nearest. The values are part of the definition. The
//! compiler computes them with integers, because a logarithm computed at run time may differ in its last bit between
//! machines.

/// Bits of a word that choose a step.
pub(super) const STEP_BITS: u32 = 10;

/// Steps drawn from one word of 64 bits.
pub(super) const STEPS_PER_WORD: u64 = 6;

/// The length of each time step, by the 10 bits that choose it.
pub(super) static STEPS: [u32; 1 << STEP_BITS] = {
    let mut steps = [0; 1 << STEP_BITS];
    let mut k = 0;
    while k < steps.len() {
        // -ln(n / 2^11) = (11 - log2(n)) * ln(2), with 40 binary digits.
        let n = 2 * k as u64 + 1;
        let ln = (((11 << LOG_BITS) - log2(n) as u128) * LN_2) >> 64;
        steps[k] = ((ln >> (LOG_BITS - 21)) as u32 + 1) >> 1;
        k += 1;
    }
    steps
};

/// The natural logarithm of 2, times 2^64.
const LN_2: u128 = 0xb172_17f7_d1cf_79ab;

/// The binary digits of [`log2`].
const LOG_BITS: u32 = 40;

/// The binary logarithm times 2^40, rounded down. Each squaring of the mantissa yields one more digit.
const fn log2(n: u64) -> u64 {
    let (mut log, mut mantissa) = (n.ilog2() as u64, (n as u128) << (63 - n.ilog2()));
    let mut digit = 0;
    while digit < LOG_BITS {
        mantissa = (mantissa * mantissa) >> 63;
        let carry = mantissa >> 64;
        mantissa >>= carry;
        log = (log << 1) | carry as u64;
        digit += 1;
    }
    log
}

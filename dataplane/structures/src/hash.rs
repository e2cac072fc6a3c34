//! The hashes of the packet path: selection (which backend), keys (which table entry), identity (the position of a
//! backend in a Maglev permutation).
//!
//! All repeat one step, [`fold`]: a 64 x 64 -> 128 bit multiplication with both halves xored. Addresses are read as
//! big-endian words, so results are the same on every machine, gateway and version. The golden values in the tests are
//! a contract between gateways: active/active gateways choose the same backend because these agree. The selection hash
//! has no key, so a client that chooses its ports can choose its backend; `selection_key` prevents that.
//!
//! Invariant: golden values never change, because a change would move every connection of every gateway. A different
//! hash needs a new version beside the old one.

use tidegate_wire::Addr;

/// Fractional digits of pi: constants without a hidden purpose.
const K: [u64; 10] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345, // the digits end in 44; an even factor would lose a bit if the other word is 0
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6c,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
    0x9216_d5d9_8979_fb1b,
    0xd131_0ba6_98df_b5ac,
];

/// Hash of a 5-tuple, ports in host order, `proto` the IANA number: three multiplications.
///
/// Two rounds mix the addresses, and the ports with the destination, so that sequential ports and addresses spread
/// evenly over tables of any size.
#[inline(always)]
#[must_use]
pub fn selection_hash(src: &Addr, src_port: u16, dst: &Addr, dst_port: u16, proto: u8) -> u64 {
    let (s0, s1) = words(src);
    let (d0, d1) = words(dst);
    let ports = u64::from(src_port) << 32 | u64::from(dst_port) << 16 | u64::from(proto);
    let from = fold(s0 ^ K[0], s1 ^ K[1]);
    let to = fold(d0 ^ K[2] ^ ports, d1 ^ K[3]);
    fold(from ^ K[4], to ^ K[5])
}

/// A second hash of a flow, derived from its [`selection_hash`], for outer headers. The flows of one backend have
/// similar selection hashes, and this hash must distinguish them.
#[inline]
#[must_use]
pub fn outer_hash(selection: u64) -> u64 {
    fold(selection ^ K[6], K[8])
}

/// A third hash of a flow, derived from its [`selection_hash`], for the share of flows that a service rejects. It must
/// not depend on the backend that the selection hash chooses.
#[inline]
#[must_use]
pub fn rejection_hash(selection: u64) -> u64 {
    fold(selection ^ K[9], K[7])
}

/// Hash of the client's address alone, for `sessionAffinity: ClientIP`: two multiplications.
///
/// Neither the VIP nor the port counts, so a client has the same backend on all ports of a Service whose ports share a
/// table.
#[inline]
#[must_use]
pub fn client_hash(src: &Addr) -> u64 {
    let (s0, s1) = words(src);
    let from = fold(s0 ^ K[0], s1 ^ K[1]);
    fold(from ^ K[4], K[6])
}

/// Hash of (address, protocol, port), for look-ups of services and endpoints. It may change in a new version: no stored
/// value outlives a snapshot.
#[inline]
#[must_use]
pub fn key_hash(addr: &Addr, proto: u8, port: u16) -> u64 {
    let (a0, a1) = words(addr);
    let rest = u64::from(port) << 8 | u64::from(proto);
    fold(fold(a0 ^ K[7], a1 ^ K[8]) ^ rest ^ K[9], K[4])
}

/// Hash of a word under a secret, for small tables of one worker. It may change in a new version.
#[inline]
#[must_use]
pub fn keyed_hash(word: u64, secret: u64) -> u64 {
    fold(fold(word ^ secret ^ K[1], secret.rotate_left(32) ^ K[2]) ^ K[3], K[5])
}

/// Two hashes of a backend's stable identity: its address, and its number among equal addresses.
pub fn identity_hashes(addr: &Addr, occurrence: u32) -> (u64, u64) {
    let (a0, a1) = words(addr);
    let base = fold(a0 ^ K[6], a1 ^ K[7]) ^ (u64::from(occurrence) << 32);
    (fold(base ^ K[8], K[0]), fold(base ^ K[9], K[3]))
}

/// Maps `hash` to `0..len` by its upper half, with a multiplication and a shift instead of a remainder. The bias is
/// below `len / 2^32`, 0.015 % for the largest table.
#[inline]
#[must_use]
pub fn scale(hash: u64, len: u32) -> u32 {
    // The product of two values below 2^32 shifted by 32 is below `len`.
    (((hash >> 32) * u64::from(len)) >> 32) as u32
}

/// A [`Hasher`](std::hash::Hasher) for maps of the control thread with long keys: the standard hasher took a third of
/// the time of a compile. Its values are not stored, so it may change in a new version.
#[derive(Debug, Clone, Copy, Default)]
pub struct FoldHasher(u64);

impl std::hash::Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word ^ K[7], K[0]).wrapping_add(word);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        fold(self.0 ^ K[8], K[3])
    }
}

/// The xor of both halves of the 128-bit product.
#[inline]
#[must_use]
pub fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// One step of splitmix64, a bijection of 64 bits. It determines seats and times in rendezvous selection.
#[inline]
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// The two halves of an address in its 16-byte form, big-endian.
#[inline]
pub fn words(addr: &Addr) -> (u64, u64) {
    let whole = u128::from_be_bytes(*addr.bytes());
    ((whole >> 64) as u64, whole as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: [(u64, u64); 4] = [
        (0xd944_0146_8047_b96c, 0x92f8_3180_8fc2_d1ae),
        (0x279a_4933_d775_a07d, 0x92f8_3180_8fc2_d1ae),
        (0xbada_3ddb_cf75_a1b2, 0x076f_a6ce_54c1_6cc4),
        (0x50f8_8211_ace9_0903, 0x2dfc_25c5_0938_e3bb),
    ];
    const REJECTION_GOLDEN: [u64; 4] =
        [0x0c95_c0f8_f33f_b2a5, 0x8096_c508_52bc_8887, 0xe886_ed3a_9a0d_c27e, 0x69a9_f0bb_4a5d_a938];
    const IDENTITY_GOLDEN: [(u64, u64); 2] =
        [(0x2298_df34_21b4_870a, 0xcfab_1da5_9069_308e), (0xd74e_7daa_62de_d0f4, 0x987b_aeae_ab32_203e)];

    fn v4(a: u8, b: u8, c: u8, d: u8) -> Addr {
        Addr::v4([a, b, c, d])
    }

    fn v6(text: &str) -> Addr {
        text.parse::<std::net::Ipv6Addr>().unwrap().into()
    }

    #[test]
    fn golden_values_are_reproduced() {
        // Computed by an independent program (arbitrary precision integers) from the definition above.
        for (n, (src, src_port, dst, dst_port, proto)) in [
            (v4(198, 51, 100, 7), 40_000, v4(203, 0, 113, 1), 80, 6),
            (v4(198, 51, 100, 7), 40_001, v4(203, 0, 113, 1), 80, 6),
            (v6("2001:db8::7"), 40_000, v6("2001:db8:1::1"), 443, 17),
            (v6("::"), 0, v6("::"), 0, 0),
        ]
        .into_iter()
        .enumerate()
        {
            let got = (selection_hash(&src, src_port, &dst, dst_port, proto), client_hash(&src));
            assert_eq!(got, GOLDEN[n], "case {n}");
            assert_eq!(rejection_hash(got.0), REJECTION_GOLDEN[n], "case {n}");
        }
        assert_eq!(identity_hashes(&v4(10, 0, 0, 1), 0), IDENTITY_GOLDEN[0]);
        assert_eq!(identity_hashes(&v6("2001:db8::10"), 3), IDENTITY_GOLDEN[1]);
    }

    /// The largest deviations from one half: over input bits, of the mean share of output bits that flip with one; and
    /// over (input, output) bit pairs, of the probability of a flip.
    fn avalanche(bits: usize, hash: impl Fn(&[u8]) -> u64) -> (f64, f64) {
        let samples = 2_000_u64;
        let (mut worst_mean, mut worst_pair) = (0.0_f64, 0.0_f64);
        for bit in 0..bits {
            let mut flips = [0_u32; 64];
            for n in 0..samples {
                let mut input = [0_u8; 37];
                for (at, byte) in input.iter_mut().enumerate() {
                    *byte = (fold(n ^ K[0], K[3] ^ at as u64) >> 8) as u8;
                }
                let before = hash(&input);
                input[bit / 8] ^= 1 << (bit % 8);
                let changed = before ^ hash(&input);
                for (out, count) in flips.iter_mut().enumerate() {
                    *count += (changed >> out & 1) as u32;
                }
            }
            let mean = f64::from(flips.iter().sum::<u32>()) / (64.0 * samples as f64);
            worst_mean = worst_mean.max((mean - 0.5).abs());
            // All 64 bits contribute to the order of seats.
            for count in &flips {
                worst_pair = worst_pair.max((f64::from(*count) / samples as f64 - 0.5).abs());
            }
        }
        (worst_mean, worst_pair)
    }

    #[test]
    fn a_flipped_input_bit_flips_half_of_the_output() {
        let v4_tuple = |b: &[u8]| {
            let src = Addr::v4([b[0], b[1], b[2], b[3]]);
            let dst = Addr::v4([b[8], b[9], b[10], b[11]]);
            selection_hash(
                &src,
                u16::from_be_bytes([b[4], b[5]]),
                &dst,
                u16::from_be_bytes([b[6], b[7]]),
                b[12],
            )
        };
        let v6_tuple = |b: &[u8]| {
            let src = Addr::v6(b[..16].try_into().unwrap());
            let dst = Addr::v6(b[16..32].try_into().unwrap());
            let port = |at| u16::from_be_bytes([b[at], b[at + 1]]);
            selection_hash(&src, port(32), &dst, port(34), b[36])
        };
        for (name, (mean, pair)) in [
            ("v4", avalanche(13 * 8, v4_tuple)),
            ("v6", avalanche(37 * 8, v6_tuple)),
            ("client v4", avalanche(32, |b| client_hash(&Addr::v4([b[0], b[1], b[2], b[3]])))),
            ("client v6", avalanche(128, |b| client_hash(&Addr::v6(b[..16].try_into().unwrap())))),
        ] {
            assert!(mean < 0.02, "{name}: mean off by {mean}");
            assert!(pair < 0.08, "{name}: an output bit off by {pair}");
        }
    }

    #[test]
    fn sequential_ports_and_addresses_spread_evenly() {
        let cells = 1009_u32;
        let (vip, per_cell) = (v4(203, 0, 113, 1), 60_f64);
        let flows = (cells as f64 * per_cell) as u32;
        let chi = |hash_of: &dyn Fn(u32) -> u64| {
            let mut counts = vec![0_u32; cells as usize];
            (0..flows).for_each(|n| counts[scale(hash_of(n), cells) as usize] += 1);
            counts.iter().map(|&c| (f64::from(c) - per_cell).powi(2) / per_cell).sum::<f64>()
        };
        let one_client = chi(&|n| selection_hash(&v4(198, 51, 100, 7), n as u16, &vip, 80, 6));
        let scan = chi(&|n| selection_hash(&Addr::v4((0x0a00_0000 + n).to_be_bytes()), 40_000, &vip, 80, 6));
        let clients = chi(&|n| client_hash(&Addr::v4((0x0a00_0000 + n).to_be_bytes())));
        let clients_by_256 = chi(&|n| client_hash(&Addr::v4((n << 8).to_be_bytes())));
        // Chi-squared with 1008 degrees of freedom: mean 1008, standard deviation 45; far above is uneven.
        for (name, value) in
            [("ports", one_client), ("addresses", scan), ("clients", clients), ("/24s", clients_by_256)]
        {
            assert!(value < 1008.0 + 5.0 * 45.0, "{name}: chi-squared {value}");
        }
    }

    #[test]
    fn scaling_stays_in_range_and_reaches_both_ends() {
        for len in [1, 2, 1009, 655_373] {
            assert_eq!(scale(0, len), 0);
            assert_eq!(scale(u64::MAX, len), len - 1);
        }
        assert_eq!(scale(u64::MAX, 0), 0);
    }
}

//! Limits on the packets that a worker creates itself: ICMP errors and TCP resets.
//!
//! Answers to a flood would make the gateway a reflector, so they are limited, as RFC 4443 section 2.4 (f) and RFC 1812
//! section 4.3.2.8 require. With one limit for all kinds, 300 packets with TTL 1 would stop path MTU discovery for
//! every client. So each kind of answer ([`AnswerKind`]) has its own token bucket, and each source prefix (/24 or /56)
//! has another one for each kind. An answer takes a token from both or from neither. The rates are in
//! `limits.rs`, per worker.
//!
//! A keyed hash maps prefixes to [`ANSWER_PREFIXES`] token buckets, so a sender can't choose to
//! share another sender's token bucket. Echo replies, ARP replies and neighbour advertisements are
//! not limited, because they are as long as the request.

use tidegate_spec::limits::{ANSWER_PREFIXES, ANSWERS_SMALL, ANSWERS_WITH_QUOTE, AnswerLimits};
use tidegate_spec::now::Now;
use tidegate_spec::verdict::AnswerKind;
use tidegate_structures::hash::keyed_hash;
use tidegate_wire::Addr;

const _: () = assert!(ANSWER_PREFIXES.is_power_of_two());

#[derive(Debug)]
pub(crate) struct ReplyLimit {
    secret: u64,
    /// The state of a token bucket for each kind.
    kinds: [u64; AnswerKind::COUNT],
    /// The states of [`ANSWER_PREFIXES`] token buckets for each kind, ordered by kind.
    prefixes: Box<[u64]>,
    suppressed: [u64; AnswerKind::COUNT],
}

impl ReplyLimit {
    /// A limit with full token buckets. `secret` determines which prefixes share a token bucket.
    pub(crate) fn new(secret: u64) -> Self {
        Self {
            secret,
            kinds: [0; AnswerKind::COUNT],
            prefixes: vec![0; AnswerKind::COUNT * ANSWER_PREFIXES].into(),
            suppressed: [0; AnswerKind::COUNT],
        }
    }

    /// Whether an answer of this kind may be sent to `source` now; if so, a token is spent. Call it
    /// only when nothing else can prevent the answer.
    #[cold]
    pub(crate) fn take(&mut self, kind: AnswerKind, source: &Addr, now: Now) -> bool {
        let limits = limits(kind);
        let prefix = kind.index() * ANSWER_PREFIXES + self.index_of(source);
        let of_prefix = limits.prefix.spend(self.prefixes[prefix], now);
        let of_kind = limits.total.spend(self.kinds[kind.index()], now);
        match (of_prefix, of_kind) {
            (Some(of_prefix), Some(of_kind)) => {
                self.prefixes[prefix] = of_prefix;
                self.kinds[kind.index()] = of_kind;
                true
            }
            _ => {
                self.suppressed[kind.index()] += 1;
                false
            }
        }
    }

    /// The number of answers that were not sent because of a limit, by kind.
    pub(crate) fn suppressed(&self) -> &[u64; AnswerKind::COUNT] {
        &self.suppressed
    }

    /// The index of the token bucket of the source's prefix: /24 for IPv4, /56 for IPv6 (the smallest prefix of one
    /// subscriber).
    fn index_of(&self, source: &Addr) -> usize {
        let prefix = match source.is_v4() {
            // The low byte 1 distinguishes it from IPv6 prefixes, whose lowest byte is 0.
            true => u64::from(u32::from_be_bytes(source.v4_bytes()) >> 8) << 8 | 1,
            false => {
                let high: [u8; 8] = source.bytes()[..8].try_into().expect("8 of 16 bytes");
                u64::from_be_bytes(high) & !0xff
            }
        };
        keyed_hash(prefix, self.secret) as usize & (ANSWER_PREFIXES - 1)
    }
}

fn limits(kind: AnswerKind) -> AnswerLimits {
    match kind {
        AnswerKind::PacketTooBig | AnswerKind::Reset => ANSWERS_SMALL,
        AnswerKind::TimeExceeded | AnswerKind::Unreachable => ANSWERS_WITH_QUOTE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_spec::token_bucket::Rate;

    const KIND: AnswerKind = AnswerKind::Unreachable;
    const PREFIX: Rate = ANSWERS_WITH_QUOTE.prefix;
    const TOTAL: Rate = ANSWERS_WITH_QUOTE.total;

    fn client(network: u32) -> Addr {
        Addr::v4((network << 8 | 7).to_be_bytes())
    }

    fn passed(limit: &mut ReplyLimit, kind: AnswerKind, source: &Addr, now: Now) -> usize {
        (0..10_000).filter(|_| limit.take(kind, source, now)).count()
    }

    #[test]
    fn a_burst_passes_then_the_rate_applies() {
        for start in [0, 1, 1_000_000_000_000] {
            let mut limit = ReplyLimit::new(1);
            assert_eq!(passed(&mut limit, KIND, &client(1), Now(start)), PREFIX.burst as usize);
            // An idle prefix saves no more than its burst.
            let later = Now(start + 3_600_000_000_000);
            assert_eq!(passed(&mut limit, KIND, &client(1), later), PREFIX.burst as usize);
            let soon = Now(later.0 + 100_000_000);
            assert_eq!(passed(&mut limit, KIND, &client(1), soon), PREFIX.per_second as usize / 10);
        }
    }

    #[test]
    fn a_prefix_cannot_exhaust_a_kind_nor_a_kind_another() {
        let (mut limit, now) = (ReplyLimit::new(1), Now(5_000_000_000));
        passed(&mut limit, KIND, &client(1), now);
        assert!(limit.take(KIND, &client(2), now), "another prefix");
        for &other in AnswerKind::ALL.iter().filter(|&&other| other != KIND) {
            assert!(limit.take(other, &client(1), now), "{other}");
        }
        let v6 = |text: &str| Addr::from(text.parse::<std::net::Ipv6Addr>().unwrap());
        passed(&mut limit, KIND, &v6("2001:db8:1:100::1"), now);
        assert!(!limit.take(KIND, &v6("2001:db8:1:1ff::2"), now), "of the same /56");
        assert!(limit.take(KIND, &v6("2001:db8:1:200::1"), now));
    }

    #[test]
    fn all_prefixes_together_stay_below_the_total_of_the_kind() {
        let (mut limit, now) = (ReplyLimit::new(1), Now(5_000_000_000));
        let all: usize = (0..500).map(|n| passed(&mut limit, KIND, &client(n), now)).sum();
        assert_eq!(all, TOTAL.burst as usize);
        assert_eq!(limit.suppressed()[KIND.index()], 500 * 10_000 - u64::from(TOTAL.burst));
    }

    #[test]
    fn an_answer_over_the_total_costs_its_prefix_no_token() {
        let (mut limit, now) = (ReplyLimit::new(1), Now(5_000_000_000));
        let all: usize = (0..500).map(|n| passed(&mut limit, KIND, &client(n), now)).sum();
        assert_eq!(all, TOTAL.burst as usize);
        // Only the total limit refused this prefix. After one more token of the total, the prefix
        // still has its own token.
        let next = Now(now.0 + 1_000_000_000 / u64::from(TOTAL.per_second));
        assert!(limit.take(KIND, &client(499), next));
    }

    #[test]
    fn the_secret_determines_which_prefixes_share_a_token_bucket() {
        let shared = |secret| {
            let limit = ReplyLimit::new(secret);
            let index = limit.index_of(&client(1));
            (2..5_000).filter(|&n| limit.index_of(&client(n)) == index).collect::<Vec<_>>()
        };
        let (one, other) = (shared(1), shared(2));
        assert!((1..20).contains(&one.len()) && (1..20).contains(&other.len()));
        assert_ne!(one, other);
    }

    #[test]
    fn the_rate_applies_at_the_end_of_time() {
        let mut limit = ReplyLimit::new(1);
        assert_eq!(passed(&mut limit, KIND, &client(1), Now(u64::MAX)), PREFIX.burst as usize);
    }

    #[test]
    fn time_that_stops_or_goes_back_adds_no_tokens() {
        let mut limit = ReplyLimit::new(1);
        passed(&mut limit, KIND, &client(1), Now(5_000_000_000));
        assert!(!limit.take(KIND, &client(1), Now(5_000_000_000)));
        assert!(!limit.take(KIND, &client(1), Now(4_000_000_000)));
    }
}

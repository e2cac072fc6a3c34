//! How far along a flow is, and how long it may be idle.
//!
//! A state is what one direction has shown: with DSR the gateway sees the client only; a NAT flow has an
//! entry and so a state for each direction, and [`State::of_both`] says what the two make together. This is
//! not a TCP: it follows no sequence numbers, drops nothing, and only decides what is kept and for how long.
//!
//! Invariant: one packet never makes a flow [`Phase::Established`]. It takes a second one that is no SYN,
//! and with NAT one from each side (datagrams: a second from the client).

use std::time::Duration;

use crate::wire::tcp::flags;

/// A client's SYN that nothing has followed yet: longer than the usual handshake retries.
pub const OPENING_MS: u32 = 60_000;

/// After a FIN of either side: longer than TIME_WAIT on Linux (60 s), and what is left for a half-closed
/// connection between two packets.
pub const CLOSING_MS: u32 = 120_000;

/// After a RST: long enough for stragglers.
pub const CLOSED_MS: u32 = 10_000;

/// No flow is forgotten sooner: the least [`IdleTimeout`], and below every constant above.
pub(super) const IDLE_MIN_MS: u32 = 1_000;

const _: () = assert!(IDLE_MIN_MS <= CLOSED_MS && IDLE_MIN_MS <= OPENING_MS && IDLE_MIN_MS <= CLOSING_MS);

/// What a packet says about the state of its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet {
    /// A TCP segment with these flags (`wire::tcp::flags`).
    Tcp(u8),
    /// UDP, SCTP, or a hit of session affinity: no beginning and no end.
    Datagram,
}

impl Packet {
    /// Whether it is neither beginning nor end: what nearly all packets of a flow are.
    #[inline]
    pub(super) fn is_plain(self) -> bool {
        let control = match self {
            Self::Tcp(f) => f & (flags::SYN | flags::FIN | flags::RST),
            Self::Datagram => 0,
        };
        control == 0
    }

    /// Whether it opens a connection: SYN alone.
    #[inline]
    #[must_use]
    pub fn is_opening(self) -> bool {
        matches!(self, Self::Tcp(f) if f & (flags::SYN | flags::ACK | flags::RST | flags::FIN) == flags::SYN)
    }
}

/// How far along a flow is. The order is that of worth: a new flow that finds no room takes the place of a
/// lesser one, and never of an established one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Reset.
    Closed,
    /// One packet, or none but SYNs, or no answer yet.
    Opening,
    /// A FIN has been seen.
    Closing,
    /// Packets go to and fro.
    Established,
}

impl Phase {
    /// The name in `flows` (`established`).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Opening => "opening",
            Self::Closing => "closing",
            Self::Established => "established",
        }
    }
}

/// The state of one entry, in three bits; 0 is the empty slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    TcpOpening = 1,
    TcpEstablished = 2,
    TcpClosing = 3,
    TcpClosed = 4,
    DatagramOpening = 5,
    DatagramStream = 6,
}

impl State {
    #[inline]
    pub(super) fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            1 => Some(Self::TcpOpening),
            2 => Some(Self::TcpEstablished),
            3 => Some(Self::TcpClosing),
            4 => Some(Self::TcpClosed),
            5 => Some(Self::DatagramOpening),
            6 => Some(Self::DatagramStream),
            _ => None,
        }
    }

    /// The state that a plain packet like this one leaves as it is.
    #[inline]
    pub(super) fn steady(packet: Packet) -> Self {
        match packet {
            Packet::Tcp(_) => Self::TcpEstablished,
            Packet::Datagram => Self::DatagramStream,
        }
    }

    /// The state after the first packet of a direction. One from the middle of a connection (after a
    /// restart) is as unproven as a SYN.
    #[inline]
    pub(super) fn first(packet: Packet) -> Self {
        match packet {
            Packet::Tcp(f) if f & flags::RST != 0 => Self::TcpClosed,
            Packet::Tcp(f) if f & flags::FIN != 0 => Self::TcpClosing,
            Packet::Tcp(_) => Self::TcpOpening,
            Packet::Datagram => Self::DatagramOpening,
        }
    }

    /// The state of the direction that has not sent yet.
    #[inline]
    pub(super) fn silent(packet: Packet) -> Self {
        match packet {
            Packet::Tcp(_) => Self::TcpOpening,
            Packet::Datagram => Self::DatagramOpening,
        }
    }

    /// The state after another packet of the same direction.
    ///
    /// Data after a RST means that the RST was none of the sender's (RFC 5961 section 3: a blind attack), so
    /// the flow is taken back. A SYN in an established connection changes nothing (RFC 5961 section 4: the
    /// server will challenge it).
    #[inline]
    pub(super) fn next(self, packet: Packet) -> Self {
        let Packet::Tcp(f) = packet else { return Self::DatagramStream };
        if f & flags::RST != 0 {
            Self::TcpClosed
        } else if f & flags::FIN != 0 {
            Self::TcpClosing
        } else if f & flags::SYN != 0 {
            if self == Self::TcpOpening && f & flags::ACK != 0 { Self::TcpEstablished } else { self }
        } else if self == Self::TcpClosing {
            self
        } else {
            Self::TcpEstablished
        }
    }

    /// What client and server make together: TCP is as far as the lesser side, so that a handshake without
    /// an answer stays half-open; datagrams go by the client, since many protocols never answer.
    #[inline]
    pub(super) fn of_both(client: Self, server: Self) -> Self {
        if client.is_tcp() && server.phase() < client.phase() { server } else { client }
    }

    #[inline]
    pub(super) fn phase(self) -> Phase {
        match self {
            Self::TcpClosed => Phase::Closed,
            Self::TcpOpening | Self::DatagramOpening => Phase::Opening,
            Self::TcpClosing => Phase::Closing,
            Self::TcpEstablished | Self::DatagramStream => Phase::Established,
        }
    }

    #[inline]
    pub(super) fn is_tcp(self) -> bool {
        !matches!(self, Self::DatagramOpening | Self::DatagramStream)
    }

    /// How long the flow may be idle in this state; never longer than the idle timeout of its service.
    #[inline]
    pub(super) fn timeout_ms(self, idle: IdleTimeout) -> u32 {
        match self {
            Self::TcpOpening => OPENING_MS.min(idle.millis()),
            Self::TcpClosing => CLOSING_MS.min(idle.millis()),
            Self::TcpClosed => CLOSED_MS.min(idle.millis()),
            Self::TcpEstablished | Self::DatagramOpening | Self::DatagramStream => idle.millis(),
        }
    }
}

/// An idle timeout in the 12 bits that an entry has for it: whole seconds, exact up to 255 s, rounded up by
/// less than 0.8 % from there, at least 1 s and at most 2,000,000 s.
///
/// Kept in each entry so that ageing never asks the snapshot; a timeout that is changed holds for the flows
/// that begin after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdleTimeout(u16);

impl IdleTimeout {
    const SECONDS_MAX: u64 = 2_000_000;

    /// What a service should use for TCP when nobody says: RFC 5382 asks 2 h 4 min of NATs; Kubernetes
    /// proxies use 24 h (`nf_conntrack` `tcpEstablishedTimeout`); balancers 350 s to 900 s. Client
    /// keep-alives of common servers stay below 900 s.
    pub const DEFAULT_TCP: Duration = Duration::from_secs(900);

    /// What a service should use for UDP when nobody says (RFC 4787 REQ-5: not below 2 minutes).
    pub const DEFAULT_UDP: Duration = Duration::from_secs(120);

    /// The shortest timeout that can be kept and is not below `timeout`.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        let up = u64::from(timeout.subsec_nanos() > 0);
        let seconds = (timeout.as_secs().saturating_add(up)).clamp(1, Self::SECONDS_MAX);
        let mut exponent = 0;
        while seconds.div_ceil(1 << exponent) > 255 {
            exponent += 1;
        }
        let mantissa = seconds.div_ceil(1 << exponent);
        Self(u16::try_from(exponent << 8 | mantissa).expect("the exponent of 2,000,000 s is 13"))
    }

    /// The timeout in milliseconds.
    #[inline]
    #[must_use]
    pub fn millis(self) -> u32 {
        ((u32::from(self.0) & 0xff) << (self.0 >> 8)) * 1000
    }

    #[inline]
    pub(super) fn bits(self) -> u32 {
        u32::from(self.0)
    }

    #[inline]
    pub(super) fn from_bits(bits: u32) -> Self {
        Self((bits & 0xfff) as u16)
    }
}

impl From<Duration> for IdleTimeout {
    fn from(timeout: Duration) -> Self {
        Self::new(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flags::{ACK, FIN, RST, SYN};

    fn after(packets: &[u8]) -> State {
        let first = State::first(Packet::Tcp(packets[0]));
        packets[1..].iter().fold(first, |state, &f| state.next(Packet::Tcp(f)))
    }

    #[test]
    fn a_plain_packet_leaves_the_steady_state_of_its_kind_as_it_is() {
        for packet in [Packet::Tcp(ACK), Packet::Tcp(0), Packet::Datagram] {
            let steady = State::steady(packet);
            assert!(packet.is_plain() && steady.phase() == Phase::Established);
            assert_eq!(steady.next(packet), steady);
        }
    }

    #[test]
    fn one_packet_never_establishes() {
        for f in 0..=255 {
            assert_ne!(State::first(Packet::Tcp(f)).phase(), Phase::Established);
        }
        assert_ne!(State::first(Packet::Datagram).phase(), Phase::Established);
    }

    #[test]
    fn repeated_syns_stay_half_open_and_an_ack_establishes() {
        assert_eq!(after(&[SYN, SYN, SYN]), State::TcpOpening);
        assert_eq!(after(&[SYN, ACK]), State::TcpEstablished);
        assert_eq!(after(&[ACK, ACK]), State::TcpEstablished);
        assert_eq!(after(&[SYN, ACK, SYN]), State::TcpEstablished);
    }

    #[test]
    fn a_fin_closes_and_acks_of_the_other_side_do_not_take_it_back() {
        assert_eq!(after(&[SYN, ACK, FIN | ACK, ACK]), State::TcpClosing);
        assert_eq!(after(&[SYN, ACK, FIN | ACK, RST]), State::TcpClosed);
    }

    #[test]
    fn a_blind_reset_is_taken_back_by_the_next_packet() {
        assert_eq!(after(&[SYN, ACK, RST]), State::TcpClosed);
        assert_eq!(after(&[SYN, ACK, RST, ACK]), State::TcpEstablished);
    }

    #[test]
    fn a_handshake_without_an_answer_stays_half_open_and_silence_of_udp_servers_is_fine() {
        let both = |a, b| State::of_both(a, b).phase();
        assert_eq!(both(State::TcpEstablished, State::TcpOpening), Phase::Opening);
        assert_eq!(both(State::TcpEstablished, State::TcpClosing), Phase::Closing);
        assert_eq!(both(State::TcpEstablished, State::TcpClosed), Phase::Closed);
        assert_eq!(both(State::TcpClosing, State::TcpEstablished), Phase::Closing);
        assert_eq!(both(State::DatagramStream, State::DatagramOpening), Phase::Established);
        assert_eq!(both(State::DatagramOpening, State::DatagramStream), Phase::Opening);
    }

    #[test]
    fn timeouts_are_kept_rounded_up_by_less_than_one_percent() {
        for seconds in (1..2000).chain([10_800, 86_400, 500_000, 1_999_999]) {
            let kept = u64::from(IdleTimeout::new(Duration::from_secs(seconds)).millis());
            assert!(kept >= seconds * 1000 && kept * 1000 < seconds * 1_008_000, "{seconds} {kept}");
            assert!(seconds > 255 || kept == seconds * 1000);
        }
        assert_eq!(IdleTimeout::new(Duration::ZERO).millis(), 1000);
        assert_eq!(IdleTimeout::new(Duration::from_millis(1500)).millis(), 2000);
        assert!(IdleTimeout::new(Duration::MAX).millis() < 1 << 31);
        let kept = IdleTimeout::new(Duration::from_secs(86_400));
        assert_eq!(IdleTimeout::from_bits(kept.bits()), kept);
    }

    #[test]
    fn no_state_outlives_the_idle_timeout_of_its_service() {
        let short = IdleTimeout::new(Duration::from_secs(5));
        let long = IdleTimeout::new(IdleTimeout::DEFAULT_TCP);
        assert_eq!(State::TcpClosing.timeout_ms(short), 5000);
        assert_eq!(State::TcpOpening.timeout_ms(long), OPENING_MS);
        assert_eq!(State::TcpClosed.timeout_ms(long), CLOSED_MS);
        assert_eq!(State::TcpEstablished.timeout_ms(long), 900_000);
    }
}

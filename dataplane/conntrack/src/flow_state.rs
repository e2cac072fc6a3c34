//! The state of a flow, and how long it may be idle.
//!
//! A state records what the packets of one direction have shown. With DSR the gateway sees only the client
//! ([`SideState::alone`]); a NAT flow has an entry, and so a state, for each direction ([`SideState::of_both`]). It
//! doesn't track sequence numbers and drops nothing: it only determines which flows are kept and for how long.
//!
//! Without sequence numbers anyone who knows the 5-tuple can forge a FIN or a RST (RFC 5961). So with NAT one side
//! alone never shortens the lifetime of a flow: until the other side closes or resets too, the idle timeout of the
//! service applies, and only the [`EvictionClass`] is lowered. The flow is then evicted before others when the table or
//! the ports run out.
//!
//! Invariant: one packet never establishes a flow ([`Phase::Established`]). That takes a second packet that is not a
//! SYN, and with NAT one from each side. A TCP flow that began with anything but a SYN never becomes established.

use std::time::Duration;

use tidegate_wire::sctp::Kind;
use tidegate_wire::tcp::flags;

/// The timeout after a client's SYN that no packet has followed yet: longer than the usual handshake retries. It also
/// applies to a TCP flow whose beginning was not seen.
pub(crate) const OPENING_MS: u32 = 60_000;

/// The timeout of a datagram flow whose backend has not answered, as on Linux (`nf_conntrack_udp_timeout`).
pub(crate) const UNANSWERED_MS: u32 = 30_000;

/// The timeout after both sides have closed: longer than TIME_WAIT on Linux (60 s). With DSR, after the client's FIN.
pub(crate) const CLOSING_MS: u32 = 120_000;

/// The timeout after a RST that the other side has confirmed: long enough for late packets. With DSR, after the
/// client's RST.
pub(crate) const CLOSED_MS: u32 = 10_000;

/// The shortest timeout of any flow: the shortest [`IdleTimeout`], and at most as long as the timeouts above.
pub(super) const IDLE_MIN_MS: u32 = 1_000;

const _: () = assert!(IDLE_MIN_MS <= CLOSED_MS && IDLE_MIN_MS <= OPENING_MS && IDLE_MIN_MS <= CLOSING_MS);
const _: () = assert!(CLOSED_MS <= UNANSWERED_MS && UNANSWERED_MS <= OPENING_MS && OPENING_MS <= CLOSING_MS);

/// The part of a packet that affects the state of its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet {
    /// A TCP segment with these flags ([`tidegate_wire::tcp::flags`]).
    Tcp(u8),
    /// An SCTP packet of this kind, if its verification tag proves it ([`super::Tags`]).
    Sctp(Kind),
    /// UDP, or a hit of session affinity, which have no beginning and no end.
    Datagram,
}

impl Packet {
    /// Whether it neither begins nor ends a connection, like nearly all packets of a flow.
    #[inline]
    pub fn is_plain(self) -> bool {
        // One mask for both protocols, so that mixed traffic costs no branch.
        const CONTROL: u8 = flags::SYN | flags::FIN | flags::RST;
        const { assert!(Kind::Unproved as u8 & CONTROL == 0 && Kind::End as u8 <= CONTROL) };
        let control = match self {
            Self::Tcp(flags) => flags,
            Self::Sctp(kind) => kind as u8,
            Self::Datagram => 0,
        };
        control & CONTROL == 0
    }

    /// Whether it opens a connection: a SYN without ACK, RST or FIN; or an INIT.
    #[inline]
    #[must_use]
    pub fn is_opening(self) -> bool {
        match self {
            Self::Tcp(f) => f & (flags::SYN | flags::ACK | flags::RST | flags::FIN) == flags::SYN,
            Self::Sctp(kind) => kind == Kind::Init,
            Self::Datagram => false,
        }
    }

    /// Whether its sender claims to have no connection any more: a RST, an ABORT or a SHUTDOWN COMPLETE.
    #[inline]
    #[must_use]
    pub fn is_ending(self) -> bool {
        match self {
            Self::Tcp(f) => f & flags::RST != 0,
            Self::Sctp(kind) => matches!(kind, Kind::End | Kind::Unproved),
            Self::Datagram => false,
        }
    }

    /// Whether its protocol has connections.
    #[inline]
    #[must_use]
    pub fn has_connection(self) -> bool {
        !matches!(self, Self::Datagram)
    }

    /// The new state of both sides of a flow, if this packet alone determines it: its tag proves that an endpoint of
    /// the association sent it.
    #[inline]
    pub(super) fn state_of_both(self) -> Option<SideState> {
        match self {
            Self::Sctp(Kind::End) => Some(SideState::TcpClosed),
            Self::Sctp(Kind::CookieEcho) => Some(SideState::TcpEstablished),
            _ => None,
        }
    }
}

/// The phase of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// A RST has been seen.
    Closed,
    /// One packet, or only SYNs, or no answer yet; or TCP whose beginning was not seen.
    Opening,
    /// A FIN has been seen.
    Closing,
    /// Packets flow in both directions.
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

/// The order of eviction for a new flow: the lowest class first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EvictionClass {
    /// Reset, and confirmed by the other side.
    Closed,
    /// Not established and unanswered: nothing shows that the other side exists. With DSR no answer is seen.
    Unanswered,
    /// Not established, and the backend has answered: the client's next packet establishes it.
    Answered,
    /// Closed by both sides.
    Closing,
    /// Closed or reset by one side only.
    HalfClosed,
    /// Established.
    Established,
}

/// The status of a flow, from the states of its directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowStatus {
    pub(super) phase: Phase,
    pub(super) eviction_class: EvictionClass,
    /// The idle time after which the flow expires: at most the idle timeout of its service.
    pub(super) timeout_ms: u32,
}

impl FlowStatus {
    fn new(phase: Phase, eviction_class: EvictionClass, timeout_ms: u32, idle: IdleTimeout) -> Self {
        Self { phase, eviction_class, timeout_ms: timeout_ms.min(idle.millis()) }
    }

    /// Whether the flow is not yet established.
    pub(super) fn is_opening(self) -> bool {
        matches!(self.eviction_class, EvictionClass::Unanswered | EvictionClass::Answered)
    }

    /// Whether both sides have ended the connection.
    pub(super) fn is_over(self) -> bool {
        matches!(self.eviction_class, EvictionClass::Closed | EvictionClass::Closing)
    }
}

/// The state of one side of a flow, in three bits of its entry; 0 is a free position. Other gateways get the number, so
/// its meaning never changes.
///
/// The states of TCP also serve SCTP: a flow has one protocol.
///
/// The upper two bits identify the states that a plain packet leaves unchanged: two states for TCP; for datagrams also
/// two, one of which never occurs with datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideState {
    /// Only SYNs.
    TcpOpening = 1,
    /// A SYN and later packets.
    TcpEstablished = 2,
    /// A TCP flow that did not begin with a SYN.
    TcpStray = 3,
    /// One datagram, or none yet.
    DatagramOpening = 4,
    /// A FIN.
    TcpClosing = 5,
    /// Several datagrams.
    DatagramStream = 6,
    /// A RST.
    TcpClosed = 7,
}

/// The bits of a state that [`SideState::steady`] compares.
pub(super) const STEADY_MASK: u32 = 6;

impl SideState {
    #[inline]
    pub(super) fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            1 => Some(Self::TcpOpening),
            2 => Some(Self::TcpEstablished),
            3 => Some(Self::TcpStray),
            4 => Some(Self::DatagramOpening),
            5 => Some(Self::TcpClosing),
            6 => Some(Self::DatagramStream),
            7 => Some(Self::TcpClosed),
            _ => None,
        }
    }

    /// The number of the state, 1 to 7.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The state with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::from_bits(number.into())
    }

    /// The states that a plain packet of this kind leaves unchanged, masked with [`STEADY_MASK`].
    #[inline]
    pub(super) fn steady(packet: Packet) -> u32 {
        match packet {
            Packet::Tcp(_) | Packet::Sctp(_) => Self::TcpEstablished as u32,
            Packet::Datagram => Self::DatagramStream as u32,
        }
    }

    /// The state after the first packet of a direction.
    #[inline]
    pub(super) fn first(packet: Packet) -> Self {
        match packet {
            Packet::Tcp(f) if f & flags::RST != 0 => Self::TcpClosed,
            _ if packet.is_opening() => Self::TcpOpening,
            Packet::Tcp(_) | Packet::Sctp(_) => Self::TcpStray,
            Packet::Datagram => Self::DatagramOpening,
        }
    }

    /// The initial state of the direction that has not sent yet.
    #[inline]
    pub(super) fn silent(packet: Packet) -> Self {
        match packet {
            Packet::Tcp(_) | Packet::Sctp(_) => Self::TcpOpening,
            Packet::Datagram => Self::DatagramOpening,
        }
    }

    /// The state after another packet of the same direction.
    ///
    /// A packet after a RST shows that the RST was forged, and so does new data (PSH) after a FIN (RFC 5961 section 3:
    /// a blind attack). Then the flow becomes established again. A SYN in an established connection changes nothing
    /// (RFC 5961 section 4: the server will challenge it). After a FIN that the other side has not confirmed, a SYN may
    /// begin a new connection; the next packet shows whether it does.
    #[inline]
    pub(super) fn next(self, packet: Packet) -> Self {
        let f = match packet {
            Packet::Tcp(f) => f,
            Packet::Sctp(kind) => return self.next_of_association(kind),
            Packet::Datagram => return Self::DatagramStream,
        };
        let has = |flag| f & flag != 0;
        match self {
            _ if has(flags::RST) => Self::TcpClosed,
            Self::TcpOpening if has(flags::SYN) && has(flags::ACK) => Self::TcpEstablished,
            Self::TcpOpening if has(flags::SYN | flags::FIN) => self,
            Self::TcpStray if packet.is_opening() => Self::TcpOpening,
            Self::TcpStray => self,
            _ if has(flags::FIN) => Self::TcpClosing,
            Self::TcpClosing if packet.is_opening() => Self::TcpClosed,
            _ if has(flags::SYN) => self,
            Self::TcpClosing if !has(flags::PSH) => self,
            _ => Self::TcpEstablished,
        }
    }

    /// The state after another packet of the same direction of an SCTP association (RFC 9260 section 4). Only a packet
    /// with the right tag ends a flow, so later packets don't undo that: data in flight doesn't establish the flow
    /// again, and neither does data to the sender of a SHUTDOWN. Only a new handshake does.
    fn next_of_association(self, kind: Kind) -> Self {
        match (self, kind) {
            (_, Kind::End) => Self::TcpClosed,
            (_, Kind::CookieEcho) => Self::TcpEstablished,
            (Self::TcpClosed | Self::TcpStray, Kind::Init) => Self::TcpOpening,
            (Self::TcpClosed | Self::TcpStray, _) => self,
            (_, Kind::Shutdown) => Self::TcpClosing,
            (Self::TcpOpening, Kind::InitAck | Kind::Plain) => Self::TcpEstablished,
            _ => self,
        }
    }

    /// The status of a flow of which only the client's side is seen.
    pub(super) fn alone(self, idle: IdleTimeout) -> FlowStatus {
        let of = |phase, eviction_class, timeout_ms| FlowStatus::new(phase, eviction_class, timeout_ms, idle);
        match self {
            Self::TcpClosed => of(Phase::Closed, EvictionClass::Closed, CLOSED_MS),
            Self::TcpClosing => of(Phase::Closing, EvictionClass::Closing, CLOSING_MS),
            Self::TcpOpening | Self::TcpStray => of(Phase::Opening, EvictionClass::Unanswered, OPENING_MS),
            // Many datagram protocols send a packet only now and then, and so does a client with affinity.
            Self::DatagramOpening => of(Phase::Opening, EvictionClass::Unanswered, u32::MAX),
            Self::TcpEstablished | Self::DatagramStream => {
                of(Phase::Established, EvictionClass::Established, u32::MAX)
            }
        }
    }

    /// The status of a flow from both sides. TCP is established when both sides have shown it, a datagram flow when the
    /// backend has answered. TCP has ended when both sides have ended it.
    pub(super) fn of_both(client: Self, server: Self, idle: IdleTimeout) -> FlowStatus {
        let of = |phase, eviction_class, timeout_ms| FlowStatus::new(phase, eviction_class, timeout_ms, idle);
        if !client.has_connection() {
            return if server == Self::DatagramOpening {
                of(Phase::Opening, EvictionClass::Unanswered, UNANSWERED_MS)
            } else {
                of(Phase::Established, EvictionClass::Established, u32::MAX)
            };
        }
        let either = |test: fn(Self) -> bool| test(client) || test(server);
        let ended = |state| matches!(state, Self::TcpClosing | Self::TcpClosed);
        let reset = either(|state| state == Self::TcpClosed);
        let unanswered = either(Self::is_opening);
        match (reset, unanswered) {
            (true, true) => of(Phase::Closed, EvictionClass::Closed, CLOSED_MS),
            (true, false) if ended(client) && ended(server) => {
                of(Phase::Closed, EvictionClass::Closed, CLOSED_MS)
            }
            (true, false) => of(Phase::Closed, EvictionClass::HalfClosed, u32::MAX),
            (false, true) if server == Self::TcpEstablished => {
                of(Phase::Opening, EvictionClass::Answered, OPENING_MS)
            }
            (false, true) => of(Phase::Opening, EvictionClass::Unanswered, OPENING_MS),
            _ if ended(client) && ended(server) => of(Phase::Closing, EvictionClass::Closing, CLOSING_MS),
            _ if ended(client) || ended(server) => of(Phase::Closing, EvictionClass::HalfClosed, u32::MAX),
            _ => of(Phase::Established, EvictionClass::Established, u32::MAX),
        }
    }

    /// The shortest timeout of any flow with one direction in this state, unless the other direction has a shorter one.
    /// `paired` means that there is another direction.
    #[inline]
    pub(super) fn shortest_ms(self, idle: IdleTimeout, paired: bool) -> u32 {
        if paired && self == Self::DatagramOpening {
            return UNANSWERED_MS.min(idle.millis());
        }
        self.alone(idle).timeout_ms
    }

    /// The phase of a flow as shown by this direction.
    #[inline]
    pub(super) fn phase(self) -> Phase {
        match self {
            Self::TcpClosed => Phase::Closed,
            Self::TcpOpening | Self::TcpStray | Self::DatagramOpening => Phase::Opening,
            Self::TcpClosing => Phase::Closing,
            Self::TcpEstablished | Self::DatagramStream => Phase::Established,
        }
    }

    /// Whether it is a state of a protocol with connections.
    #[inline]
    #[must_use]
    pub fn has_connection(self) -> bool {
        !matches!(self, Self::DatagramOpening | Self::DatagramStream)
    }

    /// Whether the side has shown that the flow is established.
    #[must_use]
    pub fn is_established(self) -> bool {
        matches!(self, Self::TcpEstablished | Self::DatagramStream)
    }

    /// Whether this direction has ended the connection.
    #[inline]
    pub(super) fn is_ended(self) -> bool {
        matches!(self, Self::TcpClosing | Self::TcpClosed)
    }

    /// Whether this direction has not shown that the flow is established.
    #[inline]
    pub(super) fn is_opening(self) -> bool {
        self.phase() == Phase::Opening
    }
}

/// An idle timeout in 12 bits of an entry: whole seconds, from 1 s to 2,000,000 s. It is exact up to 255 s, and rounded
/// up by less than 0.8 % above that.
///
/// Each entry stores it, so that ageing never reads the snapshot. A changed timeout applies to flows that begin after
/// the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdleTimeout(u16);

impl IdleTimeout {
    const SECONDS_MAX: u64 = 2_000_000;
    /// One second.
    pub(super) const SHORTEST: Self = Self(1);

    /// The shortest timeout that can be stored and is not below `timeout`.
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

    /// The timeout of these bits, if [`Self::new`] can return it.
    pub(super) fn from_stored(bits: u32) -> Option<Self> {
        let (mantissa, exponent) = (bits & 0xff, bits >> 8 & 0xf);
        let longest = Self::SECONDS_MAX.next_multiple_of(1 << 13);
        (1..=longest).contains(&(u64::from(mantissa) << exponent)).then(|| Self::from_bits(bits))
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
    use flags::{ACK, FIN, PSH, RST, SYN};

    fn after(packets: &[u8]) -> SideState {
        let first = SideState::first(Packet::Tcp(packets[0]));
        packets[1..].iter().fold(first, |state, &f| state.next(Packet::Tcp(f)))
    }

    #[test]
    fn a_plain_packet_does_not_change_the_steady_states_of_its_kind() {
        let steady = |packet| {
            let wanted = SideState::steady(packet);
            (1..8).filter(move |bits| bits & STEADY_MASK == wanted).filter_map(SideState::from_bits)
        };
        let sctp = [Kind::Plain, Kind::Unproved].map(Packet::Sctp);
        for packet in [Packet::Tcp(ACK), Packet::Tcp(0), Packet::Tcp(PSH | ACK), sctp[0], sctp[1]] {
            assert!(packet.is_plain());
            assert_eq!(steady(packet).count(), 2);
            assert!(steady(packet).all(|state| state.next(packet) == state));
        }
        // The other state belongs to TCP and never occurs with datagrams: a key has one protocol.
        let mut datagrams = steady(Packet::Datagram).filter(|state| !state.has_connection());
        assert_eq!((datagrams.next(), datagrams.next()), (Some(SideState::DatagramStream), None));
        assert_eq!(SideState::DatagramStream.next(Packet::Datagram), SideState::DatagramStream);
    }

    #[test]
    fn one_packet_never_establishes() {
        for f in 0..=255 {
            assert_ne!(SideState::first(Packet::Tcp(f)).phase(), Phase::Established);
        }
        assert_ne!(SideState::first(Packet::Datagram).phase(), Phase::Established);
        for kind in (0..=8).map(Kind::from_bits) {
            assert_ne!(SideState::first(Packet::Sctp(kind)).phase(), Phase::Established);
        }
    }

    #[test]
    fn repeated_syns_stay_half_open_and_an_ack_establishes() {
        assert_eq!(after(&[SYN, SYN, SYN]), SideState::TcpOpening);
        assert_eq!(after(&[SYN, FIN | ACK]), SideState::TcpOpening);
        assert_eq!(after(&[SYN, ACK]), SideState::TcpEstablished);
        assert_eq!(after(&[SYN, ACK, SYN]), SideState::TcpEstablished);
    }

    #[test]
    fn nothing_but_a_syn_begins_a_connection() {
        for begin in [ACK, SYN | ACK, FIN | ACK, PSH | ACK, 0] {
            for then in [ACK, SYN | ACK, FIN | ACK, PSH | ACK] {
                assert_eq!(after(&[begin, then, then]), SideState::TcpStray);
            }
            assert_eq!(after(&[begin, ACK, SYN, ACK]), SideState::TcpEstablished);
        }
    }

    #[test]
    fn a_fin_closes_and_later_acks_do_not_undo_it() {
        assert_eq!(after(&[SYN, ACK, FIN | ACK, ACK]), SideState::TcpClosing);
        assert_eq!(after(&[SYN, ACK, FIN | ACK, RST]), SideState::TcpClosed);
    }

    #[test]
    fn the_next_packet_undoes_a_blind_reset_and_data_a_blind_fin() {
        assert_eq!(after(&[SYN, ACK, RST]), SideState::TcpClosed);
        assert_eq!(after(&[SYN, ACK, RST, ACK]), SideState::TcpEstablished);
        assert_eq!(after(&[SYN, ACK, FIN | ACK, PSH | ACK]), SideState::TcpEstablished);
        assert_eq!(after(&[SYN, ACK, FIN | ACK, SYN, ACK]), SideState::TcpEstablished, "a new connection");
    }

    #[test]
    fn the_end_of_one_side_lowers_the_eviction_class_not_the_timeout() {
        let idle = IdleTimeout::new(Duration::from_secs(900));
        let both = |a, b| SideState::of_both(a, b, idle);
        use SideState::{TcpClosed, TcpClosing, TcpEstablished, TcpOpening};
        for ended in [TcpClosing, TcpClosed] {
            for (a, b) in [(ended, TcpEstablished), (TcpEstablished, ended)] {
                let status = both(a, b);
                assert_eq!(
                    (status.eviction_class, status.timeout_ms),
                    (EvictionClass::HalfClosed, idle.millis())
                );
                assert_eq!(status.phase, ended.phase());
            }
        }
        assert_eq!(both(TcpClosing, TcpClosing).timeout_ms, CLOSING_MS);
        for (a, b) in [(TcpClosed, TcpClosing), (TcpClosing, TcpClosed), (TcpClosed, TcpClosed)] {
            assert_eq!((both(a, b).timeout_ms, both(a, b).is_over()), (CLOSED_MS, true));
        }
        // There was no established flow to lose.
        assert_eq!(both(TcpOpening, TcpClosed).timeout_ms, CLOSED_MS);
        assert_eq!(both(TcpClosed, TcpOpening).timeout_ms, CLOSED_MS);
    }

    #[test]
    fn a_flow_without_an_answer_is_not_established() {
        let idle = IdleTimeout::new(Duration::from_secs(300));
        let both = |a, b| SideState::of_both(a, b, idle);
        assert_eq!(both(SideState::TcpEstablished, SideState::TcpOpening).phase, Phase::Opening);
        assert_eq!(both(SideState::TcpEstablished, SideState::TcpOpening).timeout_ms, OPENING_MS);
        for client in [SideState::DatagramOpening, SideState::DatagramStream] {
            let silent = both(client, SideState::DatagramOpening);
            assert_eq!((silent.phase, silent.timeout_ms), (Phase::Opening, UNANSWERED_MS));
            let answered = both(client, SideState::DatagramStream);
            assert_eq!((answered.phase, answered.timeout_ms), (Phase::Established, 300_000));
        }
        assert_eq!(SideState::DatagramOpening.alone(idle).timeout_ms, 300_000, "affinity is one packet");
    }

    #[test]
    fn the_entry_of_one_direction_is_over_no_later_than_the_flow() {
        let idle = IdleTimeout::new(Duration::from_secs(900));
        for (a, b) in (1..8).flat_map(|a| (1..8).map(move |b| (a, b))) {
            let (Some(a), Some(b)) = (SideState::from_bits(a), SideState::from_bits(b)) else { continue };
            let both = SideState::of_both(a, b, idle).timeout_ms;
            if a.has_connection() == b.has_connection() {
                assert!(a.shortest_ms(idle, true).min(b.shortest_ms(idle, true)) <= both, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn timeouts_are_stored_rounded_up_by_less_than_one_percent() {
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
        let long = IdleTimeout::new(Duration::from_secs(900));
        assert_eq!(SideState::TcpClosing.alone(short).timeout_ms, 5000);
        assert_eq!(SideState::TcpOpening.alone(long).timeout_ms, OPENING_MS);
        assert_eq!(SideState::TcpClosed.alone(long).timeout_ms, CLOSED_MS);
        assert_eq!(SideState::TcpEstablished.alone(long).timeout_ms, 900_000);
    }
}

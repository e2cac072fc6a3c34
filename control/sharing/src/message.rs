//! The encoding of messages.
//!
//! All numbers are in network byte order.
//!
//! A message about a flow has: flags, protocol, VIP and client (each an address and a port). Unless the flow is gone,
//! these follow: the backend's endpoint, the state of the client's side, the translation of a NAT flow, the
//! verification tags of an SCTP flow (zeros if unknown), and the age. Client port 0 means the backend that session
//! affinity assigns to the client. An IPv4 flow takes 25 bytes, and up to 31 more with NAT and 8 more with SCTP.
//!
//! Other messages use combinations of flags that no flow has. A changed weight has: flags, protocol, VIP, backend, the
//! previous weight, and for how many milliseconds the change is still relevant. A removed backend has the mark of its
//! Service in place of the weight. A message about a table walk has only flags and its kind. A SNAT address has: flags,
//! a set of bits (1 for the first address, 2 if replies should reach the gateway, 4 for the last address), and the
//! address, or zeros if the gateway has none.
//!
//! Invariant: decoding checks every value, and decoding an encoded message returns the same message.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tidegate_conntrack::flow_record::{FlowName, FlowRecord, FlowUpdate, Translation};
use tidegate_conntrack::{SideState, Splice, Stream, TagPair};
use tidegate_spec::{BackendChange, Protocol, RemovedBackend, ServiceKey, WeightChange};
use tidegate_wire::Addr;
use tidegate_wire::rewrite::Endpoint;

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// An update of a flow.
    Flow(FlowUpdate),
    /// A recent change of the backends of a Service.
    Change(ServiceKey, BackendChange),
    /// A message about table walks.
    Walk(Walk),
    /// A SNAT address of the gateway.
    Snat(SnatAddress),
}

/// A SNAT address of a gateway. A gateway sends all of its addresses in sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnatAddress {
    /// The address, unspecified if the gateway has none.
    pub address: IpAddr,
    /// The list starts: discard the addresses that were sent before.
    pub is_first: bool,
    /// The list ends and takes effect.
    pub is_last: bool,
    /// Whether replies should reach this gateway: it forwards, isn't draining, and has the flows of its peers.
    pub serves: bool,
}

/// A report about a table walk, or a request for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// The sender has sent everything that it knew when the session started, or when it received the request.
    Complete,
    /// A request to send everything again: the sender can now use messages that it had refused.
    Again,
    /// A request to send the changes of backends again, and [`Walk::Complete`] after everything that is queued by then.
    Check,
}

impl Walk {
    const ALL: [Self; 3] = [Self::Complete, Self::Again, Self::Check];
}

/// The first protocol version with [`BackendChange::WeightChanged`].
pub const MOVED_SINCE: u8 = 2;

/// The first protocol version with SCTP flows and session affinity.
pub const SCTP_SINCE: u8 = 3;

/// The first protocol version with [`BackendChange::Removed`] and [`Message::Walk`].
pub const WALKS_SINCE: u8 = 4;
/// The first protocol version with [`Message::Snat`].
pub const SNAT_SINCE: u8 = 4;

impl Message {
    /// The first protocol version with this message. Peers with earlier versions can't decode it.
    #[must_use]
    pub fn since(&self) -> u8 {
        match self {
            Self::Change(_, BackendChange::WeightChanged(_)) => MOVED_SINCE,
            Self::Change(_, BackendChange::Removed(_)) | Self::Walk(_) => WALKS_SINCE,
            Self::Snat(..) => SNAT_SINCE,
            Self::Flow(update) => {
                let name = update.name();
                if name.service.protocol == Protocol::Sctp || name.is_affinity() { SCTP_SINCE } else { 1 }
            }
        }
    }
}

/// The size of the longest message in bytes.
pub const RECORD_MAX: usize = 2 + 3 * 18 + 1 + 18 + 1 + 8 + 16 + 8 + 4;

const GONE: u8 = 1;
const VIP_V6: u8 = 2;
const CLIENT_V6: u8 = 4;
const BACKEND_V6: u8 = 8;
const TRANSLATED: u8 = 16;
const RELAYED: u8 = 32;
const STREAM: u8 = 64;
const SPLICE: u8 = 128;
/// The flags of a changed weight. A flow that is gone is never relayed, so no flow has both flags.
const MOVED: u8 = GONE | RELAYED;
/// The flags of a removed backend.
const LEFT: u8 = MOVED | TRANSLATED;
/// The flags of a message about a walk.
const WALK: u8 = MOVED | STREAM;
/// The flags of a SNAT address. A flow that is gone has no splice, so no flow has both flags.
const SNAT: u8 = GONE | SPLICE;
const SNAT_IS_FIRST: u8 = 1;
const SNAT_SERVES: u8 = 2;
const SNAT_IS_LAST: u8 = 4;

/// Appends a message.
pub fn write(message: &Message, out: &mut Vec<u8>) {
    match message {
        Message::Flow(update) => write_flow(update, out),
        Message::Change(service, change) => write_change(service, change, out),
        Message::Walk(walk) => out.extend([WALK, *walk as u8]),
        Message::Snat(SnatAddress { address, is_first, is_last, serves }) => {
            let bits =
                flag(*is_first, SNAT_IS_FIRST) | flag(*is_last, SNAT_IS_LAST) | flag(*serves, SNAT_SERVES);
            out.extend([SNAT | flag(address.is_ipv6(), VIP_V6), bits]);
            endpoint(&Endpoint { addr: (*address).into(), port: 0 }, out);
        }
    }
}

fn write_change(service: &ServiceKey, change: &BackendChange, out: &mut Vec<u8>) {
    let (flags, backend) = match change {
        BackendChange::WeightChanged(seat) => (MOVED, seat.backend),
        BackendChange::Removed(left) => (LEFT, left.backend),
    };
    let vip = Endpoint { addr: service.vip.into(), port: service.port };
    let backend = Endpoint { addr: backend.ip().into(), port: backend.port() };
    let families = flag(!vip.addr.is_v4(), VIP_V6) | flag(!backend.addr.is_v4(), BACKEND_V6);
    out.extend([flags | families, service.protocol.number()]);
    endpoint(&vip, out);
    endpoint(&backend, out);
    match change {
        BackendChange::WeightChanged(seat) => out.extend(seat.former.to_be_bytes()),
        BackendChange::Removed(left) => out.extend(left.owner.to_be_bytes()),
    }
    out.extend(u32::try_from(change.remaining().as_millis()).unwrap_or(u32::MAX).to_be_bytes());
}

fn write_flow(update: &FlowUpdate, out: &mut Vec<u8>) {
    let name = update.name();
    let vip = Endpoint { addr: name.service.vip.into(), port: name.service.port };
    let mut flags = flag(!vip.addr.is_v4(), VIP_V6) | flag(!name.client.addr.is_v4(), CLIENT_V6);
    match update {
        FlowUpdate::Gone(_) => flags |= GONE,
        FlowUpdate::Live(record) => {
            flags |= flag(!record.backend.addr.is_v4(), BACKEND_V6) | flag(record.is_relayed, RELAYED);
            if let Some(translation) = &record.translation {
                flags |= TRANSLATED | flag(translation.stream.is_some(), STREAM);
                flags |= flag(translation.splice.is_some(), SPLICE);
            }
        }
    }
    out.extend([flags, name.service.protocol.number()]);
    endpoint(&vip, out);
    endpoint(&name.client, out);
    let FlowUpdate::Live(record) = update else { return };
    endpoint(&record.backend, out);
    out.push(record.client.number());
    if let Some(translation) = &record.translation {
        // Both translated endpoints have the client's address family.
        endpoint(&translation.local, out);
        out.push(translation.server.number());
        if let Some(stream) = translation.stream {
            out.extend(stream.packed().to_be_bytes());
        }
        if let Some(splice) = translation.splice {
            splice.packed().iter().for_each(|word| out.extend(word.to_be_bytes()));
        }
    }
    if name.service.protocol == Protocol::Sctp {
        let tags = record.tags.unwrap_or_default();
        [tags.client, tags.server].iter().for_each(|tag| out.extend(tag.to_be_bytes()));
    }
    out.extend(record.idle_ms.to_be_bytes());
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

fn endpoint(endpoint: &Endpoint, out: &mut Vec<u8>) {
    match endpoint.addr.ip() {
        IpAddr::V4(addr) => out.extend(addr.octets()),
        IpAddr::V6(addr) => out.extend(addr.octets()),
    }
    out.extend(endpoint.port.to_be_bytes());
}

/// Decodes the first message in `bytes` and advances `bytes` past it; `None` if it is not valid.
pub fn read(bytes: &mut &[u8]) -> Option<Message> {
    let [flags, protocol] = take(bytes)?;
    if flags == WALK {
        return Walk::ALL.into_iter().find(|walk| *walk as u8 == protocol).map(Message::Walk);
    }
    if flags & !VIP_V6 == SNAT {
        let is_valid = protocol & !(SNAT_IS_FIRST | SNAT_IS_LAST | SNAT_SERVES) == 0;
        let Endpoint { addr, port } = read_endpoint(bytes, flags & VIP_V6 != 0)?;
        let is_set = |flag| protocol & flag != 0;
        let (is_first, is_last, serves) = (is_set(SNAT_IS_FIRST), is_set(SNAT_IS_LAST), is_set(SNAT_SERVES));
        let message = Message::Snat(SnatAddress { address: addr.ip(), is_first, is_last, serves });
        return (is_valid && port == 0).then_some(message);
    }
    let protocol = Protocol::from_number(protocol)?;
    let vip = read_endpoint(bytes, flags & VIP_V6 != 0)?;
    let service = ServiceKey { vip: vip.addr.ip(), protocol, port: vip.port };
    if flags & MOVED != MOVED {
        return read_flow(bytes, flags, protocol, vip).map(Message::Flow);
    }
    let backend = read_endpoint(bytes, flags & BACKEND_V6 != 0)?;
    let backend = SocketAddr::new(backend.addr.ip(), backend.port);
    let change = match flags & !(VIP_V6 | BACKEND_V6) {
        MOVED => {
            let former = u16::from_be_bytes(take(bytes)?);
            BackendChange::WeightChanged(WeightChange { backend, former, remaining: read_millis(bytes)? })
        }
        LEFT => {
            let owner = u32::from_be_bytes(take(bytes)?);
            BackendChange::Removed(RemovedBackend { owner, backend, remaining: read_millis(bytes)? })
        }
        _ => return None,
    };
    Some(Message::Change(service, change))
}

fn read_millis(bytes: &mut &[u8]) -> Option<Duration> {
    Some(Duration::from_millis(u32::from_be_bytes(take(bytes)?).into()))
}

/// Decodes a flow after its VIP.
fn read_flow(bytes: &mut &[u8], flags: u8, protocol: Protocol, vip: Endpoint) -> Option<FlowUpdate> {
    let client = read_endpoint(bytes, flags & CLIENT_V6 != 0)?;
    let service = ServiceKey { vip: vip.addr.ip(), protocol, port: vip.port };
    let name = FlowName { service, client };
    if flags & GONE != 0 {
        return (flags & !(GONE | VIP_V6 | CLIENT_V6) == 0).then_some(FlowUpdate::Gone(name));
    }
    let backend = read_endpoint(bytes, flags & BACKEND_V6 != 0)?;
    let client = read_state(bytes)?;
    let translation = if flags & TRANSLATED != 0 {
        let local = read_endpoint(bytes, flags & CLIENT_V6 != 0)?;
        let server = read_state(bytes)?;
        let stream = match flags & STREAM {
            0 => None,
            _ => Some(Stream::unpacked(u64::from_be_bytes(take(bytes)?))?),
        };
        let splice = match flags & SPLICE {
            0 => None,
            _ => {
                let mut words = [0; 4];
                for word in &mut words {
                    *word = u32::from_be_bytes(take(bytes)?);
                }
                Some(Splice::unpacked(words)?)
            }
        };
        Some(Translation { local, server, stream, splice, has_replies: true })
    } else if flags & (STREAM | SPLICE) != 0 {
        return None;
    } else {
        None
    };
    let tags = match protocol {
        Protocol::Sctp => {
            let [client, server] = [take(bytes)?, take(bytes)?].map(u32::from_be_bytes);
            Some(TagPair { client, server }).filter(|tags| *tags != TagPair::default())
        }
        Protocol::Tcp | Protocol::Udp => None,
    };
    let idle_ms = u32::from_be_bytes(take(bytes)?);
    let is_relayed = flags & RELAYED != 0;
    let idle_timeout = None;
    let record = FlowRecord { name, backend, client, translation, tags, idle_ms, idle_timeout, is_relayed };
    Some(FlowUpdate::Live(record))
}

fn read_state(bytes: &mut &[u8]) -> Option<SideState> {
    let [number] = take(bytes)?;
    SideState::from_number(number)
}

fn read_endpoint(bytes: &mut &[u8], is_v6: bool) -> Option<Endpoint> {
    let addr: Addr = if is_v6 {
        let addr = Ipv6Addr::from(take::<16>(bytes)?);
        // IPv4-mapped addresses represent IPv4 in this program.
        if addr.to_ipv4_mapped().is_some() {
            return None;
        }
        IpAddr::V6(addr).into()
    } else {
        IpAddr::V4(Ipv4Addr::from(take::<4>(bytes)?)).into()
    };
    Some(Endpoint { addr, port: u16::from_be_bytes(take(bytes)?) })
}

/// The next `N` bytes.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addr(is_v6: bool) -> impl Strategy<Value = Addr> {
        any::<[u8; 16]>().prop_map(move |bytes| {
            let [a, b, c, d, ..] = bytes;
            if is_v6 {
                Addr::v6([0x20, b, c, d, a, 0, 0, 1, 1, 1, 1, 1, bytes[12], bytes[13], 0, bytes[15]])
            } else {
                Addr::v4([a, b, c, d])
            }
        })
    }

    fn endpoint(is_v6: bool) -> impl Strategy<Value = Endpoint> {
        (addr(is_v6), any::<u16>()).prop_map(|(addr, port)| Endpoint { addr, port })
    }

    fn state() -> impl Strategy<Value = SideState> {
        (1u8..8).prop_map(|number| SideState::from_number(number).expect("1 to 7"))
    }

    fn stream() -> impl Strategy<Value = Option<Stream>> {
        (any::<u64>(), 1u8..3)
            .prop_map(|(word, version)| Stream::unpacked(word & !0xff_0000 | u64::from(version) << 16 | 1))
    }

    fn splice() -> impl Strategy<Value = Option<Splice>> {
        any::<Option<(u32, u32, u16, Option<u32>)>>().prop_map(|splice| {
            splice.map(|(cookie, isn, window, backend)| Splice { cookie, isn, window, backend })
        })
    }

    fn protocol() -> impl Strategy<Value = Protocol> {
        prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)]
    }

    /// Pairs with zero, one or two known tags.
    fn tags() -> impl Strategy<Value = Option<TagPair>> {
        let pair = prop_oneof![any::<[u32; 2]>(), any::<u32>().prop_map(|server| [0, server])];
        pair.prop_map(|[client, server]| {
            Some(TagPair { client, server }).filter(|tags| *tags != TagPair::default())
        })
    }

    fn change() -> impl Strategy<Value = Message> {
        any::<[bool; 3]>().prop_flat_map(|[vip, backend, has_left]| {
            (endpoint(vip), endpoint(backend), protocol(), any::<u16>(), any::<u32>()).prop_map(
                move |(vip, backend, protocol, former, left)| {
                    let service = ServiceKey { vip: vip.addr.ip(), protocol, port: vip.port };
                    let backend = SocketAddr::new(backend.addr.ip(), backend.port);
                    let (owner, left) = (!left, Duration::from_millis(left.into()));
                    Message::Change(
                        service,
                        match has_left {
                            true => {
                                BackendChange::Removed(RemovedBackend { owner, backend, remaining: left })
                            }
                            false => BackendChange::WeightChanged(WeightChange {
                                backend,
                                former,
                                remaining: left,
                            }),
                        },
                    )
                },
            )
        })
    }

    fn snat() -> impl Strategy<Value = Message> {
        any::<[bool; 4]>().prop_flat_map(|[is_v6, is_first, is_last, serves]| {
            endpoint(is_v6).prop_map(move |endpoint| {
                Message::Snat(SnatAddress { address: endpoint.addr.ip(), is_first, is_last, serves })
            })
        })
    }

    fn message() -> impl Strategy<Value = Message> {
        let walk = prop::sample::select(&Walk::ALL[..]).prop_map(Message::Walk);
        prop_oneof![8 => update().prop_map(Message::Flow), 2 => change(), 1 => walk, 1 => snat()]
    }

    fn update() -> impl Strategy<Value = FlowUpdate> {
        any::<[bool; 4]>().prop_flat_map(|[vip, client, backend, translated]| {
            let name = (endpoint(vip), endpoint(client), protocol()).prop_map(|(vip, client, protocol)| {
                FlowName { service: ServiceKey { vip: vip.addr.ip(), protocol, port: vip.port }, client }
            });
            let translation = (endpoint(client), state(), stream(), splice()).prop_map(
                move |(local, server, stream, splice)| {
                    let has_replies = true;
                    translated.then_some(Translation { local, server, stream, splice, has_replies })
                },
            );
            (
                name,
                endpoint(backend),
                state(),
                translation,
                tags(),
                any::<u32>(),
                any::<bool>(),
                prop::bool::weighted(0.2),
            )
                .prop_map(
                    |(name, backend, client, translation, tags, idle_ms, is_relayed, is_gone)| {
                        if is_gone {
                            FlowUpdate::Gone(name)
                        } else {
                            let is_sctp = name.service.protocol == Protocol::Sctp;
                            FlowUpdate::Live(FlowRecord {
                                name,
                                backend,
                                client,
                                translation,
                                tags: tags.filter(|_| is_sctp),
                                idle_ms,
                                idle_timeout: None,
                                is_relayed,
                            })
                        }
                    },
                )
        })
    }

    proptest! {
        #[test]
        fn a_message_decodes_as_it_was_encoded(update in prop::collection::vec(message(), 0..5)) {
            let mut bytes = Vec::new();
            for one in &update {
                let before = bytes.len();
                write(one, &mut bytes);
                prop_assert!(bytes.len() - before <= RECORD_MAX);
            }
            let mut rest = &bytes[..];
            for one in &update {
                let read = read(&mut rest);
                prop_assert_eq!(read.as_ref(), Some(one));
            }
            prop_assert!(rest.is_empty() && read(&mut rest).is_none());
        }

        #[test]
        fn a_truncated_message_is_invalid(update in message(), cut in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            write(&update, &mut bytes);
            prop_assert_eq!(read(&mut &bytes[..cut.index(bytes.len())]), None);
        }

        #[test]
        fn no_bytes_panic_and_every_decoded_message_can_be_encoded(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut rest = &bytes[..];
            while let Some(update) = read(&mut rest) {
                let mut again = Vec::new();
                write(&update, &mut again);
                prop_assert_eq!(read(&mut &again[..]), Some(update));
            }
        }
    }
}

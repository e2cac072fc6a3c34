//! IPFIX messages (RFC 7011): templates, and data records of flows.
//!
//! A template for each kind of flow: the family of the client, the family of the backend or NAT, and begin or end.
//! Modes that translate have records of both directions (RFC 5103) with the addresses after translation (RFC 8158); in
//! DSR modes only the client's packets are seen, and the backend is the next hop.
//!
//! Invariant: a message is at most [`MESSAGE_MAX`] bytes long, and every record in it matches its template.

use std::net::IpAddr;

use tidegate_conntrack::flow_log::{EndReason, FlowEvent};
use tidegate_wire::Family;
use tidegate_wire::rewrite::Endpoint;

use super::flow::Flow;

/// The longest message. With its headers it fits an Ethernet frame, also in a tunnel.
pub(crate) const MESSAGE_MAX: usize = 1_400;

const VERSION: u16 = 10;
const HEADER_LEN: usize = 16;
const TEMPLATE_SET: u16 = 2;
const FIRST_TEMPLATE: u16 = 256;
/// The enterprise number of reverse information elements (RFC 5103 section 6.1).
const REVERSE: u32 = 29_305;
const ENTERPRISE_BIT: u16 = 0x8000;

/// An information element of a template: the number in IANA's registry, the length, and whether it is of the reverse
/// direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Element {
    id: u16,
    len: u16,
    is_reverse: bool,
}

const fn element(id: u16, len: u16) -> Element {
    Element { id, len, is_reverse: false }
}

const fn reverse(id: u16, len: u16) -> Element {
    Element { id, len, is_reverse: true }
}

const OCTET_DELTA_COUNT: u16 = 1;
const PACKET_DELTA_COUNT: u16 = 2;
const PROTOCOL_IDENTIFIER: Element = element(4, 1);
const TCP_CONTROL_BITS: u16 = 6;
const SOURCE_TRANSPORT_PORT: Element = element(7, 2);
const DESTINATION_TRANSPORT_PORT: Element = element(11, 2);
const FLOW_END_REASON: Element = element(136, 1);
const FLOW_START_MILLISECONDS: Element = element(152, 8);
const FLOW_END_MILLISECONDS: Element = element(153, 8);
const POST_NAPT_SOURCE_PORT: Element = element(227, 2);
const POST_NAPT_DESTINATION_PORT: Element = element(228, 2);
const NAT_EVENT: Element = element(230, 1);
const FIREWALL_EVENT: Element = element(233, 1);
const BIFLOW_DIRECTION: Element = element(239, 1);
const OBSERVATION_TIME_MILLISECONDS: Element = element(323, 8);

/// The elements of an address, for IPv4 and IPv6.
type Pair = [Element; 2];
const SOURCE_ADDRESS: Pair = [element(8, 4), element(27, 16)];
const DESTINATION_ADDRESS: Pair = [element(12, 4), element(28, 16)];
const NEXT_HOP: Pair = [element(15, 4), element(62, 16)];
const POST_NAT_SOURCE: Pair = [element(225, 4), element(281, 16)];
const POST_NAT_DESTINATION: Pair = [element(226, 4), element(282, 16)];

/// A kind of flow, which has templates of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Translated, with addresses of this family.
    Nat(Family),
    /// Not translated: the family of the client, and that of the backend.
    Dsr(Family, Family),
}

const KINDS: [Kind; 6] = [
    Kind::Nat(Family::V4),
    Kind::Nat(Family::V6),
    Kind::Dsr(Family::V4, Family::V4),
    Kind::Dsr(Family::V4, Family::V6),
    Kind::Dsr(Family::V6, Family::V4),
    Kind::Dsr(Family::V6, Family::V6),
];

fn of(pair: Pair, family: Family) -> Element {
    let [v4, v6] = pair;
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

/// The value of an element.
#[derive(Debug, Clone, Copy)]
enum Value {
    Number(u64),
    Address(IpAddr),
}

/// Calls `each` for the elements of a record in their order, with the values of a flow. A template needs no flow, so
/// both come from here and always match.
fn elements(kind: Kind, is_end: bool, flow: Option<&Flow>, mut each: impl FnMut(Element, Value)) {
    let number = |value: fn(&Flow) -> u64| Value::Number(flow.map_or(0, value));
    let address = |value: fn(&Flow) -> Option<Endpoint>| {
        let at = flow.and_then(value).map_or(IpAddr::from([0, 0, 0, 0]), |at| at.addr.into());
        Value::Address(at)
    };
    let (client_family, backend_family) = match kind {
        Kind::Nat(family) => (family, family),
        Kind::Dsr(client, backend) => (client, backend),
    };
    each(OBSERVATION_TIME_MILLISECONDS, number(|flow| flow.end_ms));
    each(FLOW_START_MILLISECONDS, number(|flow| flow.start_ms));
    each(FLOW_END_MILLISECONDS, number(|flow| flow.end_ms));
    each(of(SOURCE_ADDRESS, client_family), address(|flow| Some(flow.record.client)));
    each(of(DESTINATION_ADDRESS, client_family), address(|flow| Some(flow.service.vip)));
    each(SOURCE_TRANSPORT_PORT, number(|flow| flow.record.client.port.into()));
    each(DESTINATION_TRANSPORT_PORT, number(|flow| flow.service.vip.port.into()));
    each(PROTOCOL_IDENTIFIER, number(|flow| flow.service.protocol.number().into()));
    match kind {
        Kind::Nat(family) => {
            each(of(POST_NAT_SOURCE, family), address(|flow| flow.record.source));
            each(of(POST_NAT_DESTINATION, family), address(|flow| Some(flow.backend)));
            each(POST_NAPT_SOURCE_PORT, number(|flow| flow.record.source.map_or(0, |at| at.port).into()));
            each(POST_NAPT_DESTINATION_PORT, number(|flow| flow.backend.port.into()));
        }
        Kind::Dsr(..) => each(of(NEXT_HOP, backend_family), address(|flow| Some(flow.backend))),
    }
    each(FIREWALL_EVENT, Value::Number(if is_end { 2 } else { 1 }));
    if kind == Kind::Nat(Family::V4) {
        // RFC 8158 has no value for a session that translates IPv6 addresses.
        each(NAT_EVENT, Value::Number(if is_end { 5 } else { 4 }));
    }
    if is_end {
        each(element(PACKET_DELTA_COUNT, 8), number(|flow| flow.record.counts[0].packets));
        each(element(OCTET_DELTA_COUNT, 8), number(|flow| flow.record.counts[0].bytes));
        each(element(TCP_CONTROL_BITS, 2), number(|flow| flow.record.counts[0].tcp_flags.into()));
        if let Kind::Nat(_) = kind {
            each(reverse(PACKET_DELTA_COUNT, 8), number(|flow| flow.record.counts[1].packets));
            each(reverse(OCTET_DELTA_COUNT, 8), number(|flow| flow.record.counts[1].bytes));
            each(reverse(TCP_CONTROL_BITS, 2), number(|flow| flow.record.counts[1].tcp_flags.into()));
            // 1: the source of the flow initiated it.
            each(BIFLOW_DIRECTION, Value::Number(1));
        }
        each(FLOW_END_REASON, number(|flow| end_reason(flow.record.event).into()));
    }
}

/// The value of `flowEndReason`.
fn end_reason(event: FlowEvent) -> u8 {
    match event {
        FlowEvent::Begin => 0,
        FlowEvent::End(EndReason::Idle) => 1,
        FlowEvent::End(EndReason::Closed | EndReason::Reset) => 3,
        FlowEvent::End(EndReason::Removed | EndReason::Stopped) => 4,
        FlowEvent::End(EndReason::Evicted) => 5,
    }
}

/// The template of a kind.
fn template_id(kind: Kind, is_end: bool) -> u16 {
    let at = KINDS.iter().position(|one| *one == kind).expect("every kind is in the list");
    FIRST_TEMPLATE + (at * 2 + usize::from(is_end)) as u16
}

fn kind_of(flow: &Flow) -> Kind {
    let client = flow.record.client.addr.family();
    if flow.service.mode.is_dsr() { Kind::Dsr(client, flow.backend.addr.family()) } else { Kind::Nat(client) }
}

/// Builds messages of one observation domain.
#[derive(Debug)]
pub(crate) struct Encoder {
    domain: u32,
    /// Data records in earlier messages.
    sequence: u32,
    message: Vec<u8>,
    /// Data records in `message`.
    records: u32,
    /// The start of the last set in `message`, and its id.
    set: Option<(usize, u16)>,
}

/// A complete message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// Its data records.
    pub(crate) records: u32,
}

impl Encoder {
    pub(crate) fn new(domain: u32) -> Self {
        Self { domain, sequence: 0, message: Vec::with_capacity(MESSAGE_MAX), records: 0, set: None }
    }

    /// A message with all templates.
    pub(crate) fn templates(&mut self, export_s: u32) -> Message {
        debug_assert!(self.message.is_empty(), "the message before was taken");
        self.open_set(TEMPLATE_SET);
        for kind in KINDS {
            for is_end in [false, true] {
                let mut fields = Vec::new();
                let mut count = 0_u16;
                elements(kind, is_end, None, |element, _| {
                    count += 1;
                    let bit = if element.is_reverse { ENTERPRISE_BIT } else { 0 };
                    fields.extend((element.id | bit).to_be_bytes());
                    fields.extend(element.len.to_be_bytes());
                    if element.is_reverse {
                        fields.extend(REVERSE.to_be_bytes());
                    }
                });
                self.message.extend(template_id(kind, is_end).to_be_bytes());
                self.message.extend(count.to_be_bytes());
                self.message.append(&mut fields);
            }
        }
        self.take(export_s).expect("there are templates")
    }

    /// Adds a record. Returns the message before it, if the record no longer fits into it.
    pub(crate) fn add(&mut self, flow: &Flow, export_s: u32) -> Option<Message> {
        let (kind, is_end) = (kind_of(flow), matches!(flow.record.event, FlowEvent::End(_)));
        let id = template_id(kind, is_end);
        let mut record = Vec::with_capacity(160);
        elements(kind, is_end, Some(flow), |element, value| append(&mut record, element, value));
        let header = if self.set.is_some_and(|(_, last)| last == id) { 0 } else { 4 };
        let full =
            if self.message.len() + header + record.len() > MESSAGE_MAX { self.take(export_s) } else { None };
        if self.set.is_none_or(|(_, last)| last != id) {
            self.open_set(id);
        }
        self.message.append(&mut record);
        self.records += 1;
        full
    }

    /// The message so far, if it has anything.
    pub(crate) fn take(&mut self, export_s: u32) -> Option<Message> {
        if self.message.is_empty() {
            return None;
        }
        self.close_set();
        let mut bytes = std::mem::replace(&mut self.message, Vec::with_capacity(MESSAGE_MAX));
        let len = u16::try_from(bytes.len()).expect("a message is short");
        bytes[0..2].copy_from_slice(&VERSION.to_be_bytes());
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes[4..8].copy_from_slice(&export_s.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.domain.to_be_bytes());
        let records = std::mem::take(&mut self.records);
        self.sequence = self.sequence.wrapping_add(records);
        Some(Message { bytes, records })
    }

    fn open_set(&mut self, id: u16) {
        self.close_set();
        if self.message.is_empty() {
            self.message.resize(HEADER_LEN, 0);
        }
        self.set = Some((self.message.len(), id));
        self.message.extend(id.to_be_bytes());
        self.message.extend([0, 0]);
    }

    /// Writes the length of the last set.
    fn close_set(&mut self) {
        if let Some((start, _)) = self.set.take() {
            let len = u16::try_from(self.message.len() - start).expect("a message is short");
            self.message[start + 2..start + 4].copy_from_slice(&len.to_be_bytes());
        }
    }
}

fn append(record: &mut Vec<u8>, element: Element, value: Value) {
    match value {
        Value::Number(number) => {
            let bytes = number.to_be_bytes();
            record.extend(&bytes[bytes.len() - usize::from(element.len)..]);
        }
        Value::Address(IpAddr::V4(address)) if element.len == 4 => record.extend(address.octets()),
        Value::Address(IpAddr::V6(address)) if element.len == 16 => record.extend(address.octets()),
        // A flow has the families of its kind. Anything else would shift the following elements.
        Value::Address(_) => record.resize(record.len() + usize::from(element.len), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::flow::samples::{START_MS, dsr, nat};
    use super::*;

    const END: FlowEvent = FlowEvent::End(EndReason::Closed);

    fn words(bytes: &[u8]) -> Vec<u16> {
        bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect()
    }

    #[test]
    fn the_templates_fit_one_message_and_name_the_registered_elements() {
        let mut encoder = Encoder::new(7);
        let message = encoder.templates(1_000);
        assert!(message.bytes.len() <= MESSAGE_MAX, "{}", message.bytes.len());
        assert_eq!(message.records, 0, "templates don't count as data records (RFC 7011 section 3.1)");
        let words = words(&message.bytes);
        assert_eq!(words[..8], [10, message.bytes.len() as u16, 0, 1_000, 0, 0, 0, 7]);
        assert_eq!(words[8..10], [2, message.bytes.len() as u16 - 16]);
        // The first template: a new flow through IPv4 NAT.
        assert_eq!(words[10..12], [256, 14]);
        let first: Vec<u16> = words[12..12 + 28].chunks(2).map(|pair| pair[0]).collect();
        assert_eq!(first, [323, 152, 153, 8, 12, 7, 11, 4, 225, 226, 227, 228, 233, 230]);
    }

    #[test]
    fn records_have_the_length_of_their_template_and_the_sequence_counts_them() {
        let mut encoder = Encoder::new(1);
        let mut sizes = Vec::new();
        for flow in [nat(FlowEvent::Begin), nat(END), dsr(FlowEvent::Begin), dsr(END)] {
            let (kind, is_end) = (kind_of(&flow), flow.record.event == END);
            let mut expected = 0;
            elements(kind, is_end, None, |element, _| expected += usize::from(element.len));
            assert_eq!(encoder.add(&flow, 9), None);
            let message = encoder.take(9).expect("it has a record");
            assert_eq!(message.bytes.len(), HEADER_LEN + 4 + expected);
            assert_eq!(words(&message.bytes)[8], template_id(kind, is_end));
            assert_eq!(words(&message.bytes)[5], sizes.len() as u16, "data records before");
            sizes.push(expected);
        }
        assert_eq!(encoder.take(9), None);
    }

    #[test]
    fn a_record_of_a_translated_flow_has_both_directions_and_both_addresses() {
        let mut encoder = Encoder::new(1);
        let _ = encoder.add(&nat(END), 9);
        let message = encoder.take(9).expect("it has a record");
        let mut expected = Vec::new();
        expected.extend((START_MS + 1_500).to_be_bytes());
        expected.extend(START_MS.to_be_bytes());
        expected.extend((START_MS + 1_500).to_be_bytes());
        expected.extend([198, 51, 100, 7, 203, 0, 113, 5]);
        expected.extend([4711_u16, 80].into_iter().flat_map(u16::to_be_bytes));
        expected.push(6);
        expected.extend([10, 0, 0, 253, 10, 0, 0, 1]);
        expected.extend([1024_u16, 8080].into_iter().flat_map(u16::to_be_bytes));
        // firewallEvent: flow deleted. natEvent: NAT44 session delete.
        expected.extend([2, 5]);
        expected.extend([5_u64, 400].into_iter().flat_map(u64::to_be_bytes));
        expected.extend([0, 0x13]);
        expected.extend([4_u64, 5_000].into_iter().flat_map(u64::to_be_bytes));
        expected.extend([0, 0x1b]);
        // biflowDirection: initiator. flowEndReason: end of flow detected.
        expected.extend([1, 3]);
        assert_eq!(message.bytes[HEADER_LEN + 4..], expected);
    }

    #[test]
    fn messages_stay_below_the_limit_and_lose_no_record() {
        let mut encoder = Encoder::new(1);
        let mut messages: Vec<Message> = Vec::new();
        for n in 0..1_000 {
            let event = if n % 3 == 0 { FlowEvent::Begin } else { END };
            messages.extend(encoder.add(&if n % 2 == 0 { nat(event) } else { dsr(event) }, 9));
        }
        messages.extend(encoder.take(9));
        let mut sequence = 0;
        for message in &messages {
            assert!(message.bytes.len() <= MESSAGE_MAX);
            assert_eq!(message.bytes[8..12], u32::to_be_bytes(sequence));
            sequence += message.records;
            // The sets fill the message.
            let mut at = HEADER_LEN;
            while at < message.bytes.len() {
                at += usize::from(u16::from_be_bytes([message.bytes[at + 2], message.bytes[at + 3]]));
            }
            assert_eq!(at, message.bytes.len());
        }
        assert_eq!(sequence, 1_000);
    }
}

//! The addresses of the lab, and frames of numbered flows, written without a table of flows.
//!
//! Flow n belongs to service n modulo the number of services, and its client's address and port follow from n. A
//! generator of any number of flows therefore touches no memory except the frame: the cost of a frame hardly depends on
//! their number.
//!
//! Each frame ends with a mark: the flow, and the time at which the frame should have been sent. Every forwarder leaves
//! the payload unchanged, so the receiver reads both, whatever was added or changed in front of it.
//!
//! Invariant: all checksums are correct.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tidegate_pipeline::testing::builder::Builder;
use tidegate_wire::{Headers, MacAddr, Parsed, parse};

use crate::scenario::{Family, MARK_LEN, Protocol, Scenario};

const MAGIC: [u8; 4] = *b"tgb1";

/// The link address of the generator, on both wires.
pub(crate) const GENERATOR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0x10, 1]);
/// The link address of the forwarder on the wire of clients.
pub(crate) const CLIENT_SIDE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0x10, 2]);
/// The link address of the forwarder on the wire of backends.
pub(crate) const BACKEND_SIDE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0x10, 3]);
/// The port of every service and backend.
pub(crate) const PORT: u16 = 8080;

/// Addresses of clients in use at a time. Each has many ports.
const CLIENTS: u32 = 1 << 14;
/// The first port of clients.
const CLIENT_PORT: u16 = 1_024;

/// An address of the plan: `10.N.x.y`, or `fd00:N::x:y`.
fn planned(family: Family, network: u8, n: u32) -> IpAddr {
    let [.., high, low] = n.to_be_bytes();
    match family {
        Family::V4 => Ipv4Addr::new(10, network, high, low).into(),
        Family::V6 => {
            Ipv6Addr::new(0xfd00, network.into(), 0, 0, 0, 0, 0, u16::from_be_bytes([high, low])).into()
        }
    }
}

/// The forwarder's own address, and the one behind it, on the wire of clients.
pub(crate) fn client_side(family: Family) -> [IpAddr; 2] {
    [planned(family, 10, 2), planned(family, 10, 1)]
}

/// The forwarder's own address on the wire of backends.
pub(crate) fn backend_side(family: Family) -> IpAddr {
    planned(family, 20, 65_000)
}

/// An address for `fullnat`.
pub(crate) fn snat(family: Family, n: u32) -> IpAddr {
    planned(family, 20, 65_001 + n)
}

/// The VIP of a service.
pub(crate) fn vip(family: Family, service: u32) -> IpAddr {
    planned(family, 30, service)
}

/// A backend, numbered over all services.
pub(crate) fn backend(family: Family, n: u32) -> IpAddr {
    planned(family, 20, n + 1)
}

/// The link address of a backend, if each has its own.
pub(crate) fn backend_mac(n: u32) -> MacAddr {
    let [_, _, high, low] = (n + 1).to_be_bytes();
    MacAddr([2, 0, 0, 1, high, low])
}

/// The prefix of a network of the plan.
pub(crate) fn prefix(family: Family, network: u8) -> String {
    match family {
        Family::V4 => format!("10.{network}.0.0/16"),
        Family::V6 => format!("fd00:{network:x}::/64"),
    }
}

/// Writes the frames of clients.
#[derive(Debug)]
pub(crate) struct Requests {
    family: Family,
    services: u32,
    /// The first frame of service 0 of each size, with its offsets and the sum of what never changes.
    templates: Vec<Template>,
    next: usize,
}

#[derive(Debug)]
struct Template {
    bytes: Vec<u8>,
    l3: usize,
    l4: usize,
    checksum_at: usize,
}

impl Requests {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let (family, protocol) = (scenario.family, scenario.protocol);
        let templates = scenario
            .frame_bytes
            .iter()
            .map(|&bytes| Template::of(family, protocol, usize::from(bytes)))
            .collect();
        Self { family, services: scenario.services, templates, next: 0 }
    }

    /// Bytes of the next frame.
    #[inline]
    pub(crate) fn next_len(&self) -> usize {
        self.templates[self.next].bytes.len()
    }

    /// Writes the next frame of a flow. `out` has [`Self::next_len`] bytes. TCP frames have these flags.
    #[inline]
    pub(crate) fn write(&mut self, flow: u32, time: u64, tcp_flags: u8, out: &mut [u8]) {
        let template = &self.templates[self.next];
        self.next = if self.next + 1 == self.templates.len() { 0 } else { self.next + 1 };
        out.copy_from_slice(&template.bytes);
        let (service, client) = (flow % self.services, flow / self.services);
        let (host, port) = (client % CLIENTS, CLIENT_PORT + (client / CLIENTS) as u16);
        let (l3, l4) = (template.l3, template.l4);
        match self.family {
            Family::V4 => {
                out[l3 + 14..l3 + 16].copy_from_slice(&(host as u16).to_be_bytes());
                out[l3 + 18..l3 + 20].copy_from_slice(&(service as u16).to_be_bytes());
                let sum = ones(&out[l3..l3 + 20]);
                out[l3 + 10..l3 + 12].copy_from_slice(&(!fold(sum)).to_be_bytes());
            }
            Family::V6 => {
                out[l3 + 22..l3 + 24].copy_from_slice(&(host as u16).to_be_bytes());
                out[l3 + 38..l3 + 40].copy_from_slice(&(service as u16).to_be_bytes());
            }
        }
        out[l4..l4 + 2].copy_from_slice(&port.to_be_bytes());
        if template.checksum_at == l4 + 16 {
            out[l4 + 13] = tcp_flags;
        }
        mark(out, flow, time);
        finish_l4(out, self.family, l3, l4, template.checksum_at);
    }
}

impl Template {
    fn of(family: Family, protocol: Protocol, bytes: usize) -> Self {
        let (from, to) =
            (SocketAddr::new(planned(family, 40, 0), CLIENT_PORT), SocketAddr::new(vip(family, 0), PORT));
        let builder = match protocol {
            Protocol::Tcp => Builder::tcp(from, to),
            Protocol::Udp => Builder::udp(from, to),
        };
        let empty = builder.mac(GENERATOR_MAC, CLIENT_SIDE_MAC).payload_len(0);
        let headers = headers(&empty.clone().build()).expect("the builder writes sound frames");
        let payload = bytes.saturating_sub(usize::from(headers.ip_end)).max(MARK_LEN);
        let mut bytes = empty.payload_len(payload).build();
        let h = self::headers(&bytes).expect("the builder writes sound frames");
        bytes.truncate(usize::from(h.ip_end));
        let (l3, l4) = (usize::from(h.l3), usize::from(h.l4));
        let checksum_at = l4 + if protocol == Protocol::Tcp { 16 } else { 6 };
        if family == Family::V4 {
            bytes[l3 + 10..l3 + 12].fill(0);
        }
        bytes[checksum_at..checksum_at + 2].fill(0);
        let payload = l4 + if protocol == Protocol::Tcp { 20 } else { 8 };
        bytes[payload..].fill(0);
        Self { bytes, l3, l4, checksum_at }
    }
}

/// What a backend received of a flow, from which it answers: the forwarder's address and port, and its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// The source that it saw: the client, or an address of the forwarder.
    from: [u8; 16],
    to: [u8; 16],
    from_port: u16,
    to_port: u16,
}

impl Seen {
    /// The addresses and ports of a frame without a tunnel.
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let h = headers(frame)?;
        Some(Self { from: *h.src.bytes(), to: *h.dst.bytes(), from_port: h.src_port, to_port: h.dst_port })
    }

    /// Whether anything was seen.
    pub(crate) fn is_known(&self) -> bool {
        self.from_port != 0
    }
}

/// Writes the frames of backends.
#[derive(Debug)]
pub(crate) struct Replies {
    family: Family,
    template: Template,
}

impl Replies {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let bytes = usize::from(*scenario.frame_bytes.first().expect("a scenario has a size"));
        let mut template = Template::of(scenario.family, scenario.protocol, bytes);
        template.bytes[..6].copy_from_slice(&BACKEND_SIDE_MAC.0);
        Self { family: scenario.family, template }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.template.bytes.len()
    }

    /// Writes the answer to what was seen of a flow.
    #[inline]
    pub(crate) fn write(&self, seen: &Seen, flow: u32, time: u64, tcp_flags: u8, out: &mut [u8]) {
        let Template { bytes, l3, l4, checksum_at } = &self.template;
        let (l3, l4) = (*l3, *l4);
        out.copy_from_slice(bytes);
        match self.family {
            Family::V4 => {
                out[l3 + 12..l3 + 16].copy_from_slice(&seen.to[12..]);
                out[l3 + 16..l3 + 20].copy_from_slice(&seen.from[12..]);
                let sum = ones(&out[l3..l3 + 20]);
                out[l3 + 10..l3 + 12].copy_from_slice(&(!fold(sum)).to_be_bytes());
            }
            Family::V6 => {
                out[l3 + 8..l3 + 24].copy_from_slice(&seen.to);
                out[l3 + 24..l3 + 40].copy_from_slice(&seen.from);
            }
        }
        out[l4..l4 + 2].copy_from_slice(&seen.to_port.to_be_bytes());
        out[l4 + 2..l4 + 4].copy_from_slice(&seen.from_port.to_be_bytes());
        if *checksum_at == l4 + 16 {
            out[l4 + 13] = tcp_flags;
        }
        mark(out, flow, time);
        finish_l4(out, self.family, l3, l4, *checksum_at);
    }
}

/// The flow and the time in a frame of ours.
#[inline]
pub(crate) fn read_mark(frame: &[u8]) -> Option<(u32, u64)> {
    let mark = frame.last_chunk::<MARK_LEN>()?;
    let (magic, rest) = mark.split_first_chunk::<4>()?;
    let (flow, time) = rest.split_first_chunk::<4>()?;
    (*magic == MAGIC)
        .then(|| (u32::from_be_bytes(*flow), u64::from_be_bytes(time.try_into().unwrap_or_default())))
}

#[inline]
fn mark(out: &mut [u8], flow: u32, time: u64) {
    if let Some(mark) = out.last_chunk_mut::<MARK_LEN>() {
        mark[..4].copy_from_slice(&MAGIC);
        mark[4..8].copy_from_slice(&flow.to_be_bytes());
        mark[8..].copy_from_slice(&time.to_be_bytes());
    }
}

/// Writes the checksum of TCP or UDP (RFC 9293 section 3.1, RFC 768). The payload between the headers and the mark is
/// zero, so it need not be read.
#[inline]
fn finish_l4(out: &mut [u8], family: Family, l3: usize, l4: usize, checksum_at: usize) {
    let (addresses, proto) = match family {
        Family::V4 => (l3 + 12..l3 + 20, out[l3 + 9]),
        Family::V6 => (l3 + 8..l3 + 40, out[l3 + 6]),
    };
    out[checksum_at..checksum_at + 2].fill(0);
    let header = l4..l4 + if checksum_at == l4 + 16 { 20 } else { 8 };
    let end = out.len();
    // A mark at an odd offset of the payload is byte-swapped in the sum.
    let marked = ones(&out[end - MARK_LEN..]);
    let marked = if (end - MARK_LEN - l4) % 2 == 1 { u32::from(fold(marked).swap_bytes()) } else { marked };
    let sum = ones(&out[addresses]) + u32::from(proto) + (end - l4) as u32 + ones(&out[header]) + marked;
    let checksum = match !fold(sum) {
        // In UDP, zero means that there is no checksum.
        0 => 0xffff,
        sum => sum,
    };
    out[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// The sum of the 16-bit words of an even number of bytes.
#[inline]
fn ones(bytes: &[u8]) -> u32 {
    bytes.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum()
}

#[inline]
fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}

/// The headers of a sound IP packet.
pub(crate) fn headers(frame: &[u8]) -> Option<Headers> {
    match parse(frame) {
        Ok(Parsed::Ip(headers)) => Some(headers),
        _ => None,
    }
}

/// Picks numbers below a bound: uniformly distributed, and in the same order on every run.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below `bound` (xorshift64*, Vigna 2016).
    #[inline]
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * u64::from(bound)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_wire::Family as WireFamily;

    fn scenarios() -> impl Iterator<Item = Scenario> {
        ["v4", "v6"].into_iter().flat_map(|family| {
            ["tcp", "udp"].into_iter().map(move |protocol| {
                let text = format!("family = '{family}'\nprotocol = '{protocol}'\nframe-bytes = [90, 115, 1514]\nservices = 7");
                Scenario::parse(&text).unwrap().remove(0)
            })
        })
    }

    #[test]
    fn frames_are_sound_and_each_flow_has_its_own_addresses() {
        for scenario in scenarios() {
            let mut requests = Requests::new(&scenario);
            let mut seen = std::collections::HashSet::new();
            for flow in (0..3_000).chain([999_999, 15_999_999]) {
                let mut frame = vec![0xaa; requests.next_len()];
                requests.write(flow, 77, 0x10, &mut frame);
                let h = headers(&frame).unwrap_or_else(|| panic!("flow {flow} of {scenario:?}"));
                assert_eq!(read_mark(&frame), Some((flow, 77)));
                assert_eq!((h.dst_port, h.dst.ip()), (PORT, vip(scenario.family, flow % 7)));
                assert!(seen.insert((h.src, h.src_port, h.dst)), "flow {flow} is another one");
                assert_eq!(usize::from(h.ip_end), frame.len());
                assert_eq!(h.family == WireFamily::V4, scenario.family == Family::V4);
            }
        }
    }

    #[test]
    fn an_answer_goes_to_the_sender_of_the_request() {
        for scenario in scenarios() {
            let (mut requests, replies) = (Requests::new(&scenario), Replies::new(&scenario));
            let mut request = vec![0; requests.next_len()];
            requests.write(12_345, 1, 2, &mut request);
            let seen = Seen::of(&request).unwrap();
            assert!(seen.is_known() && !Seen::default().is_known());
            let mut reply = vec![0; replies.len()];
            replies.write(&seen, 12_345, 2, 0x12, &mut reply);
            let (there, back) = (headers(&request).unwrap(), headers(&reply).unwrap());
            assert_eq!((there.src, there.src_port, there.dst), (back.dst, back.dst_port, back.src));
            assert_eq!(read_mark(&reply), Some((12_345, 2)));
        }
    }

    #[test]
    fn a_foreign_frame_has_no_mark() {
        assert_eq!(read_mark(&[0; 60]), None);
        assert_eq!(read_mark(b"short"), None);
    }

    #[test]
    fn random_numbers_reach_every_flow() {
        let mut random = Random::new(7);
        let mut seen = [false; 100];
        (0..2_000).for_each(|_| seen[random.below(100) as usize] = true);
        assert!(seen.iter().all(|seen| *seen));
    }
}

//! SCTP associations that gateways share: one gateway sees the handshake, and another one continues.

use std::net::SocketAddr;

use tidegate_conntrack::TagPair;
use tidegate_conntrack::flow_record::FlowUpdate;
use tidegate_spec::{ForwardingMode, Protocol, SnapshotSpec};
use tidegate_wire::sctp::chunk;

use super::flow_replication::{Gateway, adds, sent};
use super::lab::{FrameResult, ROUTER_MAC, backend_mac, service, spec};
use crate::pipeline::{ImportOutcome, SharedFlows};
use crate::testing::builder::{Builder, GATEWAY_MAC};

/// Client, VIP and backend, in both families.
const ENDS: [[&str; 3]; 2] = [
    ["198.51.100.7:40000", "203.0.113.5:3868", "10.0.0.1:3868"],
    ["[2001:db8::7]:40000", "[2001:db8:1::5]:3868", "[fd00::1]:3868"],
];
/// The tags that the client and the server require.
const TAGS: TagPair = TagPair { client: 0x1111_1111, server: 0x2222_2222 };

fn addr(text: &str) -> SocketAddr {
    text.parse().expect("an address in a test")
}

fn spec_of(mode: ForwardingMode, vip: &str, backends: &[&str]) -> SnapshotSpec {
    SnapshotSpec { services: vec![service(mode, Protocol::Sctp, vip, backends).into()], ..spec() }
}

fn receive(gateway: &mut Gateway, packet: Builder, is_reply: bool) -> FrameResult {
    let sender = if is_reply { backend_mac(1) } else { ROUTER_MAC };
    gateway.receive(0, &packet.mac(sender, GATEWAY_MAC).build())
}

/// Sends a chunk of the client.
fn send_chunk(
    gateway: &mut Gateway,
    from: SocketAddr,
    to: SocketAddr,
    tag: u32,
    kind: u8,
    value: &[u8],
) -> FrameResult {
    receive(gateway, Builder::sctp(from, to).tag(tag).chunk(kind, 0, value), false)
}

/// Sends a chunk of the backend.
fn answer(gateway: &mut Gateway, from: SocketAddr, to: SocketAddr, kind: u8, value: &[u8]) -> FrameResult {
    receive(gateway, Builder::sctp(from, to).tag(TAGS.client).chunk(kind, 0, value), true)
}

/// Opens an association in a mode that translates, and returns its source towards the backend.
fn associate(gateway: &mut Gateway, [client, vip, backend]: [&str; 3]) -> SocketAddr {
    let [client, vip, backend] = [client, vip, backend].map(addr);
    let (local, to) = sent(&receive(gateway, Builder::sctp_init(client, vip, TAGS.client), false));
    assert_eq!(to, backend);
    let fields = [&TAGS.server.to_be_bytes()[..], &[0; 12]].concat();
    answer(gateway, backend, local, chunk::INIT_ACK, &fields);
    send_chunk(gateway, client, vip, TAGS.server, chunk::COOKIE_ECHO, &[0; 40]);
    assert_eq!(sent(&answer(gateway, backend, local, chunk::COOKIE_ACK, &[])), (vip, client));
    local
}

#[test]
fn association_continues_at_another_gateway_which_recognises_its_end() {
    for mode in [ForwardingMode::Nat, ForwardingMode::FullNat] {
        for (ends, workers) in ENDS.into_iter().flat_map(|ends| [1, 3].map(|workers| (ends, workers))) {
            let spec = spec_of(mode, ends[1], &[ends[2]]);
            let mut first = Gateway::new(&spec, 1, SharedFlows::Nat);
            let mut second = Gateway::second(&spec, workers);
            let local = associate(&mut first, ends);
            let updates = first.updates();
            let [FlowUpdate::Live(record)] = updates[..] else { panic!("{mode}: {updates:?}") };
            assert_eq!(record.tags, Some(TAGS));
            assert_eq!(second.adopt(&updates), [ImportOutcome::New], "{mode}, {workers} workers");
            let [client, vip, backend] = ends.map(addr);
            for _ in 0..3 {
                let reply = answer(&mut second, backend, local, chunk::DATA, &[0; 16]);
                assert_eq!(sent(&reply), (vip, client), "{mode}, {workers} workers");
                let request = send_chunk(&mut second, client, vip, TAGS.server, chunk::DATA, &[0; 16]);
                assert_eq!(sent(&request), (local, backend), "{mode}, {workers} workers");
            }
            if workers > 1 {
                continue;
            }
            // Only the right tag ends it.
            for (tag, live) in [(TAGS.server + 1, 1), (TAGS.server, 0)] {
                send_chunk(&mut second, client, vip, tag, chunk::ABORT, &[]);
                second.wait(11);
                assert_eq!(second.live(), live, "{mode}, an ABORT with tag {tag:x}");
            }
        }
    }
}

#[test]
fn further_path_of_an_association_joins_at_another_gateway() {
    for is_shared in [false, true] {
        let spec = spec_of(ForwardingMode::Nat, ENDS[0][1], &[ENDS[0][2]]);
        let (mut first, mut second) = (Gateway::new(&spec, 1, SharedFlows::Nat), Gateway::second(&spec, 1));
        associate(&mut first, ENDS[0]);
        if is_shared {
            second.adopt(&first.updates());
        }
        let [_, vip, backend] = ENDS[0].map(addr);
        let other = addr("198.51.101.7:40000");
        let result = send_chunk(&mut second, other, vip, TAGS.server, chunk::DATA, &[0; 16]);
        assert_eq!(second.live(), if is_shared { 2 } else { 0 });
        if is_shared {
            assert_eq!(sent(&result), (other, backend));
        }
    }
}

#[test]
fn tags_from_packets_are_not_replaced_by_those_of_a_record() {
    let spec = spec_of(ForwardingMode::Nat, ENDS[0][1], &[ENDS[0][2]]);
    let mut gateway = Gateway::new(&spec, 1, SharedFlows::Nat);
    associate(&mut gateway, ENDS[0]);
    let [FlowUpdate::Live(mut record)] = gateway.updates()[..] else { panic!("one record") };
    record.tags = Some(TagPair { client: 1, server: 2 });
    assert_eq!(gateway.adopt(&[FlowUpdate::Live(record)]), [ImportOutcome::Known]);
    let [client, vip, _] = ENDS[0].map(addr);
    for (tag, live) in [(2, 1), (TAGS.server, 0)] {
        send_chunk(&mut gateway, client, vip, tag, chunk::ABORT, &[]);
        gateway.wait(11);
        assert_eq!(gateway.live(), live, "an ABORT with tag {tag:x}");
    }
}

#[test]
fn dsr_associations_in_flux_are_exported() {
    let all = ["10.0.0.1:3868", "10.0.0.2:3868", "10.0.0.3:3868"];
    let spec = spec_of(ForwardingMode::DsrL2, ENDS[0][1], &all);
    let mut first = Gateway::new(&spec, 1, SharedFlows::InFlux);
    let mut second = Gateway::new(&spec, 1, SharedFlows::InFlux);
    let vip = addr(ENDS[0][1]);
    let client = |port| SocketAddr::new("198.51.100.7".parse().unwrap(), port);
    let mut backends = Vec::new();
    for port in 40_000..40_200 {
        receive(&mut first, Builder::sctp_init(client(port), vip, TAGS.client), false);
        let result = send_chunk(&mut first, client(port), vip, TAGS.server, chunk::COOKIE_ECHO, &[0; 40]);
        backends.push(first.labs[0].backend_of(&result));
    }
    assert_eq!(first.updates(), [], "the other gateway finds these backends by itself");
    let change = adds("10.0.0.4:3868");
    first.labs[0].change(change);
    second.labs[0].change(change);
    let updates = first.updates();
    assert!((20..100).contains(&updates.len()), "a quarter moves: {}", updates.len());
    let outcome = second.adopt(&updates);
    assert!(outcome.iter().all(|outcome| *outcome == ImportOutcome::New), "{outcome:?}");
    for (port, expected) in (40_000..).zip(&backends) {
        let result = send_chunk(&mut second, client(port), vip, TAGS.server, chunk::DATA, &[0; 16]);
        assert_eq!(second.labs[0].backend_of(&result), *expected, "port {port}");
    }
}

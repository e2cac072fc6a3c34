//! Runs `tidegate replay` and `explain -c` as commands. The same packets give the same bytes for any order of
//! manifests; every mode is tested in both families; every malformed frame is dropped with its reason.

mod cli_support;

use std::net::{IpAddr, SocketAddr};

use cli_support::{GATEWAY, Replay, Site, service, slice};
use tidegate_pipeline::testing::builder::{Builder, CLIENT_MAC, GATEWAY_MAC};
use tidegate_wire::tcp::flags;
use tidegate_wire::{MacAddr, proto};

const V4: [&str; 3] = ["192.0.2.11", "192.0.2.12", "192.0.2.13"];
const V6: [&str; 3] = ["2001:db8::11", "2001:db8::12", "2001:db8::13"];

/// One Service per mode, each with a VIP and three backends of both families.
const MODES: [(&str, &str, &str); 4] = [
    ("dsr-l2", "203.0.113.1", "2001:db8:1::1"),
    ("dsr-ipip", "203.0.113.2", "2001:db8:1::2"),
    ("nat", "203.0.113.3", "2001:db8:1::3"),
    ("fullnat", "203.0.113.4", "2001:db8:1::4"),
];

fn documents() -> Vec<String> {
    let of_mode = |(mode, v4, v6): &(&str, &str, &str)| {
        let vips = format!("{v4},{v6}");
        [service(mode, mode, &vips), slice(mode, "v4", "IPv4", &V4), slice(mode, "v6", "IPv6", &V6)]
    };
    MODES.iter().flat_map(of_mode).collect()
}

fn site() -> Site {
    Site::new(GATEWAY, &[("all.yaml", &documents().join("---\n"))])
}

fn client(vip: &str, port: u16) -> SocketAddr {
    let address = if vip.contains(':') { "2001:db8:99::7" } else { "198.51.100.7" };
    SocketAddr::new(address.parse().expect("an address"), port)
}

fn to(vip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(vip.parse().expect("an address"), port)
}

fn syn(vip: &str, port: u16) -> Vec<u8> {
    Builder::tcp(client(vip, port), to(vip, 80)).flags(flags::SYN).build()
}

/// The output of `explain -o json` for a TCP packet.
fn explain(site: &Site, src: SocketAddr, dst: SocketAddr) -> serde_json::Value {
    let (src, dst) = (src.to_string(), dst.to_string());
    let packet = ["--proto", "tcp", "--src", &src, "--dst", &dst];
    let ran = site.run(&[&["explain", "-c", "gateway.yaml", "-o", "json"], &packet[..]].concat());
    assert!(!ran.err.contains(": error: "), "{}", ran.err);
    serde_json::from_str(&ran.out).expect("JSON")
}

fn ip_at(bytes: &[u8]) -> IpAddr {
    match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).expect("four bytes")),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).expect("sixteen bytes")),
    }
}

/// (source, destination) of the outermost IP header.
fn addresses(frame: &[u8]) -> (IpAddr, IpAddr) {
    match frame[14] >> 4 {
        4 => (ip_at(&frame[26..30]), ip_at(&frame[30..34])),
        _ => (ip_at(&frame[22..38]), ip_at(&frame[38..54])),
    }
}

#[test]
fn the_order_of_manifests_and_backends_does_not_change_the_output() {
    let frames: Vec<Vec<u8>> = MODES
        .iter()
        .flat_map(|(_, v4, v6)| (40_000..40_025).flat_map(|port| [syn(v4, port), syn(v6, port)]))
        .collect();
    let first = site().replay(&frames);
    assert_eq!(first.text, site().replay(&frames).text, "another run");

    let mut shuffled = documents();
    shuffled.reverse();
    let v4_reversed = [V4[2], V4[0], V4[1]];
    for (mode, ..) in &MODES {
        let at = shuffled.iter().position(|d| d.contains(&format!("name: {mode}-v4"))).expect("it is there");
        shuffled[at] = slice(mode, "v4", "IPv4", &v4_reversed);
    }
    let files: Vec<(String, &String)> =
        shuffled.iter().enumerate().map(|(n, d)| (format!("{n:02}.yaml"), d)).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, d)| (name.as_str(), d.as_str())).collect();
    let other = Site::new(GATEWAY, &files).replay(&frames);
    assert_eq!(first.text, other.text, "other files, other order");
    assert_eq!(first.capture, other.capture);
    assert_eq!(first.written().len(), frames.len());
}

#[test]
fn a_connection_that_a_backend_refuses_is_sent_to_another_one() {
    let site = site();
    for vip in ["203.0.113.3", "2001:db8:1::3"] {
        let syn = syn(vip, 40_000);
        let backend = |replay: &Replay, n: usize| {
            let text = replay.lines[n]["backend"].as_str().expect("a backend").to_owned();
            text.parse::<SocketAddr>().expect("an address with a port")
        };
        let first = backend(&site.replay(std::slice::from_ref(&syn)), 0);
        let refusal =
            Builder::tcp(first, client(vip, 40_000)).flags(flags::RST | flags::ACK).seq_ack(0, 2).build();
        let replay = site.replay(&[syn, refusal]);
        assert_eq!((replay.end(0), replay.end(1)), ("transmit forward".into(), "transmit retried".into()));
        let next = backend(&replay, 1);
        assert_ne!(next, first);
        assert_eq!(addresses(&replay.written()[1]), (client(vip, 0).ip(), next.ip()));
        let explained = explain(&site, client(vip, 40_000), to(vip, 80));
        let steps = explained["steps"].as_array().expect("a list");
        assert!(steps.iter().any(|step| step["step"] == "passive health"), "{explained}");
    }
}

#[test]
fn a_client_outside_the_source_ranges_is_dropped_and_explained() {
    let closed = service("closed", "nat", "203.0.113.9").replacen(
        "spec:\n",
        "spec:\n  loadBalancerSourceRanges: [\" 198.51.100.0/24 \", 10.0.0.0/8]\n",
        1,
    );
    let manifests = [closed, slice("closed", "v4", "IPv4", &V4)].join("---\n");
    let site = Site::new(GATEWAY, &[("closed.yaml", &manifests)]);
    let from = |client: &str| Builder::tcp(format!("{client}:40000").as_str(), "203.0.113.9:80");
    let frames = ["198.51.100.7", "203.0.113.200"].map(|client| from(client).flags(flags::SYN).build());
    let replay = site.replay(&frames);
    assert_eq!((replay.end(0), replay.end(1)), ("transmit forward".into(), "drop source_range".into()));
    assert_eq!(
        (&replay.lines[1]["service"], &replay.lines[1]["vip"]),
        (&"default/closed:http".into(), &"203.0.113.9".into())
    );
    let outsider = "203.0.113.200:40000".parse().expect("an address");
    let explained = explain(&site, outsider, to("203.0.113.9", 80));
    assert_eq!((&explained["verdict"], &explained["reason"]), (&"drop".into(), &"source_range".into()));
    let steps = explained["steps"].as_array().expect("a list");
    assert_eq!(steps.last().expect("a step")["step"], "source range");
}

#[test]
fn each_mode_sends_the_documented_frame_in_both_families() {
    for (mode, v4, v6) in MODES {
        for vip in [v4, v6] {
            let sent = syn(vip, 40_000);
            let replay = site().replay(std::slice::from_ref(&sent));
            let line = &replay.lines[0];
            assert_eq!(replay.end(0), "transmit forward", "{mode} {vip}");
            let label = format!("default/{mode}:http");
            for (key, expected) in [
                ("service", label.as_str()),
                ("vip", vip),
                ("mode", mode),
                ("flow", "new"),
                ("interface", "uplink"),
            ] {
                assert_eq!(line[key], expected, "{key} of {mode}");
            }
            assert_eq!(line["n"], 1);
            let backend: SocketAddr =
                line["backend"].as_str().expect("a backend").parse().expect("an address");
            forwarded_as_promised(mode, &sent, &replay.frame(0), backend, vip);
        }
    }
}

fn forwarded_as_promised(mode: &str, sent: &[u8], got: &[u8], backend: SocketAddr, vip: &str) {
    let (client, vip): (IpAddr, IpAddr) = (client(vip, 0).ip(), vip.parse().expect("an address"));
    let last = match backend.ip() {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(ip) => ip.octets()[15],
    };
    // The backends .11 and ::11 have the MAC address ...:11, in decimal digits.
    let digits = if backend.is_ipv4() { last / 10 * 16 + last % 10 } else { last };
    assert_eq!(got[..6], [2, 0, 0, 0, 0, digits], "{mode}: to the backend's link address");
    assert_eq!(got[6..12], GATEWAY_MAC.0, "{mode}: from the gateway's");
    let gateway: IpAddr =
        if vip.is_ipv4() { "192.0.2.2" } else { "2001:db8::2" }.parse().expect("an address");
    let snat: IpAddr = if vip.is_ipv4() { "192.0.2.3" } else { "2001:db8::3" }.parse().expect("an address");
    match mode {
        "dsr-l2" => {
            assert_eq!(addresses(got), (client, vip));
            assert_eq!(got.len(), sent.len(), "nothing but link addresses and TTL changes");
        }
        "dsr-ipip" => {
            assert_eq!(addresses(got), (gateway, backend.ip()));
            let outer = if vip.is_ipv4() { 20 } else { 40 };
            let inner: Vec<u8> = got[..14].iter().chain(&got[14 + outer..]).copied().collect();
            assert_eq!(addresses(&inner), (client, vip), "the client's packet is inside");
        }
        "nat" => assert_eq!(addresses(got), (client, backend.ip())),
        _ => assert_eq!(addresses(got), (snat, backend.ip())),
    }
}

#[test]
fn a_flow_is_new_then_known_and_its_reply_has_the_vip_as_source() {
    for (mode, v4, v6) in [MODES[2], MODES[3]] {
        for vip in [v4, v6] {
            let site = site();
            let first = site.replay(&[syn(vip, 40_000)]);
            let there = first.frame(0);
            let (source, destination) = addresses(&there);
            let port_at = if vip.contains(':') { 54 } else { 34 };
            let source_port = u16::from_be_bytes([there[port_at], there[port_at + 1]]);
            let reply = Builder::tcp(SocketAddr::new(destination, 80), SocketAddr::new(source, source_port))
                .flags(flags::SYN | flags::ACK)
                .build();
            let ack = Builder::tcp(client(vip, 40_000), to(vip, 80)).build();
            let both = site.replay(&[syn(vip, 40_000), reply, ack]);
            assert_eq!(both.end(1), "transmit reply", "{mode} {vip}: {}", both.text);
            assert_eq!(addresses(&both.frame(1)), (to(vip, 80).ip(), client(vip, 0).ip()));
            let flows: Vec<&str> = both.lines.iter().map(|l| l["flow"].as_str().expect("a word")).collect();
            assert_eq!(flows, ["new", "known", "known"]);
            assert_eq!(both.lines[2]["backend"], both.lines[0]["backend"]);
        }
    }
}

#[test]
fn explain_names_the_backend_that_replay_sends_to() {
    let site = site();
    for (_, v4, v6) in MODES {
        for vip in [v4, v6] {
            let ports = [40_000, 40_001, 40_002];
            let replay = site.replay(&ports.map(|port| syn(vip, port)));
            for (n, port) in ports.into_iter().enumerate() {
                let (src, dst) = (client(vip, port), to(vip, 80));
                let explained = explain(&site, src, dst);
                for key in ["verdict", "reason", "service", "backend", "mode"] {
                    assert_eq!(explained[key], replay.lines[n][key], "{key} of {src} -> {dst}");
                }
                // Programs show IPv4 addresses in this form too.
                let mapped = |address: SocketAddr| match address.ip() {
                    IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
                    IpAddr::V6(_) => address,
                };
                assert_eq!(explain(&site, mapped(src), mapped(dst)), explained, "{src} -> {dst}");
            }
        }
    }
}

#[test]
fn a_replay_gives_a_service_the_configured_share_of_a_full_flow_table() {
    let manifests =
        [service("nat", "nat", "203.0.113.3"), slice("nat", "v4", "IPv4", &V4[..1])].join("---\n");
    let (vip, backend) = (to("203.0.113.3", 80), to(V4[0], 80));
    let handshake = |port: u16| {
        let client = client("203.0.113.3", port);
        [(client, vip, flags::SYN), (backend, client, flags::SYN | flags::ACK), (client, vip, flags::ACK)]
            .map(|(from, to, flags)| Builder::tcp(from, to).flags(flags).build())
    };
    // All flows are in use, and a table of 1,024 entries has to refuse some of them.
    let frames: Vec<Vec<u8>> = (0..1_300).flat_map(|n| handshake(20_000 + n)).collect();
    for (percent, is_limited) in [(50, true), (100, false)] {
        let table = format!("entriesPerCore: 1024, servicePercent: {percent}");
        let gateway = GATEWAY.replacen("entriesPerCore: 4096", &table, 1);
        let replay = Site::new(&gateway, &[("nat.yaml", &manifests)]).replay(&frames);
        assert_eq!(replay.text.contains("service_flow_share"), is_limited, "{percent} %");
    }
}

#[test]
fn replay_and_explain_give_the_same_reason_for_packets_not_forwarded() {
    let site = Site::new(GATEWAY, &[("none.yaml", &service("none", "nat", "203.0.113.1"))]);
    let tcp = |to: SocketAddr| Builder::tcp(client("203.0.113.1", 40_000), to).flags(flags::SYN).build();
    let ends = [
        (to("203.0.113.1", 80), "transmit no_endpoints"),
        (to("203.0.113.1", 81), "transmit no_service"),
        (to("192.0.2.2", 22), "punt local"),
        (to("192.0.2.3", 22), "transmit no_flow"),
        (to("198.51.100.99", 80), "punt not_ours"),
        (to("224.0.0.5", 80), "punt local"),
    ];
    let replay = site.replay(&ends.map(|(to, _)| tcp(to)));
    for (n, (to, expected)) in ends.into_iter().enumerate() {
        assert_eq!(replay.end(n), expected, "{to}");
        let explained = explain(&site, client("203.0.113.1", 40_000), to);
        let end = format!(
            "{} {}",
            explained["verdict"].as_str().unwrap_or(""),
            explained["reason"].as_str().unwrap_or("")
        );
        assert_eq!(end, expected, "{to}");
    }
}

/// Malformed frames, with the drop reason of each.
fn malformed() -> Vec<(Vec<u8>, &'static str)> {
    let tcp4 = || Builder::tcp("198.51.100.7:4000", "203.0.113.1:80");
    let udp4 = || Builder::udp("198.51.100.7:4000", "203.0.113.1:53");
    let tcp6 = || Builder::tcp("[2001:db8:99::7]:4000", "[2001:db8:1::1]:80");
    let raw4 = |proto, len| Builder::ip("198.51.100.7", "203.0.113.1", proto).payload_len(len);
    let raw6 = |proto, len| Builder::ip("2001:db8:99::7", "2001:db8:1::1", proto).payload_len(len);
    let cut = |frame: Vec<u8>, len: usize| frame[..len].to_vec();
    vec![
        (Vec::new(), "ethernet_truncated"),
        (cut(tcp4().build(), 13), "ethernet_truncated"),
        (cut(tcp4().vlan(5).build(), 17), "vlan_truncated"),
        (tcp4().vlan(0x0fff).build(), "vlan_reserved"),
        (cut(tcp4().build(), 33), "ipv4_truncated"),
        (tcp4().version_ihl(0x65).build(), "ipv4_version"),
        (tcp4().version_ihl(0x44).build(), "ipv4_header_length"),
        (tcp4().ip_len(41).build(), "ipv4_total_length"),
        (tcp4().ip_checksum(0xdead).build(), "ipv4_checksum"),
        (cut(tcp6().build(), 53), "ipv6_truncated"),
        (tcp6().version_ihl(0x40).build(), "ipv6_version"),
        (tcp6().ip_len(21).build(), "ipv6_payload_length"),
        (raw6(proto::ROUTING, 7).build(), "ipv6_extension_truncated"),
        (tcp4().payload_len(3).fragment(1, 0, true).build(), "fragment_length"),
        (tcp4().payload_len(80).fragment(1, 65_528, false).build(), "fragment_beyond_end"),
        (tcp4().payload_len(80).fragment(1, 8, false).build(), "fragment_in_header"),
        (raw4(proto::TCP, 19).build(), "tcp_truncated"),
        (tcp4().data_offset(4).build(), "tcp_data_offset"),
        (raw4(proto::UDP, 7).build(), "udp_truncated"),
        (udp4().udp_len(7).build(), "udp_length"),
        (raw4(proto::SCTP, 7).build(), "sctp_truncated"),
        (raw4(proto::ICMP, 7).build(), "icmp_truncated"),
        (raw6(proto::ICMPV6, 7).build(), "icmpv6_truncated"),
        (tcp4().mac(CLIENT_MAC, MacAddr([2, 9, 9, 9, 9, 9])).build(), "other_station"),
        (tcp4().vlan(7).build(), "vlan_mismatch"),
    ]
}

#[test]
fn every_malformed_frame_is_dropped_with_its_reason() {
    let malformed = malformed();
    let mut frames: Vec<Vec<u8>> = malformed.iter().map(|(frame, _)| frame.clone()).collect();
    frames.push(syn("203.0.113.1", 40_000));
    let replay = site().replay(&frames);
    for (n, (_, reason)) in malformed.iter().enumerate() {
        assert_eq!(replay.end(n), format!("drop {reason}"), "frame {}", n + 1);
        let line = replay.lines[n].as_object().expect("an object");
        assert!(!line.contains_key("backend") && !line.contains_key("frames"), "{line:?}");
        assert_eq!(line["n"], n + 1);
    }
    assert_eq!(replay.end(malformed.len()), "transmit forward");
    assert_eq!(replay.written().len(), 1);
}

#[test]
fn a_next_hop_without_a_configured_link_address_is_assumed_to_be_resolved() {
    let gateway = GATEWAY.replace("    - {ip: \"192.0.2.11\", mac: \"02:00:00:00:00:11\"}\n", "");
    let manifests =
        service("web", "dsr-l2", "203.0.113.1") + "---\n" + &slice("web", "v4", "IPv4", &["192.0.2.11"]);
    let site = Site::new(&gateway, &[("web.yaml", &manifests)]);
    let replay = site.replay(&[syn("203.0.113.1", 40_000), syn("203.0.113.1", 40_001)]);
    for n in 0..2 {
        assert_eq!(replay.end(n), "transmit forward");
        assert_eq!(replay.lines[n]["flow"], "new");
        assert_eq!(replay.frame(n)[..6], [2, 0, 0, 0, 0, 0]);
    }
    let again = site.run(&["replay", "-c", "gateway.yaml", "--in", "in.pcap", "--out", "out.pcap"]);
    let assumed = "are not in dataplane.neighbors: using 02:00:00:00:00:00 for 192.0.2.11\n";
    assert!(again.err.contains(assumed), "{}", again.err);
}

#[test]
fn a_capture_that_is_none_or_is_cut_off_is_named_with_the_offset() {
    let site = site();
    let replay = |input: &str| {
        site.run(&["replay", "-c", "gateway.yaml", "--in", input, "--out", "out.pcap", "--json"])
    };
    std::fs::write(site.path("text.pcap"), "this is no capture at all").expect("it can be written");
    let ran = replay("text.pcap");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("text.pcap: input: capture, byte 0: not a capture"), "{}", ran.err);
    assert_eq!(replay("nowhere.pcap").code, 1);

    let whole: Replay = site.replay(&[syn("203.0.113.1", 40_000), syn("203.0.113.1", 40_001)]);
    assert_eq!(whole.lines.len(), 2);
    let mut bytes = std::fs::read(site.path("in.pcap")).expect("it was written");
    bytes.truncate(bytes.len() - 1);
    std::fs::write(site.path("cut.pcap"), &bytes).expect("it can be written");
    let ran = replay("cut.pcap");
    assert_eq!((ran.code, ran.out.lines().count()), (1, 1), "the complete packet before it is replayed");
    assert!(ran.err.contains("capture, byte 94: the file ends inside"), "{}", ran.err);
}

#[test]
fn the_input_capture_is_never_overwritten() {
    let site = site();
    cli_support::write_capture(&site.path("in.pcap"), &[syn("203.0.113.1", 40_000)]);
    let before = std::fs::read(site.path("in.pcap")).expect("it was written");
    std::os::unix::fs::symlink("in.pcap", site.path("symlink.pcap")).expect("it is new");
    std::fs::hard_link(site.path("in.pcap"), site.path("link.pcap")).expect("it is new");
    for output in ["in.pcap", "./in.pcap", "symlink.pcap", "link.pcap"] {
        let ran = site.run(&["replay", "-c", "gateway.yaml", "--in", "in.pcap", "--out", output]);
        assert_eq!(ran.code, 1);
        let refusal = format!("--out {output} is the same file as --in in.pcap; accepted: another file");
        assert!(ran.err.contains(&refusal), "{}", ran.err);
        assert_eq!(std::fs::read(site.path("in.pcap")).expect("it is there"), before, "{output}");
    }
}

#[test]
fn a_faulty_configuration_is_refused_and_a_faulty_manifest_is_skipped() {
    let refused = Site::new(&GATEWAY.replace("cores: [1]", "cores: []"), &[]);
    cli_support::write_capture(&refused.path("in.pcap"), &[syn("203.0.113.1", 40_000)]);
    let ran = refused.run(&["replay", "-c", "gateway.yaml", "--in", "in.pcap", "--out", "out.pcap"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("gateway.yaml:5:") && ran.err.contains("; accepted: "), "{}", ran.err);

    let bad = service("bad", "nat", "203.0.113.9").replace("port: 80", "port: 0");
    let site = Site::new(GATEWAY, &[("all.yaml", &documents().join("---\n")), ("bad.yaml", &bad)]);
    let replay = site.replay(&[syn("203.0.113.1", 40_000), syn("203.0.113.9", 40_000)]);
    assert_eq!((replay.end(0).as_str(), replay.end(1).as_str()), ("transmit forward", "punt not_ours"));
}

#[test]
fn an_interface_without_mac_uses_the_destination_mac_of_the_capture() {
    let gateway = GATEWAY.replace("      mac: \"02:00:00:00:00:02\"\n", "");
    let site = Site::new(&gateway, &[("all.yaml", &documents().join("---\n"))]);
    let station = MacAddr([2, 7, 7, 7, 7, 7]);
    let vip = MODES[0].1;
    let syn = |station: MacAddr| {
        Builder::tcp(client(vip, 40_000), to(vip, 80)).flags(flags::SYN).mac(CLIENT_MAC, station).build()
    };
    let replay = site.replay(&[syn(MacAddr::BROADCAST), syn(station), syn(GATEWAY_MAC)]);
    assert_eq!((replay.end(1).as_str(), replay.end(2).as_str()), ("transmit forward", "drop other_station"));
    assert_eq!(replay.frame(1)[6..12], station.0, "it sends in that station's name");
}

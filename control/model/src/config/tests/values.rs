//! Every key of every section arrives in the validated configuration, and has its default.

use tidegate_spec::source_lists::SourceList;
use tidegate_spec::{
    GatewaySpec, NeighborSpec, PassiveHealth, Policy, RouteSpec, SourceRate, SynCookies, TunnelOptions,
};
use tidegate_structures::selection_key::SelectionKey;
use tidegate_wire::MacAddr;
use tidegate_wire::encapsulation::{GueVariant, ServiceIdentity, Vni};

use super::*;
use crate::config::{Layer2Config, Layer2Mode, LeaseConfig, VrrpConfig};
use crate::health::Rules;
use crate::objects::{Expression, Labels, Operator};

#[test]
fn every_key_of_the_dataplane_arrives() {
    let config = valid(FULL);
    assert_eq!(read(FULL).report.to_string(), "");
    assert_eq!(config.name, "edge-1");
    assert_eq!((config.node.name.as_deref(), config.node.zone.as_deref()), (Some("node-a"), Some("zone-1")));
    let dataplane = &config.dataplane;
    assert_eq!(dataplane.cores, [2, 3]);
    assert_eq!(dataplane.idle, Idle::Poll);
    assert_eq!(dataplane.memory, Memory { hugepages: false, size_mib: 512 });
    assert_eq!((dataplane.flow_entries_per_core, dataplane.flow_service_percent), (65536, 40));
    let network = &dataplane.network;
    assert_eq!(
        network.interfaces,
        [
            Interface {
                name: "uplink".into(),
                device: "net_af_packet,iface=eth1".into(),
                addresses: vec!["192.0.2.2/24".parse().unwrap(), "2001:db8::2/64".parse().unwrap()],
                mac: Some(MacAddr([2, 0, 0, 0, 0, 2])),
                mtu: 9000,
                vlan: Some(100),
            },
            Interface {
                name: "inside".into(),
                device: "0000:3b:00.0".into(),
                addresses: vec!["10.0.0.1/16".parse().unwrap()],
                mac: None,
                mtu: 1500,
                vlan: None,
            },
        ]
    );
    assert_eq!(
        network.routes[1],
        RouteSpec { to: "::/0".parse().unwrap(), via: "2001:db8::1".parse().unwrap() }
    );
    assert_eq!(
        network.neighbors,
        [NeighborSpec { ip: "192.0.2.1".parse().unwrap(), mac: MacAddr([2, 0, 0, 0, 0, 1]) }]
    );
    assert_eq!(network.snat_addresses.len(), 2);
    let peers: Vec<std::net::IpAddr> =
        ["192.0.2.66", "2001:db8::66"].map(|peer| peer.parse().unwrap()).into();
    assert_eq!(network.tunnel_peers, peers);
    let gateway = GatewaySpec {
        prefixes: vec!["10.0.0.0/24".parse().unwrap()],
        forward: true,
        masquerade: vec!["10.0.0.0/25".parse().unwrap()],
    };
    assert_eq!(network.gateway, gateway);
    assert_eq!(network.tunnel_source_v4, Some("10.0.0.1".parse().unwrap()));
    assert_eq!(network.tunnel_source_v6, Some("2001:db8::2".parse().unwrap()), "the default of its family");
    assert_eq!(
        network.policy,
        Policy {
            reset_unknown_flows: false,
            reject_unserved_ports: false,
            serve_routers: true,
            fragment_ipv4: false,
            syn_cookies: SynCookies::Always,
            selection_key: SelectionKey::from_hex("0f0e0d0c0b0a09080706050403020100"),
        }
    );
    assert_eq!(valid(BASE).dataplane.network.policy, Policy::default());
}

#[test]
fn every_key_of_source_and_services_arrives() {
    let config = valid(FULL);
    assert_eq!(
        config.source,
        SourceConfig::Directory(DirectoryConfig {
            path: PathBuf::from("/etc/tidegate/objects"),
            watch: false,
            loss_grace: Duration::from_secs(60),
            state_directory: Some(PathBuf::from("/var/lib/tidegate")),
            endpoint_slices_mib: 512,
            gateway_api: GatewayApi::Required,
        })
    );
    assert_eq!(
        config.services.defaults,
        ServiceDefaults {
            forwarding: ForwardingMode::DsrIpip,
            forwarding_local: Some(ForwardingMode::Nat),
            tunnel: TunnelOptions {
                gue_variant: GueVariant::Header,
                gue_port: 5555,
                gre_key: Some(u32::MAX),
                geneve_port: 5556,
                geneve_vni: Vni::new(0x00ff_ffff).expect("24 bits"),
                geneve_service: ServiceIdentity::default(),
                dscp: 0,
            },
            target: Target::Pod,
            scheduler: Scheduler::Maglev,
            hash: HashInput::Client,
            table_size: 65537,
            drain_timeout: Duration::from_secs(90),
            slow_start: Duration::from_secs(30),
            no_endpoints: NoEndpoints::Drop,
            flow_tracking: FlowTracking::OnChange,
            mss_clamp: MssClamp::AtMost(1400),
        }
    );
    assert_eq!(config.services.node_port_addresses.len(), 1);
    assert_eq!(config.services.health_check_node_port_networks, ["192.0.2.0/25".parse::<IpNet>().unwrap()]);
    assert_eq!(config.services.source_ranges_other_family, OtherFamily::Allow);
}

#[test]
fn every_key_of_a_pool_arrives() {
    let pool = valid(FULL).pools.remove(0);
    assert_eq!((pool.name.as_str(), pool.ranges.len()), ("public", 3));
    assert_eq!(pool.ranges[1].to_string(), "203.0.113.32-203.0.113.40");
    assert!(!pool.auto_assign && pool.external_ips && pool.disabled && pool.shared_across_namespaces);
    assert_eq!(pool.gateway_selector.to_string(), "rack=r1");
    assert_eq!((pool.announce.l2, pool.announce.bgp), (false, true));
    assert!(pool.gateway_selector.matches(&valid(FULL).labels));
    assert_eq!(pool.quota_per_namespace, Some(3));
    assert_eq!(pool.namespace_selector.match_labels, Labels::from([("team".into(), "a".into())]));
    assert_eq!(
        pool.service_selector.match_expressions,
        [
            Expression { key: "app".into(), operator: Operator::In(vec!["web".into(), "api".into()]) },
            Expression { key: "legacy".into(), operator: Operator::DoesNotExist },
        ]
    );
    assert_eq!(pool.labels.get("scope").map(String::as_str), Some("internal"));
}

#[test]
fn every_key_of_health_admin_and_self_check_arrives() {
    let config = valid(FULL);
    assert_eq!(
        config.health,
        HealthConfig {
            protocol: HealthProtocol::Https,
            path: "/readyz?verbose".into(),
            rules: Rules {
                interval: Duration::from_secs(5),
                timeout: Duration::from_millis(500),
                healthy_threshold: 4,
                unhealthy_threshold: 5,
                damping: false,
            },
            fail_open: false,
            dsr_destination: DsrDestination::Backend,
            interval_min: Duration::from_secs(1),
            timeout_max: Duration::from_secs(10),
            allowed_networks: Some(vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()]),
            passive: PassiveHealth {
                failures: 0,
                retries: 1,
                set_aside: Duration::from_secs(60),
                share_max: 30,
            },
        }
    );
    let vrrp = VrrpConfig {
        fifo: "/run/vrrp.fifo".into(),
        groups: vec!["a".to_owned(), "b".to_owned()],
        heartbeat_timeout: Duration::from_secs(2),
    };
    let lease = LeaseConfig {
        namespace: "edge".to_owned(),
        takeover: Duration::from_secs(20),
        hand_back_delay: Duration::from_secs(60),
    };
    assert_eq!(config.announce.l2, Layer2Config { mode: Layer2Mode::Vrrp, lease, vrrp });
    assert_eq!(
        config.admin,
        AdminConfig {
            socket: "/tmp/t.sock".into(),
            listen: None,
            healthz: Some("[::]:10357".parse().unwrap()),
            healthz_networks: vec!["192.0.2.128/25".parse().unwrap()],
            metrics_per_backend: false,
            page: Some(PageConfig { listen: "127.0.0.1:9471".parse().unwrap(), token: None }),
            events: EventsConfig { keep: 500, directory: EventsDirectory::At("/var/log/tidegate".into()) },
        }
    );
    assert_eq!(config.drain.quiet, Duration::from_secs(7));
    assert_eq!(config.drain.stop_timeout(false), Some(Duration::from_secs(60)));
    assert_eq!(
        config.self_check,
        SelfCheckConfig { enabled: false, interval: Duration::from_secs(600), changes: 100 }
    );
}

#[test]
fn every_key_has_the_default_of_the_contract() {
    let written = valid(DESIGN);
    let left_out = valid(HEAD);
    assert_eq!(left_out.name, "gateway");
    assert_eq!(left_out.node, written.node);
    assert_eq!(left_out.source, written.source);
    assert_eq!(left_out.services, written.services);
    assert_eq!(left_out.health, written.health);
    assert_eq!(left_out.announce, written.announce);
    assert_eq!(left_out.admin, written.admin);
    assert_eq!(left_out.drain, DrainConfig::default());
    assert!(!left_out.announce.is_withdrawable());
    assert_eq!(left_out.drain.stop_timeout(false), None, "nothing can be withdrawn");
    assert_eq!(left_out.drain.stop_timeout(true), Some(Duration::from_secs(30)));
    assert_eq!(left_out.self_check, SelfCheckConfig::default());
    assert!(left_out.self_check.enabled);
    let (left_out, written) = (left_out.dataplane, written.dataplane);
    assert_eq!(left_out.cores, written.cores);
    assert_eq!(left_out.memory, written.memory);
    assert_eq!(left_out.flow_entries_per_core, written.flow_entries_per_core);
    assert_eq!(left_out.flow_service_percent, written.flow_service_percent);
    assert_eq!(left_out.flow_directory, written.flow_directory);
    let base = valid(BASE).dataplane;
    assert_eq!(base.network.interfaces[0].mtu, 1500);
    let sources = |plane: &DataplaneConfig| (plane.network.tunnel_source_v4, plane.network.tunnel_source_v6);
    assert_eq!(sources(&base), sources(&written), "defaults to the interface's addresses");
    let pool = valid(&format!("{HEAD}pools: [{{name: p, addresses: [203.0.113.1]}}]\n")).pools.remove(0);
    assert!(pool.auto_assign && !pool.external_ips && !pool.disabled && !pool.shared_across_namespaces);
    assert!(pool.gateway_selector == Default::default() && pool.announce.l2 && pool.announce.bgp);
    assert_eq!(pool.quota_per_namespace, None);
    assert!(pool.admits(&Labels::new(), &Labels::new()));
}

#[test]
fn workers_idle_adaptively_by_default_on_fewer_than_four_cores() {
    for (cores, idle) in [(1, Idle::Adaptive), (3, Idle::Adaptive), (4, Idle::Poll)] {
        let loaded = parse(HEAD, "g", Path::new(""), cores);
        assert_eq!(loaded.config.expect("valid").dataplane.idle, idle);
    }
}

#[test]
fn every_key_of_protection_arrives() {
    let config = valid(FULL);
    let source = |text: &str| text.parse::<std::net::IpAddr>().unwrap().into();
    let found = |text: &str| config.protection.sources.find(&source(text)).map(|found| found.list);
    assert_eq!(config.protection.sources.counts(), [2, 1]);
    assert_eq!(found("198.51.100.7"), Some(SourceList::Deny));
    assert_eq!(found("198.51.100.9"), Some(SourceList::Allow));
    assert_eq!(found("2001:db8:bad::1"), Some(SourceList::Deny));
    assert_eq!(config.protection.files, [PathBuf::from("/dev/null"), PathBuf::from("/dev/null")]);
    let rate = SourceRate { per_second: 100, burst: 500, v4_len: 24, v6_len: 56 };
    assert_eq!(config.protection.new_connections, Some(rate));
    assert_eq!(config.dataplane.network.source_rate, Some(rate));
    assert_eq!(config.dataplane.network.policy.syn_cookies, SynCookies::Always);
    let auto = valid(&format!("{BASE}protection: {{synCookies: auto}}\n"));
    assert_eq!(auto.dataplane.network.policy.syn_cookies, SynCookies::Auto);
    assert_eq!(config.dataplane.network.sources, config.protection.sources);
    let only_rate = valid(&format!("{BASE}protection: {{newConnections: {{perSecond: 7}}}}\n"));
    let rate = SourceRate { per_second: 7, burst: 7, v4_len: 32, v6_len: 64 };
    assert_eq!(only_rate.protection.new_connections, Some(rate));
    assert_eq!(valid(BASE).protection, ProtectionConfig::default());
}

#[test]
fn the_default_health_check_timeout_is_not_longer_than_the_interval() {
    let rules = |health: &str| {
        let rules = valid(&format!("{BASE}health: {health}\n")).health.rules;
        (rules.interval.as_millis(), rules.timeout.as_millis())
    };
    assert_eq!(rules("{interval: 500ms}"), (500, 500));
    assert_eq!(rules("{interval: 5s}"), (5000, 1000));
    assert_eq!(rules("{interval: 500ms, timeoutMax: 200ms}"), (500, 200));
}

#[test]
fn lists_and_keys_are_read_from_files_and_faults_in_them_have_their_lines() {
    let directory = std::env::temp_dir().join(format!("tidegate-lists-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
    write("deny.txt", "# bad\n198.51.100.0/24  # a comment\n\n2001:db8::7\n 203.0.113.9 \r\n");
    write("key", "000102030405060708090A0B0C0D0E0F\n");
    let text = format!("{BASE}protection: {{deny: {{files: [deny.txt]}}}}\nselectionKey: {{file: key}}\n");
    let load = || parse(&text, "gateway.yaml", &directory, 2);
    let config = load().config.expect("it is valid");
    assert_eq!(config.protection.sources.counts(), [3, 0]);
    let key = config.dataplane.network.policy.selection_key;
    assert_eq!(key, SelectionKey::from_hex("000102030405060708090a0b0c0d0e0f"));
    assert!(!format!("{config:?}").contains("08090"), "the key is not shown");

    write("deny.txt", "\u{feff}# made on another system\r\n198.51.100.0/24\r\n");
    let marked = load().config.expect("a byte order mark is not part of the first line");
    assert_eq!(marked.protection.sources.counts(), [1, 0]);

    write("deny.txt", "; a published list\n198.51.100.0/24 ; SBL1\n203.0.113.0/24;SBL2 # both\n");
    let published = load().config.expect("a semicolon starts a comment too");
    assert_eq!(published.protection.sources.counts(), [2, 0]);

    // Packets have the IPv4 form of these addresses.
    write("deny.txt", "::ffff:203.0.113.7\n::ffff:198.51.100.0/120\n");
    let mapped = load().config.expect("it is valid");
    write("deny.txt", "203.0.113.7\n198.51.100.0/24\n");
    assert_eq!(mapped.protection, load().config.expect("it is valid").protection);

    write("deny.txt", "198.51.100.0/24\nnobody\n10.0.0.1/8\n");
    write("key", "0001\n");
    let loaded = load();
    assert!(loaded.config.is_none());
    let report = loaded.report.to_string();
    let file = directory.join("deny.txt").display().to_string();
    for expected in [
        format!(
            "{file}:2:1: error: \"nobody\" is not an address or a prefix; accepted: an address or a CIDR"
        ),
        format!("{file}:3:1: error: 10.0.0.1/8 has host bits set: write 10.0.0.0/8"),
        "selectionKey.file: the text of 4 characters is not a key; accepted: 32 hexadecimal digits"
            .to_owned(),
    ] {
        assert!(report.contains(&expected), "{expected}\n{report}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
    let report = load().report.to_string();
    assert!(report.contains("deny.txt cannot be read") && report.contains("key cannot be read"), "{report}");
}

#[test]
fn a_fault_of_a_key_does_not_repeat_the_key() {
    let secret = "0a0b0c0d0e0f1a1b1c1d1e1f2a2b2c2d";
    for (text, reported) in [
        (format!("selectionKey: {secret}\n"), "selectionKey: the value is not a mapping"),
        (format!("selectionKey: [{secret}]\n"), "selectionKey: the value is not a mapping"),
        (format!("selectionKey: {{value: [{secret}]}}\n"), "selectionKey.value: the value is not text"),
        (
            format!("selectionKey: {{value: {secret}0}}\n"),
            "selectionKey.value: the text of 33 characters is not a key",
        ),
        (
            format!("flowSharing: {{mode: nat, key: {secret}}}\n"),
            "flowSharing.key: the value is not a mapping",
        ),
    ] {
        let report = read(&format!("{BASE}{text}")).report;
        let errors: Vec<String> = report.errors().map(ToString::to_string).collect();
        assert!(errors.len() == 1 && errors[0].contains(reported), "{text}{report}");
        assert!(errors[0].contains("accepted: ") && !errors[0].contains(secret), "{report}");
    }
}

#[test]
fn line_ends_of_a_bgp_password_are_ignored_and_spaces_cause_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let peer = "{address: 10.0.0.9, asn: 2, ebgpMultihop: 2, passwordFile: password}";
    let text = format!("{BASE}announce: {{bgp: {{asn: 1, peers: [{peer}]}}}}\n");
    for (contents, password, is_warned) in [
        ("hunter2", "hunter2", false),
        ("hunter2\r\n", "hunter2", false),
        ("hunt er2\n", "hunt er2", false),
        ("hunter2 \n", "hunter2 ", true),
        (" hunter2\n", " hunter2", true),
    ] {
        std::fs::write(directory.path().join("password"), contents).unwrap();
        let loaded = parse(&text, "gateway.yaml", directory.path(), 2);
        let report = loaded.report.to_string();
        let config = loaded.config.unwrap_or_else(|| panic!("{report}"));
        let bgp = config.announce.bgp.expect("it was given");
        let read = bgp.peers[0].password.as_ref().map(|secret| secret.reveal().to_owned());
        assert_eq!(read.as_deref(), Some(password), "{contents:?}");
        assert_eq!(report.contains("begins or ends with a space"), is_warned, "{contents:?}\n{report}");
        assert!(!report.contains("hunter2"), "{report}");
    }
}

/// The FIFO has no writer, so a read that waited for one would never end, and neither would this test.
#[test]
fn only_regular_files_of_limited_size_are_read_and_nothing_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    std::os::unix::fs::symlink("fifo", at("link")).unwrap();
    std::fs::File::create(at("large")).unwrap().set_len((64 << 20) + 1).unwrap();
    let list = "a readable regular file of at most 64 MiB, or a link to such a file";
    let key = "a readable regular file of at most 4 KiB, or a link to such a file";
    for (name, why) in [
        ("fifo", "it is not a regular file"),
        ("link", "it is not a regular file"),
        ("/dev/zero", "it is not a regular file"),
        (".", "it is not a regular file"),
        ("large", "it is larger than 64 MiB"),
    ] {
        let text =
            format!("{BASE}protection: {{deny: {{files: [{name}]}}}}\nselectionKey: {{file: {name}}}\n");
        let loaded = parse(&text, "gateway.yaml", directory.path(), 2);
        assert!(loaded.config.is_none(), "{name}");
        let (report, file, lines) = (loaded.report.to_string(), at(name), BASE.lines().count());
        let file = file.display();
        let of_key = if name == "large" { "it is larger than 4 KiB" } else { why };
        for (line, field, why, accepted) in [
            (lines + 1, "protection.deny.files[0]", why, list),
            (lines + 2, "selectionKey.file", of_key, key),
        ] {
            let location = format!("gateway.yaml:{line}:");
            let expected = format!("error: {field}: {file} cannot be read: {why}; accepted: {accepted}");
            let is_reported = report.lines().any(|l| l.starts_with(&location) && l.ends_with(&expected));
            assert!(is_reported, "{expected}\n{report}");
        }
        let report = load(&at(name)).report.to_string();
        let expected = format!("{file}:1:1: error: cannot be read: {why}; accepted: {list}");
        assert!(report.contains(&expected), "{expected}\n{report}");
    }
    std::fs::write(at("key"), "000102030405060708090a0b0c0d0e0f\n").unwrap();
    std::fs::remove_file(at("link")).unwrap();
    std::os::unix::fs::symlink("key", at("link")).unwrap();
    let linked = parse(&format!("{BASE}selectionKey: {{file: link}}\n"), "gateway.yaml", directory.path(), 2);
    assert!(linked.config.is_some(), "{}", linked.report);
}

#[test]
fn faults_of_protection_and_of_the_key_name_accepted_values() {
    for (text, expected) in [
        ("protection: {newConnections: {burst: 5}}", "perSecond"),
        ("protection: {newConnections: {perSecond: 0}}", "1 to 10000000"),
        ("protection: {newConnections: {perSecond: 5, ipv6Prefix: 65}}", "16 to 64"),
        ("protection: {synCookies: sometimes}", "always"),
        ("protection: {deny: {prefixes: [10.0.0.1/8]}}", "10.0.0.0/8"),
        ("protection: {deny: [10.0.0.0/8]}", "a mapping"),
        ("selectionKey: {value: '00'}", "32 hexadecimal digits"),
        (
            "selectionKey: {value: '000102030405060708090a0b0c0d0e0f', file: /dev/null}",
            "either value or file",
        ),
        ("selectionKey: {fil: a}", "accepted: file"),
        ("selectionKey: {}", "neither value nor file is given"),
        ("selectionKey: {value: 01020304050607080910111213141508090a0b}", "is not a key"),
        ("selectionKey: {value: 10000000000000000000008090110110}", "text in quotes: 32 hexadecimal digits"),
        ("selectionKey: {value: [000102030405060708090a0b0c0d0e0f]}", "text in quotes"),
    ] {
        let loaded = parse(&format!("{BASE}{text}\n"), "gateway.yaml", Path::new("/etc/tidegate"), 2);
        assert!(loaded.config.is_none(), "{text}");
        let report = loaded.report.to_string();
        assert!(report.contains(expected), "{text}: {report}");
        let shown = report.contains("08090a0b") || report.contains("8090110110");
        assert!(!shown, "the key is not shown: {report}");
    }
}

#[test]
fn gateways_with_discovery_share_flows_at_an_interface_address() {
    let sharing = |source: &str, more: &str| {
        let key = "5a".repeat(32);
        valid(&format!("{BASE}{source}flowSharing: {{mode: nat, key: {{value: '{key}'}}{more}}}\n"))
    };
    let cluster = "source: {kubernetes: {}}\n";
    let own = valid(BASE).dataplane.network.interfaces[0].addresses[0].addr();
    let found = sharing(cluster, "");
    assert!(found.finds_flow_peers());
    assert_eq!(found.flow_sharing_socket(), (own, 10_358).into());
    let given = sharing(cluster, ", listen: '198.51.100.9:7'");
    assert!(given.finds_flow_peers());
    assert_eq!(given.flow_sharing_socket(), "198.51.100.9:7".parse().unwrap());
    for (source, more) in [("", ""), (cluster, ", peers: ['192.0.2.77:10358']")] {
        let configured = sharing(source, more);
        assert!(!configured.finds_flow_peers());
        assert_eq!(configured.flow_sharing_socket(), configured.flow_sharing.listen);
    }
    assert!(!valid(&format!("{BASE}{cluster}")).finds_flow_peers(), "it shares no flows");
}

#[test]
fn peers_that_cannot_be_other_gateways_cause_warnings() {
    let warnings = |peers: &str| {
        let key = "5a".repeat(32);
        let pools = "pools: [{name: public, addresses: [203.0.113.0/28]}]\n";
        let sharing = format!("flowSharing: {{mode: nat, key: {{value: '{key}'}}, peers: [{peers}]}}\n");
        lines(&format!("{BASE}  snatAddresses: [192.0.2.3]\n{pools}{sharing}"))
    };
    let alone = warnings("");
    assert!(
        alone.len() == 1 && alone[0].contains("warning: flowSharing.peers: the list is empty"),
        "{alone:?}"
    );
    let vip = warnings("'203.0.113.3:10358'");
    assert!(vip.len() == 1 && vip[0].contains("has an address of the pool public"), "{vip:?}");
    assert_eq!(warnings("'192.0.2.77:10358'"), Vec::<String>::new());
}

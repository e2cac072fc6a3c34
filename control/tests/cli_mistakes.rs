//! Mistakes that operators make in files. `tidegate check` names each one with its file and line, so that nobody has to
//! look for the cause in traffic.
//!
//! A mistake scores 2 points if the report names it with its file and line, and 1 if it names it elsewhere. Warnings do
//! not change the exit code. Mistakes that only show on the host or in traffic are tested where the gateway notices
//! them: at the start, in `tidegate status`, and in the conditions of Services.

mod cli_support;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use cli_support::{GATEWAY, Ran, Site, service, slice};

/// A mistake: edits of the texts of a valid site.
struct Mistake {
    name: &'static str,
    /// File, replaced text, and replacement.
    edits: &'static [(&'static str, &'static str, &'static str)],
    /// Whether it is an error; otherwise it is a warning.
    refused: bool,
    /// The file, and a part of the line that the report must name.
    at: (&'static str, &'static str),
    /// Texts that one line of the report must contain.
    expected: &'static [&'static str],
}

const GATEWAY_FILE: &str = "gateway.yaml";
const WEB: &str = "manifests/web.yaml";
const SLICE: &str = "manifests/slice.yaml";

const fn refused(
    name: &'static str,
    edits: &'static [(&'static str, &'static str, &'static str)],
    at: (&'static str, &'static str),
    expected: &'static [&'static str],
) -> Mistake {
    Mistake { name, edits, refused: true, at, expected }
}

const fn warned(
    name: &'static str,
    edits: &'static [(&'static str, &'static str, &'static str)],
    at: (&'static str, &'static str),
    expected: &'static [&'static str],
) -> Mistake {
    Mistake { name, edits, refused: false, at, expected }
}

const BGP: &str = "pools:\n";

const MISTAKES: &[Mistake] = &[
    refused(
        "a key that is misspelt",
        &[(GATEWAY_FILE, "snatAddresses", "snatAddress")],
        (GATEWAY_FILE, "snatAddress"),
        &["unknown key \"snatAddress\"", "accepted: snatAddresses"],
    ),
    refused(
        "an indentation that ends a section",
        &[(GATEWAY_FILE, "  snatAddresses", "snatAddresses")],
        // The first line that no longer fits its section.
        (GATEWAY_FILE, "tunnelSource"),
        &["not YAML"],
    ),
    warned(
        "no SNAT address for the default mode",
        &[(GATEWAY_FILE, "  snatAddresses: [\"192.0.2.3\", \"2001:db8::3\"]\n", "")],
        (GATEWAY_FILE, "dataplane:"),
        &["snatAddresses", "fullnat needs an address"],
    ),
    refused(
        "the router among the SNAT addresses",
        &[(GATEWAY_FILE, "[\"192.0.2.3\",", "[\"192.0.2.1\",")],
        (GATEWAY_FILE, "snatAddresses"),
        &["192.0.2.1 is the address of the next hop of dataplane.routes[0]"],
    ),
    refused(
        "a neighbour among the SNAT addresses",
        &[(GATEWAY_FILE, "[\"192.0.2.3\",", "[\"192.0.2.13\",")],
        (GATEWAY_FILE, "snatAddresses"),
        &["192.0.2.13 is the address of dataplane.neighbors[4]"],
    ),
    refused(
        "a BGP peer among the SNAT addresses",
        &[(
            GATEWAY_FILE,
            BGP,
            "announce: {bgp: {asn: 64512, peers: [{address: 192.0.2.3, asn: 64513}]}}\npools:\n",
        )],
        (GATEWAY_FILE, "snatAddresses"),
        &["192.0.2.3 is the address of announce.bgp.peers[0]"],
    ),
    refused(
        "another gateway among the SNAT addresses",
        &[(
            GATEWAY_FILE,
            BGP,
            "flowSharing: {mode: nat, listen: \"192.0.2.2:10358\", peers: [\"192.0.2.2:10358\", \"192.0.2.3:10358\"],\n  \
             key: {value: 0f0e0d0c0b0a090807060504030201000f0e0d0c0b0a09080706050403020100}}\npools:\n",
        )],
        (GATEWAY_FILE, "snatAddresses"),
        &["192.0.2.3 is the address of flowSharing.peers[1]"],
    ),
    refused(
        "a server among the SNAT addresses",
        &[(SLICE, "10.0.0.2", "192.0.2.3")],
        (GATEWAY_FILE, "snatAddresses"),
        &["192.0.2.3 is also the address of an endpoint of EndpointSlice default/web-v4"],
    ),
    refused(
        "the router as the source of tunnels",
        &[(GATEWAY_FILE, "[\"192.0.2.2\", \"2001:db8::2\"]", "[\"192.0.2.2\", \"2001:db8::1\"]")],
        (GATEWAY_FILE, "tunnelSource"),
        &["2001:db8::1 is the address of the next hop of dataplane.routes[1]"],
    ),
    refused(
        "a prefix of tunnel sources over the router",
        &[(GATEWAY_FILE, "[\"192.0.2.2\", \"2001:db8::2\"]", "[\"192.0.2.0/29\"]")],
        (GATEWAY_FILE, "tunnelSource"),
        &["192.0.2.0/29 contains 192.0.2.1"],
    ),
    refused(
        "a prefix of tunnel sources over a pool",
        &[(GATEWAY_FILE, "[\"192.0.2.2\", \"2001:db8::2\"]", "[\"203.0.113.0/26\"]")],
        (GATEWAY_FILE, "tunnelSource"),
        &["has addresses of the pool public"],
    ),
    warned(
        "a SNAT address that nothing leads to",
        &[(GATEWAY_FILE, "[\"192.0.2.3\",", "[\"198.51.100.3\",")],
        (GATEWAY_FILE, "snatAddresses"),
        &["198.51.100.3 is in no network of an interface", "a route on every router"],
    ),
    warned(
        "a source of tunnels that nothing leads to",
        &[(GATEWAY_FILE, "[\"192.0.2.2\", \"2001:db8::2\"]", "[\"198.51.100.2\"]")],
        (GATEWAY_FILE, "tunnelSource"),
        &["198.51.100.2 is in no network of an interface"],
    ),
    refused(
        "a next hop on no link",
        &[(GATEWAY_FILE, "via: \"192.0.2.1\"", "via: \"192.0.3.1\"")],
        (GATEWAY_FILE, "192.0.3.1"),
        &["192.0.3.1 is not on-link", "an address in 192.0.2.0/24 (uplink)"],
    ),
    warned(
        "no default route",
        &[(GATEWAY_FILE, "{to: \"0.0.0.0/0\",", "{to: \"10.0.0.0/8\",")],
        (GATEWAY_FILE, "routes:"),
        &["no IPv4 default route", "default/web"],
    ),
    warned(
        "two interfaces in one network",
        &[(
            GATEWAY_FILE,
            "  routes:",
            "    - {name: inside, device: \"net_af_packet,iface=eth2\", addresses: [\"192.0.2.9/24\"]}\n  routes:",
        )],
        (GATEWAY_FILE, "inside"),
        &["192.0.2.0/24 is also a network of the interface uplink"],
    ),
    warned(
        "pools that overlap",
        &[(GATEWAY_FILE, "pools:\n", "pools:\n  - {name: more, addresses: [\"203.0.113.8/29\"]}\n")],
        (GATEWAY_FILE, "name: public"),
        &["overlaps 203.0.113.8-203.0.113.15 at pools[0].addresses[0]"],
    ),
    refused(
        "an aggregate that is everything",
        &[(
            GATEWAY_FILE,
            BGP,
            "announce:\n  bgp: {asn: 64512, peers: [{address: 192.0.2.1, asn: 64513}],\n    aggregates: [\"0.0.0.0/0\"]}\npools:\n",
        )],
        (GATEWAY_FILE, "aggregates"),
        &["the prefix 0.0.0.0/0 is too short: it contains addresses of other networks"],
    ),
    refused(
        "an aggregate outside of the pools",
        &[(
            GATEWAY_FILE,
            BGP,
            "announce:\n  bgp: {asn: 64512, peers: [{address: 192.0.2.1, asn: 64513}],\n    aggregates: [\"198.51.100.0/24\"]}\npools:\n",
        )],
        (GATEWAY_FILE, "aggregates"),
        &["198.51.100.0/24 contains no address of any pool"],
    ),
    warned(
        "an aggregate that is larger than the pools",
        &[(
            GATEWAY_FILE,
            BGP,
            "announce:\n  bgp: {asn: 64512, peers: [{address: 192.0.2.1, asn: 64513}],\n    aggregates: [\"203.0.113.0/24\"]}\npools:\n",
        )],
        (GATEWAY_FILE, "aggregates"),
        &["240 of them are in no pool, such as 203.0.113.16"],
    ),
    refused(
        "a VIP outside of the pools",
        &[(WEB, "203.0.113.1", "203.0.114.1")],
        (WEB, "203.0.114.1"),
        &["203.0.114.1", "the address is in no pool", "public (203.0.113.0-203.0.113.15"],
    ),
    refused(
        "a VIP that another gateway has",
        &[(
            GATEWAY_FILE,
            BGP,
            "flowSharing: {mode: nat, listen: \"192.0.2.2:10358\", peers: [\"192.0.2.2:10358\", \"203.0.113.1:10358\"],\n  \
             key: {value: 0f0e0d0c0b0a090807060504030201000f0e0d0c0b0a09080706050403020100}}\npools:\n",
        )],
        (WEB, "load-balancer-ips"),
        &["203.0.113.1", "an address of a peer"],
    ),
    refused(
        "a VIP that a BGP router has",
        &[(
            GATEWAY_FILE,
            BGP,
            "announce: {bgp: {asn: 64512, peers: [{address: 203.0.113.1, asn: 64513, ebgpMultihop: 2}]}}\npools:\n",
        )],
        (WEB, "load-balancer-ips"),
        &["203.0.113.1", "an address of a peer"],
    ),
    refused(
        "a VIP that another Service has",
        &[(WEB, "apiVersion: v1", "OTHER---\napiVersion: v1")],
        (WEB, "load-balancer-ips"),
        &["203.0.113.1", "TCP port 80 belongs to Service default/other"],
    ),
    refused(
        "an external IP that no pool authorises",
        &[
            (GATEWAY_FILE, "externalIPs: true", "externalIPs: false"),
            (WEB, "spec:\n", "spec:\n  externalIPs: [203.0.113.7]\n"),
        ],
        (WEB, "externalIPs"),
        &["203.0.113.7", "pool public does not authorise external IPs"],
    ),
    refused(
        "a pool that has only the gateway's own address",
        &[
            (GATEWAY_FILE, "\"203.0.113.0/28\", \"2001:db8:1::/124\"", "192.0.2.2"),
            (WEB, "    tidegate.dev/load-balancer-ips: \"203.0.113.1\"\n", ""),
        ],
        (WEB, "type: LoadBalancer"),
        &["pool public is full", "192.0.2.2, which is an address of the gateway itself"],
    ),
    warned(
        "a slice without the label of its Service",
        &[(SLICE, "  labels: {kubernetes.io/service-name: web}\n", "")],
        (SLICE, "apiVersion"),
        &["EndpointSlice default/web-v4", "belongs to no Service"],
    ),
    warned(
        "an empty name of the Service in the label of a slice",
        &[(SLICE, "service-name: web", "service-name: \"\"")],
        (SLICE, "service-name"),
        &["EndpointSlice default/web-v4 belongs to no Service", "is empty"],
    ),
    warned(
        "a VIP as an endpoint",
        &[(SLICE, "10.0.0.2", "203.0.113.1")],
        (SLICE, "203.0.113.1"),
        &["endpoint 203.0.113.1 of Service default/web is refused: it is a VIP"],
    ),
    warned(
        "a loopback address as an endpoint",
        &[(SLICE, "10.0.0.1", "127.0.0.1")],
        (SLICE, "127.0.0.1"),
        &["endpoint 127.0.0.1", "loopback"],
    ),
    refused(
        "a backend that no route leads to",
        &[(GATEWAY_FILE, "{to: \"0.0.0.0/0\", via: \"192.0.2.1\"}, ", "")],
        (WEB, "name: http"),
        &["10.0.0.1:80", "no route leads to its address"],
    ),
    warned(
        "a second address of a family in a status",
        &[(
            WEB,
            "spec:\n",
            "status: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {ip: 203.0.113.2}]}}\nspec:\n",
        )],
        (WEB, "203.0.113.2"),
        &["address 203.0.113.2 in the status of Service default/web is not served"],
    ),
    warned(
        "policy Local with endpoints on other nodes only",
        &[
            (GATEWAY_FILE, BGP, "node: {name: n1}\npools:\n"),
            (WEB, "spec:\n", "spec:\n  externalTrafficPolicy: Local\n"),
            (SLICE, "addresses: [\"10.0.0.1\"]", "addresses: [\"10.0.0.1\"]\n    nodeName: n2"),
        ],
        (WEB, "Local"),
        &[
            "80/TCP of Service default/web on 203.0.113.1 has no backend",
            "externalTrafficPolicy Local: node n1 has no endpoint (there are endpoints on n2), so packets are dropped",
        ],
    ),
    warned(
        "a kind that the gateway does not read",
        &[(
            SLICE,
            "apiVersion: discovery.k8s.io/v1",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n---\napiVersion: discovery.k8s.io/v1",
        )],
        (SLICE, "apiVersion: apps/v1"),
        &["the gateway does not read kind Deployment"],
    ),
    warned(
        "a port of another name in the slice",
        &[(SLICE, "{name: http, port: 80}", "{name: web, port: 8080}")],
        (SLICE, "ports:"),
        &[
            "has ports [web/8080, dns/53/UDP], but Service default/web needs a port named http",
            "; accepted: a port named http, protocol TCP",
        ],
    ),
    refused(
        "the same object in two places",
        &[(SLICE, "apiVersion: discovery.k8s.io/v1", "WEB---\napiVersion: discovery.k8s.io/v1")],
        (WEB, "apiVersion"),
        &["Service default/web is also defined at"],
    ),
    warned(
        "a Service that no endpoint belongs to",
        &[(SLICE, "service-name: web", "service-name: shop")],
        (WEB, "spec:"),
        &["Service default/web has no endpoint", "kubernetes.io/service-name: web"],
    ),
    warned(
        "a Service of another class",
        &[(WEB, "spec:\n", "spec:\n  loadBalancerClass: example.com/other\n")],
        (WEB, "loadBalancerClass"),
        &["Service default/web gets no address: its", "example.com/other", "tidegate.dev/gateway"],
    ),
    warned(
        "an annotation that is misspelt",
        &[(WEB, "tidegate.dev/forwarding", "tidegate.dev/forwardign")],
        (WEB, "forwardign"),
        &["tidegate.dev/forwardign", "tidegate.dev/forwarding"],
    ),
    warned(
        "an annotation of another load balancer",
        &[(
            WEB,
            "    tidegate.dev/forwarding",
            "    metallb.io/address-pool: public\n    tidegate.dev/forwarding",
        )],
        (WEB, "metallb.io"),
        &["metallb is not in services.compat"],
    ),
    refused(
        "an annotation that limits clients and cannot be followed",
        &[
            (GATEWAY_FILE, BGP, "services: {compat: [aws]}\npools:\n"),
            (
                WEB,
                "    tidegate.dev/forwarding",
                "    service.beta.kubernetes.io/aws-load-balancer-security-groups: sg-1\n    tidegate.dev/forwarding",
            ),
        ],
        (WEB, "security-groups"),
        &["is not supported", "no port is programmed", "spec.loadBalancerSourceRanges"],
    ),
    warned(
        "source ranges beside external IPs",
        &[(
            WEB,
            "spec:\n",
            "spec:\n  externalIPs: [203.0.113.7]\n  loadBalancerSourceRanges: [10.0.0.0/8]\n",
        )],
        (WEB, "externalIPs"),
        &["203.0.113.7", "is open to all clients"],
    ),
    refused(
        "a file of a BGP password that is missing",
        &[(
            GATEWAY_FILE,
            BGP,
            "announce:\n  bgp: {asn: 64512, peers: [{address: 192.0.2.1, asn: 64513, passwordFile: nowhere}]}\npools:\n",
        )],
        (GATEWAY_FILE, "passwordFile"),
        &["nowhere cannot be read"],
    ),
    refused(
        "a kubeconfig that is missing",
        &[(GATEWAY_FILE, BGP, "source: {kubernetes: {kubeconfig: nowhere}}\npools:\n")],
        (GATEWAY_FILE, "nowhere"),
        &["nowhere", "No such file"],
    ),
    warned(
        "a key twice in an object that the gateway does not read",
        &[(
            SLICE,
            "apiVersion: discovery.k8s.io/v1",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nmetadata: {name: b}\n---\napiVersion: discovery.k8s.io/v1",
        )],
        (SLICE, "metadata: {name: b}"),
        &["duplicate key \"metadata\""],
    ),
];

/// The text of each file of a valid site.
fn sound() -> [(&'static str, String); 3] {
    [
        (GATEWAY_FILE, GATEWAY.to_owned()),
        (WEB, service("web", "nat", "203.0.113.1")),
        (SLICE, slice("web", "v4", "IPv4", &["10.0.0.1", "10.0.0.2"])),
    ]
}

/// The result of `check` for the site with this mistake, and the site's texts.
fn made(mistake: &Mistake) -> (Ran, [(&'static str, String); 3]) {
    let mut texts = sound();
    let [_, (_, web), _] = sound();
    let other = service("other", "nat", "203.0.113.1");
    for (file, from, to) in mistake.edits {
        let (_, text) = texts.iter_mut().find(|(name, _)| name == file).expect("it is a file of the site");
        assert!(text.contains(from), "{}: {from:?} in\n{text}", mistake.name);
        // A complete object before the others.
        let to = to.replace("OTHER", &other).replace("WEB", &web);
        *text = text.replacen(from, &to, 1);
    }
    let [(_, gateway), (_, web), (_, slice)] = &texts;
    let site = Site::new(gateway, &[("web.yaml", web), ("slice.yaml", slice)]);
    (site.check(), texts)
}

/// 2 if the mistake is named with its line, 1 if it is named elsewhere, 0 if it is not named.
fn score(mistake: &Mistake, ran: &Ran, texts: &[(&'static str, String)]) -> usize {
    let severity = if mistake.refused { ": error: " } else { ": warning: " };
    let names =
        |line: &str| line.contains(severity) && mistake.expected.iter().all(|word| line.contains(word));
    let (file, part) = mistake.at;
    let (_, text) = texts.iter().find(|(name, _)| *name == file).expect("it is a file of the site");
    // The last match, because another object may come first.
    let line = text.lines().count() - text.lines().rev().position(|line| line.contains(part)).expect(part);
    let place = format!("{file}:{line}:");
    let named: Vec<&str> = ran.out.lines().filter(|line| names(line)).collect();
    match named.iter().any(|line| line.starts_with(&place)) {
        true if (ran.code == 2) == mistake.refused => 2,
        _ => usize::from(!named.is_empty()),
    }
}

#[test]
fn check_names_every_mistake_in_files_with_its_line() {
    let mut points = 0;
    let mut poor = String::new();
    for mistake in MISTAKES {
        let (ran, texts) = made(mistake);
        let score = score(mistake, &ran, &texts);
        points += score;
        if score < 2 {
            poor.push_str(&format!("{score}: {}: exit {}\n{}{}\n", mistake.name, ran.code, ran.out, ran.err));
        }
    }
    println!("{points} of {} points", 2 * MISTAKES.len());
    assert!(poor.is_empty(), "{points} of {} points\n{poor}", 2 * MISTAKES.len());
}

#[test]
fn an_empty_directory_and_ignored_files_are_warnings() {
    let site = Site::new(GATEWAY, &[]);
    let ran = site.check();
    assert_eq!(ran.code, 0, "{}", ran.out);
    assert!(ran.out.contains("manifests:1:1: warning: the directory has no manifest"), "{}", ran.out);
    let [_, (_, web), (_, slice)] = sound();
    let site = Site::new(
        GATEWAY,
        &[("web.yaml", &web), ("slice.yaml", &slice), ("more.txt", &web), ("README.md", "text")],
    );
    let ran = site.check();
    assert_eq!(ran.code, 0, "{}", ran.out);
    let unread: Vec<&str> = ran.out.lines().filter(|line| line.contains("is not read")).collect();
    let [one] = unread[..] else { panic!("{}", ran.out) };
    assert!(
        one.starts_with("manifests/more.txt:1:1: warning: ") && one.contains(".yaml, .yml or .json"),
        "{one}"
    );
}

#[test]
fn secrets_that_every_user_can_read_are_warned_about() {
    let key = "0f0e0d0c0b0a09080706050403020100";
    let inline = GATEWAY.replace(BGP, &format!("selectionKey: {{value: {key}}}\npools:\n"));
    let of_files = GATEWAY.replace(
        BGP,
        "selectionKey: {file: key}\nannounce:\n  bgp: {asn: 64512, peers: [{address: 192.0.2.1, asn: 64513, passwordFile: password}]}\npools:\n",
    );
    let [_, (_, web), (_, slice)] = sound();
    let manifests = [("web.yaml", web.as_str()), ("slice.yaml", slice.as_str())];
    let secrets = |gateway: &str, mode: u32| -> Vec<String> {
        let site = Site::new(gateway, &manifests);
        fs::write(site.path("key"), key).expect("it can be written");
        fs::write(site.path("password"), "secret").expect("it can be written");
        for file in ["key", "password", GATEWAY_FILE] {
            fs::set_permissions(site.path(file), fs::Permissions::from_mode(mode)).expect("it is ours");
        }
        let ran = site.check();
        assert_eq!(ran.code, 0, "{}", ran.out);
        let warned = ran.out.lines().filter(|line| line.contains("every user of this machine can read"));
        warned.map(str::to_owned).collect()
    };
    for private in [0o600, 0o640] {
        assert!(secrets(&inline, private).is_empty() && secrets(&of_files, private).is_empty());
    }
    let warnings = secrets(&inline, 0o644);
    assert!(
        warnings.len() == 1
            && warnings[0].contains("selectionKey.value")
            && warnings[0].contains("gateway.yaml; accepted"),
        "{warnings:?}"
    );
    let warnings = secrets(&of_files, 0o644);
    assert!(
        warnings.len() == 2 && warnings.iter().any(|line| line.contains("chmod o= password")),
        "{warnings:?}"
    );
}

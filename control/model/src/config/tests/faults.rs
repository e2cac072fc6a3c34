//! Each fault of a configuration is reported once, with its location and what is accepted.

use super::*;

/// (the text appended to the base of 7 lines, the one expected error without its file)
const FAULTS: &[(&str, &str)] = &[
    ("metdata: {}", "8:1: error: unknown key \"metdata\"; accepted: metadata"),
    (
        "metadata: {name: Edge_1}",
        "8:18: error: metadata.name: the text \"Edge_1\" is not accepted; accepted: a name of a-z, 0-9, - and . (RFC 1123)",
    ),
    (
        "metadata: {annotations: {}}",
        "8:12: error: unknown key \"annotations\" in metadata; accepted: name, labels",
    ),
    (
        "metadata: {labels: {a b: c}}",
        "8:20: error: metadata.labels: \"a b\" is not a valid label key; accepted: a name of up to 63 letters, digits, '-', '_' and '.', after an optional prefix such as example.org/",
    ),
    (
        "node: {name: 7}",
        "8:14: error: node.name: the number 7 is not accepted; accepted: text in quotes: \"7\"",
    ),
    (
        "flowLog: {sample: 5}",
        "8:10: error: flowLog: the log is written nowhere; accepted: flowLog.file, flowLog.ipfix, or both",
    ),
    ("flowLog: {file: {}}", "8:17: error: flowLog.file.path is missing; accepted: the path of a file"),
    (
        "flowLog: {ipfix: {collector: 192.0.2.9}}",
        "8:30: error: flowLog.ipfix.collector: the text \"192.0.2.9\" is not accepted; accepted: the address and UDP port of a collector, such as 192.0.2.9:4739 or [2001:db8::9]:4739",
    ),
    ("node: []", "8:7: error: node: a list is not accepted; accepted: a mapping of keys to values"),
    ("node: {}\nnode: {}", "9:1: error: duplicate key \"node\"; accepted: each key once"),
    ("  cores: []", "8:10: error: dataplane.cores: the list has 0 cores; accepted: 1 to 64 core numbers"),
    ("  cores: 1", "8:10: error: dataplane.cores: the number 1 is not accepted; accepted: a list"),
    (
        "  cores: [1, 1]",
        "8:14: error: dataplane.cores[1]: 1 is already the value of dataplane.cores[0]; accepted: each value once",
    ),
    (
        "  cores: [-1]",
        "8:11: error: dataplane.cores[0]: the number -1 is not accepted; accepted: a whole number from 0 to 1023",
    ),
    (
        "  idle: lazy",
        "8:9: error: dataplane.idle: the text \"lazy\" is not accepted; accepted: poll, adaptive",
    ),
    (
        "  memory: {hugepages: maybe}",
        "8:23: error: dataplane.memory.hugepages: the text \"maybe\" is not accepted; accepted: true or false",
    ),
    (
        "  memory: {sizeMiB: 1}",
        "8:21: error: dataplane.memory.sizeMiB: the number 1 is not accepted; accepted: a whole number from 64 to 1048576",
    ),
    ("  memory: {sizeMB: 64}", "8:12: error: unknown key \"sizeMB\" in dataplane.memory; accepted: sizeMiB"),
    (
        "  flowTable: {entriesPerCore: 5}",
        "8:31: error: dataplane.flowTable.entriesPerCore: the number 5 is not accepted; accepted: a whole number from 1024 to 268435456",
    ),
    (
        "  flowTable: {directory: flows}",
        "8:26: error: dataplane.flowTable.directory: the text \"flows\" is not accepted; accepted: an absolute path of a directory on tmpfs, or \"\"",
    ),
    (
        "  flowTable: {servicePercent: 0}",
        "8:31: error: dataplane.flowTable.servicePercent: the number 0 is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "  flowTable: {servicePercent: 101}",
        "8:31: error: dataplane.flowTable.servicePercent: the number 101 is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "  flowTable: {servicePercent: 50%}",
        "8:31: error: dataplane.flowTable.servicePercent: the text \"50%\" is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "  - {device: net_null1}",
        "8:5: error: dataplane.interfaces[1].name is missing; accepted: a name such as uplink",
    ),
    (
        "  - {name: a b, device: x}",
        "8:12: error: dataplane.interfaces[1].name: the text \"a b\" is not accepted; accepted: a name of 1 to 32 letters, digits, -, _ and .",
    ),
    (
        "  - {name: uplink, device: net_null1}",
        "8:12: error: dataplane.interfaces[1].name: uplink is already the value of dataplane.interfaces[0].name; accepted: each value once",
    ),
    (
        "  - {name: b, device: ''}",
        "8:23: error: dataplane.interfaces[1].device: the text \"\" is not accepted; accepted: a DPDK virtual device such as net_af_packet,iface=eth1, or a PCI address such as 0000:3b:00.0",
    ),
    (
        "  - {name: b, device: '0:1.0'}\n  - {name: c, device: '0:1.0'}",
        "9:23: error: dataplane.interfaces[2].device: 0:1.0 is already the value of dataplane.interfaces[1].device; accepted: each value once",
    ),
    (
        "    mtu: 500",
        "8:10: error: dataplane.interfaces[0].mtu: the number 500 is not accepted; accepted: a whole number from 576 to 9216",
    ),
    (
        "    mtu: 1000",
        "8:10: error: dataplane.interfaces[0].mtu: 1000 is too small for IPv6 (RFC 8200); accepted: 1280 to 9216 with IPv6 addresses",
    ),
    (
        "    vlan: 4095",
        "8:11: error: dataplane.interfaces[0].vlan: the number 4095 is not accepted; accepted: a whole number from 1 to 4094",
    ),
    (
        "    mac: 02:00:00:00:00",
        "8:10: error: dataplane.interfaces[0].mac: the text \"02:00:00:00:00\" is not accepted; accepted: a unicast MAC address such as 02:00:00:00:00:01",
    ),
    (
        "  - {name: b, device: d, addresses: [10.0.0.1]}",
        "8:38: error: dataplane.interfaces[1].addresses[0]: the text \"10.0.0.1\" is not accepted; accepted: an address with its prefix length such as 192.0.2.2/24 or 2001:db8::2/64",
    ),
    (
        "  - {name: b, device: d, addresses: [10.0.0.0/24]}",
        "8:38: error: dataplane.interfaces[1].addresses[0]: 10.0.0.0/24 is not a host address; accepted: a host address with the prefix length of its network",
    ),
    (
        "  - {name: b, device: d, addresses: ['::ffff:10.0.0.2/120']}",
        "8:38: error: dataplane.interfaces[1].addresses[0]: ::ffff:10.0.0.2/120 is an IPv4-mapped IPv6 address; accepted: 10.0.0.2/24",
    ),
    (
        "  - {name: b, device: d, addresses: [192.0.2.2/32]}",
        "8:38: error: dataplane.interfaces[1].addresses[0]: 192.0.2.2 is also an address of the interface uplink; accepted: each address on only one interface",
    ),
    (
        "  routes: [{to: 0.0.0.0/0, via: 198.51.100.1}]",
        "8:33: error: dataplane.routes[0].via: 198.51.100.1 is not on-link; accepted: an address in 192.0.2.0/24 (uplink), 2001:db8::/64 (uplink)",
    ),
    (
        "  routes: [{to: 0.0.0.0/0, via: 192.0.2.2}]",
        "8:33: error: dataplane.routes[0].via: 192.0.2.2 is an address of the gateway itself; accepted: the address of a router",
    ),
    (
        "  routes: [{to: 10.1.0.0/8, via: 192.0.2.1}]",
        "8:17: error: dataplane.routes[0].to: 10.1.0.0/8 has host bits set; accepted: 10.0.0.0/8",
    ),
    (
        "  routes: [{to: 10.0.0.0/8}]",
        "8:12: error: dataplane.routes[0].via is missing; accepted: the address of an on-link router",
    ),
    (
        "  routes: [{to: '::/0', via: '2001:db8::1'}, {to: '::/0', via: '2001:db8::5'}]",
        "8:51: error: dataplane.routes[1].to: ::/0 is already the value of dataplane.routes[0].to; accepted: each value once",
    ),
    (
        "  neighbors: [{ip: 192.0.2.1}]",
        "8:15: error: dataplane.neighbors[0].mac is missing; accepted: a unicast MAC address such as 02:00:00:00:00:01",
    ),
    (
        "  neighbors: [{ip: 224.0.0.1, mac: '02:00:00:00:00:01'}]",
        "8:20: error: dataplane.neighbors[0].ip: 224.0.0.1 cannot be the address of a host on the network; accepted: a unicast address, not loopback",
    ),
    (
        "  snatAddresses: [192.0.2.3, 192.0.2.3]",
        "8:30: error: dataplane.snatAddresses[1]: 192.0.2.3 is already the value of dataplane.snatAddresses[0]; accepted: each value once",
    ),
    (
        "  routes: [{to: 0.0.0.0/0, via: 192.0.2.1}]\n  snatAddresses: [192.0.2.1]",
        "9:19: error: dataplane.snatAddresses[0]: 192.0.2.1 is the address of the next hop of dataplane.routes[0]; accepted: an address that no other host has",
    ),
    (
        "  neighbors: [{ip: '2001:db8::5', mac: '02:00:00:00:00:05'}]\n  tunnelSource: ['2001:db8::5']",
        "9:3: error: dataplane.tunnelSource: 2001:db8::5 is the address of dataplane.neighbors[0]; accepted: an address that no other host has",
    ),
    (
        "  snatAddresses: [192.0.2.1]\nannounce: {bgp: {asn: 1, peers: [{address: 192.0.2.1, asn: 2}]}}",
        "8:19: error: dataplane.snatAddresses[0]: 192.0.2.1 is the address of announce.bgp.peers[0]; accepted: an address that no other host has",
    ),
    (
        "  tunnelSource: [192.0.2.64/28]\nflowSharing: {peers: ['192.0.2.70:10358']}",
        "8:3: error: dataplane.tunnelSource: 192.0.2.64/28 contains 192.0.2.70, the address of flowSharing.peers[0]; accepted: a prefix of addresses that only the gateway has",
    ),
    (
        "announce: {bgp: {asn: 1, peers: [{address: 192.0.2.1, asn: 2}], aggregates: ['::/0']}}",
        "8:78: error: announce.bgp.aggregates[0]: the prefix ::/0 is too short: it contains addresses of other networks; accepted: a prefix of /16 or longer that contains addresses of pools",
    ),
    (
        "  tunnelPeers: [192.0.2.9, 192.0.2.9]",
        "8:28: error: dataplane.tunnelPeers[1]: 192.0.2.9 is already the value of dataplane.tunnelPeers[0]; accepted: each value once",
    ),
    (
        "  tunnelPeers: ['ff02::1']",
        "8:17: error: dataplane.tunnelPeers[0]: ff02::1 cannot be the address of a host on the network; accepted: a unicast address, not loopback",
    ),
    (
        "  tunnelPeers: [192.0.2.2]",
        "8:17: error: dataplane.tunnelPeers[0]: 192.0.2.2 is an address of this gateway; accepted: an address of another gateway",
    ),
    (
        "  gateway: {prefixes: [0.0.0.0/0]}",
        "8:24: error: dataplane.gateway.prefixes[0]: 0.0.0.0/0 cannot be the network of backends; accepted: a network of unicast addresses",
    ),
    (
        "  gateway: {prefixes: [10.77.0.0/16]}",
        "8:24: error: dataplane.gateway.prefixes[0]: 10.77.0.0/16 is in no network of an interface or of a route other than a default route; accepted: a part of a network of \
         dataplane.interfaces, or of a route other than a default route",
    ),
    (
        "  gateway: {forward: all}",
        "8:22: error: dataplane.gateway.forward: the text \"all\" is not accepted; accepted: refuse, routes",
    ),
    (
        "  gateway: {prefixes: [192.0.2.0/25], masquerade: [192.0.2.0/25]}",
        "8:52: error: dataplane.gateway.masquerade[0]: the traffic of 192.0.2.0/25 is not forwarded, because dataplane.gateway.forward \
         is refuse; accepted: dataplane.gateway.forward: routes, or no masquerade",
    ),
    (
        "  gateway: {forward: routes, prefixes: [192.0.2.0/25], masquerade: [192.0.2.0/24]}",
        "8:69: error: dataplane.gateway.masquerade[0]: 192.0.2.0/24 is in no network of dataplane.gateway.prefixes; accepted: a network inside one of \
         dataplane.gateway.prefixes",
    ),
    (
        "  gateway: {forward: routes, prefixes: [192.0.2.0/25], masquerade: [192.0.2.0/26]}",
        "8:69: error: dataplane.gateway.masquerade[0]: dataplane.snatAddresses has no IPv4 address; \
         accepted: a network of the same family as an address in dataplane.snatAddresses",
    ),
    (
        "  oversized: drop",
        "8:14: error: dataplane.oversized: the text \"drop\" is not accepted; accepted: fragment, answer",
    ),
    (
        "  snatAddresses: [192.0.2.300]",
        "8:19: error: dataplane.snatAddresses[0]: the text \"192.0.2.300\" is not accepted; accepted: an IPv4 or IPv6 address",
    ),
    (
        "  tunnelSource: [192.0.2.2, 192.0.2.3]",
        "8:29: error: dataplane.tunnelSource[1]: 192.0.2.2 is already the entry of this address family; accepted: one address or prefix of each family",
    ),
    (
        "  tunnelSource: [192.0.0.0/16]",
        "8:18: error: dataplane.tunnelSource[0]: 192.0.0.0/16 cannot be the source of tunnels; accepted: an IPv4 prefix of /24 to /32, or an IPv6 prefix of /48 to /128",
    ),
    (
        "  tunnelSource: [192.0.2.65/28]",
        "8:18: error: dataplane.tunnelSource[0]: 192.0.2.65/28 has host bits set; accepted: 192.0.2.64/28",
    ),
    (
        "source: {}",
        "8:9: error: source: neither directory nor kubernetes is set; accepted: either directory or kubernetes",
    ),
    (
        "source: {directory: {path: ''}}",
        "8:28: error: source.directory.path: the text \"\" is not accepted; accepted: the path of a directory",
    ),
    (
        "source: {directory: {watch: 1}}",
        "8:29: error: source.directory.watch: the number 1 is not accepted; accepted: true or false",
    ),
    (
        "source: {kubernetes: {loadBalancerClass: 'a b'}}",
        "8:42: error: source.kubernetes.loadBalancerClass: the text \"a b\" is not accepted; accepted: a name such as tidegate.dev/gateway",
    ),
    (
        "source: {kubernetes: {apiLossGrace: 8d}}",
        "8:37: error: source.kubernetes.apiLossGrace: the text \"8d\" is not accepted; accepted: a duration such as 500ms, 2s, 1m30s or 1h",
    ),
    (
        "source: {kubernetes: {token: x}}",
        "8:23: error: unknown key \"token\" in source.kubernetes; accepted: kubeconfig, loadBalancerClass, apiLossGrace, stateDirectory, leaseNamespace, default, podWeights, endpointSlicesMiB",
    ),
    ("source: {files: {}}", "8:10: error: unknown key \"files\" in source; accepted: directory, kubernetes"),
    (
        "services: {defaults: {gueVariant: 2}}",
        "8:35: error: services.defaults.gueVariant: the number 2 is not accepted; accepted: 0, 1",
    ),
    (
        "services: {defaults: {guePort: 0}}",
        "8:32: error: services.defaults.guePort: the number 0 is not accepted; accepted: a port number, 1 to 65535",
    ),
    (
        "services: {defaults: {greKey: 4294967296}}",
        "8:31: error: services.defaults.greKey: the number 4294967296 is not accepted; accepted: 0 to 4294967295, or none",
    ),
    (
        "services: {defaults: {genevePort: 65536}}",
        "8:35: error: services.defaults.genevePort: the number 65536 is not accepted; accepted: a port number, 1 to 65535",
    ),
    (
        "services: {defaults: {geneveVni: 16777216}}",
        "8:34: error: services.defaults.geneveVni: the number 16777216 is not accepted; accepted: 0 to 16777215",
    ),
    (
        "services: {defaults: {forwarding: full-nat}}",
        "8:35: error: services.defaults.forwarding: \"full-nat\" is not known (nearest: fullnat); accepted: dsr-l2, dsr-ipip, dsr-gue, dsr-gre, dsr-geneve, dsr-dscp, nat, fullnat",
    ),
    (
        "services: {defaults: {target: nod}}",
        "8:31: error: services.defaults.target: \"nod\" is not known (nearest: node, pod); accepted: pod, node",
    ),
    (
        "services: {defaults: {scheduler: sticky}}",
        "8:34: error: services.defaults.scheduler: \"sticky\" is not known; accepted: rendezvous, maglev, wrr, lc, sed, nq, sh, dh",
    ),
    (
        "services: {defaults: {hash: 5-tuple}}",
        "8:29: error: services.defaults.hash: \"5-tuple\" is not known; accepted: flow, client",
    ),
    (
        "services: {defaults: {tableSize: 65536}}",
        "8:34: error: services.defaults.tableSize: the number 65536 is not accepted; accepted: a prime from 251 to 655373 such as 65521 or 65537",
    ),
    (
        "services: {defaults: {drainTimeout: 25h}}",
        "8:37: error: services.defaults.drainTimeout: the text \"25h\" is not accepted; accepted: a duration from 0s to 24h",
    ),
    (
        "services: {defaults: {drainTimeout: 300}}",
        "8:37: error: services.defaults.drainTimeout: the number 300 is not accepted; accepted: a duration such as 500ms, 2s, 1m30s or 1h",
    ),
    (
        "services: {defaults: {slowStart: 9s}}",
        "8:34: error: services.defaults.slowStart: the text \"9s\" is not accepted; accepted: 0s, or a duration from 10s to 1h such as 30s or 5m",
    ),
    (
        "services: {defaults: {noEndpoints: rst}}",
        "8:36: error: services.defaults.noEndpoints: the text \"rst\" is not accepted; accepted: reject, drop",
    ),
    (
        "services: {defaults: {flowTracking: never}}",
        "8:37: error: services.defaults.flowTracking: \"never\" is not known; accepted: always, on-change",
    ),
    (
        "services: {defaults: {mssClamp: 535}}",
        "8:33: error: services.defaults.mssClamp: the number 535 is not accepted; accepted: off, path, or a number of bytes from 536 to 65495",
    ),
    (
        "services: {nodePortAddresses: [primary]}",
        "8:32: error: services.nodePortAddresses[0]: the text \"primary\" is not accepted; accepted: a CIDR such as 192.0.2.0/24 or 2001:db8::/64",
    ),
    (
        "services: {ownClusterIPs: ''}",
        "8:27: error: services.ownClusterIPs: the text \"\" is not accepted; accepted: true or false",
    ),
    (
        "services: {podRoutes: nodes}",
        "8:23: error: services.podRoutes: the text \"nodes\" is not accepted; accepted: route, node",
    ),
    (
        "services: {sourceRangesOtherFamily: maybe}",
        "8:37: error: services.sourceRangesOtherFamily: the text \"maybe\" is not accepted; accepted: deny, allow",
    ),
    (
        "services: {compat: [awss]}",
        "8:21: error: services.compat[0]: \"awss\" is not known (nearest: aws); accepted: alibaba, aws, azure, baidu, cilium, gcp, ibm, kube-vip, metallb, openstack, tke",
    ),
    (
        "services: {compat: [f5]}",
        "8:21: error: services.compat[0]: \"f5\" is not known; accepted: alibaba, aws, azure, baidu, cilium, gcp, ibm, kube-vip, metallb, openstack, tke",
    ),
    (
        "pools: [{addresses: [203.0.113.0/28]}]",
        "8:9: error: pools[0].name is missing; accepted: a name of a-z, 0-9, - and . (RFC 1123)",
    ),
    (
        "pools: [{name: p}]",
        "8:9: error: pools[0].addresses is missing; accepted: an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20",
    ),
    (
        "pools: [{name: p, addresses: []}]",
        "8:30: error: pools[0].addresses: the list is empty; accepted: an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.9-203.0.113.1]}]",
        "8:31: error: pools[0].addresses[0]: \"203.0.113.9-203.0.113.1\" is not a range; accepted: an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.9-2001:db8::1]}]",
        "8:31: error: pools[0].addresses[0]: \"203.0.113.9-2001:db8::1\" is not a range; accepted: an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20",
    ),
    (
        "pools: [{name: p, addresses: [127.0.0.0/30]}]",
        "8:31: error: pools[0].addresses[0]: 127.0.0.0/30 contains loopback addresses; accepted: unicast addresses that clients can send to",
    ),
    (
        "pools: [{name: p, addresses: [a]}]",
        "8:31: error: pools[0].addresses[0]: the text \"a\" is not accepted; accepted: an address, a CIDR such as 203.0.113.0/28, or a range such as 203.0.113.10-203.0.113.20",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1]}, {name: p, addresses: [203.0.113.2]}]",
        "8:53: error: pools[1].name: p is already the value of pools[0].name; accepted: each value once",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], autoAssign: 1}]",
        "8:57: error: pools[0].autoAssign: the number 1 is not accepted; accepted: true or false",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], externalIps: true}]",
        "8:45: error: unknown key \"externalIps\" in pools[0]; accepted: externalIPs",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], quotaPerNamespace: 0}]",
        "8:64: error: pools[0].quotaPerNamespace: the number 0 is not accepted; accepted: a whole number from 1 to 4294967295",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], labels: {scope: 1}}]",
        "8:61: error: pools[0].labels[scope]: the number 1 is not accepted; accepted: text in quotes: \"1\"",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], serviceSelector: {matchExpressions: [{key: a, operator: Is}]}}]",
        "8:101: error: pools[0].serviceSelector.matchExpressions[0].operator: the text \"Is\" is not accepted; accepted: In, NotIn, Exists, DoesNotExist",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], serviceSelector: {matchExpressions: [{key: a, operator: In}]}}]",
        "8:82: error: pools[0].serviceSelector.matchExpressions[0]: values is missing; accepted: at least one value for In and NotIn",
    ),
    (
        "pools: [{name: p, addresses: [203.0.113.1], namespaceSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]",
        "8:119: error: pools[0].namespaceSelector.matchExpressions[0].values: the number of values does not fit the operator; accepted: at least one value for In and NotIn, no values for Exists and DoesNotExist",
    ),
    (
        "health: {interval: 10ms}",
        "8:20: error: health.interval: the text \"10ms\" is not accepted; accepted: a duration from 100ms to 1h",
    ),
    (
        "health: {timeout: 3s}",
        "8:19: error: health.timeout: timeout 3s is longer than interval 2s; accepted: a timeout of at most the interval, 2s",
    ),
    (
        "health: {intervalMin: 5s, interval: 2s}",
        "8:37: error: health.interval: interval 2s is shorter than intervalMin 5s; accepted: an interval of at least 5s",
    ),
    (
        "health: {timeoutMax: 500ms, timeout: 1s}",
        "8:38: error: health.timeout: timeout 1s is longer than timeoutMax 500ms; accepted: a timeout of at most 500ms",
    ),
    (
        "health: {intervalMin: 10ms}",
        "8:23: error: health.intervalMin: the text \"10ms\" is not accepted; accepted: a duration from 100ms to 1h",
    ),
    (
        "health: {healthyThreshold: 0}",
        "8:28: error: health.healthyThreshold: the number 0 is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "health: {unhealthyThreshold: 101}",
        "8:30: error: health.unhealthyThreshold: the number 101 is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "health: {protocol: grpc}",
        "8:20: error: health.protocol: grpc is not supported yet; accepted: tcp, http, https, udp, sctp, none",
    ),
    (
        "health: {protocol: http, path: healthz}",
        "8:32: error: health.path: the text \"healthz\" is not accepted; accepted: a path such as /healthz, at most 1024 bytes",
    ),
    (
        "health: {passive: {failures: 101}}",
        "8:30: error: health.passive.failures: the number 101 is not accepted; accepted: a whole number from 0 to 100",
    ),
    (
        "health: {passive: {retries: 4}}",
        "8:29: error: health.passive.retries: the number 4 is not accepted; accepted: a whole number from 0 to 3",
    ),
    (
        "health: {passive: {setAside: 500ms}}",
        "8:30: error: health.passive.setAside: the text \"500ms\" is not accepted; accepted: a duration from 1s to 1h",
    ),
    (
        "health: {passive: {maxShare: 0}}",
        "8:30: error: health.passive.maxShare: the number 0 is not accepted; accepted: a whole number from 1 to 100",
    ),
    (
        "health: {failOpen: maybe}",
        "8:20: error: health.failOpen: the text \"maybe\" is not accepted; accepted: true or false",
    ),
    (
        "health: {protocol: ping}",
        "8:20: error: health.protocol: the text \"ping\" is not accepted; accepted: tcp, http, https, udp, sctp, none",
    ),
    (
        "announce: {bgp: {asn: 64512}}",
        "8:17: error: announce.bgp.peers is missing; accepted: at least one peer",
    ),
    (
        "announce: {bgp: {asn: 0, peers: [{address: 10.0.0.9, asn: 2, ebgpMultihop: 2}]}}",
        "8:23: error: announce.bgp.asn: the number 0 is not accepted; accepted: a whole number from 1 to 4294967294",
    ),
    (
        "announce: {bgp: {asn: 1, peers: [{address: fe80::1, asn: 2}]}}",
        "8:44: error: announce.bgp.peers[0].address: fe80::1 is a link-local address; accepted: a unicast address of a router",
    ),
    (
        "announce: {bgp: {asn: 1, peers: [{address: 10.0.0.9, ebgpMultihop: 2, asn: 2, communities: ['1:2:3:4']}]}}",
        "8:93: error: announce.bgp.peers[0].communities[0]: the text \"1:2:3:4\" is not accepted; accepted: a community such as 65000:100, a large one such as 65000:1:2, or one of no-export, no-advertise, no-export-subconfed, graceful-shutdown",
    ),
    (
        "announce: {bgp: {asn: 1, peers: [{address: 10.0.0.9, asn: 2}]}}",
        "8:44: error: announce.bgp.peers[0].address: 10.0.0.9 is not on-link, and ebgpMultihop is 0; accepted: an address in a network of dataplane.interfaces, or ebgpMultihop of at least 1",
    ),
    (
        "announce: {kernelRoutes: {table: 0}}",
        "8:34: error: announce.kernelRoutes.table: the number 0 is not accepted; accepted: a whole number from 1 to 4294967295",
    ),
    (
        "announce: {l2: {interfaces: []}}",
        "8:17: error: unknown key \"interfaces\" in announce.l2; accepted: mode, lease, vrrp",
    ),
    (
        "announce: {l2: {mode: always-on}}",
        "8:23: error: announce.l2.mode: the text \"always-on\" is not accepted; accepted: always, lease, vrrp, off",
    ),
    (
        "announce: {l2: {lease: {takeover: 2s}}}",
        "8:35: error: announce.l2.lease.takeover: the text \"2s\" is not accepted; accepted: a duration from 5s to 5m",
    ),
    (
        "announce: {l2: {vrrp: {groups: [a, a]}}}",
        "8:36: error: announce.l2.vrrp.groups[1]: a is listed twice; accepted: each group once",
    ),
    (
        "announce: {l2: {vrrp: {fifo: vrrp.fifo}}}",
        "8:30: error: announce.l2.vrrp.fifo: the text \"vrrp.fifo\" is not accepted; accepted: an absolute path of 1 to 4095 bytes",
    ),
    (
        "announce: {l2: {mode: lease}}",
        "8:23: error: announce.l2.mode: Leases need an API server, but the source is a directory; accepted: source.kubernetes, or one of the modes always, vrrp and off",
    ),
    (
        "admin: {socket: ''}",
        "8:17: error: admin.socket: the text \"\" is not accepted; accepted: a path of 1 to 107 bytes",
    ),
    (
        "flowSharing: {listen: '[::ffff:192.0.2.4]:7'}",
        "8:23: error: flowSharing.listen: [::ffff:192.0.2.4]:7 has an IPv4-mapped IPv6 address; accepted: 192.0.2.4:7",
    ),
    (
        "admin: {events: {keep: 7}}",
        "8:24: error: admin.events.keep: the number 7 is not accepted; accepted: a whole number from 100 to 100000",
    ),
    (
        "admin: {listen: '9469'}",
        "8:17: error: admin.listen: the text \"9469\" is not accepted; accepted: an address and port such as 127.0.0.1:9469 or [::]:9469, or \"\" for none",
    ),
    (
        "admin: {healthz: 127.0.0.1:9469}",
        "8:18: error: admin.healthz: 127.0.0.1:9469 is taken by admin.listen; accepted: another address or port",
    ),
    (
        "admin: {listen: 0.0.0.0:10356}",
        "8:17: error: admin.listen: 0.0.0.0:10356 is taken by admin.healthz, whose default is 0.0.0.0:10356; accepted: another address or port",
    ),
    (
        "admin: {listen: '[::]:9000', healthz: 127.0.0.1:9000}",
        "8:39: error: admin.healthz: 127.0.0.1:9000 is taken by admin.listen; accepted: another address or port",
    ),
    ("---\nkind: X", "9:1: error: the file has a second document; accepted: one GatewayConfig in each file"),
];

#[test]
fn each_fault_names_its_location_and_what_is_accepted() {
    let mut wrong = String::new();
    for (appended, expected) in FAULTS {
        let loaded = read(&format!("{BASE}{appended}\n"));
        assert!(loaded.config.is_none(), "{appended}");
        let errors: Vec<String> = loaded.report.errors().map(ToString::to_string).collect();
        if errors != [format!("gateway.yaml:{expected}")] {
            wrong.push_str(&format!("{appended}\n  want {expected}\n   got {errors:#?}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_head_of_the_file_is_checked() {
    assert_eq!(
        lines("kind: Gateway\n")[..2],
        [
            "gateway.yaml:1:1: error: apiVersion is missing; accepted: tidegate.dev/v1alpha1",
            "gateway.yaml:1:7: error: kind: the text \"Gateway\" is not accepted; accepted: GatewayConfig",
        ]
    );
    assert_eq!(
        lines("# nothing\n"),
        [
            "gateway.yaml:1:1: error: the file contains no configuration; accepted: a document with apiVersion: tidegate.dev/v1alpha1 and kind: GatewayConfig"
        ]
    );
    assert_eq!(
        lines("- a\n"),
        ["gateway.yaml:1:1: error: a list is not accepted; accepted: a mapping of keys to values"]
    );
}

#[test]
fn both_sources_at_once_are_refused() {
    let text = format!("{BASE}source: {{directory: {{}}, kubernetes: {{}}}}\n");
    let errors: Vec<String> = read(&text).report.errors().map(|e| e.what.clone()).collect();
    assert!(errors.contains(&"source: both directory and kubernetes are set".to_owned()), "{errors:?}");
}

#[test]
fn all_faults_of_a_file_are_in_one_report_and_the_source_is_still_known() {
    let text = format!(
        "{BASE}  cores: [x]\nhealth: {{interval: 1}}\nadmin: {{socet: /a}}\nsource: {{directory: {{path: m}}}}\n"
    );
    let loaded = read(&text);
    let places: Vec<_> = loaded.report.errors().filter_map(|e| e.location.as_ref()).map(|l| l.line).collect();
    assert_eq!(places, [8, 9, 10]);
    assert!(loaded.config.is_none());
    let Some(SourceConfig::Directory(directory)) = loaded.source else { panic!("not a directory") };
    assert_eq!((directory.path, directory.watch), ("/etc/tidegate/m".into(), true));
}

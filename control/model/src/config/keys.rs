//! Describes every key of the configuration. `docs/configuration.md` is generated from this table.
//!
//! Tests fail if the decoders read a key that is not in this table, or if the table has a key that no decoder reads.
//! The tests also decode a configuration with each default and each example, so that type, default and example stay
//! correct.

/// The value of a key that a configuration does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDefault {
    /// None: the key is required.
    Required,
    /// This value, in YAML.
    Value(&'static str),
    /// The value depends on something else, which this text describes.
    Words(&'static str),
}

/// When a change of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// On SIGHUP.
    Reload,
    /// On the next start. A reload is refused if the key has changed, and the error names the key.
    Restart,
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its path, such as `dataplane.interfaces[].mtu`; `[]` stands for each item of a list.
    pub path: &'static str,
    /// What is accepted, in words.
    pub kind: &'static str,
    /// The value when the key is absent.
    pub default: KeyDefault,
    /// A valid value in YAML other than the default. `None` if only one value is valid, or if valid values are files.
    pub example: Option<&'static str>,
    /// When a change takes effect.
    pub change: Change,
    /// What the key does.
    pub meaning: &'static str,
}

const fn key(
    path: &'static str,
    kind: &'static str,
    default: KeyDefault,
    example: &'static str,
    change: Change,
    meaning: &'static str,
) -> Key {
    Key { path, kind, default, example: Some(example), change, meaning }
}

const fn fixed(path: &'static str, kind: &'static str, default: KeyDefault, meaning: &'static str) -> Key {
    Key { path, kind, default, example: None, change: Change::Restart, meaning }
}

const fn of_file(path: &'static str, kind: &'static str, meaning: &'static str) -> Key {
    Key { path, kind, default: Words("none"), example: None, change: Reload, meaning }
}

use Change::{Reload, Restart};
use KeyDefault::{Required, Value, Words};

/// Every key, in the order of the document. The first part of a path is the section.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    fixed("apiVersion", "`tidegate.dev/v1alpha1`", Required, "The version of this format."),
    fixed("kind", "`GatewayConfig`", Required, "The kind of this document."),
    key("metadata.name", "name of a-z, 0-9, - and .", Value("gateway"), "edge-1", Restart,
        "The gateway's name in logs, events and its `GatewayStatus`. Gateways that use the same API server need different names."),
    key("metadata.labels", "labels", Value("{}"), "{rack: r1}", Reload,
        "Labels of the gateway, by which pools select the gateways that announce their addresses ([layer2.md](layer2.md#gateway-groups))."),
    key("node.name", "text", Value("\"\""), "node-a", Reload,
        "The name of this machine's Node object, if the gateway runs on a node of the cluster. Endpoints on this node are local."),
    key("node.zone", "text", Value("\"\""), "zone-1", Reload,
        "The zone of this gateway, which decides which topology hints of endpoints apply. `\"\"`: the zone of `node.name`, by the label `topology.kubernetes.io/zone` of its Node object."),

    key("dataplane.cores", "1 to 64 core numbers", Value("[1]"), "[2, 3]", Restart,
        "Dedicated CPU cores, one worker each."),
    key("dataplane.idle", "`poll`, `adaptive`", Words("`poll`; `adaptive` on a machine with fewer than 4 cores"), "poll", Restart,
        "What a worker does when no packets arrive. `poll`: poll again at once; latency is lowest and the core is always busy. `adaptive`: sleep, for longer each time."),
    key("dataplane.memory.hugepages", "boolean", Value("true"), "false", Restart, "Allocate packet memory from hugepages."),
    key("dataplane.memory.sizeMiB", "64 to 1048576", Value("1024"), "512", Restart, "Packet memory of DPDK, in MiB."),
    key("dataplane.flowTable.entriesPerCore", "1024 to 268435456", Value("1048576"), "65536", Restart,
        "The size of each flow table of each worker, in flows ([nat.md](nat.md))."),
    key("dataplane.flowTable.servicePercent", "1 to 100", Value("50"), "40", Restart,
        "The largest share of a full flow table that one service port may use, in percent. 100 means no limit."),
    key("dataplane.flowTable.directory", "absolute path, or `\"\"`", Value("/run/tidegate/flows"), "\"\"", Restart,
        "The directory that keeps the flow tables while the process restarts ([restart.md](restart.md)). It must be on tmpfs; on \
         another file system, and with `\"\"`, flows end with the process. Each gateway uses a subdirectory with its \
         name."),
    key("dataplane.interfaces[].name", "1 to 32 letters, digits, -, _ and .", Required, "inside", Restart,
        "The name of the interface in metrics and messages. It must be unique."),
    key("dataplane.interfaces[].device", "DPDK vdev with arguments, or PCI address", Required, "\"0000:3b:00.0\"", Restart,
        "The device. Only one gateway can use it. For `net_af_packet`, Tidegate sets up rings for datagrams of up to 64 KiB \
         (64 MiB of kernel memory for each worker) unless the arguments contain `framesz` or `blocksz`. The kernel reassembles \
         fragmented IPv4 datagrams before the ring, so smaller rings lose them."),
    key("dataplane.interfaces[].addresses", "list of addresses with prefix length", Value("[]"), "[\"192.0.2.2/24\"]", Restart,
        "The gateway's own addresses on this interface, with the prefix lengths of their on-link networks. The kernel has these addresses on the tap \
         `tg-NAME` (or `tg-NAME-2` if that name is taken)."),
    key("dataplane.interfaces[].mac", "link address", Words("the link address of the device"),
        "\"02:00:00:00:00:02\"", Restart,
        "The link address to use instead of the device's."),
    key("dataplane.interfaces[].mtu", "576 to 9216; from 1280 with IPv6", Value("1500"), "9000", Restart,
        "The largest IP packet, in bytes."),
    key("dataplane.interfaces[].vlan", "1 to 4094", Words("untagged"), "100", Restart, "The 802.1Q tag of every frame."),
    key("dataplane.routes[].to", "CIDR", Required, "\"198.51.100.0/24\"", Reload, "A destination that is not on-link. Each destination may appear only once."),
    key("dataplane.routes[].via", "address on-link", Required, "\"10.9.0.2\"", Reload,
        "The next hop of the route. Tidegate also installs the route in the kernel, on the taps."),
    key("dataplane.neighbors[].ip", "address", Required, "\"10.9.0.2\"", Reload,
        "A neighbour with a fixed link address. The link addresses of other neighbours are resolved with ARP or neighbour discovery."),
    key("dataplane.neighbors[].mac", "link address", Required, "\"02:00:00:00:00:09\"", Reload,
        "The link address of this neighbour. The gateway sends packets to it, and adds it to the kernel's neighbour \
         table for the tap. It queries the neighbour every 15 s, and reports if the neighbour answers with a different \
         address."),
    key("dataplane.snatAddresses", "list of addresses", Value("[]"), "[\"192.0.2.3\"]", Reload,
        "Source addresses of packets to backends in mode `fullnat`. The network must route them to the gateway, and no other host may have one: the gateway answers ARP and neighbour discovery for them. Mode `fullnat` needs at least one for each address family."),
    key("dataplane.gateway.prefixes", "list of CIDRs", Value("[]"), "[\"10.9.1.0/24\"]", Reload,
        "The networks of backends whose default route leads to this gateway. It forwards or refuses traffic from them; traffic from other sources goes \
         to the kernel ([nat.md](nat.md#traffic-that-backends-originate)). Each must be in a network of an interface or of a route other than a default route."),
    key("dataplane.gateway.forward", "`refuse`, `routes`", Value("refuse"), "routes", Reload,
        "What happens to traffic from `dataplane.gateway.prefixes`. `refuse`: it is answered with \"administratively prohibited\". `routes`: it is \
         forwarded by `dataplane.routes`."),
    key("dataplane.gateway.masquerade", "list of CIDRs", Value("[]"), "[\"10.9.1.0/24\"]", Reload,
        "The parts of `dataplane.gateway.prefixes` whose traffic to other networks leaves with one of \
         `dataplane.snatAddresses` as its source, so that answers return through the gateway \
         ([nat.md](nat.md#masquerade)). Needs `dataplane.gateway.forward: routes`, and a SNAT address of the same \
         family. When a network or an address is removed, its flows end."),
    key("dataplane.tunnelSource", "one address or prefix of each family (IPv4 /24 to /32, IPv6 /48 to /128)",
        Words("the first interface address of each family"), "[\"10.9.0.7\"]", Reload,
        "The outer source address of tunnels, which no other host may have. With a prefix, each flow uses one address of it ([tunnels.md](tunnels.md))."),
    key("dataplane.tunnelPeers", "list of at most 64 addresses", Value("[]"), "[\"10.9.0.8\"]", Reload,
        "Other gateways that send packets through tunnels to an address of this gateway. The inner packets are served as if they had arrived without a tunnel \
         ([tunnels.md](tunnels.md#packets-from-other-gateways))."),
    key("dataplane.oversized", "`fragment`, `answer`", Value("fragment"), "answer", Reload,
        "What happens to an IPv4 packet without DF that does not fit the path. `fragment`: the gateway fragments it, at most 100,000 packets a second for each \
         worker. `answer`: as for a packet with DF, the sender receives \"fragmentation needed\", and the packet is dropped."),
    key("dataplane.routersAsClients", "boolean", Value("false"), "true", Reload,
        "Serve clients whose source address is the next hop of a default route. Set this behind routers that masquerade. With `false`, their new flows are dropped with the reason `bad_source`."),
    key("dataplane.unknownFlows", "`reset`, `drop`", Value("reset"), "drop", Reload,
        "How the gateway answers a TCP segment of an unknown connection in modes `nat` and `fullnat`. `reset`: with a reset, so that no client hangs after a restart. `drop`: not at all."),

    key("source.directory.path", "path, relative to this file", Value("manifests"), "objects", Restart,
        "A directory with Kubernetes YAML files. Set either `source.directory` or `source.kubernetes`. Without either, this directory is the source."),
    key("source.directory.watch", "boolean", Value("true"), "false", Restart,
        "Read the files again when they change. With `false`, they are read again on SIGHUP only."),
    key("source.directory.lossGrace", "duration, 0s to 168h", Value("1m"), "5s", Restart,
        "How long the objects of a file are kept after the file becomes empty or unreadable, or is replaced by something that is not a file, or its file system is unmounted. The objects of a deleted file are removed at once."),
    key("source.directory.stateDirectory", "path, or `\"\"` for none", Value("/var/lib/tidegate"), "\"\"", Restart,
        "Where the gateway saves the addresses of Services and the drains by operators, so that both survive a restart. \
         If it cannot save them, `tidegate status` shows `DEGRADED`, and the gateway tries again. Copies of the lists of `protection` \
         are saved here too ([limits.md](limits.md#lists-of-sources))."),
    key("source.directory.endpointSlicesMiB", "1 to 65536", Value("512"), "1024", Restart,
        "The same limit as `source.kubernetes.endpointSlicesMiB`, for objects that are read from files."),
    key("source.kubernetes.kubeconfig", "path, relative to this file", Value("\"\""), "kubeconfig", Restart,
        "The kubeconfig for the API server. `\"\"`: the first that exists of `$KUBECONFIG`, `~/.kube/config` and the Pod's service account."),
    key("source.kubernetes.loadBalancerClass", "class name", Value("tidegate.dev/gateway"), "example.com/lb", Restart,
        "The gateway serves Services with this `spec.loadBalancerClass`."),
    key("source.kubernetes.default", "boolean", Value("false"), "true", Restart, "Also serve Services without a class."),
    key("source.kubernetes.apiLossGrace", "duration, 0s to 168h", Value("5m"), "90s", Restart,
        "How long the gateway keeps its objects if the API server returns from an outage without them, or with older \
         versions of them. Deletions that a watch reports, and objects that were created again under the same name, \
         take effect at once."),
    key("source.kubernetes.podWeights", "boolean", Value("false"), "true", Restart,
        "Honour the annotation `tidegate.dev/weight` of Pods. This needs a watch on the metadata of all Pods, and the RBAC rules in `deploy/kubernetes/pod-weights`."),
    key("source.kubernetes.leaseNamespace", "namespace", Value("tidegate-system"), "edge", Restart,
        "The namespace of the Lease `tidegate`, with which the gateways elect a leader. It must be the same for all \
         gateways. If you change the namespace, grant the accounts of the gateways `get`, `create` and `update` of \
         leases in it."),
    key("source.kubernetes.stateDirectory", "path, or `\"\"` for none", Value("/var/lib/tidegate"), "\"\"", Restart,
        "Where the gateway saves the latest objects, and what operators have drained. It uses the saved objects if the API \
         server is down when the gateway starts. If it cannot save them, `tidegate status` shows `DEGRADED`, and the gateway tries again. \
         Copies of the lists of `protection` are saved here too ([limits.md](limits.md#lists-of-sources))."),
    key("source.kubernetes.endpointSlicesMiB", "1 to 65536", Value("512"), "1024", Restart,
        "Memory for the EndpointSlices of all namespaces together, in MiB. An endpoint counts as 512 bytes plus twice the length of its \
         texts. When the memory is full, namespaces have equal shares of it. In a namespace above its share, the gateway does not keep the \
         slices of the newest Services, and does not program these Services (`LimitExceeded`)."),

    key("gatewayApi.enabled", "`auto`, `true`, `false`", Value("auto"), "true", Restart,
        "Read the objects of the Gateway API: GatewayClass, Gateway, ListenerSet, TCPRoute, UDPRoute and ReferenceGrant. `auto`: those that the API server has a \
         definition of, also if it gets one later. `true`: a missing definition is an error in `tidegate status`. `false`: none of them; delete Gateways first, \
         because their addresses count as free and their finalizers stay. All gateways need the same value."),

    key("services.defaults.forwarding", "`dsr-l2`, `dsr-ipip`, `dsr-gue`, `dsr-gre`, `dsr-geneve`, `dsr-dscp`, `nat`, `fullnat`", Value("fullnat"), "nat", Reload,
        "The forwarding mode of Services without an annotation for it."),
    key("services.defaults.forwardingLocal", "`dsr-l2`, `dsr-ipip`, `dsr-gue`, `dsr-gre`, `dsr-geneve`, `dsr-dscp`, `nat`, `fullnat`", Words("none"), "nat", Reload,
        "The mode that replaces `fullnat` for Services with `externalTrafficPolicy: Local`, a policy that keeps clients' addresses. \
         Without this key, and for a Service that the mode cannot serve, the gateway uses `fullnat` and warns (`ClientAddressLost`). \
         The value `fullnat` disables the warning."),
    key("services.defaults.gueVariant", "`0`, `1`", Value("1"), "0", Reload,
        "The format of `dsr-gue`. `1`: the packet follows the UDP header directly. `0`: a GUE header of 4 bytes is between them ([tunnels.md](tunnels.md))."),
    key("services.defaults.guePort", "1 to 65535", Value("6080"), "5555", Reload,
        "The UDP destination port of `dsr-gue`, at which backends listen."),
    key("services.defaults.greKey", "0 to 4294967295, or `none`", Value("none"), "7", Reload,
        "The key of `dsr-gre` (RFC 2890). `none`: the header has no key."),
    key("services.defaults.genevePort", "1 to 65535", Value("6081"), "5556", Reload,
        "The UDP destination port of `dsr-geneve`, at which backends listen."),
    key("services.defaults.geneveVni", "0 to 16777215", Value("0"), "7", Reload,
        "The virtual network identifier of `dsr-geneve` (RFC 8926)."),
    key("services.defaults.target", "`pod`, `node`", Value("pod"), "node", Reload,
        "Whether backends are the endpoints or their nodes. With `node` in DSR modes, packets reach the node with VIP and port unchanged, and kube-proxy on the node serves them as they are. \
         With `node` in NAT modes, they reach the node port."),
    key("services.defaults.scheduler", "`rendezvous`, `maglev`, `wrr`, `lc`, `sed`, `nq`, `sh`, `dh`", Value("rendezvous"), "maglev", Reload,
        "How the backend of a new flow is chosen ([selection.md](selection.md))."),
    key("services.defaults.hash", "`flow`, `client`", Value("flow"), "client", Reload,
        "The hash input of `rendezvous` and `maglev`. `flow`: the 5-tuple. `client`: the client's address, so that a client reaches one backend on all \
         ports of a Service ([selection.md](selection.md#by-flow-or-by-client))."),
    key("services.defaults.tableSize", "prime from 251 to 655373", Value("65537"), "65521", Reload,
        "The number of slots in a Maglev table. It has an effect with `maglev` only."),
    key("services.defaults.drainTimeout", "duration, 0s to 24h", Value("300s"), "1m30s", Reload,
        "How long existing flows continue after their backend or their Service is removed."),
    key("services.defaults.slowStart", "`0s`, or a duration from 10s to 1h", Value("0s"), "30s", Reload,
        "How long a backend that has become ready takes to get its full share of new flows, in ten steps. `0s`: it gets the full share at once ([selection.md](selection.md#slow-start))."),
    key("services.defaults.noEndpoints", "`reject`, `drop`", Value("reject"), "drop", Reload,
        "How the gateway answers clients of a Service without backends. `reject`: with a TCP reset or ICMP \"port unreachable\". `drop`: not at all."),
    key("services.defaults.flowTracking", "`always`, `on-change`", Value("always"), "on-change", Reload,
        "Which flows the gateway remembers in DSR modes with `rendezvous`. `always`: all. `on-change`: only the flows \
         that a change of the backends would move, and only for the drain timeout after the change \
         ([selection.md](selection.md#flows-in-flux))."),
    key("services.defaults.mssClamp", "`off`, `path`, or 536 to 65495", Value("off"), "1400", Reload,
        "The limit for the maximum segment size in TCP SYNs, in tunnel and NAT modes. `path`: what fits the links and the path. A number: at most that \
         many bytes, and no more than `path` ([tunnels.md](tunnels.md#the-segment-size-of-tcp))."),
    key("services.nodePortAddresses", "list of CIDRs", Value("[]"), "[\"192.0.2.0/24\"]", Restart,
        "The gateway serves node ports and health-check node ports on the addresses of `dataplane.interfaces` in these networks. If the list is empty, it \
         serves node ports on none of its addresses, and health-check node ports on all addresses of its host."),
    key("services.healthCheckNodePortNetworks", "list of CIDRs", Value("[]"), "[\"192.0.2.0/24\"]", Restart,
        "Health-check node ports answer hosts in these networks, and loopback addresses; connections of other hosts \
         are closed. If the list is empty, they answer every host."),
    key("services.unservedPorts", "`reject`, `drop`", Value("reject"), "drop", Reload,
        "How the gateway answers packets to a port of a VIP or of a cluster IP that it serves, when no Service has that port."),
    key("services.ownClusterIPs", "boolean", Value("false"), "true", Reload,
        "Also serve the `clusterIPs` of Services. You must route the service network to the gateway."),
    key("services.podRoutes", "`route`, `node`", Value("route"), "node", Reload,
        "How the gateway reaches Pods. `route`: by `dataplane.routes`. `node`: through the node whose `spec.podCIDRs` contain the Pod's address."),
    key("services.compat",
        "list of `alibaba`, `aws`, `azure`, `baidu`, `cilium`, `gcp`, `ibm`, `kube-vip`, `metallb`, `openstack`, `tke` (or `tencent`)",
        Value("[]"), "[metallb]", Reload, "Load balancers whose annotations the gateway also honours ([compat.md](compat.md))."),
    key("services.sourceRangesOtherFamily", "`deny`, `allow`", Value("deny"), "allow", Reload,
        "If the source ranges of a dual-stack Service name one address family only: whether to deny or allow clients of the other family."),

    key("protection.deny.prefixes", "list of CIDRs and addresses", Value("[]"), "[198.51.100.0/24]", Reload,
        "Sources that the gateway refuses for all Services and VIPs (`source_denied`), without an answer \
         ([limits.md](limits.md#lists-of-sources)). The longest prefix of `deny` and `allow` decides. When a source \
         becomes refused, its known flows end."),
    key("protection.deny.files", "list of paths, relative to this file", Value("[]"), "[/dev/null]", Reload,
        "Files with more sources: an address or a prefix in each line; `#` or `;` starts a comment. They are read again with the configuration. \
         Together, the lists have at most 1000000 prefixes."),
    key("protection.allow.prefixes", "list of CIDRs and addresses", Value("[]"), "[198.51.100.7]", Reload,
        "Exceptions to `deny`: sources in these prefixes are admitted unless `deny` has a longer prefix for them. `newConnections` does not limit them."),
    key("protection.allow.files", "list of paths, relative to this file", Value("[]"), "[/dev/null]", Reload,
        "Files with more sources, as for `deny`."),
    key("protection.newConnections.perSecond", "1 to 10000000", Words("no limit"), "100", Reload,
        "New flows per second that each source prefix may create, over all Services and workers. Flows above this rate are dropped (`source_connection_rate`)."),
    key("protection.newConnections.burst", "1 to 10000000", Words("`perSecond`"), "500", Reload,
        "The number of new flows that a source prefix may create in a burst."),
    key("protection.newConnections.ipv4Prefix", "8 to 32", Value("32"), "24", Reload,
        "The prefix length by which IPv4 sources are grouped: the limit is per group."),
    key("protection.newConnections.ipv6Prefix", "16 to 64", Value("64"), "56", Reload,
        "The prefix length by which IPv6 sources are grouped: the limit is per group."),
    key("protection.synCookies", "`off`, `auto`, `always`", Value("auto"), "always", Reload,
        "When the gateway answers a new TCP connection of a `nat` or `fullnat` Service with a SYN cookie and creates \
         no flow yet ([floods.md](floods.md#syn-cookies)). `off`: never. `auto`: while a worker has many incomplete \
         handshakes of the service port. `always`: for every connection."),

    key("selectionKey.value", "32 hexadecimal digits", Words("none"), "000102030405060708090a0b0c0d0e0f", Reload,
        "A secret that influences the choice of a backend, so that clients cannot choose their backend ([selection.md](selection.md#a-secret-for-the-choice)). \
         All gateways of a fleet need the same secret. A change redistributes new flows; known flows stay."),
    of_file("selectionKey.file", "path, relative to this file",
        "A file that contains the secret instead, such as a mounted Secret. It is read again with the configuration."),

    key("pools[].name", "name of a-z, 0-9, - and .", Required, "private", Reload, "The name of the pool. It must be unique."),
    key("pools[].addresses", "list of CIDRs, ranges `a-b` and addresses", Required, "[\"203.0.113.64/28\"]", Reload,
        "The addresses that Services can get. Every address of a CIDR is used, including the first and the last."),
    key("pools[].autoAssign", "boolean", Value("true"), "false", Reload, "Also give addresses to Services that do not name a pool."),
    key("pools[].externalIPs", "boolean", Value("false"), "true", Reload, "Honour `spec.externalIPs` that are addresses of this pool."),
    key("pools[].disabled", "boolean", Value("false"), "true", Reload, "Assign no new addresses from this pool."),
    key("pools[].namespaceSelector", "label selector", Words("all"), "{matchLabels: {team: a}}", Reload,
        "Only Services in these namespaces can get addresses of this pool."),
    key("pools[].serviceSelector", "label selector", Words("all"), "{matchLabels: {tier: web}}", Reload,
        "Only these Services can get addresses of this pool."),
    key("pools[].quotaPerNamespace", "1 to 4294967295", Words("no limit"), "3", Reload,
        "The number of addresses that one namespace can use, including external IPs."),
    key("pools[].shareAcrossNamespaces", "boolean", Value("false"), "true", Reload,
        "Services of different namespaces may share an address if they have the same sharing key."),
    key("pools[].forceRelease", "boolean", Value("false"), "true", Reload,
        "Take back addresses that the pool would no longer assign. With `false`, Services keep the addresses that they have ([addresses.md](addresses.md))."),
    key("pools[].gatewaySelector", "label selector", Words("all"), "{matchLabels: {rack: r1}}", Reload,
        "Only gateways with these `metadata.labels` answer for the addresses and announce them. Other gateways still forward packets that arrive for the addresses ([layer2.md](layer2.md#gateway-groups))."),
    key("pools[].announce", "list of `l2` and `bgp`", Value("[l2, bgp]"), "[bgp]", Reload,
        "How the addresses are announced, if `announce` enables it. `l2`: by answers to ARP and neighbour discovery. `bgp`: by BGP. `[]`: not at all, so routers need static routes."),
    key("pools[].labels", "labels", Value("{}"), "{scope: internal}", Reload,
        "Labels of the pool, which annotations of Services can select. `scope: internal` marks a pool of internal addresses."),
    key("pools[].bgp.communities", "list of communities", Value("[]"), "[\"64512:100\"]", Reload,
        "Communities of the routes to this pool's addresses, in addition to the communities of the peer ([bgp.md](bgp.md#what-a-route-carries))."),
    key("pools[].bgp.localPref", "0 to 4294967295", Words("as the peer's"), "200", Reload, "The local preference of these routes. Services override it."),
    key("pools[].bgp.med", "0 to 4294967295", Words("as the peer's"), "10", Reload, "The MED of these routes. Services override it."),
    key("pools[].bgp.prepends", "0 to 10", Words("as the peer's"), "3", Reload, "How many times the gateway's AS number is prepended. Services override it."),
    key("pools[].bgp.aggregationLength", "8 to 32", Words("32"), "24", Reload,
        "IPv4 addresses of this pool are announced as the prefixes of this length that contain them."),
    key("pools[].bgp.aggregationLengthV6", "16 to 128", Words("128"), "64", Reload, "The prefix length for IPv6 addresses."),

    key("health.protocol", "`tcp`, `http`, `https`, `udp`, `sctp`, `none`", Value("tcp"), "http", Reload,
        "How backends are checked ([control/README.md](../control/README.md#health-checks))."),
    key("health.path", "path, at most 1024 bytes", Value("/"), "/healthz", Reload, "The path that `http` and `https` checks request."),
    key("health.interval", "duration, 100ms to 1h", Value("2s"), "5s", Reload, "The time from one check of a backend to the next."),
    key("health.timeout", "duration, 10ms to the interval", Value("1s"), "500ms", Reload,
        "How long one check may take before it counts as failed. The default is lowered to the interval or to `health.timeoutMax` if one of them is shorter."),
    key("health.healthyThreshold", "1 to 100", Value("2"), "4", Reload, "A backend becomes healthy after this many successful checks in a row."),
    key("health.unhealthyThreshold", "1 to 100", Value("3"), "5", Reload, "A backend becomes unhealthy after this many failed checks in a row."),
    key("health.dsrDestination", "`vip`, `backend`", Value("vip"), "backend", Reload,
        "Which address checks use in DSR modes. `vip`: the VIP, as in packets of clients. `backend`: the backend's own address."),
    key("health.intervalMin", "duration, 100ms to 1h", Value("100ms"), "1s", Reload,
        "The shortest interval that a Service can set by annotation. A shorter interval is raised to this one, and the Service gets an event."),
    key("health.timeoutMax", "duration, 10ms to 1h", Value("1m"), "10s", Reload,
        "The longest timeout that a Service can set by annotation. A longer timeout is lowered to this one, and the Service gets an event."),
    key("health.allowedNetworks", "list of CIDRs",
        Words("with `source.directory`: all networks; with `source.kubernetes`: the on-link networks of `dataplane.interfaces`, the \
               destinations of `dataplane.routes` except default routes, and the InternalIPs and `spec.podCIDRs` of the endpoint's node"),
        "[\"10.0.0.0/8\"]", Reload,
        "Only endpoints in these networks are checked. Other endpoints count as healthy, and their Service gets an event (`HealthCheckNotAllowed`)."),
    key("health.damping", "boolean", Value("true"), "false", Reload, "A backend that flaps needs more successful checks before it becomes healthy again."),
    key("health.failOpen", "boolean", Value("true"), "false", Reload,
        "If all backends of a service port are unhealthy at the same time, keep using all of them."),
    key("health.passive.failures", "0 to 100", Value("3"), "5", Reload,
        "With TCP in the modes `nat` and `fullnat`, a backend that refuses or ignores this many new connections in a row is set aside \
         ([nat.md](nat.md#backends-that-refuse-or-ignore-connections)). With 0, no backend is set aside."),
    key("health.passive.retries", "0 to 3", Value("2"), "1", Reload,
        "How many other backends are tried for a connection that a backend refuses, before the client sees an error."),
    key("health.passive.setAside", "duration, 1s to 1h", Value("10s"), "30s", Reload,
        "How long a backend is set aside. Then one new connection tries it."),
    key("health.passive.maxShare", "1 to 100", Value("50"), "30", Reload,
        "The largest share of the backends of a service port that may be set aside at the same time, in percent."),

    key("announce.l2.mode", "`always`, `lease`, `vrrp`, `off`", Value("always"), "vrrp", Restart,
        "Which gateway answers ARP and neighbour discovery for a VIP ([layer2.md](layer2.md)). `always`: this gateway, for all VIPs. `lease`: the owner of the VIP's Lease, \
         which the gateways at one API server share. `vrrp`: the gateway whose keepalived is the master. `off`: none, because routes lead to the VIPs."),
    key("announce.l2.lease.namespace", "name of a namespace", Value("tidegate-system"), "edge", Restart,
        "With `lease`: the namespace of the Leases. All gateways need the same namespace, and permissions in it."),
    key("announce.l2.lease.takeover", "duration, 5s to 5m", Value("10s"), "20s", Restart,
        "With `lease`: the time within which another gateway takes over the VIPs of a failed gateway. A Lease is valid for \
         this time minus 2 s. A gateway that gets no response from the API server stops answering for its VIPs after \
         this time minus 3 s. All gateways need the same value."),
    key("announce.l2.lease.handBackDelay", "duration, 0s to 1h", Value("30s"), "1m", Restart,
        "With `lease`: how long a gateway must be live before it gets back the VIPs that it owned before."),
    key("announce.l2.vrrp.fifo", "absolute path", Value("/run/tidegate/vrrp.fifo"), "/run/vrrp.fifo", Restart,
        "With `vrrp`: the `notify_fifo` of keepalived. The gateway creates it."),
    key("announce.l2.vrrp.groups", "list of 1 to 16 names", Value("[tidegate]"), "[tidegate-a, tidegate-b]", Restart,
        "With `vrrp`: the names of the `vrrp_instance`s or `vrrp_sync_group`s of keepalived over which the VIPs are spread. All gateways need the same list."),
    key("announce.l2.vrrp.heartbeatTimeout", "duration, 1s to 1m", Value("3s"), "2s", Restart,
        "With `vrrp`: if keepalived has not run `tidegate vrrp-check` for this long, the gateway owns no VIP."),
    key("announce.kernelRoutes.table", "1 to 4294967295", Value("179"), "100", Reload,
        "The routing table of the kernel in which the gateway installs `blackhole` routes to the VIPs that it \
         announces. A routing daemon can redistribute these routes. `announce.kernelRoutes: {}` enables this with the \
         defaults ([bgp.md](bgp.md#a-routing-daemon-that-you-run)). FRR imports from the tables 1 to 252."),
    key("announce.kernelRoutes.protocol", "5 to 255", Value("179"), "201", Reload,
        "The protocol number of these routes. The gateway removes routes with this number from the table when it starts and when it ends."),
    key("announce.bgp.asn", "1 to 4294967294", Required, "64512", Reload,
        "The AS number of the gateway. With `announce.bgp`, the gateway runs a BIRD 2 of its own, which announces the VIPs ([bgp.md](bgp.md)). `announce.bgp: {}` means no BGP."),
    key("announce.bgp.routerId", "IPv4 address", Words("the first IPv4 address of `dataplane.interfaces`"), "192.0.2.2", Reload,
        "The BGP identifier. Each gateway needs a different one."),
    key("announce.bgp.peers[].address", "address", Required, "\"10.9.0.3\"", Reload, "The address of a router. Each may appear only once."),
    key("announce.bgp.peers[].asn", "1 to 4294967294", Required, "64513", Reload, "The AS number of the router."),
    key("announce.bgp.peers[].port", "1 to 65535", Value("179"), "1790", Reload, "The port on which the router listens."),
    key("announce.bgp.peers[].bfd", "boolean", Value("false"), "true", Reload,
        "Monitor the router with BFD, which detects a failure of either side faster than BGP. The router must use BFD for the gateway, too."),
    of_file("announce.bgp.peers[].passwordFile", "path, relative to this file",
        "A file with the password of the session (TCP MD5): 1 to 80 printable ASCII characters without `\"`. It is read again with the configuration."),
    key("announce.bgp.peers[].ebgpMultihop", "0 to 255", Value("0"), "2", Reload,
        "The largest number of hops to a router that is not on-link. 0: the router must be on-link."),
    key("announce.bgp.peers[].gracefulRestart", "boolean", Value("false"), "true", Reload,
        "The router keeps the routes while BIRD restarts after a failure. It also keeps them for up to 120 s after the whole gateway \
         has failed, unless BFD reports the failure ([bgp.md](bgp.md#graceful-restart))."),
    key("announce.bgp.peers[].holdTime", "duration, 3s to 65535s", Value("90s"), "9s", Reload,
        "The session ends after this time without a message. A keepalive is sent every third of this time."),
    key("announce.bgp.peers[].communities", "list of communities", Value("[]"), "[\"64512:100\", no-export]", Reload,
        "Communities of all routes to this router: `65000:100`, large ones such as `65000:1:2`, `no-export`, `no-advertise`, `no-export-subconfed`, `graceful-shutdown`."),
    key("announce.bgp.peers[].localPref", "0 to 4294967295", Words("100"), "200", Reload,
        "The local preference of routes to a router of the same AS. Pools and Services override it."),
    key("announce.bgp.peers[].med", "0 to 4294967295", Words("none"), "10", Reload,
        "The MED of routes to this router. Pools and Services override it."),
    key("announce.bgp.peers[].prepends", "0 to 10", Words("0"), "3", Reload,
        "How many times the gateway's AS number is prepended to the path of routes to this router. Pools and Services override it."),
    key("announce.bgp.peers[].families", "list of `ipv4`, `ipv6`", Words("the family of the address"), "[ipv4, ipv6]", Reload,
        "The families of VIPs that are announced to this router."),
    key("announce.bgp.aggregates", "list of CIDRs, /8 to /32 and /16 to /128", Value("[]"), "[\"203.0.113.0/28\"]", Reload,
        "Prefixes that are announced instead of the VIPs in them, as long as at least one of these VIPs would be \
         announced. Each prefix must contain an address of a pool ([bgp.md](bgp.md#aggregates))."),
    key("announce.bgp.bfdInterval", "duration, 10ms to 1m", Value("300ms"), "100ms", Reload, "The time between two BFD packets, in each direction."),
    key("announce.bgp.bfdMultiplier", "1 to 255", Value("3"), "5", Reload, "The number of missing BFD packets after which the session is down."),
    key("announce.bgp.program", "path or name", Value("bird"), "/usr/sbin/bird", Reload,
        "The program BIRD 2. A name is searched for in `PATH`, `/usr/sbin` and `/usr/local/sbin`."),

    key("drain.quiet", "duration, 1s to 1h", Value("5s"), "10s", Reload,
        "A draining gateway announces nothing and forwards packets that still arrive. When none have arrived for this time, it is drained ([fleet.md](fleet.md#drain))."),
    key("drain.stopTimeout", "duration, 0s to 1h", Words("`30s` with `announce.bgp`, `announce.kernelRoutes`, or `announce.l2.mode: lease` or `vrrp`; else `0s`"), "45s", Reload,
        "The longest time for which the gateway drains after SIGTERM. Then it stops in any case. `0s`: it does not \
         drain; `/readyz` fails, and the gateway forwards for one more second. Give the supervisor more time than this \
         (`TimeoutStopSec`, `terminationGracePeriodSeconds`)."),

    key("admin.socket", "path, at most 107 bytes", Value("/run/tidegate/tidegate.sock"), "/tmp/t.sock", Restart,
        "The Unix socket on which the daemon accepts commands. Without a state directory, a file beside the socket records what operators have drained."),
    key("admin.listen", "address and port, or `\"\"` for none", Value("\"127.0.0.1:9469\""), "\"[::]:9469\"", Restart,
        "The address of `/metrics`."),
    key("admin.healthz", "address and port, or `\"\"` for none", Value("\"0.0.0.0:10356\""), "\"\"", Restart,
        "The address of `/healthz`, `/livez`, `/readyz` and `/watchdog`."),
    key("admin.healthzNetworks", "list of CIDRs", Value("[]"), "[\"192.0.2.0/24\"]", Restart,
        "`admin.healthz` answers hosts in these networks, and loopback addresses; connections of other hosts are \
         closed. If the list is empty, it answers every host."),
    key("admin.metricsPerBackend", "boolean", Value("true"), "false", Reload,
        "Export series for each backend of each service port. Disable this if there are too many series for your scraper."),
    key("admin.page.listen", "address and port, or `\"\"` for none", Value("\"\""), "\"127.0.0.1:9470\"", Restart,
        "The address of the read-only status page for browsers ([status-page.md](status-page.md)). An address other than a loopback address needs a token."),
    of_file("admin.page.tokenFile", "path, relative to this file",
        "A file with the token that a browser must present, of 16 to 256 letters, digits, `-` and `_`. It is read again with the configuration."),
    key("admin.events.keep", "100 to 100000", Value("10000"), "500", Restart,
        "The number of [events](events.md) to keep. If there are more, the namespace with most events loses its oldest ones."),
    key("admin.events.directory", "path, or `\"\"` for none", Words("`stateDirectory` of the source"), "/var/log/tidegate", Restart,
        "The directory of the file with the last events, `NAME.events`, which is read again at the next start. `\"\"`: events are kept in memory only."),

    key("flowLog.services", "`annotated` or `all`", Value("annotated"), "all", Reload,
        "Whose flows are logged ([flow-log.md](flow-log.md)): those of Services with the annotation `tidegate.dev/flow-log`, or those of all Services that don't disable it."),
    key("flowLog.sample", "1 to 65535", Value("1"), "100", Reload,
        "One in this many flows is logged, chosen by a hash. The annotation of a Service overrides it."),
    key("flowLog.file.path", "path, relative to this file", Required, "/var/log/tidegate/flows.json", Restart,
        "The file to which the begin and the end of each logged flow are appended, as JSON lines."),
    key("flowLog.file.maxSizeMiB", "1 to 1048576", Value("100"), "10", Restart,
        "The size at which the file is renamed to `PATH.1`, which replaces the file before."),
    key("flowLog.ipfix.collector", "address and port", Required, "192.0.2.9:4739", Restart,
        "The IPFIX collector to which the begin and the end of each logged flow are sent, over UDP."),
    key("flowLog.ipfix.domain", "0 to 4294967295", Value("0"), "7", Restart,
        "The observation domain of this gateway. Choose different ones for gateways that send from the same address."),

    Key { path: "flowSharing.mode", kind: "`none`, `in-flux` or `nat`", default: Value("none"), example: None, change: Restart,
        meaning: "Which flows this gateway sends to other gateways, so that they continue there \
         ([flow-sharing.md](flow-sharing.md)). `none`: no flows. `in-flux`: the flows for which another gateway would \
         choose a different backend. `nat`: these flows, and all flows of the modes `nat` and `fullnat`. `in-flux` and \
         `nat` need a key." },
    key("flowSharing.listen", "address and port", Value("0.0.0.0:10358"), "192.0.2.2:10358", Restart,
        "The UDP socket for messages to and from other gateways. `[::]` serves both families. If the gateways discover each other \
         (`flowSharing.peers`), `0.0.0.0` or `[::]` means the first address of `dataplane.interfaces` that the socket serves."),
    key("flowSharing.peers", "list of addresses and ports", Value("[]"), "[\"192.0.2.3:10358\"]", Restart,
        "The sockets of the other gateways. The list may contain this gateway, so that all gateways can have the same list. Messages from \
         other addresses are dropped. With `source.kubernetes` and an empty list, the gateways discover each other by their `GatewayStatus`."),
    key("flowSharing.key.value", "64 hexadecimal digits", Words("none"), "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", Reload,
        "The secret by which messages are encrypted and authenticated. All gateways of a fleet need the same secret."),
    of_file("flowSharing.key.file", "path, relative to this file", "A file that contains the secret instead, such as a mounted Secret."),
    key("flowSharing.acceptKey.value", "64 hexadecimal digits", Words("none"), "1f1e1d1c1b1a191817161514131211100f0e0d0c0b0a09080706050403020100", Reload,
        "A second secret with which messages of other gateways are accepted, so that the secret of a fleet can be changed \
         ([flow-sharing.md](flow-sharing.md#change-the-key))."),
    of_file("flowSharing.acceptKey.file", "path, relative to this file", "A file that contains this secret instead."),
    key("flowSharing.rateMax", "100 to 1000000", Value("20000"), "5000", Restart,
        "How many datagrams with flows the gateway sends per second at most, to all peers together. A datagram has at \
         most 1200 bytes: about 30 flows."),

    key("selfCheck.enabled", "boolean", Value("true"), "false", Reload,
        "Periodically compare incremental results with results that are computed from scratch, in the background \
         ([troubleshooting.md](troubleshooting.md#the-log-reports-a-difference-of-an-incremental-result))."),
    key("selfCheck.interval", "duration, 1s to 24h", Value("5m"), "10m", Reload, "The time from one comparison to the next."),
    key("selfCheck.changes", "1 to 1000000", Value("1000"), "100", Reload,
        "Also start a comparison after this many incremental computations."),
];

//! Every key of the configuration, as `docs/configuration.md` has it.
//!
//! A key that the decoders read and that is missing here fails a test, and so does one that they do not read. The tests
//! also write each default and each example into a configuration, so type, default and example cannot go stale.

/// What a key is when it is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDefault {
    /// It has to be there.
    Required,
    /// This value, in YAML.
    Value(&'static str),
    /// What follows from something else, in words.
    Words(&'static str),
}

/// When a change of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// At SIGHUP.
    Reload,
    /// At the next start; a reload that finds it changed is refused, and names it.
    Restart,
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Such as `dataplane.interfaces[].mtu`; `[]` is each item of a list.
    pub path: &'static str,
    /// What is accepted, in words.
    pub kind: &'static str,
    /// What it is when it is left out.
    pub default: KeyDefault,
    /// A value in YAML that is accepted and is not the default. `None` where there is only one.
    pub example: Option<&'static str>,
    /// When a change takes effect.
    pub change: Change,
    /// What it does.
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

use Change::{Reload, Restart};
use KeyDefault::{Required, Value, Words};

/// Every key, in the order of the document. The first step of a path is the section.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    fixed("apiVersion", "`tidegate.dev/v1alpha1`", Required, "The version of this format."),
    fixed("kind", "`GatewayConfig`", Required, "The kind of this document."),
    key("metadata.name", "name of a-z, 0-9, - and .", Value("gateway"), "edge-1", Restart,
        "The gateway's name in logs, events and its `GatewayStatus`. Each gateway at one API server needs a name of its own."),
    key("node.name", "text", Value("\"\""), "node-a", Reload,
        "The cluster's name for this machine, where the gateway is also a node of the cluster. It decides which endpoints are local."),
    key("node.zone", "text", Value("\"\""), "zone-1", Reload, "The zone whose topology hints count."),

    key("dataplane.cores", "1 to 64 core numbers", Value("[1]"), "[2, 3]", Restart,
        "Dedicated CPU cores, one worker each."),
    key("dataplane.idle", "`poll`, `adaptive`", Words("`poll`; `adaptive` on a machine with fewer than 4 cores"), "poll", Restart,
        "What a worker without packets does: ask again at once (lowest latency, the core is always busy), or wait in growing steps."),
    key("dataplane.memory.hugepages", "boolean", Value("true"), "false", Restart, "Take packet memory from hugepages."),
    key("dataplane.memory.sizeMiB", "64 to 1048576", Value("1024"), "512", Restart, "Packet memory of DPDK, in MiB."),
    key("dataplane.flowTable.entriesPerCore", "1024 to 268435456", Value("1048576"), "65536", Restart,
        "Flows that each worker remembers, in each kind of table ([nat.md](nat.md))."),
    key("dataplane.flowTable.servicePercent", "1 to 100", Value("50"), "40", Restart,
        "The share of a full flow table that one service port may have. 100 is no limit."),
    key("dataplane.interfaces[].name", "1 to 32 letters, digits, -, _ and .", Required, "inside", Restart,
        "The name in metrics and messages; unique."),
    key("dataplane.interfaces[].device", "DPDK vdev with arguments, or PCI address", Required, "\"0000:3b:00.0\"", Restart,
        "The device; one gateway a device. `net_af_packet` gets rings for datagrams of up to 64 KiB (64 MiB of kernel memory for \
         each worker) unless its arguments have `framesz` or `blocksz`. With smaller rings IPv4 datagrams in fragments are lost, \
         because the kernel reassembles them first."),
    key("dataplane.interfaces[].addresses", "list of addresses with prefix length", Value("[]"), "[\"192.0.2.2/24\"]", Restart,
        "Own addresses with their on-link networks. The kernel has them on a tap `tg-NAME` (`tg-NAME-2` where that name is taken)."),
    key("dataplane.interfaces[].mac", "link address", Words("the device's own"), "\"02:00:00:00:00:02\"", Restart,
        "A link address to take over."),
    key("dataplane.interfaces[].mtu", "576 to 9216; from 1280 with IPv6", Value("1500"), "9000", Restart,
        "The largest IP packet, in bytes."),
    key("dataplane.interfaces[].vlan", "1 to 4094", Words("untagged"), "100", Restart, "The 802.1Q tag of every frame."),
    key("dataplane.routes[].to", "CIDR", Required, "\"198.51.100.0/24\"", Reload, "A destination that is not on-link; each once."),
    key("dataplane.routes[].via", "address on-link", Required, "\"10.9.0.2\"", Reload,
        "Its next hop. The kernel gets the routes on the taps too."),
    key("dataplane.neighbors[].ip", "address", Required, "\"10.9.0.2\"", Reload,
        "A neighbour whose link address is fixed. All others are resolved."),
    key("dataplane.neighbors[].mac", "link address", Required, "\"02:00:00:00:00:09\"", Reload, "Its link address."),
    key("dataplane.snatAddresses", "list of addresses", Value("[]"), "[\"192.0.2.3\"]", Reload,
        "Source addresses towards backends in mode `fullnat`, routed to the gateway; at least one of each family."),
    key("dataplane.tunnelSource", "one address or prefix of each family (IPv4 /24 to /32, IPv6 /48 to /128)",
        Words("the first interface address of each family"), "[\"10.9.0.7\"]", Reload,
        "Outer source of tunnels. From a prefix each flow gets one address ([tunnels.md](tunnels.md))."),
    key("dataplane.routersAsClients", "boolean", Value("false"), "true", Reload,
        "Serve next hops of default routes as clients too, for routers that masquerade. Otherwise their new flows are dropped as `bad_source`."),
    key("dataplane.unknownFlows", "`reset`, `drop`", Value("reset"), "drop", Reload,
        "What TCP of an unknown connection gets in modes `nat` and `fullnat`: a reset, so that no client hangs after a restart, or nothing."),

    key("source.directory.path", "path, relative to this file", Value("manifests"), "objects", Restart,
        "A directory of Kubernetes YAML. Give either `source.directory` or `source.kubernetes`; without both, the directory is the source."),
    key("source.directory.watch", "boolean", Value("true"), "false", Restart,
        "Follow changes of the files; otherwise they are read again at SIGHUP."),
    key("source.directory.lossGrace", "duration, 0s to 168h", Value("1m"), "5s", Restart,
        "How long a file keeps its objects after it was emptied, became unreadable, or is not a file any more. A deleted file loses them at once."),
    key("source.directory.stateDirectory", "path, or `\"\"` for none", Value("/var/lib/tidegate"), "\"\"", Restart,
        "Where it is recorded which Service has which addresses, so that they survive a restart. What cannot be saved is `DEGRADED` in \
         `tidegate status`, and tried again."),
    key("source.directory.endpointSlicesMiB", "1 to 65536", Value("512"), "1024", Restart,
        "As `source.kubernetes.endpointSlicesMiB`: the same objects are served from files and from an API server."),
    key("source.kubernetes.kubeconfig", "path, relative to this file", Value("\"\""), "kubeconfig", Restart,
        "How to reach the API server. `\"\"`: the first of `$KUBECONFIG`, `~/.kube/config` and the Pod's service account."),
    key("source.kubernetes.loadBalancerClass", "class name", Value("tidegate.dev/gateway"), "example.com/lb", Restart,
        "The class of the Services that the gateway serves."),
    key("source.kubernetes.default", "boolean", Value("false"), "true", Restart, "Serve Services without a class too."),
    key("source.kubernetes.apiLossGrace", "duration, 0s to 168h", Value("5m"), "90s", Restart,
        "How long objects are kept that the API server lost, or has in an older version, when it returns. A deletion that a watch \
         reports, and an object created again under the same name, count at once."),
    key("source.kubernetes.podWeights", "boolean", Value("false"), "true", Restart,
        "Honour the annotation `tidegate.dev/weight` of Pods. It needs a watch on the metadata of all Pods, and the right in `deploy/kubernetes/pod-weights`."),
    key("source.kubernetes.leaseNamespace", "namespace", Value("kube-system"), "edge", Restart,
        "Where the Lease `tidegate` is, by which gateways agree on a leader; the same for all of them."),
    key("source.kubernetes.stateDirectory", "path, or `\"\"` for none", Value("/var/lib/tidegate"), "\"\"", Restart,
        "Where the last objects are kept, to forward by when the API server is down at the start, and what operators have drained. \
         What cannot be saved is `DEGRADED` in `tidegate status`, and tried again."),
    key("source.kubernetes.endpointSlicesMiB", "1 to 65536", Value("512"), "1024", Restart,
        "Memory for the EndpointSlices of all namespaces together, in MiB; an endpoint counts as 512 bytes and twice its texts. \
         Beyond it namespaces have equal shares, and in a namespace above its share the slices of the newest Services are not kept: \
         these Services are not programmed (`LimitExceeded`)."),

    key("services.defaults.forwarding", "`dsr-l2`, `dsr-ipip`, `nat`, `fullnat`", Value("fullnat"), "nat", Reload,
        "The forwarding mode of Services that name none."),
    key("services.defaults.forwardingLocal", "`dsr-l2`, `dsr-ipip`, `nat`, `fullnat`", Words("none"), "nat", Reload,
        "The mode instead of `fullnat` for Services with `externalTrafficPolicy: Local`, which asks to keep clients' addresses. \
         Without it, and for a Service that the mode cannot serve, `fullnat` with a warning (`ClientAddressLost`). `fullnat`: no warning."),
    key("services.defaults.target", "`pod`, `node`", Value("pod"), "node", Reload,
        "Backends are the endpoints, or their nodes: in DSR modes with VIP and port kept, which a kube-proxy there serves as it is, in NAT modes at the node port."),
    key("services.defaults.scheduler", "`rendezvous`, `maglev`", Value("rendezvous"), "maglev", Reload,
        "How the backend of a new flow is chosen ([selection.md](selection.md))."),
    key("services.defaults.tableSize", "prime from 251 to 655373", Value("65537"), "65521", Reload,
        "Slots of Maglev tables. No effect with `rendezvous`."),
    key("services.defaults.drainTimeout", "duration, 0s to 24h", Value("300s"), "1m30s", Reload,
        "How long flows of a removed backend, or of a Service that left, live on."),
    key("services.defaults.noEndpoints", "`reject`, `drop`", Value("reject"), "drop", Reload,
        "What clients of a Service without backends get: a reset or \"port unreachable\", or nothing."),
    key("services.nodePortAddresses", "list of CIDRs", Value("[]"), "[\"192.0.2.0/24\"]", Restart,
        "Networks whose own addresses serve node ports (none without) and health-check node ports (all without)."),
    key("services.unservedPorts", "`reject`, `drop`", Value("reject"), "drop", Reload,
        "What a port of a VIP or an own cluster IP gets that no Service has."),
    key("services.ownClusterIPs", "boolean", Value("false"), "true", Reload,
        "Serve `clusterIPs` too. The operator routes the service network to the gateway."),
    key("services.podRoutes", "`route`, `node`", Value("route"), "node", Reload,
        "How Pods are reached: by the routes here, or by the node whose `spec.podCIDRs` hold them."),
    key("services.compat",
        "list of `alibaba`, `aws`, `azure`, `baidu`, `cilium`, `gcp`, `ibm`, `kube-vip`, `metallb`, `openstack`, `tke` (or `tencent`)",
        Value("[]"), "[metallb]", Reload, "Load balancers whose annotations count too."),
    key("services.sourceRangesOtherFamily", "`deny`, `allow`", Value("deny"), "allow", Reload,
        "The family that a Service's source ranges do not name, on a dual-stack VIP."),

    key("pools[].name", "name of a-z, 0-9, - and .", Required, "private", Reload, "The pool's name; unique."),
    key("pools[].addresses", "list of CIDRs, ranges `a-b` and addresses", Required, "[\"203.0.113.64/28\"]", Reload,
        "The addresses that Services may have. Every address is used, the first and last of a CIDR too."),
    key("pools[].autoAssign", "boolean", Value("true"), "false", Reload, "Give addresses to Services that name no pool."),
    key("pools[].externalIPs", "boolean", Value("false"), "true", Reload, "Honour `spec.externalIPs` inside the pool."),
    key("pools[].disabled", "boolean", Value("false"), "true", Reload, "Give out nothing new."),
    key("pools[].namespaceSelector", "label selector", Words("all"), "{matchLabels: {team: a}}", Reload,
        "Namespaces whose Services may have addresses."),
    key("pools[].serviceSelector", "label selector", Words("all"), "{matchLabels: {tier: web}}", Reload,
        "Services that may have addresses."),
    key("pools[].quotaPerNamespace", "1 to 4294967295", Words("no limit"), "3", Reload,
        "Addresses that one namespace may hold, external IPs included."),
    key("pools[].shareAcrossNamespaces", "boolean", Value("false"), "true", Reload,
        "Services of different namespaces may share an address by one sharing key."),
    key("pools[].forceRelease", "boolean", Value("false"), "true", Reload,
        "Take back addresses that the pool would not give now. Otherwise Services keep what they have ([addresses.md](addresses.md))."),
    key("pools[].labels", "labels", Value("{}"), "{scope: internal}", Reload,
        "Labels by which annotations choose a pool: `scope: internal` marks the pools of internal addresses."),

    key("health.protocol", "`tcp`, `http`, `https`, `udp`, `none`", Value("tcp"), "http", Reload,
        "How backends are checked ([control/README.md](../control/README.md#health-checks))."),
    key("health.path", "path, at most 1024 bytes", Value("/"), "/healthz", Reload, "What `http` and `https` ask for."),
    key("health.interval", "duration, 100ms to 1h", Value("2s"), "5s", Reload, "From one check of a backend to the next."),
    key("health.timeout", "duration, 10ms to the interval", Value("1s"), "500ms", Reload, "How long one check may take."),
    key("health.healthyThreshold", "1 to 100", Value("2"), "4", Reload, "Successful checks in a row that bring a backend in."),
    key("health.unhealthyThreshold", "1 to 100", Value("3"), "5", Reload, "Failed checks in a row that take a backend out."),
    key("health.dsrDestination", "`vip`, `backend`", Value("vip"), "backend", Reload,
        "Where backends in DSR modes are checked: at the VIP, as clients' packets reach them, or at their own addresses."),
    key("health.intervalMin", "duration, 100ms to 1h", Value("100ms"), "1s", Reload,
        "The shortest interval that Services may ask for by annotation. A shorter one is raised, with an event."),
    key("health.timeoutMax", "duration, 10ms to 1h", Value("1m"), "10s", Reload,
        "The longest timeout that Services may ask for by annotation. A longer one is cut, with an event."),
    key("health.allowedNetworks", "list of CIDRs",
        Words("with `source.directory` everything; with `source.kubernetes` the links of `dataplane.interfaces`, the destinations \
               of `dataplane.routes` without default routes, and the InternalIPs and `spec.podCIDRs` of the endpoint's node"),
        "[\"10.0.0.0/8\"]", Reload,
        "Endpoints outside are not checked and count as healthy, with an event (`HealthCheckNotAllowed`)."),
    key("health.damping", "boolean", Value("true"), "false", Reload, "A backend that flaps needs more successful checks."),
    key("health.failOpen", "boolean", Value("true"), "false", Reload,
        "When all backends of a service port fail at once, keep using all of them."),

    fixed("announce.l2", "`{}`", Value("{}"), "Answer ARP and neighbour discovery for VIPs. It is always on."),
    fixed("announce.bgp", "`{}`", Value("{}"), "Not supported yet."),

    key("admin.socket", "path, at most 107 bytes", Value("/run/tidegate/tidegate.sock"), "/tmp/t.sock", Restart,
        "Where commands reach the daemon. Without a state directory, a file beside it records what operators have drained."),
    key("admin.listen", "address and port, or `\"\"` for none", Value("\"127.0.0.1:9469\""), "\"[::]:9469\"", Restart,
        "The address of `/metrics`."),
    key("admin.healthz", "address and port, or `\"\"` for none", Value("\"0.0.0.0:10356\""), "\"\"", Restart,
        "The address of `/healthz`, `/livez` and `/readyz`."),
    key("admin.metricsPerBackend", "boolean", Value("true"), "false", Reload,
        "Series for each backend of each service port. Turn them off where they are too many for the scraper."),

    key("selfCheck.enabled", "boolean", Value("true"), "false", Reload,
        "Compare now and then what was computed incrementally with a computation from scratch, in the background \
         ([troubleshooting.md](troubleshooting.md#the-log-reports-a-difference-of-an-incremental-result))."),
    key("selfCheck.interval", "duration, 1s to 24h", Value("5m"), "10m", Reload, "From one comparison to the next."),
    key("selfCheck.changes", "1 to 1000000", Value("1000"), "100", Reload,
        "Start a comparison earlier, after this many updates that computed something anew."),
];

//! The network of the floods: attacked Services, and other Services that share only the gateway with them.
//!
//! Servers 1 and 2 are the backends of the other Services (the ten paths of every lab). Server 3 is the only backend of
//! the attacked Services, one for each mode. It drops packets from spoofed sources.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::{self as plan, Family, TCP_ECHO_PORT, client};
use tidegate_netlab::client::{Attempt, EchoConnection, Load};
use tidegate_netlab::flood::{Attacker, Target, prepare_server, routes, set_priority};
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec};
use tidegate_netlab::modes::{ModePath, all_paths, manifests};

use crate::world::World;

/// The server that is attacked.
const ATTACKED_SERVER: u8 = 3;
/// The port to which attackers send UDP. No program listens there.
const UDP_PORT: u16 = 9;
/// Connections of each path that stay open during all floods.
const ESTABLISHED: u8 = 3;
/// The capacity of a table that must become full. Any flood fills it in about a second. It is an eighth of the default;
/// with a smaller table, a machine with two cores would evict a flow before its handshake completes.
pub(crate) const SMALL_TABLE: u32 = 131_072;
/// The time between two new connections of one path. Other clients connect at a modest rate.
const PACE: Duration = Duration::from_millis(20);
/// The priority of the gateway. A real gateway has its own core; here the priority keeps other work off its core.
pub(crate) const GATEWAY_PRIORITY: i32 = -10;

/// The maximum time between two retransmissions of a TCP segment after 20 s of losses.
pub(crate) const LATE_MAX: Duration = Duration::from_secs(60);

/// Whether every flood runs for the time in `docs/floods.md` instead of the short time of `make test`.
pub(crate) fn long() -> bool {
    std::env::var("TIDEGATE_FLOODS").is_ok_and(|form| form == "long")
}

/// `short`, or `long` in the long form.
pub(crate) fn seconds(short: u64, long_form: u64) -> Duration {
    Duration::from_secs(if long() { long_form } else { short })
}

/// A lab with an attacker and with connections that must survive.
pub(crate) struct Setup {
    pub(crate) attacker: Attacker,
    pub(crate) world: World,
    pub(crate) established: Vec<(ModePath, EchoConnection)>,
}

impl Setup {
    pub(crate) fn start(flow_entries: u32) -> Self {
        // SYN cookies would answer the floods before they reach the code under test.
        let syn_cookies = "off";
        Self::start_with(GatewayOptions { flow_entries, syn_cookies, ..GatewayOptions::default() })
    }

    /// Starts the lab with these options.
    pub(crate) fn start_with(options: GatewayOptions) -> Self {
        let options = GatewayOptions {
            // The interval is twice the default, so that a check survives the loss of one frame (a SYN is retransmitted
            // after a second) and a busy machine does not cause failures.
            health_interval: Duration::from_secs(4),
            unhealthy_threshold: 3,
            routes: routes(),
            ..options
        };
        let mut services = manifests(&[1, 2]);
        services.extend(attacked_services());
        let world = World::start(ATTACKED_SERVER, options, &services);
        prepare_server(world.lab.server(ATTACKED_SERVER).namespace()).expect("routes of the attacked server");
        set_priority(world.gateway().pid(), GATEWAY_PRIORITY).expect("priority of the gateway");
        let attacker = Attacker::join(&world.lab).expect("a TAP device");
        let mut established = Vec::new();
        for path in all_paths().into_iter().chain(attacked_paths()) {
            world.wait_until_served(path);
            established.extend((0..ESTABLISHED).map(|n| (path, world.connect(path, n).expect("served"))));
        }
        Self { attacker, world, established }
    }

    /// Opens new connections to the Services that are not attacked, over every path, until finished.
    pub(crate) fn others(&self) -> Others {
        Others::start(&self.world, all_paths())
    }

    /// Exchanges a line on every selected connection. Returns the broken connections, and the number of selected ones.
    pub(crate) fn ping(&mut self, chosen: impl Fn(ModePath) -> bool) -> (Vec<String>, usize) {
        let mut pinged = 0;
        let mut broken = Vec::new();
        for (path, connection) in self.established.iter_mut().filter(|(path, _)| chosen(*path)) {
            pinged += 1;
            if let Err(error) = connection.ping() {
                broken.push(format!("{} {}: {error:#}", path.label(), path.family));
            }
        }
        (broken, pinged)
    }

    /// Repeats the exchange on connections that [`Self::ping`] found broken, after the packet loss has ended. A live
    /// connection retransmits lost data. Returns and drops the connections that are really broken.
    pub(crate) fn ping_late(&mut self, is_suspect: impl Fn(&str) -> bool) -> Vec<String> {
        let mut broken = Vec::new();
        self.established.retain_mut(|(path, connection)| {
            let label = format!("{} {}", path.label(), path.family);
            if !is_suspect(&label) {
                return true;
            }
            let answer = connection.ping_late(LATE_MAX);
            broken.extend(answer.as_ref().err().map(|error| format!("{label}: {error:#}")));
            answer.is_ok()
        });
        broken
    }

    /// The gateway's counters that explain a failure.
    pub(crate) fn counters(&self) -> Counters {
        Counters::read(&self.world)
    }
}

/// One path for each mode and family, to the attacked Services.
pub(crate) fn attacked_paths() -> Vec<ModePath> {
    let modes = [
        ("attacked-l2", "dsr-l2"),
        ("attacked-ipip", "dsr-ipip"),
        ("attacked-nat", "nat"),
        ("attacked-fullnat", "fullnat"),
    ];
    let mut paths = Vec::new();
    for (number, (service, forwarding)) in (7..).zip(modes) {
        for family in Family::BOTH {
            let on_link = forwarding == "dsr-l2";
            let vip = if on_link { plan::on_link_vip(family, 2) } else { plan::routed_vip(family, number) };
            paths.push(ModePath { service, forwarding, family, backends: family, vip });
        }
    }
    paths
}

/// The attack target of `path`.
pub(crate) fn target(path: ModePath) -> Target {
    Target { vip: path.vip, tcp: TCP_ECHO_PORT, udp: UDP_PORT }
}

fn attacked_services() -> Vec<Manifest> {
    let mut services: Vec<Manifest> = Vec::new();
    for path in attacked_paths() {
        let endpoint = EndpointSpec::ready(plan::server(path.backends, ATTACKED_SERVER));
        if let Some(dual) = services.iter_mut().find(|service| service.name == path.service) {
            dual.vips.push(path.vip);
            dual.endpoints.push(endpoint);
            continue;
        }
        let ports = vec![PortSpec::tcp("tcp-echo", TCP_ECHO_PORT), PortSpec::udp("udp", UDP_PORT)];
        let mut service =
            Manifest::new(path.service, path.forwarding, &[path.vip], ports).with_endpoints([endpoint]);
        service.annotations.push(("tidegate.dev/health-check-port", TCP_ECHO_PORT.to_string()));
        services.push(service);
    }
    services
}

/// New connections over some paths, one after the other on each.
pub(crate) struct Others(Vec<(ModePath, Load)>);

impl Others {
    pub(crate) fn start(world: &World, paths: impl IntoIterator<Item = ModePath>) -> Self {
        let loads = paths.into_iter().map(|path| {
            let load = Load::start_at(PACE, world.lab.client(), client(path.family, 7), path.tcp_echo());
            (path, load)
        });
        Self(loads.collect())
    }

    /// Stops after the current attempts.
    pub(crate) fn finish(self) -> Attempts {
        let attempts = self.0.into_iter().map(|(path, load)| (path, load.finish()));
        Attempts(attempts.collect())
    }
}

/// The results of new connections.
pub(crate) struct Attempts(Vec<(ModePath, Vec<Attempt>)>);

impl Attempts {
    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|(_, attempts)| attempts.len()).sum()
    }

    pub(crate) fn succeeded(&self) -> usize {
        self.count() - self.0.iter().map(|(_, attempts)| failed(attempts)).sum::<usize>()
    }

    /// Whether at most one attempt of 100 failed on each path. A path with fewer attempts may have one failure, because
    /// a busy machine may lose every retransmission of one segment. On a path that is not served, all attempts fail,
    /// and there are few of them because each takes long.
    pub(crate) fn are_served(&self) -> bool {
        self.0.iter().all(|(_, attempts)| {
            let failed = failed(attempts);
            failed < attempts.len() && failed <= (attempts.len() / 100).max(1)
        })
    }

    /// The failures by path, with the first error of each.
    pub(crate) fn failures(&self) -> String {
        let of_path = |(path, attempts): &(ModePath, Vec<Attempt>)| {
            let failed: Vec<_> = attempts.iter().filter_map(|one| one.outcome.as_ref().err()).collect();
            let first = failed.first()?;
            let (label, family) = (path.label(), path.family);
            Some(format!("\n  {label} {family}: {} of {} failed: {first}", failed.len(), attempts.len()))
        };
        self.0.iter().filter_map(of_path).collect()
    }
}

fn failed(attempts: &[Attempt]) -> usize {
    attempts.iter().filter(|one| one.outcome.is_err()).count()
}

/// Counters of the gateway at one time.
#[derive(Clone, Debug)]
pub(crate) struct Counters(BTreeMap<String, f64>);

impl Counters {
    fn read(world: &World) -> Self {
        Self::of(&world.gateway().metrics().expect("the gateway returns its metrics"))
    }

    /// Parses the text of `/metrics`.
    pub(crate) fn of(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Self(samples.collect())
    }

    /// The sum of the series that begin with `prefix` and contain `label`.
    pub(crate) fn sum(&self, prefix: &str, label: &str) -> f64 {
        let named = self.0.iter().filter(|(series, _)| series.starts_with(prefix) && series.contains(label));
        named.map(|(_, value)| value).sum()
    }

    /// The growth of the sum of [`Counters::sum`] since `earlier`.
    pub(crate) fn grown(&self, earlier: &Self, prefix: &str, label: &str) -> f64 {
        self.sum(prefix, label) - earlier.sum(prefix, label)
    }

    /// The number of backends that are down.
    pub(crate) fn down(&self) -> usize {
        let up = self.0.iter().filter(|(series, _)| series.starts_with("tidegate_backend_up{"));
        up.filter(|(_, value)| **value == 0.0).count()
    }

    /// The counters of drops, evictions and replies that have grown by at least `least` since `earlier`.
    pub(crate) fn growth(&self, earlier: &Self, least: f64) -> String {
        let kinds = ["tidegate_drops_total", "tidegate_flow_evictions_total", "tidegate_packets_total"];
        let grown = self.0.iter().filter_map(|(series, value)| {
            let by = value - earlier.0.get(series).copied().unwrap_or(0.0);
            let wanted = kinds.iter().any(|kind| series.starts_with(kind)) && by >= least;
            wanted.then(|| format!("\n  {series} +{by}"))
        });
        grown.collect()
    }
}

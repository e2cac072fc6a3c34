//! Parses the annotations of a Service into options; the configuration has the defaults.
//!
//! One pass over the annotations of our prefix and over the aliases of others. An invalid value is an error that names
//! the key, the value and the accepted values, and the default is used instead. A valid request that can't be served is
//! recorded in [`Options::refused`]: then no port of the Service is programmed, because serving it differently from the
//! request (without its rate limit, to nodes that it excludes) is worse. `apply` handles single annotations; this file
//! handles combinations of them.

mod apply;

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::config::{self, DsrDestination};
use tidegate_model::health::AtVip;
use tidegate_model::objects::{Labels, Protocol, RouteAttributes, Selector, Service};
use tidegate_model::yaml::text;
use tidegate_spec::{
    ForwardingMode, HashInput, MssClamp, PassiveHealth, ServiceLimits, SynCookies, TunnelOptions,
};
use tidegate_wire::Named;
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::{ProxyTlvs, VpceId};

use super::address_request::AddressRequest;
use super::annotation_reader::Reader;
use super::annotations::key;
use super::client_address;
use super::finding::{Finding, Reason};
use super::hash;
use super::health_options::{Checks, HealthOptions};
use super::proxy_protocol::{self, ProxyHeaderRequest};
use super::settings::Settings;
use super::tunnel_options;
use super::view::PortRefusal;

/// Idle time of a UDP flow: RFC 4787 REQ-5 recommends 5 minutes.
const IDLE_TIMEOUT_UDP: Duration = Duration::from_secs(300);
/// Idle time of an established SCTP flow: 30 default HEARTBEAT intervals of an endpoint (RFC 9260 section 16).
const IDLE_TIMEOUT_SCTP: Duration = Duration::from_secs(900);

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    pub(super) mode: ForwardingMode,
    /// The parameters of the tunnel, if the mode is a tunnel.
    pub(super) tunnel: TunnelOptions,
    mode_is_set: bool,
    pub(super) backends: BackendOptions,
    pub(super) choice: Choice,
    pub(super) handshake: Handshake,
    pub(super) idle: IdleTimeouts,
    pub(super) limits: ServiceLimits,
    /// What happens to new connections that backends refuse or ignore; `None` for nothing special.
    pub(super) passive_health: Option<PassiveHealth>,
    /// One in this many flows is logged; `None` for none.
    pub(super) flow_log: Option<NonZeroU16>,
    /// The sample of the gateway; `None` if it has no flow log.
    flow_log_sample: Option<NonZeroU16>,
    pub(super) proxy: ProxyOptions,
    /// The requested health options; [`checks`](Self::checks) is derived from them.
    health: HealthOptions,
    pub(super) checks: Checks,
    /// The attributes of the routes to its addresses.
    pub(super) bgp: RouteAttributes,
    pub(super) addresses: AddressRequest,
    /// Why no port is programmed; empty if ports can be programmed.
    pub(super) refused: Vec<PortRefusal>,
}

/// Which endpoints or nodes are the backends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BackendOptions {
    /// Whether endpoints or their nodes are the backends.
    pub(super) target: config::Target,
    /// The nodes that may be backends or have backends; `None` allows all.
    pub(super) node_selector: Option<Selector>,
    /// How long flows to a removed backend continue.
    pub(super) drain_timeout: Duration,
}

/// How the backend of a new flow is chosen, and which flows get an entry.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    pub(super) scheduler: config::Scheduler,
    /// The hash input, for schedulers that let the Service choose it.
    pub(super) hash: HashInput,
    /// The number of slots of the table, if the scheduler has one.
    pub(super) table_size: u32,
    /// How long a backend that became ready takes to get its full share; zero for at once.
    pub(super) slow_start: Duration,
    /// Which flows get an entry; `OnChange` only if the Service works without entries.
    pub(super) flow_tracking: config::FlowTracking,
    /// Whether packets without an entry go to the former owner of their flow: with `on-change`, or if other gateways
    /// share the flows created since.
    pub(super) follows_seats: bool,
}

/// How SYNs are handled.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Handshake {
    pub(super) mss_clamp: MssClamp,
    /// When new connections are answered with SYN cookies; `None` for the setting of the gateway.
    pub(super) syn_cookies: Option<SynCookies>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct IdleTimeouts {
    /// `None` if the `appProtocol` of the port decides.
    pub(super) tcp: Option<Duration>,
    pub(super) udp: Duration,
    pub(super) sctp: Duration,
}

/// What backends receive about the client.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProxyOptions {
    pub(super) header: Option<ProxyHeaderRequest>,
    pub(super) tlvs: ProxyTlvs,
    pub(super) vpce_id: VpceId,
    /// The alias that requires the client's address for the backends.
    keeps_client: Option<String>,
}

impl Options {
    /// The VIP at which a Service's endpoints are checked, if they answer clients from the VIP in this mode and the
    /// operator enables such checks. With target node there is none, because the node's proxy answers at its own
    /// address.
    pub(super) fn at_vip(&self, settings: &Settings, vip: IpAddr) -> Option<Arc<AtVip>> {
        let wanted = settings.health.dsr_destination == DsrDestination::Vip;
        let is_requested = wanted && self.mode.is_dsr() && self.backends.target == config::Target::Pod;
        is_requested.then(|| Arc::new(AtVip { vip, mode: self.mode, tunnel: self.tunnel }))
    }
}

pub(super) fn options(service: &Service, settings: &Settings, findings: &mut Vec<Finding>) -> Options {
    let annotations = &service.meta.annotations;
    let mut options = defaults(settings);
    let mut read = Reader { meta: &service.meta, findings, written: None };
    // Aliases come first, so that an annotation of ours overrides an alias. If the Service requests only node ports and
    // cluster IPs from us, its aliases are meant for another load balancer.
    let is_ours = settings.claims(service) || !service.external_ips.is_empty();
    let internal =
        if is_ours { read.aliases(&mut options, annotations, &settings.services.compat) } else { None };
    for (annotation, value) in annotations {
        if annotation.starts_with("tidegate.dev/") {
            read.apply(&mut options, annotation, annotation, value);
        }
    }
    if service.meta.key.gateway_name().is_some() && options.backends.target == config::Target::Node {
        options.backends.target = config::Target::Pod;
        if annotations.contains_key(key::TARGET) {
            read.ignored(key::TARGET, "nodes do not serve Gateways", "tidegate.dev/target pod");
        }
    }
    if options.choice.scheduler != config::Scheduler::Maglev
        && annotations.get(key::TABLE_SIZE).is_some_and(|size| config::table_size(size.trim()).is_ok())
    {
        let why = format!("scheduler {} has no Maglev table", options.choice.scheduler.as_str());
        read.ignored(key::TABLE_SIZE, &why, "tidegate.dev/scheduler maglev, or no annotation");
    }
    options.refused.extend(hash::check(&mut read, service, options.choice.scheduler));
    choose_mode(&mut read, service, settings, &mut options);
    if let Some(request) = &options.proxy.header
        && let Some((field, diagnostic, refusal)) = proxy_protocol::refusal_in(request, options.mode)
    {
        read.push(&field, Reason::NotSupported, diagnostic);
        options.refused.push(refusal);
    }
    options.refused.extend(proxy_protocol::check_tlvs(
        &mut read,
        options.proxy.header.as_ref(),
        options.proxy.tlvs,
    ));
    tunnel_options::identify(&mut options.tunnel, &service.meta.key, options.mode);
    tunnel_options::warn_without_effect(&mut read, annotations, options.mode);
    options.refused.extend(tunnel_options::check_mark(&mut read, &mut options.tunnel, options.mode));
    read.outgoing_bandwidth(&mut options, annotations);
    choose_flow_tracking(&mut read, service, settings, &mut options);
    warn_without_effect(&mut read, annotations, &options);
    warn_without_port(&mut read, service);
    let protocols = service.ports.iter().map(|port| port.protocol);
    let version = options.proxy.header.as_ref().map(|request| request.version);
    let header = version.filter(|version| *version != ProxyVersion::Toa);
    options.checks = options.health.clone().checks(&mut read, protocols, header);
    if let Some(annotation) = internal {
        options.addresses.prefer_internal(annotation);
    }
    options.addresses.read_deprecated(service, &mut read);
    options
}

/// Chooses the mode, unless the Service sets it, and refuses an alias that this mode does not support.
fn choose_mode(read: &mut Reader<'_>, service: &Service, settings: &Settings, options: &mut Options) {
    if options.mode_is_set {
        return;
    }
    let has_header = options.proxy.header.is_some();
    let keeps = options.proxy.keeps_client.is_some();
    options.mode =
        client_address::mode(service, settings, options.backends.target, (has_header, keeps), read.findings);
    if let Some(alias) = options.proxy.keeps_client.clone()
        && options.mode == ForwardingMode::FullNat
        && options.proxy.header.is_none()
    {
        let why = "forwarding fullnat replaces the addresses of clients with the gateway's";
        read.refuse(options, &alias, why, client_address::ACCEPTED);
    }
}

/// Decides which flows get an entry, and whether packets without an entry go to the former owner of their flow.
fn choose_flow_tracking(
    read: &mut Reader<'_>,
    service: &Service,
    settings: &Settings,
    options: &mut Options,
) {
    let needs_entries = tracks_always(service, settings, options);
    options.choice.follows_seats = needs_entries.is_none()
        && (settings.shares_flows || options.choice.flow_tracking == config::FlowTracking::OnChange);
    if options.choice.flow_tracking == config::FlowTracking::OnChange
        && let Some(why) = needs_entries
    {
        options.choice.flow_tracking = config::FlowTracking::Always;
        if service.meta.annotations.get(key::FLOW_TRACKING).is_some_and(|value| value.trim() == "on-change") {
            let accepted = "always; or a DSR mode with scheduler rendezvous, and no sessionAffinity, slow start or \
                connection limits";
            read.ignored(key::FLOW_TRACKING, why, accepted);
        }
    }
}

/// Adds a warning for each annotation that has no effect in this mode.
fn warn_without_effect(read: &mut Reader<'_>, annotations: &Labels, options: &Options) {
    let clamp = annotations.get(key::MSS_CLAMP).and_then(|value| config::mss_clamp(value.trim()));
    if options.mode == ForwardingMode::DsrL2 && clamp.is_some_and(|clamp| clamp != MssClamp::Off) {
        let why = "forwarding dsr-l2 adds no header to packets";
        read.ignored(
            key::MSS_CLAMP,
            why,
            "a tunnel or NAT mode in tidegate.dev/forwarding, or tidegate.dev/mss-clamp off",
        );
    }
    if options.mode.is_dsr()
        && matches!(options.handshake.syn_cookies, Some(SynCookies::Auto | SynCookies::Always))
    {
        let why = "in DSR modes the backend answers the SYN";
        read.ignored(
            key::SYN_COOKIES,
            why,
            "tidegate.dev/forwarding nat or fullnat, or tidegate.dev/syn-cookies off",
        );
    }
    if options.mode.is_dsr() && annotations.get(key::PASSIVE_HEALTH).is_some_and(|value| value.trim() == "on")
    {
        let why = "in DSR modes the gateway does not see the replies of backends";
        read.ignored(key::PASSIVE_HEALTH, why, "tidegate.dev/forwarding nat or fullnat, or no annotation");
    }
}

/// The annotations that only affect ports of one protocol.
const OF_ONE_PROTOCOL: [(&str, Protocol); 6] = [
    (key::SYN_COOKIES, Protocol::Tcp),
    (key::MSS_CLAMP, Protocol::Tcp),
    (key::PASSIVE_HEALTH, Protocol::Tcp),
    (key::IDLE_TIMEOUT_TCP, Protocol::Tcp),
    (key::IDLE_TIMEOUT_UDP, Protocol::Udp),
    (key::IDLE_TIMEOUT_SCTP, Protocol::Sctp),
];

/// Adds a warning for each valid annotation without a port of its protocol.
fn warn_without_port(read: &mut Reader<'_>, service: &Service) {
    for (annotation, protocol) in OF_ONE_PROTOCOL {
        let Some(value) = service.meta.annotations.get(annotation).map(|value| value.trim()) else {
            continue;
        };
        let is_valid = match annotation {
            key::SYN_COOKIES => SynCookies::named(value).is_some(),
            key::MSS_CLAMP => config::mss_clamp(value).is_some(),
            key::PASSIVE_HEALTH => config::passive_health(value).is_some(),
            _ => text::duration(value).is_some_and(|idle| (SECOND..=idle_max(protocol)).contains(&idle)),
        };
        if is_valid && value != "off" && service.ports.iter().all(|port| port.protocol != protocol) {
            let (why, port) =
                (format!("the Service has no {protocol} port"), format!("a port with protocol {protocol}"));
            read.ignored(annotation, &why, &format!("{port}, or no annotation"));
        }
    }
}

/// The longest idle timeout of flows of a protocol.
const fn idle_max(protocol: Protocol) -> Duration {
    match protocol {
        Protocol::Udp => DAY,
        Protocol::Tcp | Protocol::Sctp => WEEK,
    }
}

/// Why all flows of a Service get an entry, whatever it requests; `None` if it works without entries.
fn tracks_always(service: &Service, settings: &Settings, options: &Options) -> Option<&'static str> {
    let has_udp = service.ports.iter().any(|port| port.protocol == Protocol::Udp);
    if !options.mode.is_dsr() {
        Some("NAT modes need a flow-table entry for each flow")
    } else if options.choice.scheduler != config::Scheduler::Rendezvous {
        Some("only scheduler rendezvous knows the former backend of a flow")
    } else if service.session_affinity.is_some() {
        Some("sessionAffinity: ClientIP needs a flow-table entry for each client")
    } else if !options.choice.slow_start.is_zero() {
        Some("slow start changes the backends of flows at each step")
    } else if options.limits.limits_new_flows() {
        Some("connection limits need a flow-table entry for each flow")
    } else if has_udp && settings.network.source_rate.is_some() {
        Some("protection.newConnections needs a flow-table entry for each UDP flow")
    } else {
        None
    }
}

fn defaults(settings: &Settings) -> Options {
    let defaults = &settings.services.defaults;
    Options {
        mode: defaults.forwarding,
        mode_is_set: false,
        tunnel: defaults.tunnel,
        backends: BackendOptions {
            target: defaults.target,
            node_selector: None,
            drain_timeout: defaults.drain_timeout,
        },
        choice: Choice {
            scheduler: defaults.scheduler,
            hash: defaults.hash,
            table_size: defaults.table_size,
            slow_start: defaults.slow_start,
            flow_tracking: defaults.flow_tracking,
            follows_seats: false,
        },
        handshake: Handshake { mss_clamp: defaults.mss_clamp, syn_cookies: None },
        idle: IdleTimeouts { tcp: None, udp: IDLE_TIMEOUT_UDP, sctp: IDLE_TIMEOUT_SCTP },
        limits: ServiceLimits::default(),
        passive_health: Some(settings.health.passive),
        flow_log: settings.flow_log.filter(|log| log.all_services).map(|log| log.sample),
        flow_log_sample: settings.flow_log.map(|log| log.sample),
        proxy: ProxyOptions {
            header: None,
            tlvs: ProxyTlvs::NONE,
            vpce_id: VpceId::default(),
            keeps_client: None,
        },
        health: HealthOptions::new(&settings.health),
        checks: Checks::default(),
        bgp: RouteAttributes::default(),
        addresses: AddressRequest::default(),
        refused: Vec::new(),
    }
}

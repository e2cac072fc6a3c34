//! Parses the annotations of a Service into options; the configuration has the defaults.
//!
//! One pass over the annotations of our prefix and over the aliases of others. An invalid value is an error that
//! names key, value and what is accepted, and the default is used instead. A valid request that cannot be served
//! is recorded in [`Options::refused`]: then no port of the Service is programmed, because serving it differently
//! from the request (without its rate limit, to nodes it excludes) is worse.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::config::{self, DsrDestination, Word};
use tidegate_model::health::AtVip;
use tidegate_model::objects::{Labels, Protocol, RouteAttributes, Selector, Service};
use tidegate_model::yaml::text;
use tidegate_spec::{
    ForwardingMode, HashInput, MssClamp, PassiveHealth, ServiceLimits, SynCookies, TunnelOptions,
};
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::{ProxyTlvs, VpceId};

use super::address_request::AddressRequest;
use super::aliases::{self, AliasValue};
use super::annotations::{self, annotation_field, key};
use super::announce_options;
use super::client_address;
use super::finding::{Finding, Reason};
use super::hash;
use super::health_options::{Checks, HealthOptions};
use super::proxy_protocol::{self, ProxyHeaderRequest};
use super::reader::Reader;
use super::service_limits;
use super::settings::Settings;
use super::tunnel_options;
use super::view::{PortRefusal, RefusalReason};

/// Idle time of a UDP flow: RFC 4787 REQ-5 recommends 5 minutes.
const IDLE_TIMEOUT_UDP: Duration = Duration::from_secs(300);
/// Idle time of an established SCTP flow: 30 of the intervals at which endpoints send a HEARTBEAT by default (RFC 9260
/// section 16).
const IDLE_TIMEOUT_SCTP: Duration = Duration::from_secs(900);

const DAY: Duration = Duration::from_secs(86_400);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// The options of one Service.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    pub(super) mode: ForwardingMode,
    /// The choices within the mode, if it is a tunnel.
    pub(super) tunnel: TunnelOptions,
    /// Whether the Service itself names its mode.
    mode_is_said: bool,
    /// Whether endpoints or their nodes are the backends.
    pub(super) target: config::Target,
    /// The nodes that may be backends, or have backends; `None` allows all.
    pub(super) node_selector: Option<Selector>,
    pub(super) scheduler: config::Scheduler,
    /// What the choice follows from, with schedulers that let the Service decide.
    pub(super) hash: HashInput,
    /// The number of slots of the table, if the scheduler has one.
    pub(super) table_size: u32,
    pub(super) drain_timeout: Duration,
    /// How long a backend that has become ready takes to get its full share; zero: at once.
    pub(super) slow_start: Duration,
    /// Which flows are remembered; `OnChange` only if the Service can do without entries.
    pub(super) flow_tracking: config::FlowTracking,
    /// Whether packets without an entry are to find the former owner of their flow: with `on-change`, and if other gateways
    /// share the flows that began since.
    pub(super) follows_seats: bool,
    /// The limit for the segment size in SYNs.
    pub(super) mss_clamp: MssClamp,
    /// When new connections are answered with SYN cookies; `None` as the configuration says for all.
    pub(super) syn_cookies: Option<SynCookies>,
    /// Idle time of an established TCP flow; `None`: by the `appProtocol` of the port.
    pub(super) idle_timeout_tcp: Option<Duration>,
    pub(super) idle_timeout_udp: Duration,
    pub(super) idle_timeout_sctp: Duration,
    pub(super) limits: ServiceLimits,
    /// What new connections that backends refuse or ignore cause; `None` for nothing.
    pub(super) passive_health: Option<PassiveHealth>,
    /// The header of the PROXY protocol that backends get.
    pub(super) proxy_protocol: Option<ProxyHeaderRequest>,
    /// The alias that says that backends rely on the client's address.
    keeps_client: Option<String>,
    /// The TLVs of that header.
    pub(super) proxy_tlvs: ProxyTlvs,
    /// The text of the TLV `vpce-id`.
    pub(super) vpce_id: VpceId,
    /// The requested health options; [`checks`](Self::checks) is derived from them.
    health: HealthOptions,
    pub(super) checks: Checks,
    /// What the routes to its addresses carry.
    pub(super) bgp: RouteAttributes,
    /// Which addresses the Service asks for.
    pub(super) addresses: AddressRequest,
    /// Why no port is programmed, if none is.
    pub(super) refused: Vec<PortRefusal>,
}

impl Options {
    /// The VIP at which a Service's endpoints are checked, if they answer clients from the VIP in this mode and the
    /// operator enables such checks. With target node, the node's proxy answers at its own address, so there is none.
    pub(super) fn at_vip(&self, settings: &Settings, vip: IpAddr) -> Option<Arc<AtVip>> {
        let wanted = settings.health.dsr_destination == DsrDestination::Vip;
        let asked = wanted && self.mode.is_dsr() && self.target == config::Target::Pod;
        asked.then(|| Arc::new(AtVip { vip, mode: self.mode, tunnel: self.tunnel }))
    }
}

/// Reads the annotations of a Service.
pub(super) fn options(service: &Service, settings: &Settings, findings: &mut Vec<Finding>) -> Options {
    let annotations = &service.meta.annotations;
    let mut options = defaults(settings);
    let mut read = Reader { meta: &service.meta, findings, written: None };
    // Aliases come first, so that an annotation of ours overrides an alias. If only node ports and cluster IPs are
    // requested from us, the load balancer is another one, and so its annotations are not for us.
    let is_ours = settings.claims(service) || !service.external_ips.is_empty();
    let internal =
        if is_ours { read.aliases(&mut options, annotations, &settings.services.compat) } else { None };
    for (annotation, value) in annotations {
        if annotation.starts_with("tidegate.dev/") {
            read.apply(&mut options, annotation, annotation, value);
        }
    }
    if options.scheduler != config::Scheduler::Maglev
        && annotations.get(key::TABLE_SIZE).is_some_and(|size| config::table_size(size.trim()).is_ok())
    {
        let why = format!("scheduler {} has no table", options.scheduler.as_str());
        read.ignored(key::TABLE_SIZE, &why, "tidegate.dev/scheduler maglev, or no table size");
    }
    options.refused.extend(hash::judge(&mut read, service, options.scheduler));
    if !options.mode_is_said {
        let told = options.proxy_protocol.is_some();
        let keeps = options.keeps_client.is_some();
        options.mode = client_address::mode(service, settings, options.target, (told, keeps), read.findings);
    }
    if let Some(alias) = options.keeps_client.clone()
        && !options.mode_is_said
        && options.mode == ForwardingMode::FullNat
        && options.proxy_protocol.is_none()
    {
        let why = "forwarding fullnat replaces the addresses of clients by the gateway's";
        read.refuse(&mut options, &alias, why, client_address::ACCEPTED);
    }
    if let Some(request) = &options.proxy_protocol
        && let Some((field, diagnostic, refusal)) = proxy_protocol::refusal_in(request, options.mode)
    {
        read.push(&field, Reason::NotSupported, diagnostic);
        options.refused.push(refusal);
    }
    options.refused.extend(proxy_protocol::judge_tlvs(
        &mut read,
        options.proxy_protocol.as_ref(),
        options.proxy_tlvs,
    ));
    tunnel_options::identify(&mut options.tunnel, &service.meta.key, options.mode);
    tunnel_options::warn_without_effect(&mut read, annotations, options.mode);
    options.refused.extend(tunnel_options::judge_mark(&mut read, &mut options.tunnel, options.mode));
    read.outgoing_bandwidth(&mut options, annotations);
    let needs_entries = tracks_always(service, settings, &options);
    options.follows_seats = needs_entries.is_none()
        && (settings.shares_flows || options.flow_tracking == config::FlowTracking::OnChange);
    if options.flow_tracking == config::FlowTracking::OnChange
        && let Some(why) = needs_entries
    {
        options.flow_tracking = config::FlowTracking::Always;
        if annotations.get(key::FLOW_TRACKING).is_some_and(|value| value.trim() == "on-change") {
            let accepted = "a DSR mode, scheduler rendezvous, no sessionAffinity, slow start or limit of connections, or always";
            read.ignored(key::FLOW_TRACKING, why, accepted);
        }
    }
    let clamp = annotations.get(key::MSS_CLAMP).and_then(|value| config::mss_clamp(value.trim()));
    if options.mode == ForwardingMode::DsrL2 && clamp.is_some_and(|clamp| clamp != MssClamp::Off) {
        let why = "with forwarding dsr-l2, packets are as long on one link as on the other";
        read.ignored(key::MSS_CLAMP, why, "a tunnel or NAT mode in tidegate.dev/forwarding, or off");
    }
    if options.mode.is_dsr() && matches!(options.syn_cookies, Some(SynCookies::Auto | SynCookies::Always)) {
        let why = "in DSR modes the backend answers the SYN";
        read.ignored(key::SYN_COOKIES, why, "tidegate.dev/forwarding nat or fullnat, or off");
    }
    if options.mode.is_dsr() && annotations.get(key::PASSIVE_HEALTH).is_some_and(|value| value.trim() == "on")
    {
        let why = "in DSR modes the gateway does not see the answers of backends";
        read.ignored(key::PASSIVE_HEALTH, why, "tidegate.dev/forwarding nat or fullnat, or no annotation");
    }
    warn_without_port(&mut read, service);
    let protocols = service.ports.iter().map(|port| port.protocol);
    let version = options.proxy_protocol.as_ref().map(|request| request.version);
    let header = version.filter(|version| *version != ProxyVersion::Toa);
    options.checks = options.health.clone().checks(&mut read, protocols, header);
    if let Some(annotation) = internal {
        options.addresses.prefer_internal(annotation);
    }
    options.addresses.read_deprecated(service, &mut read);
    options
}

/// The annotations that have an effect on ports of one protocol only.
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
            key::SYN_COOKIES => config::syn_cookies(value).is_some(),
            key::MSS_CLAMP => config::mss_clamp(value).is_some(),
            key::PASSIVE_HEALTH => config::passive_health(value).is_some(),
            _ => text::duration(value).is_some_and(|idle| (SECOND..=idle_max(protocol)).contains(&idle)),
        };
        if is_valid && value != "off" && service.ports.iter().all(|port| port.protocol != protocol) {
            let (why, port) =
                (format!("the Service has no port of {protocol}"), format!("a port of {protocol}"));
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

/// Why all flows of a Service are remembered, whatever it asks for; `None` if it can do without entries.
fn tracks_always(service: &Service, settings: &Settings, options: &Options) -> Option<&'static str> {
    let has_udp = service.ports.iter().any(|port| port.protocol == Protocol::Udp);
    if !options.mode.is_dsr() {
        Some("NAT modes need an entry for each flow")
    } else if options.scheduler != config::Scheduler::Rendezvous {
        Some("only scheduler rendezvous knows the former owner of a flow")
    } else if service.session_affinity.is_some() {
        Some("sessionAffinity: ClientIP needs an entry for each client")
    } else if !options.slow_start.is_zero() {
        Some("with slow start, owners change at each step")
    } else if options.limits.limits_new_flows() {
        Some("limits of connections need an entry for each flow")
    } else if has_udp && settings.network.source_rate.is_some() {
        Some("protection.newConnections needs an entry for each UDP flow")
    } else {
        None
    }
}

fn defaults(settings: &Settings) -> Options {
    Options {
        mode: settings.services.defaults.forwarding,
        mode_is_said: false,
        tunnel: settings.services.defaults.tunnel,
        target: settings.services.defaults.target,
        node_selector: None,
        scheduler: settings.services.defaults.scheduler,
        hash: settings.services.defaults.hash,
        table_size: settings.services.defaults.table_size,
        drain_timeout: settings.services.defaults.drain_timeout,
        slow_start: settings.services.defaults.slow_start,
        flow_tracking: settings.services.defaults.flow_tracking,
        follows_seats: false,
        mss_clamp: settings.services.defaults.mss_clamp,
        syn_cookies: None,
        idle_timeout_tcp: None,
        idle_timeout_udp: IDLE_TIMEOUT_UDP,
        idle_timeout_sctp: IDLE_TIMEOUT_SCTP,
        limits: ServiceLimits::default(),
        passive_health: Some(settings.health.passive),
        proxy_protocol: None,
        keeps_client: None,
        proxy_tlvs: ProxyTlvs::NONE,
        vpce_id: VpceId::default(),
        health: HealthOptions::new(&settings.health),
        checks: Checks::default(),
        bgp: RouteAttributes::default(),
        addresses: AddressRequest::default(),
        refused: Vec::new(),
    }
}

impl Reader<'_> {
    /// Applies the annotations of other balancers. Returns the one that requests an internal address, if any.
    fn aliases<'a>(
        &mut self,
        options: &mut Options,
        annotations: &'a Labels,
        compat: &BTreeSet<String>,
    ) -> Option<&'a str> {
        if compat.contains("aws") {
            aliases::probe_defaults(annotations, options.health.rules_mut());
            if let Some((annotation, why)) = aliases::classic_defaults(annotations) {
                self.ignored(annotation, &why, aliases::ALL_OF_HEALTH_CHECKS);
            }
        }
        let mut internal = None;
        let mut said: BTreeMap<&'static str, (&str, Cow<'_, str>)> = BTreeMap::new();
        for (annotation, value) in annotations {
            let Some(alias) = aliases::known(annotation) else { continue };
            let enabled = compat.contains(alias.vendor);
            let unless_ours = |ours: &str| !annotations.contains_key(ours);
            let meanings = match alias.read(value, annotations) {
                // One warning is enough.
                AliasValue::Several(all) if !enabled => {
                    all.into_iter().find(|one| !matches!(one, AliasValue::Nothing)).into_iter().collect()
                }
                AliasValue::Several(all) => all,
                one => vec![one],
            };
            for meaning in meanings {
                match meaning {
                    AliasValue::Nothing => {}
                    AliasValue::Ignored(why, accepted) => self.ignored(annotation, &why, accepted),
                    _ if !enabled => {
                        let why = format!("{} is not in services.compat", alias.vendor);
                        self.ignored(
                            annotation,
                            &why,
                            "services.compat with it, or annotations of tidegate.dev/",
                        );
                    }
                    AliasValue::Ours(ours, translated) if unless_ours(ours) => match said.get(ours) {
                        Some((first, before)) if *before != translated => {
                            let why = format!("it contradicts the annotation {first}");
                            self.ignored(annotation, &why, "one of the two");
                        }
                        Some(_) => {}
                        None => {
                            self.written = Some(value.clone());
                            self.apply(options, ours, annotation, &translated);
                            self.written = None;
                            said.insert(ours, (annotation, translated));
                        }
                    },
                    AliasValue::Ours(..) => {}
                    AliasValue::Internal => internal = Some(annotation.as_str()),
                    AliasValue::ClientAddress => options.keeps_client = Some(annotation.clone()),
                    AliasValue::Refused(why, accepted) => {
                        self.refuse(options, annotation, why, accepted);
                    }
                    AliasValue::Invalid(accepted) => self.invalid(annotation, value, &accepted),
                    AliasValue::InvalidPort(accepted) => {
                        self.invalid_port(options, annotation, value, &accepted);
                    }
                    AliasValue::InvalidAddress(accepted) => {
                        options.addresses.invalid(self, annotation, value, &accepted);
                    }
                    AliasValue::Several(_) => {}
                }
            }
        }
        internal
    }

    /// Applies the value of one of our annotations, which was written as `annotation` (possibly an alias).
    fn apply(&mut self, options: &mut Options, ours: &str, annotation: &str, value: &str) {
        let value = value.trim();
        match ours {
            key::FORWARDING => {
                let mode = config::forwarding(value);
                if let Some(mode) = self.word(annotation, value, mode, config::FORWARDING_ACCEPTED) {
                    (options.mode, options.mode_is_said) = (mode, true);
                }
            }
            key::TARGET => {
                let target = config::target(value);
                let target = self.word(annotation, value, target, config::TARGET_ACCEPTED);
                options.target = target.unwrap_or(options.target);
            }
            key::GUE_VARIANT
            | key::GUE_PORT
            | key::GRE_KEY
            | key::GENEVE_PORT
            | key::GENEVE_VNI
            | key::DSCP => {
                tunnel_options::apply(self, &mut options.tunnel, ours, annotation, value);
            }
            key::SCHEDULER => {
                let scheduler = config::scheduler(value);
                let scheduler = self.word(annotation, value, scheduler, config::SCHEDULER_ACCEPTED);
                options.scheduler = scheduler.unwrap_or(options.scheduler);
            }
            key::HASH => match config::hash_input(value) {
                Word::Known(hash) => options.hash = hash,
                // The backends may rely on having all connections of a client.
                Word::NotYet | Word::Unknown => {
                    self.invalid_port(options, annotation, value, config::HASH_ACCEPTED);
                }
            },
            key::PROXY_PROTOCOL => match proxy_protocol::version(value) {
                Ok(version) => {
                    let request = |version| ProxyHeaderRequest { version, annotation: annotation.to_owned() };
                    options.proxy_protocol = version.map(request);
                }
                // Backends that expect the header would take the client's first bytes for it, and others the reverse.
                Err(()) => self.invalid_port(options, annotation, value, proxy_protocol::ACCEPTED),
            },
            key::PROXY_TLVS => match proxy_protocol::tlvs(value) {
                Some((tlvs, vpce_id)) => (options.proxy_tlvs, options.vpce_id) = (tlvs, vpce_id),
                // Backends may rely on what was asked for.
                None => self.invalid_port(options, annotation, value, proxy_protocol::TLVS_ACCEPTED),
            },
            key::MAX_BANDWIDTH | key::MAX_CONNECTION_RATE | key::MAX_CONNECTIONS => {
                if let Err(accepted) = service_limits::apply(&mut options.limits, ours, value) {
                    self.invalid_port(options, annotation, value, accepted);
                }
            }
            key::BACKEND_NODE_SELECTOR if value.is_empty() => {}
            key::BACKEND_NODE_SELECTOR => match Selector::parse(value) {
                Some(selector) => options.node_selector = Some(selector),
                // All nodes would be more than were selected.
                None => self.invalid_port(options, annotation, value, Selector::ACCEPTED),
            },
            key::TABLE_SIZE => match config::table_size(value) {
                Ok(size) => options.table_size = size,
                Err(accepted) => self.invalid(annotation, value, &accepted),
            },
            key::LOAD_BALANCER_IPS | key::ADDRESS_POOL | key::ALLOW_SHARED_IP => {
                options.addresses.apply(self, ours, annotation, value);
            }
            key::DRAIN_TIMEOUT => {
                self.duration(&mut options.drain_timeout, annotation, value, Duration::ZERO, DAY);
            }
            key::SLOW_START => match config::slow_start(value) {
                Some(time) => options.slow_start = time,
                None => self.invalid(annotation, value, config::SLOW_START_ACCEPTED),
            },
            key::PASSIVE_HEALTH => match config::passive_health(value) {
                Some(on) => options.passive_health = options.passive_health.filter(|_| on),
                None => self.invalid(annotation, value, config::PASSIVE_HEALTH_ACCEPTED),
            },
            key::FLOW_TRACKING | key::MSS_CLAMP | key::SYN_COOKIES => {
                self.apply_to_flows(options, ours, annotation, value);
            }
            key::IDLE_TIMEOUT_TCP => {
                let mut idle = options.idle_timeout_tcp.unwrap_or_default();
                self.duration(&mut idle, annotation, value, SECOND, idle_max(Protocol::Tcp));
                options.idle_timeout_tcp = Some(idle).filter(|idle| !idle.is_zero());
            }
            key::IDLE_TIMEOUT_UDP => {
                let max = idle_max(Protocol::Udp);
                self.duration(&mut options.idle_timeout_udp, annotation, value, SECOND, max);
            }
            key::IDLE_TIMEOUT_SCTP => {
                let max = idle_max(Protocol::Sctp);
                self.duration(&mut options.idle_timeout_sctp, annotation, value, SECOND, max);
            }
            key::HEALTH_PROTOCOL
            | key::HEALTH_PORT
            | key::HEALTH_PATH
            | key::HEALTH_INTERVAL
            | key::HEALTH_TIMEOUT
            | key::HEALTHY_THRESHOLD
            | key::UNHEALTHY_THRESHOLD => options.health.apply(self, ours, annotation, value),
            key::BGP_COMMUNITIES | key::BGP_LOCAL_PREF | key::BGP_MED | key::BGP_PREPENDS => {
                announce_options::apply(self, &mut options.bgp, ours, annotation, value);
            }
            key::WEIGHT => {
                self.ignored(annotation, "it has an effect on Pods and Nodes only", "no annotation");
            }
            _ => {
                let finding = annotations::unknown(annotation);
                self.push(&annotation_field(annotation), Reason::InvalidValue, finding);
            }
        }
    }

    /// The annotations about the flows of a Service.
    fn apply_to_flows(&mut self, options: &mut Options, ours: &str, annotation: &str, value: &str) {
        if ours == key::FLOW_TRACKING {
            let tracking = config::flow_tracking(value);
            let tracking = self.word(annotation, value, tracking, config::FLOW_TRACKING_ACCEPTED);
            options.flow_tracking = tracking.unwrap_or(options.flow_tracking);
            return;
        }
        if ours == key::SYN_COOKIES {
            match config::syn_cookies(value) {
                Some(choice) => options.syn_cookies = Some(choice),
                None => self.invalid(annotation, value, config::SYN_COOKIES_ACCEPTED),
            }
            return;
        }
        match config::mss_clamp(value) {
            Some(clamp) => options.mss_clamp = clamp,
            None => self.invalid(annotation, value, config::MSS_CLAMP_ACCEPTED),
        }
    }

    fn duration(&mut self, to: &mut Duration, annotation: &str, value: &str, min: Duration, max: Duration) {
        match text::duration(value) {
            Some(parsed) if (min..=max).contains(&parsed) => *to = parsed,
            _ => {
                let [min, max] = [min, max].map(text::show_duration);
                self.invalid(annotation, value, &format!("{}, {min} to {max}", text::DURATION));
            }
        }
    }

    /// The value of a word, or an error.
    fn word<T>(&mut self, annotation: &str, value: &str, word: Word<T>, accepted: &str) -> Option<T> {
        match word {
            Word::Known(known) => return Some(known),
            Word::NotYet | Word::Unknown => self.invalid(annotation, value, accepted),
        }
        None
    }

    /// Refuses the limit of outgoing bandwidth that another balancer has, if answers do not pass the gateway.
    fn outgoing_bandwidth(&mut self, options: &mut Options, annotations: &Labels) {
        let is_alias = options.limits.bandwidth.is_some() && !annotations.contains_key(key::MAX_BANDWIDTH);
        if !is_alias || !options.mode.is_dsr() {
            return;
        }
        let Some((annotation, value)) = annotations.iter().find(|(name, _)| aliases::limits_answers(name))
        else {
            return;
        };
        let (mode, value) = (options.mode, text::shown(value));
        let why = format!("with forwarding {mode}, answers do not pass the gateway");
        let what =
            format!("annotation {annotation}: {value:?} cannot be kept to: {why}: no port is programmed");
        let message = format!("{annotation}: {value:?}: {why}");
        options.refused.push(PortRefusal::new(RefusalReason::NotProgrammed, message));
        let accepted =
            "tidegate.dev/forwarding nat or fullnat, or tidegate.dev/max-bandwidth for what clients send";
        self.invalid_at(&annotation_field(annotation), what, accepted);
    }

    /// Records an invalid value whose default could include what the value should exclude.
    fn invalid_port(&mut self, options: &mut Options, annotation: &str, value: &str, accepted: &str) {
        let value = text::shown(value);
        let what = format!("annotation {annotation}: {value:?} is invalid: no port is programmed");
        let message = format!("{annotation}: {value:?} is invalid");
        options.refused.push(PortRefusal::new(RefusalReason::NotProgrammed, message));
        self.invalid_at(&annotation_field(annotation), what, accepted);
    }

    /// Reports a valid request that cannot be followed, and without which no port may be programmed.
    fn refuse(&mut self, options: &mut Options, annotation: &str, why: &str, accepted: &str) {
        let message = format!("annotation {annotation} is not supported: {why}");
        self.not_supported(annotation, format!("{message}; no port is programmed"), accepted);
        options.refused.push(PortRefusal::new(RefusalReason::NotSupported, message));
    }
}

const SECOND: Duration = Duration::from_secs(1);

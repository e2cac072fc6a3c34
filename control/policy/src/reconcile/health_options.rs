//! The health-check settings of one Service: its `health-check-*` annotations override `health` of the configuration.
//!
//! [`HealthOptions::apply`] reads one annotation, and [`HealthOptions::checks`] completes the result after the last
//! one. [`Checks::target`] decides how each endpoint of a port is checked.
//!
//! Invariant: a value that is invalid or out of range is reported with the accepted values, and the configured value
//! is used instead.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::config::{self, HealthConfig, HealthProtocol};
use tidegate_model::health::{AtVip, Check, NODE_PROXY_PORT, Probe, Rules, Target};
use tidegate_model::objects::{Port, Protocol};
use tidegate_model::yaml::text;
use tidegate_wire::Named;
use tidegate_wire::proxy_header::ProxyVersion;

use super::annotation_reader::Reader;
use super::annotations::{annotation_field, key};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct HealthOptions {
    protocol: HealthProtocol,
    path: Arc<str>,
    port: Option<Port>,
    rules: Rules,
    /// The operator's limits, and the configured rules.
    interval_min: Duration,
    timeout_max: Duration,
    of_operator: Rules,
    /// The annotations that set the interval, the timeout and the path, if their values are valid.
    interval_annotation: Option<String>,
    timeout_annotation: Option<String>,
    path_annotation: Option<String>,
}

impl HealthOptions {
    /// The options of a Service without annotations.
    pub(super) fn new(config: &HealthConfig) -> Self {
        Self {
            protocol: config.protocol,
            path: Arc::clone(&config.path),
            port: None,
            rules: config.rules,
            interval_min: config.interval_min,
            timeout_max: config.timeout_max,
            of_operator: config.rules,
            interval_annotation: None,
            timeout_annotation: None,
            path_annotation: None,
        }
    }

    /// The rules that apply without an annotation.
    pub(super) fn rules_mut(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Applies our annotation `ours`. `annotation` is its name as written, which may be an alias.
    pub(super) fn apply(&mut self, read: &mut Reader<'_>, ours: &str, annotation: &str, value: &str) {
        match ours {
            key::HEALTH_PROTOCOL => self.protocol(read, annotation, value),
            key::HEALTH_PATH => match config::health_path(value) {
                Some(path) => {
                    self.path = path;
                    self.path_annotation = Some(annotation.to_owned());
                }
                None => read.invalid(annotation, value, config::HEALTH_PATH_ACCEPTED),
            },
            key::HEALTH_PORT => match value.parse::<Port>() {
                Ok(port) => self.port = Some(port),
                Err(_) => read.invalid(annotation, value, "a port number, 1 to 65535"),
            },
            key::HEALTH_INTERVAL => {
                if duration(&mut self.rules.interval, read, annotation, value, config::HEALTH_INTERVAL) {
                    self.interval_annotation = Some(annotation.to_owned());
                }
            }
            key::HEALTH_TIMEOUT => {
                if duration(&mut self.rules.timeout, read, annotation, value, config::HEALTH_TIMEOUT) {
                    self.timeout_annotation = Some(annotation.to_owned());
                }
            }
            key::HEALTHY_THRESHOLD => count(&mut self.rules.healthy_threshold, read, annotation, value),
            key::UNHEALTHY_THRESHOLD => count(&mut self.rules.unhealthy_threshold, read, annotation, value),
            _ => unreachable!("options passes on the keys of health checks"),
        }
    }

    fn protocol(&mut self, read: &mut Reader<'_>, annotation: &str, value: &str) {
        let (word, accepted) = (value.to_ascii_lowercase(), text::names::<HealthProtocol>());
        match HealthProtocol::named(&word) {
            Some(protocol) => self.protocol = protocol,
            None if config::HEALTH_PROTOCOLS_LATER.contains(&&*word) => {
                let used = self.protocol;
                let what = format!("annotation {annotation}: {value:?} is not supported yet; {used} is used");
                read.not_supported(annotation, what, &accepted);
            }
            None => read.invalid(annotation, value, &accepted),
        }
    }

    /// The checks of a Service whose ports have these protocols. Contradictions are reported. Checks at the
    /// endpoints' own ports carry a `header` of the PROXY protocol if the endpoints expect one.
    pub(super) fn checks(
        mut self,
        read: &mut Reader<'_>,
        ports: impl Iterator<Item = Protocol>,
        header: Option<ProxyVersion>,
    ) -> Checks {
        self.apply_operator_limits(read);
        if self.rules.timeout > self.rules.interval {
            // A timeout that the Service does not set is the operator's default, so it is not the Service's fault.
            if let Some(annotation) = &self.timeout_annotation {
                let [timeout, interval] = [self.rules.timeout, self.rules.interval].map(text::show_duration);
                let what = format!(
                    "health-check timeout {timeout} is longer than the interval {interval}; the timeout is reduced to \
                     {interval}"
                );
                read.invalid_at(&annotation_field(annotation), what, "a timeout of at most the interval");
            }
            self.rules.timeout = self.rules.interval;
        }
        let by_http = matches!(self.protocol, HealthProtocol::Http | HealthProtocol::Https);
        if let Some(annotation) = self.path_annotation.as_deref().filter(|_| !by_http) {
            let why = format!("checks use {}", self.protocol);
            read.ignored(annotation, &why, "tidegate.dev/health-check-protocol http or https");
        }
        let only_for = match self.protocol {
            HealthProtocol::Udp => Some((Protocol::Udp, "the Service has no UDP port; tcp is used")),
            HealthProtocol::Sctp => Some((Protocol::Sctp, "the Service has no SCTP port; tcp is used")),
            _ => None,
        };
        if let Some((wanted, why)) = only_for
            && read.has(key::HEALTH_PROTOCOL)
            && !ports.into_iter().any(|protocol| protocol == wanted)
        {
            read.ignored(key::HEALTH_PROTOCOL, why, "tcp, http, https, none");
        }
        let namespace = read.namespace();
        let probe = |check| Some(Arc::new(Probe::new(check, self.rules).of(&namespace)));
        let path = || Arc::clone(&self.path);
        let (stream, datagram) = match self.protocol {
            HealthProtocol::Tcp => (probe(Check::Tcp), None),
            HealthProtocol::Http => (probe(Check::Http { path: path() }), None),
            HealthProtocol::Https => (probe(Check::Https { path: path() }), None),
            HealthProtocol::Udp => (probe(Check::Tcp), probe(Check::Udp)),
            HealthProtocol::Sctp => (probe(Check::Tcp), None),
            HealthProtocol::None => (None, None),
        };
        let with_header = |probe: &Arc<Probe>| Arc::new(Probe::clone(probe).with_header(header));
        let stream_of_own_port = stream.as_ref().map(with_header);
        let association = probe(Check::Sctp).filter(|_| self.protocol != HealthProtocol::None);
        // `health-check-port` applies to the check that the Service requests.
        let port_of = match self.protocol {
            HealthProtocol::Udp => Protocol::Udp,
            HealthProtocol::Sctp => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        let (rules, of_operator) = (self.rules, self.of_operator);
        Checks {
            stream,
            stream_of_own_port,
            datagram,
            association,
            port: self.port,
            port_of,
            rules,
            of_operator,
            namespace,
        }
    }

    /// Applies the operator's limits, and reports requests that exceed them.
    fn apply_operator_limits(&mut self, read: &mut Reader<'_>) {
        let rules = &mut self.rules;
        let bounds = [
            (
                &mut rules.interval,
                self.interval_min..=Duration::MAX,
                &self.interval_annotation,
                ("health.intervalMin", "least"),
            ),
            (
                &mut rules.timeout,
                Duration::ZERO..=self.timeout_max,
                &self.timeout_annotation,
                ("health.timeoutMax", "most"),
            ),
        ];
        for (requested, allowed, set_by, (key, bound)) in bounds {
            let used = (*requested).clamp(*allowed.start(), *allowed.end());
            if used == *requested {
                continue;
            }
            if let Some(annotation) = set_by {
                let [requested, used] = [*requested, used].map(text::show_duration);
                let what = format!(
                    "annotation {annotation}: {requested} is not allowed by the operator's {key}; {used} is used"
                );
                let field = annotation_field(annotation);
                read.invalid_at(&field, what, &format!("at {bound} {used}"));
            }
            *requested = used;
        }
    }
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            stream: None,
            stream_of_own_port: None,
            datagram: None,
            association: None,
            port: None,
            port_of: Protocol::Tcp,
            rules: Rules::default(),
            of_operator: Rules::default(),
            namespace: Arc::default(),
        }
    }
}

/// How the endpoints of a Service are checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Checks {
    /// The check of TCP ports, if any.
    stream: Option<Arc<Probe>>,
    /// The check of the TCP port that clients use: `stream`, with a PROXY protocol header if endpoints expect one.
    stream_of_own_port: Option<Arc<Probe>>,
    /// The check of UDP ports, if they have their own.
    datagram: Option<Arc<Probe>>,
    /// The check of SCTP ports, if any.
    association: Option<Arc<Probe>>,
    /// The port to check instead of each endpoint's own.
    port: Option<Port>,
    port_of: Protocol,
    /// The rules of all checks, which also apply to nodes.
    rules: Rules,
    /// The rules of a Service without annotations.
    of_operator: Rules,
    namespace: Arc<str>,
}

impl Checks {
    /// The check of an endpoint at one of its ports, if any: the Service's check, at the port that the Service names
    /// or at the endpoint's own port.
    ///
    /// `health-check-port` belongs to the Service's check: with `udp` it is a UDP port, with `sctp` an SCTP port, and
    /// ports of other protocols are checked at their own number. With a check by TCP or HTTP it also applies to UDP and
    /// SCTP ports. Without it, SCTP ports have their own check, and the TCP ports of the same endpoint decide for UDP
    /// ports ([`TcpEvidence`](super::health_result::TcpEvidence)).
    pub(super) fn target(
        &self,
        protocol: Protocol,
        ip: IpAddr,
        own: Port,
        at_vip: Option<&Arc<AtVip>>,
    ) -> Option<Target> {
        let by_stream = self.port_of == Protocol::Tcp && self.port.is_some();
        let port = self.port.filter(|_| by_stream || protocol == self.port_of);
        // A separate port for checks expects no header.
        let at_own = port.is_none_or(|port| port == own);
        let probe = match protocol {
            Protocol::Tcp if at_own => self.stream_of_own_port.as_ref(),
            Protocol::Tcp => self.stream.as_ref(),
            Protocol::Udp | Protocol::Sctp if by_stream => self.stream.as_ref(),
            Protocol::Udp => self.datagram.as_ref(),
            Protocol::Sctp => self.association.as_ref(),
        };
        probe.map(|probe| Target::new(SocketAddr::new(ip, port.unwrap_or(own).get()), probe).at(at_vip))
    }
}

/// The check of nodes that are backends instead of endpoints (target node).
#[derive(Debug)]
pub(super) struct NodeCheck(Option<(Arc<Probe>, Port)>);

impl NodeCheck {
    /// The Service's own check if it names a port, and no check if the Service disables checks. Otherwise the check
    /// that nodes answer for Kubernetes: the health-check node port of the Service (policy Local), which also reports
    /// the weight, or else the node's proxy.
    pub(super) fn new(checks: &Checks, health_check_node_port: Option<Port>) -> Self {
        let Some(stream) = &checks.stream else { return Self(None) };
        if let Some(port) = checks.port {
            return Self(Some((Arc::clone(stream), port)));
        }
        let (check, port) = match health_check_node_port {
            Some(port) => (Check::NodeHealthPort, port),
            None => (Check::NodeProxy, Port::new(NODE_PROXY_PORT).expect("the constant is not zero")),
        };
        // All Services share one check of the node's proxy if it has the operator's rules. It runs on behalf of the
        // operator.
        let probe = Probe::new(check, checks.rules);
        let is_common = probe.check == Check::NodeProxy && checks.rules == checks.of_operator;
        let probe = if is_common { probe } else { probe.of(&checks.namespace) };
        Self(Some((Arc::new(probe), port)))
    }

    /// The check of the node with this address.
    pub(super) fn target(&self, ip: IpAddr) -> Option<Target> {
        let (probe, port) = self.0.as_ref()?;
        Some(Target::new(SocketAddr::new(ip, port.get()), probe))
    }
}

/// Applies a duration. Returns whether it is valid.
#[must_use]
fn duration(
    to: &mut Duration,
    read: &mut Reader<'_>,
    annotation: &str,
    value: &str,
    range: RangeInclusive<Duration>,
) -> bool {
    match text::duration(value) {
        Some(parsed) if range.contains(&parsed) => {
            *to = parsed;
            true
        }
        _ => {
            let [min, max] = [*range.start(), *range.end()].map(text::show_duration);
            read.invalid(annotation, value, &format!("{}, {min} to {max}", text::DURATION));
            false
        }
    }
}

fn count(to: &mut u32, read: &mut Reader<'_>, annotation: &str, value: &str) {
    match value.parse() {
        Ok(count) if config::HEALTH_THRESHOLD.contains(&count) => *to = count,
        _ => read.invalid(annotation, value, "a number, 1 to 100"),
    }
}

//! What an edge serves: a pure function from objects to listeners with their backends.
//!
//! An edge is the second tier, where TLS and HTTP end. A Service requests it by annotations ([`options`]). [`desired`]
//! finds its addresses, the ports that need an edge, their certificates and their endpoints, and reports each request
//! that is not granted as a [`Finding`]. Nothing here knows HAProxy or reads a private key.
//!
//! Invariant: the order in which objects were read has no effect. Invariant: an address and port belongs to at most one
//! listener.

mod finding;
mod options;

#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use tidegate_model::config::LOAD_BALANCER_CLASS;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{
    EndpointIndex, ObjectKey, Objects, Port, PortEndpoints, Service, ServicePort, ServiceType, Viewpoint,
    choose,
};

use crate::reconcile::{LOAD_BALANCER_IPS, edge_key};
pub use finding::{Finding, Reason};
pub use options::{BackendProtocol, ForwardedHeaders, TlsPolicy};
use options::{Options, PortOptions};

/// The maximum number of servers of one listener: HAProxy's round robin has no more.
pub const SERVERS_MAX: usize = 4095;

/// What the listeners depend on.
#[derive(Debug)]
pub struct Input<'a> {
    /// The objects.
    pub objects: &'a Objects,
    /// The networks whose addresses the edge serves.
    pub networks: &'a [IpNet],
    /// The state of each Secret of type `kubernetes.io/tls`.
    pub pairs: &'a BTreeMap<ObjectKey, Pair>,
}

/// Whether a certificate and its key can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pair {
    /// They can.
    Usable,
    /// They can't, for this reason.
    Refused(String),
}

/// What an edge serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// The listeners.
    pub listeners: BTreeMap<ListenerId, Listener>,
    /// Requests that were not granted, in the order of the Services' precedence.
    pub findings: Vec<Finding>,
}

/// A port of a Service. Prints as `NAMESPACE.NAME:PORT`, which is unambiguous because names of namespaces and Services
/// contain no dots.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId {
    /// The Service.
    pub service: ObjectKey,
    /// The port.
    pub port: Port,
}

impl fmt::Display for ListenerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}:{}", self.service.namespace, self.service.name, self.port)
    }
}

/// How a port is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The addresses, sorted.
    pub addresses: BTreeSet<IpAddr>,
    /// TLS to clients.
    pub tls: Option<Tls>,
    /// Whether every request is redirected to HTTPS. There are no servers then.
    pub redirects: bool,
    /// What backends receive.
    pub protocol: BackendProtocol,
    /// What happens to forwarded headers.
    pub forwarded: ForwardedHeaders,
    /// The admitted clients; all if it is empty.
    pub source_ranges: Vec<IpNet>,
    /// Whether the requests of a client go to one server (`sessionAffinity: ClientIP`).
    pub affinity: bool,
    /// How long a connection may be idle; `None` for the default.
    pub idle: Option<Duration>,
    /// The endpoints that take new requests.
    pub servers: BTreeSet<SocketAddr>,
}

impl Listener {
    /// Whether the edge handles requests.
    #[must_use]
    pub fn is_http(&self) -> bool {
        self.redirects || self.protocol.is_http()
    }
}

/// TLS to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// What they may negotiate.
    pub policy: TlsPolicy,
    /// The Secrets, at least one. The first is the default for clients whose SNI matches none.
    pub secrets: Vec<ObjectKey>,
}

/// Computes what an edge serves.
#[must_use]
pub fn desired(input: &Input<'_>) -> Desired {
    let mut services: Vec<&Service> = input.objects.services.values().map(AsRef::as_ref).collect();
    services.retain(|service| options::is_requested(&service.meta.annotations));
    services.sort_by(|a, b| a.meta.seniority().cmp(&b.meta.seniority()));
    let mut result = Desired::default();
    let mut owners: BTreeMap<(IpAddr, Port), &ObjectKey> = BTreeMap::new();
    let index = EndpointIndex::new(input.objects);
    for service in services {
        serve(input, &index, service, &mut owners, &mut result);
    }
    result
}

/// Adds the listeners of one Service.
fn serve<'a>(
    input: &Input<'_>,
    index: &EndpointIndex<'_>,
    service: &'a Service,
    owners: &mut BTreeMap<(IpAddr, Port), &'a ObjectKey>,
    result: &mut Desired,
) {
    let findings = &mut result.findings;
    let is_other_class = service.load_balancer_class.as_deref().is_some_and(|it| it != LOAD_BALANCER_CLASS);
    if service.meta.deletion_time.is_some() || is_other_class {
        return;
    }
    let is_exposed = service.service_type == ServiceType::LoadBalancer || !service.external_ips.is_empty();
    let not_exposed = "only Services of type LoadBalancer, or with external IPs, have addresses";
    if let Some(why) = service.not_for_proxies().or((!is_exposed).then_some(not_exposed)) {
        let what = format!("the edge does not serve Service {}: {why}", service.meta.key);
        let diagnostic =
            Diagnostic::warning(what).accepting("type LoadBalancer, or no annotation of an edge");
        findings.push(Finding::at(&service.meta, "spec.type", Reason::NotServed, diagnostic));
        return;
    }
    let options = options::read(service, findings);
    let ports: Vec<(usize, &ServicePort, PortOptions)> = (service.ports.iter().enumerate())
        .filter_map(|(at, port)| Some((at, port, options.of(port)?)))
        .collect();
    if options.refused || ports.is_empty() {
        if !options.refused {
            let what = format!("no port of Service {} needs an edge: none has TLS or HTTP", service.meta.key);
            let accepted = "tidegate.dev/tls-secret, or a backend protocol or appProtocol of HTTP";
            let diagnostic = Diagnostic::warning(what).accepting(accepted);
            findings.push(Finding::at(&service.meta, "metadata.annotations", Reason::NotServed, diagnostic));
        }
        return;
    }
    let redirects = checked_redirect(service, &options, &ports, findings);
    let addresses = addresses(service, input.networks, findings);
    let tls = certificates(service, &options, &ports, input.pairs, findings);
    let mut endpoints = index.resolve(service);
    for fault in endpoints.findings.drain(..).chain(endpoints.unmatched.drain(..)) {
        let reason = Reason::EndpointRefused;
        findings.push(Finding { object: service.meta.key.clone(), reason, diagnostic: fault });
    }
    for (at, port, served) in ports {
        let tls = match (served.tls, &tls) {
            (true, Some(tls)) => Some(tls.clone()),
            (true, None) => continue,
            (false, _) => None,
        };
        let redirects = tls.is_none() && redirects && options.redirects(port);
        if tls.is_none() && !redirects && !served.protocol.is_http() {
            continue;
        }
        let owned = own(service, at, port, &addresses, owners, findings);
        if owned.is_empty() {
            continue;
        }
        let servers =
            if redirects { BTreeSet::new() } else { servers(service, port, &endpoints.ports[at], findings) };
        let listener = Listener {
            addresses: owned,
            tls,
            redirects,
            protocol: served.protocol,
            forwarded: options.forwarded,
            source_ranges: service.source_ranges.clone(),
            affinity: service.session_affinity.is_some(),
            idle: options.idle,
            servers,
        };
        let id = ListenerId { service: service.meta.key.clone(), port: port.port };
        result.listeners.insert(id, listener);
    }
}

/// Whether port 80 is redirected. That needs TLS on port 443, which the redirect leads to.
fn checked_redirect(
    service: &Service,
    options: &Options,
    ports: &[(usize, &ServicePort, PortOptions)],
    findings: &mut Vec<Finding>,
) -> bool {
    let has = |number: u16, tls: bool| ports.iter().any(|(_, p, o)| p.port.get() == number && o.tls == tls);
    if options.redirect && !(has(443, true) && has(80, false)) {
        let key = edge_key::REDIRECT_HTTPS;
        let what =
            format!("annotation {key} has no effect: it redirects port 80 without TLS to port 443 with TLS");
        let diagnostic = Diagnostic::warning(what).accepting("ports 80 and 443, of which only 443 has TLS");
        let field = format!("metadata.annotations[{key}]");
        findings.push(Finding::at(&service.meta, &field, Reason::InvalidValue, diagnostic));
        return false;
    }
    options.redirect
}

/// The addresses of a Service that the edge serves: those in its status, else those that it requests; and its external
/// IPs.
fn addresses(service: &Service, networks: &[IpNet], findings: &mut Vec<Finding>) -> BTreeSet<IpAddr> {
    let annotation = service.meta.annotations.get(LOAD_BALANCER_IPS);
    let of_annotation = || {
        let words = annotation.into_iter().flat_map(|value| value.split(','));
        words.filter_map(|word| word.trim().parse::<IpAddr>().ok()).map(|ip| ip.to_canonical())
    };
    let (field, load_balancer): (_, Vec<IpAddr>) = if !service.ingress_ips.is_empty() {
        ("status.loadBalancer.ingress".to_owned(), service.ingress_ips.clone())
    } else if of_annotation().next().is_some() {
        (format!("metadata.annotations[{LOAD_BALANCER_IPS}]"), of_annotation().collect())
    } else {
        ("spec.loadBalancerIP".to_owned(), service.load_balancer_ip.into_iter().collect())
    };
    let load_balancer = load_balancer.into_iter().map(|ip| (ip, field.as_str()));
    let all = load_balancer.chain(service.external_ips.iter().map(|ip| (*ip, "spec.externalIPs")));
    let mut served = BTreeSet::new();
    let mut any = false;
    for (ip, field) in all {
        any = true;
        if networks.iter().any(|net| net.contains(&ip)) {
            served.insert(ip);
            continue;
        }
        let what = format!("the edge does not serve {ip}: it is not in its addresses");
        let accepted = networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let diagnostic = Diagnostic::error(what).accepting(format!("an address in {accepted}"));
        findings.push(Finding::at(&service.meta, field, Reason::AddressRefused, diagnostic));
    }
    if !any {
        let what = format!("Service {} has no address yet", service.meta.key);
        let accepted =
            format!("an address in status.loadBalancer.ingress, or in annotation {LOAD_BALANCER_IPS}");
        let diagnostic = Diagnostic::warning(what).accepting(accepted);
        findings.push(Finding::at(&service.meta, "status.loadBalancer", Reason::AddressRefused, diagnostic));
    }
    served
}

/// The usable certificates of a Service; `None` if no port has TLS or none is usable.
fn certificates(
    service: &Service,
    options: &Options,
    ports: &[(usize, &ServicePort, PortOptions)],
    pairs: &BTreeMap<ObjectKey, Pair>,
    findings: &mut Vec<Finding>,
) -> Option<Tls> {
    if !ports.iter().any(|(_, _, served)| served.tls) {
        return None;
    }
    let field = format!("metadata.annotations[{}]", edge_key::TLS_SECRET);
    let mut report = |what: String, accepted: &str| {
        let diagnostic = Diagnostic::error(what).accepting(accepted);
        findings.push(Finding::at(&service.meta, &field, Reason::CertificateRefused, diagnostic));
    };
    let mut secrets = Vec::new();
    for name in &options.secrets {
        let key = ObjectKey::new(service.meta.key.namespace.as_str(), name.as_str());
        let accepted = "a Secret of type kubernetes.io/tls in the Service's namespace, with a matching pair";
        match pairs.get(&key) {
            Some(Pair::Usable) => secrets.push(key),
            Some(Pair::Refused(why)) => report(format!("Secret {key} cannot be used: {why}"), accepted),
            None => report(format!("there is no Secret {key} of type kubernetes.io/tls"), accepted),
        }
    }
    if secrets.is_empty() {
        report(
            "the ports with TLS are not served: none of their certificates can be used".to_owned(),
            "at least one usable Secret",
        );
        return None;
    }
    Some(Tls { policy: options.policy, secrets })
}

/// The addresses on which this port belongs to the Service.
fn own<'a>(
    service: &'a Service,
    at: usize,
    port: &ServicePort,
    addresses: &BTreeSet<IpAddr>,
    owners: &mut BTreeMap<(IpAddr, Port), &'a ObjectKey>,
    findings: &mut Vec<Finding>,
) -> BTreeSet<IpAddr> {
    let mut owned = BTreeSet::new();
    for ip in addresses {
        match owners.entry((*ip, port.port)) {
            Entry::Vacant(free) => {
                free.insert(&service.meta.key);
                owned.insert(*ip);
            }
            Entry::Occupied(owner) => {
                let what =
                    format!("{} belongs to Service {}", SocketAddr::new(*ip, port.port.get()), owner.get());
                let diagnostic =
                    Diagnostic::error(what).accepting("an address and port that no older Service has");
                let field = format!("spec.ports[{at}].port");
                findings.push(Finding::at(&service.meta, &field, Reason::Conflict, diagnostic));
            }
        }
    }
    owned
}

/// The endpoints that take new requests.
fn servers(
    service: &Service,
    port: &ServicePort,
    endpoints: &PortEndpoints,
    findings: &mut Vec<Finding>,
) -> BTreeSet<SocketAddr> {
    let choice = choose(&endpoints.endpoints, service.external_traffic_policy, Viewpoint::default());
    let all = choice.endpoints();
    if all.len() > SERVERS_MAX {
        let what = format!("port {} has {} endpoints; {SERVERS_MAX} are used", port.port, all.len());
        let diagnostic = Diagnostic::warning(what).accepting(format!("at most {SERVERS_MAX} endpoints"));
        findings.push(Finding::at(&service.meta, "spec.ports", Reason::EndpointRefused, diagnostic));
    }
    all.iter().take(SERVERS_MAX).map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port.get())).collect()
}

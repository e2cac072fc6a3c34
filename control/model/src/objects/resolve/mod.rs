//! Finds the endpoints of each port of a Service from slices, Endpoints or Pods.
//!
//! Pure. `reconcile` builds one [`EndpointIndex`] over a state of [`Objects`] and queries it for each Service.
//! [`super::choose`] and health decide which of the endpoints take flows.
//!
//! It uses the first of these that exists: EndpointSlices labelled with the Service's name; legacy Endpoints of the
//! same name; for a Service with a selector, the Pods that it selects. The endpoints of a Gateway's listener are those
//! of the Services that its route names.
//!
//! Invariant: the result does not depend on the order of slices, of endpoints in them, or of Pods.

mod routed;
mod unmatched;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::{
    AddressType, EndpointPort, EndpointSlice, Endpoints, IpFamily, Metadata, NotKept, ObjectKey, Objects,
    Pod, Port, Protocol, Service, ServicePort, TargetPort,
};
use crate::diagnostic::{Diagnostic, Location};

/// The endpoints of a Service, port by port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEndpoints {
    /// One entry for each of the Service's ports, in its order.
    pub ports: Vec<PortEndpoints>,
    /// Refused endpoints and other faults, as warnings with their location.
    pub findings: Vec<Diagnostic>,
    /// Ports of the Service without endpoints, because no slice, Endpoints or Pod has such a port. The warnings list
    /// the ports of both.
    pub unmatched: Vec<Diagnostic>,
    /// The parts of its EndpointSlices that can't be used ([`Metadata::faults`]), each with the slice.
    pub slice_faults: Vec<(ObjectKey, Diagnostic)>,
    /// The number of endpoints over all ports, if it exceeds [`ENDPOINTS_MAX`]. The ports then have none.
    pub too_many: Option<usize>,
    /// Set if the source does not keep the endpoints of its EndpointSlices, unless there are
    /// [`too_many`](Self::too_many). The ports then have none.
    pub not_kept: Option<NotKept>,
}

/// The maximum number of endpoints of one Service over all its ports. If there are more, none are built.
pub const ENDPOINTS_MAX: usize = 262_144;

/// The endpoints of one service port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortEndpoints {
    /// The Service's port number.
    pub port: Port,
    /// Its protocol.
    pub protocol: Protocol,
    /// Sorted by (address, port), without duplicates.
    pub endpoints: Vec<ResolvedEndpoint>,
    /// For a listener of a Gateway: which endpoints belong to each backend of its route, in the order of the route.
    /// `None` for a port of a Service.
    pub shares: Option<Vec<EndpointShare>>,
}

/// The endpoints that share the flows of one backend of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointShare {
    /// The share of new flows relative to the other backends of the listener.
    pub weight: u32,
    /// The endpoints, sorted; those of an invalid reference are empty.
    pub endpoints: Vec<(IpAddr, Port)>,
}

impl PortEndpoints {
    /// Distinct addresses of ready endpoints, for health-check node ports: only endpoints on `node` if it is given,
    /// otherwise all.
    pub fn ready_addresses(&self, node: Option<&str>) -> BTreeSet<IpAddr> {
        let here = |e: &&ResolvedEndpoint| node.is_none() || e.node.as_deref() == node;
        self.endpoints.iter().filter(|e| e.ready).filter(here).map(|e| e.ip).collect()
    }
}

/// A backend candidate: an address and port with its properties. Ordered by address and port first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResolvedEndpoint {
    /// Address.
    pub ip: IpAddr,
    /// The port, as resolved by the slice or the Pod.
    pub port: Port,
    /// Whether it takes new flows.
    pub ready: bool,
    /// Whether it answers.
    pub serving: bool,
    /// Whether it is terminating.
    pub terminating: bool,
    /// Its node.
    pub node: Option<String>,
    /// Its zone: the endpoint's own, otherwise its node's.
    pub zone: Option<String>,
    /// The zones that should use it, sorted.
    pub hint_zones: Vec<String>,
    /// The nodes that should use it, sorted.
    pub hint_nodes: Vec<String>,
    /// The Pod behind it.
    pub pod: Option<ObjectKey>,
}

impl ResolvedEndpoint {
    /// Whether it answers its clients according to Kubernetes: it is ready, or it terminates and still serves.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.ready || self.serving && self.terminating
    }

    /// Whether this entry takes precedence over another entry for the same address and port: an entry that is not
    /// terminating comes first, then a ready one, then a serving one. The remaining comparison only makes the result
    /// independent of order.
    fn outranks(&self, other: &Self) -> bool {
        let rank = |e: &Self| (!e.terminating, e.ready, e.serving);
        rank(self).cmp(&rank(other)).then_with(|| other.cmp(self)).is_gt()
    }
}

/// Why an address cannot be an endpoint, or `None` if it can. This is the API server's rule for endpoint addresses.
pub fn refused_endpoint(ip: IpAddr) -> Option<&'static str> {
    let link_local = match ip.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let ip = ip.to_canonical();
    if ip.is_unspecified() {
        Some("unspecified")
    } else if ip.is_loopback() {
        Some("loopback")
    } else if link_local {
        Some("link-local")
    } else if ip.is_multicast() {
        Some("multicast")
    } else if ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some("the broadcast address")
    } else {
        None
    }
}

/// Where the endpoints of a Service with these addresses were written: in its slices, its Endpoints, or as Pods.
pub fn endpoint_locations(
    objects: &Objects,
    slices: &SliceIndex,
    service: &ObjectKey,
    wanted: &BTreeSet<IpAddr>,
) -> BTreeMap<IpAddr, Location> {
    let mut locations = BTreeMap::new();
    let mut note = |ip: IpAddr, location: &dyn Fn() -> Option<Location>| {
        if wanted.contains(&ip) && !locations.contains_key(&ip) {
            locations.extend(location().map(|location| (ip, location)));
        }
    };
    for slice in slices.of(service) {
        for (i, endpoint) in slice.endpoints.iter().enumerate() {
            let location = || slice.meta.origin.field(&format!("endpoints[{i}].addresses[0]"));
            endpoint.address.into_iter().for_each(|ip| note(ip, &location));
        }
    }
    if !slices.of(service).is_empty() {
        return locations;
    }
    if let Some(endpoints) = objects.endpoints.get(service) {
        for (i, subset) in endpoints.subsets.iter().enumerate() {
            let lists =
                [("addresses", &subset.addresses), ("notReadyAddresses", &subset.not_ready_addresses)];
            for (list, addresses) in lists {
                for (j, address) in addresses.iter().enumerate() {
                    let location = || endpoints.meta.origin.field(&format!("subsets[{i}].{list}[{j}].ip"));
                    note(address.ip, &location);
                }
            }
        }
        return locations;
    }
    for pod in objects.pods.values().filter(|pod| pod.meta.key.namespace == service.namespace) {
        pod.ips.iter().for_each(|ip| note(*ip, &|| pod.meta.origin.field("status.podIP")));
    }
    locations
}

/// Finds the objects that describe a Service's endpoints in one state of objects.
pub struct EndpointIndex<'a> {
    objects: &'a Objects,
    slices: Cow<'a, SliceIndex>,
    pods: Cow<'a, PodIndex<'a>>,
}

/// EndpointSlices by their Service. The index is updated from one state of the objects to the next.
#[derive(Debug, Clone, Default)]
pub struct SliceIndex(HashMap<ObjectKey, Vec<Arc<EndpointSlice>>>);

impl SliceIndex {
    /// Builds the index in one pass over all slices.
    pub fn new(objects: &Objects) -> Self {
        let mut index = Self::default();
        for slice in objects.endpoint_slices.values() {
            drop(index.replace(None, Some(slice)));
        }
        index
    }

    /// The slices of a Service.
    pub fn of(&self, service: &ObjectKey) -> &[Arc<EndpointSlice>] {
        self.0.get(service).map_or(&[], Vec::as_slice)
    }

    /// Updates the index after a slice was added, changed or removed. Returns the affected Services.
    pub fn replace(
        &mut self,
        before: Option<&Arc<EndpointSlice>>,
        after: Option<&Arc<EndpointSlice>>,
    ) -> impl Iterator<Item = ObjectKey> + use<> {
        let service = |slice: Option<&Arc<EndpointSlice>>| slice?.service();
        let (was, is) = (service(before), service(after));
        if let (Some(service), Some(slice)) = (&was, before)
            && let Some(slices) = self.0.get_mut(service)
        {
            slices.retain(|known| known.meta.key != slice.meta.key);
            if slices.is_empty() {
                self.0.remove(service);
            }
        }
        if let (Some(service), Some(slice)) = (&is, after) {
            self.0.entry(service.clone()).or_default().push(Arc::clone(slice));
        }
        was.into_iter().chain(is)
    }
}

/// Pods by namespace, built when the first Service needs them.
#[derive(Debug, Clone, Default)]
pub struct PodIndex<'a>(OnceCell<HashMap<&'a str, Vec<&'a Pod>>>);

impl<'a> PodIndex<'a> {
    fn of_namespace(&self, objects: &'a Objects, namespace: &str) -> &[&'a Pod] {
        let all = self.0.get_or_init(|| {
            let mut pods: HashMap<&str, Vec<&Pod>> = HashMap::new();
            for (key, pod) in &objects.pods {
                pods.entry(key.namespace.as_str()).or_default().push(pod);
            }
            pods
        });
        all.get(namespace).map_or(&[], Vec::as_slice)
    }
}

impl<'a> EndpointIndex<'a> {
    /// Indexes the objects, in one pass over slices, and one over Pods if a Service needs it.
    pub fn new(objects: &'a Objects) -> Self {
        Self { objects, slices: Cow::Owned(SliceIndex::new(objects)), pods: Cow::Owned(PodIndex::default()) }
    }

    /// Like [`Self::new`], with existing indexes, which must belong to these objects.
    pub fn over(objects: &'a Objects, slices: &'a SliceIndex, pods: &'a PodIndex<'a>) -> Self {
        Self { objects, slices: Cow::Borrowed(slices), pods: Cow::Borrowed(pods) }
    }

    /// The endpoints of every port of `service`.
    pub fn resolve(&self, service: &Service) -> ServiceEndpoints {
        if service.meta.key.gateway_name().is_some() {
            return self.routed(service);
        }
        let mut merge = Merge::new(self.objects, service);
        let demand = self.demand(service, &merge);
        if demand > ENDPOINTS_MAX {
            return ServiceEndpoints { too_many: Some(demand), ..merge.finish() };
        }
        match self.not_kept(service, &merge) {
            // Some of its slices may not have the Service's ports, but the slices list too many endpoints in any case.
            Some(NotKept::TooManyEndpoints) => {
                let listed = self.slices.of(&service.meta.key).iter().map(|slice| slice.endpoint_count());
                return ServiceEndpoints { too_many: Some(listed.sum()), ..merge.finish() };
            }
            Some(why) => return ServiceEndpoints { not_kept: Some(why), ..merge.finish() },
            None => {}
        }
        if let Some(slices) = self.slices.0.get(&service.meta.key) {
            slices.iter().for_each(|slice| merge.slice(slice));
            merge.unmatched_by_slices(slices);
        } else if let Some(endpoints) = self.objects.endpoints.get(&service.meta.key) {
            merge.legacy(endpoints);
            merge.unmatched_by_legacy(endpoints);
        } else {
            self.selected_pods(service).for_each(|pod| merge.pod(pod));
            merge.unmatched_by_pods(self.selected_pods(service));
        }
        merge.finish()
    }

    /// The Pods that a Service's selector selects, or none without a selector.
    fn selected_pods<'s>(&'s self, service: &'s Service) -> impl Iterator<Item = &'a Pod> + use<'s, 'a> {
        let pods = match service.selector.is_empty() {
            true => &[],
            false => self.pods.of_namespace(self.objects, &service.meta.key.namespace),
        };
        let selected = |p: &&Pod| service.selector.iter().all(|(k, v)| p.meta.labels.get(k) == Some(v));
        pods.iter().copied().filter(selected)
    }

    /// The number of endpoints that slices and Endpoints describe over all ports of a Service, counting duplicates.
    fn demand(&self, service: &Service, merge: &Merge<'_>) -> usize {
        if let Some(slices) = self.slices.0.get(&service.meta.key) {
            return slices.iter().map(|slice| slice.endpoint_count() * merge.ports_served(slice)).sum();
        }
        if let Some(endpoints) = self.objects.endpoints.get(&service.meta.key) {
            let subsets = endpoints.subsets.iter();
            let listed = subsets.map(|s| (s.addresses.len() + s.not_ready_addresses.len(), &s.ports));
            return listed.map(|(addresses, ports)| addresses * merge.matching(ports).len()).sum();
        }
        self.selected_pods(service).map(|pod| pod.ips.len() * service.ports.len()).sum()
    }

    /// Why the endpoints of slices that serve ports of the Service are not kept; `None` if all are kept.
    fn not_kept(&self, service: &Service, merge: &Merge<'_>) -> Option<NotKept> {
        let slices = self.slices.of(&service.meta.key).iter();
        let requested = slices.filter(|slice| slice.endpoint_count() > 0 && merge.ports_served(slice) > 0);
        requested.filter_map(|slice| slice.left_out).map(|left_out| left_out.why).min()
    }

    /// The objects that were indexed.
    pub fn objects(&self) -> &'a Objects {
        self.objects
    }
}

/// The merge of one Service's endpoints.
struct Merge<'a> {
    objects: &'a Objects,
    service: &'a Service,
    by_name: HashMap<(&'a str, Protocol), usize>,
    ports: Vec<BTreeMap<(IpAddr, Port), ResolvedEndpoint>>,
    findings: BTreeSet<Diagnostic>,
    unmatched: Vec<Diagnostic>,
    slice_faults: Vec<(ObjectKey, Diagnostic)>,
}

impl<'a> Merge<'a> {
    fn new(objects: &'a Objects, service: &'a Service) -> Self {
        let ports = vec![BTreeMap::new(); service.ports.len()];
        let mut by_name = HashMap::with_capacity(service.ports.len());
        for (at, port) in service.ports.iter().enumerate() {
            by_name.entry((port.name.as_str(), port.protocol)).or_insert(at);
        }
        let (findings, unmatched, slice_faults) = (BTreeSet::new(), Vec::new(), Vec::new());
        Self { objects, service, by_name, ports, findings, unmatched, slice_faults }
    }

    fn slice(&mut self, slice: &EndpointSlice) {
        let faults = slice.meta.faults.iter();
        self.slice_faults.extend(faults.map(|fault| (slice.meta.key.clone(), fault.clone())));
        if slice.address_type == AddressType::Fqdn {
            let what =
                format!("EndpointSlice {} is ignored: addressType FQDN is not supported", slice.meta.key);
            self.finding(&slice.meta, "addressType", &what, Some("addressType IPv4 or IPv6"));
            return;
        }
        let matching = self.matching(&slice.ports);
        for (i, endpoint) in slice.endpoints.iter().enumerate() {
            let Some(ip) = endpoint.address else { continue };
            if !self.accepts(ip, &slice.meta, || format!("endpoints[{i}].addresses[0]")) {
                continue;
            }
            let conditions = endpoint.conditions;
            let node = endpoint.node_name.clone();
            let (mut hint_zones, mut hint_nodes) = (endpoint.hint_zones.clone(), endpoint.hint_nodes.clone());
            hint_zones.sort_unstable();
            hint_nodes.sort_unstable();
            let seen = |port| ResolvedEndpoint {
                ip,
                port,
                ready: conditions.is_ready(),
                serving: conditions.is_serving(),
                terminating: conditions.is_terminating(),
                zone: endpoint.zone.clone().or_else(|| self.zone_of(node.as_deref())),
                node: node.clone(),
                hint_zones: hint_zones.clone(),
                hint_nodes: hint_nodes.clone(),
                pod: pod_of(endpoint.target_ref.as_ref()),
            };
            let found = matching.iter().map(|&(at, port)| (at, seen(port))).collect();
            self.add(found);
        }
    }

    fn legacy(&mut self, endpoints: &Endpoints) {
        const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
        if endpoints.meta.annotations.get(OVER_CAPACITY).is_some_and(|v| v == "truncated") {
            let field = format!("metadata.annotations[{OVER_CAPACITY}]");
            let what = format!(
                "Endpoints {} is truncated at 1000 addresses: the other endpoints get no flows",
                endpoints.meta.key
            );
            self.finding(&endpoints.meta, &field, &what, Some("EndpointSlices, which are never truncated"));
        }
        for (i, subset) in endpoints.subsets.iter().enumerate() {
            let matching = self.matching(&subset.ports);
            let lists = [
                ("addresses", true, &subset.addresses),
                ("notReadyAddresses", false, &subset.not_ready_addresses),
            ];
            for (list, listed_ready, addresses) in lists {
                // publishNotReadyAddresses needs no special case: the endpoints controller already puts those addresses
                // under `addresses`.
                for (j, address) in addresses.iter().enumerate() {
                    if !self.accepts(address.ip, &endpoints.meta, || format!("subsets[{i}].{list}[{j}].ip")) {
                        continue;
                    }
                    let seen = |port| ResolvedEndpoint {
                        ip: address.ip,
                        port,
                        ready: listed_ready,
                        serving: listed_ready,
                        terminating: false,
                        zone: self.zone_of(address.node_name.as_deref()),
                        node: address.node_name.clone(),
                        hint_zones: Vec::new(),
                        hint_nodes: Vec::new(),
                        pod: pod_of(address.target_ref.as_ref()),
                    };
                    let found = matching.iter().map(|&(at, port)| (at, seen(port))).collect();
                    self.add(found);
                }
            }
        }
    }

    fn pod(&mut self, pod: &Pod) {
        if pod.finished {
            return;
        }
        let terminating = pod.meta.deletion_time.is_some();
        let families = &self.service.ip_families;
        for ip in &pod.ips {
            if !families.is_empty() && !families.contains(&IpFamily::of(*ip)) {
                continue;
            }
            if !self.accepts(*ip, &pod.meta, || "status.podIP".to_owned()) {
                continue;
            }
            let seen = |port| ResolvedEndpoint {
                ip: *ip,
                port,
                ready: self.service.publish_not_ready_addresses || (pod.ready && !terminating),
                serving: pod.ready,
                terminating,
                zone: self.zone_of(pod.node_name.as_deref()),
                node: pod.node_name.clone(),
                hint_zones: Vec::new(),
                hint_nodes: Vec::new(),
                pod: Some(pod.meta.key.clone()),
            };
            let number = |port: &ServicePort| match &port.target_port {
                TargetPort::Number(number) => Some(*number),
                TargetPort::Name(name) => pod.named_port(name, port.protocol),
            };
            let ports = self.service.ports.iter().enumerate();
            let found = ports.filter_map(|(at, port)| Some((at, seen(number(port)?)))).collect();
            self.add(found);
        }
    }

    /// The Service's ports (by index) whose name and protocol match one of the `ports` of a slice or subset, each with
    /// the number there.
    fn matching(&self, ports: &[EndpointPort]) -> Vec<(usize, Port)> {
        let same = |from: &EndpointPort| {
            let at = self.by_name.get(&(from.name.as_str(), from.protocol)).copied();
            at.zip(from.port)
        };
        ports.iter().filter_map(same).collect()
    }

    /// The number of ports of the Service that the endpoints of a slice serve. A slice whose endpoints are not kept may
    /// lack its ports too; it then counts as one port.
    fn ports_served(&self, slice: &EndpointSlice) -> usize {
        match slice.left_out {
            Some(_) if slice.ports.is_empty() => 1,
            _ => self.matching(&slice.ports).len(),
        }
    }

    fn add(&mut self, found: Vec<(usize, ResolvedEndpoint)>) {
        for (at, endpoint) in found {
            let key = (endpoint.ip, endpoint.port);
            match self.ports[at].get(&key) {
                Some(known) if !endpoint.outranks(known) => {}
                _ => {
                    self.ports[at].insert(key, endpoint);
                }
            }
        }
    }

    fn accepts(&mut self, ip: IpAddr, meta: &Metadata, field: impl FnOnce() -> String) -> bool {
        let Some(why) = refused_endpoint(ip) else { return true };
        let what =
            format!("endpoint {ip} of Service {} is refused: the address is {why}", self.service.meta.key);
        self.finding(meta, &field(), &what, Some("a unicast address that the gateway can send to"));
        false
    }

    fn finding(&mut self, meta: &Metadata, field: &str, what: &str, accepted: Option<&str>) {
        let mut finding = Diagnostic::warning(what).at(meta.origin.field(field));
        finding.accepted = accepted.map(str::to_owned);
        self.findings.insert(finding);
    }

    fn zone_of(&self, node: Option<&str>) -> Option<String> {
        self.objects.zone_of(node?).map(str::to_owned)
    }

    fn finish(mut self) -> ServiceEndpoints {
        // The slices are in their order of arrival.
        self.slice_faults.sort();
        let ports = self.service.ports.iter().zip(self.ports);
        ServiceEndpoints {
            ports: ports
                .map(|(port, endpoints)| PortEndpoints {
                    port: port.port,
                    protocol: port.protocol,
                    endpoints: endpoints.into_values().collect(),
                    shares: None,
                })
                .collect(),
            findings: self.findings.into_iter().collect(),
            unmatched: self.unmatched,
            slice_faults: self.slice_faults,
            too_many: None,
            not_kept: None,
        }
    }
}

fn pod_of(target: Option<&super::ObjectRef>) -> Option<ObjectKey> {
    target.filter(|t| t.kind == "Pod").map(|t| t.key.clone())
}

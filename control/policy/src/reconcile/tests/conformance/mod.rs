//! The rules of `docs/kubernetes.md` as tests. The input is YAML, the output is the desired state, and both sources are
//! tested.
//!
//! [`Both`] reads a manifest with the directory source and with the API source, reconciles both, and asserts that the
//! outcomes are equal except for locations in files. `docs/conformance.md` lists the test of each rule.

mod affinity;
mod aliases;
mod annotations;
mod aws;
mod control_plane;
mod endpoints;
mod external_ips;
mod forwarding;
mod gateways;
mod health_check_node_ports;
mod life_cycle;
mod lost_listeners;
mod names;
mod node_target;
mod own_addresses;
mod ownership;
mod packets;
mod policies;
mod pools;
mod probes;
mod proxy_protocol;
mod services;
mod source_ranges;

use tidegate_model::diagnostic::Severity;

use super::*;
use crate::gateway_api::GatewayApi;

/// One gateway, tested with both sources.
pub(super) struct Both {
    directory: World,
    api: World,
}

/// A finding without its location.
type Reported = (ObjectKey, Reason, Severity, String, Option<String>);

impl Both {
    pub(super) fn new(yaml: &str) -> Self {
        let mut both = Self { directory: World::new(vec![], vec![]), api: World::new(vec![], vec![]) };
        both.set(yaml);
        both
    }

    /// Replaces the objects.
    pub(super) fn set(&mut self, yaml: &str) {
        let derived = |objects| Objects::clone(&GatewayApi::default().derive(&Arc::new(objects)));
        self.directory.objects = derived(read(yaml));
        self.api.objects = derived(tidegate_source::kubernetes::testing::objects_of(yaml));
    }

    /// Changes both gateways.
    pub(super) fn with(mut self, change: impl Fn(&mut World)) -> Self {
        self.both(change);
        self
    }

    pub(super) fn both(&mut self, change: impl Fn(&mut World)) {
        change(&mut self.directory);
        change(&mut self.api);
    }

    /// Reconciles without keeping the memory, and returns the common outcome.
    pub(super) fn look(&self) -> Outcome {
        let [directory, _] = self.each();
        directory
    }

    /// Reconciles without keeping the memory. Returns the outcomes of the directory and of the API server, which are equal
    /// except for locations.
    fn each(&self) -> [Outcome; 2] {
        let (directory, api) = (self.directory.look(), self.api.look());
        assert_eq!(directory.spec, api.spec);
        assert_eq!(directory.services, api.services);
        assert_eq!(directory.targets, api.targets);
        assert_eq!(directory.health_check_node_ports, api.health_check_node_ports);
        assert_eq!(directory.pools, api.pools);
        assert_eq!(directory.claimed, api.claimed);
        assert_eq!(directory.memory, api.memory);
        assert_eq!(directory.reconcile_at, api.reconcile_at);
        assert_eq!(reported(&directory), reported(&api));
        [directory, api]
    }

    /// Reconciles and keeps the memory.
    pub(super) fn step(&mut self) -> Outcome {
        let [directory, _] = self.step_each();
        directory
    }

    /// Like [`Self::each`], but keeps the memory.
    fn step_each(&mut self) -> [Outcome; 2] {
        let outcomes = self.each();
        self.directory.memory = outcomes[0].memory.clone();
        self.api.memory = outcomes[1].memory.clone();
        outcomes
    }

    /// The backends of the only service port.
    pub(super) fn backends(&self) -> Vec<String> {
        states(only(&self.look()))
    }
}

fn reported(outcome: &Outcome) -> BTreeSet<Reported> {
    let of = |f: &Finding| {
        let Diagnostic { severity, what, accepted, .. } = &f.diagnostic;
        (f.object.clone(), f.reason, *severity, what.clone(), accepted.clone())
    };
    outcome.findings.iter().map(of).collect()
}

/// The faults that the directory source reports for a manifest, sorted. The valid objects of the manifest are kept. The
/// directory source reports each fault with file, line and column. The API source refuses no object: it also has the
/// faulty objects, and it reports each fault with the name of the object.
pub(super) fn refused(yaml: &str) -> Vec<String> {
    let (directory, in_files) = load(yaml);
    let (api, of_server) = tidegate_source::kubernetes::testing::received(yaml);
    for (key, service) in &directory.services {
        assert_eq!(api.services.get(key), Some(service));
    }
    let without_places = |slice: &EndpointSlice| {
        let mut slice = slice.clone();
        slice.meta.faults.iter_mut().for_each(|fault| fault.location = None);
        slice
    };
    for (key, slice) in &directory.endpoint_slices {
        let of_api = api.endpoint_slices.get(key).map(|slice| without_places(slice));
        assert_eq!(of_api, Some(without_places(slice)));
    }
    let written = |kind: &str| yaml.matches(&format!("kind: {kind}\n")).count();
    assert_eq!(
        (api.services.len(), api.endpoint_slices.len()),
        (written("Service"), written("EndpointSlice"))
    );
    for fault in in_files.errors() {
        let place = fault.location.as_ref().expect("each fault has its location");
        assert!(place.path.ends_with("objects.yaml") && place.line > 0 && place.column > 0, "{fault}");
    }
    for fault in of_server.errors() {
        let place = fault.location.as_ref().expect("each fault names its object");
        assert!(place.path.contains(' ') && !place.path.contains(".yaml"), "{fault}");
    }
    let reported = |report: &tidegate_model::diagnostic::Report| {
        let mut reported: Vec<String> =
            report.errors().map(|fault| Diagnostic { location: None, ..fault.clone() }.to_string()).collect();
        reported.sort();
        reported
    };
    reported(&in_files)
}

/// `default/web` of type LoadBalancer with port 80/TCP `http` to 8080; `spec` is more of its spec.
pub(super) fn web(spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec:\n  type: LoadBalancer\n  \
         allocateLoadBalancerNodePorts: false\n  ports: [{{name: http, port: 80, targetPort: 8080}}]\n{spec}---\n"
    )
}

/// A slice of `default/web` with port `http` 8080; each endpoint is a YAML flow mapping.
pub(super) fn slice_of_web(name: &str, family: &str, endpoints: &[&str]) -> String {
    let endpoints: String = endpoints.iter().map(|e| format!("- {{{e}}}\n")).collect();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}, labels: \
         {{kubernetes.io/service-name: web}}}}\naddressType: {family}\nports: [{{name: http, protocol: TCP, port: \
         8080}}]\nendpoints:\n{endpoints}---\n"
    )
}

/// [`web`] with endpoints of IPv4.
pub(super) fn web_with(spec: &str, endpoints: &[&str]) -> Both {
    Both::new(&(web(spec) + &slice_of_web("web-1", "IPv4", endpoints)))
}

/// The Services of a manifest called `web` with annotations, a YAML flow mapping without its braces.
pub(super) fn with_annotations(yaml: &str, annotations: &str) -> String {
    let annotated = yaml.replace(
        "metadata: {name: web}",
        &format!("metadata: {{name: web, annotations: {{{annotations}}}}}"),
    );
    assert_ne!(annotated, yaml, "there is a Service web without annotations");
    annotated
}

/// A Node with these InternalIPs; `more` is more of its metadata.
pub(super) fn node_yaml(name: &str, internal_ips: &[&str], more: &str) -> String {
    let ips: Vec<String> =
        internal_ips.iter().map(|ip| format!("{{type: InternalIP, address: '{ip}'}}")).collect();
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}{more}}}\nstatus: {{addresses: [{}]}}\n---\n",
        ips.join(", ")
    )
}

/// `TCP 203.0.113.5:80` of each service port.
pub(super) fn keys(outcome: &Outcome) -> Vec<String> {
    outcome.spec.services.iter().map(|s| s.key.to_string()).collect()
}

/// [`web`] with these annotations, and an endpoint.
pub(super) fn annotated_web(annotations: &[(&str, &str)]) -> String {
    let written: Vec<String> = annotations.iter().map(|(key, value)| format!("'{key}': '{value}'")).collect();
    service_with(&format!("name: web, annotations: {{{}}}", written.join(", ")), "")
        + &slice_of_web("web-1", "IPv4", &["addresses: [10.0.1.1]"])
}

/// A Service like [`web`] with this metadata, a YAML flow mapping without its braces, and more of its spec.
pub(super) fn service_with(metadata: &str, spec: &str) -> String {
    web(spec).replace("{name: web}", &format!("{{{metadata}}}"))
}

/// `VIP NAME` of each service port, by address.
pub(super) fn owners(outcome: &Outcome) -> Vec<String> {
    outcome.spec.services.iter().map(|s| format!("{} {}", s.key.vip, s.name)).collect()
}

/// The reason why the Service with this name has no address.
pub(super) fn pending<'o>(outcome: &'o Outcome, name: &str) -> Option<&'o str> {
    let service = outcome.services.iter().find(|s| s.name == name);
    service.unwrap_or_else(|| panic!("{name} is shown")).pending.as_deref()
}

/// The only finding: its reason, its text, and the accepted values.
pub(super) fn finding(outcome: &Outcome) -> (Reason, &str, &str) {
    let [finding] = &*outcome.findings else { panic!("one finding: {:?}", messages(outcome)) };
    let Diagnostic { what, accepted, .. } = &finding.diagnostic;
    (finding.reason, what.as_str(), accepted.as_deref().unwrap_or_default())
}

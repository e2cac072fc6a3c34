//! The sentences of kubernetes.md as tests: YAML in, the desired state out, by both sources.
//!
//! [`Both`] reads a manifest as the directory source and as the API source do, reconciles both, and asserts that they
//! come to the same; where in a file something was written is all that may differ. `control/README.md` says which
//! sentence is stated where.

mod endpoints;
mod policies;
mod services;

use super::*;
use crate::diagnostic::Severity;

/// One gateway by both sources.
pub(super) struct Both {
    directory: World,
    api: World,
}

/// What was said, without its place.
type Said = (ObjectKey, Reason, Severity, String, Option<String>);

impl Both {
    pub(super) fn new(yaml: &str) -> Self {
        let mut both = Self { directory: World::new(vec![], vec![]), api: World::new(vec![], vec![]) };
        both.now_is(yaml);
        both
    }

    /// The objects are these from now on.
    pub(super) fn now_is(&mut self, yaml: &str) {
        self.directory.objects = read(yaml);
        self.api.objects = crate::source::kubernetes::testing::objects_of(yaml);
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

    /// Reconciles without remembering; what both come to.
    pub(super) fn look(&self) -> Outcome {
        let (directory, api) = (self.directory.look(), self.api.look());
        assert_eq!(directory.spec, api.spec);
        assert_eq!(directory.services, api.services);
        assert_eq!(directory.targets, api.targets);
        assert_eq!(directory.health_check_node_ports, api.health_check_node_ports);
        assert_eq!(said(&directory), said(&api));
        directory
    }

    /// Reconciles and remembers.
    pub(super) fn step(&mut self) -> Outcome {
        let outcome = self.look();
        self.directory.step();
        self.api.step();
        outcome
    }

    /// The backends of the only service port.
    pub(super) fn backends(&self) -> Vec<String> {
        states(only(&self.look()))
    }
}

fn said(outcome: &Outcome) -> BTreeSet<Said> {
    let of = |f: &Finding| {
        let Diagnostic { severity, what, accepted, .. } = &f.diagnostic;
        (f.object.clone(), f.reason, *severity, what.clone(), accepted.clone())
    };
    outcome.findings.iter().map(of).collect()
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

//! Writes the manifests of the lab: Services with their EndpointSlices, as YAML.
//!
//! One [`Manifest`] is one file in the watched directory. A weight is an annotation of the endpoint's Pod, so the
//! manifest of an endpoint with a weight also has its Pod. Files are renamed into place, so the gateway never reads a
//! partial file.

use super::addresses::Family;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// A port of a Service.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// `name`.
    pub name: &'static str,
    /// `protocol`: TCP, UDP or SCTP.
    pub protocol: &'static str,
    /// `port`, which clients use.
    pub port: u16,
    /// The endpoints' port.
    pub target_port: u16,
    /// `nodePort`; omitted if `None`.
    pub node_port: Option<u16>,
}

impl PortSpec {
    /// A TCP port, equal for clients and endpoints.
    #[must_use]
    pub fn tcp(name: &'static str, port: u16) -> Self {
        Self { name, protocol: "TCP", port, target_port: port, node_port: None }
    }

    /// A UDP port, equal for clients and endpoints.
    #[must_use]
    pub fn udp(name: &'static str, port: u16) -> Self {
        Self { name, protocol: "UDP", port, target_port: port, node_port: None }
    }

    /// An SCTP port, equal for clients and endpoints.
    #[must_use]
    pub fn sctp(name: &'static str, port: u16) -> Self {
        Self { protocol: "SCTP", ..Self::tcp(name, port) }
    }

    /// Sets a different port of the endpoints.
    #[must_use]
    pub fn to(self, target_port: u16) -> Self {
        Self { target_port, ..self }
    }

    /// Sets the node port.
    #[must_use]
    pub fn at_node_port(self, node_port: u16) -> Self {
        Self { node_port: Some(node_port), ..self }
    }
}

/// The conditions of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointState {
    /// Ready and serving.
    Ready,
    /// Neither ready nor serving.
    NotReady,
    /// Terminating, and still serving.
    Terminating,
}

/// An endpoint of a Service.
#[derive(Clone, Debug)]
pub struct EndpointSpec {
    /// Its address.
    pub address: IpAddr,
    /// Its conditions.
    pub state: EndpointState,
    /// Its weight; omitted if `None`.
    pub weight: Option<u32>,
    /// `nodeName`; omitted if `None`.
    pub node: Option<String>,
}

impl EndpointSpec {
    /// A ready endpoint without a weight.
    #[must_use]
    pub fn ready(address: IpAddr) -> Self {
        Self { address, state: EndpointState::Ready, weight: None, node: None }
    }

    /// Puts the endpoint on a node.
    #[must_use]
    pub fn on(self, node: &str) -> Self {
        Self { node: Some(node.to_owned()), ..self }
    }
}

/// How the Service gets its VIPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VipRequest {
    /// Type LoadBalancer with requested addresses.
    LoadBalancer,
    /// `spec.externalIPs` of a ClusterIP Service.
    ExternalIps,
    /// `spec.clusterIPs` of a ClusterIP Service.
    ClusterIps,
}

/// A Service with its endpoints.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The Service's name, in namespace `lab`.
    pub name: String,
    /// How it gets `vips`.
    pub vip_request: VipRequest,
    /// Its VIPs, at most one of each family with [`VipRequest::LoadBalancer`].
    pub vips: Vec<IpAddr>,
    /// The forwarding mode.
    pub forwarding: &'static str,
    /// Its ports.
    pub ports: Vec<PortSpec>,
    /// Its endpoints of both families.
    pub endpoints: Vec<EndpointSpec>,
    /// `sessionAffinity: ClientIP`.
    pub client_ip_affinity: bool,
    /// If set: `externalTrafficPolicy: Local` and this `healthCheckNodePort`.
    pub health_check_node_port: Option<u16>,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: Vec<String>,
    /// Additional lines of `spec`.
    pub spec: Vec<String>,
    /// Additional annotations, key and value.
    pub annotations: Vec<(&'static str, String)>,
}

impl Manifest {
    /// A LoadBalancer Service.
    #[must_use]
    pub fn new(name: &str, forwarding: &'static str, vips: &[IpAddr], ports: Vec<PortSpec>) -> Self {
        Self {
            name: name.to_owned(),
            vip_request: VipRequest::LoadBalancer,
            vips: vips.to_vec(),
            forwarding,
            ports,
            endpoints: Vec::new(),
            client_ip_affinity: false,
            health_check_node_port: None,
            source_ranges: Vec::new(),
            spec: Vec::new(),
            annotations: Vec::new(),
        }
    }

    /// The manifest with `endpoints`.
    #[must_use]
    pub fn with_endpoints(mut self, endpoints: impl IntoIterator<Item = EndpointSpec>) -> Self {
        self.endpoints = endpoints.into_iter().collect();
        self
    }

    /// The endpoint with `address`.
    ///
    /// # Panics
    /// When there is none.
    pub fn endpoint_mut(&mut self, address: IpAddr) -> &mut EndpointSpec {
        self.endpoints.iter_mut().find(|e| e.address == address).expect("the endpoint is in the manifest")
    }

    /// Writes the file `<name>.yaml` to `directory`, replacing an older one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, directory: &Path) -> Result<()> {
        put(directory, &format!("{}.yaml", self.name), &self.to_yaml())
    }

    /// The documents of the file.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut documents = vec![self.service()];
        for family in Family::BOTH {
            let of_family: Vec<_> =
                self.endpoints.iter().enumerate().filter(|(_, e)| Family::of(e.address) == family).collect();
            if !of_family.is_empty() {
                documents.push(self.slice(family, &of_family));
            }
        }
        let weighted = self.endpoints.iter().enumerate().filter_map(|(n, e)| Some((n, e, e.weight?)));
        documents.extend(weighted.map(|(n, endpoint, weight)| self.pod(n, endpoint.address, weight)));
        documents.join("---\n")
    }

    fn service(&self) -> String {
        let mut families: Vec<_> = self.vips.iter().map(|vip| Family::of(*vip)).collect();
        families.sort_unstable();
        families.dedup();
        let policy = if families.len() == 2 { "RequireDualStack" } else { "SingleStack" };
        let list = |vips: &[IpAddr]| vips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut annotations = vec![("tidegate.dev/forwarding", self.forwarding.to_owned())];
        if self.vip_request == VipRequest::LoadBalancer {
            annotations.push(("tidegate.dev/load-balancer-ips", list(&self.vips)));
        }
        annotations.extend(self.annotations.iter().cloned());

        let mut text =
            format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: {}\n  namespace: lab\n", self.name);
        text += "  annotations:\n";
        for (key, value) in &annotations {
            line(&mut text, format_args!("    {key}: \"{value}\""));
        }
        text += "spec:\n";
        match self.vip_request {
            VipRequest::LoadBalancer => {
                text += "  type: LoadBalancer\n  loadBalancerClass: tidegate.dev/gateway\n";
                let names: Vec<_> = families.iter().map(ToString::to_string).collect();
                line(
                    &mut text,
                    format_args!("  ipFamilyPolicy: {policy}\n  ipFamilies: [{}]", names.join(", ")),
                );
            }
            VipRequest::ExternalIps => {
                let quoted: Vec<_> = self.vips.iter().map(|vip| format!("\"{vip}\"")).collect();
                line(&mut text, format_args!("  externalIPs: [{}]", quoted.join(", ")));
            }
            VipRequest::ClusterIps => {
                let quoted: Vec<_> = self.vips.iter().map(|vip| format!("\"{vip}\"")).collect();
                let names: Vec<_> = families.iter().map(ToString::to_string).collect();
                line(&mut text, format_args!("  clusterIP: {}", quoted[0]));
                line(&mut text, format_args!("  clusterIPs: [{}]", quoted.join(", ")));
                line(
                    &mut text,
                    format_args!("  ipFamilyPolicy: {policy}\n  ipFamilies: [{}]", names.join(", ")),
                );
            }
        }
        if self.client_ip_affinity {
            text += "  sessionAffinity: ClientIP\n";
        }
        if let Some(port) = self.health_check_node_port {
            line(&mut text, format_args!("  externalTrafficPolicy: Local\n  healthCheckNodePort: {port}"));
        }
        if !self.source_ranges.is_empty() {
            let quoted: Vec<_> = self.source_ranges.iter().map(|range| format!("\"{range}\"")).collect();
            line(&mut text, format_args!("  loadBalancerSourceRanges: [{}]", quoted.join(", ")));
        }
        for more in &self.spec {
            line(&mut text, format_args!("  {more}"));
        }
        text += "  ports:\n";
        for PortSpec { name, protocol, port, target_port, node_port } in &self.ports {
            let node_port = node_port.map_or_else(String::new, |number| format!(", nodePort: {number}"));
            line(
                &mut text,
                format_args!(
                    "    - {{name: {name}, protocol: {protocol}, port: {port}, targetPort: {target_port}{node_port}}}"
                ),
            );
        }
        text
    }

    fn slice(&self, family: Family, endpoints: &[(usize, &EndpointSpec)]) -> String {
        let name = format!("{}-{}", self.name, if family == Family::V4 { "v4" } else { "v6" });
        let service = &self.name;
        let mut text = format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}\n  namespace: lab\n  \
             labels: {{kubernetes.io/service-name: {service}}}\naddressType: {family}\nports:\n"
        );
        for PortSpec { name, protocol, target_port, .. } in &self.ports {
            line(&mut text, format_args!("  - {{name: {name}, protocol: {protocol}, port: {target_port}}}"));
        }
        text += "endpoints:\n";
        for (n, endpoint) in endpoints {
            let (ready, serving, terminating) = match endpoint.state {
                EndpointState::Ready => (true, true, false),
                EndpointState::NotReady => (false, false, false),
                EndpointState::Terminating => (false, true, true),
            };
            line(&mut text, format_args!("  - addresses: [\"{}\"]", endpoint.address));
            line(
                &mut text,
                format_args!(
                    "    conditions: {{ready: {ready}, serving: {serving}, terminating: {terminating}}}"
                ),
            );
            if let Some(node) = &endpoint.node {
                line(&mut text, format_args!("    nodeName: {node}"));
            }
            if endpoint.weight.is_some() {
                line(
                    &mut text,
                    format_args!("    targetRef: {{kind: Pod, namespace: lab, name: {}}}", self.pod_name(*n)),
                );
            }
        }
        text
    }

    fn pod(&self, n: usize, address: IpAddr, weight: u32) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n  namespace: lab\n  \
             annotations: {{tidegate.dev/weight: \"{weight}\"}}\nspec:\n  containers:\n    - {{name: main, image: lab}}\n\
             status:\n  phase: Running\n  podIP: \"{address}\"\n  podIPs: [{{ip: \"{address}\"}}]\n  \
             conditions: [{{type: Ready, status: \"True\"}}]\n",
            self.pod_name(n)
        )
    }

    fn pod_name(&self, n: usize) -> String {
        format!("{}-{n}", self.name)
    }
}

/// A Node object with its InternalIPs.
#[must_use]
pub fn node(name: &str, internal_ips: &[IpAddr]) -> String {
    let addresses: Vec<_> =
        internal_ips.iter().map(|ip| format!("{{type: InternalIP, address: \"{ip}\"}}")).collect();
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nstatus:\n  addresses: [{}]\n",
        addresses.join(", ")
    )
}

/// Writes `text` to the file `name` in `directory` atomically.
///
/// # Errors
/// When it cannot be written.
pub fn put(directory: &Path, name: &str, text: &str) -> Result<()> {
    let parent = directory.parent().context("a directory of manifests has a parent")?;
    // Written outside of the directory, so that the watcher sees only the complete file.
    let unfinished = parent.join(format!(".{name}.unfinished"));
    fs::write(&unfinished, text)?;
    fs::rename(&unfinished, directory.join(name))
        .with_context(|| format!("{name} in {}", directory.display()))
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("writing to a String cannot fail");
}

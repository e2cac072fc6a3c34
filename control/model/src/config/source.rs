//! `source`: the source of the Kubernetes objects, either a directory or an API server.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files::Files;
use crate::yaml::{Field, Fields, ScalarKind, Unknown, text};

/// Default of `source.kubernetes.loadBalancerClass`, and the class in directory mode.
pub const LOAD_BALANCER_CLASS: &str = "tidegate.dev/gateway";
/// Default of `source.directory.stateDirectory` and `source.kubernetes.stateDirectory`.
const STATE_DIRECTORY: &str = "/var/lib/tidegate";
/// Default of `source.kubernetes.apiLossGrace`. Restoring an etcd member and a failover of a control plane take less
/// time.
const API_LOSS_GRACE: Duration = Duration::from_secs(300);
/// Default of `source.directory.lossGrace`. A tool that rewrites a file takes less time, and the log shows the delay
/// to an operator who empties a file on purpose.
const LOSS_GRACE: Duration = Duration::from_secs(60);
/// The accepted range of `apiLossGrace` and `lossGrace`: up to a week.
const GRACE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(7 * 24 * 3600);

/// Default of `endpointSlicesMiB`, enough for about 800,000 endpoints.
pub const ENDPOINT_SLICES_MIB: u32 = 512;

/// The namespace in `deploy/kubernetes/base`. Gateways may create Leases there, so a deleted Lease is created again.
const LEASE_NAMESPACE: &str = "tidegate-system";

/// `gatewayApi.enabled`: whether the objects of the Gateway API are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GatewayApi {
    /// `auto`: they are read if the API server has definitions of them.
    #[default]
    Auto,
    /// `true`: they are read, and a missing definition is an error.
    Required,
    /// `false`: they are not read.
    Disabled,
}

impl GatewayApi {
    /// Whether the objects are read.
    #[must_use]
    pub fn is_read(self) -> bool {
        self != Self::Disabled
    }
}

/// The validated `source` section. Default: `directory` with its defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceConfig {
    /// `directory`: manifests in files.
    Directory(DirectoryConfig),
    /// `kubernetes`: an API server.
    Kubernetes(KubernetesConfig),
}

/// The validated `source.directory` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryConfig {
    /// `path`, as the path to open.
    pub path: PathBuf,
    /// `watch`: whether to watch for changes. Default true; otherwise the directory is read again on SIGHUP.
    pub watch: bool,
    /// `lossGrace`: how long the objects of a lost file are kept.
    pub loss_grace: Duration,
    /// `stateDirectory`: where the state for a restart is saved; `None` for `""`.
    pub state_directory: Option<PathBuf>,
    /// `endpointSlicesMiB`: memory for EndpointSlices.
    pub endpoint_slices_mib: u32,
    /// `gatewayApi.enabled`: whether the objects of the Gateway API are read.
    pub gateway_api: GatewayApi,
}

/// The validated `source.kubernetes` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// `kubeconfig`, as the path to open; `None` for the default.
    pub kubeconfig: Option<PathBuf>,
    /// `loadBalancerClass`: the class of the Services that belong to this gateway. Default `tidegate.dev/gateway`.
    pub load_balancer_class: String,
    /// `default`: whether Services without a class belong to this gateway too. Default false.
    pub default: bool,
    /// `apiLossGrace`: how long objects are kept that a returning API server lacks.
    pub api_loss_grace: Duration,
    /// `podWeights`: whether to honour the weights of Pods, which needs permissions (`deploy/kubernetes/pod-weights`).
    pub pod_weights: bool,
    /// `stateDirectory`: where the state for a restart is saved; `None` for `""`.
    pub state_directory: Option<PathBuf>,
    /// `leaseNamespace`: the namespace of the Lease with which the gateways elect a leader.
    pub lease_namespace: String,
    /// `endpointSlicesMiB`: memory for EndpointSlices.
    pub endpoint_slices_mib: u32,
    /// `gatewayApi.enabled`: whether the objects of the Gateway API are read.
    pub gateway_api: GatewayApi,
}

impl Default for KubernetesConfig {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            load_balancer_class: LOAD_BALANCER_CLASS.to_owned(),
            default: false,
            api_loss_grace: API_LOSS_GRACE,
            pod_weights: false,
            state_directory: Some(PathBuf::from(STATE_DIRECTORY)),
            lease_namespace: LEASE_NAMESPACE.to_owned(),
            endpoint_slices_mib: ENDPOINT_SLICES_MIB,
            gateway_api: GatewayApi::default(),
        }
    }
}

impl DirectoryConfig {
    fn default_in(base: &Path) -> Self {
        Self {
            path: base.join("manifests"),
            watch: true,
            loss_grace: LOSS_GRACE,
            state_directory: Some(PathBuf::from(STATE_DIRECTORY)),
            endpoint_slices_mib: ENDPOINT_SLICES_MIB,
            gateway_api: GatewayApi::default(),
        }
    }
}

impl SourceConfig {
    pub(super) fn default_in(base: &Path) -> Self {
        Self::Directory(DirectoryConfig::default_in(base))
    }

    /// `gatewayApi.enabled`: whether the objects of the Gateway API are read.
    #[must_use]
    pub fn gateway_api(&self) -> GatewayApi {
        match self {
            Self::Directory(directory) => directory.gateway_api,
            Self::Kubernetes(kubernetes) => kubernetes.gateway_api,
        }
    }

    /// This source with another value of `gatewayApi.enabled`.
    #[must_use]
    pub fn with_gateway_api(&self, gateway_api: GatewayApi) -> Self {
        match self.clone() {
            Self::Directory(directory) => Self::Directory(DirectoryConfig { gateway_api, ..directory }),
            Self::Kubernetes(kubernetes) => Self::Kubernetes(KubernetesConfig { gateway_api, ..kubernetes }),
        }
    }

    /// `stateDirectory`: where the state for a restart is saved; `None` for nowhere.
    #[must_use]
    pub fn state_directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(directory) => directory.state_directory.as_deref(),
            Self::Kubernetes(kubernetes) => kubernetes.state_directory.as_deref(),
        }
    }

    /// Whether LoadBalancer Services without a `loadBalancerClass` belong to this gateway. In a directory they do,
    /// because only this gateway reads it.
    pub fn claims_classless(&self) -> bool {
        match self {
            Self::Directory(_) => true,
            Self::Kubernetes(kubernetes) => kubernetes.default,
        }
    }

    /// The `loadBalancerClass` of the Services that belong to this gateway.
    pub fn load_balancer_class(&self) -> &str {
        match self {
            Self::Directory(_) => LOAD_BALANCER_CLASS,
            Self::Kubernetes(kubernetes) => &kubernetes.load_balancer_class,
        }
    }
}

pub(super) fn decode(parent: &Fields<'_>, files: &Files<'_>) -> Option<SourceConfig> {
    let base = files.base;
    let mut gateway_api = GatewayApi::default();
    parent.section("gatewayApi", |fields| fields.set("enabled", &mut gateway_api, decode_gateway_api));
    let mut directory = DirectoryConfig { gateway_api, ..DirectoryConfig::default_in(base) };
    let mut kubernetes = KubernetesConfig { gateway_api, ..KubernetesConfig::default() };
    let Some(fields) = parent.get("source") else { return Some(SourceConfig::Directory(directory)) };
    fields.fields()?.whole(Unknown::Refused, |fields| {
        // A key without a value selects the defaults, and counts as set.
        let written = |key| fields.itself().node.entry(key).is_some();
        let both = written("directory") && written("kubernetes");
        if both {
            fields.itself().error("both directory and kubernetes are set", "either directory or kubernetes");
        }
        fields.section("directory", |fields| decode_directory(fields, base, &mut directory));
        fields.section("kubernetes", |fields| decode_kubernetes(fields, files, &mut kubernetes));
        if fields.is_empty() {
            fields
                .itself()
                .error("neither directory nor kubernetes is set", "either directory or kubernetes");
        }
        // If both are set, the intended one is unknown. The directory is used, so that at least its manifests can be
        // checked.
        Some(match written("kubernetes") && !both {
            true => SourceConfig::Kubernetes(kubernetes),
            false => SourceConfig::Directory(directory),
        })
    })
}

fn decode_gateway_api(field: &Field<'_>) -> Option<GatewayApi> {
    match field.node.kind() {
        Some(ScalarKind::Bool(true)) => Some(GatewayApi::Required),
        Some(ScalarKind::Bool(false)) => Some(GatewayApi::Disabled),
        _ => field.parsed(|text| (text == "auto").then_some(GatewayApi::Auto), "auto, true, false"),
    }
}

fn decode_directory(fields: &Fields<'_>, base: &Path, config: &mut DirectoryConfig) {
    fields.set("path", &mut config.path, |f| Some(base.join(f.not_blank("the path of a directory")?)));
    fields.set("watch", &mut config.watch, Field::boolean);
    fields.set("lossGrace", &mut config.loss_grace, |f| f.duration(GRACE));
    fields.set("stateDirectory", &mut config.state_directory, |f| state_directory(f, base));
    fields.set("endpointSlicesMiB", &mut config.endpoint_slices_mib, |f| f.integer(1..=65_536));
}

fn decode_kubernetes(fields: &Fields<'_>, files: &Files<'_>, config: &mut KubernetesConfig) {
    config.kubeconfig = fields.read("kubeconfig", |f| {
        let path = path(f, files.base, "the path of a kubeconfig file, or \"\" for the default")??;
        files.keep_secret(f, &path);
        Some(path)
    });
    let class = |f: &Field<'_>| f.owned_where(text::is_qualified_name, "a name such as tidegate.dev/gateway");
    fields.set("loadBalancerClass", &mut config.load_balancer_class, class);
    fields.set("apiLossGrace", &mut config.api_loss_grace, |f| f.duration(GRACE));
    fields.set("stateDirectory", &mut config.state_directory, |f| state_directory(f, files.base));
    let name = |f: &Field<'_>| f.owned_where(text::is_rfc1123_label, "the name of a namespace");
    fields.set("leaseNamespace", &mut config.lease_namespace, name);
    fields.set("default", &mut config.default, Field::boolean);
    fields.set("podWeights", &mut config.pod_weights, Field::boolean);
    fields.set("endpointSlicesMiB", &mut config.endpoint_slices_mib, |f| f.integer(1..=65_536));
}

fn state_directory(field: &Field<'_>, base: &Path) -> Option<Option<PathBuf>> {
    path(field, base, "the path of a directory, or \"\" for none")
}

/// A path relative to `base`; `Some(None)` for `""`.
fn path(field: &Field<'_>, base: &Path, accepted: &str) -> Option<Option<PathBuf>> {
    let text = field.string_where(|t| !t.contains('\0'), accepted)?.trim();
    Some((!text.is_empty()).then(|| base.join(text)))
}

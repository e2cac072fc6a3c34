//! `source`: the source of the Kubernetes objects, either a directory or an API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files::Files;
use super::section::section;
use crate::yaml::{Fields, text};

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
/// Maximum of `apiLossGrace` and `lossGrace`: a week.
const API_LOSS_GRACE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Default of `endpointSlicesMiB`, enough for about 800,000 endpoints.
pub const ENDPOINT_SLICES_MIB: u32 = 512;

/// The namespace in `deploy/kubernetes/base`. Gateways may create Leases there, so a deleted Lease is created again.
const LEASE_NAMESPACE: &str = "tidegate-system";

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
    /// `path`: the directory, relative to the file that names it. Default `manifests`. This field contains the path
    /// to open.
    pub path: PathBuf,
    /// `watch`: whether to watch for changes. Default true; otherwise the directory is read again on SIGHUP.
    pub watch: bool,
    /// `lossGrace`: how long the objects of a file are kept after the file becomes empty or unreadable, or is no
    /// longer a file. Up to a week; 0s removes them at once. Default 1m. The objects of a deleted file are removed at
    /// once.
    pub loss_grace: Duration,
    /// `stateDirectory`: where the addresses of Services are saved, so that Services keep them across a restart; `""`
    /// for nowhere. Default `/var/lib/tidegate`.
    pub state_directory: Option<PathBuf>,
    /// `endpointSlicesMiB`: as in `source.kubernetes`.
    pub endpoint_slices_mib: u32,
}

/// The validated `source.kubernetes` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// `kubeconfig`: the file with the address of the API server and the credentials, relative to the file that names
    /// it. Default `""`: the first of `$KUBECONFIG`, `~/.kube/config`, and the service account of the Pod.
    pub kubeconfig: Option<PathBuf>,
    /// `loadBalancerClass`: the class of the Services that belong to this gateway. Default `tidegate.dev/gateway`.
    pub load_balancer_class: String,
    /// `default`: whether Services without a class belong to this gateway too. Default false.
    pub default: bool,
    /// `apiLossGrace`: when an API server returns after an outage, how long objects are kept that it lacks or has
    /// only in an older version. Up to a week; 0s drops them at once. Default 5m.
    pub api_loss_grace: Duration,
    /// `podWeights`: whether to honour the annotation `tidegate.dev/weight` of Pods. This needs a watch on the
    /// metadata of all Pods of the cluster, and the permission for it (`deploy/kubernetes/pod-weights`). Otherwise
    /// only Nodes have weights. Default false.
    pub pod_weights: bool,
    /// `stateDirectory`: where the latest objects are saved, for a start while the API server is down; `""` for
    /// nowhere. Default `/var/lib/tidegate`.
    pub state_directory: Option<PathBuf>,
    /// `leaseNamespace`: the namespace of the Lease `tidegate`, with which the gateways elect the leader, which writes
    /// to the cluster. All gateways must use the same namespace. Default `tidegate-system`.
    pub lease_namespace: String,
    /// `endpointSlicesMiB`: memory for the EndpointSlices of all namespaces together, in MiB, 1 to 65536. If it is
    /// exceeded, namespaces get equal shares. Default 512.
    pub endpoint_slices_mib: u32,
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
        }
    }
}

impl SourceConfig {
    pub(super) fn default_in(base: &Path) -> Self {
        Self::Directory(DirectoryConfig {
            path: base.join("manifests"),
            watch: true,
            loss_grace: LOSS_GRACE,
            state_directory: Some(PathBuf::from(STATE_DIRECTORY)),
            endpoint_slices_mib: ENDPOINT_SLICES_MIB,
        })
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
    let Some(fields) = parent.get("source") else { return Some(SourceConfig::default_in(base)) };
    let fields = fields.fields()?;
    // A key without a value selects the defaults, and counts as set.
    let written = |key| fields.itself().node.entry(key).is_some();
    let both = written("directory") && written("kubernetes");
    if both {
        fields.itself().error("both directory and kubernetes are set", "either directory or kubernetes");
    }
    let mut path = PathBuf::from("manifests");
    let mut watch = true;
    let mut loss_grace = LOSS_GRACE;
    let mut state_directory = Some(PathBuf::from(STATE_DIRECTORY));
    let mut slices_mib = ENDPOINT_SLICES_MIB;
    section(&fields, "directory", |directory| {
        if let Some(field) = directory.get("path")
            && let Some(text) = field.string_where(|t| !t.trim().is_empty(), "the path of a directory")
        {
            path = PathBuf::from(text);
        }
        watch = directory.get("watch").and_then(|f| f.boolean()).unwrap_or(true);
        if let Some(grace) =
            directory.get("lossGrace").and_then(|f| f.duration(Duration::ZERO..=API_LOSS_GRACE_MAX))
        {
            loss_grace = grace;
        }
        if let Some(text) = path_of(directory, "stateDirectory", STATE_DIRECTORY_ACCEPTED) {
            state_directory = (!text.is_empty()).then(|| base.join(text));
        }
        slices_mib = endpoint_slices_mib(directory);
        Some(())
    });
    let kubernetes = section(&fields, "kubernetes", |kubernetes| Some(decode_kubernetes(kubernetes, files)));
    if fields.is_empty() {
        fields.itself().error("neither directory nor kubernetes is set", "either directory or kubernetes");
    }
    let directory = SourceConfig::Directory(DirectoryConfig {
        path: base.join(path),
        watch,
        loss_grace,
        state_directory,
        endpoint_slices_mib: slices_mib,
    });
    // If both are set, the intended one is unknown. The directory is used, so that at least its manifests can be
    // checked.
    let source = if written("kubernetes") && !both {
        SourceConfig::Kubernetes(kubernetes.unwrap_or_default())
    } else {
        directory
    };
    fields.finish(crate::yaml::Unknown::Refused);
    Some(source)
}

const STATE_DIRECTORY_ACCEPTED: &str = "the path of a directory, or \"\" for none";

fn path_of<'a>(fields: &Fields<'a>, key: &'static str, accepted: &str) -> Option<&'a str> {
    let text = fields.get(key)?.string_where(|t| !t.contains('\0'), accepted)?;
    Some(text.trim())
}

fn endpoint_slices_mib(fields: &Fields<'_>) -> u32 {
    let written = fields.get("endpointSlicesMiB").and_then(|field| field.integer(1..=65_536));
    written.and_then(|mib| u32::try_from(mib).ok()).unwrap_or(ENDPOINT_SLICES_MIB)
}

fn decode_kubernetes(fields: &Fields<'_>, files: &Files<'_>) -> KubernetesConfig {
    let base = files.base;
    let kubeconfig = path_of(fields, "kubeconfig", "the path of a kubeconfig file, or \"\" for the default");
    let class = fields.get("loadBalancerClass").and_then(|f| {
        f.string_where(text::is_qualified_name, "a name such as tidegate.dev/gateway").map(str::to_owned)
    });
    let grace = fields.get("apiLossGrace").and_then(|f| f.duration(Duration::ZERO..=API_LOSS_GRACE_MAX));
    let state_directory = path_of(fields, "stateDirectory", STATE_DIRECTORY_ACCEPTED);
    let lease_namespace = fields
        .get("leaseNamespace")
        .and_then(|f| f.string_where(text::is_rfc1123_label, "the name of a namespace"));
    let defaults = KubernetesConfig::default();
    let kubeconfig = kubeconfig.filter(|t| !t.is_empty()).map(|t| base.join(t));
    if let (Some(field), Some(path)) = (fields.get("kubeconfig"), &kubeconfig) {
        files.keep_secret(&field, path);
    }
    KubernetesConfig {
        kubeconfig,
        load_balancer_class: class.unwrap_or(defaults.load_balancer_class),
        default: fields.get("default").and_then(|f| f.boolean()).unwrap_or(defaults.default),
        pod_weights: fields.get("podWeights").and_then(|f| f.boolean()).unwrap_or(defaults.pod_weights),
        api_loss_grace: grace.unwrap_or(defaults.api_loss_grace),
        state_directory: match state_directory {
            None => defaults.state_directory,
            Some("") => None,
            Some(text) => Some(base.join(text)),
        },
        lease_namespace: lease_namespace.map_or(defaults.lease_namespace, str::to_owned),
        endpoint_slices_mib: endpoint_slices_mib(fields),
    }
}

//! `source`: where the Kubernetes objects come from. Exactly one of the two.

use std::path::{Path, PathBuf};

use super::section;
use crate::yaml::Fields;

/// `spec.loadBalancerClass` of the Services that are ours.
pub const LOAD_BALANCER_CLASS: &str = "tidegate.dev/gateway";

/// The validated `source` section. Default: `directory` with its defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceConfig {
    /// `directory`: manifests in files.
    Directory {
        /// `path`: the directory, relative to the file that names it. Default `manifests`. Here as it is to
        /// be opened.
        path: PathBuf,
        /// `watch`: follow changes. Default true.
        watch: bool,
    },
}

impl SourceConfig {
    pub(super) fn default_in(base: &Path) -> Self {
        Self::Directory { path: base.join("manifests"), watch: true }
    }

    /// Whether LoadBalancer Services without a `loadBalancerClass` are ours: in a directory yes, for nobody
    /// else reads it.
    pub fn claims_classless(&self) -> bool {
        match self {
            Self::Directory { .. } => true,
        }
    }
}

pub(super) fn decode(parent: &Fields<'_>, base: &Path) -> Option<SourceConfig> {
    let Some(fields) = parent.get("source") else { return Some(SourceConfig::default_in(base)) };
    let fields = fields.fields()?;
    let both = fields.get("directory").is_some() && fields.get("kubernetes").is_some();
    if both {
        fields.itself().error("both directory and kubernetes", "exactly one of them");
    }
    let mut path = PathBuf::from("manifests");
    let mut watch = true;
    section(&fields, "directory", |directory| {
        if let Some(field) = directory.get("path")
            && let Some(text) = field.string_where(|t| !t.trim().is_empty(), "the path of a directory")
        {
            path = PathBuf::from(text);
        }
        watch = directory.get("watch").and_then(|f| f.boolean()).unwrap_or(true);
        Some(())
    });
    section(&fields, "kubernetes", |kubernetes| {
        for key in ["kubeconfig", "loadBalancerClass"] {
            kubernetes.get(key).and_then(|f| f.string());
        }
        kubernetes.get("default").and_then(|f| f.boolean());
        Some(())
    });
    let kubernetes = fields.get("kubernetes");
    if let Some(field) = &kubernetes {
        let what = "the gateway does not read from an API server yet";
        field.error(what, "source.directory with the manifests in files");
    }
    if fields.is_empty() {
        fields.itself().error("neither directory nor kubernetes", "exactly one of them");
    }
    let only_kubernetes = kubernetes.is_some() && !both;
    fields.finish(crate::yaml::Unknown::Refused);
    (!only_kubernetes).then(|| SourceConfig::Directory { path: base.join(path), watch })
}

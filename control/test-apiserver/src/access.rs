//! Authentication and authorization: bearer tokens, and RBAC from the stored roles and bindings.
//!
//! A token names a user; a token of a ServiceAccount names `system:serviceaccount:NS:NAME` with its groups. The group
//! `system:masters` may do everything. Every authenticated user may request discovery, versions, health and their own
//! identity, as the bootstrap roles of a real cluster grant.

use serde_json::Value;

use crate::store::Store;

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
}

impl User {
    /// Returns a user who may do everything.
    pub fn admin() -> Self {
        Self {
            name: "kubernetes-admin".into(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
        }
    }

    /// Returns the user of a ServiceAccount.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".into(),
            ],
        }
    }

    /// Returns a user without additional groups.
    pub fn named(name: &str) -> Self {
        Self { name: name.into(), groups: vec!["system:authenticated".into()] }
    }

    /// Returns the user of a token that [`bound_token`] created, if its ServiceAccount and its Secret exist and it has
    /// not expired.
    pub(crate) fn of_bound_token(store: &Store, token: &str) -> Option<Self> {
        let mut parts = token.strip_prefix(BOUND)?.split('/');
        let (namespace, name, expires) = (parts.next()?, parts.next()?, parts.next()?);
        store.get("serviceaccounts", namespace, name)?;
        if let Some(secret) = parts.next() {
            store.get("secrets", namespace, secret)?;
        }
        let is_over = expires.parse::<i64>().ok()? <= jiff::Timestamp::now().as_second();
        (!is_over).then(|| Self::service_account(namespace, name))
    }

    fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == "system:masters")
    }
}

/// The prefix of tokens that are issued to a ServiceAccount for a limited time.
const BOUND: &str = "bound/";

/// Creates a token for a ServiceAccount. It expires at a Unix time, or when the Secret is deleted, if one is named.
pub(crate) fn bound_token(namespace: &str, name: &str, expires: i64, secret: Option<&str>) -> String {
    let secret = secret.map(|secret| format!("/{secret}")).unwrap_or_default();
    format!("{BOUND}{namespace}/{name}/{expires}{secret}")
}

/// An action that a user attempts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attempt<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    /// The plural name, with `/status` for a subresource.
    pub(crate) resource: &'a str,
    /// Empty at cluster scope.
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// Whether the user may perform the action.
pub(crate) fn allows(store: &Store, user: &User, attempt: &Attempt<'_>) -> bool {
    if user.is_master() || attempt.group == "authorization.k8s.io" && attempt.resource.starts_with("self") {
        return true;
    }
    let bound = |storage: &str, namespace: &str| -> bool {
        store
            .list(storage, namespace)
            .iter()
            .filter(|binding| names(binding, user))
            .any(|binding| rules(store, binding).iter().any(|rule| covers(rule, attempt)))
    };
    bound("clusterrolebindings.rbac.authorization.k8s.io", "")
        || (!attempt.namespace.is_empty()
            && bound("rolebindings.rbac.authorization.k8s.io", attempt.namespace))
}

/// Whether a user may read a path that is not a resource.
pub(crate) fn allows_path(user: &User, verb: &str, path: &str) -> bool {
    let free = ["/api", "/apis", "/version", "/healthz", "/livez", "/readyz"];
    user.is_master()
        || (verb == "get" && free.iter().any(|one| path == *one || path.starts_with(&format!("{one}/"))))
}

fn names(binding: &Value, user: &User) -> bool {
    binding["subjects"].as_array().into_iter().flatten().any(|subject| {
        let name = subject["name"].as_str().unwrap_or_default();
        match subject["kind"].as_str() {
            Some("User") => name == user.name,
            Some("Group") => user.groups.iter().any(|group| group == name),
            Some("ServiceAccount") => {
                let namespace = subject["namespace"].as_str().unwrap_or_default();
                user.name == format!("system:serviceaccount:{namespace}:{name}")
            }
            _ => false,
        }
    })
}

fn rules(store: &Store, binding: &Value) -> Vec<Value> {
    let role = &binding["roleRef"];
    let name = role["name"].as_str().unwrap_or_default();
    let found = if role["kind"] == "ClusterRole" {
        store.get("clusterroles.rbac.authorization.k8s.io", "", name)
    } else {
        let namespace = binding["metadata"]["namespace"].as_str().unwrap_or_default();
        store.get("roles.rbac.authorization.k8s.io", namespace, name)
    };
    found.and_then(|role| role["rules"].as_array().cloned()).unwrap_or_default()
}

fn covers(rule: &Value, attempt: &Attempt<'_>) -> bool {
    let has = |name: &str, wanted: &dyn Fn(&str) -> bool| {
        rule[name]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .any(|one| one == "*" || wanted(one))
    };
    let names = rule["resourceNames"].as_array().map_or(&[][..], Vec::as_slice);
    has("verbs", &|verb| verb == attempt.verb)
        && has("apiGroups", &|group| group == attempt.group)
        && has("resources", &|resource| {
            resource == attempt.resource
                || resource.strip_prefix("*/").is_some_and(|sub| {
                    attempt.resource.split_once('/').is_some_and(|(_, subresource)| subresource == sub)
                })
        })
        && (names.is_empty() || names.iter().any(|name| name == attempt.name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rule_covers_its_verbs_groups_resources_and_names_only() {
        let rule = json!({"verbs": ["get", "update"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["tidegate"]});
        let lease = Attempt {
            verb: "update",
            group: "coordination.k8s.io",
            resource: "leases",
            namespace: "kube-system",
            name: "tidegate",
        };
        assert!(covers(&rule, &lease));
        assert!(!covers(&rule, &Attempt { verb: "delete", ..lease.clone() }));
        assert!(!covers(&rule, &Attempt { name: "other", ..lease.clone() }));
        assert!(!covers(&rule, &Attempt { group: "", ..lease.clone() }));
        assert!(!covers(&rule, &Attempt { resource: "leases/status", ..lease }));
    }
}

//! The cluster of a kubeconfig, reserved for the duration of one test. It must contain nothing of Tidegate, and is
//! returned unchanged.
//!
//! Everything that a test may leave behind is deleted before and after it. A cluster that already contains such an
//! object is refused, because it may belong to a gateway that carries traffic. A namespace, [`MARK`], marks the objects
//! as those of the tests, so that the next run can clean up after one that died.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_netlab::wait_for;

use super::objects::{Admin, ObjectPath};

/// The namespace that marks the objects as those of the tests.
const MARK: &str = "tidegate-stories";
/// Its annotation: the host and the process of the test run.
const RUN: &str = "tidegate.dev/stories";
/// The maximum time until a namespace is deleted, including the work of its controller.
const GONE: Duration = Duration::from_secs(180);
const FINALIZER: &str = "tidegate.dev/cleanup";

/// Namespaces that the tests create.
const NAMESPACES: [&str; 3] = ["shop", "aaa", "tidegate-system"];
/// Kinds, with the namespace, of which tests and manifests create objects with recognisable names.
const NAMED: [(&str, &str, &str); 7] = [
    ("rbac.authorization.k8s.io/v1", "ClusterRole", ""),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", ""),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", ""),
    ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration", ""),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", ""),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", ""),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", ""),
];

/// A reserved cluster. The reservation ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation(Admin);

impl Reservation {
    /// Reserves the cluster, and cleans up after a run that died.
    ///
    /// # Errors
    /// Describes an object of Tidegate that no test created, or another run in progress.
    pub(crate) fn take(admin: Admin) -> Result<Self, String> {
        let run = format!("{} {}", host(), std::process::id());
        match admin.get("v1", "Namespace", "", MARK) {
            None => {
                let found = found(&admin)?;
                if !found.is_empty() {
                    let what: Vec<String> = found.iter().map(|(place, _)| place.path()).collect();
                    return Err(format!(
                        "the cluster is in use, and the tests would delete this: {}. Accepted: a cluster without \
                         Tidegate, without Services of its class, and without the namespaces {}",
                        what.join(", "),
                        NAMESPACES.join(", ")
                    ));
                }
            }
            Some(mark) => {
                let other = mark["metadata"]["annotations"][RUN].as_str().unwrap_or_default().to_owned();
                if other != run && !has_ended(&other) {
                    return Err(format!(
                        "another test run uses the cluster: {other} (host and process). If it died: kubectl \
                         annotate namespace {MARK} {RUN}-"
                    ));
                }
            }
        }
        let mark = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MARK, "annotations": {RUN: run}},
        });
        let path = format!("/api/v1/namespaces/{MARK}?fieldManager=stories&force=true");
        let marked = admin.request("PATCH", &path, Some(("application/apply-patch+yaml", &mark)));
        marked.map_err(|refusal| refusal.to_string())?;
        clean(&admin)?;
        Ok(Self(admin))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // The mark stays if any other object does, so that the next run tries again.
        match clean(&self.0) {
            Ok(()) => {
                let path = format!("/api/v1/namespaces/{MARK}");
                let _ = self.0.request("DELETE", &path, None);
                let is_gone =
                    || self.0.request("GET", &path, None).is_err_and(|no| no.code == 404).then_some(());
                if let Err(error) = wait_for("the mark of the tests to go", GONE, is_gone) {
                    eprintln!("{error:#}");
                }
            }
            Err(error) => eprintln!("the cluster is not cleaned up: {error}"),
        }
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Whether a run has ended, as far as this host knows. A run without a name has ended.
fn has_ended(run: &str) -> bool {
    let Some((host_of_run, process)) = run.split_once(' ') else { return true };
    host_of_run == host() && !std::path::Path::new("/proc").join(process).exists()
}

/// Everything that the tests create or cause, with its finalizers.
fn found(admin: &Admin) -> Result<Vec<(ObjectPath, Value)>, String> {
    let mut found = Vec::new();
    let mut find = |version: &str, kind: &str, namespace: &str, is_ours: &dyn Fn(&str, &Value) -> bool| {
        let items = match admin.request("GET", &ObjectPath::new(version, kind, namespace, "").path(), None) {
            Ok(list) => list["items"].as_array().cloned().unwrap_or_default(),
            Err(refusal) if refusal.code == 404 => Vec::new(),
            Err(refusal) => return Err(format!("{kind}: {refusal}")),
        };
        for item in items {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let metadata = &item["metadata"];
            let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
            if is_ours(&name, &item) {
                let finalizers = metadata["finalizers"].clone();
                found.push((ObjectPath::new(version, kind, &namespace, &name), finalizers));
            }
        }
        Ok(())
    };
    find("v1", "Service", "", &|_, service| {
        let finalizers = service["metadata"]["finalizers"].as_array();
        service["spec"]["loadBalancerClass"] == "tidegate.dev/gateway"
            || finalizers.is_some_and(|all| all.iter().any(|one| one == FINALIZER))
    })?;
    for kind in ["AddressPool", "GatewayStatus"] {
        find("tidegate.dev/v1alpha1", kind, "", &|_, _| true)?;
    }
    find("v1", "Namespace", "", &|name, _| NAMESPACES.contains(&name))?;
    find("v1", "Node", "", &|name, _| name == "a")?;
    for (version, kind, namespace) in NAMED {
        find(version, kind, namespace, &|name, _| {
            name == "tidegate" || name.starts_with("tidegate-") || name.ends_with(".tidegate.dev")
        })?;
    }
    Ok(found)
}

/// Deletes everything and waits until it is gone.
fn clean(admin: &Admin) -> Result<(), String> {
    // Only events about objects of the cluster are deleted here; the others are deleted with their namespace. A cluster
    // without them contains no Tidegate.
    let events = admin.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events", None);
    for event in events.map_err(|refusal| refusal.to_string())?["items"].as_array().into_iter().flatten() {
        let reporter = event["reportingController"].as_str().unwrap_or_default();
        if reporter.starts_with("tidegate") {
            let name = event["metadata"]["name"].as_str().unwrap_or_default();
            let _ = admin.request(
                "DELETE",
                &ObjectPath::new("events.k8s.io/v1", "Event", "default", name).path(),
                None,
            );
        }
    }
    let mut last = String::new();
    let cleaned = wait_for("the cluster to be clean", GONE, || {
        let left = match found(admin) {
            Ok(left) => left,
            Err(error) => {
                last = error;
                return None;
            }
        };
        if left.is_empty() {
            return Some(());
        }
        last = left.iter().map(|(place, _)| place.path()).collect::<Vec<_>>().join(", ");
        for (place, finalizers) in left {
            release(admin, &place, &finalizers);
            // The request is refused if the object is already being deleted. The next iteration checks again.
            let _ = admin.request("DELETE", &place.path(), None);
        }
        std::thread::sleep(Duration::from_millis(100));
        None
    });
    cleaned.map_err(|error| format!("{error:#}: {last}"))
}

/// Removes our finalizer from an object, because no gateway is running to do it.
fn release(admin: &Admin, place: &ObjectPath, finalizers: &Value) {
    let all = finalizers.as_array().cloned().unwrap_or_default();
    if all.iter().any(|one| one == FINALIZER) {
        let rest: Vec<&Value> = all.iter().filter(|one| **one != FINALIZER).collect();
        let patch = json!({"metadata": {"finalizers": rest}});
        let _ = admin.request("PATCH", &place.path(), Some(("application/merge-patch+json", &patch)));
    }
}

#[cfg(test)]
mod tests {
    use test_apiserver::{Options, TestApiServer};

    use super::*;

    const SERVICE: &str = "{apiVersion: v1, kind: Service, metadata: {name: live, namespace: prod}, spec: {type: \
                           LoadBalancer, loadBalancerClass: tidegate.dev/gateway, ports: [{port: 80}]}}";

    /// A cluster, and a function that creates HTTP clients for it.
    fn cluster() -> (TestApiServer, tempfile::TempDir, impl Fn() -> Admin) {
        let server = TestApiServer::start(Options::default()).expect("a free port");
        let directory = tempfile::tempdir().expect("a directory");
        let kubeconfig = server.kubeconfig(directory.path()).expect("written");
        (server, directory, move || Admin::new(&kubeconfig, None))
    }

    #[test]
    fn a_cluster_that_already_uses_tidegate_is_refused_unchanged() {
        let (server, _directory, admin) = cluster();
        server.apply(SERVICE).expect("legal");
        let before = server.resource_version();
        let refused = Reservation::take(admin()).expect_err("it is in use");
        assert!(refused.contains("/api/v1/namespaces/prod/services/live"), "{refused}");
        assert_eq!(server.resource_version(), before);
        assert!(server.delete("v1", "Service", "prod", "live"));
        server.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}").expect("legal");
        let refused = Reservation::take(admin()).expect_err("its namespace would be deleted");
        assert!(refused.contains("/api/v1/namespaces/shop"), "{refused}");
    }

    #[test]
    fn a_reserved_cluster_is_returned_without_objects_of_the_tests() {
        let (server, _directory, admin) = cluster();
        let reservation = Reservation::take(admin()).expect("nothing is there");
        assert!(server.get("v1", "Namespace", "", MARK).is_some());
        let finalized = SERVICE.replace("metadata: {", "metadata: {finalizers: [tidegate.dev/cleanup], ");
        server.apply(&finalized.replace("prod", "shop")).expect("legal");
        server.apply(&finalized.replace("prod", "default")).expect("legal");
        drop(reservation);
        for namespace in [MARK, "shop"] {
            assert!(server.get("v1", "Namespace", "", namespace).is_none(), "{namespace}");
        }
        assert!(server.list("v1", "Service", "").is_empty(), "{:?}", server.list("v1", "Service", ""));
    }

    #[test]
    fn a_dead_run_is_cleaned_up_by_the_next_and_a_live_one_is_not() {
        let (server, _directory, admin) = cluster();
        let mark = |process: u32| {
            let run = format!("{} {process}", host());
            let metadata = json!({"name": MARK, "annotations": {RUN: run}});
            let mark = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
            server.apply(&mark.to_string()).expect("legal");
        };
        server.apply(SERVICE).expect("legal");
        // Process 1 always runs, and no process has a number above 2^22.
        mark(1);
        let refused = Reservation::take(admin()).expect_err("it lives");
        assert!(refused.contains("another test run"), "{refused}");
        assert!(server.get("v1", "Service", "prod", "live").is_some());
        mark(4_999_999);
        drop(Reservation::take(admin()).expect("it died"));
        assert!(server.get("v1", "Service", "prod", "live").is_none());
    }
}

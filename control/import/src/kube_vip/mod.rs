//! kube-vip: the environment of its DaemonSet or static Pod, and the ConfigMap `kubevip` of its cloud provider.
//!
//! A namespace with a pool of its own uses only that one, and an entry `cidr-...` overrides `range-...`, as in
//! kube-vip.

mod environment;
mod peers;
mod pools;

use tidegate_model::yaml::Field;

use crate::draft::{Announce, Draft};
use crate::note::{NoteKind, Notes};
use crate::object::Object;
use crate::services::Annotations;
use environment::Environment;

/// The resources at an API server.
pub(crate) const PATHS: &[&[&str]] = &[
    &["/apis/apps/v1/daemonsets"],
    &["/api/v1/namespaces/kube-system/configmaps/kubevip"],
    &["/api/v1/services"],
];

/// The annotations of Services.
pub(crate) const ANNOTATIONS: Annotations = Annotations {
    prefixes: &["kube-vip.io/"],
    understood: &["kube-vip.io/loadbalancerIPs"],
    sharing_keys: &[],
};

/// Converts the objects of kube-vip.
pub(crate) fn convert(objects: &[Object<'_>], notes: &Notes) -> Draft {
    let mut draft = Draft::default();
    let mut announce = None;
    for object in objects {
        match (object.group, object.kind) {
            ("apps", "DaemonSet") | ("", "Pod") => {
                let containers = containers(object);
                let found: Vec<Environment<'_>> =
                    containers.iter().filter_map(|container| Environment::of(container, notes)).collect();
                for environment in &found {
                    *announce.get_or_insert_default() = of_environment(environment, notes, &mut draft);
                }
                match found.is_empty() {
                    true => object.skip(notes, "it has no container of kube-vip"),
                    false => object.skip(notes, "only the environment of its container is converted"),
                }
            }
            ("", "ConfigMap") if pools::is_pools(object) => pools::read(object, notes, &mut draft),
            ("", "Service") => {}
            _ => object.skip(notes, "not a resource of kube-vip that is converted"),
        }
    }
    draft.pools.iter_mut().for_each(|pool| pool.announce = announce);
    draft
}

/// The containers of a DaemonSet or a Pod.
fn containers<'a>(object: &Object<'a>) -> Vec<Field<'a>> {
    let pod = match object.kind {
        "Pod" => object.spec(),
        _ => object.spec().and_then(|spec| spec.mapping("template")).and_then(|pod| pod.mapping("spec")),
    };
    pod.map(|pod| pod.items("containers")).unwrap_or_default()
}

/// How kube-vip announces the addresses of Services.
fn of_environment(environment: &Environment<'_>, notes: &Notes, draft: &mut Draft) -> Announce {
    let is_on = |name| environment.flag(name) == Some(true);
    let (l2, bgp, table) = (is_on("vip_arp"), is_on("bgp_enable"), is_on("vip_routingtable"));
    draft.layer2 = Some(draft.layer2 == Some(true) || l2);
    if bgp {
        peers::read(environment, notes, &mut draft.bgp);
    }
    if table {
        let number = |name, range| environment.number(name, range);
        let mut routes =
            serde_json::json!({"table": number("vip_routingtableid", 1..=4_294_967_295).unwrap_or(198)});
        if let Some(protocol) = number("vip_routingprotocol", 5..=255) {
            routes["protocol"] = protocol.into();
        }
        draft.kernel_routes = Some(routes);
    }
    if let Some(variable) = environment.get("lb_class_only").filter(|_| is_on("lb_class_only")) {
        let what = "give the Services the class tidegate.dev/gateway";
        notes.add(NoteKind::Decide, &variable.field, format_args!("lb_class_only: {what}"));
    }
    if environment.flag("svc_enable") == Some(false)
        && let Some(variable) = environment.get("svc_enable")
    {
        notes.add(NoteKind::Decide, &variable.field, "svc_enable: kube-vip does not serve Services");
    }
    environment.rest(notes);
    // Kernel routes follow the routes that BGP would announce.
    Announce { l2, bgp: bgp || table }
}

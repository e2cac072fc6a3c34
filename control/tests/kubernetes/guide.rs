//! Follows the page of `docs/guide` about clusters as a reader does: on a workstation, with a real API server.
//! [`crate::guide_support`] says how a page states what belongs where.

use crate::api::Needs;
use crate::guide_support::{Action, Expected, steps_of};
use crate::needs;
use crate::uninstall::Workstation;
use crate::world::{Setting, World};

/// Follows a page. The gateway starts as soon as the page has written its kubeconfig.
fn follow(page: &str, world: &mut World, workstation: &Workstation) {
    let mut has_gateway = false;
    for step in steps_of(page) {
        match step.action {
            Action::Run { hosts, instead: None, expected: Expected::Success } if hosts == ["workstation"] => {
                workstation.run(world, &step.text);
            }
            Action::File { hosts, path } if hosts == ["workstation"] => {
                std::fs::write(workstation.path(&path), &step.text).expect("its directory exists");
            }
            Action::NotRun { .. } => {}
            other => panic!("docs/guide/{page}.md:{}: no test does this: {other:?}", step.line),
        }
        if !has_gateway && let Ok(kubeconfig) = std::fs::read_to_string(workstation.path("kubeconfig")) {
            let kubeconfig = Some(kubeconfig);
            world.start_with(
                "edge-1",
                &Setting { document: "pools: []".into(), kubeconfig, ..Setting::default() },
            );
            has_gateway = true;
        }
    }
}

#[test]
fn an_administrator_follows_the_page_about_clusters() {
    needs!(Needs::RealServer, Needs::NamespaceController, Needs::NoNodes, Needs::Version(31));
    let mut world = World::empty();
    let workstation = Workstation::new(&world);
    follow("5-in-a-cluster", &mut world, &workstation);
    let service = world.api.get("v1", "Service", "default", "web").expect("the page creates it");
    let address = &service["status"]["loadBalancer"]["ingress"][0]["ip"];
    assert!(address.as_str().is_some_and(|address| address.starts_with("203.0.113.")), "{service}");
    let image = |object: serde_json::Value| {
        object["spec"]["template"]["spec"]["containers"][0]["image"].as_str().map(str::to_owned)
    };
    let daemonset = world.api.get("apps/v1", "DaemonSet", "tidegate-system", "tidegate").expect("as above");
    assert_eq!(image(daemonset).as_deref(), Some("registry.example.org/tidegate:0.1.0"));
}

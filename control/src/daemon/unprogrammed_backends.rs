//! Adds to the views of Services what only the whole desired state shows: which backends no worker has because the
//! compiler of the snapshot ignored them, and which backends of `dsr-dscp` cannot distinguish two VIPs.
//!
//! The reconcile step handles one Service at a time. Only the compiler knows whether the table of next hops has space.
//! Without this step, an ignored backend would count as active.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_model::objects::Objects;
use tidegate_policy::reconcile::view::{BackendViewState, BackendWhy, PortRefusal, PortView, ServiceView};
use tidegate_policy::reconcile::{DscpConflicts, Finding, Outcome};
use tidegate_spec::{Problem, ServiceKey};

/// The findings of the last outcome that had others than those of reconcile.
struct Findings {
    /// The findings of reconcile.
    of_services: Arc<[Finding]>,
    /// The findings of reconcile, about conflicts, and about objects of the Gateway API.
    all: Arc<[Finding]>,
}

/// Adds to outcomes what only the whole desired state shows.
#[derive(Default)]
pub(super) struct Completion {
    conflicts: DscpConflicts,
    findings: Option<Findings>,
}

impl Completion {
    /// The outcome with the state of the ignored backends, with the conflicts of `dsr-dscp`, and with the findings about
    /// objects of the Gateway API. Returns it unchanged if there are none.
    pub(super) fn complete(
        &mut self,
        outcome: Arc<Outcome>,
        problems: &[Problem],
        of_gateway_api: &Arc<[Finding]>,
        objects: &Objects,
    ) -> Arc<Outcome> {
        let conflicts = self.conflicts.among(&outcome.spec.services);
        if conflicts.is_empty()
            && of_gateway_api.is_empty()
            && !problems.iter().any(|problem| matches!(problem, Problem::Backend { .. }))
        {
            return outcome;
        }
        let mut services = outcome.services.clone();
        mark(&mut services, problems);
        for conflict in conflicts {
            let key = (&conflict.service.namespace, &conflict.service.name);
            // Services are sorted.
            if let Ok(at) = services.binary_search_by(|view| (&view.namespace, &view.name).cmp(&key)) {
                Arc::make_mut(&mut services[at]).warnings.push(conflict.to_string());
            }
        }
        let of_conflicts = conflicts.iter().map(|conflict| conflict.finding(objects));
        let others = of_conflicts.chain(of_gateway_api.iter().cloned()).collect();
        let findings = self.findings(&outcome.findings, others);
        Arc::new(Outcome { services, findings, ..(*outcome).clone() })
    }

    /// All findings, sorted. Returns the same slice as long as nothing changes.
    fn findings(&mut self, of_services: &Arc<[Finding]>, others: Vec<Finding>) -> Arc<[Finding]> {
        if others.is_empty() {
            return Arc::clone(of_services);
        }
        let all: BTreeSet<Finding> = of_services.iter().cloned().chain(others).collect();
        if let Some(before) = &self.findings
            && Arc::ptr_eq(&before.of_services, of_services)
            && before.all.iter().eq(&all)
        {
            return Arc::clone(&before.all);
        }
        let all: Arc<[Finding]> = all.into_iter().collect();
        self.findings = Some(Findings { of_services: Arc::clone(of_services), all: Arc::clone(&all) });
        all
    }
}

fn mark(services: &mut [Arc<ServiceView>], problems: &[Problem]) {
    let mut of_port = BTreeMap::<ServiceKey, Vec<(SocketAddr, &Problem)>>::new();
    for problem in problems {
        if let Problem::Backend { service, backend, .. } = problem {
            of_port.entry(*service).or_default().push((*backend, problem));
        }
    }
    for view in services {
        if !view.ports.iter().any(|port| of_port.contains_key(&key(port))) {
            continue;
        }
        let view = Arc::make_mut(view);
        for port in &mut view.ports {
            let Some(ignored) = of_port.get(&key(port)) else { continue };
            let [(_, first), rest @ ..] = &ignored[..] else { continue };
            let more = if rest.is_empty() { String::new() } else { format!(", and {} more", rest.len()) };
            view.warnings.push(format!("{first}{more}"));
            let addresses: BTreeSet<SocketAddr> = ignored.iter().map(|(backend, _)| *backend).collect();
            ignore(port, &addresses);
            if port.refused.is_none() && port.backends.iter().all(|one| one.why == BackendWhy::NoNextHop) {
                port.refused = Some(PortRefusal::from("none of its backends could be programmed".to_owned()));
            }
        }
    }
}

fn key(port: &PortView) -> ServiceKey {
    ServiceKey { vip: port.vip, protocol: port.protocol, port: port.port }
}

fn ignore(port: &mut PortView, backends: &BTreeSet<SocketAddr>) {
    for one in &mut port.backends {
        if backends.contains(&SocketAddr::new(one.address, one.port)) {
            (one.state, one.why) = (BackendViewState::Down, BackendWhy::NoNextHop);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_spec::{BackendProblem, ForwardingMode, Protocol};

    use super::*;
    use crate::views_testing;

    fn service(name: &str, vip: &str) -> Arc<ServiceView> {
        let backends =
            ["10.0.0.1:80", "10.0.0.2:80"].map(|at| views_testing::backend(at, BackendViewState::Active));
        let port = views_testing::port(vip, ForwardingMode::DsrL2, backends.into());
        Arc::new(views_testing::service(name, vec![port]))
    }

    fn ignored(backend: &str) -> Problem {
        Problem::Backend {
            service: ServiceKey { vip: "203.0.113.1".parse().unwrap(), protocol: Protocol::Tcp, port: 80 },
            label: "shop/web http".into(),
            backend: backend.parse().unwrap(),
            reason: BackendProblem::NeighborTableFull,
        }
    }

    #[test]
    fn a_backend_without_a_next_hop_is_not_shown_as_active() {
        let mut services = [service("web", "203.0.113.1"), service("api", "203.0.113.2")];
        let other = Arc::clone(&services[1]);
        mark(&mut services, &[ignored("10.0.0.2:80")]);
        let port = &services[0].ports[0];
        assert_eq!(port.count(BackendViewState::Active), 1);
        assert_eq!(
            (port.backends[1].state, port.backends[1].why),
            (BackendViewState::Down, BackendWhy::NoNextHop)
        );
        assert_eq!(port.refused, None, "the other backend serves");
        assert!(services[0].warnings[0].contains("10.0.0.2:80 is left out: the neighbour table is full"));
        assert!(Arc::ptr_eq(&services[1], &other), "the other Service is unchanged");
    }

    #[test]
    fn a_port_without_any_backend_that_has_a_next_hop_is_not_programmed() {
        let mut services = [service("web", "203.0.113.1")];
        mark(&mut services, &[ignored("10.0.0.1:80"), ignored("10.0.0.2:80")]);
        let refused = services[0].ports[0].refused.as_ref().expect("no worker serves it");
        assert_eq!(refused.to_string(), "none of its backends could be programmed");
        let [warning] = &services[0].warnings[..] else { panic!("one for the port") };
        assert!(warning.ends_with(", and 1 more"), "{warning}");
    }
}

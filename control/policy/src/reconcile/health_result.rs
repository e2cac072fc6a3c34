//! Applies the results of the gateway's checks to endpoints: how each is checked, which fail, and when failures are
//! ignored.
//!
//! Pure, for one service port. A UDP or SCTP port without its own check uses the result of the checked TCP ports of
//! its endpoint and Service ([`TcpEvidence`]).
//!
//! Invariant: with [`HealthConfig::fail_open`](tidegate_model::config::HealthConfig::fail_open), checks never remove
//! the last endpoint. Kubernetes reports it as ready, and if all endpoints fail at the same time, the check or the
//! route to them is the more likely fault.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::health::{AtVip, HealthStatus, Target, Verdicts};
use tidegate_model::objects::{PortEndpoints, Protocol, ResolvedEndpoint};

use super::health_options::Checks;
use super::view::{HealthState, HealthView};

/// The checked TCP ports of a Service by endpoint address, which decide for ports without their own check.
///
/// A UDP or SCTP port without its own check counts as down if every TCP port of the same endpoint and Service fails.
#[derive(Debug, Default)]
pub(super) struct TcpEvidence(BTreeMap<IpAddr, Vec<Target>>);

impl TcpEvidence {
    /// The evidence for a Service whose ports resolve to `ports`.
    pub(super) fn new(
        checks: &Checks,
        ports: &[PortEndpoints],
        at_vip: Option<&Arc<AtVip>>,
        may_be_checked: impl Fn(&ResolvedEndpoint) -> bool,
    ) -> Self {
        let mut evidence = Self::default();
        let has_other = ports.iter().any(|port| port.protocol != Protocol::Tcp);
        for port in ports.iter().filter(|port| has_other && port.protocol == Protocol::Tcp) {
            for endpoint in port.endpoints.iter().filter(|one| one.answers() && may_be_checked(one)) {
                if let Some(target) = checks.target(port.protocol, endpoint.ip, endpoint.port, at_vip) {
                    evidence.0.entry(endpoint.ip).or_default().push(target);
                }
            }
        }
        evidence
    }

    fn all_fail(&self, ip: IpAddr, verdicts: &Verdicts) -> bool {
        self.0.get(&ip).is_some_and(|targets| targets.iter().all(|target| verdicts.fails(target)))
    }
}

/// The health of one endpoint of a service port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HealthResult {
    /// The endpoint's own check, if any.
    pub(super) target: Option<Target>,
    status: HealthStatus,
    by_tcp_evidence: bool,
}

impl HealthResult {
    /// Looks up the verdicts for an endpoint with this check.
    pub(super) fn new(
        target: Option<Target>,
        evidence: &TcpEvidence,
        protocol: Protocol,
        ip: IpAddr,
        verdicts: &Verdicts,
    ) -> Self {
        let status = target.as_ref().map_or_else(HealthStatus::default, |target| verdicts.of(target));
        let by_tcp_evidence =
            target.is_none() && protocol != Protocol::Tcp && evidence.all_fail(ip, verdicts);
        Self { target, status, by_tcp_evidence }
    }

    /// Whether its check fails, or all ports that decide for it fail.
    pub(super) fn fails(&self) -> bool {
        self.status.failure.is_some() || self.by_tcp_evidence
    }

    pub(super) fn failure(&self) -> Option<String> {
        let beside = || "the health checks of all TCP ports of this endpoint fail".to_owned();
        self.status.failure.map(|why| why.to_string()).or_else(|| self.by_tcp_evidence.then(beside))
    }

    /// The view for `backends`.
    pub(super) fn view(&self) -> HealthView {
        HealthView {
            state: match (&self.target, self.fails()) {
                (_, true) => HealthState::Failing,
                (Some(_), false) => HealthState::Passing,
                (None, false) => HealthState::Unchecked,
            },
            failure: self.failure(),
            damping: self.status.damping,
        }
    }
}

/// Whether failures are ignored, because every endpoint that would otherwise take flows fails its checks.
pub(super) fn fails_open(enabled: bool, candidates_fail: impl IntoIterator<Item = bool>) -> bool {
    let mut candidates_fail = candidates_fail.into_iter().peekable();
    enabled && candidates_fail.peek().is_some() && candidates_fail.all(|fails| fails)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn checks_never_remove_the_last_endpoint(candidates in prop::collection::vec(any::<bool>(), 1..20)) {
            let open = fails_open(true, candidates.iter().copied());
            let taking = candidates.iter().filter(|fails| open || !**fails).count();
            prop_assert!(taking > 0);
            // One endpoint that passes is enough to exclude the failing ones.
            prop_assert_eq!(open, !candidates.contains(&false));
            prop_assert!(!fails_open(false, candidates));
        }
    }

    #[test]
    fn without_a_candidate_nothing_is_open() {
        assert!(!fails_open(true, []));
    }
}

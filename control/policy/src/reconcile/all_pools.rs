//! The pools of the configuration and of `AddressPool` objects as one list, with their faults.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{AddressRange, ObjectKey, Pool};

use super::finding::{Finding, ObjectKind, Reason};
use super::input::Input;
use crate::pools::{self, PoolFault};

/// All pools; the configured pools come first.
pub(super) fn all_pools(input: &Input<'_>, findings: &mut Vec<Finding>) -> Vec<Pool> {
    let objects = &input.objects.address_pools;
    let (mut pools, faults) = pools::merge(&input.settings.pools, objects);
    for pool in &mut pools {
        findings.extend(cluster_ips(pool, input));
    }
    for object in objects.values() {
        let not_accepted = object.faults.iter().map(|fault| Finding {
            object: object.meta.key.clone(),
            kind: ObjectKind::AddressPool,
            reason: Reason::PoolNotAccepted,
            diagnostic: fault.clone(),
        });
        findings.extend(not_accepted);
    }
    for (name, faults) in faults {
        let Some(object) = objects.get(&name) else { continue };
        for fault in faults {
            let (field, reason, diagnostic) = match fault {
                PoolFault::NameTaken => (
                    "metadata.name",
                    Reason::PoolNotAccepted,
                    Diagnostic::error(format!(
                        "AddressPool {name} is not used: the gateway's configuration has a pool of this name"
                    ))
                    .accepting("a name that no pool of the configuration has"),
                ),
                PoolFault::Overlaps { other, range, other_range } => (
                    "spec.addresses",
                    Reason::PoolsOverlap,
                    Diagnostic::warning(format!(
                        "{range} of AddressPool {name} overlaps {other_range} of pool {other}; for an address in \
                         both pools, the pool in the configuration applies, or the AddressPool whose name sorts first"
                    ))
                    .accepting("ranges that do not overlap"),
                ),
            };
            findings.push(Finding::of(ObjectKind::AddressPool, &object.meta, field, reason, diagnostic));
        }
    }
    pools
}

/// Removes cluster IPs from a pool. Returns a finding for each ServiceCIDR that the pool overlaps.
fn cluster_ips(pool: &mut Pool, input: &Input<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for service_cidr in input.objects.service_cidrs.values() {
        let networks: Vec<AddressRange> = service_cidr.cidrs.iter().map(|net| (*net).into()).collect();
        for range in pools::without_cluster_ips(pool, &networks) {
            let (name, cidr) = (&pool.name, &service_cidr.meta.key.name);
            let what = format!(
                "{range} of pool {name} is in ServiceCIDR {cidr}: these addresses are cluster IPs, so no Service gets \
                 one of them from the pool"
            );
            let diagnostic = Diagnostic::warning(what).accepting("ranges outside the ServiceCIDRs");
            let object = input.objects.address_pools.get(name);
            findings.push(match object {
                Some(object) => Finding::of(
                    ObjectKind::AddressPool,
                    &object.meta,
                    "spec.addresses",
                    Reason::PoolsOverlap,
                    diagnostic,
                ),
                None => Finding {
                    object: ObjectKey::new("", name.as_str()),
                    kind: ObjectKind::AddressPool,
                    reason: Reason::PoolsOverlap,
                    diagnostic,
                },
            });
        }
    }
    findings
}

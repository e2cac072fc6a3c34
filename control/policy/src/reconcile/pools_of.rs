//! The pools of the configuration and those of `AddressPool` objects as one list, with their faults.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::Pool;

use super::finding::{Finding, ObjectKind, Reason};
use super::input::Input;
use crate::pools::{self, PoolFault};

/// All pools; those of the configuration come first.
pub(super) fn pools_of(input: &Input<'_>, findings: &mut Vec<Finding>) -> Vec<Pool> {
    let objects = &input.objects.address_pools;
    let (pools, faults) = pools::merge(&input.settings.pools, objects);
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
                        "{range} of AddressPool {name} overlaps {other_range} of pool {other}; who gets an \
                         address of both is decided by the pool that comes first"
                    ))
                    .accepting("ranges that do not overlap"),
                ),
            };
            findings.push(Finding::of(ObjectKind::AddressPool, &object.meta, field, reason, diagnostic));
        }
    }
    pools
}

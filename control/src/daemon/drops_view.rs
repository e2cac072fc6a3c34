//! The answer of `drops`: what was dropped and punted, what each reason means, and where it is known.

use std::collections::BTreeMap;

use tidegate_admin_api::{DropsAnswer, PartCount, ReasonView};
use tidegate_dataplane::gateway::{Dataplane, Stats};
use tidegate_snapshot::service_limits::LimitDrop;
use tidegate_spec::verdict::{DropReason, Refusal};

/// The counts since the start.
pub(super) fn drops(dataplane: &Dataplane) -> DropsAnswer {
    let stats = dataplane.stats();
    let mut counts: BTreeMap<DropReason, u64> = BTreeMap::new();
    for (why, count) in &stats.drops {
        *counts.entry(*why).or_default() += count;
    }
    let mut parts = of_services(dataplane);
    parts.insert(Refusal::AddressConflict, of_interfaces(dataplane, &stats));
    let drop = |why: DropReason| ReasonView {
        reason: why.as_str().to_owned(),
        count: counts.get(&why).copied().unwrap_or(0),
        meaning: why.meaning().to_owned(),
        by: match why {
            DropReason::Refused(refusal) => parts.get(&refusal).cloned().unwrap_or_default(),
            DropReason::Malformed(_) => Vec::new(),
        },
    };
    let punts = stats.punts.iter().map(|(why, count)| ReasonView {
        reason: why.as_str().to_owned(),
        count: *count,
        meaning: why.meaning().to_owned(),
        by: Vec::new(),
    });
    DropsAnswer { drops: DropReason::all().map(drop).collect(), punts: punts.collect() }
}

/// What the limits of Services dropped.
fn of_services(dataplane: &Dataplane) -> BTreeMap<Refusal, Vec<PartCount>> {
    let mut parts: BTreeMap<Refusal, Vec<PartCount>> = BTreeMap::new();
    for service in dataplane.limited_services() {
        for by in LimitDrop::ALL {
            let count = service.drops(by);
            if count > 0 {
                let name = format!("{}/{}", service.namespace(), service.name());
                let part = PartCount { service: Some(name), interface: None, count };
                parts.entry(by.refusal()).or_default().push(part);
            }
        }
    }
    parts
}

/// The packets in which another station claimed an address of the gateway.
fn of_interfaces(dataplane: &Dataplane, stats: &Stats) -> Vec<PartCount> {
    let interfaces = dataplane.interfaces().iter().zip(&stats.interfaces);
    let conflicts = interfaces.filter(|(_, counts)| counts.address_conflicts > 0);
    let part =
        |(name, count): (&String, u64)| PartCount { service: None, interface: Some(name.clone()), count };
    conflicts.map(|(interface, counts)| part((&interface.name, counts.address_conflicts))).collect()
}

//! The status of AddressPools: how many of their addresses are used, and whether Services hold any.

use tidegate_model::objects::{AddressPool, Condition};
use tidegate_policy::pools::PoolUsage;
use tidegate_policy::reconcile::{Finding, Reason};

use super::condition::{NewCondition, same};
use super::planner::Planner;
use super::write::Write;
use crate::crd;
use crate::event::{Event, EventType, Regarding};
use crate::words::{ConditionReason, condition_reason, condition_type, event_reason};

impl Planner<'_> {
    /// Plans for one AddressPool.
    pub(super) fn pool(&mut self, pool: &AddressPool, findings: &[&Finding]) {
        let key = &pool.meta.key;
        for finding in findings {
            self.event(Event::of_finding(Regarding::address_pool(key, pool.meta.uid.as_str()), finding));
        }
        let not_accepted = findings.iter().find(|f| f.reason == Reason::PoolNotAccepted);
        let overlaps = findings.iter().find(|f| f.reason == Reason::PoolsOverlap);
        let usage = self.situation.observation.outcome.pools.iter().find(|usage| usage.pool == key.name);
        let is_used = !findings.iter().any(|f| f.reason == Reason::PoolNotAccepted && pool.faults.is_empty());
        let usage = usage.filter(|_| is_used);
        let shown = |n: u128| i64::try_from(n).unwrap_or(i64::MAX);
        let condition =
            |kind, holds: bool, reason: ConditionReason, finding: Option<&&Finding>| NewCondition {
                kind,
                status: if holds { "True" } else { "False" },
                reason,
                message: finding.map(|f| f.diagnostic.what.clone()).unwrap_or_default(),
            };
        let accepted = match not_accepted {
            None => condition(condition_type::ACCEPTED, true, condition_reason::ACCEPTED, None),
            Some(_) => {
                condition(condition_type::ACCEPTED, false, condition_reason::NOT_ACCEPTED, not_accepted)
            }
        };
        let overlaps = match overlaps {
            None => condition(condition_type::OVERLAPS, false, condition_reason::NO_OVERLAP, None),
            Some(_) => condition(condition_type::OVERLAPS, true, condition_reason::OVERLAPS, overlaps),
        };
        let in_use = in_use(pool, usage);
        let is_deleted = pool.meta.deletion_time.is_some();
        let is_used = usage.is_some_and(|usage| usage.users > 0);
        // An API server refuses an additional finalizer on an object that is being deleted.
        if is_used != pool.is_finalized_by_us && !(is_used && is_deleted) {
            let (pool, uid) = (key.name.clone(), pool.meta.uid.clone());
            self.plan.writes.push(Write::PoolFinalizer { pool, uid, present: is_used });
            if is_deleted {
                // This removes the object.
                return;
            }
        }
        if is_used && is_deleted {
            let regarding = Regarding::address_pool(key, pool.meta.uid.as_str());
            self.event(Event::new(EventType::Warning, regarding, event_reason::POOL_IN_USE, &in_use.message));
        }
        let stored = &pool.status;
        let conditions: Vec<Condition> = [accepted, overlaps, in_use]
            .map(|condition| self.dated(key, &stored.conditions, condition, pool.generation))
            .into();
        let (total, used, available) =
            usage.map_or((0, 0, 0), |u| (shown(u.total), shown(u.assigned + u.outside), shown(u.free())));
        let gateways = self.groups.members(&key.name);
        let is_same = stored.gateways == gateways
            && (stored.total, stored.used, stored.available) == (total, used, available)
            && same(&stored.conditions, &conditions, |_| true);
        if !is_same {
            let conditions = conditions.iter().map(of_model).collect();
            let status = crd::AddressPoolStatus { total, used, available, gateways, conditions };
            self.plan.writes.push(Write::PoolStatus { pool: key.name.clone(), status });
        }
    }
}

/// The condition whether Services hold addresses from the pool: it names them, and what they prevent.
fn in_use(pool: &AddressPool, usage: Option<&PoolUsage>) -> NewCondition {
    let condition =
        |status, reason, message| NewCondition { kind: condition_type::IN_USE, status, reason, message };
    let Some(usage) = usage.filter(|usage| usage.users > 0) else {
        return condition("False", condition_reason::NOT_IN_USE, String::new());
    };
    let by = usage.used_by();
    if pool.meta.deletion_time.is_some() {
        let how = "they keep their addresses, and the pool assigns no new ones; it is deleted when all of them are \
                   released (spec.forceRelease: true releases them)";
        return condition(
            "True",
            condition_reason::DELETION_WAITS,
            format!("Services hold addresses of it: {by}; {how}"),
        );
    }
    if usage.outside > 0 {
        let outside = format!(
            "{} of these addresses are no longer in spec.addresses and remain assigned",
            usage.outside
        );
        return condition(
            "True",
            condition_reason::HELD_OUTSIDE,
            format!("Services hold addresses of it: {by}; {outside}"),
        );
    }
    condition("True", condition_reason::HELD, format!("Services hold addresses of it: {by}"))
}

/// A condition in the form of our own kinds.
pub(super) fn of_model(condition: &Condition) -> crd::Condition {
    crd::Condition {
        kind: condition.kind.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        observed_generation: condition.observed_generation,
        last_transition_time: condition.last_transition.unwrap_or_default().to_string(),
    }
}

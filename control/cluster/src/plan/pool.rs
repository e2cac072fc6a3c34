//! The status of AddressPools: how many of their addresses are used, and by which Services.

use tidegate_model::objects::{AddressPool, AddressRange, Condition, number};
use tidegate_policy::pools::PoolUsage;
use tidegate_policy::reconcile::{Finding, Reason};

use super::condition::{NewCondition, condition};
use super::planner::Planner;
use super::stored_condition::same;
use super::write::Write;
use crate::crd;
use crate::event::{Event, Regarding};
use crate::reasons::{condition_reason, condition_type, event_reason};

/// The maximum length of a summary, without the `, ...` of a truncated one.
const SUMMARY_BYTES_MAX: usize = 256;

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
        let what =
            |finding: Option<&&Finding>| finding.map(|f| f.diagnostic.what.clone()).unwrap_or_default();
        let reason = match not_accepted {
            None => condition_reason::ACCEPTED,
            Some(_) => condition_reason::NOT_ACCEPTED,
        };
        let is_accepted = Some(not_accepted.is_none());
        let accepted = condition(condition_type::ACCEPTED, is_accepted, reason, what(not_accepted));
        let reason = match overlaps {
            None => condition_reason::NO_OVERLAP,
            Some(_) => condition_reason::OVERLAPS,
        };
        let overlaps = condition(condition_type::OVERLAPS, Some(overlaps.is_some()), reason, what(overlaps));
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
            self.event(Event::new(regarding, event_reason::POOL_IN_USE, &in_use.message));
        }
        let stored = &pool.status;
        let conditions: Vec<Condition> = [accepted, overlaps, in_use]
            .map(|condition| self.dated(key, &stored.conditions, condition, pool.generation))
            .into();
        let (total, used, available) =
            usage.map_or((0, 0, 0), |u| (shown(u.total), shown(u.assigned + u.outside), shown(u.free())));
        let gateways = self.groups.members(&key.name);
        let gateway_summary = summary(gateways.iter().cloned());
        let address_summary = summary(pool.pool.ranges.iter().map(shortest));
        let is_same = stored.gateways == gateways
            && (&stored.gateway_summary, &stored.address_summary) == (&gateway_summary, &address_summary)
            && (stored.total, stored.used, stored.available) == (total, used, available)
            && same(&stored.conditions, &conditions, |_| true);
        if !is_same {
            let conditions = conditions.iter().map(crd::Condition::from).collect();
            let status = crd::AddressPoolStatus {
                total,
                used,
                available,
                gateways,
                gateway_summary,
                address_summary,
                conditions,
            };
            self.plan.writes.push(Write::PoolStatus { pool: key.name.clone(), status });
        }
    }
}

/// The first items, as many as fit in a column of a table.
fn summary(items: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for item in items {
        if text.len() + item.len() > SUMMARY_BYTES_MAX {
            text.push_str(", ...");
            break;
        }
        let comma = if text.is_empty() { "" } else { ", " };
        text.push_str(comma);
        text.push_str(&item);
    }
    text
}

/// Formats a range as an address or a CIDR if it is one.
fn shortest(range: &AddressRange) -> String {
    let size = range.size();
    let bits = if range.first().is_ipv4() { 32 } else { 128 };
    match size {
        1 => range.first().to_string(),
        _ if size.is_power_of_two() && number(range.first()).is_multiple_of(size) => {
            format!("{}/{}", range.first(), bits - size.trailing_zeros())
        }
        _ => range.to_string(),
    }
}

/// The condition that lists the Services that use the pool's addresses, and what they prevent.
fn in_use(pool: &AddressPool, usage: Option<&PoolUsage>) -> NewCondition {
    let Some(usage) = usage.filter(|usage| usage.users > 0) else {
        return condition(condition_type::IN_USE, Some(false), condition_reason::NOT_IN_USE, "");
    };
    let users = format!("Services use addresses of this pool: {}", usage.used_by());
    let (reason, message) = if pool.meta.deletion_time.is_some() {
        let how = "they keep their addresses, and the pool assigns no new ones. The pool is deleted once all its \
                   addresses are released; spec.forceRelease: true releases them";
        (condition_reason::DELETION_WAITS, format!("{users}; {how}"))
    } else if usage.outside > 0 {
        let outside = usage.outside;
        let what = "of these addresses are no longer in spec.addresses and remain assigned";
        (condition_reason::HELD_OUTSIDE, format!("{users}; {outside} {what}"))
    } else {
        (condition_reason::HELD, users)
    };
    condition(condition_type::IN_USE, Some(true), reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_short_and_shows_ranges_in_the_usual_notation() {
        let range = |first: &str, last: &str| {
            let ip = |text: &str| text.parse().expect("an address");
            shortest(&AddressRange::new(ip(first), ip(last)).expect("a range"))
        };
        assert_eq!(range("203.0.113.9", "203.0.113.9"), "203.0.113.9");
        assert_eq!(range("203.0.113.0", "203.0.113.15"), "203.0.113.0/28");
        assert_eq!(range("203.0.113.1", "203.0.113.16"), "203.0.113.1-203.0.113.16");
        assert_eq!(range("2001:db8::", "2001:db8::ffff"), "2001:db8::/112");
        assert_eq!(range("0.0.0.0", "255.255.255.255"), "0.0.0.0/0");
        assert_eq!(summary(["a".to_owned(), "b".to_owned()].into_iter()), "a, b");
        let many = summary((0..64).map(|n| format!("2001:db8:{n}::/64")));
        assert!(many.len() < 300 && many.ends_with(", ..."), "{many}");
    }
}

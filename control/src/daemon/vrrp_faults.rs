//! Finds VRRP groups that nobody owns, that two gateways own, or that keepalived does not know.
//!
//! Pure. keepalived reports only changes, and a keepalived that receives and sends nothing reports none. So its reports
//! are compared with the advertisements on the wire.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_dataplane::punt::vrrp::Advertised;

/// How long a group may be unknown: checks fail for 5 s to make keepalived report, and it may be restarting.
const UNKNOWN_MAX: Duration = Duration::from_secs(15);
/// How long a backup may receive nothing. Version 3 allows 40 s between two advertisements.
const SILENT_MAX: Duration = Duration::from_secs(45);
/// How long two stations may advertise the same virtual router.
const CONTESTED_MAX: Duration = Duration::from_secs(10);

/// The state of a group, as keepalived names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupState {
    Unknown,
    Master,
    Backup,
    Fault,
}

impl GroupState {
    /// The name for display.
    pub(super) fn shown(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Master => "master",
            Self::Backup => "backup",
            Self::Fault => "fault",
        }
    }
}

/// A group, as reported by keepalived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) group: String,
    pub(super) state: GroupState,
    /// How long it has been in this state.
    pub(super) age: Duration,
}

/// What is wrong, as text for display. `strangers`: the `vrrp_instance`s that keepalived reports and that are not in
/// our configuration. `is_closed`: whether no process has the FIFO open.
pub(super) fn faults(
    groups: &[Reported],
    strangers: &BTreeSet<String>,
    is_closed: bool,
    advertised: &[Advertised],
) -> Vec<String> {
    let last_seen = advertised.iter().filter_map(|one| one.received).map(|(age, _)| age).min();
    let of_group = |one: &Reported| {
        let why = match one.state {
            GroupState::Unknown if !strangers.is_empty() => {
                let names: Vec<&str> = strangers.iter().map(String::as_str).collect();
                let names = names.join(", ");
                format!(
                    "keepalived does not report it, but reports vrrp_instance {names}, which is not in \
                     announce.l2.vrrp.groups"
                )
            }
            GroupState::Unknown if one.age < UNKNOWN_MAX => return None,
            GroupState::Unknown if is_closed => {
                "its state is unknown: keepalived does not run, or its vrrp_notify_fifo is not announce.l2.vrrp.fifo"
                    .to_owned()
            }
            GroupState::Unknown => {
                "its state is unknown: keepalived reports no vrrp_instance or vrrp_sync_group of this name".to_owned()
            }
            GroupState::Backup if one.age >= SILENT_MAX && last_seen.is_none_or(|age| age >= SILENT_MAX) => {
                "it is backup, and no other station sends VRRP advertisements: nobody answers for its VIPs; restart \
                 keepalived, or let IP protocol 112 to 224.0.0.18 pass between the gateways"
                    .to_owned()
            }
            _ => return None,
        };
        Some(format!("layer 2: VRRP group {}: {why}", one.group))
    };
    let is_master = groups.iter().any(|one| one.state == GroupState::Master);
    let contested = advertised.iter().filter(|one| is_master && one.contested >= Some(CONTESTED_MAX));
    let contested = contested.filter_map(|one| Some((one.router, one.received?.1)));
    let two_owners = contested.map(|(router, from)| {
        format!(
            "layer 2: VRRP: {from} also sends advertisements for virtual router {router}: two gateways answer for the same \
             VIPs because they do not receive or accept each other's advertisements"
        )
    });
    groups.iter().filter_map(of_group).chain(two_owners).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(state: GroupState, seconds: u64) -> Vec<Reported> {
        vec![Reported { group: "tidegate".into(), state, age: Duration::from_secs(seconds) }]
    }

    fn advertised(age: u64, contested: Option<u64>) -> Vec<Advertised> {
        let from = "192.0.2.2".parse().expect("an address");
        let received = Some((Duration::from_secs(age), from));
        vec![Advertised { router: 51, received, contested: contested.map(Duration::from_secs) }]
    }

    fn has(found: &[String], part: &str) -> bool {
        found.len() == 1 && found[0].contains(part)
    }

    #[test]
    fn a_backup_is_a_fault_if_it_receives_no_advertisement() {
        let none = BTreeSet::new();
        let of = |age, advertised: &[Advertised]| {
            faults(&group(GroupState::Backup, age), &none, false, advertised)
        };
        assert_eq!(of(44, &[]), [] as [String; 0]);
        assert!(has(&of(45, &[]), "it is backup, and no other station"));
        assert!(has(&of(500, &advertised(45, None)), "it is backup"));
        assert_eq!(of(500, &advertised(1, None)), [] as [String; 0]);
    }

    #[test]
    fn an_unknown_group_is_a_fault_with_its_likely_cause() {
        let none = BTreeSet::new();
        let of = |age, closed| faults(&group(GroupState::Unknown, age), &none, closed, &[]);
        assert_eq!(of(14, true), [] as [String; 0]);
        assert!(has(&of(15, true), "keepalived does not run"));
        assert!(has(&of(15, false), "no vrrp_instance or vrrp_sync_group of this name"));
        let strangers = BTreeSet::from(["tidgate".to_owned()]);
        assert!(has(
            &faults(&group(GroupState::Unknown, 0), &strangers, false, &[]),
            "vrrp_instance tidgate"
        ));
        let known = faults(&group(GroupState::Master, 0), &strangers, false, &advertised(1, None));
        assert_eq!(known, [] as [String; 0], "it belongs to another use of keepalived");
    }

    #[test]
    fn two_owners_are_a_fault_if_the_conflict_lasts() {
        let none = BTreeSet::new();
        let of = |state, contested| faults(&group(state, 500), &none, false, &advertised(0, Some(contested)));
        assert_eq!(of(GroupState::Master, 9), [] as [String; 0]);
        assert!(has(
            &of(GroupState::Master, 10),
            "192.0.2.2 also sends advertisements for virtual router 51"
        ));
        assert_eq!(of(GroupState::Backup, 10), [] as [String; 0]);
    }
}

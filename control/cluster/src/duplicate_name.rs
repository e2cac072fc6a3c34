//! Detects another process that writes under this gateway's name.
//!
//! Two gateways with the same name (a DaemonSet whose Pods all read one configuration, or a cloned machine) would
//! overwrite each other's `GatewayStatus`, and their addresses would not be known. Every run of a gateway therefore has
//! its own instance id, which is part of its status.
//!
//! A gateway that starts reads the object first. If the object belongs to another instance that has not shut down
//! cleanly, the gateway waits for [`SUSPECT_MAX`]. If the heartbeat doesn't change meanwhile, the other gateway is
//! dead. If it changes, the name is taken: this gateway never leads, never writes a status, and reports the conflict.
//!
//! Two gateways that start at the same time find no object, and both write. Each then sees the other's instance in its
//! own object, and the smaller instance keeps the name.
//!
//! Pure: time is an argument. The clocks of other machines don't matter.

use std::time::Duration;

use tokio::time::Instant;

use super::crd::{GatewayStatus, GatewayStatusStatus};
use super::own_status::HEARTBEAT;
use super::reasons::{condition_reason, condition_type};

/// A live gateway writes its heartbeat within this time.
pub(super) const SUSPECT_MAX: Duration = HEARTBEAT.saturating_add(Duration::from_secs(3));
/// How long a report from a gateway with the same name is shown.
const OTHER_USER_MAX: Duration = Duration::from_secs(60);

/// The condition with which a gateway reports to another one that both have the same name.
pub(super) const NAME_UNIQUE: &str = condition_type::NAME_UNIQUE.as_str();

/// What is known about other gateways with this name.
#[derive(Debug)]
pub(super) struct DuplicateName {
    instance: String,
    state: State,
    /// The last report of a gateway that found the name taken, and when it was first seen.
    other_user: Option<(String, String, Instant)>,
    /// Whether a report to the owner of the name is in progress.
    is_reporting: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The object has not been read yet.
    Unknown,
    /// Another instance wrote this heartbeat; it may be dead.
    Suspect { other: String, beat: Option<String>, since: Instant },
    /// This gateway owns the name.
    Free,
    /// Another gateway owns the name.
    Taken { who: String },
}

impl DuplicateName {
    pub(super) fn new(instance: &str) -> Self {
        Self { instance: instance.to_owned(), state: State::Unknown, other_user: None, is_reporting: false }
    }

    /// Whether this gateway may lead and write its status.
    pub(super) fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// Whether the object must be read again soon.
    pub(super) fn is_undecided(&self) -> bool {
        matches!(self.state, State::Unknown | State::Suspect { .. })
    }

    /// The other gateway, if it owns the name.
    pub(super) fn taken(&self) -> Option<&str> {
        match &self.state {
            State::Taken { who } => Some(who),
            _ => None,
        }
    }

    /// The other gateway that recently used the name, if we own it.
    pub(super) fn other_user(&self, now: Instant) -> Option<&str> {
        let (who, _, since) = self.other_user.as_ref()?;
        (now.duration_since(*since) < OTHER_USER_MAX).then_some(who)
    }

    /// Starts a report to the owner of the name. Returns `false` while one is in progress.
    pub(super) fn start_report(&mut self) -> bool {
        !std::mem::replace(&mut self.is_reporting, true)
    }

    /// Records that the report ended.
    pub(super) fn report_ended(&mut self) {
        self.is_reporting = false;
    }

    /// Records the object with our name. `wrote`: whether this gateway had written it before the read.
    pub(super) fn seen(&mut self, own: Option<&GatewayStatus>, wrote: bool, now: Instant) {
        let status = own.and_then(|own| own.status.as_ref());
        self.read_other_user(status, now);
        let other = status.filter(|status| {
            !status.instance.is_empty() && status.instance != self.instance && !status.stopped
        });
        let who = |status: &GatewayStatusStatus| described(&status.instance, &status.node, &status.addresses);
        match (&self.state, other) {
            (State::Taken { .. }, _) => {}
            // Both gateways found no object. The smaller instance keeps the name, whichever gateway reads first.
            (State::Free, Some(status)) if wrote && status.instance < self.instance => {
                self.state = State::Taken { who: who(status) };
            }
            (State::Free, _) => {}
            (State::Unknown | State::Suspect { .. }, None) => self.state = State::Free,
            (State::Suspect { other, beat, since }, Some(status)) if *other == status.instance => {
                if *beat != status.last_heartbeat {
                    self.state = State::Taken { who: who(status) };
                } else if now.duration_since(*since) >= SUSPECT_MAX {
                    self.state = State::Free;
                }
            }
            (State::Unknown | State::Suspect { .. }, Some(status)) => {
                self.state = State::Suspect {
                    other: status.instance.clone(),
                    beat: status.last_heartbeat.clone(),
                    since: now,
                };
            }
        }
    }

    fn read_other_user(&mut self, status: Option<&GatewayStatusStatus>, now: Instant) {
        let condition = status.and_then(|status| {
            status
                .conditions
                .iter()
                .find(|c| c.kind == NAME_UNIQUE && c.reason == condition_reason::NAME_TAKEN.as_str())
        });
        let Some(condition) = condition else { return };
        let is_old = self.other_user.as_ref().is_some_and(|(_, at, _)| *at == condition.last_transition_time);
        if !is_old {
            // The text is only for display. The reason of the condition shows that there is another gateway.
            let who = condition.message.rsplit_once(": ").map_or(condition.message.as_str(), |(_, who)| who);
            self.other_user = Some((who.to_owned(), condition.last_transition_time.clone(), now));
        }
    }
}

/// Describes a gateway, for display, to distinguish it from another with the same name. `node` is empty
/// outside of a cluster.
pub(super) fn described(instance: &str, node: &str, addresses: &[String]) -> String {
    let node = if node.is_empty() { String::new() } else { format!(" on node {node}") };
    format!("instance {instance}{node} with the addresses {}", addresses.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::crd::GatewayStatusSpec;
    use super::*;

    fn of(instance: &str, beat: &str, stopped: bool) -> GatewayStatus {
        let mut status = GatewayStatus::new("edge-1", GatewayStatusSpec { gateway: "edge-1".into() });
        status.status = Some(GatewayStatusStatus {
            instance: instance.into(),
            last_heartbeat: Some(beat.into()),
            stopped,
            ..GatewayStatusStatus::default()
        });
        status
    }

    #[test]
    fn a_name_with_a_live_heartbeat_is_taken_and_one_without_is_free() {
        let start = Instant::now();
        let mut living = DuplicateName::new("b");
        living.seen(Some(&of("a", "1", false)), false, start);
        assert!(living.is_undecided() && !living.is_free());
        living.seen(Some(&of("a", "2", false)), false, start + HEARTBEAT);
        assert!(living.taken().is_some_and(|who| who.contains("instance a")));
        // The state is permanent.
        living.seen(None, false, start + HEARTBEAT * 9);
        assert!(!living.is_free());

        let mut dead = DuplicateName::new("b");
        dead.seen(Some(&of("a", "1", false)), false, start);
        dead.seen(Some(&of("a", "1", false)), false, start + SUSPECT_MAX - Duration::from_millis(1));
        assert!(!dead.is_free());
        dead.seen(Some(&of("a", "1", false)), false, start + SUSPECT_MAX);
        assert!(dead.is_free());

        for nobody in [None, Some(of("a", "1", true)), Some(of("b", "1", false))] {
            let mut free = DuplicateName::new("b");
            free.seen(nobody.as_ref(), false, start);
            assert!(free.is_free());
        }
    }

    #[test]
    fn one_of_two_that_start_together_keeps_the_name() {
        let start = Instant::now();
        let (mut a, mut b) = (DuplicateName::new("a"), DuplicateName::new("b"));
        for one in [&mut a, &mut b] {
            one.seen(None, false, start);
            assert!(one.is_free());
        }
        a.seen(Some(&of("b", "1", false)), true, start);
        b.seen(Some(&of("a", "1", false)), true, start);
        assert_eq!((a.is_free(), b.is_free()), (true, false));
    }
}

//! Detects another process that writes under this gateway's name.
//!
//! Two gateways with the same name (a DaemonSet whose Pods all read one configuration, a copied machine) would
//! overwrite the same `GatewayStatus` in turn, and the addresses of both would not be known. Every run of a gateway
//! has its own instance, which is in its status. A gateway that starts reads the object first. If it is of another
//! instance that has not shut down normally, the gateway waits for [`SUSPECT_MAX`]. If the heartbeat changes
//! meanwhile, the name is taken: this gateway never leads and never writes a status, and reports it. If the heartbeat
//! does not change, the other gateway is dead.
//!
//! Two gateways that start at the same time find no object, and both write. Each then sees the other's instance in
//! its own object; the one with the smaller instance stays.
//!
//! Pure: time is an argument. Clocks of other machines are not used.

use std::time::Duration;

use tokio::time::Instant;

use super::crd::{GatewayStatus, GatewayStatusStatus};
use super::own_status::HEARTBEAT;
use super::reasons::{condition_reason, condition_type};

/// A live gateway writes its heartbeat within this time.
pub(super) const SUSPECT_MAX: Duration = HEARTBEAT.saturating_add(Duration::from_secs(3));
/// How long the status that a gateway with the same name wrote is considered.
const RIVAL_MAX: Duration = Duration::from_secs(60);

/// The condition with which a gateway that has found its name taken informs the gateway that uses it.
pub(super) const NAME_UNIQUE: &str = condition_type::NAME_UNIQUE.as_str();

/// The knowledge about other gateways with this name.
#[derive(Debug)]
pub(super) struct Namesake {
    instance: String,
    state: State,
    /// The last report of a gateway that found the name taken, and when it was first seen.
    rival: Option<(String, String, Instant)>,
    /// Whether a report to the gateway that has the name is in progress.
    is_reporting: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The object has not been read yet.
    Unknown,
    /// Another instance wrote this heartbeat; it may be dead.
    Suspect { other: String, beat: Option<String>, since: Instant },
    /// This gateway has the name.
    Free,
    /// Another gateway has the name.
    Taken { who: String },
}

impl Namesake {
    pub(super) fn new(instance: &str) -> Self {
        Self { instance: instance.to_owned(), state: State::Unknown, rival: None, is_reporting: false }
    }

    /// Whether this gateway may lead, and write its status.
    pub(super) fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// Whether the object must be read again soon.
    pub(super) fn is_undecided(&self) -> bool {
        matches!(self.state, State::Unknown | State::Suspect { .. })
    }

    /// The gateway that has the name, if it is another one.
    pub(super) fn taken(&self) -> Option<&str> {
        match &self.state {
            State::Taken { who } => Some(who),
            _ => None,
        }
    }

    /// The other gateway that recently used the name, if the name is ours.
    pub(super) fn rival(&self, now: Instant) -> Option<&str> {
        let (who, _, since) = self.rival.as_ref()?;
        (now.duration_since(*since) < RIVAL_MAX).then_some(who)
    }

    /// A report to the gateway that has the name is to be sent. Returns `false` while one is in progress.
    pub(super) fn begin_report(&mut self) -> bool {
        !std::mem::replace(&mut self.is_reporting, true)
    }

    /// The report ended.
    pub(super) fn report_ended(&mut self) {
        self.is_reporting = false;
    }

    /// The API server has this object of our name. `wrote`: this gateway wrote it before the look began.
    pub(super) fn seen(&mut self, own: Option<&GatewayStatus>, wrote: bool, now: Instant) {
        let status = own.and_then(|own| own.status.as_ref());
        self.read_rival(status, now);
        let other = status.filter(|status| {
            !status.instance.is_empty() && status.instance != self.instance && !status.stopped
        });
        let who = |status: &GatewayStatusStatus| described(&status.instance, &status.node, &status.addresses);
        match (&self.state, other) {
            (State::Taken { .. }, _) => {}
            // Both gateways found no object. One of them keeps the name, whichever reads first.
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

    fn read_rival(&mut self, status: Option<&GatewayStatusStatus>, now: Instant) {
        let condition = status.and_then(|status| {
            status
                .conditions
                .iter()
                .find(|c| c.kind == NAME_UNIQUE && c.reason == condition_reason::NAME_TAKEN.as_str())
        });
        let Some(condition) = condition else { return };
        let is_old = self.rival.as_ref().is_some_and(|(_, at, _)| *at == condition.last_transition_time);
        if !is_old {
            // The name is only for display. The reason of the condition shows that there is another gateway.
            let who = condition.message.rsplit_once(": ").map_or(condition.message.as_str(), |(_, who)| who);
            self.rival = Some((who.to_owned(), condition.last_transition_time.clone(), now));
        }
    }
}

/// The description of a gateway that distinguishes it from another with the same name, for display. `node` is empty
/// outside of a cluster.
pub(super) fn described(instance: &str, node: &str, addresses: &[String]) -> String {
    let node = if node.is_empty() { String::new() } else { format!(" on node {node}") };
    format!("instance {instance}{node}, which has {}", addresses.join(", "))
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
    fn a_name_with_a_moving_heartbeat_is_taken_and_one_without_is_free() {
        let start = Instant::now();
        let mut living = Namesake::new("b");
        living.seen(Some(&of("a", "1", false)), false, start);
        assert!(living.is_undecided() && !living.is_free());
        living.seen(Some(&of("a", "2", false)), false, start + HEARTBEAT);
        assert!(living.taken().is_some_and(|who| who.contains("instance a")));
        // This is permanent.
        living.seen(None, false, start + HEARTBEAT * 9);
        assert!(!living.is_free());

        let mut dead = Namesake::new("b");
        dead.seen(Some(&of("a", "1", false)), false, start);
        dead.seen(Some(&of("a", "1", false)), false, start + SUSPECT_MAX - Duration::from_millis(1));
        assert!(!dead.is_free());
        dead.seen(Some(&of("a", "1", false)), false, start + SUSPECT_MAX);
        assert!(dead.is_free());

        for nobody in [None, Some(of("a", "1", true)), Some(of("b", "1", false))] {
            let mut free = Namesake::new("b");
            free.seen(nobody.as_ref(), false, start);
            assert!(free.is_free());
        }
    }

    #[test]
    fn of_two_that_start_together_one_stays() {
        let start = Instant::now();
        let (mut a, mut b) = (Namesake::new("a"), Namesake::new("b"));
        for one in [&mut a, &mut b] {
            one.seen(None, false, start);
            assert!(one.is_free());
        }
        a.seen(Some(&of("b", "1", false)), true, start);
        b.seen(Some(&of("a", "1", false)), true, start);
        assert_eq!((a.is_free(), b.is_free()), (true, false));
    }
}

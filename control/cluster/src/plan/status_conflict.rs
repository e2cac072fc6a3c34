//! Detects that another controller writes the same status, and avoids overwriting it repeatedly.
//!
//! If another field manager has replaced the addresses in a status that we wrote, the status is contested and left
//! unchanged. After a minute it is written once more, and each time it is overwritten again the wait doubles, up to an
//! hour. After the other controller is turned off, the status therefore recovers by itself; a controller that stays on
//! sees one write an hour. An edit of the Service's spec is a new decision of its owner and ends the wait.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use tidegate_model::objects::{Ingress, ObjectKey, Service};
use tidegate_policy::pools::{ALLOCATED, FIELD_MANAGER};

const WAIT_MIN: SignedDuration = SignedDuration::from_mins(1);
const WAIT_MAX: SignedDuration = SignedDuration::from_hours(1);

/// A status that another controller writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatusConflict {
    /// The other field manager.
    pub(crate) who: String,
    /// A hash of the owner's requests when the conflict started.
    requests: u64,
    /// When the status is written again.
    retry_at: Timestamp,
    /// The duration of the next wait.
    wait: SignedDuration,
    /// Whether it was written again and has not been overwritten since.
    retried: bool,
}

impl StatusConflict {
    /// Handles a clock that was set back to `now`.
    pub(super) fn set_back(&mut self, now: Timestamp) {
        self.retry_at = self.retry_at.min(now + self.wait);
    }
}

/// What a conflict means for a write.
pub(super) enum StatusOwnership {
    /// No other controller writes the status.
    Alone,
    /// The status is left unchanged for a while.
    Yields {
        /// The other field manager.
        who: String,
        /// Until when.
        until: Timestamp,
    },
}

/// The known conflicts, by Service.
type Conflicts = BTreeMap<ObjectKey, StatusConflict>;

/// Whether the status of a Service may be written with these addresses now. `requests` is a hash of the requests of its
/// owner.
pub(super) fn ownership(
    conflicts: &mut Conflicts,
    service: &Service,
    wanted: &[Ingress],
    requests: u64,
    now: Timestamp,
) -> StatusOwnership {
    let key = &service.meta.key;
    let stored = &service.stored;
    if stored.ingress == wanted {
        // The conflict seems to be over. It is remembered for a while, in case it returns.
        let over = conflicts.get(key).is_some_and(|c| now > c.retry_at + c.wait);
        if over {
            conflicts.remove(key);
        }
        return StatusOwnership::Alone;
    }
    let other = stored.ingress_managers.iter().find(|manager| *manager != FIELD_MANAGER);
    let is_lost = !stored.ingress_managers.iter().any(|manager| manager == FIELD_MANAGER);
    // Our condition shows that we wrote the status before. A status that we never wrote is adopted.
    let was_ours = stored.condition(ALLOCATED).is_some_and(|c| c.status == "True");
    let Some(other) = other.filter(|_| is_lost && was_ours) else { return StatusOwnership::Alone };
    let conflict = conflicts.entry(key.clone()).or_insert_with(|| StatusConflict {
        who: other.clone(),
        requests,
        retry_at: now + WAIT_MIN,
        wait: WAIT_MIN + WAIT_MIN,
        retried: false,
    });
    conflict.who.clone_from(other);
    if conflict.retried {
        // It was overwritten again.
        conflict.retry_at = now + conflict.wait;
        conflict.wait = (conflict.wait + conflict.wait).min(WAIT_MAX);
        conflict.retried = false;
    }
    if requests != conflict.requests {
        (conflict.requests, conflict.retry_at) = (requests, now);
    }
    if now >= conflict.retry_at {
        return StatusOwnership::Alone;
    }
    StatusOwnership::Yields { who: conflict.who.clone(), until: conflict.retry_at }
}

/// Records that the API server has the contested status as we wrote it. If it differs later, it was overwritten again.
pub(super) fn written_again(conflicts: &mut Conflicts, service: &Service, wanted: &[Ingress]) {
    if service.stored.ingress == wanted
        && let Some(conflict) = conflicts.get_mut(&service.meta.key)
    {
        conflict.retried = true;
    }
}

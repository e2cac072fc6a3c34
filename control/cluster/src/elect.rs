//! Requests the lease from the API server at intervals, and reports which gateway is the leader.
//!
//! One attempt every two seconds, each with a time limit. [`Election`] decides; this file only sends requests.
//!
//! The clock of [`Instant`] stands still while the machine is suspended, and another gateway leads then. So the leadership
//! also ends by the clock that does not.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use rustix::time::{ClockId, clock_gettime};
use tidegate_source::kubernetes::Connector;
use tidegate_spec::ownership::BootTime;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::lease::{Ask, Election, LEASE, RENEW_DEADLINE, RETRY, UNINSTALLED};
use super::request::{RequestError, within};

/// Failing attempts are reported only after this time. Until then a leader continues to lead.
const FAILING_MIN: Duration = RENEW_DEADLINE;

/// The state of the leadership.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Leadership {
    /// The time until which this gateway leads, if it does. After it nothing is written.
    pub(super) until: Option<Instant>,
    /// The same time by the clock that also counts while the machine is suspended.
    boot_until: Option<BootTime>,
    /// The current leader, as far as this gateway knows.
    pub(super) holder: Option<String>,
    /// Whether a request was sent to the API server, whatever its result.
    pub(super) is_asked: bool,
    /// Why the lease cannot be read or written, if that has failed for [`FAILING_MIN`].
    pub(super) trouble: Option<String>,
}

impl Leadership {
    pub(super) fn leads(&self, now: Instant) -> bool {
        self.leads_at(now, boot_time())
    }

    fn leads_at(&self, now: Instant, boot: BootTime) -> bool {
        self.until.is_some_and(|until| now < until) && self.boot_until.is_some_and(|until| boot < until)
    }

    /// Whether Tidegate was uninstalled from the cluster, so that no gateway writes.
    pub(super) fn is_uninstalled(&self) -> bool {
        self.holder.as_deref() == Some(UNINSTALLED)
    }
}

/// Whether this gateway requests the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Candidacy {
    /// It does not know yet whether its name is unique.
    NotYet,
    /// It requests the lease.
    Candidate,
    /// It no longer does, and none of its writes is in progress: the lease is released.
    Gone,
    /// It no longer does, but a write may still arrive: the lease expires by itself.
    Cut,
}

/// Takes part in the election while the gateway is a candidate. Then it releases the lease, if it is ours and no write
/// is in progress.
pub(super) async fn run(
    connector: Arc<Connector>,
    namespace: String,
    identity: String,
    leadership: watch::Sender<Leadership>,
    mut candidacy: watch::Receiver<Candidacy>,
) {
    let mut election = Election::new(identity, namespace.as_str());
    let mut reported: Option<String> = None;
    let mut failing: Option<Instant> = None;
    let mut boot_until: Option<BootTime> = None;
    if candidacy.wait_for(|now| *now != Candidacy::NotYet).await.is_err() {
        return;
    }
    while *candidacy.borrow() == Candidacy::Candidate {
        let began = Instant::now();
        let attempt = tokio::select! {
            attempt = attempt(&connector, &namespace, &mut election, &mut boot_until) => attempt,
            _ = candidacy.changed() => break,
        };
        let error = attempt.err();
        // Logged once for each new reason.
        if error != reported {
            match &error {
                Some(error) => {
                    tracing::warn!(lease = LEASE, namespace, %error, "cannot acquire or renew the Lease");
                }
                None => tracing::info!(lease = LEASE, namespace, "the Lease can be written again"),
            }
            reported = error;
        }
        failing = reported.as_ref().and(failing.or(Some(began)));
        let is_lasting = failing.is_some_and(|since| since.elapsed() >= FAILING_MIN);
        let trouble = reported.as_ref().filter(|_| is_lasting);
        let trouble =
            trouble.map(|error| format!("the lease {namespace}/{LEASE} cannot be acquired: {error}"));
        publish(&leadership, &election, boot_until, trouble);
        tokio::select! {
            () = sleep(RETRY.saturating_sub(began.elapsed())) => {}
            _ = candidacy.changed() => break,
        }
    }
    let is_clean = *candidacy.borrow() == Candidacy::Gone;
    let release = election.released(Timestamp::now());
    publish(&leadership, &election, boot_until, None);
    let Some(ask) = release else { return };
    if !is_clean {
        tracing::info!(
            lease = LEASE,
            namespace,
            "the Lease is not released and will expire: a write may still be in progress"
        );
        return;
    }
    if let Err(error) = request(&connector, &namespace, &ask).await {
        tracing::info!(lease = LEASE, namespace, %error, "cannot release the Lease: it will expire");
    }
}

fn publish(
    leadership: &watch::Sender<Leadership>,
    election: &Election,
    boot_until: Option<BootTime>,
    trouble: Option<String>,
) {
    let holder = election.holder().map(str::to_owned);
    let now = Leadership { until: election.leads_until(), boot_until, holder, is_asked: true, trouble };
    leadership.send_if_modified(|before| {
        let is_new = *before != now;
        if before.leads(Instant::now()) != now.leads(Instant::now()) {
            tracing::info!(leads = now.leads(Instant::now()), holder = now.holder, "leadership changed");
        }
        match (before.is_uninstalled(), now.is_uninstalled()) {
            (false, true) => tracing::warn!(
                lease = LEASE,
                "Tidegate was uninstalled from the cluster: this gateway writes nothing to the API until the Lease of \
                 `tidegate uninstall` is deleted"
            ),
            (true, false) => tracing::info!(lease = LEASE, "the Lease of `tidegate uninstall` was deleted: this gateway writes to the API again"),
            _ => {}
        }
        *before = now;
        is_new
    });
}

/// Sends the requests of one attempt. If one of them makes or keeps this gateway the leader, `boot_until` is set.
async fn attempt(
    connector: &Connector,
    namespace: &str,
    election: &mut Election,
    boot_until: &mut Option<BootTime>,
) -> Result<(), String> {
    let mut ask = election.ask(Timestamp::now());
    // A read followed by the resulting request; or a renewal, followed by a read if it is refused.
    for _ in 0..3 {
        let (began, boot) = (Instant::now(), boot_time());
        match request(connector, namespace, &ask).await {
            Ok(lease) if ask == Ask::Get => {
                match election.found(Some(lease), Instant::now(), Timestamp::now()) {
                    Some(next) => ask = next,
                    None => return Ok(()),
                }
            }
            Ok(lease) => {
                election.granted(lease, began);
                *boot_until = Some(boot.plus(RENEW_DEADLINE));
                return Ok(());
            }
            Err(Refused::NotFound) if ask == Ask::Get => {
                match election.found(None, Instant::now(), Timestamp::now()) {
                    Some(next) => ask = next,
                    None => return Ok(()),
                }
            }
            Err(Refused::Conflict | Refused::NotFound) => {
                election.refused();
                ask = Ask::Get;
            }
            Err(Refused::Other(error)) => return Err(error),
        }
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("not found")]
    NotFound,
    #[error("conflict: the object was modified meanwhile")]
    Conflict,
    #[error("{0}")]
    Other(String),
}

impl From<RequestError> for Refused {
    fn from(error: RequestError) -> Self {
        match error.code() {
            Some(404) => Self::NotFound,
            Some(409) => Self::Conflict,
            _ => Self::Other(error.to_string()),
        }
    }
}

async fn request(connector: &Connector, namespace: &str, ask: &Ask) -> Result<Lease, Refused> {
    let connection = timeout(super::request::ANSWER_MAX, connector.connection()).await;
    let connection = connection.map_err(|_| Refused::Other("no client in time".to_owned()))?;
    let connection = connection.map_err(|error| Refused::Other(error.to_string()))?;
    let api: Api<Lease> = Api::namespaced(connection.client, namespace);
    let answer = match ask {
        Ask::Get => within(api.get(LEASE)).await,
        Ask::Create(lease) => within(api.create(&PostParams::default(), lease)).await,
        Ask::Replace(lease) => within(api.replace(LEASE, &PostParams::default(), lease)).await,
    };
    match answer {
        // A missing namespace must not be confused with a missing lease.
        Err(error) if matches!(error.code(), Some(403 | 404)) && matches!(ask, Ask::Create(_)) => {
            let why = format!(
                "it does not exist, and the gateway cannot create it; accepted: the rights of \
                 deploy/kubernetes/base, or a Lease that you create: {error}"
            );
            Err(Refused::Other(why))
        }
        Err(error) if error.code() == Some(401) => {
            connector.refused(connection.serial).await;
            Err(Refused::Other(error.to_string()))
        }
        answer => Ok(answer?),
    }
}

/// The time of the clock that also counts while the machine is suspended.
fn boot_time() -> BootTime {
    BootTime(0).plus(Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_whose_machine_was_suspended_leads_no_longer_although_its_other_clock_stood_still() {
        let (now, boot) = (Instant::now(), boot_time());
        let leadership = Leadership {
            until: Some(now + RENEW_DEADLINE),
            boot_until: Some(boot.plus(RENEW_DEADLINE)),
            ..Leadership::default()
        };
        let second = Duration::from_secs(1);
        let last = RENEW_DEADLINE - second;
        assert!(leadership.leads_at(now + last, boot.plus(last)));
        assert!(!leadership.leads_at(now + RENEW_DEADLINE, boot.plus(RENEW_DEADLINE)));
        assert!(!leadership.leads_at(now + second, boot.plus(RENEW_DEADLINE)), "it was suspended for 9 s");
        assert!(!Leadership::default().leads_at(now, boot), "it never led");
    }

    #[test]
    fn the_clock_of_suspended_machines_goes_on() {
        let before = boot_time();
        assert!(before > BootTime(0) && boot_time() >= before);
    }
}

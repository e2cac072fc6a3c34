//! Acquires and renews the Lease of the leader election, and publishes which gateway leads.
//!
//! There is one attempt every second, with a time limit. [`Election`] decides; this file only sends requests. No
//! crate does this: `kube-leader-election` 0.42 has no fencing, by its own description only for programs of which
//! several instances may lead for a short time.
//!
//! [`Instant`] doesn't advance while the machine is suspended, and meanwhile another gateway becomes the leader. The
//! leadership therefore also expires by `CLOCK_BOOTTIME`.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use tidegate_host::boot_time;
use tidegate_source::kubernetes::Connector;
use tidegate_spec::ownership::BootTime;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::lease::{Election, LEASE, LeaseRequest, RENEW_DEADLINE, RETRY, UNINSTALLED};
use super::request::{RequestError, with_client, within};

/// Failed attempts are reported only after this time. Until then, a leader remains the leader.
const FAILING_MIN: Duration = RENEW_DEADLINE;

/// The state of the leadership.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Leadership {
    /// Until when this gateway leads, if it does. It writes nothing after that.
    pub(super) until: Option<Instant>,
    /// The deadline by the clock that also advances during suspend.
    boot_until: Option<BootTime>,
    /// The current leader, as far as this gateway knows.
    pub(super) holder: Option<String>,
    /// The leader before this one, if it did not renew the Lease.
    pub(super) lapsed: Option<String>,
    /// Whether a request was sent to the API server, whatever its result.
    pub(super) is_requested: bool,
    /// Why the Lease can't be read or written, if that has failed for [`FAILING_MIN`].
    pub(super) failure: Option<String>,
}

impl Leadership {
    pub(super) fn leads(&self, now: Instant) -> bool {
        self.leads_at(now, boot_time())
    }

    fn leads_at(&self, now: Instant, boot: BootTime) -> bool {
        self.until.is_some_and(|until| now < until) && self.boot_until.is_some_and(|until| boot < until)
    }

    /// Whether Tidegate was uninstalled from the cluster. No gateway writes then.
    pub(super) fn is_uninstalled(&self) -> bool {
        self.holder.as_deref() == Some(UNINSTALLED)
    }
}

/// Whether this gateway takes part in the election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Candidacy {
    /// It doesn't know yet whether its name is unique.
    NotYet,
    /// It takes part.
    Candidate,
    /// It has withdrawn with no write in progress: the Lease is released.
    Gone,
    /// It has withdrawn while a write may be in progress: the Lease must expire.
    Cut,
}

/// Takes part in the election while the gateway is a candidate. Afterwards it releases the Lease if we own it and no
/// write is in progress.
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
        let started = Instant::now();
        let attempt = tokio::select! {
            attempt = attempt(&connector, &namespace, &mut election, &mut boot_until) => attempt,
            _ = candidacy.changed() => break,
        };
        let error = attempt.err();
        // Each new reason is logged once.
        if error != reported {
            match &error {
                Some(error) => {
                    tracing::warn!(lease = LEASE, namespace, %error, "cannot acquire or renew the Lease");
                }
                None => {
                    tracing::info!(lease = LEASE, namespace, "acquiring and renewing the Lease works again");
                }
            }
            reported = error;
        }
        failing = reported.as_ref().and(failing.or(Some(started)));
        let is_lasting = failing.is_some_and(|since| since.elapsed() >= FAILING_MIN);
        let failure = reported.as_ref().filter(|_| is_lasting);
        let failure = failure.map(|error| format!("cannot acquire the Lease {namespace}/{LEASE}: {error}"));
        publish(&leadership, &election, boot_until, failure);
        tokio::select! {
            () = sleep(RETRY.saturating_sub(started.elapsed())) => {}
            _ = candidacy.changed() => break,
        }
    }
    let is_clean = *candidacy.borrow() == Candidacy::Gone;
    let release = election.released(Timestamp::now());
    publish(&leadership, &election, boot_until, None);
    let Some(next) = release else { return };
    if !is_clean {
        tracing::info!(
            lease = LEASE,
            namespace,
            "not releasing the Lease because a write may be in progress; the Lease will expire"
        );
        return;
    }
    if let Err(error) = request(&connector, &namespace, &next).await {
        tracing::info!(lease = LEASE, namespace, %error, "cannot release the Lease; it will expire");
    }
}

fn publish(
    leadership: &watch::Sender<Leadership>,
    election: &Election,
    boot_until: Option<BootTime>,
    failure: Option<String>,
) {
    let holder = election.holder().map(str::to_owned);
    let lapsed = election.lapsed().map(str::to_owned);
    let until = election.leads_until();
    let now = Leadership { until, boot_until, holder, lapsed, is_requested: true, failure };
    leadership.send_if_modified(|before| {
        let is_new = *before != now;
        if before.leads(Instant::now()) != now.leads(Instant::now()) {
            tracing::info!(leads = now.leads(Instant::now()), holder = now.holder, "leadership changed");
        }
        match (before.is_uninstalled(), now.is_uninstalled()) {
            (false, true) => tracing::warn!(
                lease = LEASE,
                "Tidegate was uninstalled from the cluster: this gateway writes nothing to the API until you delete \
                 this Lease, which belongs to `tidegate uninstall`"
            ),
            (true, false) => tracing::info!(lease = LEASE, "this Lease no longer belongs to `tidegate uninstall`; this gateway writes to the API again"),
            _ => {}
        }
        *before = now;
        is_new
    });
}

/// Sends the requests of one attempt. Sets `boot_until` if this gateway becomes or remains the leader.
async fn attempt(
    connector: &Connector,
    namespace: &str,
    election: &mut Election,
    boot_until: &mut Option<BootTime>,
) -> Result<(), String> {
    let mut next = election.request(Timestamp::now());
    // At most three requests: a renewal that is refused, a read, and the request that follows from it.
    for _ in 0..3 {
        let (started, boot) = (Instant::now(), boot_time());
        let is_read = next == LeaseRequest::Get;
        let found = match request(connector, namespace, &next).await {
            Ok(lease) if is_read => Some(lease),
            Ok(lease) => {
                election.granted(lease, started);
                *boot_until = Some(boot.plus(RENEW_DEADLINE));
                return Ok(());
            }
            Err(error) if is_read && error.code() == Some(404) => None,
            Err(error) if matches!(error.code(), Some(404 | 409)) => {
                election.refused();
                next = LeaseRequest::Get;
                continue;
            }
            Err(error) => return Err(error.to_string()),
        };
        match election.found(found, Instant::now(), Timestamp::now()) {
            Some(following) => next = following,
            None => return Ok(()),
        }
    }
    Ok(())
}

async fn request(
    connector: &Connector,
    namespace: &str,
    lease_request: &LeaseRequest,
) -> Result<Lease, RequestError> {
    let response = with_client(connector, |client| async move {
        let (api, params): (Api<Lease>, _) = (Api::namespaced(client, namespace), PostParams::default());
        match lease_request {
            LeaseRequest::Get => within(api.get(LEASE)).await,
            LeaseRequest::Create(lease) => within(api.create(&params, lease)).await,
            LeaseRequest::Replace(lease) => within(api.replace(LEASE, &params, lease)).await,
        }
    });
    match response.await {
        // Don't confuse a missing namespace with a missing Lease.
        Err(error)
            if matches!(error.code(), Some(403 | 404))
                && matches!(lease_request, LeaseRequest::Create(_)) =>
        {
            let why = format!(
                "the Lease does not exist, and the gateway cannot create it: {error}; accepted: the permissions of \
                 deploy/kubernetes/base, or a Lease that you create"
            );
            Err(RequestError::Unconnected(why))
        }
        response => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspending_the_machine_ends_the_leadership() {
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
        assert!(!leadership.leads_at(now + second, boot.plus(RENEW_DEADLINE)), "suspended for 9 s");
        assert!(!Leadership::default().leads_at(now, boot), "it was never the leader");
    }
}

//! Everything that the daemon's loop waits for.
//!
//! Invariant: cancelling a wait loses nothing; the next wait sees what has arrived meanwhile.

use std::sync::Arc;

use tidegate_admin_api::GatewayDrainState;
use tidegate_cluster::plan::LeaseHolders;
use tidegate_cluster::{ClusterWriter, DrainAnnotation, PeerReleases};
use tidegate_health::health_check_node_port::BindFailure;
use tidegate_model::health::Verdicts;
use tidegate_source::SourceUpdate;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::command::Command;
use super::configuration::Read;
use super::controller::Controller;
use super::start::Source;
use super::symptoms::Symptoms;

/// The inputs of the loop.
pub(super) struct Inputs {
    pub(super) source: Source,
    pub(super) manifests: watch::Receiver<SourceUpdate>,
    /// When the change of the manifests that ended the last wait was noticed.
    pub(super) seen: Option<std::time::Instant>,
    pub(super) verdicts: watch::Receiver<Verdicts>,
    pub(super) unbound: watch::Receiver<Vec<BindFailure>>,
    pub(super) symptoms: watch::Receiver<Arc<Symptoms>>,
    pub(super) cluster: FromCluster,
    /// The drain of the gateway.
    pub(super) drain: watch::Receiver<GatewayDrainState>,
    pub(super) kube_proxy: watch::Receiver<bool>,
    /// The holders of the Leases of VIPs.
    pub(super) lease_holders: watch::Receiver<Arc<LeaseHolders>>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) failures: watch::Receiver<Option<String>>,
    /// Signals that an interface has changed state, or a worker hangs or recovers, which may affect the gateway's
    /// readiness.
    pub(super) changes: watch::Receiver<()>,
    /// Signals that a comparison of incremental results has ended.
    pub(super) comparisons: watch::Receiver<()>,
    pub(super) signals: Signals,
}

/// What the cluster writer knows about other gateways and this one's `GatewayStatus`.
pub(super) struct FromCluster {
    pub(super) peer_releases: watch::Receiver<PeerReleases>,
    /// The other gateway with the same name.
    pub(super) name_taken: watch::Receiver<Option<String>>,
    /// Whether the gateway's `GatewayStatus` requests a drain.
    pub(super) drain_annotation: watch::Receiver<DrainAnnotation>,
}

impl FromCluster {
    /// The inputs from `writer`. Without a writer, they never change.
    pub(super) fn of(writer: Option<&ClusterWriter>) -> Self {
        match writer {
            Some(writer) => Self {
                peer_releases: writer.peer_releases(),
                name_taken: writer.name_taken(),
                drain_annotation: writer.drain_annotation(),
            },
            None => Self {
                peer_releases: watch::Sender::new(PeerReleases::default()).subscribe(),
                name_taken: watch::Sender::new(None).subscribe(),
                drain_annotation: watch::Sender::new(DrainAnnotation::Unknown).subscribe(),
            },
        }
    }
}

/// The signals of the process.
pub(super) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts to receive them. From then on, SIGUSR1 and SIGUSR2, which would end the process, do nothing: tokio's
    /// handler of a signal remains without a receiver.
    pub(super) fn receive() -> std::io::Result<Self> {
        drop(signal(SignalKind::user_defined1())?);
        drop(signal(SignalKind::user_defined2())?);
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for a signal that ends the process.
    pub(super) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Why the loop wakes up.
pub(super) enum Wake {
    /// The desired state may have changed.
    Changed,
    /// A comparison of incremental results has ended.
    Compared,
    /// A request; its sender waits for the result.
    Command(Command),
    /// SIGHUP.
    Reload,
    /// The configuration has been read, or was not read in time.
    Read(Box<Read>),
    /// SIGTERM or SIGINT.
    End,
    /// A dataplane thread has failed, or a vital task has ended.
    Failed(String),
    /// Another gateway has this gateway's name.
    NameTaken,
}

impl Inputs {
    /// Sets the latest value of each input in the controller.
    pub(super) fn pass_to(&mut self, controller: &mut Controller) {
        controller.take(self.manifests.borrow_and_update().clone());
        controller.set_verdicts(self.verdicts.borrow_and_update().clone());
        controller.set_peers(&self.cluster.peer_releases.borrow_and_update());
        controller.share_node(*self.kube_proxy.borrow_and_update());
        controller.set_lease_holders(Arc::clone(&self.lease_holders.borrow_and_update()));
        controller.set_drain_annotation(&self.cluster.drain_annotation.borrow_and_update());
    }

    /// Waits for an event, for a configuration to be `read`, or until `due`.
    pub(super) async fn next(&mut self, due: Option<Instant>, read: impl Future<Output = Read>) -> Wake {
        let due = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.signals.terminate.recv() => Wake::End,
            _ = self.signals.interrupt.recv() => Wake::End,
            Ok(()) = self.failures.changed() => match self.failures.borrow_and_update().clone() {
                Some(why) => Wake::Failed(why),
                None => Wake::Changed,
            },
            Ok(()) = self.cluster.name_taken.changed() => Wake::NameTaken,
            _ = self.signals.hangup.recv() => Wake::Reload,
            read = read => Wake::Read(Box::new(read)),
            Some(command) = self.commands.recv() => Wake::Command(command),
            Ok(()) = self.manifests.changed() => {
                self.seen = Some(self.manifests.borrow().seen);
                Wake::Changed
            }
            Ok(()) = self.verdicts.changed() => Wake::Changed,
            Ok(()) = self.unbound.changed() => Wake::Changed,
            Ok(()) = self.symptoms.changed() => Wake::Changed,
            Ok(()) = self.changes.changed() => Wake::Changed,
            Ok(()) = self.comparisons.changed() => Wake::Compared,
            Ok(()) = self.cluster.peer_releases.changed() => Wake::Changed,
            Ok(()) = self.kube_proxy.changed() => Wake::Changed,
            Ok(()) = self.lease_holders.changed() => Wake::Changed,
            Ok(()) = self.cluster.drain_annotation.changed() => Wake::Changed,
            Ok(()) = self.drain.changed() => Wake::Changed,
            () = due => Wake::Changed,
        }
    }
}

//! What a reload would change: computes the desired state with another configuration, beside the one in use.
//!
//! A separate low-priority thread reads the file and reconciles twice from scratch, with the configuration in use and
//! with the other one, from the same objects, health and addresses. Nothing of it is used afterwards.
//!
//! Invariant: the daemon's loop waits for none of this, and only one trial runs at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use tidegate_admin_api::{BackendWhy, DiffAnswer, PortDiff, PortView};
use tidegate_dataplane::gateway::Dataplane;
use tidegate_model::bounded_file::{self, FILE_BYTES_MAX};
use tidegate_model::config::{self, GatewayConfig, Loaded, SourceConfig};
use tidegate_model::health::Verdicts;
use tidegate_model::objects::Objects;
use tidegate_policy::gateway_api::GatewayApi;
use tidegate_policy::reconcile::{DrainTarget, Input, Memory, Outcome, Settings, reconcile};
use tidegate_source::directory::DirectorySource;
use tidegate_spec::Protocol;
use tokio::sync::oneshot;

use super::reload::{fixed_parts_that_differ, other_parts_that_differ};
use super::{configuration, low_priority};
use crate::assemble;

/// The inputs of a trial. They share most of their memory with the state in use.
pub(super) struct Trial {
    /// The file to try; `None` for that of the gateway.
    pub(super) path: Option<PathBuf>,
    /// The file of the gateway.
    pub(super) own: PathBuf,
    pub(super) config: GatewayConfig,
    pub(super) settings: Settings,
    pub(super) dataplane: Arc<Dataplane>,
    pub(super) objects: Objects,
    pub(super) verdicts: Verdicts,
    pub(super) drained: BTreeSet<DrainTarget>,
    pub(super) memory: Memory,
    /// Time since the daemon started.
    pub(super) now: Duration,
}

/// Runs trials, one at a time.
#[derive(Default)]
pub(super) struct Trials(Weak<()>);

impl Trials {
    /// Starts a trial, which sends the answer; `None` if another one is in progress.
    pub(super) fn begin(&mut self, trial: Trial, answer: oneshot::Sender<Option<DiffAnswer>>) {
        if self.0.strong_count() > 0 {
            // The caller may stop waiting at any time, here and below.
            let _ = answer.send(None);
            return;
        }
        let running = Arc::new(());
        self.0 = Arc::downgrade(&running);
        let work = move || {
            let result = trial.run();
            drop(running);
            let _ = answer.send(Some(result));
        };
        // Without a thread, the sender is dropped, and the request fails.
        if let Err(error) = low_priority::spawn("tg-diff", work) {
            tracing::warn!(%error, "cannot start a thread to compare configurations");
        }
    }
}

impl Trial {
    fn run(&self) -> DiffAnswer {
        let loaded = self.load();
        let report = loaded.report.iter().map(ToString::to_string).collect();
        let Some(new) = loaded.config else { return DiffAnswer { report, ..DiffAnswer::default() } };
        let restart: Vec<String> =
            fixed_parts_that_differ(&self.config, &new).into_iter().map(str::to_owned).collect();
        let reload = other_parts_that_differ(&self.config, &new).into_iter().map(str::to_owned).collect();
        // After a restart, the ports may be others.
        let mut settings = match restart.is_empty() {
            true => configuration::settings(&new, &self.dataplane),
            false => assemble::settings(&new, assemble::offline_interfaces(&new)),
        };
        settings.authority = self.settings.authority.clone();
        settings.other_gateways = Arc::clone(&self.settings.other_gateways);
        // A reload also reads a directory that is not watched.
        let read = match &new.source {
            SourceConfig::Directory(directory) if !directory.watch => {
                let (path, slices) = (&directory.path, directory.endpoint_slices_mib);
                let (objects, _) = DirectorySource::load_within(path, slices, directory.gateway_api);
                Some(GatewayApi::default().derive(&Arc::new(objects)))
            }
            _ => None,
        };
        let before = self.outcome(&self.settings, &self.objects);
        let after = self.outcome(&settings, read.as_deref().unwrap_or(&self.objects));
        let (ports, pending) = (ports(&before, &after), pending(&before, &after));
        DiffAnswer { accepted: restart.is_empty(), report, restart, reload, ports, pending }
    }

    /// Reads the file, as if it was in the place of the gateway's file: paths in it are relative to the same directory.
    fn load(&self) -> Loaded {
        let Some(path) = &self.path else { return config::load(&self.own) };
        let text =
            bounded_file::read(path, FILE_BYTES_MAX).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        // Loading the file again reports why it cannot be read.
        let Some(text) = text else { return config::load(path) };
        let base = self.own.parent().unwrap_or(Path::new(""));
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        config::parse(&text, &path.to_string_lossy(), base, cores)
    }

    fn outcome(&self, settings: &Settings, objects: &Objects) -> Outcome {
        let Self { verdicts, drained, memory, now, .. } = self;
        reconcile(&Input { settings, objects, verdicts, drained, memory, generation: 1, now: *now })
    }
}

/// A service port: namespace and name of the Service, VIP, port, protocol.
type Key<'a> = (&'a str, &'a str, IpAddr, u16, Protocol);

/// The programmed ports, and their backends.
fn programmed(outcome: &Outcome) -> BTreeMap<Key<'_>, (&PortView, BTreeSet<SocketAddr>)> {
    let services = outcome.services.iter();
    let ports = services.flat_map(|service| service.ports.iter().map(move |port| (service, port)));
    let programmed = ports.filter(|(_, port)| port.refused.is_none()).map(|(service, port)| {
        let listed = port.backends.iter().filter(|backend| backend.why != BackendWhy::Removed);
        let backends = listed.map(|backend| SocketAddr::new(backend.address, backend.port)).collect();
        let key = (service.namespace.as_str(), service.name.as_str(), port.vip, port.port, port.protocol);
        (key, (port, backends))
    });
    programmed.collect()
}

fn ports(before: &Outcome, after: &Outcome) -> Vec<PortDiff> {
    let (before, after) = (programmed(before), programmed(after));
    let keys: BTreeSet<&Key<'_>> = before.keys().chain(after.keys()).collect();
    let none = BTreeSet::new();
    let differs = |key: &Key<'_>| {
        let (old, new) = (before.get(key), after.get(key));
        let mode = |port: Option<&(&PortView, _)>| port.map(|(port, _)| port.mode.to_string());
        let backends = [old, new].map(|port| port.map_or(&none, |(_, backends)| backends));
        let (namespace, service, vip, port, protocol) = *key;
        let diff = PortDiff {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
            vip,
            port,
            protocol: protocol.to_string(),
            before: mode(old),
            after: mode(new),
            added: backends[1].difference(backends[0]).copied().collect(),
            removed: backends[0].difference(backends[1]).copied().collect(),
        };
        let is_equal = diff.before == diff.after && diff.added.is_empty() && diff.removed.is_empty();
        (!is_equal).then_some(diff)
    };
    keys.into_iter().filter_map(differs).collect()
}

/// The Services that would start or stop waiting for an address.
fn pending(before: &Outcome, after: &Outcome) -> Vec<String> {
    let waiting = |outcome: &Outcome| -> BTreeMap<String, String> {
        let services = outcome.services.iter();
        let waiting = services
            .filter_map(|one| Some((format!("{}/{}", one.namespace, one.name), one.pending.clone()?)));
        waiting.collect()
    };
    let (before, after) = (waiting(before), waiting(after));
    let begins = after.iter().filter(|(name, _)| !before.contains_key(*name));
    let begins = begins.map(|(name, why)| format!("{name}: waits for an address: {why}"));
    let ends = before.keys().filter(|name| !after.contains_key(*name));
    begins.chain(ends.map(|name| format!("{name}: no longer waits for an address"))).collect()
}

//! Starts and ends the thread that writes the flow log ([`tidegate_flow_log`]), and finds the names of what it writes.
//!
//! At shutdown the workers report all logged flows as ended while they still forward, and the thread writes what is
//! queued, within limits of time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tidegate_admin_api::FlowLogStatus;
use tidegate_dataplane::gateway::Dataplane;
use tidegate_flow_log::{
    Clock, Config, Counts, FileConfig, IpfixConfig, Ports, ServicePort, Stopper, Writer, stop_pair,
};
use tidegate_model::config::GatewayConfig;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_wire::rewrite::Endpoint;

use super::low_priority;
use super::task_watchdog::Vital;

/// How long the workers may take to report their flows as ended, and how long the rest may take to be written.
const END_MAX: Duration = Duration::from_secs(1);

/// The running flow log.
pub(super) struct FlowLogThread {
    dataplane: Arc<Dataplane>,
    stopper: Stopper,
}

/// What `status` and `/metrics` show about the flow log.
#[derive(Debug)]
pub(super) struct Shown {
    /// The outputs, as text for people.
    pub(super) outputs: Vec<String>,
    pub(super) counts: Arc<Counts>,
}

impl Shown {
    /// The part of `status` about the flow log.
    pub(super) fn status(&self, dataplane: &Dataplane) -> FlowLogStatus {
        let lost = self.counts.lost(dataplane.flow_logs()).into_iter().filter(|(_, count)| *count > 0);
        FlowLogStatus {
            outputs: self.outputs.clone(),
            records: self.counts.records().iter().map(|(_, count)| count).sum(),
            lost: lost.map(|(reason, count)| (reason.as_str().to_owned(), count)).collect(),
            troubles: self.counts.troubles(),
        }
    }
}

/// Starts the flow log, if it has an output, and passes to `show` what is displayed about it.
pub(super) fn start(
    config: &GatewayConfig,
    dataplane: &Arc<Dataplane>,
    show: impl FnOnce(Shown),
    vital: &mut Vital,
) -> anyhow::Result<Option<FlowLogThread>> {
    let log = &config.flow_log;
    if log.enabled().is_none() {
        return Ok(None);
    }
    let file = log.file.as_ref();
    let outputs = Config {
        gateway: config.name.clone(),
        file: file.map(|file| FileConfig {
            path: file.path.clone(),
            bytes_max: u64::from(file.size_max_mib) << 20,
        }),
        ipfix: log.ipfix.map(|to| IpfixConfig { collector: to.address, domain: to.domain }),
    };
    let counts = Arc::new(Counts::default());
    let shown = [
        outputs.file.as_ref().map(|file| format!("file {}", file.path.display())),
        outputs.ipfix.as_ref().map(|to| format!("IPFIX collector {}", to.collector)),
    ];
    show(Shown { outputs: shown.into_iter().flatten().collect(), counts: Arc::clone(&counts) });
    let logs = dataplane.log_flows().to_vec();
    let writer = Writer::new(outputs, logs, Current(Arc::clone(dataplane)), counts);
    let (stopper, stop) = stop_pair();
    let alive = Arc::new(());
    let ended = Arc::downgrade(&alive);
    let write = move || {
        let _alive = alive;
        writer.run(&stop);
    };
    low_priority::spawn("tg-flow-log", write).context("cannot start the thread that writes the flow log")?;
    vital.add("the thread that writes the flow log", move || ended.strong_count() == 0);
    Ok(Some(FlowLogThread { dataplane: Arc::clone(dataplane), stopper }))
}

impl FlowLogThread {
    /// Reports all logged flows as ended, and writes what is queued.
    pub(super) async fn end(mut self) {
        let ended = tokio::task::spawn_blocking(move || {
            let silent = self.dataplane.end_logged_flows(END_MAX);
            silent == 0 && self.stopper.stop(END_MAX)
        });
        if !matches!(ended.await, Ok(true)) {
            tracing::warn!("the flow log lacks the ends of some flows: writing them took too long");
        }
    }
}

/// The published service ports.
struct Current(Arc<Dataplane>);

impl Ports for Current {
    fn service(&self, id: ServiceId) -> Option<ServicePort> {
        self.0.with_snapshot(|snapshot| {
            let (service, info) = (snapshot.service_by_id(id)?, snapshot.service_info(id)?);
            Some(ServicePort {
                namespace: info.namespace.clone(),
                name: info.name.clone(),
                port_name: info.port_name.clone(),
                vip: Endpoint { addr: service.vip, port: service.port },
                protocol: service.protocol,
                mode: service.mode,
            })
        })
    }

    fn backend(&self, _: ServiceId, id: BackendId) -> Option<Endpoint> {
        self.0.with_snapshot(|snapshot| {
            snapshot.backend(id).map(|backend| Endpoint { addr: backend.address, port: backend.port })
        })
    }
}

impl Clock for Current {
    fn now(&self) -> Now {
        self.0.now()
    }
}

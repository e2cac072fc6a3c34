//! The thread that takes the records of all workers and writes them.
//!
//! Invariant: each record is written to each output or counted as lost ([`Lost`]).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_conntrack::flow_log::{FlowEvent, FlowLog, FlowLogLoss, LoggedFlow};
use tidegate_spec::now::Now;

use super::collector::Collector;
use super::file::LogFile;
use super::flow::{Flow, Ports};
use super::json;
use super::names::Names;

/// How often the records are taken.
const INTERVAL: Duration = Duration::from_millis(100);
/// Records that are taken from one worker before those of the others, and written together.
const BATCH: usize = 1_024;
/// A difference of the system's clock that counts as a change of it, in milliseconds.
const CLOCK_STEP_MS: u64 = 100;
/// The time between two warnings about the same output.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Where the log is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The name of the gateway.
    pub gateway: String,
    /// The file of JSON lines.
    pub file: Option<FileConfig>,
    /// The collector.
    pub ipfix: Option<IpfixConfig>,
}

/// The file of JSON lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileConfig {
    /// Its path.
    pub path: PathBuf,
    /// The length at which it is renamed to `NAME.1`, in bytes.
    pub bytes_max: u64,
}

/// The IPFIX collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpfixConfig {
    /// Its address and UDP port.
    pub collector: SocketAddr,
    /// The observation domain of this gateway (RFC 7011 section 3.1).
    pub domain: u32,
}

/// Converts the workers' clock.
pub trait Clock {
    /// The current time on the workers' clock.
    fn now(&self) -> Now;
}

tidegate_wire::named! {
    /// Why a record is missing in an output.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Lost {
        /// The queue of a worker was full, or the Service had used its share of it.
        QueueFull => "queue_full",
        /// A new flow got no entry in its table, so its packets can't be counted.
        NoEntry => "no_entry",
        /// Its Service or backend was removed long ago.
        Unnamed => "unnamed",
        /// The file can't be written.
        File => "file",
        /// The message to the collector can't be sent.
        Collector => "collector",
    }
}

/// What was written, and what was lost.
#[derive(Debug, Default)]
pub struct Counts {
    begins: AtomicU64,
    ends: AtomicU64,
    unnamed: AtomicU64,
    file: AtomicU64,
    collector: AtomicU64,
    /// The last errors of the outputs, while they fail.
    troubles: Mutex<[Option<String>; 2]>,
}

impl Counts {
    /// Begins and ends of flows that were taken from the workers.
    #[must_use]
    pub fn records(&self) -> [(&'static str, u64); 2] {
        let [begins, ends] = [&self.begins, &self.ends].map(|count| count.load(Ordering::Relaxed));
        [("begin", begins), ("end", ends)]
    }

    /// Lost records, by [`Lost`]. `logs` are those of the workers.
    #[must_use]
    pub fn lost(&self, logs: &[Arc<FlowLog>]) -> [(Lost, u64); Lost::COUNT] {
        let of_workers = |why| logs.iter().map(|log| log.lost(why)).sum();
        Lost::ALL.map(|why| {
            let count = match why {
                Lost::QueueFull => of_workers(FlowLogLoss::QueueFull),
                Lost::NoEntry => of_workers(FlowLogLoss::NoEntry),
                Lost::Unnamed => self.unnamed.load(Ordering::Relaxed),
                Lost::File => self.file.load(Ordering::Relaxed),
                Lost::Collector => self.collector.load(Ordering::Relaxed),
            };
            (why, count)
        })
    }

    /// The outputs that fail now, as text for people.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        let troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.iter().flatten().cloned().collect()
    }
}

/// Ends the thread.
#[derive(Debug)]
pub struct Stopper {
    stop: Option<SyncSender<()>>,
    ended: Receiver<()>,
}

/// The end of a [`Stopper`] that the thread has.
#[derive(Debug)]
pub struct Stop {
    stop: Receiver<()>,
    /// Dropped at the end of the thread.
    _ended: SyncSender<()>,
}

/// A stopper and its other end.
#[must_use]
pub fn stop_pair() -> (Stopper, Stop) {
    let ((stop, stopped), (end, ended)) = (sync_channel(1), sync_channel(1));
    (Stopper { stop: Some(stop), ended }, Stop { stop: stopped, _ended: end })
}

impl Stopper {
    /// Has the thread write what is queued and end, and waits for that up to a limit. Returns whether it has ended.
    pub fn stop(&mut self, limit: Duration) -> bool {
        self.stop = None;
        matches!(self.ended.recv_timeout(limit), Err(RecvTimeoutError::Disconnected))
    }
}

/// An output and its failures.
#[derive(Debug)]
struct Output<T> {
    output: T,
    /// Its position in `Counts::troubles`.
    at: usize,
    warned_at: Option<Instant>,
}

impl<T> Output<T> {
    fn new(output: T, at: usize) -> Self {
        Self { output, at, warned_at: None }
    }

    /// Records the result of a write: logs a failure at intervals, and the end of failures.
    fn report(&mut self, counts: &Counts, trouble: Option<String>, now: Instant) {
        let mut troubles = counts.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = troubles.get_mut(self.at) else { return };
        match &trouble {
            Some(trouble)
                if self.warned_at.is_none_or(|at| now.saturating_duration_since(at) >= WARN_EVERY) =>
            {
                self.warned_at = Some(now);
                tracing::warn!("{trouble}: records of the flow log are lost");
            }
            None if last.is_some() => tracing::info!("the flow log is complete again"),
            _ => {}
        }
        *last = trouble;
    }
}

/// Takes the records of the workers and writes them.
#[derive(Debug)]
pub struct Writer<P> {
    config: Config,
    logs: Vec<Arc<FlowLog>>,
    ports: P,
    counts: Arc<Counts>,
    names: Names,
    /// See [`Writer::zero_ms`].
    zero_ms: u64,
    file: Option<Output<LogFile>>,
    collector: Option<Output<Collector>>,
}

impl<P: Ports + Clock> Writer<P> {
    /// A writer of the records in these logs.
    #[must_use]
    pub fn new(config: Config, logs: Vec<Arc<FlowLog>>, ports: P, counts: Arc<Counts>) -> Self {
        let file = |file: &FileConfig| Output::new(LogFile::new(file.path.clone(), file.bytes_max), 0);
        let collector = |to: &IpfixConfig| Output::new(Collector::new(to.collector, to.domain), 1);
        let (file, collector) = (config.file.as_ref().map(file), config.ipfix.as_ref().map(collector));
        Self { config, logs, ports, counts, names: Names::default(), zero_ms: 0, file, collector }
    }

    /// Writes until it is stopped, and then what is still queued.
    pub fn run(mut self, stop: &Stop) {
        while let Err(RecvTimeoutError::Timeout) = stop.stop.recv_timeout(INTERVAL) {
            self.write_queued();
        }
        self.write_queued();
    }

    /// Writes everything that is queued.
    fn write_queued(&mut self) {
        let mut flows = Vec::new();
        loop {
            self.take(&mut flows);
            // Without records, the collector may still need templates.
            self.write(&flows);
            if flows.is_empty() {
                return;
            }
            flows.clear();
        }
    }

    /// Takes some records of each worker.
    fn take(&mut self, flows: &mut Vec<Flow>) {
        let zero_ms = self.zero_ms();
        for log in &self.logs {
            for _ in 0..BATCH {
                let Some(record) = log.pop() else { break };
                let count = match record.event {
                    FlowEvent::Begin => &self.counts.begins,
                    FlowEvent::End(_) => &self.counts.ends,
                };
                count.fetch_add(1, Ordering::Relaxed);
                match self.names.of(&self.ports, record.service, record.backend) {
                    Some((service, backend)) => {
                        let LoggedFlow { began, last, .. } = record;
                        let start_ms = zero_ms.saturating_add(began.0 / 1_000_000);
                        let lasted = u64::try_from(last.since(began).as_millis()).unwrap_or(u64::MAX);
                        let end_ms = start_ms.saturating_add(lasted);
                        flows.push(Flow { record, service, backend, start_ms, end_ms });
                    }
                    None => drop(self.counts.unnamed.fetch_add(1, Ordering::Relaxed)),
                }
            }
        }
    }

    /// The time at which the workers' clock was zero, in milliseconds since 1970. It stays the same until the system's
    /// clock is changed, so that the begin and the end of a flow have the same start.
    fn zero_ms(&mut self) -> u64 {
        let wall_ms = u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX);
        let zero_ms = wall_ms.saturating_sub(self.ports.now().0 / 1_000_000);
        if self.zero_ms.abs_diff(zero_ms) > CLOCK_STEP_MS {
            self.zero_ms = zero_ms;
        }
        self.zero_ms
    }

    fn write(&mut self, flows: &[Flow]) {
        let (now, counts) = (Instant::now(), &self.counts);
        if let Some(file) = self.file.as_mut().filter(|_| !flows.is_empty()) {
            let mut lines = Vec::new();
            flows.iter().for_each(|flow| json::append(&mut lines, &self.config.gateway, flow));
            let path = self.config.file.as_ref().map(|file| file.path.display().to_string());
            let trouble = file.output.append(&lines).err().map(|error| {
                counts.file.fetch_add(flows.len() as u64, Ordering::Relaxed);
                format!("flowLog.file: cannot write {}: {error}", path.unwrap_or_default())
            });
            file.report(counts, trouble, now);
        }
        if let Some(collector) = &mut self.collector {
            let export_s = u32::try_from(since_1970().as_secs()).unwrap_or(u32::MAX);
            let unsent = collector.output.send(flows, export_s, now);
            counts.collector.fetch_add(unsent.records, Ordering::Relaxed);
            // The refusal of a message shows only at the next one, so templates alone prove nothing.
            if !flows.is_empty() || unsent.records > 0 {
                let trouble = unsent.error.map(|error| {
                    let to = self.config.ipfix.as_ref().map(|to| to.collector.to_string());
                    format!("flowLog.ipfix: cannot send to {}: {error}", to.unwrap_or_default())
                });
                collector.report(counts, trouble, now);
            }
        }
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use tidegate_conntrack::flow_log::{EndReason, LoggedPacket};
    use tidegate_conntrack::{FlowKey, FlowTables, IdleTimeout, NewFlow, Packet};
    use tidegate_spec::ids::{BackendId, ServiceId};
    use tidegate_wire::Addr;
    use tidegate_wire::rewrite::Endpoint;

    use super::super::flow::{ServicePort, samples};
    use super::*;

    /// One service port with one backend.
    struct Lab;

    impl Ports for Lab {
        fn service(&self, id: ServiceId) -> Option<ServicePort> {
            let flow = samples::dsr(FlowEvent::End(EndReason::Closed));
            (id.index() == 1).then(|| ServicePort::clone(&flow.service))
        }

        fn backend(&self, _: ServiceId, id: BackendId) -> Option<Endpoint> {
            (id.index() == 1).then(|| samples::dsr(FlowEvent::Begin).backend)
        }
    }

    impl Clock for Lab {
        fn now(&self) -> Now {
            Now(10_000_000_000)
        }
    }

    /// A log with the begin and end of flows to these services.
    fn log(services: &[usize]) -> Arc<FlowLog> {
        let log = Arc::new(FlowLog::new());
        let mut tables = FlowTables::new(1_000, 1);
        tables.log_to(&log);
        let now = Now(4_000_000_000);
        for &service in services {
            let client: std::net::IpAddr = "2001:db8::7".parse().expect("an address");
            let key = FlowKey::flow(ServiceId::new(service, 0), Addr::from(client), 4711);
            let hash = tables.hash(&key);
            let idle = IdleTimeout::new(Duration::from_secs(60));
            let backend = BackendId::new(1, 0);
            let flow = NewFlow { key, hash, backend, packet: Packet::Datagram, idle, now };
            tables.dsr.insert(&flow).expect("an empty table");
            let packet = LoggedPacket {
                is_reply: false,
                is_first: true,
                is_sent: true,
                bytes: 100,
                tcp_flags: 0,
                ends_association: false,
            };
            tables.count_logged(true, &key, hash, &packet, now);
            assert!(tables.dsr.remove(&key, hash));
        }
        log
    }

    fn config(file: Option<PathBuf>, collector: Option<SocketAddr>) -> Config {
        Config {
            gateway: "edge".to_owned(),
            file: file.map(|path| FileConfig { path, bytes_max: 1 << 20 }),
            ipfix: collector.map(|collector| IpfixConfig { collector, domain: 1 }),
        }
    }

    fn lost(counts: &Counts, logs: &[Arc<FlowLog>]) -> Vec<(&'static str, u64)> {
        let all = counts.lost(logs).into_iter().filter(|(_, count)| *count > 0);
        all.map(|(why, count)| (why.as_str(), count)).collect()
    }

    #[test]
    fn what_is_queued_is_written_to_both_outputs_before_the_thread_ends() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("flows.json");
        let collector = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let logs = vec![log(&[1]), log(&[1, 2])];
        let counts = Arc::new(Counts::default());
        let config = config(Some(path.clone()), collector.local_addr().ok());
        let writer = Writer::new(config, logs.clone(), Lab, Arc::clone(&counts));
        let (mut stopper, stop) = stop_pair();
        let thread = std::thread::spawn(move || writer.run(&stop));
        assert!(stopper.stop(Duration::from_secs(60)));
        thread.join().expect("it ends");
        let lines = std::fs::read_to_string(&path).expect("it was written");
        let events: Vec<serde_json::Value> =
            lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let names: Vec<_> = events.iter().map(|event| event["event"].as_str()).collect();
        assert_eq!(names, ["begin", "end", "begin", "end"].map(Some));
        assert_eq!(events[1]["reason"], "removed");
        assert_eq!(events[1]["request"], serde_json::json!({"packets": 1, "bytes": 100}));
        assert_eq!(counts.records(), [("begin", 3), ("end", 3)]);
        assert_eq!(lost(&counts, &logs), [("unnamed", 2)], "service 2 doesn't exist");
        let mut message = [0; 2_000];
        let len = collector.recv(&mut message).expect("templates");
        assert_eq!(message[16..18], [0, 2], "a template set comes first");
        assert!(len > 500);
        let len = collector.recv(&mut message).expect("records");
        assert_eq!(usize::from(u16::from_be_bytes([message[2], message[3]])), len);
    }

    #[test]
    fn failing_outputs_cost_records_which_are_counted_and_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("missing").join("flows.json");
        // Nothing listens here.
        let closed = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a socket");
        let logs = vec![log(&[1])];
        let counts = Arc::new(Counts::default());
        let config = config(Some(path.clone()), Some(closed));
        let mut writer = Writer::new(config, logs.clone(), Lab, Arc::clone(&counts));
        writer.write_queued();
        assert_eq!(lost(&counts, &logs), [("file", 2), ("collector", 2)]);
        let troubles = counts.troubles();
        assert!(troubles[0].starts_with(&format!("flowLog.file: cannot write {}: ", path.display())));
        assert!(
            troubles[1].starts_with(&format!("flowLog.ipfix: cannot send to {closed}: ")),
            "{troubles:?}"
        );
        std::fs::create_dir(directory.path().join("missing")).expect("it can be created");
        let collector = UdpSocket::bind(closed).expect("a collector");
        // The first write shows that the templates before were refused.
        for _ in 0..2 {
            writer.logs = vec![log(&[1])];
            writer.write_queued();
        }
        assert_eq!(lost(&counts, &logs), [("file", 2), ("collector", 2)]);
        assert_eq!(counts.troubles(), Vec::<String>::new());
        let mut message = [0; 2_000];
        let _ = collector.recv(&mut message).expect("templates again");
        assert_eq!(message[16..18], [0, 2]);
    }
}

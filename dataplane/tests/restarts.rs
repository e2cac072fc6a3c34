//! Flow tables that survive their gateway: the next one, with other ids for the same Services, another number of
//! workers or another table size, forwards both directions of the connections as before.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::*;
use tidegate_conntrack::NotRestored;
use tidegate_dataplane::drivers::memory::{self, Heap, MemoryPort};
use tidegate_dataplane::gateway::{WorkerPool, WorkerPoolConfig};
use tidegate_dataplane::topology::WorkerPlacement;
use tidegate_dataplane::worker::FlowFilter;
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::frame::{Frame, MemoryFrame};
use tidegate_pipeline::testing::Builder;
use tidegate_spec::{ForwardingMode, SnapshotSpec};
use tidegate_wire::{Headers, Parsed, parse, tcp};

/// Connections per mode.
const CONNECTIONS: u16 = 100;
const VIP_NAT: &str = "192.0.2.102";

struct Running {
    wire: MemoryPort,
    pool: WorkerPool<MemoryFrame>,
    workers: u8,
}

/// The Services of the test. `extra` more come first and give all others different ids.
fn services(generation: u64, extra: usize) -> SnapshotSpec {
    let mut spec = spec(generation);
    spec.services.push(service(VIP_NAT, "nat", ForwardingMode::Nat).into());
    for n in 0..extra {
        let (vip, name) = (format!("192.0.2.{}", 60 + n), format!("extra-{n}"));
        spec.services.insert(0, service(&vip, &name, ForwardingMode::DsrL2).into());
    }
    spec
}

impl Running {
    /// A gateway without Services, as when the daemon starts.
    fn start(directory: &Path, workers: u8, entries: usize) -> Self {
        let (wire, ends) = memory::port(usize::from(workers), 1024);
        let config = WorkerPoolConfig {
            placements: (0..workers)
                .map(|n| WorkerPlacement { worker: n, core: n.into(), numa: None })
                .collect(),
            flow_entries: entries,
            flow_store: Some(directory.to_owned()),
            steering: if workers == 1 { Steering::Single } else { Steering::Partition },
            seed: u64::from(workers) + entries as u64,
            ..WorkerPoolConfig::one_worker(0, entries)
        };
        let first = SnapshotSpec { services: Vec::new(), ..spec(1) };
        let queues = ends.into_iter().map(|end| vec![end]).collect();
        let enter = |_: &WorkerPlacement| Ok::<(), String>(());
        let pool = WorkerPool::start(&config, queues, Heap, vec![None], &first, enter, None).unwrap();
        Self { wire, pool, workers }
    }

    fn publish(&self, spec: &SnapshotSpec) {
        self.pool.publish(spec).unwrap();
        assert!(self.pool.wait_applied(spec.generation, Duration::from_secs(30)), "the workers apply it");
    }

    /// Sends a frame through the gateway and returns the result. The gateway also requests its fixed neighbours.
    fn pass(&self, frame: &[u8]) -> (Headers, Vec<u8>) {
        assert!(self.wire.offer(0, frame));
        let mut sent = None;
        wait_until("the frame is forwarded", || {
            let frames = (0..usize::from(self.workers)).filter_map(|queue| self.wire.take(queue));
            sent = frames.map(|frame| frame.bytes().to_vec()).find_map(|frame| match parse(&frame) {
                Ok(Parsed::Ip(headers)) => Some((headers, frame)),
                Ok(Parsed::Arp(_)) => None,
                other => panic!("{other:?}"),
            });
            sent.is_some()
        });
        sent.expect("it was waited for")
    }

    /// Forwards a client's packet: its source and destination towards the backend.
    fn by_client(&self, port: u16, vip: &str, flags: u8) -> (String, String) {
        let (from, to) = (format!("{CLIENT_IP}:{port}"), format!("{vip}:80"));
        let (h, _) =
            self.pass(&Builder::tcp(from.as_str(), to.as_str()).mac(CLIENT, GATEWAY).flags(flags).build());
        (format!("{}:{}", h.src, h.src_port), format!("{}:{}", h.dst, h.dst_port))
    }

    /// Forwards a backend's packet to this address.
    fn by_backend(&self, to: &str, flags: u8) -> (String, String) {
        let from = format!("{BACKEND_IP}:80");
        let (h, _) = self.pass(&Builder::tcp(from.as_str(), to).mac(BACKEND, GATEWAY).flags(flags).build());
        (format!("{}:{}", h.src, h.src_port), format!("{}:{}", h.dst, h.dst_port))
    }

    /// Opens the connections. Returns how packets of both directions are forwarded.
    fn open(&self) -> Vec<Connection> {
        let mut all = Vec::new();
        for n in 0..CONNECTIONS {
            for vip in [VIP_L2, VIP_FULLNAT, VIP_NAT] {
                let port = 4000 + n;
                let towards = self.by_client(port, vip, tcp::flags::SYN);
                if vip != VIP_L2 {
                    self.by_backend(&towards.0, tcp::flags::SYN | tcp::flags::ACK);
                }
                self.by_client(port, vip, tcp::flags::ACK);
                all.push(Connection { port, vip, towards });
            }
        }
        all
    }

    fn assert_continue(&self, all: &[Connection]) {
        for one in all {
            let client = format!("{CLIENT_IP}:{}", one.port);
            // The backend may be the first to send.
            if one.vip != VIP_L2 {
                let back = self.by_backend(&one.towards.0, tcp::flags::ACK);
                assert_eq!(back, (format!("{}:80", one.vip), client));
            }
            assert_eq!(self.by_client(one.port, one.vip, tcp::flags::ACK), one.towards);
        }
    }

    /// The number of restored flows, and of the others by reason, once all workers have finished.
    fn restored(&self) -> (u64, [u64; NotRestored::ALL.len()]) {
        let restoration = self.pool.restoration().unwrap();
        wait_until("flows are restored", || restoration.is_done());
        let counts = restoration.found().counts;
        (counts.restored, counts.not_restored)
    }

    fn flows(&self) -> usize {
        self.pool.flows(&FlowFilter::default(), 10_000, Duration::from_secs(30)).0.len()
    }
}

struct Connection {
    port: u16,
    vip: &'static str,
    towards: (String, String),
}

fn runs(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn connections_continue_in_the_next_gateway_whatever_its_shape() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path();
    let all = usize::from(CONNECTIONS) * 3;
    let first = Running::start(path, 2, 4096);
    first.publish(&services(2, 0));
    let open = first.open();
    assert_eq!(first.flows(), all);
    drop(first);

    // An equal shape, with other ids for Services and backends.
    let second = Running::start(path, 2, 4096);
    assert_eq!(second.flows(), 0, "nothing is known before there are Services");
    assert!(
        !second.pool.restoration().unwrap().is_in_progress(),
        "nothing is restored before there are Services"
    );
    second.publish(&services(2, 3));
    second.assert_continue(&open);
    wait_until("it forwards", || !second.pool.restoration().unwrap().is_in_progress());
    assert_eq!(second.restored(), (all as u64, [0; 9]));
    assert_eq!(
        runs(path),
        ["lock".to_owned(), "run-2".to_owned()].into(),
        "the files of the first are removed"
    );
    drop(second);

    // One worker takes the flows of both, into tables of another size.
    let third = Running::start(path, 1, 1024);
    third.publish(&services(2, 1));
    third.assert_continue(&open);
    assert_eq!(third.restored(), (all as u64, [0; 9]));
    assert_eq!(third.flows(), all);
}

#[test]
fn a_gateway_without_services_leaves_the_flows_of_its_predecessor() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path();
    let first = Running::start(path, 1, 1024);
    first.publish(&services(2, 0));
    let open = first.open();
    drop(first);
    drop(Running::start(path, 1, 1024));
    let third = Running::start(path, 1, 1024);
    third.publish(&services(2, 0));
    third.assert_continue(&open);
    assert_eq!(third.restored().0, open.len() as u64);
}

#[test]
fn flows_of_removed_services_backends_and_modes_are_counted() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path();
    let first = Running::start(path, 1, 1024);
    first.publish(&services(2, 0));
    first.open();
    drop(first);
    let second = Running::start(path, 1, 1024);
    let mut spec = services(2, 1);
    spec.services.retain(|service| service.name != "direct");
    for service in &mut spec.services {
        if service.name == "translated" {
            service.mode = ForwardingMode::Nat;
        } else if service.name == "nat" {
            service.backends[0].port = 81;
        }
    }
    second.publish(&spec);
    let (restored, not_restored) = second.restored();
    let count = |why: NotRestored| not_restored[why as usize];
    assert_eq!((restored, second.flows()), (0, 0));
    for why in [NotRestored::ServiceGone, NotRestored::BackendGone, NotRestored::ModeChanged] {
        assert_eq!(count(why), u64::from(CONNECTIONS), "{why:?}: {not_restored:?}");
    }
}

#[test]
fn a_gateway_that_cannot_keep_its_flows_reports_why() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let first = Running::start(directory.path(), 1, 1024);
    first.publish(&services(2, 0));
    assert_eq!(first.pool.flows_not_kept(), None);
    let second = Running::start(directory.path(), 1, 1024);
    let why = second.pool.flows_not_kept().expect("the first has the directory");
    assert!(why.contains("is in use by another process"), "{why}");
}

/// A tmpfs of 16 MiB, unmounted when dropped.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount() -> Self {
        let at = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16m,mode=0700", "tmpfs"]).arg(at.path());
        assert!(mount.status().unwrap().success(), "mounting needs root");
        Self(at)
    }

    /// Uses up its memory.
    fn fill(&self) {
        let mut file = File::create(self.0.path().join("fill")).unwrap();
        for size in [1 << 16, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // The directory is removed in any case.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn flows_continue_after_a_restart_on_a_full_tmpfs() {
    let tmpfs = Tmpfs::mount();
    let path = &tmpfs.0.path().join("flows");
    let first = Running::start(path, 1, 1024);
    first.publish(&services(2, 0));
    let open = first.open();
    drop(first);
    tmpfs.fill();
    let second = Running::start(path, 1, 1024);
    second.publish(&services(2, 3));
    second.assert_continue(&open);
    assert_eq!(second.restored(), (open.len() as u64, [0; 9]));
    let why = second.pool.flows_not_kept().expect("there is no space for the files of the second");
    assert!(why.contains("No space left on device"), "{why}");
    drop(second);
    std::fs::remove_file(tmpfs.0.path().join("fill")).unwrap();
    let third = Running::start(path, 1, 1024);
    assert_eq!(third.pool.flows_not_kept(), None);
}

/// Restarts a gateway after its files were changed. Returns what it restored, and the number of rejected tables.
fn restart_after(damage: impl FnOnce(&Path)) -> (u64, [u64; NotRestored::ALL.len()], u64) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let first = Running::start(directory.path(), 1, 1024);
    first.publish(&services(2, 0));
    first.open();
    drop(first);
    damage(&directory.path().join("run-1"));
    let second = Running::start(directory.path(), 1, 1024);
    second.publish(&services(2, 0));
    let (restored, not_restored) = second.restored();
    (restored, not_restored, second.pool.restoration().unwrap().found().refused_tables)
}

#[test]
fn flows_whose_service_or_backend_has_no_record_any_more_count_as_damaged() {
    let all = u64::from(CONNECTIONS) * 3;
    let change: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes[0] ^= 0x40,
        |bytes| bytes.truncate(0),
        // The last record is that of a backend.
        |bytes| bytes.truncate(bytes.len() - 5),
        |bytes| *bytes.last_mut().unwrap() ^= 1,
    ];
    for (n, change) in change.into_iter().enumerate() {
        let (restored, not_restored, _) = restart_after(|run| {
            let mut bytes = std::fs::read(run.join("identities")).unwrap();
            change(&mut bytes);
            std::fs::write(run.join("identities"), bytes).unwrap();
        });
        let damaged = not_restored[NotRestored::Damaged as usize];
        assert_eq!(restored + damaged, all, "change {n}: {not_restored:?}");
        assert!(damaged >= u64::from(CONNECTIONS), "change {n}: {not_restored:?}");
    }
}

#[test]
fn tables_of_a_wrong_length_are_counted() {
    let (restored, not_restored, refused) = restart_after(|run| {
        let table = File::options().write(true).open(run.join("0-nat-v4-entries")).unwrap();
        table.set_len(table.metadata().unwrap().len() - 64).unwrap();
    });
    assert_eq!((restored, not_restored, refused), (u64::from(CONNECTIONS), [0; 9], 1));
}

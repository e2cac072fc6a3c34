//! The names of services and backends, stored beside the flow tables. A table has only ids, which differ between
//! processes.
//!
//! The file is a list of 32-byte records. The publisher appends the new ids of a snapshot before workers use it, so
//! every id of a flow is in the file unless a write failed ([`Identities::is_whole`]). When most records are obsolete,
//! the file is rewritten. [`Seats`] records weights in a file of its own.
//!
//! Invariant: flows whose ids follow a damaged record are not restored, and count as damaged.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tidegate_pipeline::pipeline::KnownIds;
use tidegate_snapshot::Snapshot;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::{EarlierPort, Protocol, ServiceKey, owner_mark};
use tidegate_wire::Addr;

use super::record_log::{self, RecordLog, seal, unseal};
use super::seats::{self, Seats};

const RECORD: usize = 32;
const SERVICE: u8 = 1;
const BACKEND: u8 = 2;

/// The name of the file.
const FILE: &str = "identities";

/// A service port or a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    kind: u8,
    proto: u8,
    port: u16,
    id: u32,
    /// For a backend, its service. For a service, the [`owner_mark`] of its Service; 0 in files of older versions.
    of: u32,
    addr: Addr,
}

impl Record {
    fn of_service(snapshot: &Snapshot, id: ServiceId) -> Option<Self> {
        let service = snapshot.service_by_id(id)?;
        let (proto, port) = (service.protocol.number(), service.port);
        let of = snapshot.service_info(id).map_or(0, |info| owner_mark(&info.namespace, &info.name));
        Some(Self { kind: SERVICE, proto, port, id: id.raw(), of, addr: service.vip })
    }

    fn of_backend(snapshot: &Snapshot, id: BackendId) -> Option<Self> {
        let backend = snapshot.backend(id)?;
        let (of, addr) = (backend.service.raw(), backend.address);
        Some(Self { kind: BACKEND, proto: 0, port: backend.port, id: id.raw(), of, addr })
    }

    fn write(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend([self.kind, self.proto]);
        to.extend(self.port.to_le_bytes());
        to.extend(self.id.to_le_bytes());
        to.extend(self.of.to_le_bytes());
        to.extend(self.addr.bytes());
        seal(to, start);
    }

    fn read(bytes: &[u8; RECORD]) -> Option<Self> {
        let content = unseal(bytes)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let addr: [u8; 16] = content[12..].try_into().ok()?;
        let record = Self {
            kind: bytes[0],
            proto: bytes[1],
            port: u16::from_le_bytes([bytes[2], bytes[3]]),
            id: word(4),
            of: word(8),
            addr: Addr::v6(addr),
        };
        [SERVICE, BACKEND].contains(&record.kind).then_some(record)
    }
}

/// The recorded names of this process's ids, and the weights of its backends.
#[derive(Debug)]
pub(super) struct Identities {
    log: RecordLog<RECORD>,
    seats: Seats,
    /// Whether the files are complete. If not, they are rewritten with the next snapshot.
    is_whole: bool,
}

impl Identities {
    /// Creates empty files in this directory.
    pub(super) fn create(directory: &Path) -> io::Result<Self> {
        let (log, seats) = (RecordLog::create(directory.join(FILE))?, Seats::create(directory)?);
        Ok(Self { log, seats, is_whole: true })
    }

    /// Whether the files are complete.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Keeps the times of weight changes that an earlier process recorded.
    pub(super) fn continue_from(&mut self, ports: &BTreeMap<ServiceKey, EarlierPort>) {
        self.seats.continue_from(ports);
    }

    /// Records what is new since the previous snapshot; everything if an earlier write failed.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let written = if self.is_whole {
            self.add(snapshot).and_then(|()| self.seats.add(snapshot))
        } else {
            self.rewrite(snapshot).and_then(|()| self.seats.rewrite(snapshot))
        };
        self.is_whole = written.is_ok();
        written
    }

    fn add(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let fresh = snapshot.fresh();
        let mut bytes = Vec::new();
        let services = fresh.services.iter().filter_map(|&id| Record::of_service(snapshot, id));
        services.for_each(|record| record.write(&mut bytes));
        let backends = fresh.backends.iter().filter_map(|&id| Record::of_backend(snapshot, id));
        backends.for_each(|record| record.write(&mut bytes));
        let live = || snapshot.services().map(|(_, info)| 1 + info.backends.len()).sum();
        if self.log.is_too_long(bytes.len(), live) {
            return self.rewrite(snapshot);
        }
        self.log.append(&bytes)
    }

    /// Rewrites the file with only the objects of this snapshot: flows of other objects are no longer forwarded.
    fn rewrite(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (service, info) in snapshot.services() {
            Record::of_service(snapshot, service.id).into_iter().for_each(|record| record.write(&mut bytes));
            let backends = info.backends.iter().filter_map(|one| Record::of_backend(snapshot, one.id));
            backends.for_each(|record| record.write(&mut bytes));
        }
        self.log.replace(&bytes)
    }
}

/// The records of the file, and whether the file is undamaged.
fn records(directory: &Path) -> io::Result<(Vec<Record>, bool)> {
    record_log::read(&directory.join(FILE), Record::read)
}

/// The service ports of an earlier process, which ended this long ago, if known. They include backends that were being
/// removed, unless another backend has reused their index.
pub(super) fn ports(directory: &Path, ended: Option<Duration>) -> io::Result<Vec<EarlierPort>> {
    let (records, _) = records(directory)?;
    let of_kind = |kind: u8| records.iter().filter(move |record| record.kind == kind);
    // A later record of an index replaces an earlier one.
    let mut services: BTreeMap<usize, (u32, EarlierPort)> = BTreeMap::new();
    let mut newest: BTreeMap<ServiceKey, u32> = BTreeMap::new();
    for record in of_kind(SERVICE) {
        let Some(protocol) = Protocol::from_number(record.proto) else { continue };
        let key = ServiceKey { vip: record.addr.ip(), protocol, port: record.port };
        let ended = ended.unwrap_or_default();
        let port = EarlierPort { key, owner: record.of, backends: Vec::new(), seats: Vec::new(), ended };
        services.insert(ServiceId::from_raw(record.id).index(), (record.id, port));
        newest.insert(key, record.id);
    }
    // A removed Service may still have a record whose key another Service uses now.
    services.retain(|_, (id, port)| newest.get(&port.key) == Some(id));
    let backends: BTreeMap<usize, &Record> =
        of_kind(BACKEND).map(|record| (BackendId::from_raw(record.id).index(), record)).collect();
    for record in backends.values() {
        match services.get_mut(&ServiceId::from_raw(record.of).index()) {
            Some((id, port)) if *id == record.of => {
                port.backends.push(SocketAddr::new(record.addr.ip(), record.port));
            }
            _ => {}
        }
    }
    let mut ports: Vec<EarlierPort> = services.into_values().map(|(_, port)| port).collect();
    if ended.is_some() {
        seats::add_to(&mut ports, directory)?;
    }
    Ok(ports)
}

/// The ids of an earlier process, with their equivalents in a snapshot.
pub(super) fn known(directory: &Path, snapshot: &Snapshot) -> io::Result<KnownIds> {
    let (records, is_whole) = records(directory)?;
    let mut known = if is_whole { KnownIds::default() } else { KnownIds::damaged() };
    if !is_whole {
        tracing::warn!(
            path = %directory.display(), records = records.len(),
            "the file with Services and backends of an earlier process is damaged: flows of the Services and \
             backends that cannot be read are lost"
        );
    }
    // The ids with their current equivalents, by index. A later record of an index replaces an earlier one.
    let mut services: Vec<Option<(ServiceId, ServiceId)>> = Vec::new();
    for record in records.iter().filter(|record| record.kind == SERVICE) {
        let then = ServiceId::from_raw(record.id);
        let hash = Snapshot::hash_service(&record.addr, record.proto, record.port);
        let now = snapshot.service(hash, &record.addr, record.proto, record.port).map(|service| service.id);
        if services.len() <= then.index() {
            services.resize(then.index() + 1, None);
        }
        services[then.index()] = now.map(|now| (then, now));
        known.service(then, now);
    }
    for record in records.iter().filter(|record| record.kind == BACKEND) {
        let (then, of) = (BackendId::from_raw(record.id), ServiceId::from_raw(record.of));
        let service = services.get(of.index()).copied().flatten().filter(|(id, _)| *id == of);
        let backends = service.and_then(|(_, now)| snapshot.service_info(now)).map(|info| &info.backends);
        let key = (record.addr, record.port);
        // Backends are sorted by address and port.
        let found = backends.and_then(|all| {
            let at = all.binary_search_by_key(&key, |one| (one.address, one.port)).ok()?;
            Some(all[at].id)
        });
        known.backend(then, of, found);
    }
    Ok(known)
}

/// Whether the process of this directory published nothing, so that its tables are empty.
pub(super) fn is_empty(directory: &Path) -> bool {
    std::fs::metadata(directory.join(FILE)).map_or(true, |file| file.len() < RECORD as u64)
}

#[cfg(test)]
mod tests {
    use tidegate_pipeline::testing::lab;
    use tidegate_snapshot::neighbors::NeighborTable;
    use tidegate_spec::{ForwardingMode, SnapshotSpec};

    use super::*;

    fn record() -> Record {
        let addr = Addr::v4([203, 0, 113, 1]);
        Record { kind: SERVICE, proto: 6, port: 80, id: 0x00c0_0005, of: 0, addr }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_not_with_a_flipped_bit() {
        let mut bytes = Vec::new();
        record().write(&mut bytes);
        let bytes: [u8; RECORD] = bytes.try_into().expect("the length of a record");
        assert_eq!(Record::read(&bytes), Some(record()));
        for bit in 0..RECORD * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::read(&changed), None, "bit {bit}");
        }
    }

    #[test]
    fn ids_of_an_earlier_process_lead_to_the_same_objects_in_another_order() {
        let directory = tempfile::tempdir().expect("a directory");
        let service =
            |vip: &str, backends: &[&str]| lab::service(ForwardingMode::Nat, Protocol::Tcp, vip, backends);
        let compile = |services: Vec<_>| {
            let spec = SnapshotSpec { services, ..lab::spec() };
            Snapshot::compile(&spec, None, &NeighborTable::new()).expect("it compiles").0
        };
        let web = service("203.0.113.9:80", &["10.0.0.11:80", "10.0.0.12:80"]);
        let gone = service("203.0.113.1:80", &["10.0.0.11:80"]);
        let then = compile(vec![web.clone().into(), gone.into()]);
        assert!(is_empty(directory.path()));
        Identities::create(directory.path()).expect("a file").follow(&then).expect("there is space");
        assert!(!is_empty(directory.path()));
        let now = compile(vec![service("203.0.113.9:80", &["10.0.0.12:80", "10.0.0.13:80"]).into()]);
        let shown = format!("{:?}", known(directory.path(), &now).expect("a file"));
        let id = |snapshot: &Snapshot, host: &str| {
            let mut all = snapshot
                .services()
                .flat_map(|(service, info)| info.backends.iter().map(|one| (service.id, one)));
            let found = all.find(|(_, one)| one.address.to_string() == host);
            found.map(|(service, one)| (service, one.id)).expect("a backend")
        };
        let ((of, old), (service, new)) = (id(&then, "10.0.0.12"), id(&now, "10.0.0.12"));
        assert!(shown.contains(&format!("Some(({of:?}, Some({service:?})))")), "{shown}");
        assert!(shown.contains(&format!("Some(({old:?}, {of:?}, Some({new:?})))")), "{shown}");
        assert_eq!(shown.matches("None))").count(), 3, "a service and two backends are gone: {shown}");
    }

    #[test]
    fn ids_that_could_not_be_written_are_written_with_the_next_snapshot() {
        let directory = tempfile::tempdir().expect("a directory");
        let compile = |backends: &[&str], previous: Option<&Snapshot>| {
            let service = lab::service(ForwardingMode::Nat, Protocol::Tcp, "203.0.113.9:80", backends);
            let spec = SnapshotSpec { services: vec![service.into()], ..lab::spec() };
            Snapshot::compile(&spec, previous, &NeighborTable::new()).expect("it compiles").0
        };
        let backends = || {
            let ports = ports(directory.path(), None).expect("a file");
            ports.iter().map(|port| port.backends.len()).sum::<usize>()
        };
        let mut file = Identities::create(directory.path()).expect("a file");
        let first = compile(&["10.0.0.11:80"], None);
        file.follow(&first).expect("there is space");
        let second = compile(&["10.0.0.11:80", "10.0.0.12:80"], Some(&first));
        // As on a full file system.
        file.log.break_off();
        let beside = directory.path().join(FILE).with_extension("new");
        std::fs::create_dir(&beside).expect("ours");
        file.follow(&second).expect_err("it cannot be written");
        assert!(!file.is_whole() && backends() == 1);
        let third = compile(&["10.0.0.11:80", "10.0.0.12:80", "10.0.0.13:80"], Some(&second));
        file.follow(&third).expect_err("nor rewritten");
        std::fs::remove_dir(&beside).expect("ours");
        assert!(!file.is_whole() && backends() == 1);
        file.follow(&third).expect("there is space");
        assert!(file.is_whole() && backends() == 3);
        let all = ["10.0.0.11:80", "10.0.0.12:80", "10.0.0.13:80", "10.0.0.14:80"];
        let fourth = compile(&all, Some(&third));
        file.follow(&fourth).expect("there is space");
        assert_eq!(backends(), 4, "new records are appended");
    }

    #[test]
    fn the_next_process_reads_backends_except_those_whose_index_was_reused() {
        let directory = tempfile::tempdir().expect("a directory");
        let service =
            |backends: &[&str]| lab::service(ForwardingMode::Nat, Protocol::Tcp, "203.0.113.9:80", backends);
        let compile = |backends: &[&str], previous: Option<&Snapshot>| {
            let spec = SnapshotSpec { services: vec![service(backends).into()], ..lab::spec() };
            Snapshot::compile(&spec, previous, &NeighborTable::new()).expect("it compiles").0
        };
        let mut file = Identities::create(directory.path()).expect("a file");
        let first = compile(&["10.0.0.11:80", "10.0.0.12:80"], None);
        file.follow(&first).expect("there is space");
        let second = compile(&["10.0.0.12:80"], Some(&first));
        file.follow(&second).expect("there is space");
        let third = compile(&["10.0.0.12:80", "10.0.0.13:80"], Some(&second));
        file.follow(&third).expect("there is space");
        let [port] = &*ports(directory.path(), None).expect("a file") else { panic!("one service port") };
        let (spec, mut backends) = (service(&[]), port.backends.clone());
        backends.sort_unstable();
        assert_eq!((port.key, port.owner), (spec.key, owner_mark(&spec.namespace, &spec.name)));
        assert_eq!(backends, ["10.0.0.12:80", "10.0.0.13:80"].map(|one| one.parse().expect("an address")));
    }
}

//! The weights of backends, stored beside the flow tables, for Services that follow their seats (`docs/selection.md`,
//! "Flows in flux"). The next process compares them with the current weights to find the flows whose seats had another
//! owner.
//!
//! Invariant: weights are recorded before workers get the snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use imbl::Vector;
use tidegate_snapshot::Snapshot;
use tidegate_spec::{
    BackendState, EarlierPort, EarlierWeight, FlowTracking, Protocol, ServiceKey, ServiceSpec, SharedService,
    owner_mark,
};

use super::boot_clock::kernel_ms;
use super::record_log::{RecordLog, read, seal, unseal};

/// VIP, protocol, a zero, port; owner mark of the Service; backend address and port; weight, former weight; time;
/// checksum.
const RECORD: usize = 16 + 1 + 1 + 2 + 4 + 16 + 2 + 2 + 2 + 4 + 4;
/// The name of the file.
const FILE: &str = "seats";

/// The current weight of each backend, and its weight before a recent change.
type Weights = BTreeMap<SocketAddr, (u16, u16)>;
/// When the weights of backends changed, by [`kernel_ms`]. Backends without an entry have not changed recently.
type Changes = BTreeMap<SocketAddr, u32>;

/// The weights of a service port; empty if its Service doesn't follow its seats.
fn weights(service: &ServiceSpec) -> Weights {
    let (FlowTracking::OnChange(moved) | FlowTracking::AlwaysAfter(moved)) = &service.flow_tracking else {
        return Weights::new();
    };
    let takers = service.backends.iter().filter(|one| one.state == BackendState::Active && one.weight > 0);
    let mut all: Weights =
        takers.map(|one| (SocketAddr::new(one.address, one.port), (one.weight, one.weight))).collect();
    for one in moved.iter() {
        all.entry(SocketAddr::new(one.address, one.port)).or_default().1 = one.weight;
    }
    all
}

/// A record. The last record of a backend and port applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    key: ServiceKey,
    owner: u32,
    backend: SocketAddr,
    weight: u16,
    former: u16,
    /// When the weight changed, by [`kernel_ms`].
    changed: u32,
}

impl Record {
    fn write(&self, to: &mut Vec<u8>) {
        let start = to.len();
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        to.extend(address(self.key.vip));
        to.extend([self.key.protocol.number(), 0]);
        to.extend(self.key.port.to_le_bytes());
        to.extend(self.owner.to_le_bytes());
        to.extend(address(self.backend.ip()));
        for word in [self.backend.port(), self.weight, self.former] {
            to.extend(word.to_le_bytes());
        }
        to.extend(self.changed.to_le_bytes());
        seal(to, start);
    }

    fn read(record: &[u8; RECORD]) -> Option<Self> {
        let content = unseal(record)?;
        let (vip, rest) = content.split_first_chunk::<16>()?;
        let ([protocol, _, port @ ..], rest) = rest.split_first_chunk::<4>()?;
        let (owner, rest) = rest.split_first_chunk::<4>()?;
        let (backend, rest) = rest.split_first_chunk::<16>()?;
        let (words, changed) = rest.split_first_chunk::<6>()?;
        let [of_backend, weight, former] = words.as_chunks::<2>().0 else { return None };
        let address = |bytes: &[u8; 16]| Ipv6Addr::from(*bytes).to_canonical();
        let word = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes);
        let protocol = Protocol::from_number(*protocol)?;
        Some(Self {
            key: ServiceKey { vip: address(vip), protocol, port: word(port) },
            owner: u32::from_le_bytes(*owner),
            backend: SocketAddr::new(address(backend), word(of_backend)),
            weight: word(weight),
            former: word(former),
            changed: u32::from_le_bytes(changed.try_into().ok()?),
        })
    }

    /// The change as seen at `now`, by [`kernel_ms`].
    fn seat(&self, now: u32) -> EarlierWeight {
        let &Self { backend, weight, former, .. } = self;
        EarlierWeight {
            backend,
            weight,
            former,
            ago: Duration::from_millis(now.wrapping_sub(self.changed).into()),
        }
    }
}

/// The weights of this process's backends.
#[derive(Debug)]
pub(super) struct Seats {
    log: RecordLog<RECORD>,
    /// The service ports of the last snapshot.
    last: Vector<SharedService>,
    /// The service ports whose weights are recorded.
    recorded: BTreeMap<ServiceKey, Recorded>,
}

/// The weights of a service port.
#[derive(Debug)]
struct Recorded {
    /// [`owner_mark`] of the Service.
    owner: u32,
    weights: Weights,
    changes: Changes,
    by: Recorder,
}

/// The process that recorded the weights.
#[derive(Debug)]
enum Recorder {
    /// This process, for this service port.
    Own(SharedService),
    /// An earlier process, which ended at this time by [`kernel_ms`]. The weights are not in this process's file.
    Earlier(u32),
}

impl Recorded {
    /// The weights of a service port, and when they changed. A weight that differs from the record `before` has changed
    /// now, or after the process that recorded it ended.
    fn new(service: &SharedService, before: Option<&Self>) -> Self {
        let owner = owner_mark(&service.namespace, &service.name);
        let before = before.filter(|before| before.owner == owner);
        let latest = match before.map(|before| &before.by) {
            Some(Recorder::Earlier(ended)) => *ended,
            Some(Recorder::Own(_)) | None => kernel_ms(),
        };
        let weights = weights(service);
        let moved = weights.iter().filter(|(_, (weight, former))| weight != former);
        let changed = |(backend, (weight, _)): (&SocketAddr, &(u16, u16))| {
            let known = before.and_then(|before| {
                let (was, _) = before.weights.get(backend).copied().unwrap_or_default();
                before.changes.get(backend).copied().filter(|_| was == *weight)
            });
            (*backend, known.unwrap_or(latest))
        };
        let changes = moved.map(changed).collect();
        Self { owner, weights, changes, by: Recorder::Own(service.clone()) }
    }

    /// Whether this process has recorded this service port unchanged.
    fn is_of(&self, service: &SharedService) -> bool {
        matches!(&self.by, Recorder::Own(own) if own.is_same(service))
    }

    /// Appends the differences from the record `before`: new weights, and zeros for removed backends.
    fn append(&self, key: ServiceKey, before: Option<&Self>, bytes: &mut Vec<u8>) {
        let in_file = before.filter(|before| matches!(before.by, Recorder::Own(_)));
        if in_file.is_some_and(|before| (before.owner, &before.weights) == (self.owner, &self.weights)) {
            return;
        }
        let former = in_file.into_iter().flat_map(|before| before.weights.keys());
        let backends: BTreeSet<&SocketAddr> = former.chain(self.weights.keys()).collect();
        for backend in backends {
            let (weight, former) = self.weights.get(backend).copied().unwrap_or_default();
            let changed = self.changes.get(backend).copied().unwrap_or_default();
            Record { key, owner: self.owner, backend: *backend, weight, former, changed }.write(bytes);
        }
    }
}

impl Seats {
    /// Creates an empty file in this directory.
    pub(super) fn create(directory: &Path) -> io::Result<Self> {
        let log = RecordLog::create(directory.join(FILE))?;
        Ok(Self { log, last: Vector::default(), recorded: BTreeMap::new() })
    }

    /// Keeps the times of weight changes that an earlier process recorded.
    pub(super) fn continue_from(&mut self, ports: &BTreeMap<ServiceKey, EarlierPort>) {
        let now = kernel_ms();
        // Truncation is intended: only differences matter.
        let then = |ago: Duration| now.wrapping_sub(ago.as_millis() as u32);
        for (key, port) in ports.iter().filter(|(_, port)| !port.seats.is_empty()) {
            let (owner, by) = (port.owner, Recorder::Earlier(then(port.ended)));
            let weights = port.seats.iter().map(|seat| (seat.backend, (seat.weight, seat.former))).collect();
            let moved = port.seats.iter().filter(|seat| seat.weight != seat.former);
            let changes = moved.map(|seat| (seat.backend, then(seat.ago))).collect();
            self.recorded.insert(*key, Recorded { owner, weights, changes, by });
        }
    }

    /// Records the weights that have changed.
    pub(super) fn add(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let (mut bytes, mut changed) = (Vec::new(), Vec::new());
        for (at, service) in snapshot.specs().iter().enumerate() {
            let before = self.recorded.get(&service.key);
            let is_known = self.last.get(at).is_some_and(|last| last.is_same(service));
            if is_known || before.is_some_and(|before| before.is_of(service)) {
                continue;
            }
            let (new, length) = (Recorded::new(service, before), bytes.len());
            new.append(service.key, before, &mut bytes);
            if bytes.len() > length {
                changed.push((service.key, new));
            }
        }
        if !bytes.is_empty() {
            if self.log.is_too_long(bytes.len(), || count(snapshot)) {
                return self.rewrite(snapshot);
            }
            self.log.append(&bytes)?;
            self.recorded.extend(changed);
        }
        self.last = snapshot.specs().clone();
        Ok(())
    }

    /// Rewrites the file.
    pub(super) fn rewrite(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let (mut bytes, mut recorded) = (Vec::new(), Vec::new());
        for service in snapshot.specs().iter() {
            let new = Recorded::new(service, self.recorded.get(&service.key));
            new.append(service.key, None, &mut bytes);
            if !new.weights.is_empty() {
                recorded.push((service.key, new));
            }
        }
        self.log.replace(&bytes)?;
        // Keep ports of the earlier process: snapshots to come may contain them.
        self.recorded.retain(|_, one| matches!(one.by, Recorder::Earlier(_)));
        self.recorded.extend(recorded);
        self.last = snapshot.specs().clone();
        Ok(())
    }
}

/// The maximum number of records that the file needs.
fn count(snapshot: &Snapshot) -> usize {
    let most = |service: &SharedService| match &service.flow_tracking {
        FlowTracking::Always => 0,
        FlowTracking::OnChange(moved) | FlowTracking::AlwaysAfter(moved) => {
            service.backends.len() + moved.len()
        }
    };
    snapshot.specs().iter().map(most).sum()
}

/// Adds the weights that an earlier process recorded to its service ports, except ports that belonged to another
/// Service.
pub(super) fn add_to(ports: &mut [EarlierPort], directory: &Path) -> io::Result<()> {
    let (records, _) = match read(&directory.join(FILE), Record::read) {
        // Older versions have no such file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read?,
    };
    let mut last: BTreeMap<ServiceKey, BTreeMap<SocketAddr, Record>> = BTreeMap::new();
    for record in records {
        last.entry(record.key).or_default().insert(record.backend, record);
    }
    let now = kernel_ms();
    for port in ports {
        let records = last.remove(&port.key).into_iter().flat_map(BTreeMap::into_values);
        let of_owner = records.filter(|record| record.owner == port.owner);
        let seats = of_owner.map(|record| record.seat(now));
        port.seats = seats.filter(|seat| (seat.weight, seat.former) != (0, 0)).collect();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_pipeline::testing::lab;
    use tidegate_snapshot::neighbors::NeighborTable;
    use tidegate_spec::{FormerWeight, ForwardingMode, SnapshotSpec};

    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_not_with_a_flipped_bit() {
        let key = ServiceKey { vip: "2001:db8::1".parse().unwrap(), protocol: Protocol::Udp, port: 53 };
        let backend = "10.0.0.1:5353".parse().unwrap();
        let record = Record { key, owner: 0xdead_beef, backend, weight: 7, former: 3, changed: 0xffff_0001 };
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        let bytes: [u8; RECORD] = bytes.try_into().expect("the length of a record");
        assert_eq!(Record::read(&bytes), Some(record));
        assert_eq!(record.seat(0x0000_0001).ago, Duration::from_millis(0x1_0000), "the clock may wrap");
        for bit in 0..RECORD * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::read(&changed), None, "bit {bit}");
        }
    }

    fn service(name: &str, backends: &[&str], moved: Option<&[(&str, u16)]>) -> ServiceSpec {
        let mut service = lab::service(ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.9:80", backends);
        service.name = name.into();
        if let Some(moved) = moved {
            let former = moved.iter().map(|&(backend, weight)| {
                let backend: SocketAddr = backend.parse().expect("an address");
                FormerWeight { address: backend.ip(), port: backend.port(), weight }
            });
            service.flow_tracking = FlowTracking::OnChange(Arc::from_iter(former));
        }
        service
    }

    #[test]
    fn the_next_process_reads_the_last_weights_of_services_that_follow_seats() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut seats = Seats::create(directory.path()).expect("a file");
        let mut previous = None;
        let mut stored = |service: ServiceSpec, is_rewritten: bool| {
            let key = service.key;
            let spec = SnapshotSpec { services: vec![service.into()], ..lab::spec() };
            let snapshot =
                Snapshot::compile(&spec, previous.as_ref(), &NeighborTable::new()).expect("it compiles").0;
            let written = if is_rewritten { seats.rewrite(&snapshot) } else { seats.add(&snapshot) };
            written.expect("there is space");
            previous = Some(snapshot);
            let owner = owner_mark("default", "web");
            let mut ports =
                [EarlierPort { key, owner, backends: Vec::new(), seats: Vec::new(), ended: Duration::ZERO }];
            add_to(&mut ports, directory.path()).expect("a file");
            let seats = std::mem::take(&mut ports[0].seats).into_iter();
            seats.map(|one| (one.backend.to_string(), one.weight, one.former)).collect::<Vec<_>>()
        };
        let (one, two) = ("10.0.0.11:80", "10.0.0.12:80");
        let seat = |backend: &str, weight, former| (backend.to_owned(), weight, former);
        assert_eq!(stored(service("web", &[one, two], None), false), []);
        assert_eq!(stored(service("web", &[one, two], Some(&[])), false), [seat(one, 1, 1), seat(two, 1, 1)]);
        let moved: &[_] = &[(one, 1), (two, 0)];
        assert_eq!(stored(service("web", &[two], Some(moved)), false), [seat(one, 0, 1), seat(two, 1, 0)]);
        assert_eq!(stored(service("web", &[two], Some(moved)), true), [seat(one, 0, 1), seat(two, 1, 0)]);
        assert_eq!(stored(service("web", &[two], Some(&[])), false), [seat(two, 1, 1)], "the window is over");
        assert_eq!(
            stored(service("other", &[two], Some(&[])), false),
            [],
            "the port belongs to another Service"
        );
        assert_eq!(stored(service("web", &[two], None), false), [], "it no longer follows its seats");
    }

    #[test]
    fn a_change_keeps_its_time_from_process_to_process() {
        let service = service("web", &["10.0.0.11:80"], Some(&[("10.0.0.11:80", 0), ("10.0.0.12:80", 1)]));
        let seat = |host: u8, weight, former, ago| EarlierWeight {
            backend: SocketAddr::from(([10, 0, 0, host], 80)),
            weight,
            former,
            ago: Duration::from_secs(ago),
        };
        let port = EarlierPort {
            key: service.key,
            owner: owner_mark(&service.namespace, &service.name),
            backends: Vec::new(),
            // 11 was added before the process ended, and 12 was removed afterwards.
            seats: vec![seat(11, 1, 0, 90), seat(12, 1, 1, 0)],
            ended: Duration::from_secs(20),
        };
        let spec = SnapshotSpec { services: vec![service.into()], ..lab::spec() };
        let snapshot = Snapshot::compile(&spec, None, &NeighborTable::new()).expect("it compiles").0;
        for is_rewritten in [false, true] {
            let directory = tempfile::tempdir().expect("a directory");
            let mut seats = Seats::create(directory.path()).expect("a file");
            seats.continue_from(&[(port.key, port.clone())].into());
            let written = if is_rewritten { seats.rewrite(&snapshot) } else { seats.add(&snapshot) };
            written.expect("there is space");
            let mut ports = [EarlierPort { seats: Vec::new(), ..port.clone() }];
            add_to(&mut ports, directory.path()).expect("a file");
            let [first, second] = &*ports[0].seats else { panic!("two seats: {:?}", ports[0].seats) };
            assert!((90..100).contains(&first.ago.as_secs()), "{first:?}");
            assert!((20..30).contains(&second.ago.as_secs()), "{second:?}");
        }
    }
}

//! Whether each interface can carry frames: the link of its port, and its tap in the kernel.
//!
//! Any thread may read the table [`Links`]; the watching thread ([`watch`]) and the slow path write it. A change of
//! state is logged here once, counted, and reported to the callback ([`Links::on_change`]).
//!
//! Invariant: a worker never reads this; workers are informed through their [`crate::drivers::gate`].

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tidegate_events::{Event, Field, ObjectKind, Reason};
use tidegate_spec::ids::InterfaceIndex;
use tidegate_wire::MacAddr;

use crate::neighbors::faults::NeighborFault;

pub mod device_state;
pub mod kernel;
pub mod lock;
pub mod namespaces;
mod port;
mod watch;

pub(crate) use port::{Device, OtherName, PortResources, Stage, WatchedPort, open_port, silence};
pub(crate) use watch::{WatchThread, Watched};

tidegate_wire::named! {
    /// The state of a port or a tap.
    pub enum LinkState {
        /// Frames pass.
        Up => "up",
        /// The device is administratively down.
        Down => "down",
        /// The device is up but has no carrier.
        NoCarrier => "no-carrier",
        /// The device doesn't exist.
        Gone => "gone",
    }
}

impl LinkState {
    /// The state as the predicate of a sentence about the device.
    #[must_use]
    pub fn predicate(self) -> &'static str {
        match self {
            Self::Up => "is up",
            Self::Down => "is down",
            Self::NoCarrier => "has no carrier",
            Self::Gone => "is gone",
        }
    }
}

/// A state, when it started, and the number of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkStatus {
    /// The current state.
    pub state: LinkState,
    /// When the state started.
    pub since: SystemTime,
    /// How often the state has changed since the start.
    pub transitions: u64,
}

/// How long [`Links::recreated_taps`] reports a tap.
const RECREATED_SHOWN: Duration = Duration::from_secs(600);

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceLink {
    /// Its name in the configuration.
    pub name: String,
    /// The state of the port's device.
    pub port: LinkStatus,
    /// The tap: its name and state; `None` without taps.
    pub tap: Option<(String, LinkStatus)>,
    /// Why reopening a port whose device was gone failed last time.
    pub fault: Option<String>,
    /// Set if the MTU of the device is smaller than the one in use and could not be restored.
    pub short_mtu: Option<ShortMtu>,
    /// Set if the MAC address of the device is not the one in use and could not be restored.
    pub other_mac: Option<OtherMac>,
    /// Set if the device was renamed in the kernel but is still in use.
    pub renamed: Option<Renamed>,
    /// How often another program has changed the MAC address of the device since the start.
    pub mac_changes: u64,
    /// When the tap was last recreated because another program had deleted it.
    pub tap_recreated: Option<(Instant, SystemTime)>,
}

/// A device with a smaller MTU than the gateway uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortMtu {
    /// The MTU of the device, in bytes.
    pub device: u32,
    /// The MTU in use, in bytes: `dataplane.interfaces[].mtu`, or the device's own at the start.
    pub used: u16,
    /// When it was first observed.
    pub since: SystemTime,
}

/// A device with another MAC address than the gateway uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherMac {
    /// The address of the device.
    pub device: MacAddr,
    /// The address in use: `dataplane.interfaces[].mac`, or the device's own at the start.
    pub used: MacAddr,
    /// When it was first observed.
    pub since: SystemTime,
}

/// A device whose name in the kernel differs from the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    /// The name in `dataplane.interfaces[].device`.
    pub from: String,
    /// The current name.
    pub to: String,
    /// When it was first observed.
    pub since: SystemTime,
}

impl InterfaceLink {
    /// The reasons why this interface can't carry frames, each with its start; empty if it can.
    pub fn faults(&self) -> impl Iterator<Item = (String, SystemTime)> + '_ {
        let is_down = |status: &LinkStatus| status.state != LinkState::Up;
        let port = Some(&self.port).filter(|port| is_down(port)).map(|port| {
            let fault = self.fault.as_ref().map(|fault| format!(": {fault}")).unwrap_or_default();
            (format!("interface {:?} {}{fault}", self.name, port.state.predicate()), port.since)
        });
        let tap = self.tap.as_ref().filter(|(_, tap)| is_down(tap)).map(|(name, tap)| {
            let (interface, state) = (&self.name, tap.state.predicate());
            (format!("tap {name} of interface {interface:?} {state}"), tap.since)
        });
        let short = self.short_mtu.map(|ShortMtu { device, used, since }| {
            let name = &self.name;
            let lost = format!(
                "the device of interface {name:?} has an MTU of {device}, but the gateway uses {used}: packets of \
                 more than {device} bytes are lost"
            );
            (lost, since)
        });
        let other = self.other_mac.map(|OtherMac { device, used, since }| {
            let name = &self.name;
            let lost = format!(
                "the device of interface {name:?} has the MAC address {device}, but the gateway uses {used}: frames \
                 to the gateway may be lost until the device has {used} again or the gateway is restarted"
            );
            (lost, since)
        });
        port.into_iter().chain(tap).chain(short).chain(other)
    }
}

/// The latest report of an open port's driver, at most a second or two old.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortReport {
    /// The speed of the link in megabits per second, if known.
    pub mbps: Option<u32>,
    /// Its counters by name, at most [`dpdk::EXTENDED_STATS_MAX`]. They start at 0 when the port is opened.
    pub stats: Vec<(String, u64)>,
}

/// Called when a state has changed, on the thread that detected the change.
pub type OnChange = Box<dyn Fn() + Send + Sync>;

/// The table of interfaces.
#[derive(Default)]
pub struct Links {
    table: Mutex<Vec<InterfaceLink>>,
    /// Indexed by interface.
    reports: Mutex<Vec<PortReport>>,
    /// Why the routes of the taps can't be changed, and since when.
    route_fault: Mutex<Option<(String, SystemTime)>>,
    /// Contradictions between the configuration and stations on the links.
    neighbor_faults: Mutex<Vec<NeighborFault>>,
    wants: Vec<Wants>,
    on_change: OnceLock<OnChange>,
}

/// Pending slow-path tasks for an interface that is up again.
#[derive(Debug, Default)]
struct Wants {
    /// Announce our addresses and request the neighbours again.
    announce: AtomicBool,
    /// Restore the addresses and routes of the tap.
    tap: AtomicBool,
}

impl Links {
    /// A table of these interfaces, all up and without taps.
    #[must_use]
    pub fn new<'a>(interfaces: impl IntoIterator<Item = &'a str>) -> Self {
        let up = LinkStatus { state: LinkState::Up, since: SystemTime::now(), transitions: 0 };
        let link = |name: &str| {
            let name = name.to_owned();
            InterfaceLink {
                name,
                port: up,
                tap: None,
                fault: None,
                short_mtu: None,
                other_mac: None,
                renamed: None,
                tap_recreated: None,
                mac_changes: 0,
            }
        };
        let table: Vec<_> = interfaces.into_iter().map(link).collect();
        let wants = table.iter().map(|_| Wants::default()).collect();
        let reports = Mutex::new(vec![PortReport::default(); table.len()]);
        let route_fault = Mutex::default();
        let (table, neighbor_faults, on_change) = (Mutex::new(table), Mutex::default(), OnceLock::new());
        Self { table, reports, route_fault, neighbor_faults, wants, on_change }
    }

    /// Sets the callback for changes. Only the first call has an effect.
    pub fn on_change(&self, notify: OnChange) {
        drop(self.on_change.set(notify));
    }

    /// A copy of the table, indexed by interface.
    #[must_use]
    pub fn report(&self) -> Vec<InterfaceLink> {
        self.table().clone()
    }

    /// The reasons why interfaces can't carry frames, each with its start.
    #[must_use]
    pub fn faults(&self) -> Vec<(String, SystemTime)> {
        self.table().iter().flat_map(|link| link.faults().collect::<Vec<_>>()).collect()
    }

    /// The devices that were renamed in the kernel, each with the time. Frames still pass, so [`Links::faults`]
    /// doesn't include them.
    #[must_use]
    pub fn renamed(&self) -> Vec<(String, SystemTime)> {
        let describe = |link: &InterfaceLink| {
            let Renamed { from, to, since } = link.renamed.as_ref()?;
            let what = format!(
                "interface {:?}: the device was renamed to {to}. Packets still pass, but the gateway cannot start \
                 again until the device is renamed back to {from} or dataplane.interfaces[].device has the new name",
                link.name
            );
            Some((what, *since))
        };
        self.table().iter().filter_map(describe).collect()
    }

    /// The taps that another program deleted recently, each with the time. The gateway has recreated them, so
    /// [`Links::faults`] doesn't include them, but programs that were bound to them have lost their sockets.
    #[must_use]
    pub fn recreated_taps(&self) -> Vec<(String, SystemTime)> {
        let describe = |link: &InterfaceLink| {
            let (_, since) = link.tap_recreated.filter(|(at, _)| at.elapsed() < RECREATED_SHOWN)?;
            let (tap, _) = link.tap.as_ref()?;
            let what = format!(
                "tap {tap} of interface {:?} was deleted by another program and recreated: programs that use it, such as \
                 keepalived or a BGP daemon, must be restarted",
                link.name
            );
            Some((what, since))
        };
        self.table().iter().filter_map(describe).collect()
    }

    /// The latest reports of the drivers, indexed by interface.
    #[must_use]
    pub fn port_reports(&self) -> Vec<PortReport> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the kernel's routes through the taps can't be changed, and since when. Frames still pass, so
    /// [`Links::faults`] doesn't include it.
    #[must_use]
    pub fn route_fault(&self) -> Option<(String, SystemTime)> {
        let fault = self.route_fault.lock().unwrap_or_else(PoisonError::into_inner);
        let describe = |(why, since): &(String, SystemTime)| {
            let what = format!(
                "the gateway cannot change the kernel's routes through its taps, so its health checks may take \
                 another path than forwarded packets; the gateway retries every second: {why}"
            );
            (what, *since)
        };
        fault.as_ref().map(describe)
    }

    /// Records why the kernel's routes through the taps can't be changed; `None` if they can.
    pub(crate) fn set_route_fault(&self, why: Option<&str>) {
        let mut fault = self.route_fault.lock().unwrap_or_else(PoisonError::into_inner);
        if fault.as_ref().map(|(last, _)| last.as_str()) == why {
            return;
        }
        match why {
            Some(why) => {
                tracing::warn!(
                    why,
                    "cannot change the kernel's routes through the taps: the gateway retries"
                );
            }
            None => tracing::info!("the kernel's routes through the taps can be changed again"),
        }
        let since = fault.as_ref().map_or_else(SystemTime::now, |(_, since)| *since);
        *fault = why.map(|why| (why.to_owned(), since));
    }

    /// Contradictions between the configuration and stations on the links, some seconds old.
    #[must_use]
    pub fn neighbor_faults(&self) -> Vec<NeighborFault> {
        self.neighbor_faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the contradictions between the configuration and stations on the links.
    pub(crate) fn set_neighbor_faults(&self, faults: Vec<NeighborFault>) {
        *self.neighbor_faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// Records the report of this interface's driver.
    pub(crate) fn set_port_report(&self, interface: usize, report: PortReport) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = reports.get_mut(interface) {
            *last = report;
        }
    }

    /// Records the tap of this interface, which is up.
    pub(crate) fn has_tap(&self, interface: usize, name: &str) {
        if let Some(link) = self.table().get_mut(interface) {
            let up = LinkStatus { state: LinkState::Up, since: SystemTime::now(), transitions: 0 };
            link.tap = Some((name.to_owned(), up));
        }
    }

    /// Sets the state of this interface's port. `fault` is the reason why it could not be reopened.
    pub(crate) fn set_port(&self, interface: usize, state: LinkState, fault: Option<String>) {
        let mut table = self.table();
        let Some(link) = table.get_mut(interface) else { return };
        let is_new = fault != link.fault;
        if let Some(fault) = fault.as_ref().filter(|_| is_new) {
            tracing::warn!(interface = link.name, %fault, "cannot reopen the port yet: the gateway retries");
        }
        link.fault = fault;
        let name = link.name.clone();
        if !change(&mut link.port, state) {
            return;
        }
        drop(table);
        let (reason, message) = match state {
            LinkState::Up => (Reason::LinkUp, "link up"),
            _ => (Reason::LinkDown, "link lost: the gateway is not ready"),
        };
        let event = Event::new(reason, ObjectKind::Interface, &name, message);
        tidegate_events::record(event.text(Field::State, state.to_string()));
        if state == LinkState::Up
            && let Some(wants) = self.wants.get(interface)
        {
            wants.announce.store(true, Ordering::Release);
        }
        self.notify();
    }

    /// Records that the MTU of this interface's device (first) is smaller than the one in use (second); `None` if it
    /// isn't.
    pub(crate) fn set_short_mtu(&self, interface: usize, short: Option<(u32, u16)>) {
        let mut table = self.table();
        let Some(link) = table.get_mut(interface) else { return };
        if link.short_mtu.map(|short| (short.device, short.used)) == short {
            return;
        }
        let name = link.name.clone();
        let since = link.short_mtu.map_or_else(SystemTime::now, |short| short.since);
        link.short_mtu = short.map(|(device, used)| ShortMtu { device, used, since });
        drop(table);
        match short {
            Some((device, used)) => tracing::warn!(
                interface = name,
                device,
                used,
                "the MTU of the device is smaller than the gateway's MTU, so larger packets are lost: the gateway is \
                 not ready"
            ),
            None => tracing::info!(interface = name, "the MTU of the device is large enough again"),
        }
        self.notify();
    }

    /// Logs that the MTU of this interface's device was smaller than the one in use, and was restored.
    pub(crate) fn mtu_restored(&self, interface: usize, from: u32, to: u16) {
        let name = self.table().get(interface).map(|link| link.name.clone());
        tracing::warn!(
            interface = name,
            from,
            to,
            "the MTU of the device was too small, so the gateway restored it"
        );
    }

    /// Records that the MAC address of this interface's device (first) is not the one in use (second); `None` if it is.
    pub(crate) fn set_other_mac(&self, interface: usize, other: Option<(MacAddr, MacAddr)>) {
        let mut table = self.table();
        let Some(link) = table.get_mut(interface) else { return };
        if link.other_mac.map(|other| (other.device, other.used)) == other {
            return;
        }
        let name = link.name.clone();
        let since = link.other_mac.map_or_else(SystemTime::now, |other| other.since);
        link.other_mac = other.map(|(device, used)| OtherMac { device, used, since });
        link.mac_changes += u64::from(other.is_some());
        drop(table);
        match other {
            Some((device, used)) => tracing::warn!(
                interface = name,
                %device,
                %used,
                "the MAC address of the device differs from the gateway's, so frames may be lost: the gateway is not \
                 ready"
            ),
            None => tracing::info!(interface = name, "the device has the MAC address of the gateway again"),
        }
        self.notify();
    }

    /// Records that this interface's device has another name in the kernel (second) than in the configuration (first);
    /// `None` if it hasn't.
    pub(crate) fn set_renamed(&self, interface: usize, renamed: Option<(&str, &str)>) {
        let mut table = self.table();
        let Some(link) = table.get_mut(interface) else { return };
        if link.renamed.as_ref().map(|last| (last.from.as_str(), last.to.as_str())) == renamed {
            return;
        }
        let name = link.name.clone();
        let since = link.renamed.as_ref().map_or_else(SystemTime::now, |last| last.since);
        link.renamed = renamed.map(|(from, to)| Renamed { from: from.to_owned(), to: to.to_owned(), since });
        drop(table);
        match renamed {
            Some((from, to)) => tracing::warn!(
                interface = name,
                from,
                to,
                "the device was renamed. It stays in use, but the gateway cannot start again until the device has its \
                 former name or dataplane.interfaces[].device has the new name"
            ),
            None => tracing::info!(interface = name, "the device has its configured name again"),
        }
    }

    /// Counts and logs that the MAC address of this interface's device was not the one in use, and was restored.
    pub(crate) fn mac_restored(&self, interface: usize, from: MacAddr, to: MacAddr) {
        let mut table = self.table();
        let Some(link) = table.get_mut(interface) else { return };
        link.mac_changes += 1;
        let name = link.name.clone();
        drop(table);
        tracing::warn!(interface = name, %from, %to, "the MAC address of the device was changed: restored");
    }

    /// Sets the state of this interface's tap.
    pub(crate) fn set_tap(&self, interface: usize, state: LinkState) {
        let mut table = self.table();
        let Some(link) = table.get_mut(interface) else { return };
        let name = link.name.clone();
        let Some((tap, status)) = &mut link.tap else { return };
        let tap = tap.clone();
        if !change(status, state) {
            return;
        }
        drop(table);
        let (reason, message) = match state {
            LinkState::Up => (Reason::TapUp, "tap up"),
            _ => (Reason::TapDown, "tap lost: the gateway is not ready"),
        };
        let event = Event::new(reason, ObjectKind::Interface, &name, message);
        tidegate_events::record(event.text(Field::Tap, tap).text(Field::State, state.to_string()));
        if state == LinkState::Up
            && let Some(wants) = self.wants.get(interface)
        {
            wants.tap.store(true, Ordering::Release);
        }
        self.notify();
    }

    /// Records that another program deleted the tap of this interface and that it was recreated.
    pub(crate) fn note_recreated(&self, interface: usize) {
        let mut table = self.table();
        let Some(link) = table.get_mut(interface) else { return };
        link.tap_recreated = Some((Instant::now(), SystemTime::now()));
        let name = link.name.clone();
        drop(table);
        tracing::warn!(
            interface = name,
            "the tap was deleted by another program and recreated: programs that use it must be restarted"
        );
    }

    /// Whether this interface's link has come up since the previous call.
    pub(crate) fn wants_announcement(&self, interface: InterfaceIndex) -> bool {
        self.wants.get(usize::from(interface)).is_some_and(|wants| take(&wants.announce))
    }

    /// Whether this interface's tap has come up since the previous call.
    pub(crate) fn wants_tap(&self, interface: InterfaceIndex) -> bool {
        self.wants.get(usize::from(interface)).is_some_and(|wants| take(&wants.tap))
    }

    fn notify(&self) {
        if let Some(notify) = self.on_change.get() {
            notify();
        }
    }

    fn table(&self) -> MutexGuard<'_, Vec<InterfaceLink>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Links").field(&*self.table()).finish()
    }
}

/// Changes the state. Returns whether it was different.
fn change(status: &mut LinkStatus, state: LinkState) -> bool {
    if status.state == state {
        return false;
    }
    *status = LinkStatus { state, since: SystemTime::now(), transitions: status.transitions + 1 };
    true
}

/// Clears a flag and returns whether it was set. Costs one load if it isn't.
fn take(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::AcqRel)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_smaller_mtu_is_reported_until_it_is_large_enough() {
        let links = Links::new(["uplink"]);
        links.set_short_mtu(0, Some((1400, 1500)));
        let since = links.report()[0].short_mtu.map(|short| short.since);
        links.set_short_mtu(0, Some((1300, 1500)));
        let (fault, time) = links.faults().remove(0);
        assert!(fault.contains("1300") && fault.contains("1500") && Some(time) == since, "{fault}");
        links.set_short_mtu(0, None);
        assert!(links.faults().is_empty());
    }

    #[test]
    fn another_mac_address_is_reported_until_restored_and_changes_count() {
        let links = Links::new(["uplink"]);
        let [used, first, second] = [2, 3, 4].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
        links.set_other_mac(0, Some((first, used)));
        let since = links.report()[0].other_mac.map(|other| other.since);
        links.set_other_mac(0, Some((first, used)));
        links.set_other_mac(0, Some((second, used)));
        let (fault, time) = links.faults().remove(0);
        assert!(fault.contains(&used.to_string()) && fault.contains(&second.to_string()), "{fault}");
        assert_eq!((Some(time), links.report()[0].mac_changes), (since, 2));
        links.set_other_mac(0, None);
        links.mac_restored(0, first, used);
        assert_eq!((links.faults(), links.report()[0].mac_changes), (Vec::new(), 3));
    }

    #[test]
    fn a_renamed_device_is_reported_with_both_names_and_stays_usable() {
        let links = Links::new(["lan", "uplink"]);
        links.set_renamed(1, Some(("eth1", "wan0")));
        let (_, since) = links.renamed().remove(0);
        links.set_renamed(1, Some(("eth1", "wan1")));
        let (what, time) = links.renamed().remove(0);
        assert!(["\"uplink\"", "eth1", "wan1"].iter().all(|name| what.contains(name)), "{what}");
        assert!(time == since && links.faults().is_empty());
        links.set_renamed(1, None);
        assert!(links.renamed().is_empty());
    }

    #[test]
    fn a_route_fault_is_reported_with_its_start_and_interfaces_stay_usable() {
        let links = Links::new(["uplink"]);
        links.set_route_fault(Some("Too many open files"));
        let (_, since) = links.route_fault().expect("a fault");
        links.set_route_fault(Some("No buffer space available"));
        let (what, time) = links.route_fault().expect("a fault");
        assert!(what.contains("No buffer space available") && time == since, "{what}");
        assert!(links.faults().is_empty());
        links.set_route_fault(None);
        assert_eq!(links.route_fault(), None);
    }

    #[test]
    fn each_change_is_counted_and_reported_once_with_its_reason() {
        let (links, notified) = (Links::new(["uplink"]), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&notified);
        links.on_change(Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        links.has_tap(0, "tg-uplink");
        assert!(links.faults().is_empty());
        links.set_port(0, LinkState::NoCarrier, None);
        links.set_port(0, LinkState::NoCarrier, None);
        links.set_tap(0, LinkState::Gone);
        let faults: Vec<_> = links.faults().into_iter().map(|(what, _)| what).collect();
        let tap = "tap tg-uplink of interface \"uplink\" is gone";
        assert_eq!(faults, ["interface \"uplink\" has no carrier", tap]);
        assert_eq!((notified.load(Ordering::Relaxed), links.wants_announcement(0)), (2, false));
        links.set_port(0, LinkState::Gone, Some("no such device".to_owned()));
        assert_eq!(links.faults()[0].0, "interface \"uplink\" is gone: no such device");
        links.set_port(0, LinkState::Up, None);
        assert_eq!((links.report()[0].port.transitions, notified.load(Ordering::Relaxed)), (3, 4));
        assert_eq!((links.wants_announcement(0), links.wants_announcement(0)), (true, false));
    }
}

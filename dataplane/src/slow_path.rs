//! The slow-path thread: serves the kernel's taps with their routes, the neighbour resolver, and the log of reduced
//! path MTUs.
//!
//! Frames that workers punt are written to the interface's tap. Frames that the kernel sends there are passed to a
//! worker for transmission. Neighbour reports of workers go to the state machine, whose requests are sent the same way.
//! Workers neither wake this thread nor enter the kernel for it. It runs at least every [`WAIT_MAX`], which is the
//! longest wait of a punted frame on an idle gateway.
//!
//! Invariant: each duty does bounded work per loop iteration, so none starves another.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_pipeline::frame::Frame;
use tidegate_pipeline::pipeline::NeighborEvent;
use tidegate_probe::Probes;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;
use tidegate_spec::{Problem, SnapshotSpec};
use tidegate_structures::counter::Counter;
use tidegate_structures::hash::{key_hash, scale};
use tidegate_structures::histogram::Recorder;
use tidegate_wire::arp::{self, ArpOperation};
use tidegate_wire::ndp::{self, Ndp};
use tidegate_wire::{Addr, Parsed, SmallFrame, parse};

use crate::clock::Clock;
use crate::drivers::FrameSource;
use crate::links::{LinkState, Links};
use crate::neighbors;
use crate::neighbors::owned_addresses::Owned;
use crate::neighbors::resolver::{Action, Resolver, ResolverContext};
use crate::path_mtu_log::PathMtuLog;
use crate::probe_device::ProbeDevice;
use crate::punt::class::PuntClass;
use crate::punt::fixed_neighbors::{FixedNeighbors, TapNeighbors};
use crate::punt::routes::{Routes, TapRoutes};
use crate::punt::tap::Tap;
use crate::worker::counters::Gauge;
use crate::worker::{Exchange, Mailbox};

/// The longest sleep of this thread.
pub const WAIT_MAX: Duration = Duration::from_millis(4);
const WAIT_FIRST: Duration = Duration::from_millis(1);
/// Maximum number of punted frames, of frames per tap, and of events per loop iteration.
const PER_ITERATION: usize = 256;
/// Interval between two attempts to recreate a deleted tap.
const RECREATE_INTERVAL: Duration = Duration::from_secs(1);
/// How often the addresses and routes of the taps are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The longest frame of a tap: the largest IP packet, Ethernet header and tag.
const FRAME_MAX: usize = 65_535 + 18;

/// The counters of this thread. Any thread may read them.
#[derive(Debug, Default)]
pub struct SlowPathCounters {
    /// Loop iterations.
    pub iterations: Counter,
    /// How long frames for the kernel waited in their queue, in nanoseconds.
    pub punt_queue: Recorder,
    /// Frames written to the kernel.
    pub to_kernel: Counter,
    /// Frames that the kernel refused, or that arrived on an interface without a tap.
    pub to_kernel_dropped: Counter,
    /// Frames from the kernel passed to a worker.
    pub from_kernel: Counter,
    /// Frames from the kernel dropped because no memory or no space in the worker's queue was left.
    pub from_kernel_dropped: Counter,
    /// Requests, probes and announcements sent.
    pub neighbor_frames: Counter,
    /// Requests, probes and announcements dropped because no memory or no space in the worker's queue was left.
    pub neighbor_frames_dropped: Counter,
    /// On-demand neighbours that were refused because all entries of the link and family are in use.
    pub neighbors_refused: Gauge,
    /// On-demand neighbours that were evicted for newer ones.
    pub neighbors_evicted: Gauge,
}

/// The parts of a forwarding state that the slow path needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowPathState {
    /// The input of the resolver.
    pub context: ResolverContext,
    /// The routes for the kernel.
    pub routes: Routes,
    /// The configured neighbours, for the kernel.
    pub neighbors: FixedNeighbors,
}

impl SlowPathState {
    /// Derives the parts from a forwarding state. With `announce`, VIPs and SNAT addresses are announced.
    #[must_use]
    pub fn of(spec: &SnapshotSpec, announce: bool) -> Self {
        let context = neighbors::resolver_context_of(spec, announce);
        let neighbors = neighbors::tap_neighbors(&context);
        Self { routes: neighbors::tap_routes(spec, &context), neighbors, context }
    }

    /// Removes the next hops that the snapshot left out of a full table. They have no table entries, and must not take
    /// entries from neighbours that packets need.
    #[must_use]
    pub fn without_left_out(mut self, spec: &SnapshotSpec, problems: &[Problem]) -> Self {
        for problem in problems.iter().filter(|problem| problem.is_neighbor_table_full()) {
            if let Problem::Backend { backend, .. } = problem
                && spec.network.routes.iter().all(|route| route.via != backend.ip())
            {
                self.context.next_hops.remove(&backend.ip());
            }
        }
        self
    }
}

/// The state that the thread keeps between iterations.
#[derive(Debug)]
pub struct Memory {
    resolver: Resolver,
    routes: TapRoutes,
    neighbors: TapNeighbors,
    path_mtus: PathMtuLog,
    owned: Owned,
    buffer: Vec<u8>,
    /// The earliest time of the next attempt to recreate a deleted tap.
    recreate_at: Now,
    /// When the addresses and routes of the taps are checked next.
    check_at: Now,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            resolver: Resolver::default(),
            routes: TapRoutes::default(),
            neighbors: TapNeighbors::default(),
            path_mtus: PathMtuLog::default(),
            owned: Owned::default(),
            buffer: vec![0; FRAME_MAX],
            recreate_at: Now(0),
            check_at: Now(0),
        }
    }
}

/// The error for a tap whose device was deleted.
struct TapGone;

/// Counts a frame as passed or as dropped.
fn count(is_passed: bool, passed: &Counter, dropped: &Counter) {
    if is_passed { passed } else { dropped }.add(1);
}

/// The slow path with its resources.
pub struct SlowPath<S: FrameSource> {
    /// Queues from and to the workers.
    pub exchange: Arc<Exchange<S::Frame>>,
    /// Memory for frames.
    pub source: S,
    /// The tap of each interface; `None` if the operator has disabled taps.
    pub taps: Vec<Option<Tap>>,
    /// The host's connections to VIPs, each on one backend.
    pub probes: Arc<Probes>,
    /// The device of the probes; `None` if it could not be created.
    pub probe_device: Option<ProbeDevice>,
    /// The states of the interfaces. This thread handles interfaces that are up again, and reports deleted taps.
    pub links: Arc<Links>,
    /// The table for link addresses.
    pub table: Arc<NeighborTable>,
    /// The parts of new forwarding states. Only the newest one matters.
    pub slow_path_state: Arc<ArrayQueue<SlowPathState>>,
    /// The counters.
    pub counters: Arc<SlowPathCounters>,
    /// The clock.
    pub clock: Clock,
}

impl<S: FrameSource> SlowPath<S> {
    /// Runs until `stop` is set.
    ///
    /// # Errors
    /// If waiting for the taps fails, which happens only when the kernel is out of memory.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut memory = Memory::default();
        let mut wait = WAIT_FIRST;
        while !stop.load(Ordering::Relaxed) {
            let worked = self.run_once(&mut memory, self.clock.now());
            self.counters.iterations.add(1);
            if worked {
                wait = WAIT_FIRST;
            } else {
                self.wait(wait)?;
                wait = (wait * 2).min(WAIT_MAX);
            }
        }
        Ok(())
    }

    /// Runs one loop iteration. Returns whether there was work.
    pub fn run_once(&mut self, memory: &mut Memory, now: Now) -> bool {
        let mut worked = self.punt();
        for n in 0..self.taps.len() {
            let interface = InterfaceIndex::try_from(n).expect("at most INTERFACES_MAX interfaces");
            if self.links.wants_announcement(interface) {
                memory.resolver.link_up(now, interface);
            }
            let Some(tap) = &self.taps[n] else { continue };
            match self.send_for_kernel(interface, tap, &mut memory.buffer, now) {
                Ok(any) => worked |= any,
                Err(TapGone) => self.recreate(n, memory, now),
            }
            if self.links.wants_tap(interface) {
                self.restore(n, memory);
            }
        }
        memory.path_mtus.log(now, self.table.path_mtus());
        worked |= self.send_probes(&mut memory.buffer, now);
        let Memory { resolver, routes, neighbors, owned, .. } = memory;
        let ownership = self.table.ownership();
        if let Some(SlowPathState { mut context, routes: wanted, neighbors: fixed }) =
            self.slow_path_state.pop()
        {
            context.owned = owned.replace(&context, ownership);
            let refused = self.act(&resolver.configure(now, context));
            resolver.count_refused(refused);
            routes.want(&wanted);
            if neighbors.want(fixed) {
                memory.check_at = now;
            }
        } else if let Some(owned) = owned.changed(ownership) {
            resolver.own(now, owned);
            worked = true;
        }
        worked |= routes.apply(&self.taps, now);
        self.links.set_route_fault(routes.fault());
        worked |= self.resolve(resolver, now);
        if now >= memory.check_at {
            memory.check_at = now.plus(CHECK_INTERVAL);
            self.restore_changes(memory);
            self.links.set_neighbor_faults(memory.resolver.faults(now));
        }
        worked
    }

    /// Writes punted frames to the kernel, a bounded number of each class.
    fn punt(&self) -> bool {
        let mut worked = false;
        let any_probe = self.probes.any();
        for class in PuntClass::ALL {
            for _ in 0..class.per_iteration() {
                let Some(mut punted) = self.exchange.punts.pop(class) else { break };
                self.counters.punt_queue.record(self.clock.now().0.saturating_sub(punted.queued.0));
                worked = true;
                if any_probe
                    && let Some(device) = &self.probe_device
                    && let Some(packet) = self.probes.inward(&mut punted.frame)
                {
                    let taken = device.send(packet).is_ok();
                    count(taken, &self.counters.to_kernel, &self.counters.to_kernel_dropped);
                    continue;
                }
                self.exchange.advertisements.received(self.clock.now(), punted.frame.bytes());
                let tap = self.taps.get(usize::from(punted.interface)).and_then(Option::as_ref);
                let taken = tap.is_some_and(|tap| tap.send(punted.frame.bytes_mut()).is_ok());
                count(taken, &self.counters.to_kernel, &self.counters.to_kernel_dropped);
            }
        }
        worked
    }

    /// Sends packets of the host's connections to VIPs.
    fn send_probes(&mut self, buffer: &mut [u8], now: Now) -> bool {
        let Some(device) = &self.probe_device else { return false };
        for n in 0..PER_ITERATION {
            match device.receive(buffer) {
                Ok(Some(bytes)) => {
                    let sent = self.send_probe(bytes, now);
                    count(sent, &self.counters.from_kernel, &self.counters.from_kernel_dropped);
                }
                Ok(None) => return n > 0,
                Err(error) if Tap::is_gone(&error) => {
                    let anew = device.recreate();
                    match &anew {
                        Ok(_) => {
                            tracing::warn!(device = device.name(), "the probe device was deleted: recreated");
                        }
                        Err(error) => tracing::warn!(
                            device = device.name(), %error,
                            "the probe device was deleted and cannot be recreated: DSR backends are checked at their \
                             own addresses instead of the VIPs until the gateway restarts"
                        ),
                    }
                    self.probe_device = anew.ok();
                    self.probes.set_device(self.probe_device.as_ref().map(ProbeDevice::name));
                    return true;
                }
                Err(error) => {
                    tracing::debug!(device = device.name(), %error, "cannot read from the probe device");
                    return n > 0;
                }
            }
        }
        true
    }

    fn send_probe(&self, bytes: &[u8], now: Now) -> bool {
        let Some(mut frame) = self.source.frame(bytes) else { return false };
        let mac = |interface, next_hop: &_| {
            let mac = self.table.resolve(interface, next_hop);
            if mac.is_none() {
                // Like a worker, request the next hop. The kernel retransmits the packet.
                self.exchange.neighbor_reports.report(NeighborEvent::Wanted { interface, addr: *next_hop });
            }
            mac
        };
        let note = |frame: &[u8]| self.exchange.host_connections.note(now, frame);
        let Some(interface) = self.probes.outward(&mut frame, mac, note) else { return false };
        let mailbox = self.mailbox_for(frame.bytes());
        mailbox.is_some_and(|mailbox| mailbox.inject(interface, frame).is_ok())
    }

    /// Recreates a deleted tap with its name, addresses and routes.
    #[cold]
    fn recreate(&mut self, n: usize, memory: &mut Memory, now: Now) {
        if now < memory.recreate_at {
            return;
        }
        memory.recreate_at = now.plus(RECREATE_INTERVAL);
        self.links.set_tap(n, LinkState::Gone);
        let Some(tap) = &mut self.taps[n] else { return };
        match tap.recreate() {
            // The new state of the tap causes the routes to be added again.
            Ok(()) => {
                self.links.set_tap(n, LinkState::Up);
                self.links.note_recreated(n);
            }
            Err(error) => {
                tracing::warn!(%error, "a tap was deleted and cannot be recreated yet: the gateway retries");
            }
        }
    }

    /// Restores a tap that is up again: it may have lost its routes and its IPv6 addresses.
    #[cold]
    fn restore(&self, n: usize, memory: &mut Memory) {
        let Some(tap) = &self.taps[n] else { return };
        if let Err(error) = tap.add_addresses() {
            tracing::warn!(%error, "cannot restore an address of the tap");
        }
        memory.routes.lost(InterfaceIndex::try_from(n).expect("at most INTERFACES_MAX interfaces"));
    }

    /// Restores what another program, such as a network configuration tool, has changed on the taps and the probe
    /// device: names, MAC addresses, MTUs, sysctls, addresses, routes and configured neighbours. Health checks depend
    /// on them.
    #[cold]
    fn restore_changes(&self, memory: &mut Memory) {
        for (n, tap) in self.taps.iter().enumerate() {
            let Some(tap) = tap else { continue };
            tap.restore_sysctls();
            match tap.restore_settings() {
                Ok(found) if found.is_empty() => {}
                Ok(found) => {
                    tracing::warn!(tap = tap.name(), ?found, "settings of the tap were changed: restored");
                }
                Err(error) => tracing::debug!(%error, "cannot check or restore the settings of the tap"),
            }
            match tap.add_missing_addresses() {
                Ok(missing) if missing.is_empty() => {}
                Ok(missing) => {
                    tracing::warn!(tap = tap.name(), ?missing, "addresses of the tap were removed: restored");
                    // Routes whose next hop was in the network of such an address were removed with it.
                    let interface = InterfaceIndex::try_from(n).expect("at most INTERFACES_MAX interfaces");
                    memory.routes.lost(interface);
                }
                // Another function reports and restores a tap that is gone or down.
                Err(error) => tracing::debug!(%error, "cannot restore an address of the tap"),
            }
        }
        if let Some(device) = &self.probe_device {
            match device.add_missing_addresses() {
                Ok(missing) if missing.is_empty() => {}
                Ok(missing) => {
                    let device = device.name();
                    tracing::warn!(device, ?missing, "addresses of the probe device were removed: restored");
                }
                Err(error) => tracing::debug!(%error, "cannot restore an address of the probe device"),
            }
        }
        memory.routes.restore(&self.taps);
        memory.neighbors.restore(&self.taps);
    }

    /// Sends the frames that the kernel has written to the taps.
    fn send_for_kernel(
        &self,
        interface: InterfaceIndex,
        tap: &Tap,
        buffer: &mut [u8],
        now: Now,
    ) -> Result<bool, TapGone> {
        for n in 0..PER_ITERATION {
            match tap.receive(buffer) {
                Ok(Some(frame)) => {
                    if let Some(mut answer) = self.answer_kernel(interface, frame) {
                        let taken = tap.send(&mut answer).is_ok();
                        if taken { &self.counters.to_kernel } else { &self.counters.to_kernel_dropped }
                            .add(1);
                        continue;
                    }
                    self.exchange.host_connections.note(now, frame);
                    self.exchange.advertisements.sent(now, frame);
                    let sent = self.inject(interface, frame);
                    count(sent, &self.counters.from_kernel, &self.counters.from_kernel_dropped);
                }
                Ok(None) => return Ok(n > 0),
                Err(error) if Tap::is_gone(&error) => return Err(TapGone),
                Err(error) => {
                    tracing::debug!(tap = tap.name(), %error, "cannot read from the tap");
                    return Ok(n > 0);
                }
            }
        }
        Ok(true)
    }

    /// Answers a request of the kernel for a neighbour whose link address is known here. On the wire, a flood could
    /// cause the loss of the request or the answer, and health checks would fail.
    fn answer_kernel(&self, interface: InterfaceIndex, frame: &[u8]) -> Option<SmallFrame> {
        let mac_of = |target: Addr| self.table.resolve(interface, &target);
        match tidegate_wire::parse(frame).ok()? {
            // A request without a sender address looks for another station with the same address (RFC 5227).
            Parsed::Arp(request)
                if request.operation == ArpOperation::Request && !request.sender_ip.is_unspecified() =>
            {
                Some(arp::reply(&request, mac_of(request.target_ip.into())?))
            }
            Parsed::Ip(h) => match ndp::parse(frame, &h).ok()?? {
                Ndp::Solicitation { target, .. } if !h.src.ip().is_unspecified() => {
                    Some(ndp::answer(frame, &h, target, mac_of(target.into())?))
                }
                _ => None,
            },
            Parsed::Arp(_) | Parsed::Other => None,
        }
    }

    fn resolve(&self, resolver: &mut Resolver, now: Now) -> bool {
        let uses = |interface, address: IpAddr| self.table.take_use(interface, &address.into());
        let mut worked = false;
        let reports = &self.exchange.neighbor_reports;
        // Wanted neighbours come first because packets wait for them. Each kind has its own limit, so that a flood of
        // one kind leaves time for the others.
        for (queue, most) in [
            (&reports.wanted, PER_ITERATION),
            (&reports.seen, PER_ITERATION),
            (&reports.claimed, PER_ITERATION / 8),
        ] {
            for _ in 0..most {
                let Some(event) = queue.pop() else { break };
                let actions = match event {
                    NeighborEvent::Wanted { interface, addr } => resolver.wanted(now, interface, addr.ip()),
                    NeighborEvent::Seen { interface, addr, mac, how } => {
                        resolver.seen(now, (interface, addr.ip()), mac, how, &uses)
                    }
                    NeighborEvent::Conflict { interface, addr, mac } => {
                        resolver.claimed(now, (interface, addr.ip()), mac)
                    }
                };
                let refused = self.act(&actions);
                resolver.count_refused(refused);
                worked = true;
            }
        }
        let actions = resolver.tick(now, &uses);
        worked |= !actions.is_empty();
        let refused = self.act(&actions);
        resolver.count_refused(refused);
        let (refused, evicted) = resolver.refused_and_evicted();
        self.counters.neighbors_refused.set(refused);
        self.counters.neighbors_evicted.set(evicted);
        worked
    }

    /// Carries out actions. Returns the number of neighbours that didn't fit the table.
    fn act(&self, actions: &[Action]) -> u64 {
        let mut refused = 0;
        for action in actions {
            refused += u64::from(!neighbors::apply(&self.table, action));
            match action {
                Action::Send { interface, frame } => {
                    let sent = self.inject(*interface, frame);
                    count(sent, &self.counters.neighbor_frames, &self.counters.neighbor_frames_dropped);
                }
                Action::Conflict { interface, address, mac, defended, is_last } => {
                    let mac = mac.map_or_else(|| "unknown".to_owned(), |mac| mac.to_string());
                    tracing::warn!(interface, %address, mac, defended, "another station claims an address of the gateway");
                    if *is_last {
                        tracing::warn!(
                            interface,
                            mac,
                            "stations claim many addresses of the gateway: for up to 10 s, further claims by this station or \
                             on this interface are not logged; they are still counted, and announced addresses are \
                             still defended"
                        );
                    }
                }
                _ => {}
            }
        }
        refused
    }

    /// The worker that sends a frame. All frames to an address use the same worker, so that they stay in order, unless
    /// it hangs.
    fn mailbox_for(&self, bytes: &[u8]) -> Option<&Mailbox<S::Frame>> {
        let mailboxes = &self.exchange.mailboxes;
        let worker = match parse(bytes) {
            Ok(Parsed::Ip(h)) if mailboxes.len() > 1 => {
                scale(key_hash(&h.dst, h.proto, 0), mailboxes.len() as u32) as usize
            }
            _ => 0,
        };
        self.exchange.mailbox_or_next(worker)
    }

    /// Passes a frame to a worker.
    fn inject(&self, interface: InterfaceIndex, bytes: &[u8]) -> bool {
        let Some(mailbox) = self.mailbox_for(bytes) else { return false };
        self.source.frame(bytes).is_some_and(|frame| mailbox.inject(interface, frame).is_ok())
    }

    /// Sleeps until the kernel has a frame or the time is over.
    fn wait(&self, time: Duration) -> io::Result<()> {
        let mut fds: Vec<PollFd<'_>> = self
            .taps
            .iter()
            .flatten()
            .map(AsFd::as_fd)
            .chain(self.probe_device.as_ref().map(AsFd::as_fd))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            // `poll` reports only an error because another program deleted the device. Sleep instead of spinning.
            Ok(1..) if fds.iter().all(|fd| !fd.revents().contains(PollFlags::IN)) => std::thread::sleep(time),
            // A signal for the process only ends the wait early.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl<S: FrameSource> std::fmt::Debug for SlowPath<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlowPath").field("taps", &self.taps).finish_non_exhaustive()
    }
}

//! The kernel's copy of the routes: the kernel routes the prefixes of the forwarding state through the taps, so that
//! the gateway's own connections (health checks, the API server) take the same path as forwarded packets.
//!
//! [`TapRoutes`] receives the routes of each new forwarding state and applies some changes at a time, driven by the
//! slow path. A route that the kernel refuses is logged once and not retried until it changes. While no change can be
//! made, for example because the process is out of file descriptors, the changes stay pending and [`TapRoutes::fault`]
//! returns the reason.
//!
//! Invariant: only routes created here are removed; the host's own routes are not touched (`netlink::ROUTE_METRIC`).

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

use ipnet::IpNet;
use tidegate_host::rtnetlink::is_absent;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;

use super::netlink::Netlink;
use super::tap::Tap;

/// The target of a route: the interface, and the router on its link.
pub type RouteTarget = (InterfaceIndex, IpAddr);

/// Routes by prefix (without host bits).
pub type Routes = BTreeMap<IpNet, RouteTarget>;

/// The number of changes per loop iteration: they take some 5 ms.
const CHANGES_PER_ITERATION: usize = 256;
/// Interval between attempts while the system lacks resources.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The kernel's routes through the taps, and the wanted state.
#[derive(Debug, Default)]
pub struct TapRoutes {
    have: Routes,
    pending: Vec<Change>,
    /// The route checked last; `None` to start with the first.
    checked: Option<IpNet>,
    /// Why no change could be made at the last attempt.
    fault: Option<String>,
    /// The earliest time of the next attempt.
    retry_at: Now,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Adds a route, or replaces another route to the same prefix.
    Put(IpNet, RouteTarget),
    Remove(IpNet, RouteTarget),
}

impl TapRoutes {
    /// Sets the routes that the kernel should have.
    pub fn want(&mut self, wanted: &Routes) {
        self.pending = changes(&self.have, wanted);
        // `apply` takes changes from the end.
        self.pending.reverse();
    }

    /// Records that the kernel has lost the routes through this interface, so that they are added again.
    pub fn lost(&mut self, interface: InterfaceIndex) {
        let lost = self.have.iter().filter(|(_, (by, _))| *by == interface);
        let lost: Vec<_> = lost.map(|(&to, &target)| (to, target)).collect();
        for (to, target) in lost {
            self.have.remove(&to);
            // These changes are applied before the pending ones, which may be newer.
            self.pending.push(Change::Put(to, target));
        }
    }

    /// Restores routes that another program has removed from the kernel. Each call checks some of them and continues
    /// where the previous one stopped.
    pub fn restore(&mut self, taps: &[Option<Tap>]) {
        if !self.pending.is_empty() {
            return;
        }
        if self.have.is_empty() {
            self.fault = None;
            return;
        }
        let mut netlink = match Netlink::open() {
            Ok(netlink) => netlink,
            Err(error) => {
                self.fault = Some(error.to_string());
                return;
            }
        };
        self.fault = None;
        let from = self.checked.take().map_or(Bound::Unbounded, Bound::Excluded);
        for (&to, &(interface, via)) in self.have.range((from, Bound::Unbounded)).take(CHANGES_PER_ITERATION)
        {
            self.checked = Some(to);
            let Some(tap) = taps.get(usize::from(interface)).and_then(Option::as_ref) else { continue };
            match tap.index().and_then(|index| netlink.add_missing_route(index, to, via)) {
                Ok(false) => {}
                Ok(true) => {
                    tracing::warn!(%to, %via, tap = tap.name(), "a route of the gateway was deleted: restored");
                }
                // The error was logged when the route was first added.
                Err(error) => {
                    tracing::debug!(%to, %via, tap = tap.name(), %error, "a route is missing and cannot be restored");
                }
            }
        }
    }

    /// Applies some of the pending changes. Returns whether it tried to apply any.
    pub fn apply(&mut self, taps: &[Option<Tap>], now: Now) -> bool {
        if self.pending.is_empty() || now < self.retry_at {
            return false;
        }
        match self.change_some(taps) {
            Ok(()) => self.fault = None,
            Err(error) => {
                self.fault = Some(error.to_string());
                self.retry_at = now.plus(RETRY_AFTER);
            }
        }
        true
    }

    /// Why the kernel's routes can't be read or changed now. The changes stay pending.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Applies some of the pending changes. An error means that none can be applied now; the others stay pending.
    fn change_some(&mut self, taps: &[Option<Tap>]) -> io::Result<()> {
        let mut netlink = Netlink::open()?;
        for _ in 0..CHANGES_PER_ITERATION {
            let Some(&change) = self.pending.last() else { break };
            let (Change::Put(to, target) | Change::Remove(to, target)) = change;
            let (interface, via) = target;
            let tap = taps.get(usize::from(interface)).and_then(Option::as_ref);
            let index = match tap.map(Tap::index) {
                // Looking up the index needs a file descriptor too.
                Some(Err(error)) if is_shortage(&error) => return Err(error),
                index => index,
            };
            self.pending.pop();
            match change {
                Change::Put(..) => self.have.insert(to, target),
                Change::Remove(..) => self.have.remove(&to),
            };
            let (Some(tap), Some(index)) = (tap, index) else { continue };
            let made = index.and_then(|index| match change {
                Change::Put(..) => netlink.add_route(index, to, via),
                Change::Remove(..) => netlink.remove_route(index, to, via),
            });
            match (change, made) {
                (_, Ok(())) => {}
                // Another program removed the route, or it was removed with its address.
                (Change::Remove(..), Err(error)) if is_absent(&error) => {}
                (_, Err(error)) => {
                    let tap = tap.name();
                    tracing::warn!(%to, %via, tap, %error, "the kernel refused a route change: health checks may take \
                                                            another path than forwarded packets");
                }
            }
        }
        Ok(())
    }
}

/// Whether the system lacks a resource that every change needs: file descriptors or memory.
fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// The changes from one set of routes to another. New routes come first, so that a longer prefix that replaces a
/// shorter one exists before the shorter one is removed.
fn changes(have: &Routes, wanted: &Routes) -> Vec<Change> {
    let put = wanted.iter().filter(|(to, target)| have.get(to) != Some(target));
    let put = put.map(|(&to, &target)| Change::Put(to, target));
    // An old route through another interface would stay beside the new one, so it must be removed explicitly.
    let gone = have
        .iter()
        .filter(|(to, (interface, _))| wanted.get(to).is_none_or(|(another, _)| another != interface));
    put.chain(gone.map(|(&to, &target)| Change::Remove(to, target))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(list: &[(&str, InterfaceIndex, &str)]) -> Routes {
        list.iter().map(|(to, on, via)| (to.parse().unwrap(), (*on, via.parse().unwrap()))).collect()
    }

    #[test]
    fn only_differences_are_applied_and_additions_precede_removals() {
        let have = routes(&[("10.0.0.0/24", 0, "192.0.2.1"), ("10.0.1.0/24", 0, "192.0.2.2")]);
        let wanted = routes(&[
            ("10.0.0.0/24", 0, "192.0.2.1"),
            ("10.0.2.0/24", 0, "192.0.2.3"),
            ("::/0", 1, "2001:db8::1"),
        ]);
        let (net, ip) = (|text: &str| text.parse::<IpNet>().unwrap(), |text: &str| text.parse().unwrap());
        assert_eq!(
            changes(&have, &wanted),
            [
                Change::Put(net("10.0.2.0/24"), (0, ip("192.0.2.3"))),
                Change::Put(net("::/0"), (1, ip("2001:db8::1"))),
                Change::Remove(net("10.0.1.0/24"), (0, ip("192.0.2.2"))),
            ]
        );
        assert_eq!(changes(&wanted, &wanted), []);
    }

    #[test]
    fn only_routes_that_an_interface_lost_are_added_again() {
        let have = routes(&[("10.0.0.0/24", 0, "192.0.2.1"), ("10.0.1.0/24", 1, "198.51.100.1")]);
        let mut kept = TapRoutes { have, ..TapRoutes::default() };
        kept.lost(1);
        let target = (1, "198.51.100.1".parse().unwrap());
        assert_eq!(kept.pending, [Change::Put("10.0.1.0/24".parse().unwrap(), target)]);
        assert_eq!(kept.have.len(), 1);
    }

    #[test]
    fn a_router_is_replaced_in_place_and_another_interfaces_route_removed() {
        let have = routes(&[("10.0.0.0/24", 0, "192.0.2.1")]);
        assert_eq!(changes(&have, &routes(&[("10.0.0.0/24", 0, "192.0.2.9")])).len(), 1);
        assert_eq!(changes(&have, &routes(&[("10.0.0.0/24", 1, "198.51.100.1")])).len(), 2);
    }
}

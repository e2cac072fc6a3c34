//! The configured neighbours of the gateway as permanent neighbours of the kernel on its taps.
//!
//! The kernel would otherwise resolve them by itself, and a health check would pass at a backend that no packet reaches, because
//! `dataplane.neighbors` has a wrong link address for it.
//!
//! Invariant: only neighbours that were created here are removed.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::ops::Bound;

use tidegate_spec::ids::InterfaceIndex;
use tidegate_wire::MacAddr;

use super::netlink::Netlink;
use super::tap::Tap;

/// Link addresses by interface and neighbour.
pub type FixedNeighbors = BTreeMap<(InterfaceIndex, IpAddr), MacAddr>;

/// The number of neighbours that are written at once.
const PER_LOOK: usize = 256;

/// The neighbours that the kernel has from us, and those that it should have.
#[derive(Debug, Default)]
pub struct TapNeighbors {
    wanted: FixedNeighbors,
    gone: Vec<(InterfaceIndex, IpAddr)>,
    /// The last neighbour that was written; `None` to begin with the first.
    written: Option<(InterfaceIndex, IpAddr)>,
}

impl TapNeighbors {
    /// Sets the neighbours that the kernel should have from now on. Returns whether that is a change.
    pub fn want(&mut self, wanted: FixedNeighbors) -> bool {
        if wanted == self.wanted {
            return false;
        }
        self.gone.extend(self.wanted.keys().filter(|key| !wanted.contains_key(*key)));
        (self.wanted, self.written) = (wanted, None);
        true
    }

    /// Writes some of the neighbours, those that the kernel has as well: another program may have removed or changed them. Each
    /// call continues where the previous one stopped.
    pub fn look_after(&mut self, taps: &[Option<Tap>]) {
        if self.gone.is_empty() && self.wanted.is_empty() {
            return;
        }
        let mut netlink = match Netlink::open() {
            Ok(netlink) => netlink,
            Err(error) => {
                tracing::debug!(%error, "cannot write the neighbours of the taps now");
                return;
            }
        };
        for (interface, address) in std::mem::take(&mut self.gone) {
            // Without it, the tap was created anew since, or another program has removed it.
            let _ = index(taps, interface).and_then(|index| netlink.remove_neighbor(index, address));
        }
        let from = self.written.take().map_or(Bound::Unbounded, Bound::Excluded);
        for (&(interface, address), &mac) in self.wanted.range((from, Bound::Unbounded)).take(PER_LOOK) {
            self.written = Some((interface, address));
            let written = index(taps, interface).and_then(|index| netlink.put_neighbor(index, address, mac));
            if let Err(error) = written {
                tracing::debug!(%address, %mac, %error, "the kernel refused a neighbour");
            }
        }
        if self.written.as_ref() == self.wanted.last_key_value().map(|(key, _)| key) {
            self.written = None;
        }
    }
}

/// The index of the tap of an interface.
fn index(taps: &[Option<Tap>], interface: InterfaceIndex) -> io::Result<u32> {
    let tap = taps.get(usize::from(interface)).and_then(Option::as_ref);
    tap.map_or_else(|| Err(io::ErrorKind::NotFound.into()), Tap::index)
}

//! Writes the gateway's configured neighbours to the kernel, as permanent neighbours on the taps.
//!
//! Otherwise the kernel would resolve them itself, and a health check would pass for a backend that no packet reaches
//! because `dataplane.neighbors` has a wrong link address for it.
//!
//! Invariant: only neighbours created here are removed.

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

/// Neighbours written per call.
const PER_CALL: usize = 256;

/// The kernel's copy of the configured neighbours, and the wanted state.
#[derive(Debug, Default)]
pub struct TapNeighbors {
    wanted: FixedNeighbors,
    gone: Vec<(InterfaceIndex, IpAddr)>,
    /// The neighbour written last; `None` to start with the first.
    written: Option<(InterfaceIndex, IpAddr)>,
}

impl TapNeighbors {
    /// Sets the neighbours that the kernel should have. Returns whether that is a change.
    pub fn want(&mut self, wanted: FixedNeighbors) -> bool {
        if wanted == self.wanted {
            return false;
        }
        self.gone.extend(self.wanted.keys().filter(|key| !wanted.contains_key(*key)));
        (self.wanted, self.written) = (wanted, None);
        true
    }

    /// Writes some of the neighbours, even if the kernel has them: another program may have removed or changed them.
    /// Each call continues where the previous one stopped.
    pub fn restore(&mut self, taps: &[Option<Tap>]) {
        if self.gone.is_empty() && self.wanted.is_empty() {
            return;
        }
        let mut netlink = match Netlink::open() {
            Ok(netlink) => netlink,
            Err(error) => {
                tracing::debug!(%error, "cannot restore the neighbours of the taps yet");
                return;
            }
        };
        for (interface, address) in std::mem::take(&mut self.gone) {
            // The neighbour may already be gone because the tap was recreated or another program removed it.
            let _ = index(taps, interface).and_then(|index| netlink.remove_neighbor(index, address));
        }
        let from = self.written.take().map_or(Bound::Unbounded, Bound::Excluded);
        for (&(interface, address), &mac) in self.wanted.range((from, Bound::Unbounded)).take(PER_CALL) {
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

//! Device strings of the configuration: their kind, and the arguments that a gateway adds.
//!
//! Pure functions of text. See [`crate::links`] for the device that a string names, its lock and its link.

/// The device string with the name that its port was given.
pub(super) fn renamed(devargs: &str, name: &str) -> String {
    match devargs.split_once(',') {
        Some((_, arguments)) => format!("{name},{arguments}"),
        None => name.to_owned(),
    }
}

/// `net_af_packet` creates one queue pair by default. This requests one per worker.
pub(super) fn with_queues(device: &str, workers: usize) -> String {
    let wants = device.starts_with("net_af_packet") && !device.contains("qpairs=") && workers > 1;
    if wants { format!("{device},qpairs={workers}") } else { device.to_owned() }
}

/// Bytes of an mbuf for frames of any size: with its headroom, the maximum of DPDK's 16-bit lengths.
pub(super) const LARGE_DATA_ROOM: u16 = 65_376;

/// The size of a memory block with a whole number of such buffers and of pages: the driver expects the buffers to be
/// contiguous.
const LARGE_BLOCK: usize = 32 * (LARGE_DATA_ROOM as usize + 32);
const _: () = assert!(LARGE_BLOCK.is_multiple_of(4096));

/// `net_af_packet` delivers datagrams that the kernel has reassembled. Unless the device string sets a frame size, this
/// makes the ring's frames large enough for any datagram. The size must be a multiple of 16 bytes. 512 frames per
/// direction take 64 MiB of kernel memory per queue.
pub(super) fn with_large_frames(device: &str) -> String {
    if takes_large_frames(device) {
        format!("{device},framesz={},blocksz={LARGE_BLOCK}", LARGE_DATA_ROOM + 32)
    } else {
        device.to_owned()
    }
}

/// Whether a device delivers frames larger than the MTU, and its arguments don't set the frame size.
pub(super) fn takes_large_frames(device: &str) -> bool {
    device.starts_with("net_af_packet") && !device.contains("framesz=") && !device.contains("blocksz=")
}

/// Whether it names a NIC by its PCI address.
pub(super) fn is_pci(device: &str) -> bool {
    let address = device.split(',').next().unwrap_or(device);
    !address.starts_with("net_") && address.contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn af_packet_gets_a_queue_pair_per_worker_unless_configured() {
        assert_eq!(with_queues("net_af_packet,iface=eth1", 2), "net_af_packet,iface=eth1,qpairs=2");
        assert_eq!(
            with_queues("net_af_packet0,iface=eth1,qpairs=4", 2),
            "net_af_packet0,iface=eth1,qpairs=4"
        );
        assert_eq!(with_queues("net_null", 2), "net_null");
        assert_eq!(with_queues("net_af_packet,iface=eth1", 1), "net_af_packet,iface=eth1");
    }

    #[test]
    fn af_packet_frames_fit_the_largest_datagram_unless_configured() {
        assert_eq!(
            with_large_frames("net_af_packet,iface=eth1"),
            "net_af_packet,iface=eth1,framesz=65408,blocksz=2093056"
        );
        for device in ["net_af_packet,iface=eth1,framesz=2048", "net_null", "0000:03:00.0"] {
            assert_eq!(with_large_frames(device), device);
        }
    }

    #[test]
    fn devices_are_distinguished() {
        assert!(
            is_pci("0000:03:00.0") && is_pci("03:00.0,arg=1") && !is_pci("net_ring0,nodeaction=a:0:CREATE")
        );
        assert_eq!(
            renamed("net_af_packet,iface=eth1,qpairs=2", "net_af_packet7"),
            "net_af_packet7,iface=eth1,qpairs=2"
        );
        assert_eq!(renamed("net_null", "net_null0"), "net_null0");
    }
}

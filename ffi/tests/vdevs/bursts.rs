//! Frames through queues: contents, order, full rings, and ownership afterwards.

use dpdk::testing::{self, Level};
use dpdk::{Burst, Port, PortConfig, RxQueue, TxQueue};

use super::{bytes, frames, pool};

/// Two started ports, connected by one queue in each direction.
fn wire(pool: &dpdk::PktPool, depth: u32) -> (Port, Port, TxQueue, RxQueue) {
    let (mut left, mut right) = testing::port_pair(testing::eal(), 1, depth).unwrap();
    let tx = left.start(&PortConfig::default(), pool).unwrap().tx.remove(0);
    let rx = right.start(&PortConfig::default(), pool).unwrap().rx.remove(0);
    (left, right, tx, rx)
}

#[test]
fn what_one_port_sends_the_other_receives_in_order() {
    let pool = pool();
    let level = Level::of(&pool);
    let (left, right, mut tx, mut rx) = wire(&pool, 64);
    let mut burst: Burst = frames(&pool, 20);
    assert_eq!(tx.tx(&mut burst), 20);
    assert!(burst.is_empty());
    assert_eq!(level.missing(), 20);
    assert_eq!(rx.rx(&mut burst), 20);
    for (seed, mbuf) in burst.iter().enumerate() {
        assert_eq!(mbuf.data(), bytes(seed, 60 + seed));
        assert!(mbuf.is_contiguous());
    }
    assert_eq!(rx.rx(&mut burst), 0, "no more frames than were sent");
    drop(burst);
    level.assert_restored();
    assert_eq!(left.stats().unwrap().tx_packets, 20);
    assert_eq!(right.stats().unwrap().rx_packets, 20);
}

#[test]
fn full_ring_takes_the_front_and_leaves_the_rest_owned_in_order() {
    let pool = pool();
    let level = Level::of(&pool);
    let (_left, _right, mut tx, mut rx) = wire(&pool, 10);
    let mut burst: Burst = frames(&pool, 32);
    assert_eq!(tx.tx(&mut burst), 10);
    assert_eq!(burst.len(), 22);
    assert_eq!(burst[0].data(), bytes(10, 70));
    assert_eq!(tx.tx(&mut burst), 0, "still full");
    assert_eq!(burst.len(), 22);

    let mut received = Burst::<32>::new();
    assert_eq!(rx.rx(&mut received), 10);
    assert_eq!(received[9].data(), bytes(9, 69));
    assert_eq!(tx.tx(&mut burst), 10);
    assert_eq!(level.missing(), 32);
    drop(received);
    assert_eq!(burst[0].data(), bytes(20, 80));
    drop(burst);
    assert_eq!(level.missing(), 10, "those in the ring");
    let mut received = Burst::<32>::new();
    assert_eq!(rx.rx(&mut received), 10);
    assert_eq!(received[0].data(), bytes(10, 70));
    drop(received);
    level.assert_restored();
}

#[test]
fn receiving_appends_and_stops_at_a_full_burst() {
    let pool = pool();
    let level = Level::of(&pool);
    let (_left, _right, mut tx, mut rx) = wire(&pool, 64);
    let mut sent: Burst = frames(&pool, 32);
    assert_eq!(tx.tx(&mut sent), 32);
    let mut burst: Burst<20> = frames(&pool, 3);
    assert_eq!(rx.rx(&mut burst), 17);
    assert!(burst.is_full());
    assert_eq!(burst[2].data(), bytes(2, 62), "earlier frames are unchanged");
    assert_eq!(burst[3].data(), bytes(0, 60));
    assert_eq!(rx.rx(&mut burst), 0, "the burst is full");
    burst.clear();
    assert_eq!(rx.rx(&mut burst), 15);
    drop(burst);
    level.assert_restored();
}

#[test]
fn sending_an_empty_burst_does_nothing() {
    let pool = pool();
    let (_left, _right, mut tx, mut rx) = wire(&pool, 64);
    let mut burst = Burst::<32>::new();
    assert_eq!(tx.tx(&mut burst), 0);
    assert_eq!(rx.rx(&mut burst), 0);
    drop(burst);
}

#[test]
fn whatever_is_done_with_a_burst_each_mbuf_is_freed_once() {
    let pool = pool();
    let level = Level::of(&pool);

    drop(frames::<32>(&pool, 32));
    level.assert_restored();

    let mut burst: Burst = frames(&pool, 32);
    burst.retain(|mbuf| mbuf.len() % 2 == 0);
    assert_eq!((burst.len(), level.missing()), (16, 16));
    assert_eq!(burst[1].data(), bytes(2, 62), "those kept are in order");

    let taken = burst.swap_remove(0);
    assert_eq!(taken.data(), bytes(0, 60));
    assert_eq!((burst.len(), level.missing()), (15, 16));
    drop(taken);

    let two: Vec<_> = burst.drain(..2).collect();
    assert_eq!((two.len(), burst.len(), level.missing()), (2, 13, 15));
    drop(two);
    burst.drain(..).next();
    assert_eq!((burst.len(), level.missing()), (0, 0));

    let mut full: Burst<2> = frames(&pool, 2);
    let third = pool.alloc().unwrap();
    let refused = full.push(third).unwrap_err();
    assert_eq!(level.missing(), 3);
    drop(refused);
    assert!(full.pop().is_some());
    drop(full);
    level.assert_restored();
}

#[test]
fn a_panic_while_owning_a_burst_loses_nothing() {
    let pool = pool();
    let level = Level::of(&pool);
    let burst: Burst = frames(&pool, 32);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let mut burst = burst;
        burst.retain(|mbuf| if mbuf.len() == 70 { panic!("on purpose") } else { mbuf.len() > 65 });
    }));
    assert!(result.is_err());
    level.assert_restored();
}

#[test]
fn null_device_takes_all_and_frees_all() {
    let pool = pool();
    let level = Level::of(&pool);
    let mut port = Port::attach(testing::eal(), "net_null,size=100,no-rx=1").unwrap();
    let mut queues = port.start(&PortConfig::default(), &pool).unwrap();
    let mut burst: Burst = frames(&pool, 32);
    assert_eq!(queues.tx[0].tx(&mut burst), 32);
    assert_eq!(queues.rx[0].rx(&mut burst), 0);
    level.assert_restored();
}

#[test]
fn null_device_receives_frames_until_the_pool_is_empty() {
    let pool = pool();
    let level = Level::of(&pool);
    let mut port = Port::attach(testing::eal(), "net_null,size=100").unwrap();
    let mut queues = port.start(&PortConfig::default(), &pool).unwrap();
    let mut bursts: Vec<Burst> = Vec::new();
    loop {
        let mut burst = Burst::<32>::new();
        let received = queues.rx[0].rx(&mut burst);
        assert_eq!(received, burst.len());
        if received == 0 {
            break;
        }
        assert!(burst.iter().all(|mbuf| mbuf.len() == 100 && mbuf.port() == port.id()));
        bursts.push(burst);
    }
    assert_eq!(bursts.len(), 511 / 32, "whole bursts or nothing");
    drop(bursts);
    level.assert_restored();
}

#[test]
fn capture_file_is_received_and_sent_unchanged() {
    let directory = std::env::temp_dir().join(format!("dpdk-pcap-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (input, output) = (directory.join("in.pcap"), directory.join("out.pcap"));
    // The third frame is longer than an mbuf and arrives in several segments.
    let contents: Vec<Vec<u8>> = [60, 1514, 5000].iter().map(|&length| bytes(length, length)).collect();
    std::fs::write(&input, pcap(&contents)).unwrap();

    let pool = pool();
    let level = Level::of(&pool);
    let device = format!("net_pcap,rx_pcap={},tx_pcap={}", input.display(), output.display());
    let mut port = Port::attach(testing::eal(), &device).unwrap();
    let mut queues = port.start(&PortConfig::default(), &pool).unwrap();
    let mut burst = Burst::<32>::new();
    assert_eq!(queues.rx[0].rx(&mut burst), 3);
    assert_eq!(burst[0].data(), contents[0]);
    assert_eq!(burst[1].data(), contents[1]);
    assert!(!burst[2].is_contiguous());
    assert_eq!(burst[2].len(), 5000);
    let first = burst[2].data().len();
    assert_eq!(burst[2].data(), &contents[2][..first]);
    assert!(burst[2].append(1).is_err() && burst[2].truncate(10).is_err() && burst[2].linearize().is_err());
    assert_eq!(queues.tx[0].tx(&mut burst), 3);
    level.assert_restored();
    drop(queues);
    drop(port);

    let written = std::fs::read(&output).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let mut rest = &written[24..];
    for content in &contents {
        let (header, tail) = rest.split_at(16);
        assert_eq!(header[8..12], u32::try_from(content.len()).unwrap().to_le_bytes());
        assert_eq!(tail[..content.len()], content[..]);
        rest = &tail[content.len()..];
    }
    assert!(rest.is_empty());
}

/// A capture file with these frames (draft-ietf-opsawg-pcap, little-endian, Ethernet).
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        let length = u32::try_from(frame.len()).unwrap();
        for word in [1, 0, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

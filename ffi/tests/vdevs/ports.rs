//! Ports: accepted and refused settings, lifetime, and reported properties.

use dpdk::testing::{self, Level};
use dpdk::{Burst, PktPool, PoolConfig, Port, PortConfig, PortError, RssConfig, RssHash};

use super::{bytes, frames, pool};

fn null() -> Port {
    Port::attach(testing::eal(), "net_null").unwrap()
}

#[test]
fn unknown_devices_are_refused_with_a_message() {
    let attach = |device: &str| Port::attach(testing::eal(), device).unwrap_err().to_string();
    let error = attach("net_nosuch0,iface=eth1");
    assert!(error.starts_with("device \"net_nosuch0,iface=eth1\" cannot be attached: "), "{error}");
    assert!(error.contains("is the driver installed"), "{error}");
    let error = attach("net_pcap,rx_pcap=/nonexistent/file.pcap");
    assert!(error.contains("are its arguments right"), "{error}");
    let error = attach("0000:03:00.0");
    assert!(error.contains("is it bound to vfio-pci"), "{error}");
    let error = attach("eth 1");
    assert!(
        error.contains("accepted: a vdev such as \"net_af_packet,iface=eth1\", or a PCI address"),
        "{error}"
    );
}

#[test]
fn a_port_has_one_owner_and_is_free_once_it_is_dropped() {
    let port = Port::attach(testing::eal(), "net_null70").unwrap();
    let error = Port::attach(testing::eal(), "net_null70,size=100").unwrap_err();
    assert!(matches!(&error, PortError::InUse(name) if name == "net_null70"), "{error}");
    drop(port);
    let port = Port::attach(testing::eal(), "net_null70,size=100").unwrap();
    assert_eq!((port.info().name.as_str(), port.info().driver.as_str()), ("net_null70", "net_null"));
}

#[test]
fn names_that_begin_alike_are_different_ports() {
    let longer = Port::attach(testing::eal(), "net_null801").unwrap();
    let shorter = Port::attach(testing::eal(), "net_null80").unwrap();
    assert_ne!(longer.id(), shorter.id());
    assert_eq!(shorter.info().name, "net_null80");
}

#[test]
fn what_a_port_cannot_do_is_refused_with_what_it_can() {
    let pool = pool();
    let mut port = null();
    let mut refuse = |config: PortConfig| match port.start(&config, &pool) {
        Err(PortError::Config { what, given, accepted, .. }) => format!("{what} {given}: {accepted}"),
        other => panic!("{other:?}"),
    };
    let base = PortConfig::default();
    assert!(refuse(PortConfig { queues: 0, ..base.clone() }).starts_with("number of queues 0: 1 to "));
    assert!(
        refuse(PortConfig { queues: u16::MAX, ..base.clone() }).starts_with("number of queues 65535: 1 to ")
    );
    assert!(refuse(PortConfig { mtu: Some(10), ..base.clone() }).starts_with("MTU 10: "));
    assert_eq!(
        refuse(PortConfig { mtu: Some(9000), ..base.clone() }),
        "MTU 9000: up to 2030, the data room of the pool's mbufs"
    );
    let rss = RssConfig { key: Some(vec![1; 7]), ..RssConfig::default() };
    assert_eq!(refuse(PortConfig { rss, ..base.clone() }), "length of the RSS key 7: 40 bytes");
    assert_eq!(
        refuse(PortConfig { mac: Some([1, 0, 0x5e, 0, 0, 1]), ..base }),
        "MAC address 01:00:5e:00:00:01: a unicast address, not all zeroes"
    );
}

#[test]
fn a_port_does_not_stop_while_a_queue_is_owned() {
    let pool = pool();
    let mut port = null();
    let mut queues = port.start(&PortConfig::default(), &pool).unwrap();
    assert!(matches!(port.stop(), Err(PortError::QueuesInUse(_))));
    assert!(matches!(port.start(&PortConfig::default(), &pool), Err(PortError::QueuesInUse(_))));
    let tx = queues.tx.pop().unwrap();
    drop(queues);
    assert!(matches!(port.stop(), Err(PortError::QueuesInUse(_))));
    drop(tx);
    port.stop().unwrap();
    port.stop().unwrap();
}

#[test]
fn a_port_starts_again_with_other_queues_and_another_pool() {
    let (first, second) = (pool(), pool());
    let level = Level::of(&second);
    let mut port = null();
    drop(port.start(&PortConfig::default(), &first).unwrap());
    drop(first);
    let mut queues = port.start(&PortConfig { queues: 3, ..PortConfig::default() }, &second).unwrap();
    assert_eq!(queues.rx.len(), 3);
    let mut burst = Burst::<32>::new();
    assert_eq!(queues.rx[2].rx(&mut burst), 32);
    assert_eq!(level.missing(), 32);
    drop(burst);
    level.assert_restored();
}

#[test]
fn queues_outlive_their_port_and_work_on() {
    let pool = pool();
    let level = Level::of(&pool);
    let mut port = Port::attach(testing::eal(), "net_null90").unwrap();
    let mut queues = port.start(&PortConfig::default(), &pool).unwrap();
    drop(port);
    let mut burst = Burst::<32>::new();
    assert_eq!(queues.rx[0].rx(&mut burst), 32);
    assert!(matches!(Port::attach(testing::eal(), "net_null90"), Err(PortError::InUse(_))));
    drop(queues);
    drop(Port::attach(testing::eal(), "net_null90").unwrap());
    drop(burst);
    level.assert_restored();
}

#[test]
fn frames_queued_when_a_port_is_dropped_are_freed() {
    let pool = pool();
    let level = Level::of(&pool);

    let mut looped = Port::attach(testing::eal(), "net_ring").unwrap();
    let mut queues = looped.start(&PortConfig { queues: 2, ..PortConfig::default() }, &pool).unwrap();
    for queue in &mut queues.tx {
        assert_eq!(queue.tx(&mut frames::<32>(&pool, 32)), 32);
    }
    assert_eq!(level.missing(), 64);
    drop(queues);
    drop(looped);
    level.assert_restored();

    let (mut left, mut right) = testing::port_pair(testing::eal(), 2, 64).unwrap();
    let config = PortConfig { queues: 2, ..PortConfig::default() };
    let mut queues = left.start(&config, &pool).unwrap();
    drop(right.start(&config, &pool).unwrap());
    for queue in &mut queues.tx {
        assert_eq!(queue.tx(&mut frames::<32>(&pool, 32)), 32);
    }
    drop((queues, left));
    assert_eq!(level.missing(), 64, "the other port may still receive them");
    drop(right);
    level.assert_restored();
}

#[test]
fn each_queue_of_a_pair_leads_to_its_like() {
    let pool = pool();
    let (mut left, mut right) = testing::port_pair(testing::eal(), 2, 64).unwrap();
    let config = PortConfig { queues: 2, ..PortConfig::default() };
    let mut left_queues = left.start(&config, &pool).unwrap();
    let mut right_queues = right.start(&config, &pool).unwrap();
    assert_eq!(right_queues.tx[1].tx(&mut frames::<32>(&pool, 3)), 3);
    let mut burst = Burst::<32>::new();
    assert_eq!(left_queues.rx[0].rx(&mut burst), 0);
    assert_eq!(left_queues.rx[1].rx(&mut burst), 3);
    assert_eq!(burst[2].data(), bytes(2, 62));
    assert_eq!((left_queues.rx[1].id(), left_queues.rx[1].port()), (1, left.id()));
}

#[test]
fn an_address_can_be_taken_over() {
    let pool = pool();
    let mut port = null();
    let mac = [2, 0, 0, 0, 0, 7];
    port.start(&PortConfig { mac: Some(mac), promiscuous: true, ..PortConfig::default() }, &pool).unwrap();
    assert_eq!(port.mac().unwrap(), mac);
    port.set_mac([2, 0, 0, 0, 0, 8]).unwrap();
    assert_eq!(port.mac().unwrap(), [2, 0, 0, 0, 0, 8]);
    assert!(matches!(port.set_mac([0; 6]), Err(PortError::Config { .. })));
}

#[test]
fn mtu_may_be_as_large_as_the_mbufs() {
    let pool =
        PktPool::new(testing::eal(), &PoolConfig { mbufs: 255, data_room: 9216, ..PoolConfig::default() })
            .unwrap();
    let mut port = null();
    drop(port.start(&PortConfig { mtu: Some(9000), ..PortConfig::default() }, &pool).unwrap());
    assert_eq!(port.mtu().unwrap(), 9000);
}

#[test]
fn requested_rss_is_applied_and_reported() {
    let pool = pool();
    let mut port = null();
    let key: Vec<u8> = (0..40).collect();
    let table = Some(vec![1, 1, 0, 1]);
    let rss = RssConfig { key: Some(key.clone()), hash: RssHash::IP | RssHash::TCP, table };
    let queues = port.start(&PortConfig { queues: 2, rss, ..PortConfig::default() }, &pool).unwrap();
    let rss = port.rss().unwrap().expect("net_null has RSS");
    assert_eq!(rss.key, key);
    assert!(rss.hash.intersects(RssHash::TCP) && !rss.hash.intersects(RssHash::UDP));
    assert_eq!(rss.table.len(), usize::from(port.info().rss_table_len));
    assert!(rss.table.chunks(4).all(|part| part == [1, 1, 0, 1]), "{:?}", rss.table);
    drop(queues);
}

#[test]
fn a_port_without_scaling_reports_it_and_still_starts() {
    let pool = pool();
    let mut port = Port::attach(testing::eal(), "net_ring").unwrap();
    let queues = port.start(&PortConfig { queues: 4, ..PortConfig::default() }, &pool).unwrap();
    assert_eq!(queues.rx.len(), 4);
    assert_eq!((port.rss().unwrap(), port.info().rss_hash), (None, RssHash::NONE));
}

#[test]
fn a_port_reports_what_was_negotiated_and_segments_only_on_request() {
    let pool = pool();
    let mut port = Port::attach(testing::eal(), "net_ring").unwrap();
    for send_segments in [true, false] {
        let config =
            PortConfig { send_segments, fast_free: true, rx_descriptors: 512, ..PortConfig::default() };
        drop(port.start(&config, &pool).unwrap());
        let agreed = port.negotiated().unwrap();
        assert_eq!((agreed.rx_descriptors, agreed.tx_descriptors), (512, 1024));
        assert_eq!(agreed.tx_offloads.contains(&"MULTI_SEGS".to_owned()), send_segments, "{agreed:?}");
        // Other tests of this process have their own pools, and net_ring lacks this offload.
        assert!(!agreed.tx_offloads.contains(&"MBUF_FAST_FREE".to_owned()), "{agreed:?}");
    }
}

#[test]
fn extended_counters_are_named_and_those_of_queues_are_among_them() {
    let pool = pool();
    let mut port = null();
    let mut queues = port.start(&PortConfig { queues: 2, ..PortConfig::default() }, &pool).unwrap();
    let mut burst = Burst::<32>::new();
    queues.rx[1].rx(&mut burst);
    let stats = port.extended_stats().unwrap();
    let value = |name: &str| stats.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    assert_eq!((value("rx_good_packets"), value("rx_q1_packets")), (Some(32), Some(32)), "{stats:?}");
    assert_eq!((value("rx_q0_packets"), value("nonsense")), (Some(0), None));
}

#[test]
fn counters_count_and_reset() {
    let pool = pool();
    let mut port = null();
    let mut queues = port.start(&PortConfig::default(), &pool).unwrap();
    let mut burst = Burst::<32>::new();
    queues.rx[0].rx(&mut burst);
    queues.tx[0].tx(&mut burst);
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_packets, stats.tx_packets), (32, 32));
    port.reset_stats().unwrap();
    assert_eq!(port.stats().unwrap().rx_packets, 0);
    assert!(port.link().unwrap().up);
}

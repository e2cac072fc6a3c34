//! Attaches a device, prints its properties, and sends every frame back to its sender for some seconds.
//!
//! `cargo run -p dpdk --example reflect -- DEVICE [QUEUES [SECONDS [HUGEPAGES-MIB]]]`, for instance as root
//! `net_af_packet,iface=eth1,qpairs=2 2`. Like workers, it uses one pinned thread per queue. Use it for a first test of
//! a NIC; it is also the smallest program that shows how to use this crate.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use dpdk::{
    Burst, Eal, EalConfig, Lcore, LogLevel, Memory, Pci, PktPool, PoolConfig, Port, PortConfig, RxQueue,
    TxQueue, lcore,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let device = arguments.next().ok_or("usage: reflect DEVICE [QUEUES [SECONDS [HUGEPAGES-MIB]]]")?;
    let queues = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let seconds = arguments.next().map_or(Ok(10), |text| text.parse())?;
    let memory = match arguments.next() {
        Some(mib) => Memory::Hugepages { mib: mib.parse()? },
        None => Memory::NoHuge { mib: 128 },
    };
    // A PCI address has a colon before any argument; the name of a vdev has none.
    let is_pci = device.split(',').next().is_some_and(|name| name.contains(':'));
    let pci = if is_pci { Pci::Allow(vec![device.clone()]) } else { Pci::None };

    let eal = Eal::init(&EalConfig { memory, pci, log_level: LogLevel::Notice, ..EalConfig::default() })?;
    let pool = PktPool::new(&eal, &PoolConfig::default())?;
    let mut port = Port::attach(&eal, &device)?;
    let config = PortConfig { queues, promiscuous: true, ..PortConfig::default() };
    let handles = port.start(&config, &pool)?;
    println!("{}, {:#?}", Eal::version(), port.info());
    println!("mac {:02x?}, mtu {}, {:?}, {:?}", port.mac()?, port.mtu()?, port.link()?, port.rss()?);

    let until = Instant::now() + Duration::from_secs(seconds);
    let cpus = lcore::usable_cpus();
    thread::scope(|scope| {
        for (index, (rx, tx)) in handles.rx.into_iter().zip(handles.tx).enumerate() {
            let (eal, cpu) = (&eal, cpus[index % cpus.len()]);
            scope.spawn(move || match Lcore::register_on(eal, cpu) {
                Ok(_lcore) => reflect(rx, tx, until),
                Err(error) => eprintln!("queue {index}: {error}"),
            });
        }
    });
    println!("{:?}, {pool:?}", port.stats()?);
    Ok(())
}

/// Swaps the Ethernet and IPv4 addresses of received frames until the time is over, and prints what it received.
fn reflect(mut rx: RxQueue, mut tx: TxQueue, until: Instant) {
    let mut burst = Burst::<32>::new();
    let (mut received, mut sent, mut tagged, mut longest) = (0, 0, 0, 0);
    while Instant::now() < until {
        received += rx.rx(&mut burst);
        for mbuf in burst.iter_mut() {
            longest = longest.max(mbuf.len());
            tagged += usize::from(mbuf.stripped_vlan().is_some());
            let data = mbuf.data_mut();
            if data.len() >= 12 {
                data[..12].rotate_left(6);
            }
            if data.len() >= 34 && data[12..14] == [8, 0] {
                data[26..34].rotate_left(4);
            }
        }
        sent += tx.tx(&mut burst);
        burst.clear();
    }
    println!(
        "queue {}: received {received}, sent back {sent}, longest {longest} bytes, tags stripped {tagged}",
        rx.id()
    );
}

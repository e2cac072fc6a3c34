//! The EAL from its start to its clean-up, in a separate process, because it can start only once in each.

use dpdk::{Burst, Eal, EalConfig, EalError, LogLevel, Memory, PktPool, PoolConfig, Port, PortConfig};

#[test]
fn ports_and_frames_work_on_after_the_handles_on_the_eal_and_the_pool_are_dropped() {
    let config = EalConfig {
        memory: Memory::NoHuge { mib: 64 },
        vdevs: vec!["net_null0,size=100".to_owned()],
        log_level: LogLevel::Error,
        ..EalConfig::default()
    };
    let eal = Eal::init(&config).unwrap();
    let pool = PktPool::new(&eal, &PoolConfig { mbufs: 511, ..PoolConfig::default() }).unwrap();

    // The EAL creates it at its start; the test attaches it here.
    let mut port = Port::attach(&eal, "net_null0").unwrap();
    drop(eal);
    let mut queues = port.start(&PortConfig::default(), &pool).unwrap();
    drop((pool, port));
    let mut burst = Burst::<32>::new();
    assert_eq!(queues.rx[0].rx(&mut burst), 32);
    burst[0].append(10).unwrap().fill(1);
    assert_eq!((burst[0].len(), burst[31].len()), (110, 100));

    // All mbufs are returned. Then the last holder of the port, the pool and the EAL is dropped: they are closed, freed
    // and cleaned up, in that order.
    drop(burst);
    drop(queues);
    assert!(matches!(Eal::init(&config), Err(EalError::AlreadyInitialised)));
}

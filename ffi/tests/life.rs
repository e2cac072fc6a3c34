//! The EAL from start to clean-up, in a separate process because it can start only once per process.

use dpdk::{Burst, Eal, EalConfig, EalError, LogLevel, Memory, PktPool, PoolConfig, Port, PortConfig};

#[test]
fn ports_and_frames_outlive_the_handles_on_eal_and_pool() {
    let config = EalConfig {
        memory: Memory::NoHuge { mib: 64 },
        vdevs: vec!["net_null0,size=100".to_owned()],
        log_level: LogLevel::Error,
        ..EalConfig::default()
    };
    let eal = Eal::init(&config).unwrap();
    let pool = PktPool::new(&eal, &PoolConfig { mbufs: 511, ..PoolConfig::default() }).unwrap();

    // The EAL creates it when starting; the test attaches it here.
    let mut port = Port::attach(&eal, "net_null0").unwrap();
    drop(eal);
    let mut queues = port.start(&PortConfig::default(), &pool).unwrap();
    drop((pool, port));
    let mut burst = Burst::<32>::new();
    assert_eq!(queues.rx[0].rx(&mut burst), 32);
    burst[0].append(10).unwrap().fill(1);
    assert_eq!((burst[0].len(), burst[31].len()), (110, 100));

    // All mbufs are returned. Then the last owners of the port, the pool and the EAL are dropped, which closes, frees
    // and cleans them up in that order.
    drop(burst);
    drop(queues);
    assert!(matches!(Eal::init(&config), Err(EalError::AlreadyInitialised)));
}

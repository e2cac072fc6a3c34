//! Support for tests of this crate and of its users: one EAL for the process, and ports without NICs.
//!
//! Tests use the real DPDK, without mocks, and need neither root nor hugepages. Tests of one process run on many
//! threads and share the EAL; each creates its own ports and pools.
//!
//! Invariant: a test that reads process-wide state must own [`serial`].

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::eal::{Eal, EalConfig, LogLevel, Memory};
use crate::error::PortError;
use crate::mempool::PktPool;
use crate::port::Port;
use crate::ring::Ring;

/// The EAL of this process: plain pages, no PCI, only errors logged. The first caller starts it.
///
/// # Panics
/// If DPDK does not start; the message contains the reason.
pub fn eal() -> &'static Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| {
        // On a separate thread, because the thread that starts the EAL becomes its main lcore, with a cache in each
        // pool.
        let start = || {
            Eal::init(&EalConfig {
                memory: Memory::NoHuge { mib: 512 },
                log_level: LogLevel::Critical,
                ..EalConfig::default()
            })
        };
        match std::thread::spawn(start).join().expect("starting the EAL does not panic") {
            Ok(eal) => eal,
            Err(error) => panic!("tests of the DPDK path need a working DPDK: {error}"),
        }
    })
}

/// A lock for tests that must not run at the same time.
pub fn serial() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two connected ports: frames sent on queue i of one are received on queue i of the other. Each direction of each
/// queue has capacity for `depth` frames.
///
/// # Errors
/// See [`Port::attach`].
///
/// # Panics
/// If there is no memory for the rings.
pub fn port_pair(eal: &Eal, queues: u16, depth: u32) -> Result<(Port, Port), PortError> {
    let rings = || -> Vec<Arc<Ring>> {
        (0..queues)
            .map(|_| Arc::new(Ring::new(eal, depth, None).expect("there is memory for a ring")))
            .collect()
    };
    let (there, back) = (rings(), rings());
    Ok((Port::of_rings(eal, &back, &there)?, Port::of_rings(eal, &there, &back)?))
}

/// The fill level of a pool, to check later that no mbuf was lost.
///
/// ```
/// use dpdk::{PktPool, PoolConfig, testing};
///
/// let pool = PktPool::new(testing::eal(), &PoolConfig { mbufs: 255, ..PoolConfig::default() })?;
/// let level = testing::Level::of(&pool);
/// let mbuf = pool.alloc()?;
/// assert_eq!(level.missing(), 1);
/// drop(mbuf);
/// level.assert_restored();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Level {
    pool: PktPool,
    available: u32,
}

impl Level {
    /// Records the current level.
    #[must_use]
    pub fn of(pool: &PktPool) -> Self {
        Self { pool: pool.clone(), available: pool.available() }
    }

    /// The number of mbufs that are currently missing.
    #[must_use]
    pub fn missing(&self) -> i64 {
        i64::from(self.available) - i64::from(self.pool.available())
    }

    /// Checks that as many mbufs are available as at the beginning.
    ///
    /// # Panics
    /// If mbufs were lost or freed twice.
    #[track_caller]
    pub fn assert_restored(&self) {
        assert_eq!(self.missing(), 0, "mbufs lost (negative: freed twice)");
    }
}

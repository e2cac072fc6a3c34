//! Support for tests of this crate and of those that use it: one EAL for the process, and ports without NICs.
//!
//! Everything is the real DPDK; nothing imitates it. Neither root nor hugepages are needed. Tests of one process run on
//! many threads and share the EAL; each creates its own ports and pools.
//!
//! Invariant: a test that reads what the whole process shares holds [`serial`].

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::eal::{Eal, EalConfig, LogLevel, Memory};
use crate::error::PortError;
use crate::mempool::PktPool;
use crate::port::Port;
use crate::ring::Ring;

/// The EAL of this process: plain pages, no PCI, errors logged only. Started by the first caller.
///
/// # Panics
/// When DPDK does not start: a test that needs it fails then, and says why.
pub fn eal() -> &'static Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| {
        // On a thread of its own: the one that starts the EAL becomes its main lcore, with a cache in each pool.
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

/// For tests that must not run beside others that hold this too.
pub fn serial() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two ports back to back: what one sends on queue i, the other receives on queue i. Each direction of each queue
/// holds `depth` frames; a queue that is full takes no more.
///
/// # Errors
/// As [`Port::attach`].
///
/// # Panics
/// When there is no memory for the rings.
pub fn port_pair(eal: &Eal, queues: u16, depth: u32) -> Result<(Port, Port), PortError> {
    let rings = || -> Vec<Arc<Ring>> {
        (0..queues)
            .map(|_| Arc::new(Ring::new(eal, depth, None).expect("there is memory for a ring")))
            .collect()
    };
    let (there, back) = (rings(), rings());
    Ok((Port::of_rings(eal, &back, &there)?, Port::of_rings(eal, &there, &back)?))
}

/// A pool's level, to be compared later: the proof that no mbuf was lost.
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
    /// The level now.
    #[must_use]
    pub fn of(pool: &PktPool) -> Self {
        Self { pool: pool.clone(), available: pool.available() }
    }

    /// How many fewer are available now.
    #[must_use]
    pub fn missing(&self) -> i64 {
        i64::from(self.available) - i64::from(self.pool.available())
    }

    /// Checks that as many are available as at the beginning.
    ///
    /// # Panics
    /// When not.
    #[track_caller]
    pub fn assert_restored(&self) {
        assert_eq!(self.missing(), 0, "mbufs lost (negative: freed twice)");
    }
}

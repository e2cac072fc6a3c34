//! Safe DPDK: the EAL, packet memory, ports and their queues, for one process that owns them all.
//!
//! Contains all `unsafe` code of the project except the cache prefetch of `tidegate-structures`; each block says why it
//! is sound. Not here: VIPs, flows or Kubernetes. Used by the dataplane's `dpdk` driver, and by tests.
//!
//! May depend on: `dpdk-sys`.
//!
//! Invariant: an mbuf has exactly one owner, in Rust or in C, and returns to its pool when that owner drops it.
//! Invariant: [`RxQueue::rx`], [`TxQueue::tx`], [`PktPool::alloc`] and dropping an [`Mbuf`] make no system call of
//! their own, allocate nothing from the heap and take no lock. A driver such as `net_af_packet` may still enter the
//! kernel in its burst function.
//!
//! ```
//! use dpdk::{Burst, PktPool, PoolConfig, Port, PortConfig, testing};
//!
//! let eal = testing::eal(); // a program calls Eal::init once instead
//! let pool = PktPool::new(eal, &PoolConfig { mbufs: 511, ..PoolConfig::default() })?;
//! let mut port = Port::attach(eal, "net_ring")?; // what it sends, it receives
//! let mut queues = port.start(&PortConfig::default(), &pool)?;
//!
//! let mut burst = Burst::<32>::new();
//! let mut frame = pool.alloc()?;
//! frame.append(60)?.fill(0x5a);
//! burst.push(frame).expect("a new burst is empty");
//! assert_eq!(queues.tx[0].tx(&mut burst), 1);
//! assert_eq!(queues.rx[0].rx(&mut burst), 1);
//! assert_eq!(burst[0].data(), [0x5a; 60]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod affinity;
pub mod burst;
pub mod cycles;
pub mod eal;
pub mod error;
pub mod flow;
pub mod lcore;
pub mod mbuf;
pub mod mempool;
pub mod port;
pub mod queue;
pub mod region;
pub mod ring;
pub mod stats;
pub mod testing;

pub use burst::Burst;
pub use eal::{Eal, EalConfig, LogLevel, Memory, Pci};
pub use error::{EalError, Errno, LcoreError, NoSpace, PoolError, PoolExhausted, PortError, RingError};
pub use flow::{Rss, RssConfig, RssHash};
pub use lcore::Lcore;
pub use mbuf::{Checksum, Mbuf};
pub use mempool::{PktPool, PoolConfig};
pub use port::{EXTENDED_STATS_MAX, Link, Negotiated, Port, PortConfig, PortInfo, Queues};
pub use queue::{RxQueue, TxQueue};
pub use region::Region;
pub use ring::{RingReceiver, RingSender};
pub use stats::PortStats;

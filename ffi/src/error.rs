//! What can go wrong, in words that an operator can act on.
//!
//! What lives here: [`Errno`] (DPDK's error number with its text) and one error type for each thing that can fail.
//! Each names the object (port, pool, argument), what was asked and what would have been accepted.
//! Invariant: the errors of the packet path ([`PoolExhausted`], [`NoRoom`]) carry nothing and cost nothing.

use std::ffi::CStr;
use std::fmt;

use dpdk_sys as sys;

/// An error number of the EAL or of a driver (`rte_errno`), shown with the text of `rte_strerror`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(i32);

impl Errno {
    /// The number, positive, as in `errno.h`.
    #[must_use]
    pub fn code(self) -> i32 {
        self.0
    }

    /// What the last failing call on this thread left in `rte_errno`.
    pub(crate) fn last() -> Self {
        // SAFETY: reads a thread-local of librte_eal; no precondition.
        Self(unsafe { sys::dpdk_sys_errno() })
    }

    /// From a return value that is a negated error number.
    pub(crate) fn from_return(value: i32) -> Self {
        Self(value.checked_abs().unwrap_or(i32::MAX))
    }

    /// `Ok` for zero and positive return values, the error otherwise.
    pub(crate) fn check(value: i32) -> Result<i32, Self> {
        if value < 0 { Err(Self::from_return(value)) } else { Ok(value) }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: rte_strerror takes any number and returns a NUL-terminated string in a per-thread buffer (or a
        // constant), valid until this thread's next call; it is copied out before this function returns.
        let text = unsafe { CStr::from_ptr(sys::rte_strerror(self.0)) };
        write!(f, "{} (error {})", text.to_string_lossy(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

impl std::error::Error for Errno {}

/// Why the EAL did not start.
#[derive(Debug, thiserror::Error)]
pub enum EalError {
    /// The EAL starts once in the life of a process, and does not start again after its clean-up.
    #[error("the EAL was already initialised in this process")]
    AlreadyInitialised,
    /// An argument holds a NUL byte, which C cannot take.
    #[error("EAL argument {0:?} holds a NUL byte")]
    Argument(String),
    /// `rte_eal_init` refused.
    #[error("the EAL did not start: {source}; arguments: {arguments}{hint}")]
    Init {
        /// The command line that was given, for a second try by hand (`dpdk-testpmd ARGUMENTS`).
        arguments: String,
        /// What would probably help, or empty.
        hint: &'static str,
        /// `rte_errno`.
        source: Errno,
    },
}

/// Why a pool of mbufs was not made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A figure of the configuration is out of its range.
    #[error("mbuf pool: {what} is {given}; accepted: {accepted}")]
    Config {
        /// Which figure.
        what: &'static str,
        /// What was asked for.
        given: u32,
        /// The range.
        accepted: String,
    },
    /// `rte_pktmbuf_pool_create` refused; for lack of memory most of the time.
    #[error(
        "mbuf pool of {mbufs} mbufs with {data_room} bytes each: {source}; give the EAL more memory, or ask for fewer"
    )]
    Create {
        /// How many mbufs were asked for.
        mbufs: u32,
        /// Bytes of each, headroom included.
        data_room: u32,
        /// `rte_errno`.
        source: Errno,
    },
}

/// The pool has no mbuf left. The caller drops or waits; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mbuf pool is exhausted")]
pub struct PoolExhausted;

/// The mbuf cannot grow or shrink by that much there. It is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such room in the mbuf")]
pub struct NoRoom;

/// Why a port could not be attached, configured or asked.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The device string is not one that DPDK could take.
    #[error(
        "device {device:?}: {why}; accepted: a vdev such as \"net_af_packet,iface=eth1\", or a PCI address such as \"0000:03:00.0\""
    )]
    Device {
        /// The string as given.
        device: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The driver refused the device, or none knows it.
    #[error("device {device:?} cannot be attached: {source}{hint}")]
    Attach {
        /// The string as given to the EAL.
        device: String,
        /// What would probably help, or empty.
        hint: &'static str,
        /// What the bus or the driver said.
        source: Errno,
    },
    /// The device is there but made no Ethernet port of that name.
    #[error("device {0:?} was attached but has no Ethernet port")]
    NoPort(String),
    /// Another [`crate::Port`] has it.
    #[error("port {0:?} is in use already")]
    InUse(String),
    /// The port's queues are still held: hand them back (drop them) first.
    #[error("port {0:?}: its queues are still in use")]
    QueuesInUse(String),
    /// A figure of the configuration is out of the range that this port has.
    #[error("port {port:?}: {what} is {given}; accepted: {accepted}")]
    Config {
        /// The port.
        port: String,
        /// Which figure.
        what: &'static str,
        /// What was asked for.
        given: u64,
        /// What this port takes.
        accepted: String,
    },
    /// A call on the port failed.
    #[error("port {port:?}: {what}: {source}")]
    Call {
        /// The port.
        port: String,
        /// What was being done.
        what: &'static str,
        /// What the driver said.
        source: Errno,
    },
}

/// Why a ring was not made.
#[derive(Debug, thiserror::Error)]
#[error("ring of {capacity} mbufs: {source}")]
pub struct RingError {
    /// How many mbufs it was to hold.
    pub capacity: u32,
    /// `rte_errno`.
    pub source: Errno,
}

/// Why a thread did not become an lcore.
#[derive(Debug, thiserror::Error)]
pub enum LcoreError {
    /// The CPU does not exist, or this process may not use it.
    #[error("CPU {cpu} cannot be used: {source}; usable: {usable:?}")]
    Pin {
        /// Which CPU.
        cpu: usize,
        /// The CPUs that this process may run on.
        usable: Vec<usize>,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The thread is an lcore already.
    #[error("this thread is lcore {0} already")]
    Registered(u32),
    /// `rte_thread_register` refused: there are no more lcore numbers.
    #[error("no lcore for this thread: {0}")]
    Register(Errno),
}

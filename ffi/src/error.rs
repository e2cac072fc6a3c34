//! Errors, with messages that help an operator fix the cause.
//!
//! Contains [`Errno`] (DPDK's error number with its text) and one error type for each operation that can fail. Each
//! names the object (port, pool, argument), the request, and what would have been accepted.
//!
//! Invariant: the errors of the packet path ([`PoolExhausted`], [`NoSpace`]) are empty types without cost.

use std::ffi::CStr;
use std::fmt;

use dpdk_sys as sys;

/// An error number of the EAL or of a driver (`rte_errno`), displayed with the text of `rte_strerror`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(i32);

impl Errno {
    /// The positive number, as in `errno.h`.
    #[must_use]
    pub fn code(self) -> i32 {
        self.0
    }

    /// The value that the last failing call on this thread stored in `rte_errno`.
    pub(crate) fn last() -> Self {
        // SAFETY: reads a thread-local of librte_eal; no precondition.
        Self(unsafe { sys::dpdk_sys_errno() })
    }

    /// Converts a return value that is a negated error number.
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
    /// The EAL starts once per process, and can't start again after its clean-up.
    #[error("the EAL was already initialised in this process")]
    AlreadyInitialised,
    /// An argument contains a NUL byte, which C does not accept.
    #[error("EAL argument {0:?} contains a NUL byte")]
    Argument(String),
    /// `rte_eal_init` failed.
    #[error("the EAL did not start: {source}; arguments: {arguments}{hint}")]
    Init {
        /// The arguments, which can be tried by hand (`dpdk-testpmd ARGUMENTS`).
        arguments: String,
        /// A likely remedy, or empty.
        hint: &'static str,
        /// `rte_errno`.
        source: Errno,
    },
}

/// Why a pool of mbufs could not be created.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A value of the configuration is out of range.
    #[error("mbuf pool: {what} is {given}; accepted: {accepted}")]
    Config {
        /// The name of the value.
        what: &'static str,
        /// The given value.
        given: u32,
        /// The accepted range.
        accepted: String,
    },
    /// `rte_pktmbuf_pool_create` failed, usually for lack of memory.
    #[error(
        "cannot create a pool of {mbufs} mbufs with {data_room} bytes each: {source}; give DPDK more memory, or \
         request fewer mbufs"
    )]
    Create {
        /// The requested number of mbufs.
        mbufs: u32,
        /// The size of each in bytes, including the headroom.
        data_room: u32,
        /// `rte_errno`.
        source: Errno,
    },
    /// A port returns sent mbufs without checking their pool ([`crate::PortConfig::fast_free`]).
    #[error(
        "cannot create another mbuf pool: a running port supports only one pool; create all pools before starting \
         ports"
    )]
    OnlyPool,
}

/// The pool has no free mbuf. The caller drops the packet or waits; nothing was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mbuf pool is exhausted")]
pub struct PoolExhausted;

/// The mbuf can't grow or shrink by that amount. It is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not enough space in the mbuf")]
pub struct NoSpace;

/// Why a port could not be attached, configured or queried.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The device string is invalid for DPDK.
    #[error(
        "device {device:?}: {why}; accepted: a vdev such as \"net_af_packet,iface=eth1\", or a PCI address such as \"0000:03:00.0\""
    )]
    Device {
        /// The string as given.
        device: String,
        /// The error.
        why: &'static str,
    },
    /// The driver rejected the device, or no driver supports it.
    #[error("device {device:?} cannot be attached: {source}{hint}")]
    Attach {
        /// The string that was passed to the EAL.
        device: String,
        /// A likely remedy, or empty.
        hint: &'static str,
        /// The error of the bus or the driver.
        source: Errno,
    },
    /// The device exists but has not created an Ethernet port with its name.
    #[error("device {0:?} was attached but has no Ethernet port")]
    NoPort(String),
    /// Another [`crate::Port`] uses it.
    #[error("port {0:?} is in use already")]
    InUse(String),
    /// The port's queues still have handles. Drop them first.
    #[error("port {0:?} cannot change: its queues are still in use")]
    QueuesInUse(String),
    /// A value of the configuration is outside the range of this port.
    #[error("port {port:?}: {what} is {given}; accepted: {accepted}")]
    Config {
        /// The port.
        port: String,
        /// The name of the value.
        what: &'static str,
        /// The given value.
        given: String,
        /// The values that this port accepts.
        accepted: String,
    },
    /// A call on the port failed.
    #[error("port {port:?}: cannot {what}: {source}")]
    Call {
        /// The port.
        port: String,
        /// The operation that failed.
        what: &'static str,
        /// The error of the driver.
        source: Errno,
    },
}

/// Why a ring could not be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create a ring of {capacity} mbufs: {source}")]
pub struct RingError {
    /// The requested capacity in mbufs.
    pub capacity: u32,
    /// `rte_errno`.
    pub source: Errno,
}

/// Why a thread could not become an lcore.
#[derive(Debug, thiserror::Error)]
pub enum LcoreError {
    /// The CPU does not exist, or this process may not use it.
    #[error("CPU {cpu} cannot be used: {source}; usable: {usable:?}")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// The CPUs that this process may run on.
        usable: Vec<usize>,
        /// The error of the kernel.
        source: std::io::Error,
    },
    /// The thread is an lcore already.
    #[error("this thread is lcore {0} already")]
    Registered(u32),
    /// `rte_thread_register` failed: there are no more lcore numbers.
    #[error("cannot make this thread an lcore of DPDK: {0}")]
    Register(Errno),
}

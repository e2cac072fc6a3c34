//! One frame in packet memory.
//!
//! [`Mbuf`] gives access to the bytes, to the space before and after them, and to the flags of the NIC. It knows no
//! protocols. Fields are read inline at the offsets that `dpdk-sys` determined with `offsetof`; only freeing calls C.
//!
//! Invariant: one owner. `Mbuf` is not `Clone`; passing it to C consumes it; dropping it returns it to its pool.
//! Invariant: all mbufs here are direct and have a reference count of 1, so `&mut Mbuf` gives exclusive access to the
//! bytes.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use dpdk_sys as sys;

use crate::error::NoSpace;

/// An owned frame in packet memory.
///
/// It has the size and layout of a pointer to `rte_mbuf`: burst functions take an array of them.
///
/// ```
/// use dpdk::{PktPool, PoolConfig, testing};
///
/// let pool = PktPool::new(testing::eal(), &PoolConfig { mbufs: 255, ..PoolConfig::default() })?;
/// let mut mbuf = pool.alloc()?;
/// mbuf.append(4)?.copy_from_slice(b"data");
/// mbuf.prepend(2)?.copy_from_slice(b"h:");
/// assert_eq!(mbuf.data(), b"h:data");
/// mbuf.trim_front(2)?;
/// mbuf.truncate(2)?;
/// assert_eq!(mbuf.data(), b"da");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf belongs to its owner, on whatever thread; it can be returned to its pool on any thread.
unsafe impl Send for Mbuf {}
// SAFETY: `&Mbuf` only allows reading.
unsafe impl Sync for Mbuf {}

/// The NIC's verdict on a checksum (`RTE_MBUF_F_RX_*_CKSUM_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The NIC has not verified it.
    Unknown,
    /// It is correct.
    Good,
    /// It is wrong.
    Bad,
    /// The packet has no checksum, but its data are known to be intact, for example because they come from a virtual
    /// machine.
    Absent,
}

impl Mbuf {
    /// The bytes of the frame: all of them if [`Mbuf::is_contiguous`], otherwise only the first segment.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        // SAFETY: data_off + data_len <= buf_len in every mbuf (DPDK's drivers and this module keep it), so
        // the range lies in the buffer, which is mapped memory that nobody else writes while we own the mbuf.
        unsafe { std::slice::from_raw_parts(self.start(), usize::from(self.data_len())) }
    }

    /// Like [`Mbuf::data`], mutable.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start(), usize::from(self.data_len())) }
    }

    /// Prefetches the first cache line of the frame for a following [`Mbuf::data`]. Reads the mbuf itself, which a
    /// driver has just written.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is a hint and is allowed for any address.
        unsafe {
            core::arch::x86_64::_mm_prefetch(self.start().cast(), core::arch::x86_64::_MM_HINT_T0);
        }
    }

    /// Length of the frame in bytes, over all segments.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no caller needs to know whether a frame is empty")]
    pub fn len(&self) -> usize {
        self.pkt_len() as usize
    }

    /// Whether the whole frame is in one segment, so that [`Mbuf::data`] contains all of it.
    #[inline]
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        // SAFETY: the field is there (see `field`).
        unsafe { self.field::<u16>(sys::DPDK_SYS_MBUF_NB_SEGS).read() == 1 }
    }

    /// Joins the segments of the frame into one.
    ///
    /// # Errors
    /// If the first segment has no space for the whole frame; the frame is then unchanged.
    pub fn linearize(&mut self) -> Result<(), NoSpace> {
        if self.is_contiguous() {
            return Ok(());
        }
        // SAFETY: we own this valid mbuf and its further segments, which the call frees.
        if unsafe { sys::rte_pktmbuf_linearize(self.0.as_ptr()) } == 0 { Ok(()) } else { Err(NoSpace) }
    }

    /// Free bytes before the frame.
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        usize::from(self.data_off())
    }

    /// Free bytes after the data of the first segment.
    #[inline]
    #[must_use]
    pub fn tailroom(&self) -> usize {
        // SAFETY: the field is there (see `field`).
        let buf_len = unsafe { self.field::<u16>(sys::DPDK_SYS_MBUF_BUF_LEN).read() };
        usize::from(buf_len).saturating_sub(usize::from(self.data_off()) + usize::from(self.data_len()))
    }

    /// Grows the frame by `count` bytes at the front and returns these bytes. Their contents are undefined; the caller
    /// must write them.
    ///
    /// # Errors
    /// If the headroom is smaller.
    #[inline]
    pub fn prepend(&mut self, count: usize) -> Result<&mut [u8], NoSpace> {
        let data_off = self.data_off();
        let Some(grow) = u16::try_from(count).ok().filter(|&grow| grow <= data_off) else {
            return Err(NoSpace);
        };
        let data_len = self.data_len().checked_add(grow).ok_or(NoSpace)?;
        let pkt_len = self.pkt_len().checked_add(u32::from(grow)).ok_or(NoSpace)?;
        self.set_data_off(data_off - grow);
        self.set_lengths(data_len, pkt_len);
        Ok(&mut self.data_mut()[..count])
    }

    /// Removes `count` bytes from the front.
    ///
    /// # Errors
    /// If the first segment has fewer bytes.
    #[inline]
    pub fn trim_front(&mut self, count: usize) -> Result<(), NoSpace> {
        let data_len = self.data_len();
        let Some(shrink) = u16::try_from(count).ok().filter(|&shrink| shrink <= data_len) else {
            return Err(NoSpace);
        };
        self.set_data_off(self.data_off() + shrink);
        self.set_lengths(data_len - shrink, self.pkt_len() - u32::from(shrink));
        Ok(())
    }

    /// Grows the frame by `count` bytes at the end and returns these bytes. Their contents are undefined; the caller
    /// must write them.
    ///
    /// # Errors
    /// If the tailroom is smaller, or the frame has several segments.
    #[inline]
    pub fn append(&mut self, count: usize) -> Result<&mut [u8], NoSpace> {
        if count > self.tailroom() || !self.is_contiguous() {
            return Err(NoSpace);
        }
        let old = self.data_len();
        // `count` is at most the tailroom, so the sum is at most buf_len, a u16.
        let data_len = old + u16::try_from(count).map_err(|_| NoSpace)?;
        self.set_lengths(data_len, u32::from(data_len));
        Ok(&mut self.data_mut()[usize::from(old)..])
    }

    /// Shortens the frame to `len` bytes.
    ///
    /// # Errors
    /// If the frame is shorter, or has several segments.
    #[inline]
    pub fn truncate(&mut self, len: usize) -> Result<(), NoSpace> {
        let Some(keep) = u16::try_from(len).ok().filter(|&keep| keep <= self.data_len()) else {
            return Err(NoSpace);
        };
        if !self.is_contiguous() {
            return Err(NoSpace);
        }
        self.set_lengths(keep, u32::from(keep));
        Ok(())
    }

    /// The port that received it; `u16::MAX` for an mbuf that was created here.
    #[inline]
    #[must_use]
    pub fn port(&self) -> u16 {
        // SAFETY: the field is there (see `field`).
        unsafe { self.field::<u16>(sys::DPDK_SYS_MBUF_PORT).read() }
    }

    /// The RSS hash, if the NIC computed it.
    #[inline]
    #[must_use]
    pub fn rss_hash(&self) -> Option<u32> {
        if self.ol_flags() & sys::DPDK_SYS_RX_RSS_HASH == 0 {
            return None;
        }
        // SAFETY: the field is there (see `field`), and the flag says that this member of the union is set.
        Some(unsafe { self.field::<u32>(sys::DPDK_SYS_MBUF_HASH_RSS).read() })
    }

    /// The 802.1Q tag, if the NIC or the kernel removed it from the frame; [`Mbuf::data`] then doesn't contain it.
    #[inline]
    #[must_use]
    pub fn stripped_vlan(&self) -> Option<u16> {
        if self.ol_flags() & sys::DPDK_SYS_RX_VLAN_STRIPPED == 0 {
            return None;
        }
        // SAFETY: the field is there (see `field`).
        Some(unsafe { self.field::<u16>(sys::DPDK_SYS_MBUF_VLAN_TCI).read() })
    }

    /// The NIC's verdict on the IPv4 header checksum.
    #[inline]
    #[must_use]
    pub fn ip_checksum(&self) -> Checksum {
        match self.ol_flags() & sys::DPDK_SYS_RX_IP_CKSUM_MASK {
            0 => Checksum::Unknown,
            sys::DPDK_SYS_RX_IP_CKSUM_GOOD => Checksum::Good,
            sys::DPDK_SYS_RX_IP_CKSUM_BAD => Checksum::Bad,
            _ => Checksum::Absent,
        }
    }

    /// The NIC's verdict on the TCP, UDP or SCTP checksum.
    #[inline]
    #[must_use]
    pub fn l4_checksum(&self) -> Checksum {
        match self.ol_flags() & sys::DPDK_SYS_RX_L4_CKSUM_MASK {
            0 => Checksum::Unknown,
            sys::DPDK_SYS_RX_L4_CKSUM_GOOD => Checksum::Good,
            sys::DPDK_SYS_RX_L4_CKSUM_BAD => Checksum::Bad,
            _ => Checksum::Absent,
        }
    }

    /// Gives up ownership: whoever receives the pointer owns the mbuf.
    #[must_use = "the mbuf is lost to its pool unless somebody takes the pointer back"]
    pub fn into_raw(self) -> NonNull<sys::rte_mbuf> {
        ManuallyDrop::new(self).0
    }

    /// Takes ownership of an mbuf from C.
    ///
    /// # Safety
    /// The pointer refers to a valid, direct mbuf (each segment is) with a reference count of 1, from a pool created by
    /// [`crate::PktPool`], and no other owner uses it from now on.
    #[must_use]
    pub unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Self {
        Self(raw)
    }

    /// A pointer to the field at `offset` bytes.
    ///
    /// # Safety
    /// `offset` is one of the `DPDK_SYS_MBUF_*` constants, which C computed with offsetof for this struct, and `T` is
    /// the type of that field. The mbuf is valid because we own it, so the pointer may be read, and also written while
    /// the mbuf is borrowed mutably.
    #[inline]
    unsafe fn field<T>(&self, offset: u32) -> *mut T {
        // SAFETY: by the precondition the result lies inside the mbuf.
        unsafe { self.0.as_ptr().byte_add(offset as usize).cast() }
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        // SAFETY: the field is there (see `field`), and data_off <= buf_len keeps the sum inside the buffer or at its
        // end.
        unsafe { self.field::<*mut u8>(sys::DPDK_SYS_MBUF_BUF_ADDR).read().add(usize::from(self.data_off())) }
    }

    #[inline]
    fn data_off(&self) -> u16 {
        // SAFETY: the field is there (see `field`).
        unsafe { self.field::<u16>(sys::DPDK_SYS_MBUF_DATA_OFF).read() }
    }

    #[inline]
    fn data_len(&self) -> u16 {
        // SAFETY: the field is there (see `field`).
        unsafe { self.field::<u16>(sys::DPDK_SYS_MBUF_DATA_LEN).read() }
    }

    #[inline]
    fn pkt_len(&self) -> u32 {
        // SAFETY: the field is there (see `field`).
        unsafe { self.field::<u32>(sys::DPDK_SYS_MBUF_PKT_LEN).read() }
    }

    #[inline]
    fn ol_flags(&self) -> u64 {
        // SAFETY: the field is there (see `field`).
        unsafe { self.field::<u64>(sys::DPDK_SYS_MBUF_OL_FLAGS).read() }
    }

    /// Callers keep data_off + data_len <= buf_len.
    #[inline]
    fn set_data_off(&mut self, value: u16) {
        // SAFETY: the field is there (see `field`), and we have it mutably.
        unsafe { self.field::<u16>(sys::DPDK_SYS_MBUF_DATA_OFF).write(value) };
    }

    /// Callers keep data_off + data_len <= buf_len, and pkt_len equal to the sum over the segments.
    #[inline]
    fn set_lengths(&mut self, data_len: u16, pkt_len: u32) {
        // SAFETY: the fields are there (see `field`), and we have them mutably.
        unsafe {
            self.field::<u16>(sys::DPDK_SYS_MBUF_DATA_LEN).write(data_len);
            self.field::<u32>(sys::DPDK_SYS_MBUF_PKT_LEN).write(pkt_len);
        }
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: we are the only owner; the pool lives while any of its mbufs is in use (see `mempool`).
        unsafe { sys::rte_pktmbuf_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mbuf({} bytes, {} before, {} after)", self.len(), self.headroom(), self.tailroom())
    }
}

/// Defines a newtype of [`Mbuf`], with safe conversions between slices of both types, so that a crate can implement a
/// foreign trait for it.
///
/// ```
/// dpdk::mbuf_newtype! {
///     /// A frame, as our pipeline sees it.
///     pub struct Packet;
/// }
///
/// let mut burst = dpdk::Burst::<32>::new();
/// let packets: &mut [Packet] = Packet::slice_mut(&mut burst);
/// assert!(packets.is_empty());
/// ```
#[macro_export]
macro_rules! mbuf_newtype {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident;) => {
        $(#[$attribute])*
        #[repr(transparent)]
        #[derive(Debug)]
        $visibility struct $name(pub $crate::Mbuf);

        #[allow(dead_code, reason = "not every user of the macro needs every part")]
        impl $name {
            /// The frames as this type.
            #[inline]
            #[must_use]
            $visibility fn slice_mut(mbufs: &mut [$crate::Mbuf]) -> &mut [Self] {
                let mbufs: *mut [$crate::Mbuf] = mbufs;
                // SAFETY: repr(transparent) gives both types one layout, and neither adds an invariant to the other.
                unsafe { &mut *(mbufs as *mut [Self]) }
            }

            /// The frame as this type.
            #[inline]
            #[must_use]
            $visibility fn ref_mut(mbuf: &mut $crate::Mbuf) -> &mut Self {
                let mbuf: *mut $crate::Mbuf = mbuf;
                // SAFETY: as in `slice_mut`.
                unsafe { &mut *mbuf.cast::<Self>() }
            }
        }

        impl ::core::convert::From<$crate::Mbuf> for $name {
            #[inline]
            fn from(mbuf: $crate::Mbuf) -> Self {
                Self(mbuf)
            }
        }

        impl ::core::convert::From<$name> for $crate::Mbuf {
            #[inline]
            fn from(packet: $name) -> Self {
                packet.0
            }
        }
    };
}

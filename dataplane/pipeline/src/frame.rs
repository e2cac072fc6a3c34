//! The interface between the pipeline and a frame's memory: bytes with headroom.
//!
//! Drivers implement it: a DPDK mbuf, or a plain buffer for captures and tests. Each input frame becomes at most one
//! output frame, rewritten in place.

/// One received frame, Ethernet header first, contiguous in memory.
pub trait Frame {
    /// The bytes of the frame.
    fn bytes(&self) -> &[u8];

    /// The bytes, to be rewritten in place.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Adds `count` bytes of undefined contents in front. Returns whether the headroom was sufficient.
    #[must_use]
    fn grow_front(&mut self, count: usize) -> bool;

    /// Removes `count` bytes from the front.
    ///
    /// # Panics
    /// May panic if the frame is shorter than `count`: the pipeline checks that first.
    fn shrink_front(&mut self, count: usize);

    /// Sets the length of the frame to `len`: cuts the tail, or adds bytes of undefined contents if
    /// the tailroom is sufficient. Returns whether it succeeded.
    #[must_use]
    fn resize(&mut self, len: usize) -> bool;

    /// Prefetches the first bytes of the frame.
    fn prefetch(&self);
}

/// A frame in plain memory.
#[derive(Debug, Clone)]
pub struct MemoryFrame {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl MemoryFrame {
    /// A frame with these bytes, headroom for headers, and tailroom for replies longer than the frame.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let mut frame = Self::with_capacity(bytes.len() + Self::TAILROOM);
        frame.refill(bytes);
        frame
    }

    const TAILROOM: usize = 256;

    /// An empty frame with capacity for `len` bytes in addition to its headroom.
    #[must_use]
    pub fn with_capacity(len: usize) -> Self {
        let start = tidegate_spec::limits::HEADROOM_MIN;
        Self { buffer: vec![0; start + len].into_boxed_slice(), start, end: start }
    }

    /// Replaces the contents; bytes that do not fit are cut off.
    pub fn refill(&mut self, bytes: &[u8]) {
        let start = tidegate_spec::limits::HEADROOM_MIN;
        let len = bytes.len().min(self.buffer.len() - start);
        self.buffer[start..start + len].copy_from_slice(&bytes[..len]);
        self.start = start;
        self.end = start + len;
    }
}

impl Frame for MemoryFrame {
    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    #[inline]
    fn grow_front(&mut self, count: usize) -> bool {
        let fits = count <= self.start;
        if fits {
            self.start -= count;
        }
        fits
    }

    #[inline]
    fn shrink_front(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "a frame can't shrink by more than its length");
        self.start += count;
    }

    #[inline]
    fn resize(&mut self, len: usize) -> bool {
        let fits = len <= self.buffer.len() - self.start;
        if fits {
            self.end = self.start + len;
        }
        fits
    }

    #[inline]
    fn prefetch(&self) {
        tidegate_structures::prefetch::read(&self.buffer[self.start]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_is_bounded_and_separate_from_the_bytes() {
        let mut frame = MemoryFrame::new(b"abcdef");
        assert!(frame.grow_front(tidegate_spec::limits::HEADROOM_MIN));
        assert!(!frame.grow_front(1));
        frame.shrink_front(tidegate_spec::limits::HEADROOM_MIN);
        assert_eq!(frame.bytes(), b"abcdef");
        assert!(frame.resize(3));
        assert_eq!(frame.bytes(), b"abc");
        assert!(!frame.resize(1 << 20));
    }
}

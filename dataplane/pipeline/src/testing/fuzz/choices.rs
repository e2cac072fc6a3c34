//! Reads the input of a fuzzer as a stream of small choices.
//!
//! Both a coverage-guided fuzzer and a seeded generator can produce the input. All choices after the end of the input
//! are 0, so every input is a complete run.
//!
//! Invariant: equal bytes result in equal choices.

#[derive(Debug)]
pub(super) struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    pub(super) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from(self.u16()) << 16 | u32::from(self.u16())
    }

    /// A number below `count`, which is at most 65,536.
    pub(super) fn below(&mut self, count: usize) -> usize {
        let drawn = if count <= 256 { usize::from(self.byte()) } else { usize::from(self.u16()) };
        drawn % count.max(1)
    }

    /// True once in `count` times, and never after the end of the input.
    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == count - 1
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// At most `count` bytes, copied from the input.
    pub(super) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }
}

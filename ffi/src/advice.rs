//! Advice to the kernel about memory that is not DPDK's: large tables that every packet reads at a different place.
//!
//! Advice changes no contents and may be ignored. Without it, the caller is slower, but correct.

use std::io;

/// Requests huge pages for this memory, if the kernel provides them on request (`madvise(2)`, `MADV_HUGEPAGE`). Call it
/// before the memory is first used; otherwise it already has small pages.
///
/// # Errors
/// The error of the kernel; `EINVAL` without transparent huge pages.
pub fn huge_pages(memory: &[u32]) -> io::Result<()> {
    // The kernel accepts whole pages only. The first and last ones may be shared with other allocations, and are left
    // out.
    const PAGE: usize = 4096;
    let start = memory.as_ptr().addr().next_multiple_of(PAGE);
    let end = (memory.as_ptr().addr() + size_of_val(memory)) / PAGE * PAGE;
    if start >= end {
        return Ok(());
    }
    let first = memory.as_ptr().with_addr(start).cast_mut().cast();
    // SAFETY: the range lies within `memory`, which is borrowed; MADV_HUGEPAGE changes neither contents nor
    // protection, only how the kernel backs the pages.
    match unsafe { libc::madvise(first, end - start, libc::MADV_HUGEPAGE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_leaves_the_contents_as_they_are() {
        let mut memory = vec![0; 1 << 20];
        // A kernel without transparent huge pages returns an error, which is acceptable.
        let _ = huge_pages(&memory);
        memory.iter_mut().zip(0..).for_each(|(word, n)| *word = n);
        let _ = huge_pages(&memory);
        assert!(memory.iter().copied().eq(0..1 << 20));
    }

    #[test]
    fn memory_smaller_than_a_page_is_left_alone() {
        assert!(huge_pages(&[1, 2, 3]).is_ok());
        assert!(huge_pages(&[]).is_ok());
    }
}

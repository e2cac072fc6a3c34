//! Large arrays of words outside the heap: on huge pages, or in a file whose contents outlive the process.
//!
//! A region is never unmapped, so its words are `'static` and need no owner. It is for memory that a process needs
//! until it ends. Pages are allocated when they are first used or by [`Region::populate`].
//!
//! Invariant: the words of a region are handed out once, by the function that maps it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

/// A mapping that lasts as long as the process.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    at: NonNull<libc::c_void>,
    bytes: usize,
}

// SAFETY: a region gives no access to its contents; the system calls on its pages may come from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// The size of a huge page, in bytes.
pub const HUGE_PAGE: usize = 2 << 20;

impl Region {
    /// Zeroed words. With `huge`, they are on huge pages reserved by the administrator (`vm.nr_hugepages`). Otherwise
    /// transparent huge pages are requested.
    ///
    /// # Errors
    /// The error of the kernel; `ENOMEM` if there are not enough huge pages.
    ///
    /// # Panics
    /// If `words` is 0.
    pub fn anonymous(words: usize, huge: bool) -> io::Result<(&'static mut [u32], Self)> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if huge {
            let flags = flags | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
            return map(words, (words * 4).next_multiple_of(HUGE_PAGE), flags, -1);
        }
        let mapped = map(words, words * 4, flags | libc::MAP_NORESERVE, -1)?;
        // A kernel without transparent huge pages returns an error and uses small ones.
        let _ = mapped.1.advise(libc::MADV_HUGEPAGE);
        Ok(mapped)
    }

    /// The words of a file of at least this length. Changes reach the file at once, even if the process is killed. A
    /// file on hugetlbfs has huge pages.
    ///
    /// The file must be on a file system in memory and must not be shortened: the kernel kills a process that accesses
    /// a missing page (`SIGBUS`). For the same reason, the file must have its pages ([`Self::reserve`]) before the
    /// words are used.
    ///
    /// # Errors
    /// The error of the kernel, or `InvalidInput` if the file is shorter.
    ///
    /// # Panics
    /// If `words` is 0.
    pub fn of_file(file: &File, words: usize) -> io::Result<(&'static mut [u32], Self)> {
        let metadata = file.metadata()?;
        let bytes = words * 4;
        if metadata.len() < bytes as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the file is shorter than the memory to be mapped",
            ));
        }
        // On hugetlbfs this is the huge page size, and the length of a mapping must be a multiple of it.
        let page = usize::try_from(metadata.blksize()).unwrap_or(4096);
        let bytes = if page >= HUGE_PAGE { bytes.next_multiple_of(page) } else { bytes };
        let mapped = map(words, bytes, libc::MAP_SHARED, file.as_raw_fd())?;
        let _ = mapped.1.advise(libc::MADV_HUGEPAGE);
        Ok(mapped)
    }

    /// Allocates every page now, so that no later access waits for the kernel. The contents stay.
    ///
    /// # Errors
    /// The error of the kernel; `EINVAL` before Linux 5.14.
    pub fn populate(&self) -> io::Result<()> {
        self.advise(MADV_POPULATE_WRITE)
    }

    /// Keeps pages in memory once they have been used: they are never swapped out.
    ///
    /// # Errors
    /// The error of the kernel; `ENOMEM` beyond `RLIMIT_MEMLOCK`.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is a mapping of this process; locking changes no contents.
        match unsafe { libc::mlock2(self.at.as_ptr(), self.bytes, libc::MLOCK_ONFAULT as libc::c_uint) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Requests memory of this NUMA node, if available, for pages that have not been used.
    ///
    /// # Errors
    /// The error of the kernel; `ENOSYS` without NUMA.
    pub fn prefer_node(&self, node: u16) -> io::Result<()> {
        const MPOL_PREFERRED: libc::c_int = 1;
        let mut nodes = [0_u64; 16];
        let Some(word) = nodes.get_mut(usize::from(node / 64)) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        *word = 1 << (node % 64);
        let (mask, bits) = (nodes.as_ptr(), nodes.len() * 64);
        let address = self.at.as_ptr();
        // SAFETY: mbind(2) reads `bits` bits at `mask`, which lives until it returns. The range is a mapping of this
        // process, and a policy changes no contents.
        let result =
            unsafe { libc::syscall(libc::SYS_mbind, address, self.bytes, MPOL_PREFERRED, mask, bits, 0) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Replaces a file without pages by zeroed memory at the same address. Use it if the pages of the file can't be
    /// allocated.
    ///
    /// # Errors
    /// `InvalidInput` if the file has a page, whose contents would be lost. Otherwise the error of the kernel.
    pub fn detach_file(&self, file: &File) -> io::Result<()> {
        if file.metadata()?.blocks() > 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file has pages"));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range is this region's whole mapping, which stays mapped, readable and writable. Without a page in
        // the file all its words are zero, and so are those of the new memory, so no reader sees a change.
        let at = unsafe { libc::mmap(self.at.as_ptr(), self.bytes, access, flags, -1, 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Bytes of address space.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is a mapping of this process, and callers pass only MADV_HUGEPAGE and MADV_POPULATE_WRITE,
        // which change no contents.
        match unsafe { libc::madvise(self.at.as_ptr(), self.bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Since Linux 5.14 (`include/uapi/asm-generic/mman-common.h`).
const MADV_POPULATE_WRITE: libc::c_int = 23;

fn map(
    words: usize,
    bytes: usize,
    flags: libc::c_int,
    file: libc::c_int,
) -> io::Result<(&'static mut [u32], Region)> {
    assert!(words > 0 && bytes >= words * 4, "a region has words, and the mapping contains them");
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: no address is requested, so the mapping takes none that is in use.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, file, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let at = NonNull::new(at).expect("the kernel maps no memory at address zero");
    // SAFETY: the mapping is readable and writable, at least this long, aligned to a page, initialised by the kernel
    // (every bit pattern is a `u32`), and is never unmapped. Nobody else has a reference: it is new, and `Region` gives
    // none. The operator must ensure that nobody else changes the file: only the process's user may open it.
    let slice = unsafe { std::slice::from_raw_parts_mut(at.as_ptr().cast::<u32>(), words) };
    Ok((slice, Region { at, bytes }))
}

/// A file in memory for reading. Unlike a [`Region`], it is unmapped when dropped.
#[derive(Debug)]
pub struct Reading {
    at: NonNull<u32>,
    words: usize,
    bytes: usize,
}

// SAFETY: the memory is only read.
unsafe impl Send for Reading {}
// SAFETY: as above.
unsafe impl Sync for Reading {}

impl Reading {
    /// The first `words` words of a file. The file must not be written or shortened meanwhile.
    ///
    /// # Errors
    /// The error of the kernel, or `InvalidInput` if the file is shorter or there are no words.
    pub fn of_file(file: &File, words: usize) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let bytes = words * 4;
        if words == 0 || metadata.len() < bytes as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is shorter than expected"));
        }
        let page = usize::try_from(metadata.blksize()).unwrap_or(4096);
        let bytes = if page >= HUGE_PAGE { bytes.next_multiple_of(page) } else { bytes };
        let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: no address is requested, so the mapping takes none that is in use.
        let at = unsafe { libc::mmap(null, bytes, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).expect("the kernel maps no memory at address zero");
        Ok(Self { at, words, bytes })
    }
}

impl std::ops::Deref for Reading {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        // SAFETY: the mapping is readable, this long, aligned to a page and lives as long as `self`. Every bit pattern
        // is a `u32`. Nobody changes it: see `of_file`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.words) }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // SAFETY: the range is a mapping that this value owns, and no borrow of it is left.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Sets the length of a file in memory and allocates its pages, so that no later access fails for lack of space.
///
/// # Errors
/// The error of the kernel; `ENOSPC` if the file system is full.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    loop {
        // SAFETY: the descriptor is open as long as `file` is borrowed.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;

    /// A file in memory without a name: `O_TMPFILE` of open(2).
    fn file(bytes: u64) -> File {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open("/dev/shm");
        let file = file.expect("a file in memory");
        file.set_len(bytes).expect("there is space");
        file
    }

    #[test]
    fn a_region_is_zeroed_and_aligned_and_populating_keeps_its_contents() {
        let (words, region) = Region::anonymous(100_000, false).expect("memory");
        assert!(words.iter().all(|&word| word == 0) && words.as_ptr().addr().is_multiple_of(4096));
        words[99_999] = 7;
        region.populate().expect("Linux 5.14");
        assert_eq!((words[99_999], words[0], region.bytes()), (7, 0, 400_000));
        // Without the permission, or without NUMA, the kernel refuses.
        let _ = (region.lock(), region.prefer_node(0));
        assert!(region.prefer_node(u16::MAX).is_err());
    }

    #[test]
    fn the_words_of_a_file_are_in_the_file() {
        let file = file(8192);
        reserve(&file, 8192).expect("there is space");
        let (words, region) = Region::of_file(&file, 2048).expect("a mapping");
        region.populate().expect("Linux 5.14");
        words[2047] = 0x0123_4567;
        let read = Reading::of_file(&file, 2048).expect("a mapping");
        assert_eq!((read[2047], read.len()), (0x0123_4567, 2048));
    }

    #[test]
    fn only_a_file_without_pages_can_be_replaced() {
        let file = file(8192);
        let (words, region) = Region::of_file(&file, 2048).expect("a mapping");
        region.detach_file(&file).expect("it has no page");
        words[5] = 9;
        let read = Reading::of_file(&file, 2048).expect("a mapping");
        assert_eq!((words[5], read[5]), (9, 0));
        reserve(&file, 8192).expect("there is space");
        assert!(region.detach_file(&file).is_err());
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let file = file(4096);
        assert!(Region::of_file(&file, 1025).is_err());
        assert!(Reading::of_file(&file, 1025).is_err() && Reading::of_file(&file, 0).is_err());
    }
}

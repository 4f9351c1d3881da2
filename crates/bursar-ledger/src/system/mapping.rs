//! Mapped memory: words of a file, or of this process alone.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words that are mapped until this is dropped. An index beyond the last selects a word within bounds.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<AtomicU64>,
    /// The highest index of a word: a power of two less one.
    last: usize,
    /// The mapping that these words belong to, if this is an alias.
    owner: Option<Arc<Self>>,
}

// SAFETY: the map is plain memory, reached through atomics only, and unmapped when nobody borrows it any more.
unsafe impl Send for Mapping {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `words` words of a file, a power of two, shared with everyone who maps it. The file must be that
    /// long and stay so: the kernel kills a process that touches what was cut off.
    pub(crate) fn of_file(file: RawFd, words: usize) -> io::Result<Self> {
        Self::map(words, libc::MAP_SHARED, file)
    }

    /// Maps words of this process alone, all zero.
    pub(crate) fn private(words: usize) -> io::Result<Self> {
        Self::map(words, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn map(words: usize, flags: i32, fd: i32) -> io::Result<Self> {
        assert!(words.is_power_of_two(), "indexes are masked");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no memory in use is touched.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), words * 8, access, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at the address 0"))?;
        Ok(Self { base, last: words - 1, owner: None })
    }

    /// Returns an alias of a mapping, which reaches the same words without another indirection.
    pub(crate) fn alias(mapping: &Arc<Self>) -> Self {
        Self { base: mapping.base, last: mapping.last, owner: Some(Arc::clone(mapping)) }
    }

    /// Returns the number of words.
    #[cfg(test)]
    pub(crate) const fn len(&self) -> usize {
        self.last + 1
    }

    const fn bytes(&self) -> usize {
        (self.last + 1) * 8
    }

    /// Has the system show zeros to forked children. Where it cannot, [`Process`](super::Process) writes them.
    pub(crate) fn wipe_on_fork(&self) {
        // SAFETY: the range is this map; its contents do not change.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes(), libc::MADV_WIPEONFORK) };
    }

    /// Returns a word.
    #[inline(always)]
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: an index masked by the highest is within the mapping.
        let word = unsafe { self.base.add(at & self.last) };
        // SAFETY: within the map, aligned as pages are, and mapped while `self` is borrowed.
        unsafe { word.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.owner.is_none() {
            // SAFETY: mapped by `map` with this length, and nothing that borrows or shares it outlives `self`.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes()) };
        }
    }
}

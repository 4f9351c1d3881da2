//! System calls, checked and nothing else.
#![allow(unsafe_code)]

use crate::{Errno, IndexSet};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Masks of CPUs and nodes are given with room for this many, more than any kernel has.
const INDICES: usize = 1 << 16;
const BITS: usize = u64::BITS as usize;

fn checked(answer: c_int) -> Result<(), Errno> {
    if answer == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// The size of a page.
pub(super) fn page() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    *PAGE.get_or_init(|| {
        // SAFETY: asks for a number.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).unwrap_or(4096)
    })
}

/// Maps private memory with nothing behind it, wherever there is room.
pub(super) fn map(bytes: usize) -> Result<NonNull<u8>, Errno> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at no particular address replaces nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    let failed = Errno::last();
    if start == libc::MAP_FAILED { Err(failed) } else { NonNull::new(start.cast()).ok_or(failed) }
}

/// Unmaps whole pages.
///
/// # Safety
/// The range was mapped by [`map`], and nothing uses it any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    checked(unsafe { libc::munmap(start.as_ptr().cast(), bytes) })
}

/// Advice about mapped memory.
///
/// # Safety
/// The range is mapped, and the advice is one that leaves its contents alone.
pub(super) unsafe fn advise(start: NonNull<u8>, bytes: usize, advice: c_int) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    checked(unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) })
}

/// Has the pages of a range come from a node as long as there are any. A policy says where pages come from and leaves what
/// is in them alone.
pub(super) fn prefer_node(start: NonNull<u8>, bytes: usize, node: u32) -> Result<(), Errno> {
    if node as usize >= INDICES {
        return Err(Errno(libc::EINVAL));
    }
    let mut mask = vec![0u64; node as usize / BITS + 1];
    mask[node as usize / BITS] = 1 << (node as usize % BITS);
    // The kernel looks at one bit less than it is told.
    let bits = mask.len() * BITS + 1;
    let mode = libc::MPOL_PREFERRED as usize;
    // SAFETY: the mask is as long as it is said to be, and a range that is not mapped is refused.
    let answer = unsafe { libc::syscall(libc::SYS_mbind, start.as_ptr(), bytes, mode, mask.as_ptr(), bits, 0usize) };
    if answer == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// On which nodes pages are, moving nothing.
pub(super) fn locate(addresses: &[usize]) -> Result<Vec<i32>, Errno> {
    let pages: Vec<*mut c_void> = addresses.iter().map(|&at| std::ptr::without_provenance_mut(at)).collect();
    let mut nodes = vec![-libc::ENOENT; pages.len()];
    let targets = std::ptr::null::<c_int>();
    // SAFETY: both lists have as many entries as is said; without targets pages are only looked up, whatever is there.
    let answer = unsafe {
        libc::syscall(libc::SYS_move_pages, 0usize, pages.len(), pages.as_ptr(), targets, nodes.as_mut_ptr(), 0usize)
    };
    if answer < 0 { Err(Errno::last()) } else { Ok(nodes) }
}

/// Lets the calling thread run on these CPUs only.
pub(super) fn set_affinity(cpus: &IndexSet) -> Result<(), Errno> {
    if cpus.last().is_some_and(|last| last as usize >= INDICES) {
        return Err(Errno(libc::EINVAL));
    }
    let mut mask = vec![0u64; INDICES / BITS];
    cpus.iter().for_each(|cpu| mask[cpu as usize / BITS] |= 1 << (cpu as usize % BITS));
    // SAFETY: the mask is as long as it is said to be, and only read.
    checked(unsafe { libc::sched_setaffinity(0, size_of_val(&*mask), mask.as_ptr().cast()) })
}

/// Where the calling thread may run.
pub(super) fn affinity() -> Result<IndexSet, Errno> {
    let mut mask = vec![0u64; INDICES / BITS];
    // SAFETY: the mask is as long as it is said to be, and ours to be written.
    checked(unsafe { libc::sched_getaffinity(0, size_of_val(&*mask), mask.as_mut_ptr().cast()) })?;
    let is_set = |cpu: &u32| mask[*cpu as usize / BITS] >> (*cpu as usize % BITS) & 1 == 1;
    Ok((0..INDICES as u32).filter(is_set).collect())
}

/// The soft limit on locked memory, in bytes.
pub(super) fn locked_memory_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the answer goes to a value of ours.
    match checked(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) }) {
        Ok(()) => limit.rlim_cur,
        Err(_) => u64::MAX,
    }
}

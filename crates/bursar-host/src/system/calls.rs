//! System calls with checked results, and nothing else.
#![allow(unsafe_code)]

use crate::{Errno, IndexSet};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The number of CPUs or nodes in the masks passed to the kernel, more than any kernel has.
const INDICES: usize = 1 << 16;
const BITS: usize = u64::BITS as usize;

fn checked(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Returns the size of a page.
pub(super) fn page() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    *PAGE.get_or_init(|| {
        // SAFETY: returns a number.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).unwrap_or(4096)
    })
}

/// Maps private memory with no pages behind it, at an address that the kernel chooses.
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

/// Advises the kernel about mapped memory.
///
/// # Safety
/// The range is mapped, and the advice leaves its contents alone.
pub(super) unsafe fn advise(start: NonNull<u8>, bytes: usize, advice: c_int) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    checked(unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) })
}

/// Makes a node the preferred one for the pages of a range. The policy decides where new pages come from and leaves contents
/// alone.
pub(super) fn prefer_node(start: NonNull<u8>, bytes: usize, node: u32) -> Result<(), Errno> {
    if node as usize >= INDICES {
        return Err(Errno(libc::EINVAL));
    }
    let mut mask = vec![0u64; node as usize / BITS + 1];
    mask[node as usize / BITS] = 1 << (node as usize % BITS);
    // The kernel ignores the last bit that it is told of.
    let bits = mask.len() * BITS + 1;
    let mode = libc::MPOL_PREFERRED as usize;
    // SAFETY: the mask has the given length, and a range that is not mapped is refused.
    let result = unsafe { libc::syscall(libc::SYS_mbind, start.as_ptr(), bytes, mode, mask.as_ptr(), bits, 0usize) };
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Returns the nodes of pages, without moving them.
pub(super) fn locate(addresses: &[usize]) -> Result<Vec<i32>, Errno> {
    let pages: Vec<*mut c_void> = addresses.iter().map(|&at| std::ptr::without_provenance_mut(at)).collect();
    let mut nodes = vec![-libc::ENOENT; pages.len()];
    let targets = std::ptr::null::<c_int>();
    // SAFETY: both lists have the given number of entries; without targets pages are only looked up, at any address.
    let result = unsafe {
        libc::syscall(libc::SYS_move_pages, 0usize, pages.len(), pages.as_ptr(), targets, nodes.as_mut_ptr(), 0usize)
    };
    if result < 0 { Err(Errno::last()) } else { Ok(nodes) }
}

/// Restricts the calling thread to these CPUs.
pub(super) fn set_affinity(cpus: &IndexSet) -> Result<(), Errno> {
    if cpus.last().is_some_and(|last| last as usize >= INDICES) {
        return Err(Errno(libc::EINVAL));
    }
    let mut mask = vec![0u64; INDICES / BITS];
    cpus.iter().for_each(|cpu| mask[cpu as usize / BITS] |= 1 << (cpu as usize % BITS));
    // SAFETY: the mask has the given length, and is only read.
    checked(unsafe { libc::sched_setaffinity(0, size_of_val(&*mask), mask.as_ptr().cast()) })
}

/// Returns the CPUs that the calling thread may run on.
pub(super) fn affinity() -> Result<IndexSet, Errno> {
    let mut mask = vec![0u64; INDICES / BITS];
    // SAFETY: the mask has the given length, and is ours to write.
    checked(unsafe { libc::sched_getaffinity(0, size_of_val(&*mask), mask.as_mut_ptr().cast()) })?;
    let is_set = |cpu: &u32| mask[*cpu as usize / BITS] >> (*cpu as usize % BITS) & 1 == 1;
    Ok((0..INDICES as u32).filter(is_set).collect())
}

/// Returns the node of the CPU that the calling thread runs on.
pub(super) fn current_node() -> Result<u32, Errno> {
    let (mut cpu, mut node) = (0u32, 0u32);
    // SAFETY: the kernel writes two numbers of ours; it has no use for a third argument.
    let result =
        unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, std::ptr::null_mut::<c_void>()) };
    if result == 0 { Ok(node) } else { Err(Errno::last()) }
}

/// Returns the soft limit on locked memory, in bytes.
pub(super) fn locked_memory_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes a value of ours.
    match checked(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) }) {
        Ok(()) => limit.rlim_cur,
        Err(_) => u64::MAX,
    }
}

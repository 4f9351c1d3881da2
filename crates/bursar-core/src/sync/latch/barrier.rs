//! An asymmetric pair of barriers: a light one for the frequent side, which costs nothing, and a heavy one for the rare
//! side, which costs a system call.
//!
//! A processor may execute a later load before an earlier store. The light barrier keeps the compiler from reordering
//! the two; the heavy one has the kernel execute a full barrier in every running thread of the process. So for each
//! other thread, either its store comes before the heavy barrier, and the caller sees it, or its load comes after, and
//! sees what the caller stored before.
#![allow(unsafe_code)]

#[cfg(loom)]
mod here {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn is_there() -> bool {
        true
    }

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(not(loom), target_os = "linux"))]
mod here {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};
    use std::time::Duration;

    /// Commands of membarrier(2).
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: it takes two numbers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0) == 0 }
    }

    /// Returns whether the kernel has `membarrier` and lets this process use it.
    pub(crate) fn is_there() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED))
    }

    #[inline(always)]
    pub(crate) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        let again = || membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED);
        if membarrier(PRIVATE_EXPEDITED) || again() {
            return;
        }
        // It was available, and has been forbidden since. No processor delays a store for as long as this.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(all(not(loom), not(target_os = "linux")))]
mod here {
    /// There is no such barrier here, so nobody uses the other two.
    pub(crate) fn is_there() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn light() {}

    pub(crate) fn heavy() {}
}

pub(super) use here::{heavy, is_there, light};

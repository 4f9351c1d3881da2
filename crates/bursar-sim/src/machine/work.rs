//! The work that streams run: copies, fills, host functions and simulated kernels.
#![allow(unsafe_code)]

use super::{MachineState, Word};
use crate::host_memory::{HostBlock, HostPtr};
use crate::{Hazard, HazardKind, Operation};
use bursar_core::{DevicePtr, HostFunction};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Where a copy to the device reads.
#[derive(Debug)]
pub(crate) enum Source {
    /// What pageable memory held when the copy was submitted.
    Staged(Vec<u8>),
    /// Host memory that stays valid until the copy has run.
    Direct { ptr: HostPtr, bytes: u64, _keep: Option<Arc<HostBlock>> },
}

/// The code of a simulated kernel.
pub(crate) type KernelBody = Box<dyn FnOnce(&mut KernelMemory<'_>) + Send>;

/// What an operation does when it runs.
pub(crate) enum Work {
    /// It only has a place in the order.
    Nothing,
    /// The memory of an allocation comes back.
    Release { at: u64, bytes: u64 },
    /// Repeats a word.
    Fill { dst: u64, bytes: u64, word: Word },
    /// Copies host memory to device memory.
    Upload { dst: u64, source: Source },
    /// Copies device memory to host memory, which is kept until then where it is the simulator's own.
    Download { dst: HostPtr, src: u64, bytes: u64, _keep: Option<Arc<HostBlock>> },
    /// Copies device memory to device memory.
    Copy { dst: u64, src: u64, bytes: u64 },
    /// Runs host code, with the lock released.
    Host(HostFunction),
    /// Runs a simulated kernel.
    Kernel(KernelBody),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Work")
    }
}

/// Device memory as a simulated kernel sees it.
///
/// ```
/// use bursar_core::DevicePtr;
/// use bursar_sim::KernelMemory;
///
/// fn clear(memory: &mut KernelMemory<'_>, ptr: DevicePtr) {
///     memory.write(ptr, &[0; 16]);
/// }
/// ```
#[derive(Debug)]
pub struct KernelMemory<'a> {
    pub(crate) state: &'a mut MachineState,
}

impl KernelMemory<'_> {
    /// The bytes at an address.
    pub fn read(&mut self, ptr: DevicePtr, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes];
        self.state.read(ptr.0, &mut into);
        into
    }

    /// Writes bytes at an address.
    pub fn write(&mut self, ptr: DevicePtr, bytes: &[u8]) {
        self.state.write(ptr.0, bytes);
    }
}

impl MachineState {
    pub(crate) fn upload(&mut self, dst: u64, source: &Source) {
        match source {
            Source::Staged(bytes) => self.write(dst, bytes),
            Source::Direct { ptr, bytes, .. } => {
                // SAFETY: the source is valid and not written until the copy has run: the promise made at submission,
                // kept for it where the memory is the simulator's own.
                let bytes = unsafe { ptr.bytes(*bytes as usize) };
                self.write(dst, bytes);
            }
        }
    }

    pub(crate) fn download(&mut self, dst: HostPtr, src: u64, bytes: u64) {
        // SAFETY: the target is valid and nobody else touches it until the copy has run: the promise made at
        // submission, kept for it where the memory is the simulator's own.
        let target = unsafe { dst.bytes_mut(bytes as usize) };
        self.read(src, target);
        if let Some(oracle) = &mut self.oracle {
            oracle.watches.written(dst.address(), bytes);
        }
    }
}

impl MachineState {
    /// Runs the code of a kernel. A panic stays here: whoever is at work is in some other call, which must not unwind.
    pub(super) fn run_kernel(&mut self, op: Operation, body: KernelBody) {
        // What a kernel can do to the state is read and write bytes, each wholly or not at all.
        let ran = catch_unwind(AssertUnwindSafe(|| body(&mut KernelMemory { state: self })));
        let Err(payload) = ran else { return };
        // Dropping what somebody panicked with may panic too.
        std::mem::forget(payload);
        if let Some(oracle) = &mut self.oracle {
            oracle.report(Hazard {
                kind: HazardKind::KernelPanicked,
                device: Some(op.device),
                range: Range { start: 0, end: 0 }.into(),
                tag: bursar_core::AllocTag::UNTAGGED,
                first: None,
                second: op,
                reused: None,
            });
        }
    }
}

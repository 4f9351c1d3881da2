//! The work that streams run: copies, fills, host functions and simulated kernels.
#![allow(unsafe_code)]

use super::{MachineState, Word};
use crate::host_memory::{HostBlock, HostPtr};
use crate::{Hazard, HazardKind, KernelPanic, Operation};
use bursar_core::{DevicePtr, HostFunction, SimulatedBytes};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// The source of a copy to the device.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The contents of pageable memory when the copy was submitted.
    Staged(Vec<u8>),
    /// Host memory that stays valid until the copy has run.
    Direct { ptr: HostPtr, bytes: u64, _keep: Option<Arc<HostBlock>> },
}

/// The code of a simulated kernel.
pub(crate) type KernelBody = Arc<Mutex<dyn FnMut(&mut KernelMemory<'_>) + Send>>;

/// The number of panics of kernels that are kept.
const KERNEL_PANICS_KEPT: usize = 16;

/// The effect of an operation when it runs.
pub(crate) enum Work {
    /// Nothing: the operation only has a position in its stream.
    Nothing,
    /// Returns the memory of an allocation, to its pool where it has one.
    Release { at: u64, bytes: u64, pool: Option<u64> },
    /// Repeats a word.
    Fill { dst: u64, bytes: u64, word: Word },
    /// Copies host memory to device memory.
    Upload { dst: u64, source: Source },
    /// Copies device memory to host memory, which is kept until then where the simulator allocated it.
    Download { dst: HostPtr, src: u64, bytes: u64, _keep: Option<Arc<HostBlock>> },
    /// Copies device memory to device memory.
    Copy { dst: u64, src: u64, bytes: u64 },
    /// Runs host code, with the lock released.
    Host(HostFunction),
    /// Runs a simulated kernel.
    Kernel(KernelBody),
}

impl Work {
    /// Returns whether it can be part of a graph, which runs it once for each launch.
    pub(crate) fn repeats(&self) -> bool {
        match self {
            Self::Release { .. } | Self::Upload { source: Source::Staged(_), .. } => false,
            Self::Host(function) => function.again().is_some(),
            _ => true,
        }
    }

    /// Returns the same work for another run; work that does not repeat becomes nothing.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Nothing | Self::Release { .. } => Self::Nothing,
            Self::Fill { dst, bytes, word } => Self::Fill { dst: *dst, bytes: *bytes, word: *word },
            Self::Upload { dst, source } => Self::Upload { dst: *dst, source: source.clone() },
            Self::Download { dst, src, bytes, _keep } => {
                Self::Download { dst: *dst, src: *src, bytes: *bytes, _keep: _keep.clone() }
            }
            Self::Copy { dst, src, bytes } => Self::Copy { dst: *dst, src: *src, bytes: *bytes },
            Self::Host(function) => function.again().map_or(Self::Nothing, Self::Host),
            Self::Kernel(body) => Self::Kernel(body.clone()),
        }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Work")
    }
}

/// The device memory as a simulated kernel sees it.
///
/// ```
/// use bursar::memory::DevicePtr;
/// use bursar::sim::KernelMemory;
///
/// fn clear(memory: &mut KernelMemory<'_>, ptr: DevicePtr) {
///     memory.write(ptr, &[0; 16]);
/// }
/// ```
#[derive(Debug)]
pub struct KernelMemory<'a> {
    pub(crate) state: &'a mut MachineState,
}

impl SimulatedBytes for KernelMemory<'_> {
    fn read(&mut self, ptr: DevicePtr, into: &mut [u8]) {
        self.state.read(ptr.0, into);
    }

    fn write(&mut self, ptr: DevicePtr, bytes: &[u8]) {
        self.state.write(ptr.0, bytes);
    }
}

impl KernelMemory<'_> {
    /// Returns the bytes at an address.
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
                // SAFETY: the source is valid and not written until the copy has run: the promise made at submission, which
                // the simulator keeps itself where it allocated the memory.
                let bytes = unsafe { ptr.bytes(*bytes as usize) };
                self.write(dst, bytes);
            }
        }
    }

    pub(crate) fn download(&mut self, dst: HostPtr, src: u64, bytes: u64) {
        // SAFETY: the target is valid and nobody else touches it until the copy has run: the promise made at submission,
        // which the simulator keeps itself where it allocated the memory.
        let target = unsafe { dst.bytes_mut(bytes as usize) };
        self.read(src, target);
        if let Some(oracle) = &mut self.oracle {
            oracle.watches.written(dst.address(), bytes);
        }
    }
}

impl MachineState {
    /// Runs the code of a kernel. A panic stays here: it would unwind into an unrelated call that lets streams advance.
    pub(super) fn run_kernel(&mut self, op: Operation, body: &KernelBody) {
        // A kernel can only read and write bytes, each completely or not at all, so the state is consistent.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let mut body = body.lock().unwrap_or_else(PoisonError::into_inner);
            body(&mut KernelMemory { state: self });
        }));
        let Err(payload) = ran else { return };
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = text.or_else(|| payload.downcast_ref::<String>().cloned());
        // Dropping the payload may panic too.
        std::mem::forget(payload);
        if let Some(oracle) = &mut self.oracle {
            if self.kernel_panics.len() < KERNEL_PANICS_KEPT {
                let message = message.unwrap_or_else(|| "a value that is no text".to_owned());
                self.kernel_panics.push(KernelPanic { operation: op, message });
            }
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

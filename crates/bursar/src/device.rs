//! Devices: those a program has, their typed buffers, and their facts.
//!
//! A [`DevicePool`] opens the devices and builds a stack of memory on each; a [`Gpu`] is one of them, with its streams and
//! its memory; a [`DeviceBuffer`] is memory of a `Gpu` that frees itself. [`DeviceContext`] is the raw level below: what a
//! device has once, whatever stacks stand on it. [`DeviceFacts`] and [`Link`] are what the driver reports.

pub use crate::sleep_when_asked::{AwakeGuard, SleepWhenAsked};
#[doc(inline)]
pub use bursar_core::{
    CallSite, Capabilities, DeviceContext, DeviceFacts, DeviceId, DeviceUuid, Fault, HasContext, Link, LinkKind,
    Member, MemoryInfo, NumaNode, ParseUuidError, PciAddress, Remains, UsageSource, UsageView,
};
#[doc(inline)]
pub use bursar_device::{
    DeviceBuffer, DevicePool, DeviceSlice, DeviceSliceMut, Gpu, GpuOptions, Leak, LeakReport, Pod, RefusedIntoBlock,
    Site, SleepOptions, WaitingFree, WakeOptions, Zeroable,
};

//! Kernels that are declared once, for hardware and for the race detector.

use crate::{DeviceSlice, DeviceSliceMut, Work};
use bursar_core::{Access, DevicePtr, DeviceRange, Error, RawStream, Result, SimulatedKernel, SimulatedMemory};
use bytemuck::Pod;
use std::fmt;

/// A kernel that is being declared: the buffers it reads and writes, and how it is launched.
///
/// Each buffer or slice that is declared orders the stream, as [`Work::read`] and [`Work::write`] do. On hardware
/// [`launch`](Self::launch) then calls the closure it is given, which launches the device code. A driver that
/// [simulates](bursar_core::Driver::simulates) cannot run device code: there the kernel is an access to exactly the
/// ranges it declared, which the race detector judges, and the closure is not called. Where results matter, code
/// that [stands for](Self::simulated) the kernel computes them. So the same program runs on both.
///
/// ```
/// use bursar::{DeviceBuffer, DeviceId, Gpu, Result, Stack, StreamLease, leaf, tag};
///
/// # fn launch_scale(_: bursar::driver::RawStream, _: u64, _: u64, _: usize) -> Result<()> { Ok(()) }
/// /// Doubles `x` into `y`, on whatever device they are.
/// fn scale(stream: &StreamLease, x: &DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>) -> Result<()> {
///     let len = x.len();
///     stream.submit(|work| {
///         work.kernel("scale")
///             .reads(x)
///             .writes(y)
///             .simulated(|memory, [x, y]| {
///                 let doubled: Vec<f32> = memory.read(x).iter().map(|x: &f32| x * 2.0).collect();
///                 memory.write(y, &doubled);
///             })
///             .launch(|stream, [x, y]| launch_scale(stream, x.0, y.0, len))
///     })
/// }
///
/// // The program chooses the driver; here it is a simulated one.
/// let driver = bursar::sim::Sim::seeded(1);
/// let gpu = Gpu::open(driver, DeviceId(0), &Stack::new().over(leaf::Async))?;
/// let (a, b) = (gpu.streams().lease()?, gpu.streams().lease()?);
/// let x = gpu.buffer_from(&[1.0, 2.0], &a, tag!("x"))?;
/// let mut y = gpu.zeros(2, &a, tag!("y"))?;
/// scale(&b, &x, &mut y)?;
/// assert_eq!(y.to_vec()?, [2.0, 4.0]);
/// # Ok::<(), bursar::Error>(())
/// ```
#[must_use = "a kernel is launched by `launch`"]
pub struct Kernel<'k, 'a, R = [DeviceRange; 0]> {
    work: &'k mut Work<'a>,
    name: &'static str,
    ranges: R,
    /// The first refusal of a declaration.
    declared: Result<()>,
    /// The kernel for a driver that simulates.
    model: Option<SimulatedKernel>,
}

impl<'a> Work<'a> {
    /// Begins the declaration of a kernel, which has this name in reports.
    pub fn kernel(&mut self, name: &'static str) -> Kernel<'_, 'a> {
        let simulates = self.submission().context().driver().simulates();
        let model = simulates.then(|| SimulatedKernel::new(name));
        Kernel { work: self, name, ranges: [], declared: Ok(()), model }
    }
}

impl<'k, 'a, R: MoreRanges> Kernel<'k, 'a, R> {
    /// Declares that the kernel reads a buffer or a slice.
    #[track_caller]
    pub fn reads<'b, T: Pod>(self, src: impl Into<DeviceSlice<'b, T>>) -> Kernel<'k, 'a, R::With> {
        let src = src.into();
        self.with(&src, Access::Read)
    }

    /// Declares that the kernel writes a buffer or a slice, and may read it.
    #[track_caller]
    pub fn writes<'b, T: Pod>(self, dst: impl Into<DeviceSliceMut<'b, T>>) -> Kernel<'k, 'a, R::With> {
        let dst = dst.into();
        self.with(&dst.as_slice(), Access::Write)
    }

    #[track_caller]
    fn with<T: Pod>(mut self, slice: &DeviceSlice<'_, T>, access: Access) -> Kernel<'k, 'a, R::With> {
        let range = slice.range();
        if self.declared.is_ok() {
            self.declared = self.work.declare(slice.tracked(), access);
        }
        if let Some(model) = &mut self.model {
            model.declare(range, access);
        }
        let Self { work, name, ranges, declared, model } = self;
        Kernel { work, name, ranges: ranges.with(range), declared, model }
    }
}

impl<R: KernelRanges> Kernel<'_, '_, R> {
    /// Sets code that stands for the kernel's on a driver that simulates. It is given the ranges declared so far, in
    /// their order, and may touch no others; if it panics, that is reported with what else was found. On hardware it
    /// is dropped.
    pub fn simulated(mut self, mut body: impl FnMut(&mut SimulatedMemory<'_>, R) + Send + 'static) -> Self {
        let ranges = self.ranges;
        if let Some(model) = &mut self.model {
            model.set_body(move |memory| body(memory, ranges));
        }
        self
    }

    /// Launches the kernel: on hardware by calling `launch`, with the driver's handle of the stream and the addresses
    /// of what was declared, in the same order. Nothing else may be touched by what it launches, and only on that
    /// stream. Fails, before that, if a declaration was refused.
    ///
    /// The uses count until the submission ends, also if `launch` returns an error, since it may have launched
    /// something.
    #[track_caller]
    pub fn launch<E: From<Error>>(
        self,
        launch: impl FnOnce(RawStream, R::Addresses) -> Result<(), E>,
    ) -> Result<(), E> {
        let submission = self.work.submission_mut();
        let _call = submission.context().enter_call_site();
        self.declared?;
        match self.model {
            Some(model) => Ok(submission.simulate(model)?),
            None => {
                submission.check()?;
                launch(self.work.raw_stream()?, self.ranges.addresses())
            }
        }
    }
}

impl<R> fmt::Debug for Kernel<'_, '_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).field("declared", &self.declared).finish_non_exhaustive()
    }
}

/// The ranges that a kernel has declared: an array of them.
///
/// ```
/// use bursar::memory::{DevicePtr, DeviceRange};
/// use bursar::stream::KernelRanges;
///
/// let declared = [DeviceRange { ptr: DevicePtr(0x100), bytes: 8 }];
/// assert_eq!(declared.addresses(), [DevicePtr(0x100)]);
/// ```
pub trait KernelRanges: sealed::Sealed + Copy + Send + 'static {
    /// The addresses of the ranges, in the same order.
    type Addresses;

    /// Returns the addresses.
    fn addresses(self) -> Self::Addresses;
}

/// Ranges that one more can be declared with; a kernel declares sixteen at most.
pub trait MoreRanges: KernelRanges {
    /// These ranges and one more.
    type With: KernelRanges;

    /// Returns these ranges and one more.
    fn with(self, range: DeviceRange) -> Self::With;
}

mod sealed {
    pub trait Sealed {}
    impl<const N: usize> Sealed for [bursar_core::DeviceRange; N] {}
}

impl<const N: usize> KernelRanges for [DeviceRange; N] {
    type Addresses = [DevicePtr; N];

    fn addresses(self) -> Self::Addresses {
        self.map(|range| range.ptr)
    }
}

macro_rules! more {
    ($($fewer:literal, $more:literal;)*) => { $(
        impl MoreRanges for [DeviceRange; $fewer] {
            type With = [DeviceRange; $more];

            fn with(self, range: DeviceRange) -> Self::With {
                std::array::from_fn(|at| self.get(at).copied().unwrap_or(range))
            }
        }
    )* };
}

more! {
    0, 1; 1, 2; 2, 3; 3, 4; 4, 5; 5, 6; 6, 7; 7, 8;
    8, 9; 9, 10; 10, 11; 11, 12; 12, 13; 13, 14; 14, 15; 15, 16;
}

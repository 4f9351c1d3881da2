//! Kernels as a simulating driver runs them: the ranges they declare, and code that stands for the device's.

use crate::{Access, DevicePtr};
use bytemuck::Pod;
use std::fmt;

/// A range of device memory.
///
/// ```
/// use bursar::memory::{DevicePtr, DeviceRange};
///
/// let range = DeviceRange { ptr: DevicePtr(0x100), bytes: 0x20 };
/// assert_eq!(range.to_string(), "0x100..0x120");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceRange {
    /// The first address; zero where there is no memory.
    pub ptr: DevicePtr,
    /// The length in bytes.
    pub bytes: u64,
}

impl DeviceRange {
    fn end(self) -> u64 {
        self.ptr.0.saturating_add(self.bytes)
    }

    fn contains(self, other: Self) -> bool {
        other.bytes == 0 || (self.ptr.0 <= other.ptr.0 && other.end() <= self.end())
    }
}

impl fmt::Display for DeviceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.ptr.0, self.end())
    }
}

/// Code that stands for a kernel's.
type Body = Box<dyn FnMut(&mut SimulatedMemory<'_>) + Send>;

/// A kernel as a driver that [simulates](crate::Driver::simulates) runs it: a name, the ranges that it declared, and
/// optionally code that stands for it. Without code it only counts as an access to its ranges.
///
/// ```
/// use bursar::driver::SimulatedKernel;
/// use bursar::memory::{DevicePtr, DeviceRange};
/// use bursar::stream::Access;
///
/// let range = DeviceRange { ptr: DevicePtr(0x100), bytes: 4 };
/// let mut kernel = SimulatedKernel::new("double");
/// kernel.declare(range, Access::Write);
/// kernel.set_body(move |memory| {
///     let doubled: Vec<u8> = memory.read(range).iter().map(|number: &u8| number * 2).collect();
///     memory.write(range, &doubled);
/// });
/// assert_eq!(kernel.accesses(), [(range, Access::Write)]);
/// ```
pub struct SimulatedKernel {
    name: &'static str,
    accesses: Vec<(DeviceRange, Access)>,
    body: Option<Body>,
}

impl SimulatedKernel {
    /// Makes a kernel that accesses nothing.
    pub const fn new(name: &'static str) -> Self {
        Self { name, accesses: Vec::new(), body: None }
    }

    /// Declares an access to a range; one without memory is left out.
    pub fn declare(&mut self, range: DeviceRange, access: Access) {
        if range.bytes > 0 {
            self.accesses.push((range, access));
        }
    }

    /// Sets the code that stands for the kernel's. It must not call the driver, and runs once for each launch of a graph
    /// that the kernel is part of.
    pub fn set_body(&mut self, body: impl FnMut(&mut SimulatedMemory<'_>) + Send + 'static) {
        self.body = Some(Box::new(body));
    }

    /// Returns its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the ranges that it declared.
    pub fn accesses(&self) -> &[(DeviceRange, Access)] {
        &self.accesses
    }

    /// Returns whether it has code to run.
    pub const fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// Runs its code on the memory of a simulated device.
    ///
    /// # Panics
    /// If the code panics, or touches memory that was not declared.
    pub fn run(&mut self, bytes: &mut dyn SimulatedBytes) {
        let Self { name, accesses, body } = self;
        if let Some(body) = body {
            body(&mut SimulatedMemory { name, accesses, bytes });
        }
    }
}

impl fmt::Debug for SimulatedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedKernel")
            .field("name", &self.name)
            .field("accesses", &self.accesses)
            .finish_non_exhaustive()
    }
}

/// The bytes of a simulated device, as its driver gives them to a kernel.
///
/// ```
/// use bursar::driver::SimulatedBytes;
/// use bursar::memory::DevicePtr;
///
/// struct Zeros;
///
/// impl SimulatedBytes for Zeros {
///     fn read(&mut self, _: DevicePtr, into: &mut [u8]) {
///         into.fill(0);
///     }
///     fn write(&mut self, _: DevicePtr, _: &[u8]) {}
/// }
/// ```
pub trait SimulatedBytes {
    /// Reads the bytes from an address on.
    fn read(&mut self, ptr: DevicePtr, into: &mut [u8]);

    /// Writes bytes from an address on.
    fn write(&mut self, ptr: DevicePtr, bytes: &[u8]);
}

/// The memory of a simulated device as a kernel's code sees it: the ranges that the kernel declared, and no others.
///
/// ```
/// use bursar::driver::SimulatedMemory;
/// use bursar::memory::DeviceRange;
///
/// fn scale(memory: &mut SimulatedMemory<'_>, from: DeviceRange, to: DeviceRange) {
///     let scaled: Vec<f32> = memory.read(from).iter().map(|x: &f32| x * 2.0).collect();
///     memory.write(to, &scaled);
/// }
/// ```
pub struct SimulatedMemory<'a> {
    name: &'static str,
    accesses: &'a [(DeviceRange, Access)],
    bytes: &'a mut dyn SimulatedBytes,
}

impl SimulatedMemory<'_> {
    /// Returns the elements of a range; a remainder that is no whole element is left out.
    ///
    /// # Panics
    /// If the kernel did not declare the range. What it declared to write may be read too.
    #[track_caller]
    pub fn read<T: Pod>(&mut self, range: DeviceRange) -> Vec<T> {
        self.expect_declared(range, Access::Read);
        let len = usize::try_from(range.bytes).unwrap_or(usize::MAX).checked_div(size_of::<T>()).unwrap_or(0);
        let mut values = vec![T::zeroed(); len];
        self.bytes.read(range.ptr, bytemuck::cast_slice_mut(&mut values));
        values
    }

    /// Writes elements from the start of a range on.
    ///
    /// # Panics
    /// If they do not fit, or the kernel did not declare that it writes the range.
    #[track_caller]
    pub fn write<T: Pod>(&mut self, range: DeviceRange, values: &[T]) {
        self.expect_declared(range, Access::Write);
        let bytes: &[u8] = bytemuck::cast_slice(values);
        assert!(bytes.len() as u64 <= range.bytes, "{} bytes do not fit into {range}", bytes.len());
        self.bytes.write(range.ptr, bytes);
    }

    #[track_caller]
    fn expect_declared(&self, range: DeviceRange, access: Access) {
        let covers = |(declared, strongest): &(DeviceRange, Access)| *strongest >= access && declared.contains(range);
        let verb = if access == Access::Read { "reads" } else { "writes" };
        assert!(
            range.bytes == 0 || self.accesses.iter().any(covers),
            "the kernel {:?} {verb} {range} and did not declare that",
            self.name
        );
    }
}

impl fmt::Debug for SimulatedMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedMemory").field("accesses", &self.accesses).finish_non_exhaustive()
    }
}

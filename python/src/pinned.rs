//! Pinned host memory, which Python sees by its address.

use crate::failure::Failure;
use crate::interruptible::complete;
use crate::machine::Machine;
use crate::pool::{self, check_not_forked, is_forked};
use crate::pool_streams::Streams;
use crate::size::Size;
use bursar::device::DeviceContext;
use bursar::host::{PinnedBuffer, PinnedPool};
use bursar::{Bytes, DeviceId, Error, Stream};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most bytes of pinned memory that are kept for later requests, of each device.
const KEPT_MAX: Bytes = Bytes::gib(1);

/// The most bytes that can be asked for: rounded up to whole pages of any size, they are still a length.
const LARGEST: u64 = isize::MAX as u64 - Bytes::gib(1).get();

/// The pools of pinned memory, by the contexts of their devices.
static POOLS: Mutex<Option<HashMap<usize, DevicePool>>> = Mutex::new(None);

/// The pinned memory near one device.
#[derive(Clone, Debug)]
struct DevicePool {
    device: u32,
    context: Arc<DeviceContext>,
    pool: Arc<PinnedPool>,
    /// The stream of our own that comes after the copies of others.
    copies: Arc<Streams>,
}

impl DevicePool {
    fn new(device: u32, context: &Arc<DeviceContext>) -> Result<Self, Failure> {
        let pool = Arc::new(PinnedPool::near(context).map_err(Error::from)?);
        Ok(Self { device, context: context.clone(), pool, copies: Arc::default() })
    }

    /// Takes a buffer back. Libraries that copy from or to it say so to nobody: it is used again once the streams have passed what they
    /// were given so far which a copy is likely to be on, those that the pool knows and PyTorch's current one.
    fn take_back(&self, buffer: PinnedBuffer) {
        match self.after_copies() {
            // What cannot be put in order is not waited for.
            Some(Ok(after)) => drop(self.pool.release_on(buffer, &self.context, after)),
            _ => drop(buffer),
        }
    }

    /// Gives back what nobody uses beyond what is kept for later requests, as far as the copies of it have run.
    fn keep_few(&self) {
        let counts = self.pool.counts();
        if counts.free.saturating_add(counts.in_flight) > KEPT_MAX {
            self.pool.trim(KEPT_MAX);
        }
    }

    /// Returns a stream that comes after what these streams were given so far; `None` where there are none.
    fn after_copies(&self) -> Option<bursar::Result<Stream>> {
        let opened = pool::opened(self.device).filter(|opened| Arc::ptr_eq(&opened.context, &self.context));
        let known = opened.map(|opened| opened.streams.all()).unwrap_or_default();
        let current = torch_stream(self.device);
        if known.is_empty() && current.is_none() {
            return None;
        }
        Some((|| {
            let after = self.copies.own(&self.context)?;
            for stream in known {
                // One that is being captured runs nothing, and what its graph copies is its program's to keep.
                let _ = self.context.order_after(stream, after);
            }
            if let Some(raw) = current {
                self.copies.follow(&self.context, raw)?;
            }
            Ok(after)
        })())
    }
}

/// Returns PyTorch's current stream on a device, where it uses devices and is not capturing.
fn torch_stream(device: u32) -> Option<u64> {
    let ask = |py: Python<'_>| -> PyResult<Option<u64>> {
        if Machine::get(py).is_ok_and(|machine| machine.kind() != "cuda") {
            return Ok(None);
        }
        let modules = py.import("sys")?.getattr("modules")?;
        let torch = match modules.get_item("torch") {
            Ok(torch) => torch,
            Err(_) => return Ok(None),
        };
        let cuda = torch.getattr("cuda")?;
        let is = |what: &str| cuda.call_method0(what)?.is_truthy();
        if !is("is_initialized")? || is("is_current_stream_capturing")? {
            return Ok(None);
        }
        let raw = torch.getattr("_C")?.call_method1("_cuda_getCurrentRawStream", (device,))?;
        raw.extract().map(Some)
    };
    // A program may have raised what is still on its way.
    let ask_apart = |py: Python<'_>| {
        let pending = PyErr::take(py);
        let asked = ask(py);
        pending.into_iter().for_each(|pending| pending.restore(py));
        asked.ok().flatten()
    };
    Python::try_attach(ask_apart).flatten()
}

fn pools() -> MutexGuard<'static, Option<HashMap<usize, DevicePool>>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the pools of all devices, in the order of these.
fn all() -> Vec<DevicePool> {
    let mut all: Vec<DevicePool> = pools().iter().flat_map(HashMap::values).cloned().collect();
    all.sort_by_key(|of| of.device);
    all
}

/// Gives back the pinned memory that nobody uses, and returns how much that was.
pub(crate) fn trim() -> Bytes {
    all().iter().fold(Bytes::ZERO, |sum, of| {
        let released = of.pool.trim(Bytes::ZERO);
        of.pool.flush();
        sum.saturating_add(released)
    })
}

/// Returns for each device that pinned memory was made for: its number, the bytes that are held, and of them those that
/// nobody uses.
#[pyfunction]
pub(crate) fn pinned_statistics(py: Python<'_>) -> Result<Vec<(u32, u64, u64)>, Failure> {
    check_not_forked()?;
    Ok(py.detach(|| {
        let counted = |of: &DevicePool| {
            of.keep_few();
            (of.device, of.pool.counts())
        };
        all().iter().map(counted).map(|(device, counts)| (device, counts.held.get(), counts.free.get())).collect()
    }))
}

/// Pinned host memory near a device, until the object is gone.
#[pyclass(frozen, module = "bursar")]
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    address: usize,
    bytes: usize,
    numa_node: Option<u32>,
    buffer: Mutex<Option<PinnedBuffer>>,
    of: DevicePool,
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let buffer = self.buffer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // In a child that was forked, locks may be those of threads that it does not have.
        if is_forked() {
            return drop(buffer);
        }
        buffer.into_iter().for_each(|buffer| self.of.take_back(buffer));
        self.of.keep_few();
    }
}

#[pymethods]
impl PinnedMemory {
    #[new]
    fn new(py: Python<'_>, size: Size, device: u32) -> Result<Self, Failure> {
        let requested = size.0.get();
        if requested == 0 || requested > LARGEST {
            return Err(Error::InvalidSize { requested }.into());
        }
        let machine = Machine::get(py)?;
        let (of, numa_node) = py.detach(|| -> Result<_, Failure> {
            let context = machine.context(DeviceId(device))?;
            let mut pools = pools();
            // Another driver has other contexts; memory of theirs that nobody uses goes.
            let is_used = |of: &DevicePool| {
                of.pool.trim(Bytes::ZERO);
                of.pool.counts().held > Bytes::ZERO
            };
            if let Some(pools) = &mut *pools
                && !pools.contains_key(&Arc::as_ptr(&context).addr())
            {
                pools.retain(|_, of| of.device != device || is_used(of));
            }
            let of = match pools.get_or_insert_default().entry(Arc::as_ptr(&context).addr()) {
                Entry::Occupied(of) => of.into_mut(),
                Entry::Vacant(place) => place.insert(DevicePool::new(device, &context)?),
            };
            Ok((of.clone(), context.facts().numa_node.index()))
        })?;
        let bytes = requested as usize;
        let mut buffer = complete(py, of.pool.get_async(bytes))?.map_err(Error::from)?;
        Ok(Self { address: buffer.as_mut_ptr().addr(), bytes, numa_node, buffer: Mutex::new(Some(buffer)), of })
    }

    /// The address of its first byte.
    #[getter]
    const fn address(&self) -> usize {
        self.address
    }

    /// The NUMA node that it was asked for on: that of the device.
    #[getter]
    const fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    const fn __len__(&self) -> usize {
        self.bytes
    }
}

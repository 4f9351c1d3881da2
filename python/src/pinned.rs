//! Pinned host memory, which Python sees by its address.

use crate::failure::Failure;
use crate::machine::Machine;
use crate::size::Size;
use bursar::host::{PinnedBuffer, PinnedPool};
use bursar::{DeviceId, Error};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The pools of pinned memory, by the contexts of their devices.
static POOLS: Mutex<Option<HashMap<usize, Arc<PinnedPool>>>> = Mutex::new(None);

/// Pinned host memory near a device, until the object is gone.
#[pyclass(frozen, module = "bursar")]
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    address: usize,
    bytes: usize,
    numa_node: Option<u32>,
    _buffer: Mutex<PinnedBuffer>,
}

#[pymethods]
impl PinnedMemory {
    #[new]
    fn new(py: Python<'_>, size: Size, device: u32) -> Result<Self, Failure> {
        let requested = size.0.get();
        if requested == 0 || requested > isize::MAX as u64 {
            return Err(Error::InvalidSize { requested }.into());
        }
        let machine = Machine::get(py)?;
        py.detach(|| {
            let context = machine.context(DeviceId(device))?;
            let pool = {
                let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
                let pools = pools.get_or_insert_default();
                match pools.get(&Arc::as_ptr(&context).addr()) {
                    Some(pool) => pool.clone(),
                    None => {
                        let pool = Arc::new(PinnedPool::near(&context).map_err(Error::from)?);
                        pools.insert(Arc::as_ptr(&context).addr(), pool.clone());
                        pool
                    }
                }
            };
            let bytes = requested as usize;
            let mut buffer = pool.get(bytes).map_err(Error::from)?;
            let numa_node = context.facts().numa_node.index();
            Ok(Self { address: buffer.as_mut_ptr().addr(), bytes, numa_node, _buffer: Mutex::new(buffer) })
        })
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

//! Memory of the pool as a Python object, which other libraries see by DLPack and by the CUDA array interface.
#![allow(unsafe_code)]

use crate::dlpack;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::pool;
use crate::pool_device::{self, PoolDevice};
use crate::pool_requests::Found;
use crate::pool_streams::Life;
use crate::size::Size;
use crate::tags;
use bursar::memory::{DeviceBlock, DevicePtr};
use bursar::{DeviceId, Error, Stream};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyMemoryView, PySlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The longest piece of an object's bytes that is copied with the interpreter's lock held.
const PIECE: usize = 4 << 20;

/// Memory of the pool, until nobody has it: neither Python nor a library that it was handed to.
#[derive(Debug)]
struct BufferMemory {
    device: &'static PoolDevice,
    number: u32,
    ptr: u64,
    bytes: u64,
    /// The raw handle of its stream.
    raw: u64,
    block: Mutex<Option<DeviceBlock>>,
    /// The streams of those that it was handed to.
    uses: Mutex<Vec<Stream>>,
}

impl BufferMemory {
    fn allocate(bytes: u64, number: u32, raw: u64) -> Result<Self, Failure> {
        pool::retrying(|| Self::try_allocate(bytes, number, raw))
    }

    fn try_allocate(bytes: u64, number: u32, raw: u64) -> Result<Self, Failure> {
        let pool = pool::current().ok_or(Error::NoDevice)?;
        let device = pool.device(DeviceId(number))?;
        let entered = device.streams.enter(&device.context, raw, Life::WhileUsed)?;
        let found = Found::new(device, entered);
        let block = device.allocate(bytes, found.stream).inspect_err(|_| found.leave())?;
        let (ptr, bytes) = (block.ptr().0, block.requested().get());
        let mut buffers = device.buffers.lock();
        if device.is_closing() {
            drop(buffers);
            let replaced = device.take_back(block);
            found.leave();
            return Err(replaced);
        }
        buffers.insert(ptr, (block.tag(), block.granted().get()));
        drop(buffers);
        let (block, uses) = (Mutex::new(Some(block)), Mutex::default());
        Ok(Self { device, number, ptr, bytes, raw, block, uses })
    }

    fn block(&self) -> MutexGuard<'_, Option<DeviceBlock>> {
        self.block.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uses(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a use of memory that sleeps, where others would find nothing at its address.
    fn check_awake(&self) -> Result<(), Failure> {
        pool::check_not_forked()?;
        Ok(self.device.context.check_awake(DevicePtr(self.ptr))?)
    }

    /// Has a stream come after what the memory's own stream was given, and its free after what the stream is given.
    fn share_with(&self, raw: u64) -> Result<(), Failure> {
        self.check_awake()?;
        let context = &self.device.context;
        let home = self.block().as_ref().map_or(context.default_stream(), DeviceBlock::stream);
        let entered = self.device.streams.enter(context, raw, Life::WhileUsed)?;
        let found = Found::new(self.device, entered);
        let shared = if found.stream == home { Ok(()) } else { context.order_after(home, found.stream) };
        let mut uses = self.uses();
        if shared.is_ok() && found.stream != home && !uses.contains(&found.stream) {
            uses.push(found.stream);
        } else {
            drop(uses);
            found.leave();
        }
        Ok(shared?)
    }
}

impl Drop for BufferMemory {
    fn drop(&mut self) {
        let block = self.block().take();
        let uses = std::mem::take(&mut *self.uses());
        if let Some(block) = block.filter(|_| !pool::is_forked()) {
            self.device.buffers.lock().remove(&self.ptr);
            self.device.free_and_leave(block, uses);
        }
    }
}

/// Memory of a device, of the pool of this process.
#[pyclass(frozen, weakref, module = "bursar")]
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Arc<BufferMemory>,
}

impl Buffer {
    /// Copies bytes to an offset, and waits for it without the interpreter's lock.
    fn write(&self, py: Python<'_>, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let memory = &*self.memory;
        py.detach(|| {
            let mut block = memory.block();
            let block = block.as_mut().ok_or(Failure::Released)?;
            let stream = block.stream();
            Ok(memory.device.context.copy_from_host(block, offset, bytes, stream)?)
        })
    }

    /// Refuses more bytes than it has, by both lengths.
    fn check_fits(&self, len: usize) -> Result<(), Failure> {
        match self.memory.bytes {
            bytes if len as u64 <= bytes => Ok(()),
            bytes => Err(Failure::value(format!("{len} bytes are more than the {bytes} of the buffer"))),
        }
    }
}

#[pymethods]
impl Buffer {
    #[new]
    #[pyo3(signature = (size, *, device = None, stream = None))]
    fn new(
        py: Python<'_>,
        size: Size,
        device: Option<DeviceNumber>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<Self, Failure> {
        let raw = stream.map_or(Ok(0), raw_handle)?;
        let pool = pool::current_or_default(|| Machine::get(py))?;
        let tag = tags::of_context(py)?;
        let memory = py.detach(|| {
            let of_thread = pool_device::set_tag(tag);
            let number = device.map_or_else(|| pool.default_device().0, |device| device.0);
            let allocated = BufferMemory::allocate(size.0.get(), number, raw);
            pool_device::set_tag(of_thread);
            allocated
        })?;
        Ok(Self { memory: Arc::new(memory) })
    }

    /// The address on the device.
    #[getter]
    fn ptr(&self) -> u64 {
        self.memory.ptr
    }

    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.memory.bytes
    }

    /// The number of the device.
    #[getter]
    fn device(&self) -> u32 {
        self.memory.number
    }

    /// The raw handle of the stream that it is ordered on: 1 is the legacy default stream.
    #[getter]
    fn stream(&self) -> u64 {
        self.memory.raw.max(1)
    }

    /// True if the device is simulated.
    #[getter]
    fn is_simulated(&self) -> bool {
        pool::current().is_none_or(pool::Pool::is_simulated)
    }

    fn __len__(&self) -> usize {
        self.memory.bytes as usize
    }

    /// Copies the bytes of an object with the buffer protocol into the beginning, and waits for it.
    fn copy_from(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> Result<(), Failure> {
        pool::check_not_forked()?;
        if let Ok(bytes) = data.cast::<PyBytes>() {
            self.check_fits(bytes.as_bytes().len())?;
            return self.write(py, 0, bytes.as_bytes());
        }
        let view = PyMemoryView::from(data)?;
        if has_objects(view.getattr("format")?.extract()?) {
            return Err(PyTypeError::new_err(
                "the items are objects of Python, whose addresses mean nothing elsewhere",
            )
            .into());
        }
        let (len, is_contiguous) = (view.getattr("nbytes")?.extract::<usize>()?, view.getattr("c_contiguous")?);
        if !is_contiguous.is_truthy()? {
            return Err(Failure::value(
                "the elements do not lie one behind the other in the order of the array: copy it first",
            ));
        }
        self.check_fits(len)?;
        if len == 0 {
            return Ok(());
        }
        // Others may write to it as soon as they have the interpreter's lock, so each piece is a copy, made with it.
        let view = view.call_method1("cast", ("B",))?;
        for start in (0..len).step_by(PIECE) {
            let end = len.min(start + PIECE);
            let piece = view.get_item(PySlice::new(py, start as isize, end as isize, 1))?.call_method0("tobytes")?;
            self.write(py, start as u64, piece.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes())?;
            py.check_signals()?;
        }
        Ok(())
    }

    /// Returns the bytes, once what its stream was given has run.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>, Failure> {
        pool::check_not_forked()?;
        let memory = &*self.memory;
        let len = isize::try_from(memory.bytes).map_err(Failure::value)?;
        // SAFETY: without bytes to copy it makes an object of that length, or raises.
        let made = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), len) };
        // SAFETY: a new reference, or null with an exception raised.
        let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?.cast_into::<PyBytes>().map_err(PyErr::from)?;
        // SAFETY: the object is one of bytes.
        let at = unsafe { ffi::PyBytes_AsString(made.as_ptr()) }.cast::<u8>().addr();
        py.detach(|| {
            let at = std::ptr::with_exposed_provenance_mut::<u8>(at);
            // Here and not before, as the pages of the host are made by it.
            // SAFETY: so many bytes are the object's, which nobody else has yet.
            unsafe { at.write_bytes(0, len as usize) };
            // SAFETY: as above, and they are written.
            let bytes = unsafe { std::slice::from_raw_parts_mut(at, len as usize) };
            let block = memory.block();
            let block = block.as_ref().ok_or(Failure::Released)?;
            Ok::<_, Failure>(memory.device.context.copy_to_host(block, 0, bytes, block.stream())?)
        })?;
        Ok(made)
    }

    /// Has it freed only after what a stream was given until then, and the stream come after what was done to it so far.
    fn record_stream(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let raw = raw_handle(stream)?;
        py.detach(|| self.memory.share_with(raw))
    }

    /// The CUDA array interface, version 3.
    #[getter(__cuda_array_interface__)]
    fn cuda_array_interface<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        if self.is_simulated() {
            let why = "the device is simulated: other libraries cannot use its memory";
            return Err(PyAttributeError::new_err(why).into());
        }
        self.memory.check_awake()?;
        let fields = PyDict::new(py);
        fields.set_item("shape", (self.memory.bytes,))?;
        fields.set_item("typestr", "|u1")?;
        fields.set_item("data", (self.memory.ptr, false))?;
        fields.set_item("strides", py.None())?;
        fields.set_item("version", 3)?;
        fields.set_item("stream", self.stream())?;
        Ok(fields)
    }

    /// The kind and the number of its device, as DLPack has them.
    fn __dlpack_device__(&self) -> (i32, i32) {
        let kind = if self.is_simulated() { dlpack::EXTENSION } else { dlpack::CUDA };
        (kind, self.memory.number as i32)
    }

    /// A capsule for a library that works on `stream`.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        if self.is_simulated() {
            let why = "the device is simulated: other libraries cannot use its memory";
            return Err(PyBufferError::new_err(why).into());
        }
        if copy == Some(true) || dl_device.is_some_and(|wanted| wanted != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err("a buffer is handed over as it is, where it is").into());
        }
        match stream.and_then(|stream| stream.extract::<i64>().ok()) {
            Some(-1) => self.memory.check_awake()?,
            Some(0) => {
                return Err(
                    PyValueError::new_err("a stream of 0 could be either default stream: the legacy one is 1").into()
                );
            }
            Some(raw) if raw < 0 => return Err(PyValueError::new_err(format!("{raw} is no stream")).into()),
            _ => {
                let raw = stream.map_or(Ok(1), raw_handle)?;
                py.detach(|| self.memory.share_with(raw))?;
            }
        }
        let is_versioned = max_version.is_some_and(|(major, _)| major >= 1);
        let memory = &self.memory;
        let addresses = memory.ptr..memory.ptr + memory.bytes;
        Ok(dlpack::capsule(py, memory.clone(), addresses, memory.number, is_versioned)?)
    }

    /// Refuses to be pickled, and so to be copied: an address means nothing elsewhere.
    fn __reduce_ex__(&self, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        let why = "a bursar.Buffer cannot be pickled or copied: to_bytes() returns what it holds";
        Err(PyTypeError::new_err(why))
    }

    fn __repr__(&self) -> String {
        let simulated = if self.is_simulated() { ", simulated" } else { "" };
        let (bytes, number) = (bursar::Bytes(self.memory.bytes), self.memory.number);
        format!("<bursar.Buffer: {bytes} at {:#x} of gpu{number}{simulated}>", self.memory.ptr)
    }
}

/// A device as callers give it: its number, its UUID, or a `bursar.Device`.
#[derive(Clone, Copy, Debug)]
struct DeviceNumber(u32);

impl<'py> FromPyObject<'_, 'py> for DeviceNumber {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let number = given.getattr("index").unwrap_or_else(|_| given.to_owned());
        match number.extract() {
            Ok(number) if !given.is_instance_of::<PyBool>() => Ok(Self(number)),
            _ => {
                let index = given.py().import("bursar._devices")?.call_method1("device_index", (given,))?;
                index.extract().map(Self)
            }
        }
    }
}

/// Returns whether items of a format of the buffer protocol are objects, or have some. Between colons stand names.
fn has_objects(format: &str) -> bool {
    format.split(':').step_by(2).any(|items| items.contains('O'))
}

/// Returns the raw handle of a stream: a number, or an object of a library that has one.
pub(crate) fn raw_handle(stream: &Bound<'_, PyAny>) -> PyResult<u64> {
    if stream.is_none() {
        return Ok(0);
    }
    if let Ok(raw) = stream.extract::<u64>() {
        return Ok(raw);
    }
    if stream.is_instance_of::<PyInt>() {
        return Err(Failure::value("the raw handle of a stream is a number from 0 to 2^64 - 1").into());
    }
    if let Ok(protocol) = stream.call_method0("__cuda_stream__") {
        return Ok(protocol.extract::<(u32, u64)>()?.1);
    }
    for attribute in ["cuda_stream", "ptr", "handle"] {
        if let Ok(handle) = stream.getattr(attribute)
            && let Ok(raw) = handle.getattr("value").unwrap_or(handle).extract::<u64>()
        {
            return Ok(raw);
        }
    }
    let kind = stream.get_type().name()?;
    Err(PyTypeError::new_err(format!("a stream is a raw handle or a stream of PyTorch, CuPy or Numba, not {kind}")))
}

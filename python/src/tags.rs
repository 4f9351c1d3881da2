//! The names of what is allocated: blocks of code, each with a name, and the one that counts.
//!
//! Libraries know of threads alone, so each thread has the blocks that were entered on it, and what they allocate has the name of
//! the last. Buffers know more: each context of Python, such as a task of an event loop, has the blocks that were entered in it.
//! Blocks need not end in the order in which they began, nor on their thread, nor in their context: one that ends takes itself out of
//! its thread's list, and counts in no context from then on.

use crate::pool;
use crate::pool_device;
use bursar::memory::AllocTag;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The blocks that were entered on a thread and have not ended, by number.
#[derive(Debug, Default)]
struct ThreadTags(Mutex<Vec<(u64, AllocTag)>>);

impl ThreadTags {
    fn change(&self, change: impl FnOnce(&mut Vec<(u64, AllocTag)>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the tag of the last block.
    fn tag(&self) -> AllocTag {
        let entered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entered.last().map_or(AllocTag::UNTAGGED, |(_, tag)| *tag)
    }
}

thread_local! {
    static ENTERED: Arc<ThreadTags> = Arc::default();
}

/// Has the thread allocate with the tag of the last block that was entered on it and has not ended.
pub(crate) fn refresh() {
    pool_device::set_tag(ENTERED.with(|entered| entered.tag()));
}

/// The context manager of blocks that have a name. It begins and ends them in one step each, so that no signal comes between that and
/// the statement: Python runs handlers between its own instructions alone.
#[pyclass(frozen, subclass, module = "bursar._native")]
#[derive(Debug)]
pub(crate) struct Tag {
    tag: AllocTag,
    /// The block that has begun and not ended.
    begun: Mutex<Option<Py<TagBlock>>>,
}

#[pymethods]
impl Tag {
    #[new]
    fn new(name: &str) -> Self {
        Self { tag: AllocTag::intern(name), begun: Mutex::default() }
    }

    /// The name.
    #[getter]
    fn name(&self) -> &'static str {
        self.tag.name()
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        if self.begun().is_some() {
            return Err(PyRuntimeError::new_err("the block has begun already: bursar.tag() makes one for each"));
        }
        // Not with `begun` locked, as Python may run another thread meanwhile, which may begin the same one.
        let block = TagBlock::enter(py, self.tag)?.unbind();
        let before = self.begun().replace(block);
        before.map_or(Ok(()), |block| block.get().leave(py))
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        let block = self.begun().take();
        block.map_or(Ok(()), |block| block.get().leave(py))
    }
}

impl Tag {
    fn begun(&self) -> MutexGuard<'_, Option<Py<TagBlock>>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block of code whose allocations have a name.
#[pyclass(frozen, module = "bursar._native")]
#[derive(Debug)]
struct TagBlock {
    number: u64,
    tag: AllocTag,
    thread: Arc<ThreadTags>,
    has_ended: AtomicBool,
}

impl TagBlock {
    /// Enters a block, on this thread and in this context.
    fn enter(py: Python<'_>, tag: AllocTag) -> PyResult<Bound<'_, Self>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let thread = ENTERED.with(Arc::clone);
        let block = Bound::new(py, Self { number, tag, thread, has_ended: AtomicBool::new(false) })?;
        let mut entered = in_context(py)?;
        entered.push(block.clone());
        variable(py)?.call_method1("set", (PyTuple::new(py, entered)?,))?;
        block.get().thread.change(|all| all.push((number, tag)));
        refresh();
        Ok(block)
    }

    /// Ends the block.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.has_ended.store(true, Ordering::Relaxed);
        self.thread.change(|all| all.retain(|(number, _)| *number != self.number));
        if ENTERED.with(|entered| Arc::ptr_eq(entered, &self.thread)) {
            refresh();
        } else {
            // Its thread looks again with its next request.
            pool::forget_streams();
        }
        let left = in_context(py)?;
        let left = if left.is_empty() { py.None().into_bound(py) } else { PyTuple::new(py, left)?.into_any() };
        variable(py)?.call_method1("set", (left,))?;
        Ok(())
    }
}

/// Returns the variable that has the blocks of a context, or none.
fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = || {
        let none = PyDict::new(py);
        none.set_item("default", py.None())?;
        let class = py.import("contextvars")?.getattr("ContextVar")?;
        Ok::<_, PyErr>(class.call(("bursar.tag",), Some(&none))?.unbind())
    };
    Ok(VARIABLE.get_or_try_init(py, make)?.bind(py))
}

/// Returns the blocks of this context that have not ended.
fn in_context(py: Python<'_>) -> PyResult<Vec<Bound<'_, TagBlock>>> {
    let entered = variable(py)?.call_method0("get")?;
    if entered.is_none() {
        return Ok(Vec::new());
    }
    let mut blocks: Vec<Bound<'_, TagBlock>> = entered.extract()?;
    blocks.retain(|block| !block.get().has_ended.load(Ordering::Relaxed));
    Ok(blocks)
}

/// Returns the tag of what the context of this call allocates. The thread has the tag of whichever task set it last.
pub(crate) fn of_context(py: Python<'_>) -> PyResult<AllocTag> {
    Ok(in_context(py)?.last().map_or(AllocTag::UNTAGGED, |block| block.get().tag))
}

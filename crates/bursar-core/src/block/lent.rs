//! Blocks on the other side of a raw boundary (C, Python, FFI), where linear tokens cannot follow.

use crate::{AllocTag, DeviceBlock, DeviceId, DevicePtr, Error, Generation, Result};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The value that crosses the boundary in place of a block.
///
/// ```
/// use bursar::memory::{DevicePtr, Generation, RawBlock};
///
/// let raw = RawBlock { ptr: DevicePtr(0x1000), generation: Generation::next() };
/// assert_eq!(Generation::from_raw(raw.generation.get()), Some(raw.generation));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawBlock {
    /// The address of the block.
    pub ptr: DevicePtr,
    /// The generation of the block.
    pub generation: Generation,
}

/// The number of returned blocks that are remembered, to tell a stale value from one that was never lent.
const REMEMBERED: usize = 4096;

/// The blocks of one device that were lent across a raw boundary. A value that comes back is looked up, so the other
/// side can neither free a block it was not given nor free one twice.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # fn show(context: &DeviceContext, block: DeviceBlock) -> Result<()> {
/// let raw = context.lent().lend(block);
/// let block = context.lent().take_back(raw)?;
/// assert!(matches!(context.lent().take_back(raw), Err(Error::UseAfterFree { .. })));
/// # drop(block);
/// # Ok(())
/// # }
/// ```
pub struct LentBlocks {
    device: DeviceId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lent: HashMap<DevicePtr, DeviceBlock>,
    returned: HashMap<Generation, AllocTag>,
    order: VecDeque<Generation>,
}

impl LentBlocks {
    pub(crate) fn new(device: DeviceId) -> Self {
        Self { device, state: Mutex::default() }
    }

    /// Keeps the block and returns the value that stands for it on the other side.
    pub fn lend(&self, block: DeviceBlock) -> RawBlock {
        let raw = RawBlock { ptr: block.ptr(), generation: block.generation() };
        self.state.lock().unwrap_or_else(PoisonError::into_inner).lent.insert(raw.ptr, block);
        raw
    }

    /// Returns the block that `raw` stands for. One that came back already, or whose address has been lent anew, is
    /// [`Error::UseAfterFree`]; one that was never lent here is [`Error::ForeignBlock`].
    pub fn take_back(&self, raw: RawBlock) -> Result<DeviceBlock> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.lent.get(&raw.ptr) {
            Some(block) if block.generation() == raw.generation => {}
            _ => return Err(state.unknown_block_error(self.device, raw)),
        }
        state.take(raw.ptr).ok_or(Error::ForeignBlock { device: self.device, ptr: raw.ptr })
    }

    /// Returns the block that begins at `ptr`, for boundaries that carry an address alone.
    pub fn take_back_at(&self, ptr: DevicePtr) -> Result<DeviceBlock> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.take(ptr).ok_or(Error::ForeignBlock { device: self.device, ptr })
    }

    /// Returns how many blocks are on the other side.
    pub fn len(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).lent.len()
    }

    /// Returns whether no block is on the other side.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for LentBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentBlocks").field("device", &self.device).field("lent", &self.len()).finish_non_exhaustive()
    }
}

impl State {
    fn take(&mut self, ptr: DevicePtr) -> Option<DeviceBlock> {
        let block = self.lent.remove(&ptr)?;
        self.returned.insert(block.generation(), block.tag());
        self.order.push_back(block.generation());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.returned.remove(&oldest);
        }
        Some(block)
    }

    /// Returns the error for a value that stands for no lent block.
    fn unknown_block_error(&self, device: DeviceId, raw: RawBlock) -> Error {
        let RawBlock { ptr, generation } = raw;
        match self.returned.get(&generation) {
            Some(&tag) => Error::UseAfterFree { ptr, generation, tag },
            None if self.lent.contains_key(&ptr) => Error::UseAfterFree { ptr, generation, tag: AllocTag::UNTAGGED },
            None => Error::ForeignBlock { device, ptr },
        }
    }
}

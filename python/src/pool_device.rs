//! The pool's memory of one device: a stack, and the blocks that libraries have of it.

use crate::failure::Failure;
use crate::machine::Machine;
use crate::pool_book::{Book, Held};
use crate::pool_counts;
use crate::pool_reserved::Reserved;
use crate::pool_share;
use crate::pool_streams::Streams;
use crate::reservation::Drawn;
use bursar::device::DeviceContext;
use bursar::error::StreamMisuse;
use bursar::ledger::Ledger;
use bursar::memory::{AllocTag, Build, DeviceBlock, DeviceMemoryResource, DeviceMemoryResourceExt as _, Refused};
use bursar::sync::Latch;
use bursar::{Bytes, DeviceId, Error, GlobalDeviceBudget, Ledgers, PagePool, Stack, Statistics, Stream, leaf};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The alignment of every block, which is that of the pool's units.
pub(crate) const ALIGN: u64 = 256;

/// The terms of a pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    /// The most that the pool may hold of each device.
    pub(crate) limit: Option<Bytes>,
    /// The only device that it is for.
    pub(crate) device: Option<DeviceId>,
    /// The reservation that it is charged to, where that is not the process's share or its account with the device's ledger.
    pub(crate) account: Option<Arc<Drawn>>,
}

/// The state of a pool that its devices share.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// Set while it is being replaced and, unless that is refused, from then on: nothing of it is handed out any more.
    pub(crate) is_closing: AtomicBool,
    /// Set once another has taken its place.
    pub(crate) is_replaced: AtomicBool,
}

/// The pool's memory of one device.
#[derive(Debug)]
pub(crate) struct PoolDevice {
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) memory: Arc<dyn DeviceMemoryResource>,
    pub(crate) pages: PagePool,
    pub(crate) limit: GlobalDeviceBudget,
    pub(crate) statistics: Statistics,
    pub(crate) reserved: Reserved,
    /// The reservation or the share that it is charged to, if it is one.
    account: Option<Arc<Drawn>>,
    /// The blocks of PyTorch.
    pub(crate) book: Latch<Book>,
    /// The blocks of the other libraries.
    pub(crate) others: Latch<Book>,
    /// The memory of buffers, by address: its tag and its bytes.
    pub(crate) buffers: Latch<BTreeMap<u64, (AllocTag, u64)>>,
    pub(crate) streams: Streams,
    /// The captures into graphs that were announced and have not ended.
    pub(crate) captures: AtomicU32,
    /// Blocks whose frees were refused, because their stream is being captured.
    refused: Mutex<Vec<(DeviceBlock, Vec<Stream>)>>,
    has_refused: AtomicBool,
    standing: Arc<Standing>,
}

thread_local! {
    static TAG: Cell<AllocTag> = const { Cell::new(AllocTag::UNTAGGED) };
}

/// Sets the tag of what this thread allocates from now on, and returns the one before.
pub(crate) fn set_tag(tag: AllocTag) -> AllocTag {
    TAG.replace(tag)
}

/// Returns the tag of what this thread allocates.
#[inline]
pub(crate) fn tag() -> AllocTag {
    TAG.get()
}

impl PoolDevice {
    /// Builds the stack of a device.
    pub(crate) fn open(
        machine: &Machine,
        device: DeviceId,
        terms: &Terms,
        ledgers: &Ledgers,
        standing: Arc<Standing>,
    ) -> Result<Self, Failure> {
        let context = machine.context(device)?;
        let (pages, (statistics, reserved)) = (PagePool::default(), pool_counts::of(&context));
        let limit = GlobalDeviceBudget::of(terms.limit.unwrap_or(Bytes::MAX)).named("this process's pool");
        let share = Arc::new(OnceLock::new());
        let account = match &terms.account {
            Some(account) => {
                account.check_is_of(&Ledger::for_device(&context).map_err(Error::from)?, device)?;
                GlobalDeviceBudget::shared(account.clone())
            }
            None => {
                let share = share.clone();
                ledgers.budget_by(move |reserved| share.get_or_init(|| pool_share::of_process(reserved)).clone())
            }
        };
        let stack = Stack::new().observe(statistics.clone()).layer(pages.clone()).layer(reserved.clone());
        let memory = Arc::new(stack.layer(limit.clone()).layer(account).over(leaf::Frames).build(&context)?);
        Ok(Self {
            memory,
            pages,
            limit,
            statistics,
            reserved,
            account: terms.account.clone().or_else(|| share.get().cloned()),
            book: Latch::default(),
            others: Latch::default(),
            buffers: Latch::default(),
            streams: Streams::default(),
            captures: AtomicU32::new(0),
            refused: Mutex::default(),
            has_refused: AtomicBool::new(false),
            standing,
            context,
        })
    }

    /// Returns how many blocks are outside, at least.
    pub(crate) fn blocks(&self) -> u64 {
        let listed = [&self.book, &self.others].map(|book| book.lock().counts[0].blocks.current).iter().sum::<u64>()
            + self.buffers.lock().len() as u64;
        listed.max(self.statistics.counts().current.count)
    }

    /// Returns the most that the pool may hold of it, where it has a limit of its own.
    pub(crate) fn own_limit(&self) -> Option<Bytes> {
        self.limit.readings().first().map(|reading| reading.limit).filter(|limit| *limit < Bytes::MAX)
    }

    /// Returns whether the pool is being replaced, or was. Asked with the list locked that a block is entered in, which whoever replaces
    /// the pool looks at after setting it: a block is either seen there or goes back.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.standing.is_closing.load(Ordering::Relaxed)
    }

    /// Takes back a block that cannot be handed out because the pool is being replaced.
    #[cold]
    pub(crate) fn take_back(&self, block: DeviceBlock) -> Failure {
        self.free_after(block, Vec::new());
        Failure::Replaced
    }

    /// Gives back all that a pool has which was replaced meanwhile: nobody else does.
    #[cold]
    fn retire_if_replaced(&self) {
        if self.standing.is_replaced.load(Ordering::SeqCst) {
            self.pages.retire();
        }
    }

    /// Allocates with the thread's tag.
    #[inline]
    pub(crate) fn allocate(&self, bytes: u64, stream: Stream) -> Result<DeviceBlock, Failure> {
        if self.has_refused.load(Ordering::Relaxed) {
            self.retry_refused();
        }
        self.memory.allocate(bytes, ALIGN, stream, tag()).map_err(|error| self.explain(error, bytes))
    }

    /// Enters a block in a book and returns its address, unless the pool is being replaced.
    #[inline]
    pub(crate) fn enter(&self, book: &Latch<Book>, held: Held) -> Result<u64, Failure> {
        let (ptr, mut book) = (held.block.ptr().0, book.lock());
        if self.is_closing() {
            drop(book);
            return Err(self.take_back(held.block));
        }
        book.enter(held);
        Ok(ptr)
    }

    /// Allocates memory that any stream may use at once, for those who name none.
    pub(crate) fn allocate_anywhere(&self, bytes: u64) -> Result<DeviceBlock, Failure> {
        let stream = self.streams.anywhere(&self.context)?;
        let block = self.allocate(bytes, stream)?;
        match self.context.synchronize(stream) {
            Ok(()) => Ok(block),
            Err(error) => {
                self.free_after(block, Vec::new());
                Err(error.into())
            }
        }
    }

    /// Frees such memory, after everything that the legacy default stream and those that block on it were given.
    pub(crate) fn free_anywhere(&self, block: DeviceBlock) {
        let (legacy, stream) = (self.context.default_stream(), block.stream());
        match self.context.order(legacy, stream) {
            Ok(()) => self.free_after(block, Vec::new()),
            Err(error) => self.keep(Refused { block, error }, vec![legacy]),
        }
    }

    /// Enters a block and returns its address.
    #[inline]
    pub(crate) fn hand_out(&self, held: Held) -> u64 {
        let ptr = held.block.ptr().0;
        self.book.lock().enter(held);
        ptr
    }

    /// Frees a block after its own stream, and after those that it was used on.
    #[inline]
    pub(crate) fn free(&self, held: Held) {
        let Held { block, is_shared, .. } = held;
        if is_shared {
            return self.free_shared(block);
        }
        let stream = block.stream();
        match self.memory.deallocate(block, stream) {
            Ok(()) if self.is_closing() => self.retire_if_replaced(),
            Ok(()) => {}
            Err(refused) => self.free_refused(refused),
        }
    }

    /// Frees a block whose stream has ended, after everything that it was given, and keeps any other that was refused.
    #[cold]
    fn free_refused(&self, refused: Refused) {
        match refused.error {
            Error::StreamMisuse { why: StreamMisuse::Ended, .. } => self.free_after(refused.block, Vec::new()),
            _ => self.keep(refused, Vec::new()),
        }
    }

    /// Frees a block that was used on other streams too.
    #[cold]
    fn free_shared(&self, block: DeviceBlock) {
        let uses = self.book.lock().take_uses(block.ptr().0);
        self.free_and_leave(block, uses);
    }

    /// Frees a block as [`free_after`](Self::free_after) does, and leaves the streams that were entered for it.
    pub(crate) fn free_and_leave(&self, block: DeviceBlock, uses: Vec<Stream>) {
        let entered: Vec<_> = uses.iter().copied().chain([block.stream()]).collect();
        self.free_after(block, uses);
        entered.into_iter().for_each(|stream| self.streams.leave(stream));
    }

    /// Frees a block after its own stream and these: at no cost where there is one of them, and else on a stream that waits
    /// for them all.
    pub(crate) fn free_after(&self, block: DeviceBlock, uses: Vec<Stream>) {
        let home = block.stream();
        let after = match &*uses {
            [] => self.context.lasting(home),
            [one] => self.context.lasting(*one),
            several => self.streams.joined(&self.context, several),
        };
        let refused = match after {
            Ok(stream) => match self.memory.deallocate(block, stream) {
                Ok(()) if self.is_closing() => return self.retire_if_replaced(),
                Ok(()) => return,
                Err(refused) => refused,
            },
            Err(error) => Refused { block, error },
        };
        self.keep(refused, uses);
    }

    /// Keeps a block whose free was refused, to try again.
    #[cold]
    fn keep(&self, refused: Refused, uses: Vec<Stream>) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).push((refused.block, uses));
        self.has_refused.store(true, Ordering::Relaxed);
    }

    /// Tries the frees again that were refused, unless a capture is under way.
    #[cold]
    pub(crate) fn retry_refused(&self) {
        if self.captures.load(Ordering::Acquire) > 0 {
            return;
        }
        let refused = {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            self.has_refused.store(false, Ordering::Relaxed);
            std::mem::take(&mut *refused)
        };
        refused.into_iter().for_each(|(block, uses)| self.free_after(block, uses));
    }

    /// Counts a refusal and explains it.
    #[cold]
    pub(crate) fn explain(&self, error: Error, bytes: u64) -> Failure {
        if self.is_closing() {
            self.retire_if_replaced();
            return Failure::Replaced;
        }
        self.book.lock().refusals += 1;
        if !error.is_capacity() && self.account.as_ref().is_some_and(|account| account.is_released()) {
            return Failure::PoolReleased;
        }
        // The pool has explained it, where it is for want of memory.
        match error.shortage() {
            Some(_) => error.into(),
            None => self.memory.explain(error, Bytes(bytes), ALIGN).into(),
        }
    }

    /// Gives back to the driver what nobody uses.
    pub(crate) fn trim(&self) -> Bytes {
        self.retry_refused();
        self.pages.trim(Bytes::ZERO)
    }
}

//! The pool of this process: one stack for each device, which every library draws on.
//!
//! A request finds its device and its stream in memory of its thread (`pool_requests`), allocates, and enters the block in
//! the device's book (`pool_book`), from which a free takes it by its address. Nothing else is between a library and the
//! pool of the Rust library.
#![allow(unsafe_code)]

use crate::failure::Failure;
use crate::machine::Machine;
use crate::pool_book::{Book, Held};
use crate::pool_reserved::Reserved;
use crate::pool_share;
use crate::pool_streams::Streams;
use crate::reservation::Drawn;
use bursar::device::DeviceContext;
use bursar::error::StreamMisuse;
use bursar::ledger::Ledger;
use bursar::memory::{AllocTag, Build, DeviceBlock, DeviceMemoryResource, DeviceMemoryResourceExt as _, Refused};
use bursar::observe::Observer;
use bursar::sync::Latch;
use bursar::{Bytes, DeviceId, Error, GlobalDeviceBudget, Ledgers, PagePool, Stack, Statistics, Stream, leaf};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

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

/// The pool of this process.
#[derive(Debug)]
pub(crate) struct Pool {
    machine: Arc<Machine>,
    terms: Terms,
    ledgers: Ledgers,
    devices: Box<[OnceLock<PoolDevice>]>,
    /// Set while it is being replaced and, unless that is refused, from then on: nothing of it is handed out any more.
    is_closing: Arc<AtomicBool>,
    /// Observers that were added, for devices that are not open yet.
    observers: Mutex<Vec<Arc<dyn Observer>>>,
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
    /// Read with the list locked that a block is entered in, which whoever replaces the pool looks at after setting it: a block
    /// is either seen there or goes back.
    is_closing: Arc<AtomicBool>,
}

/// The pool that calls use: null before the first of them. A pool is never dropped, because libraries give blocks back until
/// the process has ended.
static CURRENT: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
/// One library at a time makes or replaces the pool.
static MAKING: Mutex<()> = Mutex::new(());
/// Counts what makes remembered streams invalid: another pool, the end of a stream, and of a tag's block on another thread.
static EPOCH: AtomicU64 = AtomicU64::new(1);
/// Set in a child that was forked: whatever the pool's other threads were doing, they are not here.
static IS_FORKED: AtomicBool = AtomicBool::new(false);
/// The process that has the pool.
static OPENER: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static TAG: Cell<AllocTag> = const { Cell::new(AllocTag::UNTAGGED) };
}

/// Sets the tag of what this thread allocates from now on, and returns the one before.
pub(crate) fn set_tag(tag: AllocTag) -> AllocTag {
    TAG.replace(tag)
}

/// Returns the tag of what this thread allocates.
pub(crate) fn tag() -> AllocTag {
    TAG.get()
}

/// Has the threads look their streams, and their tags, up again.
pub(crate) fn forget_streams() {
    EPOCH.fetch_add(1, Ordering::Release);
}

/// Returns a number that changes with whatever makes remembered streams invalid.
#[inline]
pub(crate) fn epoch() -> u64 {
    EPOCH.load(Ordering::Acquire)
}

/// Returns whether this process was forked from the one that has the pool.
#[inline]
pub(crate) fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Fails in a child that was forked from the process that has the pool.
pub(crate) fn check_not_forked() -> Result<(), Failure> {
    if is_forked() { Err(Failure::Forked { opener: OPENER.load(Ordering::Relaxed) }) } else { Ok(()) }
}

extern "C" fn note_fork() {
    IS_FORKED.store(true, Ordering::Relaxed);
}

/// Returns the pool of this process, if there is one.
#[inline]
pub(crate) fn current() -> Option<&'static Pool> {
    // SAFETY: null, or a pool that is never dropped.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Returns the pool of this process, made on the usual terms where nobody made it.
pub(crate) fn current_or_default(
    machine: impl FnOnce() -> Result<Arc<Machine>, Failure>,
) -> Result<&'static Pool, Failure> {
    check_not_forked()?;
    match current() {
        Some(pool) => Ok(pool),
        None => install(machine()?, Terms::default()),
    }
}

/// Makes the pool of this process. One that exists is replaced, unless somebody has memory of it.
pub(crate) fn install(machine: Arc<Machine>, terms: Terms) -> Result<&'static Pool, Failure> {
    check_not_forked()?;
    let _one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = current() {
        pool.check_unused()?;
    }
    let (devices, is_closing) = (machine.devices().map(|_| OnceLock::new()).collect(), Arc::default());
    let pool = Pool { machine, terms, ledgers: Ledgers::default(), devices, is_closing, observers: Mutex::default() };
    // A limit or an account that cannot be had is an error now, and not at the first allocation.
    pool.terms.device.map(|device| pool.device(device).map(drop)).transpose()?;
    let before = current();
    before.map(Pool::close).transpose()?;
    pool.terms.account.iter().for_each(|account| account.join());
    before.into_iter().for_each(|pool| _ = pool.trim());
    if CURRENT.swap(Box::into_raw(Box::new(pool)), Ordering::AcqRel).is_null() {
        OPENER.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the function only stores a flag, which a child may do.
        unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
    }
    // The one before is never dropped, and draws on its reservation no more. Its addresses go, now or with the block of a thread
    // that is taking memory of it or giving it back just now.
    before.into_iter().flat_map(Pool::opened).for_each(|device| _ = device.pages.retire());
    before.and_then(|pool| pool.terms.account.as_ref()).into_iter().for_each(|account| account.leave());
    forget_streams();
    current().ok_or(Failure::Memory(Error::NoDevice))
}

/// Has a request try again that met the replacement of the pool, once that is over.
pub(crate) fn retrying<T>(mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    loop {
        match attempt() {
            Err(Failure::Replaced) => drop(MAKING.lock().unwrap_or_else(PoisonError::into_inner)),
            done => return done,
        }
    }
}

/// A device that pools of this process were used on, and its counts.
type Counted = (Weak<DeviceContext>, Statistics, Reserved);

/// The counts of all such devices.
static COUNTED: Mutex<Vec<Counted>> = Mutex::new(Vec::new());

fn find_counts(counted: &[Counted], context: &Arc<DeviceContext>) -> Option<(Statistics, Reserved)> {
    let known = counted.iter().find(|(of, ..)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(context)));
    known.map(|(_, statistics, reserved)| (statistics.clone(), reserved.after()))
}

/// Returns the statistics of a device: those of the pool before, if there was one, because a device keeps its observers. So what is
/// counted of frames knows what that pool has held.
fn statistics_of(context: &Arc<DeviceContext>) -> (Statistics, Reserved) {
    let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    counted.retain(|(context, ..)| context.strong_count() > 0);
    find_counts(&counted, context).unwrap_or_else(|| {
        let (statistics, reserved) = (Statistics::default(), Reserved::default());
        counted.push((Arc::downgrade(context), statistics.clone(), reserved.clone()));
        (statistics, reserved)
    })
}

/// Returns an open device of the pool.
#[inline]
pub(crate) fn opened(number: u32) -> Option<&'static PoolDevice> {
    current()?.devices.get(number as usize)?.get()
}

impl Pool {
    /// Returns a device, with its stack built.
    pub(crate) fn device(&self, device: DeviceId) -> Result<&PoolDevice, Failure> {
        let count = self.machine.device_count();
        let slot = self.devices.get(device.0 as usize).ok_or(Error::InvalidDevice { device, count })?;
        if let Some(opened) = slot.get() {
            return Ok(opened);
        }
        if self.terms.device.is_some_and(|only| only != device) {
            return Err(Failure::OtherDevice { device, only: self.terms.device.unwrap_or(device) });
        }
        let opened = PoolDevice::open(self, device)?;
        for observer in &*self.observers() {
            opened.context.sink().subscribe(observer)?;
        }
        Ok(slot.get_or_init(|| opened))
    }

    /// Returns the devices that were used.
    pub(crate) fn opened(&self) -> impl Iterator<Item = &PoolDevice> {
        self.devices.iter().filter_map(OnceLock::get)
    }

    /// Returns the devices that were used, with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u32, &PoolDevice)> {
        (0..).zip(&self.devices).filter_map(|(number, device)| Some((number, device.get()?)))
    }

    /// Returns the counts of a device of its machine, if this pool or one before it was used on it.
    pub(crate) fn counts(&self, device: DeviceId) -> Option<(Statistics, Reserved)> {
        let context = self.machine.opened_context(device)?;
        find_counts(&COUNTED.lock().unwrap_or_else(PoisonError::into_inner), context)
    }

    /// Returns the most that it may hold of a device, used or not, where it has a limit of its own.
    pub(crate) fn limit_of(&self, device: DeviceId) -> Option<Bytes> {
        match self.used(device) {
            Some(used) => used.own_limit(),
            None => self.terms.limit.filter(|_| self.terms.device.is_none_or(|only| only == device)),
        }
    }

    /// Returns its memory of a device, if it was used.
    pub(crate) fn used(&self, device: DeviceId) -> Option<&PoolDevice> {
        self.devices.get(device.0 as usize)?.get()
    }

    /// Returns its devices, used or not.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.machine.devices()
    }

    /// Returns whether its devices are simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        self.machine.kind() == "simulated"
    }

    /// Returns the device that is meant where none is named.
    pub(crate) fn default_device(&self) -> DeviceId {
        self.terms.device.unwrap_or_else(|| self.machine.default_device())
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    fn observers(&self) -> MutexGuard<'_, Vec<Arc<dyn Observer>>> {
        self.observers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an observer told of what happens on every device, those to come included.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) -> Result<(), Failure> {
        let mut observers = self.observers();
        for device in self.opened() {
            device.context.sink().subscribe(&observer)?;
        }
        if observers.iter().all(|other| other.identity() != observer.identity()) {
            observers.push(observer);
        }
        Ok(())
    }

    /// Gives back to the driver what nobody uses, and returns how much that was.
    pub(crate) fn trim(&self) -> Bytes {
        self.opened().fold(Bytes::ZERO, |sum, device| sum.saturating_add(device.trim()))
    }

    fn check_unused(&self) -> Result<(), Failure> {
        let blocks = self.opened().map(PoolDevice::blocks).sum::<u64>();
        if blocks == 0 { Ok(()) } else { Err(Failure::PoolInUse { blocks }) }
    }

    /// Has nothing of it be handed out any more, unless something is outside.
    fn close(&self) -> Result<(), Failure> {
        self.is_closing.store(true, Ordering::SeqCst);
        self.check_unused().inspect_err(|_| self.is_closing.store(false, Ordering::SeqCst))
    }
}

impl PoolDevice {
    fn open(pool: &Pool, device: DeviceId) -> Result<Self, Failure> {
        let Pool { machine, terms, ledgers, is_closing, .. } = pool;
        let context = machine.context(device)?;
        let (pages, (statistics, reserved)) = (PagePool::default(), statistics_of(&context));
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
            is_closing: is_closing.clone(),
            context,
        })
    }

    /// Returns how many blocks are outside, at least.
    fn blocks(&self) -> u64 {
        let listed = [&self.book, &self.others].map(|book| book.lock().counts[0].blocks.current).iter().sum::<u64>()
            + self.buffers.lock().len() as u64;
        listed.max(self.statistics.counts().current.count)
    }

    /// Returns the most that the pool may hold of it, where it has a limit of its own.
    pub(crate) fn own_limit(&self) -> Option<Bytes> {
        self.limit.readings().first().map(|reading| reading.limit).filter(|limit| *limit < Bytes::MAX)
    }

    /// Returns whether the pool is being replaced, or was. Asked with the list locked that a block is entered in.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
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
        let is_own = |pool: &Pool| Arc::ptr_eq(&pool.is_closing, &self.is_closing);
        if !current().is_some_and(is_own) {
            self.pages.retire();
        }
    }

    /// Allocates with the thread's tag.
    #[inline]
    pub(crate) fn allocate(&self, bytes: u64, stream: Stream) -> Result<DeviceBlock, Failure> {
        if self.has_refused.load(Ordering::Relaxed) {
            self.retry_refused();
        }
        self.memory.allocate(bytes, ALIGN, stream, TAG.get()).map_err(|error| self.explain(error, bytes))
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

//! Lets the program free memory before a request fails.

use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceMemoryResource, Error, Holder, Layer, Result, Stream, forward_holder,
    forward_memory_resource,
};
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

/// A request that found no memory.
///
/// ```
/// use bursar::memory::{Failure, FailureAction};
///
/// fn once(failure: &Failure<'_>) -> FailureAction {
///     if failure.attempt == 1 { FailureAction::Retry } else { FailureAction::GiveUp }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Failure<'a> {
    /// The error: a want of memory.
    pub error: &'a Error,
    /// The bytes that were asked for.
    pub requested: Bytes,
    /// The alignment that was asked for.
    pub align: u64,
    /// The stream it was asked for on.
    pub stream: Stream,
    /// The tag of the request.
    pub tag: AllocTag,
    /// The number of times it has failed, from 1 on.
    pub attempt: u32,
    /// The memory that was asked, below this layer: to free blocks, and to wait for frees.
    pub memory: &'a dyn DeviceMemoryResource,
}

/// The decision of the program about a request that found no memory.
///
/// ```
/// assert_ne!(bursar::memory::FailureAction::Retry, bursar::memory::FailureAction::GiveUp);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// Try once more: something was freed.
    Retry,
    /// Let the request fail.
    GiveUp,
}

type Callback = dyn Fn(&Failure<'_>) -> FailureAction + Send + Sync;

/// A layer that calls the program when a request finds no memory, so that it can free some and have the request tried
/// again, a bounded number of times.
///
/// The callback runs on the thread of the request, with no lock held. It may free and allocate through any stack, this
/// one too; a request of its own that fails does not call it again. It is called for want of memory alone, never for
/// another error. If it panics, the request ends there and nothing else has changed.
///
/// Memory that it frees in stream order is free when the stream has passed that point: it waits for that, with
/// `failure.memory.reap_blocking`, where the memory below does not. Put it above whatever refuses:
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, DeviceMemoryResource, FailureAction, OnFailure};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, GlobalDeviceBudget, Stack, leaf, tag};
/// use std::sync::{Arc, Mutex};
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let stream = context.create_stream(0)?;
/// let cache = Arc::new(Mutex::new(Vec::new()));
/// let evict = {
///     let cache = cache.clone();
///     OnFailure::new(move |failure| {
///         let oldest = cache.lock().unwrap().pop();
///         let freed = oldest.map(|block| failure.memory.deallocate(block, failure.stream));
///         if let Some(Ok(())) = freed { FailureAction::Retry } else { FailureAction::GiveUp }
///     })
/// };
/// let stack = Stack::new().layer(evict).layer(GlobalDeviceBudget::of(Bytes::mib(1))).over(leaf::Async);
/// let memory = stack.build(&context)?;
///
/// cache.lock().unwrap().push(memory.allocate(1 << 20, 256, stream, tag!("cached"))?);
/// let block = memory.allocate(1 << 20, 256, stream, tag!("wanted"))?;
/// assert!(cache.lock().unwrap().is_empty());
/// memory.deallocate(block, stream)?;
/// # Ok::<(), bursar::Error>(())
/// ```
///
/// Below a budget it is never called for that budget's refusals:
///
/// ```text
/// Stack::new().layer(GlobalDeviceBudget::of(limit)).layer(OnFailure::new(evict)).over(leaf::Async)
/// ```
#[derive(Clone)]
pub struct OnFailure {
    callback: Arc<Callback>,
    retries: u32,
}

impl OnFailure {
    /// The number of times a request is tried again unless [`retries`](Self::retries) says otherwise.
    pub const RETRIES: u32 = 4;

    /// Makes a layer that calls `callback` when a request finds no memory.
    pub fn new(callback: impl Fn(&Failure<'_>) -> FailureAction + Send + Sync + 'static) -> Self {
        Self { callback: Arc::new(callback), retries: Self::RETRIES }
    }

    /// Sets how often a request is tried again at most, however often the callback asks for it.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.callback).addr()
    }

    /// Calls the callback; where this thread is inside it already, gives up.
    #[cold]
    fn call(&self, failure: &Failure<'_>) -> FailureAction {
        match CallGuard::enter(self.identity()) {
            Some(_guard) => (self.callback)(failure),
            None => FailureAction::GiveUp,
        }
    }
}

impl fmt::Debug for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnFailure").field("retries", &self.retries).finish_non_exhaustive()
    }
}

thread_local! {
    /// The callbacks this thread is inside of, by their identity.
    static CALLED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the thread marked as inside a callback until it is dropped.
struct CallGuard;

impl CallGuard {
    fn enter(identity: usize) -> Option<Self> {
        CALLED.with_borrow_mut(|called| {
            if called.contains(&identity) {
                return None;
            }
            called.push(identity);
            Some(Self)
        })
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        CALLED.with_borrow_mut(Vec::pop);
    }
}

/// Memory that calls back when a request finds none; [`OnFailure`] makes it.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, FailureAction, Holder, OnFailure, OnFailureResource};
/// use bursar::sim::Sim;
/// use bursar::{DeviceId, Stack, leaf};
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let memory = Stack::new().layer(OnFailure::new(|_| FailureAction::GiveUp)).over(leaf::Direct).build(&context)?;
/// let resource: &OnFailureResource<_> = memory.inner();
/// assert_eq!(resource.inner().bytes_outstanding(), memory.bytes_outstanding());
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Debug)]
pub struct OnFailureResource<R> {
    inner: R,
    layer: OnFailure,
}

impl<R: DeviceMemoryResource> OnFailureResource<R> {
    /// Returns the memory below.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// Calls the callback and tries again, until the request is granted, the callback gives up or no retry is left.
    #[cold]
    fn retry(&self, mut error: Error, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        for attempt in 1..=self.layer.retries {
            let (requested, memory) = (Bytes(bytes), &self.inner);
            let failure = Failure { error: &error, requested, align, stream, tag, attempt, memory };
            if self.layer.call(&failure) == FailureAction::GiveUp {
                return Err(error);
            }
            match self.inner.allocate(bytes, align, stream, tag) {
                Err(again) if again.is_capacity() => error = again,
                decided => return decided,
            }
        }
        Err(error)
    }
}

impl<I: DeviceMemoryResource> Layer<I> for OnFailure {
    type Output = OnFailureResource<I>;

    fn layer(&self, inner: I) -> Result<OnFailureResource<I>> {
        Ok(OnFailureResource { inner, layer: self.clone() })
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> Holder for OnFailureResource<R> {
    forward_holder!(self.inner);
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for OnFailureResource<R> {
    forward_memory_resource!(self.inner; granted_size, deallocate, tracks_use);

    #[inline]
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        match self.inner.allocate(bytes, align, stream, tag) {
            Err(error) if error.is_capacity() => self.retry(error, bytes, align, stream, tag),
            decided => decided,
        }
    }
}

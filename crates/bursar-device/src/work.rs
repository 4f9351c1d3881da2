//! Work that is submitted to a stream, and the buffers it uses.

use crate::{DeviceSlice, DeviceSliceMut, Gpu, StreamLease};
use bursar_core::{
    Access, DeviceContext, DevicePtr, HostElements, RawStream, RefusedTransfer, Result, Stream, Submission,
    TrackedBlock, Transfer,
};
use bytemuck::Pod;
use std::sync::Arc;

/// Work that is being submitted to one stream.
///
/// To launch a kernel, get the address of each buffer it uses with [`read`](Self::read), [`write`](Self::write) or
/// [`update`](Self::update), and launch on this [stream](Self::raw_stream) before the submission ends: the stream then
/// waits for whatever other streams still do with the buffers. Fills and copies are submitted in the same way and in
/// order with the launches.
///
/// A buffer is tracked as a whole: uses of different slices of it are ordered like uses of the same elements. One that
/// is used several times counts with the strongest access. An error declares nothing more, and what was declared before
/// it counts.
///
/// ```
/// use bursar::sim::{Launch, Sim};
/// use bursar::{DeviceId, Gpu, Result, Stack, leaf, tag};
///
/// let sim = Sim::seeded(5);
/// let gpu = Gpu::open(sim.clone(), DeviceId(0), &Stack::new().over(leaf::Async))?;
/// let (a, b) = (gpu.streams().lease()?, gpu.streams().lease()?);
/// let mut numbers = gpu.buffer::<u8>(4, &a, tag!("numbers"))?;
///
/// let upload = a.submit(|work| work.copy_from_host(&mut numbers, vec![1, 2, 3, 4]))?;
/// b.submit(|work| -> Result<()> {
///     let ptr = work.update(&mut numbers)?;
///     let double = Launch::new("double").writes(ptr, 4).body(move |memory| {
///         let doubled: Vec<u8> = memory.read(ptr, 4).iter().map(|number| number * 2).collect();
///         memory.write(ptr, &doubled);
///     });
///     Ok(sim.launch(DeviceId(0), work.raw_stream()?, double)?)
/// })?;
/// assert_eq!(numbers.to_vec()?, [2, 4, 6, 8]);
/// assert_eq!(upload.wait()?, [1, 2, 3, 4]);
/// sim.assert_clean();
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Debug)]
pub struct Work<'a> {
    submission: Submission<'a>,
}

impl<'a> Work<'a> {
    #[inline]
    fn new(context: &'a Arc<DeviceContext>, stream: Stream) -> Self {
        Self { submission: Submission::new(context, stream) }
    }

    /// Returns the stream.
    pub const fn stream(&self) -> Stream {
        self.submission.stream()
    }

    /// Returns the driver's handle of the stream, to launch on.
    pub fn raw_stream(&self) -> Result<RawStream> {
        self.submission.context().resolve(self.stream())
    }

    /// Returns the address of a buffer or a slice that what is launched next only reads; zero where there is no memory.
    #[inline]
    #[track_caller]
    pub fn read<'b, T: Pod>(&mut self, src: impl Into<DeviceSlice<'b, T>>) -> Result<DevicePtr> {
        let src = src.into();
        self.declare(src.tracked(), Access::Read)?;
        Ok(src.ptr())
    }

    /// Returns the address of a buffer or a slice that what is launched next writes, whatever it held; zero where there
    /// is no memory.
    #[inline]
    #[track_caller]
    pub fn write<'b, T: Pod>(&mut self, dst: impl Into<DeviceSliceMut<'b, T>>) -> Result<DevicePtr> {
        let dst = dst.into();
        self.declare(dst.as_slice().tracked(), Access::Write)?;
        Ok(dst.ptr())
    }

    /// Returns the address of a buffer or a slice that what is launched next reads and writes; zero where there is no
    /// memory.
    #[inline]
    #[track_caller]
    pub fn update<'b, T: Pod>(&mut self, dst: impl Into<DeviceSliceMut<'b, T>>) -> Result<DevicePtr> {
        self.write(dst)
    }

    /// Sets every element to `value`.
    #[track_caller]
    pub fn fill<'b, T: Pod>(&mut self, dst: impl Into<DeviceSliceMut<'b, T>>, value: T) -> Result<()> {
        dst.into().submit_fill(value, &mut self.submission)
    }

    /// Copies all of `src` to `dst`, of the same device and length.
    #[track_caller]
    pub fn copy<'b, 'c, T: Pod>(
        &mut self,
        src: impl Into<DeviceSlice<'b, T>>,
        dst: impl Into<DeviceSliceMut<'c, T>>,
    ) -> Result<()> {
        dst.into().submit_copy_from(src.into(), &mut self.submission)
    }

    /// Copies all of `src` to `dst`, of the same length, between this work's device and another one, in either direction.
    /// The copy runs on this work's stream. Both sides are ordered: it comes after what other streams do with either
    /// buffer, each on its own device, and what comes after it, the free of either included, waits for it.
    ///
    /// Devices that are linked copy directly, and others through the host: on CUDA the driver does that by itself; a
    /// driver that cannot has this wait for it, and then the copy has run when this returns.
    ///
    /// ```
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId, DevicePool, Stack, leaf, tag};
    ///
    /// let driver = Sim::builder().devices(2, Bytes::gib(1)).linked().build();
    /// let gpus = DevicePool::open(driver, &Stack::new().over(leaf::Async))?;
    /// let (here, there) = (gpus.device_at(0)?, gpus.device_at(1)?);
    /// let (a, b) = (here.streams().lease()?, there.streams().lease()?);
    ///
    /// let mut weights = here.zeros::<f32>(1024, &a, tag!("weights"))?;
    /// a.submit(|work| work.fill(&mut weights, 0.5))?;
    /// let mut replica = there.buffer::<f32>(1024, &b, tag!("replica"))?;
    /// b.submit(|work| work.copy_peer(&weights, &mut replica))?;
    /// drop(weights); // freed after the copy
    /// assert_eq!(replica.to_vec()?, [0.5; 1024]);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    #[track_caller]
    pub fn copy_peer<'b, 'c, T: Pod>(
        &mut self,
        src: impl Into<DeviceSlice<'b, T>>,
        dst: impl Into<DeviceSliceMut<'c, T>>,
    ) -> Result<()> {
        dst.into().submit_copy_peer(src.into(), &mut self.submission)
    }

    /// Copies all of `memory`, as many elements as `dst` has, to the device. The memory is a vector, a boxed slice, or
    /// pinned memory, which the device reads by itself and at its full speed; it is kept until the copy has run and
    /// comes back from [`Transfer::wait`]. A refusal gives it back too ([`RefusedTransfer`]).
    ///
    /// ```
    /// # use bursar::{DeviceId, Gpu, Stack, leaf, tag};
    /// # let gpu = Gpu::open(bursar::sim::Sim::seeded(1), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let stream = gpu.streams().lease()?;
    /// let mut batch = gpu.buffer::<f32>(3, &stream, tag!("batch"))?;
    /// let upload = stream.submit(|work| work.copy_from_host(&mut batch, vec![1.0, 2.0, 3.0]))?;
    /// assert_eq!(upload.wait()?, [1.0, 2.0, 3.0]);
    ///
    /// let refused = stream.submit(|work| work.copy_from_host(&mut batch, vec![1.0; 4])).unwrap_err();
    /// assert_eq!(refused.to_string(), "the lengths differ: 3 elements are needed, 4 given");
    /// assert_eq!(refused.transfer.wait()?, [1.0; 4]);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    #[track_caller]
    pub fn copy_from_host<'b, T: Pod, H: HostElements<T>>(
        &mut self,
        dst: impl Into<DeviceSliceMut<'b, T>>,
        memory: H,
    ) -> Result<Transfer<H>, RefusedTransfer<H>> {
        dst.into().submit_copy_from_host(memory, &mut self.submission)
    }

    /// Copies all of `src` to the host, where the transfer returns it once the copy has run.
    #[track_caller]
    pub fn read_back<'b, T: Pod + Send>(&mut self, src: impl Into<DeviceSlice<'b, T>>) -> Result<Transfer<Vec<T>>> {
        let src = src.into();
        Ok(self.read_back_into(src, vec![T::zeroed(); src.len()])?)
    }

    /// Copies all of `src` into `memory`, which has room for exactly that, as in
    /// [`copy_from_host`](Self::copy_from_host). Into memory that is not pinned, the driver may wait for the copy
    /// before this returns.
    ///
    /// ```
    /// # use bursar::{DeviceId, Gpu, Stack, leaf, tag};
    /// # let gpu = Gpu::open(bursar::sim::Sim::seeded(1), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let stream = gpu.streams().lease()?;
    /// let batch = gpu.buffer_from(&[1u32, 2, 3], &stream, tag!("batch"))?;
    /// let mut memory = vec![0; 3];
    /// for _ in 0..2 {
    ///     memory = stream.submit(|work| work.read_back_into(&batch, memory))?.wait()?;
    ///     assert_eq!(memory, [1, 2, 3]);
    /// }
    /// # Ok::<(), bursar::Error>(())
    /// ```
    #[track_caller]
    pub fn read_back_into<'b, T: Pod, H: HostElements<T>>(
        &mut self,
        src: impl Into<DeviceSlice<'b, T>>,
        memory: H,
    ) -> Result<Transfer<H>, RefusedTransfer<H>> {
        src.into().submit_read_back(memory, &mut self.submission)
    }

    pub(crate) const fn submission(&self) -> &Submission<'a> {
        &self.submission
    }

    pub(crate) const fn submission_mut(&mut self) -> &mut Submission<'a> {
        &mut self.submission
    }

    /// Orders the stream for a use of `block`, which goes on until the submission ends.
    #[inline]
    #[track_caller]
    pub(crate) fn declare(&mut self, block: Option<&TrackedBlock>, access: Access) -> Result<()> {
        let _call = self.submission.context().enter_call_site();
        match block {
            Some(block) => self.submission.declare(block, access),
            None => self.submission.check(),
        }
    }
}

impl StreamLease {
    /// Submits work, which declares the buffers it uses through the [`Work`] it is given and is ordered after their
    /// uses on other streams. The uses count when this returns, also by an error or a panic, because something may have
    /// been launched by then. Returns what `submit` returns.
    ///
    /// ```
    /// use bursar::sim::Sim;
    /// use bursar::{DeviceId, Gpu, Stack, leaf, tag};
    ///
    /// let gpu = Gpu::open(Sim::seeded(3), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let (a, b) = (gpu.streams().lease()?, gpu.streams().lease()?);
    ///
    /// let mut weights = gpu.buffer::<f32>(1024, &a, tag!("weights"))?;
    /// a.submit(|work| work.fill(&mut weights, 1.0))?;
    /// let ones = b.submit(|work| work.read_back(&weights))?;
    /// drop(weights);
    /// assert_eq!(ones.wait()?, [1.0; 1024]);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    #[inline]
    pub fn submit<R>(&self, submit: impl FnOnce(&mut Work<'_>) -> R) -> R {
        submit(&mut Work::new(self.context(), self.stream()))
    }
}

impl Gpu {
    /// Submits work to a stream that is not on lease: an acquired, an adopted or the default one. See
    /// [`StreamLease::submit`].
    pub fn submit<R>(&self, stream: impl Into<Stream>, submit: impl FnOnce(&mut Work<'_>) -> R) -> R {
        submit(&mut Work::new(self.context(), stream.into()))
    }
}

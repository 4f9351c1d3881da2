//! Methods for users of memory that follow from those of the trait.

use crate::{Bytes, DeviceBlock, DeviceMemoryResource, Error, Refused};

/// Methods of every [`DeviceMemoryResource`] that follow from the others.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # fn show(memory: &dyn DeviceMemoryResource, stream: Stream) -> Result<()> {
/// let block = memory.allocate(1000, 256, stream, tag!("scratch"))?;
/// memory.free(block)?;
/// # Ok(())
/// # }
/// ```
pub trait DeviceMemoryResourceExt: DeviceMemoryResource {
    /// Frees a block in the order of the stream that it was allocated on, as
    /// [`deallocate`](DeviceMemoryResource::deallocate) does on any stream.
    fn free(&self, block: DeviceBlock) -> Result<(), Refused> {
        let stream = block.stream();
        self.deallocate(block, stream)
    }

    /// Explains why this memory refused `requested` bytes, aligned to `align`: see [`explain`](crate::explain()).
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::error::explain;
    /// # use bursar::prelude::*;
    /// # fn show(memory: &dyn DeviceMemoryResource, stream: Stream) -> Result<DeviceBlock> {
    /// let tag = tag!("activations");
    /// memory.allocate(1 << 30, 256, stream, tag).map_err(|refused| memory.explain(refused, Bytes(1 << 30), 256))
    /// # }
    /// ```
    #[cold]
    fn explain(&self, refused: Error, requested: Bytes, align: u64) -> Error {
        let granted = self.granted_size(requested.get(), align).unwrap_or(requested);
        crate::explain(self.context(), |survey| self.survey(survey), refused, requested, (granted, align))
    }
}

impl<R: DeviceMemoryResource + ?Sized> DeviceMemoryResourceExt for R {}

//! A leaf that maps frames as blocks, and unmaps them when they are freed.
#![allow(unsafe_code)]

use super::{BlockAccounting, Notes, Variant, accounted_holder};
use bursar_core::leaf::{self, DeviceFrames, Leaf};
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, Frame, FrameKind, FrameSource,
    Holder, RawEvent, Refused, Result, Stream, grant,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A mapping leaf. Its bug: it unmaps at once, and not when the stream has passed the free.
#[derive(Debug)]
pub(crate) struct MappingLeaf {
    accounting: BlockAccounting,
    variant: Variant,
    frames: DeviceFrames,
    /// The frames of live blocks.
    live: Mutex<HashMap<DevicePtr, Frame>>,
    /// Freed blocks, each with the event that was recorded at its free.
    retired: Mutex<Vec<(DevicePtr, Frame, RawEvent)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MappingLeaf {
    pub(crate) fn opener(
        variant: Variant,
        notes: Notes,
    ) -> impl Fn(&Arc<DeviceContext>) -> Arc<dyn DeviceMemoryResource> {
        move |context| {
            Arc::new(Self {
                accounting: BlockAccounting::new(context, notes),
                variant,
                frames: leaf::Frames.open(context).expect("the device maps pages"),
                live: Mutex::default(),
                retired: Mutex::default(),
            })
        }
    }

    fn map(&self, frame: &Frame) -> Result<DevicePtr> {
        let (context, bytes) = (&self.accounting.context, frame.bytes().get());
        let (driver, device) = (context.driver(), context.device());
        let FrameKind::Pages(pages) = frame.kind() else {
            panic!("the simulated device maps pages");
        };
        let ptr = driver.address_reserve(device, bytes, 0)?;
        // SAFETY: reserved just now, and as long as the frame.
        unsafe { driver.pages_map(device, ptr, bytes, pages) }?;
        // SAFETY: mapped just now.
        unsafe { driver.pages_allow(device, ptr, bytes) }?;
        Ok(ptr)
    }

    fn unmap(&self, ptr: DevicePtr, frame: Frame) -> Result<()> {
        let (context, bytes) = (&self.accounting.context, frame.bytes().get());
        let (driver, device) = (context.driver(), context.device());
        // SAFETY: mapped by `map`; that all work which touches it has run is what is judged.
        unsafe { driver.pages_unmap(device, ptr, bytes) }?;
        // SAFETY: reserved by `map`, and nothing is mapped there any more.
        unsafe { driver.address_release(device, ptr, bytes) }?;
        self.frames.release_frame(frame).expect("a frame of this source");
        self.accounting.release(bytes);
        Ok(())
    }

    /// Records an event for a freed block, so that it is unmapped when its stream has passed this point.
    fn retire(&self, ptr: DevicePtr, frame: Frame, stream: Stream) -> Result<()> {
        let context = &self.accounting.context;
        let (raw, event) = (context.resolve(stream)?, context.take_event()?);
        // SAFETY: a live stream and an event of this device.
        unsafe { context.driver().event_record(context.device(), event, raw) }?;
        locked(&self.retired).push((ptr, frame, event));
        Ok(())
    }

    /// Unmaps the freed blocks whose event has passed according to `is_over`.
    fn unmap_retired(&self, is_over: impl Fn(RawEvent) -> Result<bool>) -> Result<Bytes> {
        let before = self.released_total();
        let retired = std::mem::take(&mut *locked(&self.retired));
        for (ptr, frame, event) in retired {
            if is_over(event)? {
                self.unmap(ptr, frame)?;
                // SAFETY: taken in `retire`, and forgotten here.
                unsafe { self.accounting.context.return_event(event) };
            } else {
                locked(&self.retired).push((ptr, frame, event));
            }
        }
        Ok(Bytes(self.released_total() - before))
    }
}

impl Holder for MappingLeaf {
    accounted_holder!();

    fn reap(&self) -> Result<Bytes> {
        let context = &self.accounting.context;
        self.unmap_retired(|event| {
            // SAFETY: a live event of this device.
            let progress = unsafe { context.driver().event_query(context.device(), event) }?;
            Ok(progress.is_complete())
        })
    }

    fn reap_blocking(&self, _: Duration) -> Result<Bytes> {
        let context = &self.accounting.context;
        self.unmap_retired(|event| {
            // SAFETY: a live event of this device.
            unsafe { context.driver().event_synchronize(context.device(), event) }?;
            Ok(true)
        })
    }
    fn survey(&self, _: &mut bursar_core::Survey) {}
}

impl DeviceMemoryResource for MappingLeaf {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        self.frames.granted_frame(grant(bytes, align)?.get())
    }

    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        self.reap()?;
        let granted = self.granted_size(bytes, align)?.get();
        let frame = self.frames.create_frame(granted)?;
        let ptr = self.map(&frame)?;
        locked(&self.live).insert(ptr, frame);
        // SAFETY: mapped just now and given out with this block alone.
        Ok(unsafe { self.accounting.grant(ptr, bytes, granted, stream, tag) })
    }

    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let raw = self.accounting.context.resolve(stream).expect("a stream of this context");
        let ptr = self.accounting.take_back(block, raw);
        let frame = locked(&self.live).remove(&ptr).expect("every block has a frame");
        let unmapped = match self.variant {
            Variant::Broken => self.unmap(ptr, frame),
            Variant::Repaired => self.retire(ptr, frame, stream),
        };
        unmapped.expect("the device works");
        Ok(())
    }

    fn tracks_use(&self) -> bool {
        false
    }
}

//! Releasing takes the frame by value: a second release has nothing to release.

use bursar_core::{Frame, FrameSource, RefusedFrame};

fn release_twice(source: &dyn FrameSource, frame: Frame) -> Result<(), RefusedFrame> {
    source.release_frame(frame)?;
    source.release_frame(frame)
}

fn main() {}

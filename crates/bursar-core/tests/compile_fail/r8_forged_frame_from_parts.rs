//! Making a frame of its parts is unsafe.

use bursar_core::{Bytes, DeviceId, Frame, FrameKind, OwnerId, RawPages};

fn forge() -> Frame {
    Frame::from_parts(FrameKind::Pages(RawPages(1)), Bytes::mib(2), DeviceId(0), OwnerId::unique())
}

fn main() {}

//! A frame has no `Clone`.

use bursar_core::Frame;

fn twin(frame: &Frame) -> Frame {
    frame.clone()
}

fn main() {}

//! Reads a snapshot that PyTorch 2.11 wrote on an H200: a few matrix products on the default stream, buffers on a second one,
//! and an allocation that failed.

use bursar_core::Bytes;
use bursar_trace::{EventKind, Format};

#[test]
fn a_real_snapshot_is_read_right() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/torch-2.11-h200.pickle");
    let trace = bursar_trace::read(path).expect("PyTorch wrote it");
    let count = |kind| trace.events.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count(EventKind::Allocate), count(EventKind::Free), count(EventKind::Fail)), (32, 26, 1));
    assert_eq!((trace.unknown_frees.len(), trace.missing_frees.len()), (0, 6));
    assert_eq!(trace.peak_live(), Bytes(68_419_592));
    assert_eq!(trace.streams, [0, 693_643_696]);
    assert_eq!(trace.format, Format::TorchSnapshot);
}

//! A real trace that comes with the crate.

use crate::{Trace, read_from};

/// The start of a real run: ResNet-50 training at mixed image sizes under PyTorch 2.11 on an H200, its first few thousand
/// events, with what was live then left live.
///
/// ```
/// let trace = bursar_trace::bundled();
/// assert!(trace.events.len() > 5_000 && trace.unknown_frees.is_empty());
/// ```
pub fn bundled() -> Trace {
    let log = include_bytes!("../traces/small-resnet.csv.gz");
    read_from(&log[..], "small-resnet.csv.gz").expect("it is read by a test")
}

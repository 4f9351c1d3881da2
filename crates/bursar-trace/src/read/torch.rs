//! PyTorch memory snapshots, as `torch.cuda.memory._dump_snapshot` writes them.

use super::pickle::{self, PickleData, Value};
use super::tags::TagInterner;
use crate::{EventOrigin, FilePosition, Format, Reason, Trace, TraceBuilder, TraceError, TraceLimit};
use bursar_core::AllocTag;
use std::io::BufRead;

/// The keys that a trace is built from; others are not kept.
const KEYS: [&str; 7] = ["device_traces", "action", "addr", "size", "stream", "time_us", "user_metadata"];
const DEVICE_TRACES: u8 = 0;
const ACTION: u8 = 1;
const ADDR: u8 = 2;
const SIZE: u8 = 3;
const STREAM: u8 = 4;
const TIME_US: u8 = 5;
const USER_METADATA: u8 = 6;

pub(crate) fn read(reader: impl BufRead, name: &str) -> Result<Trace, TraceError> {
    let (root, data) = pickle::read(reader, &KEYS).map_err(|reason| TraceError::new(name, reason))?;
    let devices = devices(root, &data).map_err(|reason| TraceError::new(name, reason))?;
    let mut builder = TraceBuilder::new(name, Format::TorchSnapshot);
    let mut tags = TagInterner::default();
    for (device, position, entry) in by_time(&devices, &data) {
        read_entry(&data, device, position, entry, &mut tags, &mut builder)
            .map_err(|reason| TraceError::at(name, Format::TorchSnapshot, position, reason))?;
    }
    Ok(builder.finish())
}

/// Returns the entries of each device.
fn devices(root: Value, data: &PickleData) -> Result<Vec<&[Value]>, Reason> {
    let absent = "it has no device_traces; record with torch.cuda.memory._record_memory_history()";
    let traces = data.get(root, DEVICE_TRACES).ok_or(Reason::NotSnapshot { what: absent })?;
    let traces = data.list(traces).ok_or(Reason::NotSnapshot { what: "device_traces is not a list" })?;
    if traces.len() > usize::from(u8::MAX) + 1 {
        return Err(TraceLimit::Device { device: traces.len() as u64 - 1 }.into());
    }
    let mut seen = std::collections::HashSet::new();
    for trace in traces {
        if let Value::List(id) = trace
            && !seen.insert(*id)
        {
            return Err(Reason::NotSnapshot { what: "two devices share one trace" });
        }
    }
    let lists = traces.iter().map(|&trace| data.list(trace));
    lists.collect::<Option<_>>().ok_or(Reason::NotSnapshot { what: "the trace of a device is not a list" })
}

/// Returns the entries of all devices, merged by time; those of one device stay in their order.
fn by_time<'a>(
    devices: &'a [&'a [Value]],
    data: &'a PickleData,
) -> impl Iterator<Item = (u64, FilePosition, Value)> + 'a {
    let mut next = vec![0usize; devices.len()];
    let time = |entry: Value| match data.get(entry, TIME_US) {
        Some(Value::Int(time)) => time,
        _ => 0,
    };
    std::iter::from_fn(move || {
        let heads = devices.iter().zip(&next).enumerate();
        let heads = heads.filter_map(|(device, (entries, &at))| entries.get(at).map(|&entry| (device, entry)));
        let (device, entry) = heads.min_by_key(|&(_, entry)| time(entry))?;
        next[device] += 1;
        Some((device as u64, FilePosition(next[device] as u64), entry))
    })
}

fn read_entry(
    data: &PickleData,
    device: u64,
    position: FilePosition,
    entry: Value,
    tags: &mut TagInterner,
    builder: &mut TraceBuilder,
) -> Result<(), Reason> {
    let action = data.get(entry, ACTION).and_then(|action| data.text(action));
    let action = action.ok_or(Reason::NotSnapshot { what: "an entry of device_traces has no action" })?;
    if !matches!(action, "alloc" | "free_requested" | "free" | "oom") {
        return Ok(());
    }
    let field = |key: u8| natural(KEYS[key as usize], data.get(entry, key));
    // A stream is a handle: CUDA's are addresses, and a signed 64-bit number may hold one as negative.
    let stream = match data.get(entry, STREAM) {
        Some(Value::Int(stream)) => stream as u64,
        Some(Value::Large(stream)) => stream,
        _ => 0,
    };
    let origin = EventOrigin { position, thread: 0, stream, device };
    let tag = |tags: &mut TagInterner| match data.get(entry, USER_METADATA).and_then(|text| data.text(text)) {
        // An allocation without a name has an empty text.
        Some(text) if !text.is_empty() => tags.get(text.as_bytes()),
        _ => AllocTag::UNTAGGED,
    };
    match action {
        "alloc" => builder.allocate(origin, field(ADDR)?, field(SIZE)?, tag(tags))?,
        "oom" => builder.fail(origin, field(SIZE)?, tag(tags))?,
        _ => builder.free(origin, field(ADDR)?, field(SIZE)?)?,
    }
    Ok(())
}

fn natural(field: &'static str, value: Option<Value>) -> Result<u64, Reason> {
    let found = match value {
        Some(Value::Int(value)) => match u64::try_from(value) {
            Ok(value) => return Ok(value),
            Err(_) => value.to_string(),
        },
        Some(Value::Large(value)) => return Ok(value),
        Some(_) => "not a number of 64 bits".to_owned(),
        None => String::new(),
    };
    Err(Reason::Field { field, found, expected: "a number from 0 to 18446744073709551615" })
}

//! PyTorch memory snapshots: what `torch.cuda.memory._dump_snapshot` writes.

use crate::pickle::{self, Kept, Value};
use crate::tags::Tags;
use crate::{Format, Limit, Place, Reason, Site, Trace, TraceBuilder, TraceError};
use bursar_core::AllocTag;
use std::io::BufRead;

/// The keys a trace is made of; of all others nothing is kept.
const KEYS: [&str; 7] = ["device_traces", "action", "addr", "size", "stream", "time_us", "user_metadata"];
const DEVICE_TRACES: u8 = 0;
const ACTION: u8 = 1;
const ADDR: u8 = 2;
const SIZE: u8 = 3;
const STREAM: u8 = 4;
const TIME_US: u8 = 5;
const USER_METADATA: u8 = 6;

pub(crate) fn read(reader: impl BufRead, name: &str) -> Result<Trace, TraceError> {
    let (root, kept) = pickle::read(reader, &KEYS).map_err(|reason| TraceError::new(name, reason))?;
    let devices = devices(root, &kept).map_err(|reason| TraceError::new(name, reason))?;
    let mut builder = TraceBuilder::new(name, Format::TorchSnapshot);
    let mut tags = Tags::default();
    for (device, place, entry) in in_time(&devices, &kept) {
        read_entry(&kept, device, place, entry, &mut tags, &mut builder)
            .map_err(|reason| TraceError::at(name, Format::TorchSnapshot, place, reason))?;
    }
    Ok(builder.finish())
}

/// The entries of each device.
fn devices(root: Value, kept: &Kept) -> Result<Vec<&[Value]>, Reason> {
    let absent = "it has no device_traces; record with torch.cuda.memory._record_memory_history()";
    let traces = kept.get(root, DEVICE_TRACES).ok_or(Reason::NotSnapshot { what: absent })?;
    let traces = kept.list(traces).ok_or(Reason::NotSnapshot { what: "device_traces is no list" })?;
    if traces.len() > usize::from(u8::MAX) + 1 {
        return Err(Limit::Device { device: traces.len() as u64 - 1 }.into());
    }
    let mut seen = std::collections::HashSet::new();
    for trace in traces {
        if let Value::List(id) = trace
            && !seen.insert(*id)
        {
            return Err(Reason::NotSnapshot { what: "two devices share one trace" });
        }
    }
    let lists = traces.iter().map(|&trace| kept.list(trace));
    lists.collect::<Option<_>>().ok_or(Reason::NotSnapshot { what: "the trace of a device is no list" })
}

/// The entries of all devices, merged by their times; those of one device stay in their order.
fn in_time<'a>(devices: &'a [&'a [Value]], kept: &'a Kept) -> impl Iterator<Item = (u64, Place, Value)> + 'a {
    let mut next = vec![0usize; devices.len()];
    let time = |entry: Value| match kept.get(entry, TIME_US) {
        Some(Value::Int(time)) => time,
        _ => 0,
    };
    std::iter::from_fn(move || {
        let heads = devices.iter().zip(&next).enumerate();
        let heads = heads.filter_map(|(device, (entries, &at))| entries.get(at).map(|&entry| (device, entry)));
        let (device, entry) = heads.min_by_key(|&(_, entry)| time(entry))?;
        next[device] += 1;
        Some((device as u64, Place(next[device] as u64), entry))
    })
}

fn read_entry(
    kept: &Kept,
    device: u64,
    place: Place,
    entry: Value,
    tags: &mut Tags,
    builder: &mut TraceBuilder,
) -> Result<(), Reason> {
    let action = kept.get(entry, ACTION).and_then(|action| kept.text(action));
    let action = action.ok_or(Reason::NotSnapshot { what: "an entry of device_traces has no action" })?;
    if !matches!(action, "alloc" | "free_requested" | "free" | "oom") {
        return Ok(());
    }
    let field = |key: u8| natural(KEYS[key as usize], kept.get(entry, key));
    // A stream is a handle: CUDA's are addresses, and a signed 64-bit number may hold one as negative.
    let stream = match kept.get(entry, STREAM) {
        Some(Value::Int(stream)) => stream as u64,
        Some(Value::Large(stream)) => stream,
        _ => 0,
    };
    let site = Site { place, thread: 0, stream, device };
    let tag = |tags: &mut Tags| match kept.get(entry, USER_METADATA).and_then(|text| kept.text(text)) {
        // What nobody named has an empty text.
        Some(text) if !text.is_empty() => tags.get(text.as_bytes()),
        _ => AllocTag::UNTAGGED,
    };
    match action {
        "alloc" => builder.allocate(site, field(ADDR)?, field(SIZE)?, tag(tags))?,
        "oom" => builder.fail(site, field(SIZE)?, tag(tags))?,
        _ => builder.free(site, field(ADDR)?, field(SIZE)?)?,
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

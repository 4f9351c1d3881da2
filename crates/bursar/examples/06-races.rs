//! Races: the three classic mistakes of programs with streams, each caught, explained and mended.
#![allow(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::driver::{HostFlags, Pattern};
use bursar::prelude::*;
use bursar::sim::{HazardKind, Launch};
use bursar::testing::{Outcome, Rig, races};

const BYTES: u64 = 1 << 20;

/// The consumer's stream does not wait for the producer's.
fn missing_wait(rig: &Rig, is_mended: bool) -> Outcome {
    let (sim, device) = (rig.driver(), rig.device());
    let (producer, consumer) = (sim.stream_create(device, 0)?, sim.stream_create(device, 0)?);
    let batch = sim.allocate(device, BYTES)?;
    // SAFETY: the stream and the memory are live until the end.
    unsafe { sim.fill(device, producer, batch, Pattern::U8(7), BYTES)? };
    let produced = sim.event_create(device)?;
    // SAFETY: the event and the stream are live until the end.
    unsafe { sim.event_record(device, produced, producer)? };
    if is_mended {
        // SAFETY: as above.
        unsafe { sim.stream_wait(device, consumer, produced)? };
    }
    sim.launch(device, consumer, Launch::new("consume").reads(batch, BYTES))?;
    // SAFETY: nothing is launched from here on, and this waits for the device.
    unsafe { sim.free(device, batch)? };
    // SAFETY: nobody waits for it any more.
    unsafe { sim.event_destroy(device, produced)? };
    for stream in [producer, consumer] {
        // SAFETY: it was created above and is used no more.
        unsafe { sim.stream_destroy(device, stream)? };
    }
    Ok(())
}

/// Pinned memory is filled with the next batch while the copy of the last one may not have run.
fn staging_reused(rig: &Rig, is_mended: bool) -> Outcome {
    let (sim, device) = (rig.driver(), rig.device());
    let stream = rig.stream()?;
    let raw = rig.context().resolve(stream)?;
    let batch = rig.allocate(BYTES, stream, tag!("batch"))?;
    let staging = sim.host_allocate(device, BYTES as usize, HostFlags::default())?;
    for round in 0..2u8 {
        if is_mended {
            rig.context().synchronize(stream)?;
        }
        sim.touch_host(staging, BYTES as usize, Access::Write);
        // SAFETY: the memory is live; whether a copy still reads it is what this is about.
        unsafe { staging.write_bytes(round, BYTES as usize) };
        // SAFETY: both sides are live until the end.
        unsafe { sim.copy_to_device(device, raw, batch.ptr(), staging, BYTES)? };
    }
    rig.context().synchronize(stream)?;
    // SAFETY: every copy has run.
    unsafe { sim.host_free(device, staging)? };
    Ok(rig.deallocate(batch, stream)?)
}

/// A buffer is freed on its own stream while another one still reads it, by a kernel that nobody declared.
fn freed_while_read(rig: &Rig, is_mended: bool) -> Outcome {
    let (owner, reader) = (rig.gpu().streams().lease()?, rig.gpu().streams().lease()?);
    let mut weights = rig.gpu().buffer::<u8>(BYTES as usize, &owner, tag!("weights"))?;
    weights.fill(1)?;
    if is_mended {
        reader.submit(|work| -> bursar::Result<()> {
            let ptr = work.read(&weights)?;
            rig.launch(&reader, Launch::new("infer").reads(ptr, BYTES))
        })?;
    } else {
        rig.launch(&reader, Launch::new("infer").reads(weights.ptr(), BYTES))?;
    }
    rig.here(|| drop(weights));
    Ok(())
}

type Program = fn(&Rig, bool) -> Outcome;

fn main() {
    let bugs: [(&str, Program, HazardKind); 3] = [
        ("a missing wait between two streams", missing_wait, HazardKind::Conflict),
        ("host memory reused before its copy is done", staging_reused, HazardKind::HostTouched),
        ("a buffer freed while another stream reads it", freed_while_read, HazardKind::FreeUnordered),
    ];
    for (name, program, kind) in bugs {
        let race = races(|rig| program(rig, false)).seeds(50).check().expect_err("a planted bug is caught");
        println!("# {name}\n\n{race}\n");
        let hazard = race.hazard().expect("it is a hazard").hazard;
        assert_eq!((hazard.kind, race.failing), (kind, race.tried));
        let places = [hazard.first.and_then(|first| first.location), hazard.second.location];
        assert!(places.into_iter().flatten().all(|place| place.file() == file!()), "{places:?}");
        assert!(places.iter().all(Option::is_some), "{places:?}");

        let verdict = races(|rig| program(rig, true)).seeds(50).expect_clean();
        println!("mended: {verdict}\n");
    }
}

//! The race detector on production code: kernels that name no simulator, faults, and bodies that panic.
#![forbid(unsafe_code)]

use bursar::Result;
use bursar::driver::RawStream;
use bursar::prelude::*;
use bursar::sim::{HazardKind, Launch};
use bursar::testing::{Finding, Outcome, Rig, races};

const LEN: usize = 256;

/// Production code: it runs on whatever device its buffers are on. `device_code` launches on hardware.
mod production {
    use super::{LEN, RawStream, Result};
    use bursar::prelude::*;

    fn device_code(_: RawStream, _: &[u64]) -> Result<()> {
        panic!("there is no hardware here")
    }

    pub(crate) fn scale(stream: &StreamLease, x: &DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>) -> Result<()> {
        stream.submit(|work| {
            work.kernel("scale")
                .reads(x)
                .writes(y)
                .simulated(|memory, [x, y]| {
                    let scaled: Vec<f32> = memory.read(x).iter().map(|x: &f32| x * 2.0).collect();
                    memory.write(y, &scaled);
                })
                .launch(|stream, [x, y]| device_code(stream, &[x.0, y.0]))
        })
    }

    /// Uploads a batch, scales it on a second stream and reads it back on a third.
    pub(crate) fn pipeline(gpu: &Gpu) -> Result<Vec<f32>> {
        let [up, compute, down] = [gpu.streams().lease()?, gpu.streams().lease()?, gpu.streams().lease()?];
        let mut x = gpu.buffer(LEN, &up, tag!("x"))?;
        let mut y = gpu.zeros(LEN, &compute, tag!("y"))?;
        let upload = up.submit(|work| work.copy_from_host(&mut x, vec![1.5; LEN]))?;
        scale(&compute, &x, &mut y)?;
        let result = down.submit(|work| work.read_back(&y))?;
        drop((x, y));
        upload.wait()?;
        Ok(result.wait()?)
    }
}

#[test]
fn t8_production_code_is_clean_on_every_schedule() {
    let program = |rig: &Rig| -> Outcome {
        assert_eq!(production::pipeline(rig.gpu())?, [3.0; LEN]);
        Ok(())
    };
    races(program).seeds(100).expect_clean();
    races(program).seeds(20).stack(Stack::new().layer(PagePool::default()).over(leaf::Frames)).expect_clean();
}

/// A stream that nobody declared writes what the kernel reads.
fn races_with_the_kernel(rig: &Rig, body: fn()) -> Outcome {
    let (a, b) = (rig.gpu().streams().lease()?, rig.gpu().streams().lease()?);
    let x = rig.gpu().zeros::<u8>(LEN, &a, tag!("x"))?;
    rig.context().synchronize(*a)?;
    a.submit(|work| {
        work.kernel("reader").reads(&x).simulated(move |_, _| body()).launch(|_, _| -> Result<()> { Ok(()) })
    })?;
    rig.launch(&b, Launch::new("writer").writes(x.ptr(), LEN as u64))?;
    rig.context().order(*b, *a)?;
    Ok(())
}

#[test]
fn t8_a_race_with_a_declared_kernel_names_it_and_its_place() {
    let race = races(|rig| races_with_the_kernel(rig, || ())).seeds(20).check().expect_err("a planted bug");
    let hazard = race.hazard().expect("a hazard").hazard;
    let first = hazard.first.expect("two operations");
    assert_eq!((hazard.kind, first.what, hazard.second.what), (HazardKind::Conflict, "reader", "writer"));
    assert!(first.location.is_some_and(|place| place.file() == file!()), "{race}");
    assert_eq!(race.failing, race.tried);
}

#[test]
fn t8_a_panic_of_a_kernel_is_reported_with_the_race_and_not_instead_of_it() {
    let race = races(|rig| races_with_the_kernel(rig, || panic!("x is not finite"))).seeds(20).check();
    let race = race.expect_err("a planted bug");
    let text = race.to_string();
    assert_eq!(race.hazard().expect("a hazard").hazard.kind, HazardKind::Conflict, "{text}");
    assert!(text.contains("\"reader\" on stream 1 panicked: x is not finite"), "{text}");
    let alone = races(|rig| {
        let a = rig.gpu().streams().lease()?;
        let panics = |_: &mut bursar::driver::SimulatedMemory<'_>, _| panic!("x is not finite");
        a.submit(|work| work.kernel("alone").simulated(panics).launch(|_, _| -> Result<()> { Ok(()) }))?;
        Ok(())
    });
    let text = alone.seeds(5).check().expect_err("a panic").to_string();
    assert!(text.contains("panic in a kernel") && text.contains("panicked: x is not finite"), "{text}");
}

#[test]
fn t8_production_code_neither_races_nor_leaks_whichever_driver_call_fails() {
    let program = |rig: &Rig| -> Outcome { Ok(production::pipeline(rig.gpu()).map(drop)?) };
    let verdict = races(program).seeds(4).failing_each_call().expect_clean();
    assert!(verdict.faults > 4 * 20, "{verdict}");
    let pool = Stack::new().layer(PagePool::default()).over(leaf::Frames);
    races(program).seeds(2).stack(pool).failing_each_call().expect_clean();
}

#[test]
fn t8_a_call_whose_failure_breaks_the_program_is_named() {
    // The block is freed only if everything goes well.
    let leaks = |rig: &Rig| -> Outcome {
        let stream = rig.stream()?;
        let block = rig.allocate(4096, stream, tag!("block"))?;
        rig.context().synchronize(stream)?;
        Ok(rig.deallocate(block, stream)?)
    };
    races(leaks).seeds(3).expect_clean();
    let race = races(leaks).seeds(3).failing_each_call().check().expect_err("it leaks");
    assert!(matches!(race.finding, Finding::Leak(_)), "{race}");
    assert_eq!(race.fault.expect("a fault").call, bursar::sim::Call::StreamSynchronize);
    assert!(race.to_string().contains("with seed 0, where the first stream_synchronize fails"), "{race}");
    let race = races(|rig| {
        rig.stream().expect("a device has streams");
        Ok(())
    });
    let race = race.failing_each_call().check().expect_err("it panics");
    assert!(matches!(race.finding, Finding::Panicked { .. }), "{race}");
}

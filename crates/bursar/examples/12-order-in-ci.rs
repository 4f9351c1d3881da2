//! A test of stream order that needs no GPU: the production code of a pipeline, run over many schedules.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::driver::RawStream;
use bursar::memory::DevicePtr;
use bursar::prelude::*;
use bursar::testing::{Outcome, Rig, races};

const PIXELS: usize = 1 << 20;

/// A pipeline as it runs in production: one stream decodes pictures, another one looks for what is in them.
struct Pipeline {
    gpu: Gpu,
    decoding: StreamLease,
    detection: StreamLease,
}

impl Pipeline {
    fn new(gpu: &Gpu) -> bursar::Result<Self> {
        Ok(Self { gpu: gpu.clone(), decoding: gpu.streams().lease()?, detection: gpu.streams().lease()? })
    }

    fn decode(&self, picture: &mut DeviceBuffer<u8>) -> bursar::Result<()> {
        self.decoding.submit(|work| work.kernel("decode").writes(picture).launch(launch_decode))
    }

    /// Declares what the kernel reads, so it runs after the decoder, and the picture is freed after it.
    fn detect(&self, picture: &DeviceBuffer<u8>) -> bursar::Result<()> {
        self.detection.submit(|work| work.kernel("detect").reads(picture).launch(launch_detect))
    }

    fn step(&self) -> bursar::Result<()> {
        let mut picture = self.gpu.buffer(PIXELS, &self.decoding, tag!("picture"))?;
        self.decode(&mut picture)?;
        self.detect(&picture)
    }
}

// What a program with a card has here: cudarc's launch builder, or cuLaunchKernel.
fn launch_decode(_stream: RawStream, [_picture]: [DevicePtr; 1]) -> bursar::Result<()> {
    Ok(())
}

fn launch_detect(_stream: RawStream, [_picture]: [DevicePtr; 1]) -> bursar::Result<()> {
    Ok(())
}

/// The mistake: an address that was kept is used by a kernel that does not declare it.
fn hasty_step(rig: &Rig) -> Outcome {
    let pipeline = Pipeline::new(rig.gpu())?;
    let mut picture = pipeline.gpu.buffer(PIXELS, &pipeline.decoding, tag!("picture"))?;
    pipeline.decode(&mut picture)?;
    let kept = picture.ptr();
    rig.launch(&pipeline.detection, bursar::sim::Launch::new("detect").reads(kept, PIXELS as u64))?;
    rig.here(|| drop(picture));
    Ok(())
}

fn main() {
    let stack = || Stack::new().layer(PagePool::default()).over(leaf::Frames);
    let verdict = races(|rig| Ok(Pipeline::new(rig.gpu())?.step()?)).stack(stack()).seeds(200).expect_clean();
    println!("production: {verdict}");

    let race = races(hasty_step).stack(stack()).seeds(200).check().expect_err("the mistake is found");
    println!("{race}");
}

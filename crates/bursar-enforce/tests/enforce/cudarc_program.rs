//! A program that has its memory from cudarc, in a share: on the simulated driver here, and on a card as one of the trials of `hardware/`.
#![allow(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a program tells what it did")]

use crate::scene::Scene;
use bursar_core::Bytes;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

/// `saxpy(f32 a, const f32 *x, f32 *y, u32 n)`: `y[i] = a × x[i] + y[i]`.
const SAXPY: &str = include_str!("../../../bursar/examples/03-beside-cudarc.ptx");
/// What pools take memory in: more than that cannot be missing where all that was free was asked for.
const PIECE: usize = 32 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn e1_a_program_of_cudarc_gets_its_share_and_no_more() {
    let scene = Scene::new();
    let share = scene.share(Bytes::mib(512));
    scene.plays("cudarc_program::role", &share, |command| command.env("TRIAL_SHARE", share.bytes().0.to_string()));
    scene.assert_returned(&share);
}

/// The program that the test above and the trials start.
#[test]
#[ignore = "a program for another test"]
fn role() {
    let watcher = Watcher::new();
    watcher.mark("start");
    watcher.check(is_enforced(), "the library is loaded", "");
    let share: usize = env::var("TRIAL_SHARE").ok().and_then(|text| text.parse().ok()).expect("TRIAL_SHARE in bytes");
    let context = CudaContext::new(0).expect("a device");
    let (free, total) = context.mem_get_info().expect("a context");
    // Without its share the program would go on to fill the card.
    watcher.check(total == share && context.total_mem() == Ok(share), "the share is what there is", &total.to_string());
    runs_a_kernel(&watcher, &context);
    // The two ways cudarc has to take memory: in the order of a stream where the device can, and at once.
    for (name, ordered) in [("in stream order", true), ("at once", false)] {
        takes_all(&watcher, &context, name, ordered);
    }
    let after = context.mem_get_info().expect("a context").0;
    watcher.check(after + 2 * PIECE >= free, "everything is given back", &format!("{after} of {free}"));
}

/// Takes all that is free, in pieces that become smaller, until each size is refused; reads it back, and gives it back.
fn takes_all(watcher: &Watcher, context: &Arc<CudaContext>, name: &str, ordered: bool) {
    let stream = context.new_stream().expect("a stream");
    let take = |bytes: usize| -> Result<Taken, DriverError> {
        match ordered {
            true => stream.alloc_zeros::<u8>(bytes).map(Taken::Slice),
            // SAFETY: it is filled before it is read.
            false => unsafe { cudarc::driver::result::malloc_sync(bytes) }.map(Taken::AtOnce),
        }
    };
    let (free, total) = context.mem_get_info().expect("a context");
    let refused =
        |taken: &Result<Taken, DriverError>| matches!(taken, Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)));
    watcher.check(refused(&take(total + 1)), &format!("{name}: more than the share is refused"), "");
    let mut pieces = Vec::new();
    for size in [total / 16, PIECE, 2 << 20] {
        let last = loop {
            match take(size) {
                Ok(piece) => pieces.push((piece, size)),
                last => break last,
            }
        };
        watcher.check(
            refused(&last),
            &format!("{name}: memory runs out as out of memory"),
            &format!("{} pieces", pieces.len()),
        );
    }
    let taken: usize = pieces.iter().map(|(_, size)| size).sum();
    watcher.check(
        taken + PIECE >= free && taken <= free,
        &format!("{name}: what was free could be had"),
        &format!("{taken} of {free}"),
    );
    watcher.mark(&format!("full, {name}"));
    let number = |at: usize| at as u8 ^ 0x5a;
    for (at, (piece, size)) in pieces.iter_mut().enumerate() {
        piece.write(&stream, number(at), *size);
    }
    let kept = pieces.iter().enumerate().all(|(at, (piece, size))| piece.ends(&stream, *size) == [number(at); 2]);
    watcher.check(kept, &format!("{name}: it holds what was written"), "");
    for (piece, _) in pieces {
        piece.give_back();
    }
    stream.synchronize().expect("a stream");
    let after = context.mem_get_info().expect("a context").0;
    watcher.check(after + PIECE >= free, &format!("{name}: it is given back"), &format!("{after} of {free}"));
}

/// Memory as cudarc hands it out.
enum Taken {
    Slice(CudaSlice<u8>),
    AtOnce(cudarc::driver::sys::CUdeviceptr),
}

impl Taken {
    /// Writes a value to the first and the last byte.
    fn write(&mut self, stream: &Arc<CudaStream>, value: u8, size: usize) {
        for at in [0, size - 1] {
            match self {
                Self::Slice(slice) => stream.memcpy_htod(&[value], &mut slice.slice_mut(at..=at)).expect("a copy"),
                Self::AtOnce(start) => {
                    // SAFETY: that byte is inside the memory, and nobody else uses it.
                    unsafe { cudarc::driver::result::memset_d8_sync(*start + at as u64, value, 1) }.expect("a fill")
                }
            }
        }
    }

    /// Returns the first and the last byte.
    fn ends(&self, stream: &Arc<CudaStream>, size: usize) -> [u8; 2] {
        let mut bytes = [0; 2];
        for (byte, at) in bytes.iter_mut().zip([0, size - 1]) {
            let target = std::slice::from_mut(byte);
            match self {
                Self::Slice(slice) => stream.memcpy_dtoh(&slice.slice(at..=at), target).expect("a copy"),
                Self::AtOnce(start) => {
                    // SAFETY: that byte is inside the memory.
                    unsafe { cudarc::driver::result::memcpy_dtoh_sync(target, start + at as u64) }.expect("a copy")
                }
            }
        }
        stream.synchronize().expect("a stream");
        bytes
    }

    fn give_back(self) {
        if let Self::AtOnce(at) = self {
            // SAFETY: it was taken at once, and is not used any more.
            unsafe { cudarc::driver::result::free_sync(at) }.expect("a free");
        }
    }
}

/// Runs a kernel, if the driver can: the simulated one cannot.
fn runs_a_kernel(watcher: &Watcher, context: &Arc<CudaContext>) {
    let module = match context.load_module(Ptx::from_src(SAXPY)) {
        Ok(module) => module,
        Err(error) => return watcher.record("skip", "a kernel", &error.to_string()),
    };
    let (saxpy, stream) = (module.load_function("saxpy").expect("a kernel"), context.default_stream());
    let values: Vec<f32> = (0..1 << 20).map(|i| i as f32).collect();
    let (x, mut y) =
        (stream.clone_htod(&values).expect("memory"), stream.alloc_zeros::<f32>(values.len()).expect("memory"));
    let (factor, n) = (2.0f32, values.len() as u32);
    let mut launch = stream.launch_builder(&saxpy);
    launch.arg(&factor).arg(&x).arg(&mut y).arg(&n);
    // SAFETY: these are the kernel's arguments, and both slices have `n` values.
    unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.expect("a launch");
    let result = stream.clone_dtoh(&y).expect("a copy");
    watcher.check(values.iter().zip(&result).all(|(x, y)| *y == factor * x), "a kernel runs", "");
}

/// Returns whether the library is loaded into this process.
fn is_enforced() -> bool {
    fs::read_to_string("/proc/self/maps").expect("a list of what is mapped").contains("bursar_enforce")
}

/// The one that watches a trial, reached by files in the folder `TRIAL_DIR`; without it, checks are assertions.
struct Watcher {
    folder: Option<PathBuf>,
    asked: std::cell::Cell<u32>,
}

impl Watcher {
    fn new() -> Self {
        Self { folder: env::var_os("TRIAL_DIR").map(PathBuf::from), asked: 0.into() }
    }

    fn record(&self, outcome: &str, name: &str, detail: &str) {
        eprintln!("{outcome}\t{name}\t{detail}");
        if let Some(folder) = &self.folder {
            let mut file =
                fs::OpenOptions::new().append(true).create(true).open(folder.join("checks")).expect("a file");
            file.write_all(format!("{outcome}\t{name}\t{detail}\n").as_bytes()).expect("a line");
        }
    }

    /// Records whether something holds, and ends the program if it does not.
    fn check(&self, holds: bool, name: &str, detail: &str) {
        self.record(if holds { "ok" } else { "no" }, name, detail);
        assert!(holds, "{name}: {detail}");
    }

    /// Stands still until the watcher has compared what is charged with what the card has given out.
    fn mark(&self, name: &str) {
        let Some(folder) = &self.folder else { return };
        let (pid, number) = (process::id(), self.asked.replace(self.asked.get() + 1));
        let draft = folder.join(format!("draft-{pid}"));
        fs::write(&draft, format!(r#"{{"kind": "mark", "name": "{name}", "pid": {pid}}}"#)).expect("a question");
        fs::rename(draft, folder.join(format!("ask-{pid}-{number}"))).expect("a question");
        let (answer, asked) = (folder.join(format!("answer-{pid}-{number}")), Instant::now());
        while !answer.exists() {
            assert!(asked.elapsed() < PATIENCE, "{name}: nobody answered for {PATIENCE:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

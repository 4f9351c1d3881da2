//! D2 beside another library: cudarc uses the same device, between our calls and on other threads, and neither disturbs the
//! other.
#![allow(unsafe_code)]

use bursar_conformance::CudaLibrary;
use bursar_core::{Bytes, DeviceId, RawStream, Stack, leaf, tag};
use bursar_cuda::Cuda;
use bursar_device::Gpu;
use bursar_memory::GlobalDeviceBudget;
use cudarc::driver::result::ctx;
use cudarc::driver::sys::{self, CUcontext};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use libtest_mimic::{Arguments, Trial};
use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

type Run = fn(Arc<Cuda>);

macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name), $name as Run)),*]
    };
}

const TRIALS: &[(&str, Run)] = trials![
    d2_memory_and_streams_are_interchangeable,
    d2_every_call_leaves_the_current_context_as_it_was,
    d2_another_library_between_our_calls_disturbs_nothing,
];

fn main() -> ExitCode {
    CudaLibrary::judge_both("2x80GiB", |library| {
        let ignored = Cuda::load().is_err() && library.may_be_absent();
        let trial = |&(name, run): &(&str, Run)| {
            let trial = Trial::test(format!("{}::{name}", library.rows()), move || {
                run(Cuda::load()?);
                Ok(())
            });
            trial.with_ignored_flag(ignored)
        };
        libtest_mimic::run(&Arguments::from_args(), TRIALS.iter().map(trial).collect()).exit_code()
    })
}

fn open(cuda: Arc<Cuda>) -> Gpu {
    let stack = Stack::new().layer(GlobalDeviceBudget::of(Bytes::mib(256))).over(leaf::Async);
    Gpu::open(cuda, DeviceId(0), &stack).expect("the device works")
}

/// The contexts and the stream of cudarc: the primary context, which Bursar uses too, and a private one.
#[derive(Clone)]
struct Cudarc {
    primary: Arc<CudaContext>,
    private: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

impl Cudarc {
    fn new() -> Self {
        let primary = CudaContext::new(0).expect("the device works");
        let stream = primary.new_stream().expect("a stream");
        let private = CudaContext::new_non_primary(0, 0).expect("a context of its own");
        make_current(ptr::null_mut());
        Self { primary, private, stream }
    }

    /// Returns the same contexts with another stream, for a thread of its own.
    fn on_a_stream_of_its_own(&self) -> Self {
        let stream = self.primary.new_stream().expect("a stream");
        Self { stream, ..self.clone() }
    }

    /// Allocates memory with cudarc and fills it.
    fn filled(&self, words: usize, word: u32) -> CudaSlice<u32> {
        let mut slice = self.stream.alloc_zeros::<u32>(words).expect("there is room");
        self.stream.memcpy_htod(&vec![word; words], &mut slice).expect("copied");
        slice
    }

    /// Copies a slice within the device and checks the copy.
    fn check(&self, slice: &CudaSlice<u32>, word: u32) {
        let copy = self.stream.clone_dtod(slice).expect("there is room");
        let seen = self.stream.clone_dtoh(&copy).expect("copied");
        assert!(seen.iter().all(|&found| found == word), "cudarc lost its bytes");
    }

    /// Leaves the thread in one of the states another library may leave it in.
    fn disturb(&self, turn: u32) {
        match turn % 4 {
            0 => make_current(ptr::null_mut()),
            1 => make_current(self.private.cu_ctx()),
            2 => make_current(self.primary.cu_ctx()),
            _ => {
                self.check(&self.filled(1000, turn), turn);
                push(self.private.cu_ctx());
                assert_eq!(pop(), self.private.cu_ctx());
            }
        }
    }
}

fn current() -> CUcontext {
    ctx::get_current().expect("the driver works").unwrap_or(ptr::null_mut())
}

/// Makes a context the only one on the thread's stack, or empties the stack if it is null: making null current pops one.
fn make_current(context: CUcontext) {
    let set = |context| {
        // SAFETY: null, or a context that its owner keeps alive for as long as the trial runs.
        unsafe { ctx::set_current(context) }.expect("a live context");
    };
    while !current().is_null() {
        set(ptr::null_mut());
    }
    set(context);
}

fn push(context: CUcontext) {
    // SAFETY: a context that its owner keeps alive for as long as the trial runs.
    let pushed = unsafe { sys::cuCtxPushCurrent_v2(context) };
    pushed.result().expect("a live context");
}

fn pop() -> CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: the driver writes one handle.
    let popped = unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) };
    popped.result().expect("one was pushed");
    context
}

/// Makes a call and checks that the same context is current after it.
#[track_caller]
fn unchanged<T>(call: impl FnOnce() -> bursar_core::Result<T>) -> T {
    let before = current();
    let result = call();
    assert_eq!(current(), before, "another context is current than before the call");
    result.expect("the call works, whatever is current")
}

/// Makes every call that a buffer's life has, from lease to reap; `between` runs between any two calls.
fn live_a_life(gpu: &Gpu, words: usize, word: u32, between: &dyn Fn()) {
    let lease = unchanged(|| gpu.streams().lease());
    between();
    let mut buffer = unchanged(|| gpu.buffer::<u32>(words, &lease, tag!("ours")));
    between();
    unchanged(|| buffer.fill(word));
    between();
    unchanged(|| buffer.slice_mut(..1)?.write_from_host(&[!word]));
    between();
    let seen = unchanged(|| buffer.to_vec());
    assert_eq!(seen[0], !word, "we lost the first word");
    assert!(seen[1..].iter().all(|&found| found == word), "we lost our bytes");
    between();
    let free = unchanged(|| gpu.memory_info()).free;
    assert!(free < gpu.facts().total);
    between();
    unchanged(|| {
        drop(buffer);
        gpu.context().fault().check()
    });
    between();
    unchanged(|| gpu.context().synchronize(*lease));
    between();
    unchanged(|| gpu.memory().reap());
}

fn d2_memory_and_streams_are_interchangeable(cuda: Arc<Cuda>) {
    const WORDS: usize = 100_000;
    let theirs = Cudarc::new();
    let gpu = open(cuda);
    assert_eq!(gpu.raw_context().0, theirs.primary.cu_ctx() as u64, "one primary context");
    let raw = RawStream(theirs.stream.cu_stream() as u64);
    // SAFETY: the stream was made before, so it is destroyed after the adoption and all that is freed on it are gone.
    let adopted = unsafe { gpu.context().adopt_stream(raw) }.expect("room");
    let pattern: Vec<u32> = (0..WORDS as u32).collect();
    let ours = gpu.buffer_from(&pattern, adopted.stream(), tag!("ours")).expect("there is room");

    // SAFETY: the buffer holds so many words and outlives the slice, which is never dropped.
    let slice = unsafe { theirs.stream.upgrade_device_ptr::<u32>(ours.ptr().0, ours.len()) };
    let slice = ManuallyDrop::new(slice);
    let copy = theirs.stream.clone_dtod(&*slice).expect("there is room");
    ManuallyDrop::into_inner(slice).leak();
    assert_eq!(theirs.stream.clone_dtoh(&copy).expect("copied"), pattern, "they read ours");

    let back = gpu.buffer::<u32>(WORDS, adopted.stream(), tag!("back")).expect("there is room");
    {
        let (from, _recorded) = copy.device_ptr(&theirs.stream);
        let (driver, bytes) = (gpu.context().driver(), back.bytes().get());
        // SAFETY: both hold so many bytes, do not overlap, and are used in the order of one stream.
        let copied = unsafe { driver.copy_on_device(gpu.id(), raw, back.ptr(), bursar_core::DevicePtr(from), bytes) };
        copied.expect("the device works");
    }
    assert_eq!(back.to_vec().expect("the device works"), pattern, "we read theirs");
}

fn d2_every_call_leaves_the_current_context_as_it_was(cuda: Arc<Cuda>) {
    let theirs = Cudarc::new();
    let gpu = unchanged(|| Ok(open(cuda)));
    let (primary, private) = (theirs.primary.cu_ctx(), theirs.private.cu_ctx());
    assert_ne!(primary, private);
    for context in [ptr::null_mut(), primary, private] {
        make_current(context);
        live_a_life(&gpu, 1000, 7, &|| ());
        assert_eq!(current(), context);
    }
    // Nothing is pushed to or popped from the stack of contexts.
    make_current(primary);
    push(private);
    live_a_life(&gpu, 1000, 8, &|| ());
    assert_eq!(pop(), private);
    assert_eq!(current(), primary);
    live_a_life(&gpu, 1000, 9, &|| ());
    assert_eq!(pop(), primary);
    assert_eq!(current(), ptr::null_mut());
    live_a_life(&gpu, 1000, 10, &|| ());
    unchanged(|| {
        drop(gpu);
        Ok(())
    });
}

fn d2_another_library_between_our_calls_disturbs_nothing(cuda: Arc<Cuda>) {
    const OURS: u32 = 4;
    const LIVES: u32 = 500;
    let (theirs, gpu, done) = (Cudarc::new(), open(cuda), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (theirs, done) = (&theirs, &done);
            scope.spawn(move || {
                let theirs = theirs.on_a_stream_of_its_own();
                for turn in 0.. {
                    let word = thread << 24 | turn;
                    theirs.check(&theirs.filled(1 << 18, word), word);
                    if done.load(Relaxed) {
                        break;
                    }
                }
            });
        }
        let ours = (0..OURS).map(|thread| {
            let (theirs, gpu) = (&theirs, &gpu);
            scope.spawn(move || {
                let theirs = theirs.on_a_stream_of_its_own();
                let kept = theirs.filled(1000, thread);
                let turn = std::cell::Cell::new(thread);
                let disturb = || {
                    theirs.disturb(turn.get());
                    turn.set(turn.get() + 1);
                };
                for life in 0..LIVES {
                    live_a_life(gpu, 1 + (life as usize * 97) % 50_000, thread << 24 | life, &disturb);
                    theirs.check(&kept, thread);
                }
                // cudarc frees in whichever context is current.
                make_current(theirs.primary.cu_ctx());
            })
        });
        let ours: Vec<_> = ours.collect();
        let panicked = ours.into_iter().filter_map(|thread| thread.join().err()).next();
        done.store(true, Relaxed);
        if let Some(panic) = panicked {
            std::panic::resume_unwind(panic);
        }
    });
    let left = gpu.memory().reap_blocking(std::time::Duration::MAX);
    left.expect("the device works");
    assert_eq!(gpu.memory().bytes_outstanding(), Bytes::ZERO);
}

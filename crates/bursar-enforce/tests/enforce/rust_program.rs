//! Every allocating entry point from a program in Rust, which finds the driver as Rust programs do.
#![allow(unsafe_code)]

use crate::scene::Scene;
use bursar::cuda::Cuda;
use bursar::prelude::*;
use std::ffi::{CStr, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

const OUT_OF_MEMORY: c_int = 2;
const PAGE: usize = 2 << 20;
/// What pools take memory in.
const PIECE: usize = 32 << 20;

type Handle = *mut c_void;

/// Returns a function of the driver.
///
/// # Safety
/// `T` is the type of that function.
unsafe fn function<T: Copy>(name: &CStr) -> T {
    // SAFETY: the driver's library may be loaded at any time.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    // SAFETY: a handle of the loader, and a string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    // SAFETY: the caller's promise: `T` is a function, and so a pointer.
    unsafe { std::mem::transmute_copy(&found) }
}

/// Calls a function of the driver with arguments of these types.
macro_rules! call {
    ($name:literal($($arg:expr => $type:ty),*)) => {{
        // SAFETY: the driver's function of that name has this type.
        let function: unsafe extern "C" fn($($type),*) -> c_int = unsafe { function($name) };
        // SAFETY: what is passed lives until the call returns.
        unsafe { function($($arg),*) }
    }};
}

fn left() -> usize {
    let (mut free, mut total) = (0, 0);
    assert_eq!(call!(c"cuMemGetInfo_v2"(&raw mut free => *mut usize, &raw mut total => *mut usize)), 0);
    free
}

/// A way to take memory: its cost, and the status of a try with the way to give back what was taken.
type Way = (&'static str, usize, fn() -> (c_int, Box<dyn Fn() -> c_int>));

fn linear(status: c_int, at: u64) -> (c_int, Box<dyn Fn() -> c_int>) {
    (status, Box::new(move || call!(c"cuMemFree_v2"(at => u64))))
}

fn ordered(status: c_int, at: u64) -> (c_int, Box<dyn Fn() -> c_int>) {
    let synchronise = || call!(c"cuStreamSynchronize"(ptr::null_mut() => Handle));
    (status, Box::new(move || call!(c"cuMemFreeAsync"(at => u64, ptr::null_mut() => Handle)) + synchronise()))
}

const WAYS: [Way; 10] = [
    ("cuMemAlloc", 1 << 20, || {
        let mut at = 0;
        linear(call!(c"cuMemAlloc_v2"(&raw mut at => *mut u64, 1 << 20 => usize)), at)
    }),
    ("cuMemAllocPitch", 512 * 100, || {
        let (mut at, mut pitch) = (0, 0);
        let status = call!(c"cuMemAllocPitch_v2"(
            &raw mut at => *mut u64, &raw mut pitch => *mut usize, 300 => usize, 100 => usize, 4 => c_uint
        ));
        linear(status, at)
    }),
    ("cuMemAllocManaged", 1 << 20, || {
        let mut at = 0;
        linear(call!(c"cuMemAllocManaged"(&raw mut at => *mut u64, 1 << 20 => usize, 1 => c_uint)), at)
    }),
    ("cuMemAllocAsync", PIECE, || {
        let mut at = 0;
        let none = ptr::null_mut();
        ordered(call!(c"cuMemAllocAsync"(&raw mut at => *mut u64, 1000 => usize, none => Handle)), at)
    }),
    ("cuMemAllocAsync_ptsz", PIECE, || {
        let mut at = 0;
        let none = ptr::null_mut();
        ordered(call!(c"cuMemAllocAsync_ptsz"(&raw mut at => *mut u64, 1000 => usize, none => Handle)), at)
    }),
    ("cuMemAllocFromPoolAsync", PIECE, || {
        let (mut at, mut pool, none) = (0, ptr::null_mut(), ptr::null_mut());
        assert_eq!(call!(c"cuDeviceGetDefaultMemPool"(&raw mut pool => *mut Handle, 0 => c_int)), 0);
        let status = call!(c"cuMemAllocFromPoolAsync"(
            &raw mut at => *mut u64, 1000 => usize, pool => Handle, none => Handle
        ));
        ordered(status, at)
    }),
    ("cuMemCreate", PAGE, || {
        let (mut handle, properties) = (0, [1, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        let status = call!(c"cuMemCreate"(
            &raw mut handle => *mut u64, PAGE => usize, &properties => *const [c_int; 10], 0 => c_ulonglong
        ));
        (status, Box::new(move || call!(c"cuMemRelease"(handle => u64))))
    }),
    ("cuArrayCreate", 4096, || {
        let (mut array, shape) = (ptr::null_mut(), [32, 32, 0x1_0000_0020]);
        let status = call!(c"cuArrayCreate_v2"(&raw mut array => *mut Handle, &shape => *const [usize; 3]));
        (status, Box::new(move || call!(c"cuArrayDestroy"(array => Handle))))
    }),
    ("cuArray3DCreate", 4096, || {
        let (mut array, shape) = (ptr::null_mut(), [16, 8, 8, 0x1_0000_0020, 0]);
        let status = call!(c"cuArray3DCreate_v2"(&raw mut array => *mut Handle, &shape => *const [usize; 5]));
        (status, Box::new(move || call!(c"cuArrayDestroy"(array => Handle))))
    }),
    ("cuMipmappedArrayCreate", 2560, || {
        let (mut array, shape) = (ptr::null_mut(), [8, 8, 8, 0x1_0000_0020, 0]);
        let status = call!(c"cuMipmappedArrayCreate"(
            &raw mut array => *mut Handle, &shape => *const [usize; 5], 4 => c_uint
        ));
        (status, Box::new(move || call!(c"cuMipmappedArrayDestroy"(array => Handle))))
    }),
];

#[test]
fn e1_a_program_in_rust_is_charged_exactly_and_refused_at_the_byte() {
    let scene = Scene::new();
    let share = scene.share(Bytes::mib(64));
    scene.plays("rust_program::role", &share, |command| command);
    scene.assert_returned(&share);
}

#[test]
fn e7_what_bursar_holds_is_not_charged_again_when_another_is_refused() {
    let scene = Scene::new();
    let share = scene.share(Bytes::gib(1));
    scene.plays("rust_program::mixed", &share, |command| command.env("BURSAR_LEDGER_DIR", &scene.folder));
    scene.assert_returned(&share);
}

/// The program that the test above starts: one part of it uses Bursar, another the driver.
#[test]
#[ignore = "a program for another test"]
fn mixed() {
    let context = DeviceContext::open(Cuda::load().expect("the simulated libcuda"), DeviceId(0)).expect("a device");
    assert_eq!(call!(c"cuCtxSetCurrent"(context.raw_context().0 as Handle => Handle)), 0);
    // By the share, and by an account beside it.
    for beside in [false, true] {
        let ledger = Ledger::for_device(&context).expect("a ledger");
        let budget = match beside {
            false => Ledgers::default().budget(),
            true => GlobalDeviceBudget::shared(Arc::new(ledger.reserve(Bytes::mib(300)).expect("there is room"))),
        };
        let stack = Stack::new().layer(PagePool::default()).layer(budget).over(leaf::Frames);
        let gpu = Gpu::with_context(&context, &stack).expect("a stack");
        let stream = gpu.streams().lease().expect("a stream");
        let held = || ledger.reading().expect("a ledger").held.get();
        let block = gpu.buffer::<u8>(200 << 20, &stream, tag!("bursar's")).expect("it fits");
        let before = held();
        let mut at = 0;
        assert_eq!(call!(c"cuMemAlloc_v2"(&raw mut at => *mut u64, 1 << 31 => usize)), OUT_OF_MEMORY);
        assert_eq!(held(), before, "after a refusal");
        drop(block);
        gpu.context().trim();
        assert_eq!(held(), before - (200 << 20), "nothing of it is left");
        // The next look is a second later at the earliest.
        std::thread::sleep(Duration::from_millis(1100));
    }
}

/// The program that the test above starts.
#[test]
#[ignore = "a program for another test"]
fn role() {
    let mut context = ptr::null_mut();
    assert_eq!(call!(c"cuInit"(0 => c_uint)), 0);
    assert_eq!(call!(c"cuDevicePrimaryCtxRetain"(&raw mut context => *mut Handle, 0 => c_int)), 0);
    assert_eq!(call!(c"cuCtxSetCurrent"(context => Handle)), 0);
    let whole = left();
    for (name, cost, take) in WAYS {
        // The share but for what it costs, and but for a little less.
        for (rest, expected) in [(cost, 0), (cost - 256, OUT_OF_MEMORY)] {
            let mut others = 0;
            assert_eq!(call!(c"cuMemAlloc_v2"(&raw mut others => *mut u64, whole - rest => usize)), 0, "{name}");
            let (status, give_back) = take();
            assert_eq!((status, left()), (expected, if status == 0 { 0 } else { rest }), "{name} with {rest} left");
            if status == 0 {
                assert_eq!((give_back(), left()), (0, rest), "{name}");
            }
            assert_eq!(call!(c"cuMemFree_v2"(others => u64)), 0);
        }
        assert_eq!(left(), whole, "{name}");
    }
}

//! The shared object that cargo built beside the tests, and calls of its functions by name.
#![allow(unsafe_code)]
#![allow(dead_code, reason = "each test uses a part of it")]

use libloading::Library;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NOT_INITIALIZED: c_int = 3;
pub(crate) const INVALID_DEVICE: c_int = 101;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const NOT_SUPPORTED: c_int = 801;

/// The most arguments that an entry point has.
const ARGUMENTS: usize = 12;

type Entry = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> c_int;

/// Returns the path of the shared object.
pub(crate) fn path() -> PathBuf {
    let program = std::env::current_exe().expect("a test is a program");
    program.parent().expect("a folder").join("libbursar_libcuda.so")
}

pub(crate) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: loading it runs no code that depends on anything.
        unsafe { Library::new(path()) }.expect("the shared object is built with the tests")
    })
}

/// Returns the address of a symbol.
pub(crate) fn address(symbol: &str) -> Option<*mut c_void> {
    // SAFETY: the address is only looked at.
    let found = unsafe { library().get::<*mut c_void>(symbol) };
    found.ok().map(|found| *found)
}

/// An argument: a number, a handle, or the place of a value.
pub(crate) trait Argument {
    fn word(self) -> u64;
}

impl Argument for u64 {
    fn word(self) -> u64 {
        self
    }
}

impl Argument for i32 {
    fn word(self) -> u64 {
        i64::from(self).cast_unsigned()
    }
}

impl<T> Argument for *mut T {
    fn word(self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl<T> Argument for &mut T {
    fn word(self) -> u64 {
        std::ptr::from_mut(self).word()
    }
}

impl<T> Argument for &T {
    fn word(self) -> u64 {
        std::ptr::from_ref(self).cast_mut().word()
    }
}

/// Makes a call with words for arguments; the ones that the function has not are not looked at.
pub(crate) fn call_words(symbol: &str, words: &[u64]) -> c_int {
    let mut all = [0; ARGUMENTS];
    all[..words.len()].copy_from_slice(words);
    let [a, b, c, d, e, f, g, h, i, j, k, l] = all;
    // SAFETY: every parameter of every entry point is an integer or a pointer, each of which takes one word; words beyond
    // the parameters are ignored.
    let entry = unsafe { library().get::<Entry>(symbol) }.unwrap_or_else(|_| panic!("no {symbol}"));
    // SAFETY: as above; the test passes what the function's manual demands, or what it must refuse.
    unsafe { entry(a, b, c, d, e, f, g, h, i, j, k, l) }
}

/// Makes a call. Arguments are numbers and references to places.
#[macro_export]
macro_rules! cu {
    ($symbol:ident($($argument:expr),* $(,)?)) => {
        rig::call_words(stringify!($symbol), &[$(rig::Argument::word($argument)),*])
    };
}

/// Makes a call that must succeed.
#[macro_export]
macro_rules! ok {
    ($symbol:ident($($argument:expr),* $(,)?)) => {
        assert_eq!($crate::cu!($symbol($($argument),*)), rig::SUCCESS, stringify!($symbol))
    };
}

/// Returns the symbol of every entry point of the driver, from the table that the shared object is made of.
pub(crate) fn symbols() -> impl Iterator<Item = &'static str> {
    bursar_libcuda::entry_points().iter().map(|entry| entry.symbol)
}

/// The entry points that need no initialisation.
pub(crate) const ALWAYS: [&str; 6] =
    ["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress", "cuGetProcAddress_v2"];

/// The free and the total memory of the current device.
pub(crate) fn memory() -> (u64, u64) {
    let (mut free, mut total) = (0u64, 0u64);
    let places = [&raw mut free, &raw mut total].map(Argument::word);
    let status = call_words("cuMemGetInfo_v2", &places);
    assert_eq!(status, SUCCESS);
    (free, total)
}

//! NVML: what the program is told by it about the share's device, and what a context takes.
#![allow(unsafe_code)]

use crate::driver::{Handle, read, write};
use crate::entry::SUCCESS;
use crate::hook::hook;
use crate::loader;
use crate::share::Share;
use crate::stores;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The status of a list that has no room for everybody.
const INSUFFICIENT_SIZE: c_int = 7;
/// The most that a context is believed to take, whatever other programs did meanwhile.
const CONTEXT_MAX: u64 = 4 << 30;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Process1 {
    pid: c_uint,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, and `nvmlProcessInfo_t` since.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Process {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// The instance of a process that is not on a part of a device.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// Returns the share's device in NVML, which is loaded for it if it is there.
fn device_of(share: &Share) -> Option<Handle> {
    static INITIALISED: Mutex<Option<bool>> = Mutex::new(None);
    let mut initialised = INITIALISED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_initialised = *initialised.get_or_insert_with(|| {
        let found = loader::management_symbol(c"nvmlInit_v2");
        if found.is_null() {
            return false;
        }
        // SAFETY: NVML's function of this name has this signature.
        let init = unsafe { transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(found) };
        // SAFETY: NVML may be initialised at any time, and as often as one likes.
        unsafe { init() == SUCCESS }
    });
    drop(initialised);
    let found = loader::management_symbol(c"nvmlDeviceGetHandleByUUID");
    if !is_initialised || found.is_null() {
        return None;
    }
    // SAFETY: NVML's function of this name has this signature.
    let by_uuid = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int>(found) };
    let whole = share.uuid().to_string();
    let part = whole.replacen("GPU-", "MIG-", 1);
    [whole, part].into_iter().filter_map(|uuid| CString::new(uuid).ok()).find_map(|uuid| {
        let mut device = Handle::default();
        // SAFETY: a string, and a variable of ours for the answer.
        let status = unsafe { by_uuid(uuid.as_ptr(), &raw mut device) };
        (status == SUCCESS).then_some(device)
    })
}

/// Returns what is used of the share's device, by whomever; none where NVML is not there.
pub(crate) fn used(share: &Share) -> Option<u64> {
    let device = device_of(share)?;
    let found = loader::management_symbol(c"nvmlDeviceGetMemoryInfo");
    if found.is_null() {
        return None;
    }
    // SAFETY: NVML's function of this name has this signature.
    let ask = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Handle, *mut Memory) -> c_int>(found) };
    let mut memory = Memory::default();
    // SAFETY: a variable of ours for the answer.
    let status = unsafe { ask(device, &raw mut memory) };
    (status == SUCCESS).then_some(memory.used)
}

/// Returns the processes that NVML lists for the share's device; none where it does not tell.
fn listed(share: &Share) -> Option<Vec<Process>> {
    let device = device_of(share)?;
    let found = loader::management_symbol(c"nvmlDeviceGetComputeRunningProcesses_v3");
    if found.is_null() {
        return None;
    }
    // SAFETY: NVML's function of this name has this signature.
    let ask =
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Handle, *mut c_uint, *mut Process) -> c_int>(found) };
    let mut list = vec![Process::default(); 256];
    let mut count = list.len() as c_uint;
    // SAFETY: a list of ours for the answer, with its length.
    let status = unsafe { ask(device, &raw mut count, list.as_mut_ptr()) };
    list.truncate(count as usize);
    (status == SUCCESS).then_some(list)
}

/// The number that NVML lists this process under, where that is not its own: in a container it may be the machine's.
static LISTED_AS: AtomicU32 = AtomicU32::new(0);

/// Returns what this process uses of the share's device; none where NVML does not list it under a number that is known.
pub(crate) fn used_here(share: &Share) -> Option<u64> {
    let (own, other) = (std::process::id(), LISTED_AS.load(Relaxed));
    let list = listed(share)?;
    let here = list.iter().find(|process| process.pid == own || (other != 0 && process.pid == other))?;
    (here.used != c_ulonglong::MAX).then_some(here.used)
}

/// The use of a device before a context is made there.
#[derive(Debug)]
pub(crate) struct Before {
    used: Option<u64>,
    pids: Vec<c_uint>,
}

/// Looks at the share's device before a context is made there.
pub(crate) fn before_context(share: &Share) -> Before {
    let list = listed(share).unwrap_or_default();
    Before { used: used(share), pids: list.iter().map(|process| process.pid).collect() }
}

/// The memory that a context took.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) bytes: u64,
    /// False if other programs may have taken some of it.
    pub(crate) is_exact: bool,
}

/// Returns what a context took: what NVML lists for this process beyond its charge, or else the whole device's growth.
pub(crate) fn taken_by_context(share: &Share, before: &Before) -> Taken {
    let list = listed(share).unwrap_or_default();
    remember_number(&list, &before.pids);
    let exact = |bytes| Taken { bytes, is_exact: true };
    match used_here(share) {
        Some(used) => exact(share.charged_here().map_or(0, |charged| used.saturating_sub(charged))),
        // Others are listed, and this process is not: it has nothing.
        None if !list.is_empty() => exact(0),
        None => {
            let grown = used(share).zip(before.used).map_or(0, |(after, before)| after.saturating_sub(before));
            Taken { bytes: grown.min(CONTEXT_MAX), is_exact: false }
        }
    }
}

/// Finds out under which number this process is listed, if that is not its own: one that is new, and that no process has which can be
/// seen from here.
fn remember_number(list: &[Process], before: &[c_uint]) {
    let is_seen = |pid: c_uint| std::path::Path::new("/proc").join(pid.to_string()).exists();
    let mut new = list.iter().filter(|process| !before.contains(&process.pid) && !is_seen(process.pid));
    if let (Some(only), None) = (new.next(), new.next()) {
        LISTED_AS.store(only.pid, Relaxed);
    }
}

/// Returns whether NVML's device is the share's.
fn is(share: &Share, device: Handle) -> bool {
    let found = loader::driver_symbol(c"nvmlDeviceGetUUID");
    if found.is_null() {
        return false;
    }
    // SAFETY: NVML's function of this name has this signature.
    let ask = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int>(found) };
    let mut text = [0 as c_char; 96];
    // SAFETY: a buffer of ours for the answer, with its length.
    let status = unsafe { ask(device, text.as_mut_ptr(), text.len() as c_uint) };
    text[text.len() - 1] = 0;
    // SAFETY: the last byte is a zero.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    let digits = |text: &str| text.split_once('-').map(|(_, digits)| digits.to_owned());
    status == SUCCESS && text.to_str().ok().and_then(digits) == digits(&share.uuid().to_string())
}

/// Makes the answer a list of this process alone, in the form that the caller's version has.
fn list<T>(
    share: &Share,
    status: c_int,
    device: Handle,
    given: c_uint,
    count: *mut c_uint,
    list: *mut T,
    own: T,
) -> c_int {
    if !(status == SUCCESS || status == INSUFFICIENT_SIZE) || !is(share, device) {
        return status;
    }
    let held = c_uint::from(share.held() > 0);
    write(count, held);
    if held == 0 {
        return SUCCESS;
    }
    if given == 0 || list.is_null() {
        return INSUFFICIENT_SIZE;
    }
    write(list, own);
    SUCCESS
}

fn own(share: &Share) -> Process {
    let (gpu_instance, compute_instance) = (NO_INSTANCE, NO_INSTANCE);
    Process { pid: std::process::id(), used: share.held(), gpu_instance, compute_instance }
}

fn own_first_version(share: &Share) -> Process1 {
    Process1 { pid: std::process::id(), used: share.held() }
}

hook! {
    pass fn nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut Memory) |real, share| {
        let status = real(device, memory);
        if status == SUCCESS && is(share, device) {
            stores::settle_all(share);
            share.reclaim_dead();
            let (total, left) = (share.bytes(), share.undrawn());
            write(memory, Memory { total, free: left.min(read(memory).free), used: total.saturating_sub(left) });
        }
        status
    };
    pass fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut Memory2) |real, share| {
        let status = real(device, memory);
        if status == SUCCESS && is(share, device) {
            stores::settle_all(share);
            share.reclaim_dead();
            let (total, left) = (share.bytes(), share.undrawn());
            let Memory2 { version, free, .. } = read(memory);
            let (free, used) = (left.min(free), total.saturating_sub(left));
            write(memory, Memory2 { version, total, reserved: 0, free, used });
        }
        status
    };
    pass fn nvmlDeviceGetComputeRunningProcesses(device: Handle, count: *mut c_uint, infos: *mut Process1) |real, share| {
        let given = read(count);
        list(share, real(device, count, infos), device, given, count, infos, own_first_version(share))
    };
    pass fn nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: *mut c_uint, infos: *mut Process) |real, share| {
        let given = read(count);
        list(share, real(device, count, infos), device, given, count, infos, own(share))
    };
    pass fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: *mut c_uint, infos: *mut Process) |real, share| {
        let given = read(count);
        list(share, real(device, count, infos), device, given, count, infos, own(share))
    };
}

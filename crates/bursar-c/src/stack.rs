//! Stacks: the memory of a device, with a pool and limits.
#![allow(unsafe_code)]

use crate::arguments::{self, Versioned};
use crate::device::bursar_device;
use crate::enter::{call, running_call};
use crate::handles::{BLOCKS, DEVICES, Device, HeldBlock, RESERVATIONS, STACKS, StackMemory};
use crate::reservation::bursar_reservation;
use crate::status::{CallResult, Failure, bursar_status};
use bursar::device::DeviceContext;
use bursar::memory::{Build, DeviceMemoryResource, OnAccount};
use bursar::{Bytes, GlobalDeviceBudget, PagePool, Stack, leaf};
use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

/// The memory of a device; `{0}` is null.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_stack {
    /// The number of the handle.
    pub id: u64,
}

/// A pool of frames that are mapped where they are needed.
pub const BURSAR_STACK_POOL: u32 = 0;
/// The driver's own stream-ordered pool.
pub const BURSAR_STACK_ASYNC: u32 = 1;
/// One allocation of the driver for each block.
pub const BURSAR_STACK_DIRECT: u32 = 2;

/// No account: only the limit of the stack itself counts, if it has one.
pub const BURSAR_ACCOUNT_NONE: u32 = 0;
/// The share that `bursar run` set aside for this process or, if there is none, its account with the device's ledger.
pub const BURSAR_ACCOUNT_LEDGER: u32 = 1;
/// A reservation of this process.
pub const BURSAR_ACCOUNT_RESERVATION: u32 = 2;

/// The options of a stack. Zeroes but for the size are the defaults, and so is a null pointer to it: a pool without limit.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_stack_options {
    /// The size of this structure: `sizeof(bursar_stack_options)`.
    pub struct_size: usize,
    /// One of `BURSAR_STACK_*`.
    pub kind: u32,
    /// One of `BURSAR_ACCOUNT_*`: the account that is charged with what the stack holds of the device.
    pub account: u32,
    /// The most bytes that the stack may hold of the device; zero for no limit.
    pub limit: u64,
    /// The reservation, for `BURSAR_ACCOUNT_RESERVATION`; null otherwise. Its handle may be closed while the stack is open.
    pub reservation: bursar_reservation,
    /// The tenant of the ledger, for `BURSAR_ACCOUNT_LEDGER`, in up to 48 bytes; null for the one without a name.
    pub tenant: *const c_char,
    /// The longest time that a pool waits for frees that have not run before it refuses a request, in milliseconds; zero for
    /// one second.
    pub patience_ms: u32,
    /// One to have a stream wait for another's work before the pool grows, which holds less. Zero otherwise.
    pub wait_before_growing: u32,
}

impl Default for bursar_stack_options {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            kind: BURSAR_STACK_POOL,
            account: BURSAR_ACCOUNT_NONE,
            limit: 0,
            reservation: bursar_reservation::default(),
            tenant: std::ptr::null(),
            patience_ms: 0,
            wait_before_growing: 0,
        }
    }
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers and a pointer.
unsafe impl Versioned for bursar_stack_options {}

/// The memory that a stack holds at one moment. A stack without a pool caches nothing that is known here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct bursar_stack_reading {
    /// The size of this structure, set by the caller: `sizeof(bursar_stack_reading)`.
    pub struct_size: usize,
    /// The bytes that blocks have, and those that were freed but may still be in use by work that has not run.
    pub outstanding: u64,
    /// The bytes that the stack holds of the device.
    pub held: u64,
    /// The bytes of it that no block has.
    pub cached: u64,
    /// The bytes of those that are not known to be done with.
    pub pending: u64,
    /// The most bytes that lie free in one piece.
    pub largest_free_run: u64,
}

// SAFETY: it has the layout of C and begins with its size, and its fields are integers.
unsafe impl Versioned for bursar_stack_reading {}

/// Builds the memory of a device as the options say.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT`, also for a reservation of another device; `BURSAR_LEDGER`,
/// `BURSAR_FORKED`, `BURSAR_DRIVER_FAILED`; `BURSAR_UNSUPPORTED`, also where the driver only observes. `*out` is then null.
/// Threads: any.
/// Ownership: the caller closes `*out` with `bursar_stack_close`.
///
/// # Safety
/// `options` is null or points to a `bursar_stack_options`; `out` is null or points to a `bursar_stack`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_stack_open(
    device: bursar_device,
    options: *const bursar_stack_options,
    out: *mut bursar_stack,
) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_stack::default()) };
        // SAFETY: the caller's own promise.
        let options = unsafe { arguments::options(options, "options") }?;
        // SAFETY: the caller's own promise.
        let tenant = unsafe { arguments::tenant(options.tenant) }?;
        arguments::check_flag(options.wait_before_growing, "wait_before_growing")?;
        let device = DEVICES.keep(device.id)?;
        device.check_usable()?;
        let account = account(&device, &options, tenant)?;
        let id = STACKS.insert(Arc::new(build(device, &options, account)?))?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_stack { id }) };
        Ok(())
    })
}

/// Returns the budget on the account that the options name.
fn account(
    device: &Device,
    options: &bursar_stack_options,
    tenant: Option<&str>,
) -> CallResult<Option<GlobalDeviceBudget<OnAccount>>> {
    let is_reservation = options.account == BURSAR_ACCOUNT_RESERVATION;
    if options.reservation.id != 0 && !is_reservation {
        return Err(Failure::argument("reservation", "is for BURSAR_ACCOUNT_RESERVATION alone"));
    }
    if tenant.is_some() && options.account != BURSAR_ACCOUNT_LEDGER {
        return Err(Failure::argument("tenant", "is for BURSAR_ACCOUNT_LEDGER alone"));
    }
    match options.account {
        BURSAR_ACCOUNT_NONE => Ok(None),
        BURSAR_ACCOUNT_LEDGER => Ok(Some(device.ledgers.tenant(tenant.unwrap_or_default()).budget())),
        BURSAR_ACCOUNT_RESERVATION => {
            let reservation = RESERVATIONS.keep(options.reservation.id)?;
            if reservation.ledger().subject().uuid != device.context.facts().uuid {
                return Err(Failure::argument("reservation", "is of another device"));
            }
            Ok(Some(GlobalDeviceBudget::shared(reservation)))
        }
        _ => Err(Failure::argument("account", "is none of BURSAR_ACCOUNT_*")),
    }
}

fn build(
    device: Arc<Device>,
    options: &bursar_stack_options,
    account: Option<GlobalDeviceBudget<OnAccount>>,
) -> CallResult<StackMemory> {
    let context = &device.context;
    let stack = match &device.statistics {
        Some(statistics) => Stack::new().observe(statistics.clone()),
        None => Stack::new(),
    };
    let limit = GlobalDeviceBudget::of(if options.limit == 0 { Bytes::MAX } else { Bytes(options.limit) });
    let (memory, pool) = match options.kind {
        BURSAR_STACK_POOL => {
            let pool = pool(options);
            let stack = stack.layer(pool.clone()).layer(limit);
            let memory = match account {
                Some(account) => erased(&stack.layer(account).over(leaf::Frames), context)?,
                None => erased(&stack.over(leaf::Frames), context)?,
            };
            (memory, Some(pool))
        }
        BURSAR_STACK_ASYNC | BURSAR_STACK_DIRECT => {
            let (stack, is_async) = (stack.layer(limit), options.kind == BURSAR_STACK_ASYNC);
            let memory = match (account, is_async) {
                (Some(account), true) => erased(&stack.layer(account).over(leaf::Async), context)?,
                (Some(account), false) => erased(&stack.layer(account).over(leaf::Direct), context)?,
                (None, true) => erased(&stack.over(leaf::Async), context)?,
                (None, false) => erased(&stack.over(leaf::Direct), context)?,
            };
            (memory, None)
        }
        _ => return Err(Failure::argument("kind", "is none of BURSAR_STACK_*")),
    };
    Ok(StackMemory { memory, pool, captured: None, device })
}

fn pool(options: &bursar_stack_options) -> PagePool {
    let pool = match options.patience_ms {
        0 => PagePool::default(),
        patience_ms => PagePool::default().patience(Duration::from_millis(patience_ms.into())),
    };
    if options.wait_before_growing == 1 { pool.wait_before_growing() } else { pool }
}

fn erased(stack: &impl Build, context: &Arc<DeviceContext>) -> CallResult<Arc<dyn DeviceMemoryResource>> {
    Ok(Arc::new(stack.build(context)?))
}

/// Closes a stack, which gives everything back that it holds of the device.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_STILL_HELD` if it has blocks that were not freed: it then stays open.
/// Threads: any; it waits for calls of other threads that are running, and whoever uses the stack meanwhile is told that it is
/// closed.
/// Ownership: the handle is used up, if the call succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn bursar_stack_close(stack: bursar_stack) -> bursar_status {
    call(|| STACKS.close_if(stack.id, |_| has_no_blocks(stack.id)).map(drop))
}

/// Fails where a stack has blocks.
fn has_no_blocks(stack: u64) -> CallResult {
    let (mut blocks, mut bytes) = (0, Bytes::ZERO);
    BLOCKS.table.for_each_live(|held: &HeldBlock| {
        if held.stack == stack {
            blocks += 1;
            let granted = held.token.block().map_or(Bytes::ZERO, |block| block.granted());
            bytes = bytes.saturating_add(granted);
        }
    });
    if blocks == 0 { Ok(()) } else { Err(Box::new(Failure::StillHeld { blocks, bytes })) }
}

/// Opens the device of a stack once more: the one that it was made on, with its streams and statistics. A stack that outlived the
/// handles of its device and its streams gets streams to free its blocks on in this way.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`. `*out` is then null.
/// Threads: any.
/// Ownership: the caller closes `*out` with `bursar_device_close`.
///
/// # Safety
/// `out` is null or points to a `bursar_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_stack_device(stack: bursar_stack, out: *mut bursar_device) -> bursar_status {
    call(|| {
        arguments::check_place(out, "out")?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_device::default()) };
        let device = STACKS.keep(stack.id)?.device.clone();
        let id = DEVICES.insert(device)?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, bursar_device { id }) };
        Ok(())
    })
}

/// Reads what a stack holds.
///
/// Errors: `BURSAR_INVALID_HANDLE`, `BURSAR_INVALID_ARGUMENT`.
/// Threads: any.
/// Ownership: the structure is the caller's.
///
/// # Safety
/// `out` is null or points to a `bursar_stack_reading`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_stack_read(stack: bursar_stack, out: *mut bursar_stack_reading) -> bursar_status {
    running_call(|running| {
        // SAFETY: the caller's own promise.
        unsafe { arguments::check_out(out, "out") }?;
        let stack = STACKS.get(stack.id, running)?;
        let outstanding = stack.memory.bytes_outstanding().get();
        let pool = stack.pool.as_ref().and_then(|pool| pool.readings().into_iter().next());
        let captured = stack.captured.as_ref().map(|captured| captured.memory.held().get());
        let held = captured.unwrap_or(outstanding);
        let read = bursar_stack_reading {
            struct_size: size_of::<bursar_stack_reading>(),
            outstanding,
            held: pool.map_or(held, |pool| pool.held.get()),
            cached: pool.map_or(held.saturating_sub(outstanding), |pool| pool.cached.get()),
            pending: pool.map_or(0, |pool| pool.pending.get()),
            largest_free_run: pool.map_or(0, |pool| pool.largest_free_run.get()),
        };
        // SAFETY: it was checked.
        unsafe { arguments::write(out, read) };
        Ok(())
    })
}

/// Gives back what a stack holds and nobody uses, until no more than `keep` bytes of it are cached. A stack without a pool has
/// the driver give back what it can, whatever `keep` is. `*released`, if it is not null, is how many bytes went.
///
/// Errors: `BURSAR_INVALID_HANDLE`.
/// Threads: any.
/// Ownership: none.
///
/// # Safety
/// `released` is null or points to a `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_stack_trim(stack: bursar_stack, keep: u64, released: *mut u64) -> bursar_status {
    running_call(|running| {
        let stack = STACKS.get(stack.id, running)?;
        let went = match &stack.pool {
            Some(pool) => pool.trim(Bytes(keep)),
            None => stack.memory.context().trim(),
        };
        if !released.is_null() {
            // SAFETY: the caller's own promise.
            unsafe { arguments::write(released, went.get()) };
        }
        Ok(())
    })
}

/// Says how many bytes a request would be granted, which is what limits are charged with.
///
/// Errors: `BURSAR_INVALID_HANDLE`; `BURSAR_INVALID_ARGUMENT` for zero bytes, more than 4 EiB, and an
/// alignment that is not a power of two up to 2 MiB.
/// Threads: any.
/// Ownership: none.
///
/// # Safety
/// `out` is null or points to a `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bursar_granted_size(
    stack: bursar_stack,
    bytes: u64,
    alignment: u64,
    out: *mut u64,
) -> bursar_status {
    running_call(|running| {
        arguments::check_place(out, "out")?;
        let stack = STACKS.get(stack.id, running)?;
        let granted = stack.memory.granted_size(bytes, if alignment == 0 { 1 } else { alignment })?;
        // SAFETY: it was checked.
        unsafe { arguments::write(out, granted.get()) };
        Ok(())
    })
}

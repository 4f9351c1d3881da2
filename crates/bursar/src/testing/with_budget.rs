//! Tests that share a device and wait for each other's memory instead of failing.

use crate::{Gpu, driver};
use bursar_core::{Bytes, DeviceContext, DeviceId, Error, Result, Stack, leaf};
use bursar_ledger::{Ledger, Priority, Reservation, ReserveFuture};
use bursar_memory::{GlobalDeviceBudget, PagePool};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The default time that a test waits for its turn.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs a test on a device on which `bytes` are reserved for it, once they can be.
///
/// Tests run in parallel, as threads of one process or as processes of their own, and a card that has room for one of them
/// has none for eight. Here each waits for its turn, and then has what it asked for: its memory is a pool that may hold
/// `bytes` and no more, and nobody else can take them. Where there are several devices, it is the one that has room first.
/// Everything is given back when `test` returns or panics.
///
/// ```
/// use bursar::prelude::*;
/// use bursar::testing::with_budget;
///
/// let sum = with_budget(Bytes::mib(64), |gpu| {
///     let stream = gpu.streams().lease()?;
///     let numbers = gpu.buffer_from(&[1u64, 2, 3], &stream, tag!("numbers"))?;
///     assert!(gpu.buffer::<u8>(65 << 20, &stream, tag!("too much")).unwrap_err().is_capacity());
///     Ok::<u64, Error>(numbers.to_vec()?.iter().sum())
/// })?;
/// assert_eq!(sum, 6);
/// # Ok::<(), Error>(())
/// ```
///
/// The devices are those of [`cuda_or_simulated`](driver::cuda_or_simulated). Physical ones are shared by all processes of a user; simulated ones
/// only where they have a name: `BURSAR_SIM_DEVICES=1x8GiB@ci`.
///
/// # Panics
/// Panics if there is no device with so much memory, or if it did not come free within ten minutes.
#[track_caller]
pub fn with_budget<T>(bytes: Bytes, test: impl FnOnce(&Gpu) -> T) -> T {
    with_budget_within(bytes, PATIENCE, test)
}

/// Runs a test as [`with_budget`] does, and panics if its turn does not come within `patience`.
///
/// ```
/// use bursar::prelude::*;
/// use bursar::testing::with_budget_within;
///
/// let room = with_budget_within(Bytes::mib(1), std::time::Duration::from_secs(60), |gpu| gpu.facts().total);
/// assert!(room > Bytes::mib(1));
/// ```
#[track_caller]
pub fn with_budget_within<T>(bytes: Bytes, patience: Duration, test: impl FnOnce(&Gpu) -> T) -> T {
    match open_reserved(bytes, Instant::now().checked_add(patience)) {
        Ok(gpu) => test(&gpu),
        Err(error) => panic!("this test needs {bytes} of a device: {error}"),
    }
}

/// Opens the first device on which `bytes` can be reserved. Its memory is a pool over the reservation.
fn open_reserved(bytes: Bytes, deadline: Option<Instant>) -> Result<Gpu> {
    let devices = devices()?;
    let ledgers = devices.iter().map(Ledger::for_device).collect::<Result<Vec<_>, _>>()?;
    let (index, reservation) = first_reservation(&ledgers, bytes, deadline)?;
    let context = &devices[index];
    let budget = GlobalDeviceBudget::shared(Arc::new(reservation));
    let stack = Stack::new().layer(PagePool::default()).layer(budget).over(leaf::Frames);
    Gpu::open(context.driver().clone(), context.device(), &stack)
}

/// Returns the devices of this process, opened once: simulated ones would be different each time.
fn devices() -> Result<&'static [Arc<DeviceContext>]> {
    static DEVICES: OnceLock<Result<Vec<Arc<DeviceContext>>>> = OnceLock::new();
    let open = || {
        let driver = driver::cuda_or_simulated()?;
        let opened: Vec<_> =
            (0..driver.device_count()).map(|n| DeviceContext::open(driver.clone(), DeviceId(n))).collect();
        let well = opened.iter().flatten().cloned().collect::<Vec<_>>();
        match opened.into_iter().find_map(Result::err) {
            Some(error) if well.is_empty() => Err(error),
            None if well.is_empty() => Err(Error::NoDevice),
            _ => Ok(well),
        }
    };
    DEVICES.get_or_init(open).as_deref().map_err(Clone::clone)
}

/// Waits in the queue of every device that has so much at all. Returns the first reservation that is granted, with the index
/// of its ledger. Without a deadline it waits as long as it takes.
fn first_reservation(ledgers: &[Ledger], bytes: Bytes, deadline: Option<Instant>) -> Result<(usize, Reservation)> {
    let waker = Waker::from(Arc::new(UnparkThread(std::thread::current())));
    let mut turns: Vec<(usize, Pin<Box<ReserveFuture>>)> = ledgers
        .iter()
        .enumerate()
        .filter(|(_, ledger)| ledger.limit() >= bytes)
        .map(|(index, ledger)| (index, Box::pin(ledger.reserve_async(bytes, Priority::NORMAL))))
        .collect();
    let mut refused = too_large(ledgers, bytes);
    loop {
        let mut left = Vec::new();
        for (index, mut turn) in turns {
            match turn.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(Ok(reservation)) => return Ok((index, reservation)),
                Poll::Ready(Err(error)) => refused = error,
                Poll::Pending => left.push((index, turn)),
            }
        }
        if left.is_empty() {
            return Err(refused);
        }
        turns = left;
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return Err(Error::Account { why: holders(ledgers).into() }),
            Some(patience) => std::thread::park_timeout(patience),
            None => std::thread::park(),
        }
    }
}

fn too_large(ledgers: &[Ledger], bytes: Bytes) -> Error {
    let limit = ledgers.iter().map(Ledger::limit).max().unwrap_or_default();
    Error::out_of_budget(bytes, limit, limit)
}

/// Describes the processes that hold what this test waited for.
fn holders(ledgers: &[Ledger]) -> String {
    let readings = ledgers.iter().filter_map(|ledger| ledger.reading().ok());
    let has_some = |reading: &bursar_ledger::ProcessReading| reading.held.saturating_add(reading.undrawn) > Bytes::ZERO;
    let holders: Vec<String> =
        readings.flat_map(|reading| reading.processes).filter(has_some).map(|process| process.to_string()).collect();
    match holders.is_empty() {
        true => "its turn did not come in time, though no program that can be seen holds any".to_owned(),
        false => format!("its turn did not come in time: {}", holders.join(", ")),
    }
}

/// A waker that unparks a thread.
struct UnparkThread(Thread);

impl Wake for UnparkThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

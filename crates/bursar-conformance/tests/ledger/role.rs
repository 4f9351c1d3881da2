//! The child processes of the ledger trials: each carries out one command per line of its input, and prints one line with the
//! result.

use bursar::driver::Pattern;
use bursar::ledger::{Ledger, Priority, Reservation};
use bursar::prelude::*;
use bursar::sim::Sim;
use bursar_cuda::Cuda;
use std::error::Error;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The environment variable with the driver and the tenant of a child process.
pub(crate) const VARIABLE: &str = "BURSAR_TEST_ROLE";

/// The longest wait.
const DEADLINE: Duration = Duration::from_secs(5);

/// The driver of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Sim,
    Cuda,
}

impl Driver {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Cuda => "cuda",
        }
    }

    fn open(self) -> Result<Arc<dyn bursar::driver::Driver>, Box<dyn Error>> {
        Ok(match self {
            Self::Sim => Sim::builder().immediate().device(Bytes::gib(8)).named("conformance").build(),
            Self::Cuda => Cuda::load()?,
        })
    }
}

/// Runs this process in its role, if it was started with one.
#[allow(clippy::print_stdout, reason = "the results of a child process")]
pub(crate) fn run_if_child() -> Option<ExitCode> {
    let role = std::env::var(VARIABLE).ok()?;
    let (driver, tenant) = role.split_once(' ')?;
    let driver = if driver == Driver::Cuda.name() { Driver::Cuda } else { Driver::Sim };
    Some(match run(driver, tenant) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    })
}

#[allow(clippy::print_stdout, reason = "the results of a child process")]
fn run(driver: Driver, tenant: &str) -> Result<(), Box<dyn Error>> {
    let mut role = Role::new(driver, tenant)?;
    for line in std::io::stdin().lock().lines() {
        println!("{}", role.act(&line?)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// A process with a pool on a device under a limit of four quarters.
struct Role {
    tenant: String,
    context: Arc<DeviceContext>,
    ledger: Ledger,
    quarter: Bytes,
    stream: Stream,
    pool: PagePool,
    memory: Arc<dyn DeviceMemoryResource>,
    /// Memory that was set aside and not drawn yet.
    reservation: Option<Reservation>,
    /// Blocks that were drawn from a reservation, each with its stack.
    drawn: Vec<(Arc<dyn DeviceMemoryResource>, DeviceBlock)>,
    held: Vec<DeviceBlock>,
}

impl Role {
    fn new(driver: Driver, tenant: &str) -> Result<Self, Box<dyn Error>> {
        let context = DeviceContext::open(driver.open()?, DeviceId(0))?;
        let ledgers = Ledgers::default().tenant(tenant);
        let ledger = ledgers.of(&context)?;
        let quarter = Bytes((context.facts().total.get() / 8).min(2 << 30) >> 26 << 26);
        ledger.set_limit(quarter.saturating_mul(4))?;
        let pool = PagePool::default();
        let memory: Arc<dyn DeviceMemoryResource> =
            Arc::new(Stack::new().layer(pool.clone()).layer(ledgers.budget()).over(leaf::Frames).build(&context)?);
        let stream = context.create_stream(0)?;
        let role = Self {
            tenant: tenant.to_owned(),
            context,
            ledger,
            quarter,
            stream,
            pool,
            memory,
            reservation: None,
            drawn: Vec::new(),
            held: Vec::new(),
        };
        role.warm_up()?;
        Ok(role)
    }

    /// Uses the device once, so that the memory which the driver allocates on first use is there before anything is measured.
    fn warm_up(&self) -> bursar::Result<()> {
        let block = self.filled(&self.memory, Bytes::mib(2))?;
        self.memory.deallocate(block, self.stream)?;
        self.context.synchronize(self.stream)?;
        self.pool.trim(Bytes::ZERO);
        Ok(())
    }

    /// Allocates a block and writes every byte of it.
    fn filled(&self, memory: &Arc<dyn DeviceMemoryResource>, bytes: Bytes) -> bursar::Result<DeviceBlock> {
        let mut block = memory.allocate(bytes.get(), 256, self.stream, tag!("filled"))?;
        self.context.fill(&mut block, 0, Pattern::U32(7), bytes.get() / 4, self.stream)?;
        Ok(block)
    }

    fn act(&mut self, line: &str) -> Result<String, Box<dyn Error>> {
        let (what, number) = line.split_once(' ').unwrap_or((line, "0"));
        let number: u64 = number.parse()?;
        let bytes = self.quarter.saturating_mul(number);
        Ok(match what {
            "overhead" => self.unmanaged()?.to_string(),
            "hold" => self.outcome("held", |role| {
                let block = role.filled(&role.memory, bytes)?;
                role.held.push(block);
                Ok(())
            })?,
            "keep" => self.outcome("kept", |role| {
                let block = role.filled(&role.memory, bytes)?;
                Ok(role.memory.deallocate(block, role.stream)?)
            })?,
            "guarantee" => {
                self.ledger.tenant(&self.tenant)?.configure(bytes, self.quarter.saturating_mul(4))?;
                "done".to_owned()
            }
            "reserve" => self.outcome("reserved", |role| {
                role.reservation = Some(role.ledger.tenant(&role.tenant)?.reserve(bytes)?);
                Ok(())
            })?,
            "draw" => self.outcome("drawn", Self::draw)?,
            "grow" => self.grow(bytes)?.as_millis().to_string(),
            "settle" => self.settle(number)?.to_string(),
            other => return Err(format!("nobody knows how to {other}").into()),
        })
    }

    fn outcome(&mut self, done: &str, act: impl Fn(&mut Self) -> bursar::Result<()>) -> bursar::Result<String> {
        match act(self) {
            Err(error) if error.is_capacity() => Ok("refused".to_owned()),
            other => other.map(|()| done.to_owned()),
        }
    }

    /// Draws the whole reservation as one block, through a pool of its own.
    fn draw(&mut self) -> bursar::Result<()> {
        let Some(reservation) = self.reservation.take() else { return Ok(()) };
        let bytes = reservation.bytes();
        let budget = GlobalDeviceBudget::shared(Arc::new(reservation));
        let stack = Stack::new().layer(PagePool::default()).layer(budget).over(leaf::Frames);
        let memory: Arc<dyn DeviceMemoryResource> = Arc::new(stack.build(&self.context)?);
        let block = self.filled(&memory, bytes)?;
        self.drawn.push((memory, block));
        Ok(())
    }

    /// Waits for a reservation of `bytes`, draws it, and returns how long that took.
    fn grow(&mut self, bytes: Bytes) -> bursar::Result<Duration> {
        let start = Instant::now();
        let tenant = self.ledger.tenant(&self.tenant)?;
        self.reservation = Some(tenant.reserve_within(bytes, DEADLINE, Priority::default())?);
        self.draw()?;
        Ok(start.elapsed())
    }

    /// Frees everything, and measures until `overhead` bytes are used outside the ledger, or the deadline has passed.
    fn settle(&mut self, overhead: u64) -> bursar::Result<u64> {
        for block in std::mem::take(&mut self.held) {
            self.memory.deallocate(block, self.stream)?;
        }
        for (memory, block) in std::mem::take(&mut self.drawn) {
            memory.deallocate(block, self.stream)?;
        }
        self.context.synchronize(self.stream)?;
        self.context.trim();
        let start = Instant::now();
        loop {
            let unmanaged = self.unmanaged()?;
            if unmanaged.abs_diff(overhead) <= crate::SLACK || start.elapsed() > DEADLINE {
                return Ok(unmanaged);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn unmanaged(&self) -> bursar::Result<u64> {
        self.ledger.available()?;
        Ok(self.ledger.reading()?.unmanaged.get())
    }
}

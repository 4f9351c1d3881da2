//! `bursar run`: runs as many workers as fit, each with its device and its share, until they have ended.
//!
//! - `processes`: the processes of a run, and how they end each other.
//! - `supervisor`: the loop that starts, watches and ends workers.
//! - `slots`: where workers run, and the memory reserved for them.
//! - `enforcement`: the library that keeps workers inside their shares.
//! - `output`: the thread that prints what workers write.

mod enforcement;
mod output;
mod processes;
mod slots;
mod supervisor;

pub(crate) use processes::signals::is_ignored;
pub(crate) use processes::{Invocation, Role};

use crate::failure::Failure;
use crate::options::GlobalOptions;
use crate::output::{FAINT, WARNING};
use crate::program::Program;
use crate::stage::Stage;
use bursar::driver::SimDevices;
use bursar::fit::{FitError, MemoryKind};
use clap::Args;
use enforcement::Enforcement;
use output::{Console, OutputThread};
use processes::child_lock::ChildLock;
use processes::parent_process::ParentProcess;
use processes::signal_socket::SignalReceiver;
use processes::{foreground, launch, watchdog};
use rustix::process::{Pid, Resource, getpid, getrlimit, set_child_subreaper};
use slots::{Scheduler, Slot, SlotSource};
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use supervisor::{CommandTemplate, Policy, RunFailure, SleepPolicy, Supervisor, names_a_device};

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar run --pool vram --per-worker 10GiB --want 8 -- python train.py --rank {worker} --of {workers}
  bursar run --pool vram --per-worker 10GiB --want 8 --elastic --restart 2 -- ./stage
  bursar run --per-worker 10GiB -- python serve.py    # a program that knows nothing of Bursar, within 10 GiB
  bursar run --pool ram --fixed 10GiB --per-worker 4GiB --want 16 -- ./convert part-{worker}.bin

Each worker gets BURSAR_WORKER, BURSAR_WORKERS, BURSAR_LABEL, its device in CUDA_VISIBLE_DEVICES and its
share in BURSAR_RESERVATION. What it takes of a device is charged to that share by libbursar_enforce.so, which is preloaded
into it, and refused beyond: this keeps honest programs honest, and is not a security boundary.
Exit status: 0 every worker ended well, 1 workers failed or do not fit, 2 wrong usage or no such command, 3 the machine
failed us, 128 and the signal's number where a signal ended the run.";

/// The longest grace, so that adding it to a moment does not overflow.
const GRACE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The options of a run.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    stage: Stage,

    /// Start the others of the workers wanted as memory comes free: all of them run, and `{workers}` counts them all.
    #[arg(long)]
    elastic: bool,

    /// Leave workers to themselves: what they take of a device is not charged to their shares unless they do it.
    #[arg(long)]
    no_enforce: bool,

    /// End the other workers when one has failed.
    #[arg(long)]
    fail_fast: bool,

    /// Start each worker that failed again, so often at most.
    #[arg(long, value_name = "N", default_value_t = 0)]
    restart: u32,

    /// The seconds that workers have to end when they are asked to.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    grace: Duration,

    /// When the run or a worker is stopped (Ctrl-Z, SIGTSTP), have the workers' memory sleep first, and give their shares back;
    /// when it is continued, wait for them and wake. For workers that let others put them to sleep: see `bursar sleep`.
    #[arg(long)]
    sleep_when_stopped: bool,

    /// With --sleep-when-stopped, keep the shares of workers that sleep, so that nobody else gets them.
    #[arg(long, requires = "sleep_when_stopped")]
    keep_place: bool,

    /// The command, and its words: {worker}, {workers} and {device} are filled in.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Reads a number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.trim().parse().map_err(|_| "give a number of seconds, such as 10 or 0.5".to_owned())?;
    let seconds = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    Ok(seconds.min(GRACE_MAX))
}

/// Starts a run as the process that the user started; see [`processes`].
pub(crate) fn start(program: &Program, words: &[OsString]) -> Result<u8, Failure> {
    foreground::run(program, words).map_err(|error| system("the run could not be started", error))
}

/// Runs as the watchdog; see [`processes`].
pub(crate) fn watch(program: &Program, invocation: Invocation) -> Result<u8, Failure> {
    watchdog::watch(program, invocation).map_err(|error| system("the run could not be kept", error))
}

/// Becomes a worker; see [`processes`]. Returns only if that failed.
pub(crate) fn launch(invocation: &Invocation) -> u8 {
    launch::exec_worker(invocation)
}

/// Runs as the supervisor that `watchdog` started, until no process of its workers is left.
pub(crate) fn supervise(
    program: &Program,
    watchdog: Pid,
    options: &GlobalOptions,
    args: &RunArgs,
) -> Result<(), Failure> {
    let child_lock = Arc::new(ChildLock::default());
    let prepare = || {
        let _ = rustix::thread::set_name(c"bursar");
        // Adopt the processes that a worker leaves behind.
        set_child_subreaper(Some(getpid()))?;
        let forwarded = SignalReceiver::start(child_lock.clone())?;
        match ParentProcess::of_this_process(watchdog) {
            Some(watchdog) => child_lock.exit_with(watchdog).map(|()| forwarded),
            None => child_lock.kill_all_and_exit(),
        }
    };
    let forwarded = prepare().map_err(|error| system("the run cannot be kept", error))?;
    run_workers(program, options, args, child_lock, &forwarded)
}

fn run_workers(
    program: &Program,
    options: &GlobalOptions,
    args: &RunArgs,
    child_lock: Arc<ChildLock>,
    forwarded: &SignalReceiver,
) -> Result<(), Failure> {
    let (stage, json) = (&args.stage, options.json);
    if stage.pool == MemoryKind::Ram && args.command.iter().any(|word| names_a_device(word)) {
        return Err(Failure::Usage("{device} stands for nothing in --pool ram: leave it out"));
    }
    let open = || options.open_machine().map_err(Failure::of_stage);
    let opened = stage.needs_driver(true).then(open).transpose()?;
    let peak = stage.trace_peak()?;
    // Other processes draw on what is set aside.
    let spec = stage.spec(opened.as_ref(), peak.as_ref())?.across_processes();
    let is_simulated = opened.as_ref().is_some_and(|opened| opened.is_simulated);
    let mut environment = if is_simulated { device_environment(&options.sim_devices()?) } else { Vec::new() };
    let enforcement = enforcement(program, args, is_simulated)?;
    environment.extend(enforcement.environment());
    let scheduler = Scheduler::new(spec, stage.available, opened.as_ref(), &environment)?;

    let output = OutputThread::start(Console::new(json)).map_err(|error| system("output cannot be shown", error))?;
    let policy = Policy {
        restarts: args.restart,
        fail_fast: args.fail_fast,
        grace: args.grace,
        json,
        driver: opened.as_ref().map(|opened| opened.driver.describe()),
        is_simulated,
        sleep: args.sleep_when_stopped.then_some(SleepPolicy { keep_place: args.keep_place }),
    };
    let supervisor = Supervisor::new(policy, output, child_lock);
    if is_simulated {
        supervisor.say(FAINT, "bursar: the workers are on simulated devices");
    }
    match enforcement.library() {
        Some(library) => {
            supervisor.say(FAINT, format!("bursar: {} keeps each worker inside its share", library.display()))
        }
        None if stage.pool == MemoryKind::Vram => {
            supervisor.say(FAINT, "bursar: nothing keeps workers inside their shares");
        }
        None => {}
    }
    if !scheduler.is_shared() {
        supervisor.say(FAINT, "bursar: devices without a name are each program's own, so workers draw on nothing; name them: --sim-devices 2x80GiB@NAME");
    }
    let (slots, workers) = first_slots(&supervisor, &scheduler, args)?;
    let more = workers - slots.len() as u64;
    let source: Arc<dyn SlotSource> = Arc::new(scheduler);
    let template = CommandTemplate::new(program, &args.command, workers, &stage.label);
    let outcome = supervisor.run(&template, slots, (more > 0).then_some((source, more)), forwarded);
    let outcome = outcome.map_err(|error| system("the run failed", error))?;
    let has_printed = outcome.has_reports();
    let failure = |failure| if has_printed { Failure::AfterOutput(Box::new(failure)) } else { failure };
    outcome.into_result(&args.command[0]).map_err(failure)
}

/// Returns what keeps the workers inside their shares. On simulated devices it is used where it is there.
fn enforcement(program: &Program, args: &RunArgs, is_simulated: bool) -> Result<Enforcement, Failure> {
    if args.no_enforce || args.stage.pool == MemoryKind::Ram {
        return Ok(Enforcement::off());
    }
    match Enforcement::find(program) {
        Err(RunFailure::NoLibrary { .. }) if is_simulated => Ok(Enforcement::off()),
        found => Ok(found?),
    }
}

/// An error of [`first_slots`].
enum SlotError {
    Fit(FitError),
    TooMany(Failure),
}

impl From<FitError> for SlotError {
    fn from(error: FitError) -> Self {
        Self::Fit(error)
    }
}

/// Returns the slots that there are now, and the number of workers that there will be.
fn first_slots(supervisor: &Supervisor, scheduler: &Scheduler, args: &RunArgs) -> Result<(Vec<Slot>, u64), Failure> {
    let want = args.stage.want.max(1);
    if args.elastic {
        check_open_files(want)?;
    }
    match scheduler.slots(|workers| check_open_files(workers).map_err(SlotError::TooMany)) {
        Ok((plan, slots)) => {
            supervisor.say(FAINT, format!("bursar: {}", plan.explanation()));
            if let Some(message) = plan.overflow_message() {
                supervisor.say(WARNING, format!("bursar: {message}"));
            }
            let workers = if args.elastic { want } else { slots.len() as u64 };
            Ok((slots, workers))
        }
        Err(SlotError::Fit(error)) if args.elastic && error.is_capacity() => {
            supervisor.say(FAINT, format!("bursar: waiting for room: {error}"));
            Ok((Vec::new(), want))
        }
        Err(SlotError::Fit(error)) => Err(error.into()),
        Err(SlotError::TooMany(failure)) => Err(failure),
    }
}

/// Returns the variables that a Bursar program in a worker needs to open the same simulated devices.
fn device_environment(devices: &SimDevices) -> Vec<(&'static str, OsString)> {
    vec![(bursar::driver::VARIABLE, "sim".into()), (bursar::driver::SIM_DEVICES_VARIABLE, to_the_byte(devices).into())]
}

/// Formats simulated devices with their size in bytes, since devices of one name must have one size.
fn to_the_byte(SimDevices { count, bytes, name }: &SimDevices) -> String {
    let name = name.as_ref().map_or(String::new(), |name| format!("@{name}"));
    format!("{count}x{}{name}", bytes.get())
}

fn system(what: &'static str, error: io::Error) -> Failure {
    RunFailure::System { what, error }.into()
}

/// Fails if so many workers need more open files than are allowed: two pipes each, and a few more while one is started.
fn check_open_files(workers: u64) -> Result<(), Failure> {
    const BESIDE_WORKERS: u64 = 64;
    let needed = workers.saturating_mul(2).saturating_add(BESIDE_WORKERS);
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(RunFailure::OpenFiles { workers, needed, limit }.into()),
        _ => Ok(()),
    }
}

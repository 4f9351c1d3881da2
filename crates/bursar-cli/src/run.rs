//! `bursar run`: as many workers as fit, each with its device and its share, until they have ended.

mod bell;
mod crew;
mod failed;
mod finish;
mod front;
mod hands;
mod keeper;
mod launch;
mod line;
mod lines;
mod outcome;
mod parent;
mod place;
mod pump;
mod roles;
mod screen;
mod seat;
mod seating;
mod signals;
mod strays;
mod template;
mod told;
mod worker;

pub(crate) use failed::RunFailure;
pub(crate) use roles::{Part, Role, part};

use crate::arguments::Arguments;
use crate::fit::Stage;
use crate::output::{FAINT, Failure, WARNING};
use bursar::driver::{Choice, OpenedDriver, SimDevices};
use bursar::fit::{FitError, Pool};
use clap::Args;
use crew::{Crew, Orders};
use hands::Hands;
use line::Listener;
use parent::Parent;
use pump::Pump;
use rustix::process::{Pid, Resource, getpid, getrlimit, set_child_subreaper};
use screen::Screen;
use seat::{Room, Seat};
use seating::Seating;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use template::Template;

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar run --pool vram --per-worker 10GiB --want 8 -- python train.py --rank {worker} --of {workers}
  bursar run --pool vram --per-worker 10GiB --want 8 --elastic --restart 2 -- ./stage
  bursar run --pool ram --fixed 10GiB --per-worker 4GiB --want 16 -- ./convert part-{worker}.bin

Each worker gets BURSAR_WORKER, BURSAR_WORKERS, its device in CUDA_VISIBLE_DEVICES and its share in BURSAR_RESERVATION.
Exit status: 0 every worker ended well, 1 workers failed or do not fit, 2 wrong usage or no such command, 3 the machine
failed us, 128 and the signal's number where a signal ended the run.";

/// As good as for ever.
const GRACE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What can be asked of a run.
#[derive(Debug, Args)]
pub(crate) struct Asked {
    #[command(flatten)]
    stage: Stage,

    /// Start the others of the workers wanted as memory comes free: all of them run, and `{workers}` counts them all.
    #[arg(long)]
    elastic: bool,

    /// End the other workers when one has failed.
    #[arg(long)]
    fail_fast: bool,

    /// Start each worker that failed again, so often at most.
    #[arg(long, value_name = "N", default_value_t = 0)]
    restart: u32,

    /// How many seconds workers have to end when they are asked to.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    grace: Duration,

    /// The command, and its words: {worker}, {workers} and {device} are filled in.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.trim().parse().map_err(|_| "give a number of seconds, such as 10 or 0.5".to_owned())?;
    let seconds = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    Ok(seconds.min(GRACE_MAX))
}

/// Runs `bursar` with these words as a run that is kept; see [`roles`].
pub(crate) fn front(words: impl Iterator<Item = OsString>) -> Result<ExitCode, Failure> {
    front::run(words).map_err(|error| system("the run could not be started", error))
}

/// Keeps a run; see [`keeper`].
pub(crate) fn keep(part: Part) -> Result<ExitCode, Failure> {
    keeper::keep(part).map_err(|error| system("the run could not be kept", error))
}

/// Becomes a worker; see [`launch`].
pub(crate) fn launch(part: &Part) -> ExitCode {
    launch::launch(part)
}

/// Does what was asked as the crew that `keeper` started, and ends if that does.
pub(crate) fn crew(keeper: Pid, arguments: &Arguments, asked: &Asked) -> Result<(), Failure> {
    let hands = Arc::new(Hands::default());
    let kept = || {
        let _ = rustix::thread::set_name(c"bursar");
        // Whatever a worker leaves behind comes to us.
        set_child_subreaper(Some(getpid()))?;
        let listener = Listener::take(hands.clone())?;
        match Parent::of_this_process(keeper) {
            Some(keeper) => hands.end_with(keeper).map(|()| listener),
            None => hands.end_everything(),
        }
    };
    let listener = kept().map_err(|error| system("the run cannot be kept", error))?;
    run(arguments, asked, hands, &listener)
}

/// Runs the workers until nothing of them is left.
fn run(arguments: &Arguments, asked: &Asked, hands: Arc<Hands>, listener: &Listener) -> Result<(), Failure> {
    let (stage, json) = (&asked.stage, arguments.json);
    if stage.pool == Pool::Ram && asked.command.iter().any(|word| template::names_a_device(word)) {
        return Err(Failure::Usage("{device} stands for nothing in --pool ram: leave it out"));
    }
    let open = || bursar::driver::open(arguments.driver, &arguments.sim_devices);
    let opened = stage.needs_driver(true).then(open).transpose()?;
    let measured = stage.measured()?;
    let spec = stage.spec(opened.as_ref(), measured.as_ref())?;
    let seating = Seating::new(spec, stage.available, opened.as_ref(), &told(arguments, opened.as_ref()))?;

    let pump = Pump::start(Screen::new(json)).map_err(|error| system("output cannot be shown", error))?;
    let orders = Orders { restarts: asked.restart, fail_fast: asked.fail_fast, grace: asked.grace, json };
    let crew = Crew::new(orders, pump, hands);
    if !seating.is_shared() {
        crew.say(FAINT, "bursar: devices without a name are each program's own, so workers draw on nothing; name them: --sim-devices 2x80GiB@NAME");
    }
    let (seats, workers) = seats(&crew, &seating, asked)?;
    let more = workers - seats.len() as u64;
    let room: Arc<dyn Room> = Arc::new(seating);
    let template = Template::new(&asked.command, workers);
    let outcome = crew.run(&template, seats, (more > 0).then_some((room, more)), listener);
    outcome.map_err(|error| system("the run failed", error))?.judge(&asked.command[0])
}

/// Why there are no seats.
enum Unseated {
    Fit(FitError),
    TooMany(Failure),
}

impl From<FitError> for Unseated {
    fn from(error: FitError) -> Self {
        Self::Fit(error)
    }
}

/// The seats there are now, and how many workers there are to be.
fn seats(crew: &Crew, seating: &Seating, asked: &Asked) -> Result<(Vec<Seat>, u64), Failure> {
    let want = asked.stage.want.max(1);
    if asked.elastic {
        check_open_files(want)?;
    }
    match seating.seats(|workers| check_open_files(workers).map_err(Unseated::TooMany)) {
        Ok((plan, seats)) => {
            crew.say(FAINT, format!("bursar: {}", plan.explanation()));
            if let Some(complaint) = plan.complaint() {
                crew.say(WARNING, format!("bursar: {complaint}"));
            }
            let workers = if asked.elastic { want } else { seats.len() as u64 };
            Ok((seats, workers))
        }
        Err(Unseated::Fit(error)) if asked.elastic && error.is_capacity() => {
            crew.say(FAINT, format!("bursar: waiting for room: {error}"));
            Ok((Vec::new(), want))
        }
        Err(Unseated::Fit(error)) => Err(error.into()),
        Err(Unseated::TooMany(failure)) => Err(failure),
    }
}

/// What a Bursar program in a worker needs to open the same devices.
fn told(arguments: &Arguments, opened: Option<&OpenedDriver>) -> Vec<(&'static str, OsString)> {
    let simulated = opened.filter(|opened| arguments.driver == Choice::Sim || opened.instead_of_cuda.is_some());
    match simulated {
        Some(_) => vec![
            (bursar::driver::VARIABLE, "sim".into()),
            (bursar::driver::SIM_DEVICES_VARIABLE, exactly(&arguments.sim_devices).into()),
        ],
        None => Vec::new(),
    }
}

/// The description of simulated devices to the byte: those of one name have one size.
fn exactly(SimDevices { count, bytes, name }: &SimDevices) -> String {
    let name = name.as_ref().map_or(String::new(), |name| format!("@{name}"));
    format!("{count}x{}{name}", bytes.get())
}

fn system(what: &'static str, error: io::Error) -> Failure {
    Failure::Run(RunFailure::System { what, error })
}

/// Each worker needs two pipes, and starting one a few more files for a moment.
fn check_open_files(workers: u64) -> Result<(), Failure> {
    const BESIDE_WORKERS: u64 = 64;
    let needed = workers.saturating_mul(2).saturating_add(BESIDE_WORKERS);
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(Failure::Run(RunFailure::OpenFiles { workers, needed, limit })),
        _ => Ok(()),
    }
}

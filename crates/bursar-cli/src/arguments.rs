//! The command line.

use crate::commands::{bench, completions, convert, fit, ledger, ray_resources, replay, serve, sleep, top};
use crate::failure::Failure;
use crate::options::GlobalOptions;
use crate::run;
use crate::stage::Stage;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::io::{ErrorKind, Write as _};

/// The memory runtime for programs that share GPUs.
#[derive(Debug, Parser)]
#[command(name = "bursar", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) options: GlobalOptions,
}

impl Arguments {
    /// Parses words, the first of which names the program. Prints the help that was asked for, and errors of usage.
    pub(crate) fn read(words: impl Iterator<Item = OsString>) -> Result<Self, Failure> {
        let matches = Self::definition().try_get_matches_from(words);
        let print = |shown: &clap::Error| shown.print().and_then(|()| std::io::stdout().flush());
        matches.and_then(|matches| Self::from_arg_matches(&matches)).map_err(|shown| match print(&shown) {
            Err(error) if !shown.use_stderr() && error.kind() != ErrorKind::BrokenPipe => Failure::Output(error),
            _ => Failure::AlreadyReported { status: u8::try_from(shown.exit_code()).unwrap_or(u8::MAX) },
        })
    }

    /// Returns the definition of the command line.
    pub(crate) fn definition() -> clap::Command {
        GlobalOptions::hide_devices_from(&["completions", "man", "convert", "sleep", "wake"], Self::command())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The tour: devices, a budget, a refusal, a free in stream order, a real trace, and a race being caught.
    #[command(after_help = "Example:\n  bursar demo --sim-devices 4x24GiB")]
    Demo,
    /// Lists what the driver knows of each device.
    #[command(after_help = "Example:\n  bursar devices --json | jq '.devices[].free'")]
    Devices,
    /// Replays allocation traces through a stack and says what it cost.
    ///
    /// A trace is an RMM CSV log, Bursar's own CSV or JSON lines, records of 16 bytes, or a PyTorch memory snapshot, gzipped or
    /// not. It may be dealt over streams and varied, or made instead of read. Blocks are freed on the streams that the trace
    /// says. One pass warms the stack up, the second is timed; reading is outside the clock.
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::ReplayArgs),
    /// Times the hot path.
    #[command(subcommand, after_help = "Example:\n  bursar bench pairs --bytes 1KiB --threads 1,2,4")]
    Bench(Bench),
    /// Says how many workers fit into RAM or VRAM, and why.
    #[command(after_help = fit::EXAMPLES)]
    Fit(Stage),
    /// Runs as many workers as fit, each with its device and its share, until they have ended.
    ///
    /// What workers write is shown line by line with their number. Ctrl-C and SIGTERM reach every process of every worker;
    /// those that are left after the grace are killed, at once if asked twice. Signals that the run was started to ignore, its
    /// workers ignore too.
    ///
    /// No process of a worker outlives the run, however that ends, and nothing is ended that the run did not start. A run is
    /// three processes, `bursar run`, its watchdog and its supervisor: if one is killed, or two, the others end every worker.
    #[command(after_help = run::EXAMPLES)]
    Run(run::RunArgs),
    /// Shows who holds what of each device, and sets what all programs together may hold.
    #[command(after_help = ledger::EXAMPLES)]
    Ledger {
        /// Shows, where none is named.
        #[command(subcommand)]
        command: Option<ledger::LedgerCommand>,
    },
    /// Watches who holds what of each device, who waits and who was refused.
    ///
    /// Devices are shown with bars, figures and history; processes, tenants, the queue and the last refusals in tables that
    /// keys sort and filter. Watching changes nothing. With --json it prints a value a second, a line each.
    #[command(after_help = top::EXAMPLES)]
    Top(top::TopArgs),
    /// Serves metrics, the state and a page that updates itself over HTTP: who holds what, who waits, who was refused.
    ///
    /// /metrics is what Prometheus scrapes (OpenMetrics on request), /api/state and /api/history are JSON, and / is the page.
    /// It reads and changes nothing. It listens on loopback unless told otherwise.
    #[command(after_help = serve::EXAMPLES)]
    Serve(serve::ServeArgs),
    /// Puts the memory of another program to sleep: it goes back to the devices, contents wait in host memory, addresses stay.
    ///
    /// The program is asked through the ledgers that it has open, and the command waits until it sleeps. Ctrl-C and the end of
    /// the time withdraw the request: what the program has not begun does not happen, and what it moves it finishes.
    #[command(after_help = sleep::SLEEP_EXAMPLES)]
    Sleep(sleep::SleepCommandArgs),
    /// Wakes the memory of a program that was put to sleep: where it was, with what it held.
    ///
    /// Where others have the memory meanwhile, the program waits for its turn in the queue of the ledger. Ctrl-C and the end of the
    /// time end that wait, and it sleeps on.
    #[command(after_help = sleep::WAKE_EXAMPLES)]
    Wake(sleep::WakeCommandArgs),
    /// Prints the bytes of this machine's cards as resources of a Ray node, or as its labels.
    ///
    /// The bytes are what programs may hold together by each card's ledger. A machine without cards has
    /// none, and a card whose ledger cannot be read is left out with a warning.
    #[command(after_help = ray_resources::EXAMPLES)]
    RayResources(ray_resources::RayResourcesArgs),
    /// Prints the script by which a shell completes this command.
    #[command(after_help = completions::COMPLETION_EXAMPLES)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints the manual page of this command or of one of its commands, or writes all of them.
    #[command(after_help = completions::MAN_EXAMPLES)]
    Man(completions::ManArgs),
    /// Turns a trace of one format into another, chosen by the ending: .csv, .jsonl, .bin or .pickle, with or without .gz.
    ///
    /// The trace may be dealt over streams and varied on the way, or made instead of read. A .bin has records of 16 bytes, for
    /// programs without a parser: the stream (four bytes, the top bit set for a free), the block (four), the size (eight).
    #[command(after_help = convert::EXAMPLES)]
    Convert(convert::ConvertArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Allocates and frees one block over and over, each thread on a stream of its own.
    #[command(after_help = "Example:\n  bursar bench pairs --bytes 1KiB --threads 1,2,4 --stack async")]
    Pairs(bench::PairsArgs),
    /// Frees and allocates blocks of random sizes among many that are live.
    #[command(after_help = bench::live::EXAMPLES)]
    Live(bench::live::LiveArgs),
    /// Pins memory as the driver does and as Bursar does, and copies both, and pageable memory, to the device and back.
    #[command(after_help = bench::pinned::EXAMPLES)]
    Pinned(bench::pinned::PinnedArgs),
    /// Puts the memory of a pool to sleep and wakes it, beside plain copies of as much.
    #[command(after_help = bench::sleep::EXAMPLES)]
    Sleep(bench::sleep::SleepArgs),
    /// Copies up on one stream and down on another, and holds a stream up: shows whether an allocator keeps streams apart.
    #[command(after_help = bench::streams::EXAMPLES)]
    Streams(bench::streams::StreamsArgs),
    /// Fills memory with blocks of mixed sizes, frees a random half, and asks for the largest single block.
    #[command(after_help = bench::fragmentation::EXAMPLES)]
    Fragmentation(bench::fragmentation::FragmentationArgs),
    /// Plans requests for memory over many nodes, in simulated time, and compares how full, how fair and how fast that is.
    #[command(after_help = bench::cluster::EXAMPLES)]
    Cluster(bench::cluster::ClusterArgs),
}

const EXAMPLES: &str = "\
Examples:
  bursar                          the tour, on this machine's GPUs or two simulated ones
  bursar devices --json           what the devices are, for a script
  bursar devices --sim-devices 1x24GiB              what one simulated device is
  bursar replay run.csv.gz        what a real program's allocations cost
  bursar ledger                   who holds what of each device
  bursar top                      the same, watched
  bursar serve                    the same as a page, over time, and for Prometheus
  bursar fit --per-worker 6GiB --want 8             how many workers fit
  bursar run --per-worker 6GiB --want 8 -- ./work   and runs them

Sizes are 512, 4KiB, 10GB or 1.5GiB.
Exit status: 0 done, 1 the answer is no, 2 wrong usage or a bad trace, 3 the machine failed us, or has no GPU to ask.";

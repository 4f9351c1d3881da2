//! Two programs that each want 80 % of what there is take turns: one sleeps while the other works, and nobody is ever refused.
//!
//! Each program is this one, started again. A third process asks them through the ledger, as `bursar sleep PID` and `bursar wake PID` do.
//! On a GPU: `cargo run --release -p bursar --example 13-take-turns -- 40GiB 100`; the first word is what both share, the second how
//! many turns they take. Each program pins 80 % of that in host memory.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::device::SleepOptions;
use bursar::driver::{Choice, SimDevices};
use bursar::ledger::{Ledger, RemoteRequest};
use bursar::prelude::*;
use bursar::sim::Sim;
use std::error::Error;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WANTS: &str = "BURSAR_EXAMPLE_WANTS";
const FOLDER: &str = "BURSAR_LEDGER_DIR";
const PATIENCE: Duration = Duration::from_secs(600);

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::var(WANTS) {
        Ok(wants) => work(wants.parse()?),
        Err(_) => direct(),
    }
}

/// Opens the GPU or, where there is none, a simulated one that programs share by its name.
fn open(folder: &Path) -> Result<(Arc<dyn Driver>, bool), Box<dyn Error>> {
    let opened = bursar::driver::open(Choice::from_environment()?, &SimDevices::from_environment()?)?;
    match opened.is_simulated {
        true => Ok((Sim::builder().immediate().device(Bytes::mib(96)).named("turns").shared_in(folder).build(), true)),
        false => Ok((opened.driver, false)),
    }
}

/// Runs as one of the two: fills what it wants, and looks at it whenever it is told to, once it is awake.
fn work(wants: Bytes) -> Result<(), Box<dyn Error>> {
    let (driver, _) = open(Path::new(&std::env::var_os(FOLDER).ok_or("no folder")?))?;
    let ledgers = Ledgers::default();
    let stack = Stack::new().layer(PagePool::default()).layer(ledgers.budget()).over(leaf::Frames);
    let gpu = Gpu::open(driver, DeviceId(0), &stack)?;
    let stream = gpu.streams().lease()?;
    let sleeper = ledgers.sleep_when_asked(&gpu, PinnedPool::near(&gpu)?, SleepOptions::new())?;

    let (count, me) = (wants.get().div_ceil(256 << 20).max(4), u64::from(std::process::id()) << 32);
    let words = (wants.get() / count / 8) as usize;
    let mut blocks = Vec::new();
    for block in 0..count {
        let mut buffer = gpu.buffer::<u64>(words, &stream, tag!("work"))?;
        buffer.fill(me | block)?;
        blocks.push((buffer, me | block));
    }
    println!("ready");
    for (turn, line) in std::io::stdin().lines().enumerate() {
        line?;
        let _awake = sleeper.awake();
        let piece = words.min(1 << 17);
        let at = (turn * piece) % (words - piece + 1);
        for (buffer, value) in &blocks {
            let found = buffer.slice(at..at + piece)?.to_vec()?;
            if found.iter().any(|word| word != value) {
                return Err(format!("a block has lost what it held, in turn {turn}").into());
            }
        }
        println!("right");
    }
    Ok(())
}

/// A program that was started.
struct Program {
    child: Child,
    says: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(wants: Bytes, folder: &Path) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(WANTS, wants.get().to_string())
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut program = Self { says: child.stdin.take(), child, lines: BufReader::new(output).lines() };
        program.expect("ready")?;
        Ok(program)
    }

    fn expect(&mut self, wanted: &str) -> Result<(), Box<dyn Error>> {
        match self.lines.next().transpose()? {
            Some(line) if line == wanted => Ok(()),
            other => Err(format!("a program says {other:?}").into()),
        }
    }

    /// Has it look at its memory.
    fn check(&mut self) -> Result<(), Box<dyn Error>> {
        writeln!(self.says.as_mut().ok_or("no input")?, "check")?;
        self.expect("right")
    }
}

fn direct() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("bursar-take-turns-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let (driver, is_simulated) = open(&folder)?;
    let mut words = std::env::args().skip(1);
    let shared =
        words.next().map_or(Ok(if is_simulated { Bytes::mib(80) } else { Bytes::gib(40) }), |word| word.parse())?;
    let turns = words.next().map_or(Ok(if is_simulated { 6 } else { 100 }), |word| word.parse::<usize>())?;
    let context = DeviceContext::open(driver, DeviceId(0))?;
    let ledger = Ledger::open_in(&folder, &bursar::ledger::Subject::device(context.facts()))?;
    ledger.set_limit(shared)?;
    let wants = Bytes(shared.get() / 10 * 8);
    println!("two programs that want {wants} of {shared} each, on {}", context.facts().name);

    let sleep = RemoteRequest::Sleep { keep_place: false, patience: PATIENCE };
    let first = Program::start(wants, &folder)?;
    let slept = ledger.ask(first.child.id(), sleep)?.wait(PATIENCE).ok_or("it does not fall asleep")??;
    println!(
        "the first slept for the first time in {:.2} s: {} were pinned",
        slept.elapsed.as_secs_f64(),
        slept.copied
    );
    let mut programs = [Program::start(wants, &folder)?, first];
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    for turn in 0..turns {
        let turned = Instant::now();
        let [works, waits] = &mut programs;
        let waking = ledger.ask(waits.child.id(), RemoteRequest::Wake { patience: PATIENCE })?;
        let falling = ledger.ask(works.child.id(), sleep)?;
        falling.wait(PATIENCE).ok_or("it does not fall asleep")??;
        waking.wait(PATIENCE).ok_or("it does not wake")??;
        longest = longest.max(turned.elapsed());
        waits.check().map_err(|error| format!("turn {turn}: {error}"))?;
        programs.swap(0, 1);
    }
    let reading = ledger.reading()?;
    if reading.refused.total() > 0 {
        return Err(format!("somebody was refused: {:?}", reading.refusals).into());
    }
    let mean = began.elapsed().as_secs_f64() / turns.max(1) as f64;
    println!("{turns} turns, contents as they were and nobody refused");
    if !is_simulated {
        println!("{mean:.2} s a turn with its check, {:.2} s to change places at most", longest.as_secs_f64());
    }
    end(programs, &folder)
}

/// Lets both end by themselves, and removes what they shared.
fn end(programs: [Program; 2], folder: &PathBuf) -> Result<(), Box<dyn Error>> {
    for mut program in programs {
        // One that sleeps ends as it is.
        drop(program.says.take());
        program.child.wait()?;
    }
    Ok(std::fs::remove_dir_all(folder)?)
}

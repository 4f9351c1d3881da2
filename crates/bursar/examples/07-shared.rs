//! Four programs that each want 40 % of one GPU: two run, two wait their turn, one is killed, and a waiter takes its place.
//!
//! Each program is this one, started again. They share a simulated GPU by its name and a ledger by the GPU's identity; there
//! is nobody in between to ask, and nothing to clean up after the one that was killed.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::ledger::{Ledger, Priority};
use bursar::prelude::*;
use bursar::sim::Sim;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const GPU: Bytes = Bytes::gib(10);
const SHARE: Bytes = Bytes::gib(4);
const NAME: &str = "example-07";
const WORKER: &str = "BURSAR_EXAMPLE_WORKER";
const FOLDER: &str = "BURSAR_LEDGER_DIR";

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::var(WORKER) {
        Ok(name) => work(&name),
        Err(_) => direct(),
    }
}

/// Runs as one of the four: reserves its share, waiting if need be, and fills it through a pool.
fn work(name: &str) -> Result<(), Box<dyn Error>> {
    let sim = Sim::builder().immediate().device(GPU).named(NAME).build();
    let context = DeviceContext::open(sim, DeviceId(0))?;
    let ledger = Ledgers::default().of(&context)?;
    println!("{name} wants {SHARE}; {} available", ledger.available()?);
    let reservation = ledger.reserve_within(SHARE, Duration::from_secs(60), Priority::default())?;
    println!("{name} runs with {}", reservation.bytes());

    let budget = GlobalDeviceBudget::shared(reservation);
    let gpu = Gpu::with_context(&context, &Stack::new().layer(PagePool::default()).layer(budget).over(leaf::Frames))?;
    let _weights = gpu.buffer::<u8>(SHARE.get() as usize, &gpu.streams().lease()?, tag!("weights"))?;
    std::io::stdin().read_to_end(&mut Vec::new())?; // until the others have seen it
    Ok(())
}

/// A program that was started, and the lines that it has printed.
struct Program {
    name: String,
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Program {
    fn start(number: usize, folder: &Path) -> Result<Self, Box<dyn Error>> {
        let name = format!("program {number}");
        let mut child = Command::new(std::env::current_exe()?)
            .env(WORKER, &name)
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        Ok(Self { name, child, lines: BufReader::new(output).lines() })
    }

    /// Prints and returns its next line; `None` once it has ended.
    fn says(&mut self) -> Result<Option<String>, Box<dyn Error>> {
        let line = self.lines.next().transpose()?;
        line.iter().for_each(|line| println!("  {line}"));
        Ok(line)
    }

    /// Lets it end by itself, or kills it, and waits until it has.
    fn end(mut self, is_killed: bool) -> Result<(), Box<dyn Error>> {
        match is_killed {
            true => self.child.kill()?,
            false => drop(self.child.stdin.take()),
        }
        println!("{} {}", self.name, if is_killed { "is killed" } else { "is done" });
        self.child.wait()?;
        Ok(())
    }
}

fn direct() -> Result<(), Box<dyn Error>> {
    let (folder, is_ours) = folder()?;
    println!("a GPU of {GPU}, and four programs that want {SHARE} each");
    let mut programs = Vec::new();
    for number in 1..=4 {
        let mut program = Program::start(number, &folder)?;
        program.says()?; // what it wants
        match number {
            1 | 2 => drop(program.says()?), // that it runs
            _ => await_queue(&folder, number - 2)?,
        }
        programs.push(program);
    }
    let [first, second, mut third, mut fourth]: [Program; 4] = programs.try_into().map_err(|_| "four were started")?;
    println!("two run and two wait");
    first.end(true)?;
    third.says()?;
    second.end(false)?;
    fourth.says()?;
    third.end(false)?;
    fourth.end(false)?;

    let sim = Sim::builder().immediate().device(GPU).named(NAME).shared_in(&folder).build();
    println!("all of it is free again: {}", sim.memory(DeviceId(0))?.free);
    drop(sim);
    if is_ours {
        std::fs::remove_dir_all(folder)?;
    }
    Ok(())
}

/// Waits until so many programs wait, so that each run of this example tells the same story.
fn await_queue(folder: &Path, length: usize) -> Result<(), Box<dyn Error>> {
    let is_ledger = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "ledger");
    let entries = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let files: Vec<PathBuf> = entries.collect::<Result<_, _>>()?;
    let file = files.into_iter().find(is_ledger).ok_or("the programs share no ledger")?;
    while Ledger::inspect(&file)?.waiting.len() < length {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns the folder of the ledgers: the one that is set, or one of this example's own.
fn folder() -> Result<(PathBuf, bool), Box<dyn Error>> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return Ok((folder.into(), false));
    }
    let folder = std::env::temp_dir().join(format!("bursar-{NAME}-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    Ok((folder, true))
}

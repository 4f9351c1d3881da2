//! Many processes at one limit while they are killed and started again (L5, L6).

use crate::peer::{Folder, ROLE, TOTAL, myself, subject};
use crate::trial;
use bursar_core::{Account, Bytes};
use bursar_ledger::{Ledger, Priority};
use bursar_sim::Random;
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Child;
use std::time::{Duration, Instant};

const PROCESSES: usize = 16;
const THREADS: usize = 4;
/// The variable for how long, in milliseconds; 30000 to be sure.
const LENGTH: &str = "BURSAR_LEDGER_TORTURE_MS";

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("l6_killed_again_and_again_nobody_exceeds_the_limit", torture)]
}

/// The bytes that each thread holds, written to a file that the parent reads: never more than is charged.
struct Board(File);

impl Board {
    fn open(folder: &std::path::Path) -> Self {
        let mut options = OpenOptions::new();
        Self(options.read(true).write(true).create(true).truncate(false).open(folder.join("board")).unwrap())
    }

    fn write(&self, at: usize, bytes: u64) {
        self.0.write_all_at(&bytes.to_le_bytes(), at as u64 * 8).unwrap();
    }

    fn clear(&self, process: usize) {
        (0..THREADS).for_each(|thread| self.write(process * THREADS + thread, 0));
    }

    fn sum(&self) -> u64 {
        let read = |at: usize| {
            let mut word = [0; 8];
            self.0.read_exact_at(&mut word, at as u64 * 8).unwrap();
            u64::from_le_bytes(word)
        };
        (0..PROCESSES * THREADS).map(read).sum()
    }
}

fn start(folder: &Folder, process: usize, seed: u64) -> Child {
    let mut command = myself();
    command.env(ROLE, "torture").env("FOLDER", folder.path());
    command.env("PROCESS", process.to_string()).env("SEED", seed.to_string()).spawn().unwrap()
}

/// One of the processes: until it is killed.
pub(crate) fn play() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let folder = std::path::PathBuf::from(std::env::var_os("FOLDER").unwrap());
    let (process, seed) = (number("PROCESS") as usize, number("SEED"));
    let ledger = Ledger::open_in(&folder, &subject()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (ledger, board) = (ledger.clone(), Board::open(&folder));
            let random = Random::new((seed << 8) | thread as u64);
            scope.spawn(move || work(&ledger, &board, process * THREADS + thread, random));
        }
    });
}

fn work(ledger: &Ledger, board: &Board, at: usize, mut random: Random) -> Option<()> {
    let (account, mut held) = (ledger.account().unwrap(), 0);
    loop {
        let bytes = Bytes(random.below(60) + 1);
        match random.below(32) {
            0 | 1 => {
                let Ok(reservation) = ledger.reserve(bytes) else { continue };
                let part = reservation.split(Bytes(bytes.get() / 2)).unwrap();
                part.charge(part.bytes()).unwrap();
                board.write(at, held + bytes.get());
                board.write(at, held);
                part.release(part.bytes());
            }
            2 => {
                let within = Duration::from_millis(random.below(20));
                let Ok(reservation) = ledger.reserve_within(bytes, within, Priority(random.below(3) as u8)) else {
                    continue;
                };
                board.write(at, held + bytes.get());
                board.write(at, held);
                drop(reservation);
            }
            3..=20 if account.charge(bytes).is_ok() => {
                held += bytes.get();
                board.write(at, held);
            }
            _ if held > 0 => {
                let some = random.below(held.min(40)) + 1;
                held -= some;
                board.write(at, held);
                account.release(Bytes(some));
            }
            _ => {}
        }
    }
}

fn torture() {
    let length = std::env::var(LENGTH).ok().and_then(|ms| ms.parse().ok()).unwrap_or(2_000);
    let seed = std::env::var("BURSAR_LEDGER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(length);
    let (folder, mut random) = (Folder::new(), Random::new(seed));
    let (ledger, board) = (folder.open(), Board::open(folder.path()));
    board.write(PROCESSES * THREADS, 0);
    let mut children: Vec<Child> = (0..PROCESSES).map(|process| start(&folder, process, seed)).collect();
    let (began, mut looks, mut busiest) = (Instant::now(), 0, 0u64);
    // On a busy machine it takes a while until they hold much together.
    let enough = |busiest: u64| busiest > TOTAL.get() / 4 || began.elapsed() > Duration::from_secs(60);
    while began.elapsed() < Duration::from_millis(length) || !enough(busiest) {
        std::thread::sleep(Duration::from_millis(50));
        let victim = random.below(PROCESSES as u64) as usize;
        children[victim].kill().unwrap();
        children[victim].wait().unwrap();
        board.clear(victim);
        children[victim] = start(&folder, victim, random.below(1 << 40));
        // With everyone stopped, what they hold is what they hold at one moment.
        let pids: Vec<Pid> = children.iter().map(Pid::from_child).collect();
        for pid in &pids {
            kill_process(*pid, Signal::STOP).unwrap();
        }
        for pid in &pids {
            waitpid(Some(*pid), WaitOptions::UNTRACED).unwrap();
        }
        let sum = board.sum();
        let reading = Ledger::inspect(&folder.file()).unwrap();
        let charged: u64 = reading.tenants.iter().map(|tenant| tenant.charged.get()).sum();
        for pid in &pids {
            kill_process(*pid, Signal::CONT).unwrap();
        }
        assert!(sum <= TOTAL.get() && charged <= TOTAL.get(), "seed {seed}: {sum} held, {charged} charged");
        (looks, busiest) = (looks + 1, busiest.max(sum));
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(looks > 0 && busiest > TOTAL.get() / 4, "seed {seed}: the limit was never near, {busiest} at most");
    let reading = ledger.reading().unwrap();
    assert_eq!((reading.held, reading.undrawn, reading.waiting.len()), (Bytes::ZERO, Bytes::ZERO, 0), "seed {seed}");
    assert_eq!(ledger.reserve(TOTAL).unwrap().bytes(), TOTAL, "seed {seed}");
}

//! Runs and workers that are stopped, as by Ctrl-Z, and continued.

use crate::Named;
use crate::rig::{DEVICE, GPU, PATIENCE, Rig, ended};
use crate::roles;
use bursar::Bytes;
use bursar::ledger::{Reading, RemoteRequest};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::time::{Duration, Instant};

pub(crate) const TRIALS: &[Named] = &[
    ("z13_a_run_that_is_stopped_gives_its_memory_up_and_waits_for_it", a_run_that_is_stopped_gives_its_memory_up),
    ("z13_a_run_that_keeps_its_place_gives_up_none", a_run_that_keeps_its_place),
    ("z13_a_worker_that_is_stopped_sleeps_by_itself", a_worker_that_is_stopped_sleeps_by_itself),
    ("z13_a_run_that_is_stopped_and_continued_over_and_over_goes_on", stopped_and_continued_over_and_over),
    ("z13_a_run_that_sleeps_is_ended", a_run_that_sleeps_is_ended),
    ("z13_a_worker_that_cannot_sleep_is_stopped_with_its_share", a_worker_that_cannot_sleep),
    ("z13_a_run_that_is_stopped_again_leaves_the_queue", a_run_that_is_stopped_again_leaves_the_queue),
    ("z13_a_run_that_is_continued_falls_asleep_no_more", a_run_that_is_continued_falls_asleep_no_more),
    ("z13_a_run_that_is_stopped_comes_after_other_requests", a_run_that_is_stopped_comes_after_other_requests),
];

/// A run in a process group of its own, with one worker that has 40 MiB.
struct Job<'a> {
    rig: &'a Rig,
    run: Option<Child>,
    group: Pid,
}

impl<'a> Job<'a> {
    fn start(rig: &'a Rig, more: &[&str]) -> Self {
        let me = std::env::current_exe().expect("this program");
        let job = Self::start_with(rig, more, &[me.to_str().expect("a plain name")]);
        job.wait_for_rounds();
        job
    }

    fn start_with(rig: &'a Rig, more: &[&str], command: &[&str]) -> Self {
        let devices = format!("1x{}@{}", GPU.get(), rig.name);
        let options = ["--driver", "sim", "--sim-devices", &devices, "run", "--no-enforce", "--headroom", "1"];
        let stage = ["--per-worker", "60MiB", "--sleep-when-stopped"];
        let mut run = rig.command(&[&options[..], &stage, more, &["--"], command].concat());
        run.env(roles::WORKS_IN, &rig.folder.0).env(DEVICE, &rig.name).process_group(0);
        let run = run.spawn().expect("the command was built");
        Self { rig, group: Pid::from_child(&run), run: Some(run) }
    }

    fn signal(&self, signal: Signal) {
        kill_process_group(self.group, signal).expect("it is ours");
    }

    fn read(&self, name: &str) -> Option<u64> {
        std::fs::read_to_string(self.rig.folder.0.join(name)).ok().and_then(|text| text.trim().parse().ok())
    }

    fn worker(&self) -> Pid {
        Pid::from_raw(self.read("pid").expect("it has begun") as i32).expect("a number")
    }

    /// Has the work of the worker not end, and waits until it is so.
    fn keep_busy(&self) {
        std::fs::write(self.rig.folder.0.join("busy"), "").expect("room");
        self.wait("busy", || self.read("working").is_some());
    }

    /// Lets the work of the worker end.
    fn let_rest(&self) {
        std::fs::remove_file(self.rig.folder.0.join("busy")).expect("it is busy");
    }

    /// Returns whether the worker is stopped.
    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.worker())).expect("the worker is there");
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Waits until the worker has looked at its memory twice more.
    fn wait_for_rounds(&self) {
        let before = self.read("round").unwrap_or(0);
        self.wait("working", || self.read("round").is_some_and(|round| round >= before + 2));
    }

    fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < until, "never {what}: {:#?}", self.rig.reading());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the worker is stopped, with the ledger as wanted.
    fn wait_until_stopped(&self, is_so: impl Fn(&Reading) -> bool) {
        self.wait("stopped", || self.is_stopped() && is_so(&self.rig.reading()));
    }

    /// Tells the worker to end, and expects that the run ends well.
    fn end(mut self) {
        std::fs::write(self.rig.folder.0.join("end"), "").expect("room");
        let output = ended(self.run.take().expect("not ended"));
        assert_eq!(output.status.code(), Some(0), "{}", crate::rig::text(&output.stderr));
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if let Some(mut run) = self.run.take() {
            let _gone_already = kill_process_group(self.group, Signal::KILL);
            let _gone_already = run.wait();
        }
    }
}

fn has_nothing(reading: &Reading) -> bool {
    reading.held == Bytes::ZERO && reading.undrawn == Bytes::ZERO
}

fn a_run_that_is_stopped_gives_its_memory_up(rig: &Rig) {
    let job = Job::start(rig, &[]);
    let share = rig.reading().held + rig.reading().undrawn;
    assert!(rig.reading().held >= Bytes::mib(40) && share >= Bytes::mib(60));
    job.signal(Signal::TSTP);
    job.wait_until_stopped(has_nothing);

    // Another program has it meanwhile, and the run waits for its turn.
    let mut other = rig.start(40);
    other.say("take");
    job.signal(Signal::CONT);
    rig.wait_until("waiting", |reading| !reading.waiting.is_empty());
    assert!(!job.is_stopped());
    drop(other);
    job.wait_for_rounds();
    assert_eq!(rig.reading().held + rig.reading().undrawn, share);
    job.end();
}

fn a_run_that_keeps_its_place(rig: &Rig) {
    let job = Job::start(rig, &["--keep-place"]);
    let before = rig.reading();
    let free = rig.free();
    job.signal(Signal::TSTP);
    job.wait_until_stopped(|_| true);
    assert_eq!(rig.reading().held + rig.reading().undrawn, before.held + before.undrawn);
    assert!(rig.free() >= free + Bytes::mib(40), "the device has it all the same");
    job.signal(Signal::CONT);
    job.wait_for_rounds();
    job.end();
}

fn a_worker_that_is_stopped_sleeps_by_itself(rig: &Rig) {
    let job = Job::start(rig, &[]);
    kill_process(job.worker(), Signal::TSTP).expect("it is there");
    job.wait_until_stopped(has_nothing);
    kill_process(job.worker(), Signal::CONT).expect("it is there");
    job.wait_for_rounds();
    job.end();
}

fn stopped_and_continued_over_and_over(rig: &Rig) {
    let job = Job::start(rig, &[]);
    for round in 0..20u64 {
        job.signal(Signal::TSTP);
        std::thread::sleep(Duration::from_millis(round * 3));
        job.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(60 - round * 3));
    }
    job.wait_for_rounds();
    job.end();
    assert!(has_nothing(&rig.reading()));
}

fn a_run_that_sleeps_is_ended(rig: &Rig) {
    let mut job = Job::start(rig, &[]);
    job.signal(Signal::TSTP);
    job.wait_until_stopped(has_nothing);
    job.signal(Signal::TERM);
    job.signal(Signal::CONT);
    let output = ended(job.run.take().expect("not ended"));
    assert_eq!(output.status.code(), Some(128 + 15), "{}", crate::rig::text(&output.stderr));
    assert!(has_nothing(&rig.reading()));
    assert_eq!(rig.free(), GPU);
}

fn a_worker_that_cannot_sleep(rig: &Rig) {
    let script = format!("echo $$ > {0}/new; mv {0}/new {0}/pid; exec sleep 600", rig.folder.0.display());
    let mut job = Job::start_with(rig, &[], &["sh", "-c", &script]);
    job.wait("begun", || job.read("pid").is_some());
    job.signal(Signal::TSTP);
    job.wait_until_stopped(|reading| reading.undrawn == Bytes::mib(60));
    job.signal(Signal::TERM);
    job.signal(Signal::CONT);
    assert_eq!(ended(job.run.take().expect("not ended")).status.code(), Some(128 + 15));
}

/// The last order counts: who is stopped wants no memory.
fn a_run_that_is_stopped_again_leaves_the_queue(rig: &Rig) {
    let job = Job::start(rig, &[]);
    job.signal(Signal::TSTP);
    job.wait_until_stopped(has_nothing);
    let mut other = rig.start(8);
    other.say("take");
    for _ in 0..2 {
        job.signal(Signal::CONT);
        rig.wait_until("waiting", |reading| !reading.waiting.is_empty());
        job.signal(Signal::TSTP);
        rig.wait_until("gone from the queue", |reading| reading.waiting.is_empty());
        job.wait_until_stopped(|_| true);
    }
    job.signal(Signal::CONT);
    drop(other);
    job.wait_for_rounds();
    job.end();
}

/// A worker whose work goes on is waited for as long as the run is to be stopped, and stays awake once it is not.
fn a_run_that_is_continued_falls_asleep_no_more(rig: &Rig) {
    let job = Job::start(rig, &[]);
    let worker = job.worker().as_raw_nonzero().get() as u32;
    let held = rig.reading().held;
    job.keep_busy();
    job.signal(Signal::TSTP);
    rig.wait_for_requests(worker, true);
    job.signal(Signal::CONT);
    rig.wait_for_requests(worker, false);
    assert_eq!(rig.reading().held, held);
    job.let_rest();
    job.wait_for_rounds();
    job.end();
}

/// A worker that somebody else has asked is asked next, and stopped only once it sleeps.
fn a_run_that_is_stopped_comes_after_other_requests(rig: &Rig) {
    let job = Job::start(rig, &[]);
    let (ledger, worker) = (rig.ledger(), job.worker().as_raw_nonzero().get() as u32);
    job.keep_busy();
    let patience = Duration::from_secs(600);
    let asked = ledger.ask(worker, RemoteRequest::Sleep { keep_place: false, patience }).expect("it listens");
    rig.wait_for_requests(worker, true);
    job.signal(Signal::TSTP);
    // However long the other request takes, the worker runs.
    std::thread::sleep(Duration::from_millis(100));
    assert!(!job.is_stopped(), "it was stopped with its memory");
    drop(asked);
    job.let_rest();
    job.wait_until_stopped(has_nothing);
    job.signal(Signal::CONT);
    job.wait_for_rounds();
    job.end();
}

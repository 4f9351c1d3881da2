//! Several simulated processes: a ledger's words in memory or in a file, and views of it that can die.

#![allow(dead_code, reason = "each test uses part of it")]

pub(crate) mod scene;

use bursar_ledger::book::{ACCOUNT, Book, FREE, RESERVATION};
use bursar_ledger::format::{
    LedgerLayout, STEP_MAX, Words, attempt_with, counter, header, node, process, unsealed, update_with, waiter,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The layout of these ledgers.
pub(crate) const LAYOUT: LedgerLayout =
    LedgerLayout { journal: STEP_MAX, processes: 8, waiters: 8, nodes: 48, refusals: 4 };

/// The words that several processes share.
pub(crate) struct Memory {
    words: Backing,
    dead: Vec<AtomicBool>,
}

enum Backing {
    Heap(Vec<AtomicU64>),
    /// Used by one process at a time.
    File(File),
}

impl Backing {
    fn load(&self, at: usize) -> u64 {
        let at = at & (LAYOUT.words() - 1);
        match self {
            Self::Heap(words) => words[at].load(SeqCst),
            Self::File(file) => {
                let mut word = [0; 8];
                file.read_exact_at(&mut word, at as u64 * 8).unwrap();
                u64::from_le_bytes(word)
            }
        }
    }

    fn update(&self, at: usize, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let at = at & (LAYOUT.words() - 1);
        match self {
            Self::Heap(words) => words[at].fetch_update(SeqCst, SeqCst, change),
            Self::File(file) => {
                let word = self.load(at);
                let new = change(word).ok_or(word)?;
                file.write_all_at(&new.to_le_bytes(), at as u64 * 8).unwrap();
                Ok(word)
            }
        }
    }
}

impl Memory {
    pub(crate) fn new(total: u64) -> Arc<Self> {
        let words = (0..LAYOUT.words()).map(|_| AtomicU64::new(0)).collect();
        let memory = Self::over(Backing::Heap(words));
        memory.process(0).initialize(total);
        memory
    }

    fn over(words: Backing) -> Arc<Self> {
        Arc::new(Self { words, dead: (0..LAYOUT.processes).map(|_| AtomicBool::new(false)).collect() })
    }

    /// Opens the words in a file that [`Self::write_to`] wrote.
    pub(crate) fn in_file(path: &Path) -> Arc<Self> {
        Self::over(Backing::File(File::options().read(true).write(true).open(path).unwrap()))
    }

    pub(crate) fn write_to(&self, path: &Path) {
        let bytes: Vec<u8> = (0..LAYOUT.words()).flat_map(|at| self.load(at).to_le_bytes()).collect();
        std::fs::write(path, bytes).unwrap();
    }

    /// Returns a copy of the words.
    pub(crate) fn copied(&self) -> Arc<Self> {
        let copy = Self::over(Backing::Heap((0..LAYOUT.words()).map(|at| AtomicU64::new(self.load(at))).collect()));
        for (dead, copied) in self.dead.iter().zip(&copy.dead) {
            copied.store(dead.load(SeqCst), SeqCst);
        }
        copy
    }

    /// Flips a bit.
    pub(crate) fn flip(&self, at: usize, bit: u32) {
        let _ = self.words.update(at, |word| Some(word ^ 1 << bit));
    }

    /// Returns the ledger as the process in `slot` sees it.
    pub(crate) fn process(self: &Arc<Self>, slot: usize) -> Book<View> {
        self.dead[slot].store(false, SeqCst);
        Book::new(View::new(self, slot), LAYOUT, slot)
    }

    pub(crate) fn kill(&self, slot: usize) {
        self.dead[slot].store(true, SeqCst);
    }

    pub(crate) fn load(&self, at: usize) -> u64 {
        self.words.load(at)
    }

    /// Returns the value of a sealed word.
    pub(crate) fn value(&self, at: usize) -> u64 {
        unsealed(self.load(at)).unwrap_or_else(|| panic!("{} is damaged", LAYOUT.name_of(at)))
    }

    /// Returns everything that changes behind the lock and has a meaning: the figures of all nodes, the queue, the header, the
    /// last refusals and what processes use.
    pub(crate) fn state(&self) -> Vec<u64> {
        let mut state = vec![self.value(header::WAITING), self.value(header::UNMANAGED), self.value(header::TICKET)];
        for at in 0..LAYOUT.nodes {
            let word = |field| self.value(LAYOUT.node_at(at) + field);
            if word(node::KIND) != FREE {
                let raw = |field| self.load(LAYOUT.node_at(at) + field);
                let returned = unsealed(raw(node::RETURNED).wrapping_sub(raw(node::SETTLED))).expect("whole");
                let left = Book::new(ReadOnly(self), LAYOUT, 0).peek_balance(at) + returned;
                let fields = [
                    node::KIND,
                    node::PARENT,
                    node::OWNER,
                    node::TOTAL,
                    node::GUARANTEE,
                    node::CEILING,
                    node::GENERATION,
                ];
                state.extend([at as u64, left].into_iter().chain(fields.map(word)));
            }
        }
        state.push(self.value(LAYOUT.counters_at() + counter::REFUSALS));
        state.extend((LAYOUT.refusal_at(0)..LAYOUT.refusal_at(LAYOUT.refusals)).map(|at| self.value(at)));
        for at in 0..LAYOUT.processes {
            state.extend((process::PUBLISHED..process::WORDS).map(|field| self.value(LAYOUT.process_at(at) + field)));
        }
        for at in 0..LAYOUT.waiters {
            let word = |field| self.value(LAYOUT.waiter_at(at) + field);
            if word(waiter::STATE) & waiter::STATES != waiter::FREE {
                state.extend((0..waiter::WORDS).map(word));
            }
        }
        state
    }

    /// Returns the number of frozen nodes.
    pub(crate) fn frozen(&self) -> usize {
        (0..LAYOUT.nodes).filter(|&at| self.load(LAYOUT.node_at(at) + node::BALANCE) >> 63 != 0).count()
    }

    /// Returns the sum of the totals of a slot's nodes, counting children of reservations once.
    pub(crate) fn total_of_slot(&self, slot: usize) -> u64 {
        let word = |at, field| self.value(LAYOUT.node_at(at) + field);
        let mine = (0..LAYOUT.nodes).filter(|&at| {
            matches!(word(at, node::KIND), ACCOUNT | RESERVATION) && word(at, node::OWNER) == slot as u64 + 1
        });
        mine.map(|at| word(at, node::TOTAL)).sum()
    }
}

/// A view of the words that only reads them.
struct ReadOnly<'a>(&'a Memory);

impl Words for ReadOnly<'_> {
    fn load(&self, at: usize) -> u64 {
        self.0.load(at)
    }
    fn store(&self, _: usize, _: u64) {
        unreachable!("nothing is written");
    }
    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> Result<u64, u64> {
        unreachable!("nothing is written");
    }
    fn update(&self, _: usize, _: impl Fn(u64) -> Option<u64>) -> bool {
        unreachable!("nothing is written");
    }
    fn attempt(&self, _: usize, _: impl FnOnce(u64) -> Option<u64>) -> bool {
        unreachable!("nothing is written");
    }
    fn fetch_add(&self, _: usize, _: u64) -> u64 {
        unreachable!("nothing is written");
    }
    fn wait(&self, _: usize, _: u64, _: Option<Duration>) {}
    fn wake(&self, _: usize, _: u32) {}
    fn alive(&self, _: usize) -> bool {
        true
    }
}

/// A hook that runs just before a write, with the number of the write.
pub(crate) type Hook = Box<dyn FnMut(u64) + Send>;

/// States, each with the number of writes that led there.
pub(crate) type Steps = Vec<(u64, Vec<u64>)>;

/// The payload of the panic that ends a killed process: not a failure.
pub(crate) struct KillMarker;

/// One process's view of the words. It can be made to die before its nth write.
pub(crate) struct View {
    memory: Arc<Memory>,
    slot: usize,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) dies_at: AtomicU64,
    /// The most changes a step made.
    pub(crate) longest_step: AtomicU64,
    died: AtomicBool,
    /// Runs just before every write.
    pub(crate) hook: Mutex<Option<Hook>>,
    /// The state after each finished step, with the number of writes up to there.
    pub(crate) steps: Mutex<Option<Steps>>,
}

impl View {
    fn new(memory: &Arc<Memory>, slot: usize) -> Self {
        Self {
            memory: Arc::clone(memory),
            slot,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            dies_at: AtomicU64::new(u64::MAX),
            longest_step: AtomicU64::new(0),
            died: AtomicBool::new(false),
            hook: Mutex::new(None),
            steps: Mutex::new(None),
        }
    }

    /// Returns whether a write still takes effect. At the write where the process dies it unwinds.
    fn may_write(&self) -> bool {
        if self.died.load(SeqCst) {
            return false;
        }
        let number = self.writes.fetch_add(1, SeqCst);
        if let Some(hook) = self.hook.lock().unwrap().as_mut() {
            hook(number);
        }
        if number == self.dies_at.load(SeqCst) {
            if let Backing::File(_) = self.memory.words {
                std::process::abort();
            }
            self.died.store(true, SeqCst);
            self.memory.kill(self.slot);
            panic_any(KillMarker);
        }
        true
    }

    fn note_step(&self) {
        if let Some(steps) = self.steps.lock().unwrap().as_mut() {
            steps.push((self.writes.load(SeqCst), self.memory.state()));
        }
    }
}

impl Words for View {
    fn load(&self, at: usize) -> u64 {
        self.reads.fetch_add(1, SeqCst);
        // To a dead process nothing is locked, so that its destructors come to an end.
        if at == header::LOCK && self.died.load(SeqCst) { 0 } else { self.memory.load(at) }
    }
    fn store(&self, at: usize, value: u64) {
        if self.may_write() {
            let _ = self.memory.words.update(at, |_| Some(value));
            if at == header::JOURNAL {
                self.longest_step.fetch_max(unsealed(value).unwrap_or(u64::MAX), SeqCst);
                if value == 0 {
                    self.note_step();
                }
            }
        }
    }
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64> {
        if !self.may_write() {
            return Ok(current);
        }
        self.memory.words.update(at, |word| (word == current).then_some(new))
    }
    fn update(&self, at: usize, change: impl Fn(u64) -> Option<u64>) -> bool {
        update_with(self, at, change)
    }
    fn attempt(&self, at: usize, change: impl FnOnce(u64) -> Option<u64>) -> bool {
        attempt_with(self, at, change)
    }
    fn fetch_add(&self, at: usize, value: u64) -> u64 {
        if !self.may_write() {
            return 0;
        }
        let old = self.memory.words.update(at, |word| Some(word.wrapping_add(value)));
        self.note_step();
        old.unwrap_or(0)
    }
    fn wait(&self, _: usize, _: u64, _: Option<Duration>) {
        std::thread::yield_now();
    }
    fn wake(&self, _: usize, _: u32) {}
    fn alive(&self, slot: usize) -> bool {
        self.memory.dead.get(slot).is_some_and(|dead| !dead.load(SeqCst))
    }
}

/// Runs what may die. Returns whether it survived.
pub(crate) fn survives(run: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(()) => true,
        Err(reason) if reason.is::<KillMarker>() => false,
        Err(reason) => std::panic::resume_unwind(reason),
    }
}

/// Keeps the panics of killed processes out of what a failing test prints.
pub(crate) fn silence_kill_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<KillMarker>() {
                usual(info);
            }
        }));
    });
}

pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Registers this book's process in its slot.
pub(crate) fn register(book: &Book<View>) {
    let mut locked = book.lock_as_newcomer(LOCK_TIMEOUT).unwrap();
    locked.register_process(100 + book.slot() as u64, "test", 0);
}

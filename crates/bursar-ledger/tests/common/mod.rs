//! Several processes in one: a ledger's words in memory or in a file, views of it that can die, and what they leave
//! behind.

#![allow(dead_code, reason = "each test uses part of it")]

pub(crate) mod scene;

use bursar_ledger::book::{ACCOUNT, Book, FREE, RESERVATION};
use bursar_ledger::format::{Layout, STEP_MAX, Words, header, node, unsealed, waiter};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How large the tables of these ledgers are.
pub(crate) const LAYOUT: Layout = Layout { journal: STEP_MAX, places: 8, waiters: 8, nodes: 48 };

/// The words that several processes share.
pub(crate) struct Memory {
    words: Backing,
    dead: Vec<AtomicBool>,
}

enum Backing {
    Heap(Vec<AtomicU64>),
    /// One process at a time.
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
        memory.process(0).found(total);
        memory
    }

    fn over(words: Backing) -> Arc<Self> {
        Arc::new(Self { words, dead: (0..LAYOUT.places).map(|_| AtomicBool::new(false)).collect() })
    }

    /// The words in a file that [`Self::write_to`] wrote.
    pub(crate) fn in_file(path: &Path) -> Arc<Self> {
        Self::over(Backing::File(File::options().read(true).write(true).open(path).unwrap()))
    }

    pub(crate) fn write_to(&self, path: &Path) {
        let bytes: Vec<u8> = (0..LAYOUT.words()).flat_map(|at| self.load(at).to_le_bytes()).collect();
        std::fs::write(path, bytes).unwrap();
    }

    /// The same words, to go another way with.
    pub(crate) fn copied(&self) -> Arc<Self> {
        let copy = Self::over(Backing::Heap((0..LAYOUT.words()).map(|at| AtomicU64::new(self.load(at))).collect()));
        for (dead, copied) in self.dead.iter().zip(&copy.dead) {
            copied.store(dead.load(SeqCst), SeqCst);
        }
        copy
    }

    /// Changes a bit, as radiation does.
    pub(crate) fn flip(&self, at: usize, bit: u32) {
        let _ = self.words.update(at, |word| Some(word ^ 1 << bit));
    }

    /// The ledger as the process at `place` sees it.
    pub(crate) fn process(self: &Arc<Self>, place: usize) -> Book<View> {
        self.dead[place].store(false, SeqCst);
        Book::new(View::new(self, place), LAYOUT, place)
    }

    pub(crate) fn kill(&self, place: usize) {
        self.dead[place].store(true, SeqCst);
    }

    pub(crate) fn load(&self, at: usize) -> u64 {
        self.words.load(at)
    }

    /// The value of a sealed word.
    pub(crate) fn value(&self, at: usize) -> u64 {
        unsealed(self.load(at)).unwrap_or_else(|| panic!("{} is damaged", LAYOUT.name_of(at)))
    }

    /// Everything that means something: nodes with what they have and have left, the queue, and the figures of all.
    pub(crate) fn state(&self) -> Vec<u64> {
        let mut state = vec![self.value(header::WAITING), self.value(header::UNMANAGED), self.value(header::TICKET)];
        for at in 0..LAYOUT.nodes {
            let word = |field| self.value(LAYOUT.node_at(at) + field);
            if word(node::KIND) != FREE {
                let raw = |field| self.load(LAYOUT.node_at(at) + field);
                let returned = unsealed(raw(node::RETURNED).wrapping_sub(raw(node::FOLDED))).expect("whole");
                let left = Book::new(Peeking(self), LAYOUT, 0).peek_left(at) + returned;
                let fields =
                    [node::KIND, node::PARENT, node::OWNER, node::TOTAL, node::GUARANTEE, node::CEILING, node::LIFE];
                state.extend([at as u64, left].into_iter().chain(fields.map(word)));
            }
        }
        for at in 0..LAYOUT.waiters {
            let word = |field| self.value(LAYOUT.waiter_at(at) + field);
            if word(waiter::STATE) & waiter::STATES != waiter::FREE {
                state.extend((0..waiter::WORDS).map(word));
            }
        }
        state
    }

    /// How many nodes are frozen.
    pub(crate) fn frozen(&self) -> usize {
        (0..LAYOUT.nodes).filter(|&at| self.load(LAYOUT.node_at(at) + node::LEFT) >> 63 != 0).count()
    }

    /// What all the nodes of a place have together, reservations' parts not counted twice.
    pub(crate) fn of_place(&self, place: usize) -> u64 {
        let word = |at, field| self.value(LAYOUT.node_at(at) + field);
        let mine = (0..LAYOUT.nodes).filter(|&at| {
            matches!(word(at, node::KIND), ACCOUNT | RESERVATION) && word(at, node::OWNER) == place as u64 + 1
        });
        mine.map(|at| word(at, node::TOTAL)).sum()
    }
}

/// Nobody's way to the words: only to read them.
struct Peeking<'a>(&'a Memory);

impl Words for Peeking<'_> {
    fn load(&self, at: usize) -> u64 {
        self.0.load(at)
    }
    fn store(&self, _: usize, _: u64) {
        unreachable!("nothing is written");
    }
    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> Result<u64, u64> {
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

/// What others do, told which write it is just before.
pub(crate) type Meanwhile = Box<dyn FnMut(u64) + Send>;

/// States, each with the number of writes that led there.
pub(crate) type Steps = Vec<(u64, Vec<u64>)>;

/// Why a process ended here: not a failure.
pub(crate) struct Killed;

/// One process's way to the words. It can be told to die before its nth write.
pub(crate) struct View {
    memory: Arc<Memory>,
    place: usize,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) dies_at: AtomicU64,
    /// The most changes a step made.
    pub(crate) longest_step: AtomicU64,
    died: AtomicBool,
    /// What happens elsewhere just before a write, by its number.
    pub(crate) meanwhile: Mutex<Option<Meanwhile>>,
    /// The state after each finished step, with the number of writes up to there.
    pub(crate) steps: Mutex<Option<Steps>>,
}

impl View {
    fn new(memory: &Arc<Memory>, place: usize) -> Self {
        Self {
            memory: Arc::clone(memory),
            place,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            dies_at: AtomicU64::new(u64::MAX),
            longest_step: AtomicU64::new(0),
            died: AtomicBool::new(false),
            meanwhile: Mutex::new(None),
            steps: Mutex::new(None),
        }
    }

    /// Whether a write still happens; the one at which the process dies unwinds out of it.
    fn may_write(&self) -> bool {
        if self.died.load(SeqCst) {
            return false;
        }
        let number = self.writes.fetch_add(1, SeqCst);
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().as_mut() {
            meanwhile(number);
        }
        if number == self.dies_at.load(SeqCst) {
            if let Backing::File(_) = self.memory.words {
                std::process::abort();
            }
            self.died.store(true, SeqCst);
            self.memory.kill(self.place);
            panic_any(Killed);
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
        // To the dead nothing is locked, so that what unwinds out of them comes to an end.
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
    fn alive(&self, place: usize) -> bool {
        self.memory.dead.get(place).is_some_and(|dead| !dead.load(SeqCst))
    }
}

/// Runs what may die; answers whether it lived.
pub(crate) fn survives(run: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(()) => true,
        Err(reason) if reason.is::<Killed>() => false,
        Err(reason) => std::panic::resume_unwind(reason),
    }
}

/// Keeps deaths out of what a failing test prints.
pub(crate) fn die_quietly() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Killed>() {
                usual(info);
            }
        }));
    });
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Takes the place of this book's process.
pub(crate) fn arrive(book: &Book<View>) {
    let mut desk = book.lock_as_newcomer(PATIENCE).unwrap();
    desk.arrive(100 + book.place() as u64, "test", 0);
}

//! Requests that one process makes of another: to put its memory to sleep, or to wake it.
//!
//! A process has one request at a time, in its own row of the table of processes. Whoever asks writes it there and wakes the
//! process; the process takes it, does what it says, writes how that ended, and wakes whoever asked. All of it happens behind
//! the lock, so that a crash of either leaves whole requests.
//!
//! A request is withdrawn when who asked has ended or does not wait any more. One that was not taken is then gone; of one
//! that was, the process is told, and ends early what it can. Where the lock is not available a note says so (`notes.rs`).

use super::{Book, LockedBook};
use crate::format::{Words, decode_name, encode_name, process, sealed, unsealed};

const STATES: u64 = 3;
const NONE: u64 = 0;
const ASKED: u64 = 1;
const TAKEN: u64 = 2;
const DONE: u64 = 3;
const WITHDRAWN: u64 = 1 << 2;
const WAKE: u64 = 1 << 3;
const KEEP_PLACE: u64 = 1 << 4;
const NUMBER: u64 = 1 << 8;

const _: () =
    assert!(WITHDRAWN == 4 && WAKE == 8 && KEEP_PLACE == 16 && NUMBER == 256, "as format/layout/process.rs draws it");

/// A request to a process about its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRequest {
    /// Set where the memory is to wake; otherwise it is to sleep.
    pub wake: bool,
    /// Set where what sleeps stays charged.
    pub keep_place: bool,
    /// The time that the request may wait, in milliseconds.
    pub patience_ms: u64,
}

/// The identity of a request that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// The slot of the process that was asked.
    pub slot: usize,
    pub(super) number: u64,
}

/// The end of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestEnd {
    /// The kind of end, for the handles to interpret.
    pub outcome: u64,
    /// Its figures.
    pub figures: [u64; process::FIGURES_MAX],
    /// The reason of a failure; what does not fit is cut off.
    pub text: String,
}

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// The process has not looked at it.
    Asked,
    /// The process is doing what it says.
    Taken,
    /// It has ended.
    Ended(RequestEnd),
    /// It was withdrawn before the process looked at it.
    Withdrawn,
    /// It has ended, and another was made before anybody read how.
    Overtaken,
    /// The process has ended, or left the ledger.
    Gone,
}

/// The reasons for which no request can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskRefusal {
    /// No process has the slot.
    Gone,
    /// The process takes no requests.
    NotListening,
    /// Another request is under way.
    Busy,
    /// Another request has ended, and who made it has not read how.
    Unread,
}

/// Returns the word of who asks, from its slot and the state of that slot.
const fn asker_word(slot: usize, state: u64) -> u64 {
    (slot as u64 + 1) | (state & ((1 << 40) - 1)) << 16
}

impl<W: Words> LockedBook<'_, W> {
    fn request_at(&self, slot: usize) -> usize {
        self.book.layout.process_at(slot) + process::REQUEST
    }

    fn process_state(&self, slot: usize) -> u64 {
        self.get(self.book.layout.process_at(slot) + process::STATE)
    }

    fn is_alive(&self, slot: usize) -> bool {
        slot == self.book.slot || self.book.words.alive(slot)
    }

    /// Returns whether a living process has a slot.
    fn is_there(&self, slot: usize) -> bool {
        self.process_state(slot) & process::OCCUPIED != 0 && self.is_alive(slot)
    }

    fn asker_of(&self, slot: usize) -> u64 {
        self.get(self.book.layout.process_at(slot) + process::ASKER)
    }

    /// Returns whether who asked the process in a slot is alive.
    fn has_living_asker(&self, slot: usize) -> bool {
        let asker = self.asker_of(slot);
        let Some(of) = ((asker & 0xffff) as usize).checked_sub(1).filter(|of| *of < self.book.layout.processes) else {
            return false;
        };
        let state = self.process_state(of);
        state & process::OCCUPIED != 0 && asker_word(of, state) == asker && self.is_alive(of)
    }

    /// Returns the slots of the living processes of a number, and those of them that take requests.
    pub fn processes_of(&self, pid: u64) -> (Vec<usize>, Vec<usize>) {
        let field = |slot: usize, field: usize| self.get(self.book.layout.process_at(slot) + field);
        let is_meant = |slot: &usize| {
            field(*slot, process::STATE) & process::OCCUPIED != 0
                && field(*slot, process::PID) == pid
                && self.is_alive(*slot)
        };
        let all: Vec<usize> = self.slots().filter(is_meant).collect();
        let listening = all.iter().copied().filter(|slot| field(*slot, process::LISTENS) != 0).collect();
        (all, listening)
    }

    /// Makes a request of the process in a slot, and wakes the process. With `overtakes` also where it is not known how the last
    /// one ended, which its asker may never read: it may be stopped.
    pub fn ask(&mut self, slot: usize, request: ProcessRequest, overtakes: bool) -> Result<RequestKey, AskRefusal> {
        if slot >= self.book.layout.processes || !self.is_there(slot) {
            return Err(AskRefusal::Gone);
        }
        let row = self.book.layout.process_at(slot);
        if self.get(row + process::LISTENS) == 0 {
            return Err(AskRefusal::NotListening);
        }
        let word = self.get(row + process::REQUEST);
        match word & STATES {
            TAKEN => return Err(AskRefusal::Busy),
            ASKED if self.has_living_asker(slot) => return Err(AskRefusal::Busy),
            DONE if word & WITHDRAWN == 0 && !overtakes && self.has_living_asker(slot) => {
                return Err(AskRefusal::Unread);
            }
            _ => {}
        }
        let number = (word / NUMBER).wrapping_add(1) & ((1 << 48) - 1);
        let wake = if request.wake { WAKE } else { 0 };
        let keep_place = if request.keep_place { KEEP_PLACE } else { 0 };
        self.set(row + process::ASKER, asker_word(self.book.slot, self.process_state(self.book.slot)));
        self.set(row + process::PATIENCE, request.patience_ms.min(1 << 50));
        self.set(row + process::REQUEST, (number * NUMBER) | wake | keep_place | ASKED);
        self.finish();
        self.notify_process(slot);
        Ok(RequestKey { slot, number })
    }

    /// Takes the request that was made of this process, if there is one and who asked is alive.
    pub fn take_request(&mut self) -> Option<(RequestKey, ProcessRequest)> {
        let slot = self.book.slot;
        self.withdraw_unwanted(slot);
        let at = self.request_at(slot);
        let word = self.get(at);
        if word & STATES != ASKED {
            return None;
        }
        let is_wanted = self.has_living_asker(slot);
        self.set(at, word & !STATES | if is_wanted { TAKEN } else { NONE });
        let patience_ms = self.get(self.book.layout.process_at(slot) + process::PATIENCE);
        self.finish();
        self.wake_on_unlock(at);
        let request = ProcessRequest { wake: word & WAKE != 0, keep_place: word & KEEP_PLACE != 0, patience_ms };
        is_wanted.then_some((RequestKey { slot, number: word / NUMBER }, request))
    }

    /// Enters how a request that this process has taken ended, and wakes whoever asked.
    pub fn end_request(&mut self, key: RequestKey, end: &RequestEnd) {
        let (row, at) = (self.book.layout.process_at(self.book.slot), self.request_at(self.book.slot));
        let word = self.get(at);
        if word / NUMBER != key.number || word & STATES != TAKEN {
            return;
        }
        self.set(row + process::OUTCOME, end.outcome);
        for (field, &figure) in end.figures.iter().enumerate() {
            self.set(row + process::FIGURES + field, figure);
        }
        for (field, letters) in encode_name::<{ process::TEXT_WORDS }>(&end.text).into_iter().enumerate() {
            self.set(row + process::TEXT + field, letters);
        }
        self.set(at, word & !STATES | DONE);
        self.finish();
        self.wake_on_unlock(at);
    }

    /// Returns how a request stands; once it has ended, another may be made.
    pub fn read_request(&mut self, key: RequestKey) -> RequestState {
        let state = self.request_state(key);
        if matches!(state, RequestState::Ended(_)) {
            self.withdraw_from(key.slot);
        }
        state
    }

    fn request_state(&self, key: RequestKey) -> RequestState {
        let (row, word) = (self.book.layout.process_at(key.slot), self.get(self.request_at(key.slot)));
        match word & STATES {
            NONE | ASKED | TAKEN if !self.is_there(key.slot) => RequestState::Gone,
            _ if word / NUMBER != key.number => RequestState::Overtaken,
            NONE => RequestState::Withdrawn,
            ASKED => RequestState::Asked,
            TAKEN => RequestState::Taken,
            _ => RequestState::Ended(RequestEnd {
                outcome: self.get(row + process::OUTCOME),
                figures: std::array::from_fn(|field| self.get(row + process::FIGURES + field)),
                text: decode_name((0..process::TEXT_WORDS).map(|word| self.get(row + process::TEXT + word))),
            }),
        }
    }

    /// Withdraws a request. Returns whether the process had not taken it.
    pub fn withdraw_request(&mut self, key: RequestKey) -> bool {
        let word = self.get(self.request_at(key.slot));
        let is_current = word / NUMBER == key.number;
        if is_current {
            self.withdraw_from(key.slot);
        }
        is_current && word & STATES == ASKED
    }

    /// Withdraws the request that was made of the process in a slot, if a note says that nobody waits for it.
    pub(super) fn withdraw_unwanted(&mut self, slot: usize) {
        let (word, row) = (self.get(self.request_at(slot)), self.book.layout.process_at(slot));
        if word & WITHDRAWN == 0 && self.get(row + process::UNWANTED) == word / NUMBER {
            self.withdraw_from(slot);
        }
    }

    /// Withdraws the request that was made of the process in a slot.
    fn withdraw_from(&mut self, slot: usize) {
        let at = self.request_at(slot);
        let word = self.get(at);
        match word & STATES {
            ASKED => self.set(at, word & !STATES),
            TAKEN if word & WITHDRAWN == 0 => self.set(at, word | WITHDRAWN),
            DONE if word & WITHDRAWN == 0 => {
                // The process that was asked has nothing to do any more, and nobody sleeps on the word.
                self.set(at, word | WITHDRAWN);
                return self.finish();
            }
            _ => return,
        }
        self.finish();
        self.wake_on_unlock(at);
        self.notify_process(slot);
    }

    /// Ends what the process in a slot asked of others, and what others asked of it: it is leaving.
    pub(super) fn end_requests_of(&mut self, slot: usize) {
        let asker = asker_word(slot, self.process_state(slot));
        for other in self.slots() {
            let is_under_way = matches!(self.get(self.request_at(other)) & STATES, ASKED | TAKEN);
            if is_under_way && other != slot && self.asker_of(other) == asker {
                self.withdraw_from(other);
            }
        }
        let (at, listens) = (self.request_at(slot), self.book.layout.process_at(slot) + process::LISTENS);
        let word = self.get(at);
        self.set(listens, 0);
        self.set(at, word & !(STATES | WITHDRAWN));
        self.finish();
        self.wake_on_unlock(at);
    }
}

impl<W: Words> Book<W> {
    /// Says whether this process takes requests of others. Needs no lock, since only its process writes the word while it is
    /// alive.
    pub fn set_listens(&self, listens: bool) {
        self.words.store(self.layout.process_at(self.slot) + process::LISTENS, sealed(listens.into()));
    }

    /// Returns whether a request was made of this process that it has not taken, read without the lock.
    pub fn is_asked(&self) -> bool {
        self.peek_process(self.slot, process::REQUEST) & STATES == ASKED
    }

    /// Returns whether a request that this process has taken was withdrawn, read without the lock.
    pub fn is_withdrawn(&self, key: RequestKey) -> bool {
        let word = self.peek_process(key.slot, process::REQUEST);
        let is_unwanted = self.peek_process(key.slot, process::UNWANTED) == key.number;
        is_unwanted || word / NUMBER != key.number || word & WITHDRAWN != 0
    }

    /// Returns the word that whoever made a request sleeps on, and its contents.
    pub fn request_word(&self, key: RequestKey) -> (usize, u64) {
        let at = self.layout.process_at(key.slot) + process::REQUEST;
        (at, self.words.load(at))
    }

    /// Returns whether a request is as it was when it was made or taken, from the contents of its word.
    pub fn is_under_way(key: RequestKey, word: u64) -> bool {
        unsealed(word).is_some_and(|word| word / NUMBER == key.number && matches!(word & STATES, ASKED | TAKEN))
    }
}

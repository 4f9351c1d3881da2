//! Where things stand in a ledger: a header, the journal, and three tables, all of 64-bit words.
//!
//! Up to the header's checksum the words never change. Of the others nearly all are sealed, so that a bit which changes by
//! itself is noticed (`book/seal.rs`). `LEFT` is sealed together with its flags (`book/left.rs`), of `RETURNED` and `FOLDED`
//! the difference is, entries of the journal cover what they keep (`book/journal.rs`), and `BELL` decides nothing.

/// The first word of every ledger: "BURSARLG" in memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"BURSARLG");
/// Which arrangement of words this is. Another one is refused, never guessed at.
pub const VERSION: u64 = 2;

/// The words of the header. Those up to [`CHECKSUM`](header::CHECKSUM) never change once the ledger is made.
pub mod header {
    /// [`MAGIC`](super::MAGIC).
    pub const MAGIC: usize = 0;
    /// [`VERSION`](super::VERSION).
    pub const VERSION: usize = 1;
    /// How large the tables are.
    pub const SHAPE: usize = 2;
    /// The identity of the device, two words.
    pub const UUID: usize = 3;
    /// All the device has.
    pub const TOTAL: usize = 5;
    /// What the device is called, [`NAME_WORDS`] words.
    pub const NAME: usize = 6;
    /// How many words a device's name has.
    pub const NAME_WORDS: usize = 8;
    /// Over the words before it.
    pub const CHECKSUM: usize = 15;
    /// Who is changing the ledger: see `book/lock.rs`.
    pub const LOCK: usize = 16;
    /// How many nodes were ever in use at once: a bound for searches.
    pub const NODES_HIGH: usize = 24;
    /// How many places were ever in use at once.
    pub const PLACES_HIGH: usize = 25;
    /// How many requests wait.
    pub const WAITING: usize = 26;
    /// The number the next request in the queue gets.
    pub const TICKET: usize = 27;
    /// What is used of the device outside this ledger, as last measured.
    pub const UNMANAGED: usize = 28;
    /// One more than the first word that was found damaged: whoever takes the lock after that finds the file damaged.
    pub const DAMAGED: usize = 29;
    /// How many entries of the journal count.
    pub const JOURNAL: usize = 31;
    /// How many words the header has.
    pub const WORDS: usize = 32;
}

/// The words of a process's entry.
pub mod process {
    /// Which life of this place it is, and [`TAKEN`] while somebody has it.
    pub const STATE: usize = 0;
    /// The bit of [`STATE`] that says so.
    pub const TAKEN: u64 = 1 << 55;
    /// Its number, as it sees itself; for people only.
    pub const PID: usize = 1;
    /// When it came, in milliseconds since 1970.
    pub const SINCE: usize = 2;
    /// Counted up when there is something for it to look at; it sleeps on this word.
    pub const BELL: usize = 3;
    /// How many bytes it is asked to give back.
    pub const WANTED: usize = 4;
    /// A note, written without the lock: the life of this place whose handles are all gone. See `book/notes.rs`.
    pub const DEPARTED: usize = 5;
    /// What it is called, [`NAME_WORDS`] words.
    pub const NAME: usize = 8;
    /// How many words its name has, of [`LETTERS`](super::LETTERS) bytes.
    pub const NAME_WORDS: usize = 4;
    /// How many words an entry has.
    pub const WORDS: usize = 16;
}

/// The words of a waiting request.
pub mod waiter {
    /// [`FREE`], [`WAITING`] or [`GRANTED`], with a count of lives above; its owner sleeps on this word.
    pub const STATE: usize = 0;
    /// Nobody's.
    pub const FREE: u64 = 0;
    /// In the queue.
    pub const WAITING: u64 = 1;
    /// Served: the reservation is [`NODE`].
    pub const GRANTED: u64 = 2;
    /// The bits of [`STATE`] that say which.
    pub const STATES: u64 = 3;
    /// The process that asks.
    pub const OWNER: usize = 1;
    /// The tenant it asks for.
    pub const TENANT: usize = 2;
    /// How much it asks for.
    pub const BYTES: usize = 3;
    /// How urgent it is.
    pub const PRIORITY: usize = 4;
    /// When it came, as a number.
    pub const TICKET: usize = 5;
    /// What it was given.
    pub const NODE: usize = 6;
    /// When it came, in milliseconds since 1970.
    pub const SINCE: usize = 7;
    /// A note, written without the lock: the life of this entry that nobody waits for any more. See `book/notes.rs`.
    pub const ABANDONED: usize = 8;
    /// How many words an entry has.
    pub const WORDS: usize = 10;
}

/// The words of a node:
///
/// ```text
///      0      1          2        3       4           5         6   7
///      LEFT   RETURNED   CLOSED   TOTAL   GUARANTEE   CEILING   –   –
///      8      9          10       11      12          13 … 19
///      KIND   PARENT     OWNER    FOLDED  LIFE        NAME
/// ```
///
/// The owner changes the first three without the lock, and reads the fourth. Twenty words begin every other node in the
/// middle of a line of memory: what shares a line with these four is what only tenants have, so that who goes over the table
/// behind the lock does not take the line from the owner.
pub mod node {
    /// What can be charged at once, with flags and the node's life above: see `book/left.rs`.
    pub const LEFT: usize = 0;
    /// All that was ever released while the lock was not to be had.
    pub const RETURNED: usize = 1;
    /// A note, written without the lock: one more than the life of this node whose handle is gone. See `book/notes.rs`.
    pub const CLOSED: usize = 2;
    /// What it has of its parent: left, held and given to its own parts.
    pub const TOTAL: usize = 3;
    /// What a tenant may always have; of the device, all there is.
    pub const GUARANTEE: usize = 4;
    /// What a tenant, or the whole device, may have at most.
    pub const CEILING: usize = 5;
    /// What it is: see `book/tree.rs`.
    pub const KIND: usize = 8;
    /// The node it is part of.
    pub const PARENT: usize = 9;
    /// The process it belongs to; 0 where it belongs to none.
    pub const OWNER: usize = 10;
    /// How much of `RETURNED` was put back to `LEFT`.
    pub const FOLDED: usize = 11;
    /// Which life of this node it is.
    pub const LIFE: usize = 12;
    /// What a tenant is called, [`NAME_WORDS`] words.
    pub const NAME: usize = 13;
    /// How many words a tenant's name has, of [`LETTERS`](super::LETTERS) bytes.
    pub const NAME_WORDS: usize = 7;
    /// How many words a node has.
    pub const WORDS: usize = 20;
}

/// The most changes a step makes: making a tenant is the longest, and no step goes over the tables.
pub const STEP_MAX: usize = 24;
/// Words that share a line of memory.
const LINE: usize = 8;

/// How large the tables are. Kept in the header, and the same for every ledger of a version; models use small ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How many changes one step may journal.
    pub journal: usize,
    /// How many processes there may be.
    pub places: usize,
    /// How many requests may wait.
    pub waiters: usize,
    /// How many accounts, tenants and reservations there may be.
    pub nodes: usize,
}

impl Layout {
    /// That of every ledger file: 256 KiB.
    pub const FILE: Self = Self { journal: STEP_MAX, places: 256, waiters: 256, nodes: 1301 };

    /// One for models: as few words as make sense.
    pub const SMALL: Self = Self { journal: STEP_MAX, places: 3, waiters: 3, nodes: 12 };

    /// As the header has it.
    pub const fn shape(self) -> u64 {
        (self.journal as u64) << 48 | (self.places as u64) << 32 | (self.waiters as u64) << 16 | self.nodes as u64
    }

    /// How many words a ledger has: a power of two.
    pub const fn words(self) -> usize {
        (self.nodes_at() + self.nodes * node::WORDS).next_power_of_two()
    }

    /// Which word of what `at` is, for people.
    pub fn name_of(self, at: usize) -> String {
        let tables = [
            (self.nodes_at(), node::WORDS, "account"),
            (self.waiter_at(0), waiter::WORDS, "waiting request"),
            (self.process_at(0), process::WORDS, "process"),
            (self.journal_at(0), 2, "change"),
        ];
        match tables.into_iter().find(|(begins, ..)| at >= *begins) {
            Some((begins, words, of)) => format!("word {} of {of} {}", (at - begins) % words, (at - begins) / words),
            None => format!("word {at} of the header"),
        }
    }

    /// The first word of an entry of the journal: an index, then the value that was there.
    pub const fn journal_at(self, entry: usize) -> usize {
        header::WORDS + 2 * entry
    }

    /// The first word of a process's entry.
    pub const fn process_at(self, place: usize) -> usize {
        header::WORDS + 2 * self.journal + place * process::WORDS
    }

    /// The first word of a waiting request.
    pub const fn waiter_at(self, entry: usize) -> usize {
        self.process_at(self.places) + entry * waiter::WORDS
    }

    const fn nodes_at(self) -> usize {
        self.waiter_at(self.waiters).next_multiple_of(LINE)
    }

    /// The first word of a node.
    pub const fn node_at(self, node: usize) -> usize {
        self.nodes_at() + node * node::WORDS
    }
}

const _: () = assert!(Layout::FILE.words() == 1 << 15, "a ledger file has 256 KiB");
const _: () = assert!(Layout::FILE.node_at(Layout::FILE.nodes) <= 1 << 15, "the tables fit");

/// How many bytes of text a sealed word has.
pub const LETTERS: usize = 7;

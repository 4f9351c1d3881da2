//! The layout of a ledger file, format version 3.
//!
//! A ledger file has 262,144 bytes: 32,768 words of 64 bits, little-endian, mapped into every process that has the ledger
//! open. It consists of a header, the undo journal and three tables with rows of a fixed size. Rows are reused; nothing
//! moves and nothing grows.
//!
//! ```text
//!   bytes              words             contents
//!        0 …     255       0 …    31     header
//!      256 …     639      32 …    79     journal                24 entries of  2 words
//!      640 …  33,407      80 …  4,175    table of processes    256 rows    of 16 words
//!   33,408 …  53,887   4,176 …  6,735    queue                 256 rows    of 10 words
//!   53,888 … 262,047   6,736 … 32,755    table of nodes      1,301 rows    of 20 words
//!  262,048 … 262,143  32,756 … 32,767    unused
//! ```
//!
//! The table of nodes begins at a cache line (64 bytes). A private ledger has the same words in anonymous memory.
//!
//! # Header
//!
//! ```text
//!  byte  word  field            stored    contents
//!     0     0  MAGIC            plain     "BURSARLG"
//!     8     1  VERSION          plain     3
//!    16     2  SHAPE            plain     journal entries << 48 | processes << 32 | queue rows << 16 | nodes
//!    24     3  UUID             plain     the device's UUID, two words: its first 8 bytes as a big-endian number, then the rest
//!    40     5  TOTAL            plain     all of the device's memory, in bytes
//!    48     6  NAME             plain     the device's name in UTF-8, 8 bytes a word, padded with zeros: 8 words
//!   112    14  –                          0
//!   120    15  CHECKSUM         plain     FNV-1a of bytes 0 … 119
//!   ------------------------------------- the words above never change once the file exists
//!   128    16  LOCK             sealed    the ledger's lock: see below
//!   136    17  –                          0
//!   192    24  NODES_HIGH       sealed    one more than the highest node ever used
//!   200    25  PROCESSES_HIGH   sealed    one more than the highest slot ever used
//!   208    26  WAITING          sealed    the number of requests that wait in the queue
//!   216    27  TICKET           sealed    the ticket of the next request
//!   224    28  UNMANAGED        sealed    bytes of the device used outside the ledger, as last measured
//!   232    29  DAMAGED          sealed    one more than the first word that was found damaged; 0 if none was
//!   240    30  –                          0
//!   248    31  JOURNAL          sealed    the number of valid journal entries
//! ```
//!
//! # Journal
//!
//! Entry `n` is at byte 256 + 16 `n`. Entries are valid while a step is being made; undoing them from last to first restores
//! the state before it (`book/journal.rs`).
//!
//! ```text
//!  byte  word  stored    contents
//!     0     0  sealed    bits 0 … 15: the index of a word; bits 16 … 55: 40 bits of a hash of its old value
//!     8     1  as it was the old value of that word
//! ```
//!
//! # Table of processes
//!
//! The row of slot `s` is at byte 640 + 128 `s`. While a process has the ledger open it holds an exclusive lock on byte
//! 2^40 + `s` of the file (there is no data), and it is alive as long as that lock is.
//!
//! ```text
//!  byte  word  field             stored    contents
//!     0     0  STATE             sealed    bits 0 … 54: generation of the slot; bit 55: OCCUPIED
//!     8     1  PID               sealed    process id in its own namespace, for people only
//!    16     2  SINCE             sealed    when it opened the ledger, in milliseconds since 1970
//!    24     3  EVENTS            plain     a counter that others increment to wake the process; it sleeps on this word
//!    32     4  RETURN_REQUESTED  sealed    bytes that it is asked to give back
//!    40     5  DEPARTED          sealed    note: the generation of the slot whose handles are all gone
//!    48     6  –                           0
//!    64     8  NAME              sealed    the name of the process, 7 bytes a word: 4 words
//!    96    12  –                           0
//! ```
//!
//! # Queue
//!
//! Row `q` is at byte 33,408 + 80 `q`.
//!
//! ```text
//!  byte  word  field      stored    contents
//!     0     0  STATE      sealed    bits 0 … 1: FREE 0, WAITING 1 or GRANTED 2; above: generation. Its owner sleeps on this word
//!     8     1  OWNER      sealed    one more than the slot of the process that asks
//!    16     2  TENANT     sealed    the node of the tenant it asks for
//!    24     3  BYTES      sealed    the bytes it asks for
//!    32     4  PRIORITY   sealed    0 … 255; larger is served first
//!    40     5  TICKET     sealed    its position among equals; smaller is served first
//!    48     6  NODE       sealed    the reservation it was granted
//!    56     7  SINCE      sealed    when it joined, in milliseconds since 1970
//!    64     8  ABANDONED  sealed    note: the generation of this row that nobody waits for any more
//!    72     9  KEPT       sealed    millionths of what all may have that must be free once it is granted
//! ```
//!
//! # Table of nodes
//!
//! Node `n` is at byte 53,888 + 160 `n`; node 0 is the device.
//!
//! ```text
//!  byte  word  field      stored    contents
//!     0     0  BALANCE    own seal  bytes that can be charged at once, two flags and the generation: see book/balance.rs
//!     8     1  RETURNED   product   all bytes ever released here without the lock
//!    16     2  CLOSED     sealed    note: one more than the generation of this node whose handle is gone
//!    24     3  TOTAL      sealed    bytes it has of its parent: its balance, what is held, and the totals of its children
//!    32     4  GUARANTEE  sealed    bytes a tenant may always have; of the device, all there are
//!    40     5  CEILING    sealed    bytes a tenant, or the whole device, may have at most
//!    48     6  –                    0
//!    64     8  KIND       sealed    FREE 0, ROOT 1, TENANT 2, ACCOUNT 3 or RESERVATION 4
//!    72     9  PARENT     sealed    the node it is a child of
//!    80    10  OWNER      sealed    one more than the slot of its process; 0 where it belongs to none
//!    88    11  SETTLED    product   the bytes of RETURNED that were added to BALANCE
//!    96    12  GENERATION sealed    how many nodes were in this row before
//!   104    13  NAME       sealed    the name of a tenant, or the label of a reservation, 7 bytes a word: 7 words
//! ```
//!
//! The owner of a node changes the first three words without the lock and reads the fourth. As a row has 20 words, every
//! other node begins in the middle of a cache line: the words that share a line with these four are those that only tenants
//! use, so a process that walks the table behind the lock does not take the line from the owner.
//!
//! # How values are stored
//!
//! - *plain*: the value itself.
//! - *sealed*: the value times 227. A word that is no multiple of 227, or is one of a value above 2^64 / 227, is damaged:
//!   no one or two bits that change turn one multiple into another (`format/seal.rs`). 0 is sealed as 0, so a new file is
//!   zeros but for the header and node 0.
//! - *product*: the value times 227 modulo 2^64. Such words only grow and may wrap; the difference of the two is sealed.
//! - *own seal*: a sealed value with generation and flags added (`book/balance.rs`).
//!
//! The lock's value, before it is sealed:
//!
//! ```text
//!  bit   0 … 15   one more than the slot of the process that has the lock; 0 when it is free
//!  bit  16        notes were left: whoever has the lock applies them before giving it back
//!  bit  17        somebody sleeps until the lock is given back
//!  bits 18 … 55   the number of times the lock was taken, modulo 2^38
//! ```

/// The first word of every ledger: "BURSARLG" in memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"BURSARLG");
/// The version of this layout. A file with another one is refused.
pub const VERSION: u64 = 3;

/// The words of the header. Those up to [`CHECKSUM`](header::CHECKSUM) never change once the ledger is made.
pub mod header {
    /// [`MAGIC`](super::MAGIC).
    pub const MAGIC: usize = 0;
    /// [`VERSION`](super::VERSION).
    pub const VERSION: usize = 1;
    /// The sizes of the tables: [`LedgerLayout::shape`](super::LedgerLayout::shape).
    pub const SHAPE: usize = 2;
    /// The UUID of the device, two words.
    pub const UUID: usize = 3;
    /// All of the device's memory.
    pub const TOTAL: usize = 5;
    /// The name of the device, [`NAME_WORDS`] words.
    pub const NAME: usize = 6;
    /// The number of words of a device's name.
    pub const NAME_WORDS: usize = 8;
    /// The checksum of the words before it.
    pub const CHECKSUM: usize = 15;
    /// The lock: see `book/lock.rs`.
    pub const LOCK: usize = 16;
    /// One more than the highest node ever used: a bound for searches.
    pub const NODES_HIGH: usize = 24;
    /// One more than the highest slot ever used: a bound for searches.
    pub const PROCESSES_HIGH: usize = 25;
    /// The number of requests that wait.
    pub const WAITING: usize = 26;
    /// The ticket of the next request in the queue.
    pub const TICKET: usize = 27;
    /// The bytes used of the device outside this ledger, as last measured.
    pub const UNMANAGED: usize = 28;
    /// One more than the first word that was found damaged: whoever takes the lock after that refuses the file.
    pub const DAMAGED: usize = 29;
    /// The number of valid journal entries.
    pub const JOURNAL: usize = 31;
    /// The number of words of the header.
    pub const WORDS: usize = 32;
}

/// The words of a row in the table of processes. The index of a row is the slot of its process.
pub mod process {
    /// The generation of the slot, and [`OCCUPIED`] while a process has it.
    pub const STATE: usize = 0;
    /// The bit of [`STATE`] that is set while a process has the slot.
    pub const OCCUPIED: u64 = 1 << 55;
    /// The process id in its own namespace; for people only.
    pub const PID: usize = 1;
    /// When the process opened the ledger, in milliseconds since 1970.
    pub const SINCE: usize = 2;
    /// A counter that others increment when there is something for the process to look at; it sleeps on this word.
    pub const EVENTS: usize = 3;
    /// The number of bytes the process is asked to give back.
    pub const RETURN_REQUESTED: usize = 4;
    /// A note, written without the lock: the generation of this slot whose handles are all gone. See `book/notes.rs`.
    pub const DEPARTED: usize = 5;
    /// The name of the process, [`NAME_WORDS`] words.
    pub const NAME: usize = 8;
    /// The number of words of its name, of [`LETTERS`](super::LETTERS) bytes.
    pub const NAME_WORDS: usize = 4;
    /// The number of words of a row.
    pub const WORDS: usize = 16;
}

/// The words of a row in the queue: a request that waits or was granted.
pub mod waiter {
    /// [`FREE`], [`WAITING`] or [`GRANTED`], with the generation above; the owner sleeps on this word.
    pub const STATE: usize = 0;
    /// The row is unused.
    pub const FREE: u64 = 0;
    /// The request waits.
    pub const WAITING: u64 = 1;
    /// The request was granted: the reservation is [`NODE`].
    pub const GRANTED: u64 = 2;
    /// The bits of [`STATE`] that hold one of these three.
    pub const STATES: u64 = 3;
    /// One more than the slot of the process that asks.
    pub const OWNER: usize = 1;
    /// The tenant it asks for.
    pub const TENANT: usize = 2;
    /// The bytes it asks for.
    pub const BYTES: usize = 3;
    /// The priority of the request.
    pub const PRIORITY: usize = 4;
    /// The position of the request among those of equal priority.
    pub const TICKET: usize = 5;
    /// The reservation it was granted.
    pub const NODE: usize = 6;
    /// When it joined the queue, in milliseconds since 1970.
    pub const SINCE: usize = 7;
    /// A note, written without the lock: the generation of this row that nobody waits for any more. See `book/notes.rs`.
    pub const ABANDONED: usize = 8;
    /// The millionths of what all may have that must be free once the request is granted.
    pub const KEPT: usize = 9;
    /// The number of words of a row.
    pub const WORDS: usize = 10;
}

/// The words of a node.
pub mod node {
    /// The bytes that can be charged at once, with flags and the generation above: see `book/balance.rs`.
    pub const BALANCE: usize = 0;
    /// All bytes ever released while the lock was not available.
    pub const RETURNED: usize = 1;
    /// A note, written without the lock: one more than the generation of this node whose handle is gone. See
    /// `book/notes.rs`.
    pub const CLOSED: usize = 2;
    /// The bytes it has of its parent: its balance, what is held, and the totals of its children.
    pub const TOTAL: usize = 3;
    /// The bytes a tenant may always have; of the device, all there are.
    pub const GUARANTEE: usize = 4;
    /// The bytes a tenant, or the whole device, may have at most.
    pub const CEILING: usize = 5;
    /// The kind of node: see `book/nodes.rs`.
    pub const KIND: usize = 8;
    /// The parent node.
    pub const PARENT: usize = 9;
    /// One more than the slot of the process it belongs to; 0 where it belongs to none.
    pub const OWNER: usize = 10;
    /// The bytes of `RETURNED` that were added to `BALANCE`.
    pub const SETTLED: usize = 11;
    /// The generation of this node: the number of nodes that were in its row before.
    pub const GENERATION: usize = 12;
    /// The name of a tenant, or the label of a reservation: [`NAME_WORDS`] words.
    pub const NAME: usize = 13;
    /// The number of words of a name or a label, of [`LETTERS`](super::LETTERS) bytes.
    pub const NAME_WORDS: usize = 7;
    /// The number of words of a row.
    pub const WORDS: usize = 20;
}

/// The most changes a step makes: granting a request is the longest, and no step walks a table.
pub const STEP_MAX: usize = 24;
/// The number of words in a cache line.
const LINE: usize = 8;
/// The number of words of a journal entry.
const JOURNAL_WORDS: usize = 2;
/// The number of bytes of text in a sealed word.
pub const LETTERS: usize = 7;

/// The sizes of the tables. They are in the header and are the same for every file of a version; models use small ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerLayout {
    /// The number of changes one step may journal.
    pub journal: usize,
    /// The number of processes there may be.
    pub processes: usize,
    /// The number of requests that may wait.
    pub waiters: usize,
    /// The number of accounts, tenants and reservations there may be.
    pub nodes: usize,
}

impl LedgerLayout {
    /// The layout of every ledger file: 256 KiB.
    pub const FILE: Self = Self { journal: STEP_MAX, processes: 256, waiters: 256, nodes: 1301 };

    /// A layout for models, with as few words as make sense.
    pub const SMALL: Self = Self { journal: STEP_MAX, processes: 3, waiters: 3, nodes: 12 };

    /// Returns the sizes as the header has them.
    pub const fn shape(self) -> u64 {
        (self.journal as u64) << 48 | (self.processes as u64) << 32 | (self.waiters as u64) << 16 | self.nodes as u64
    }

    /// Returns the number of words of a ledger: a power of two.
    pub const fn words(self) -> usize {
        (self.nodes_at() + self.nodes * node::WORDS).next_power_of_two()
    }

    /// Describes the word `at` to people: which word of which row it is.
    pub fn name_of(self, at: usize) -> String {
        let tables = [
            (self.nodes_at(), node::WORDS, "account"),
            (self.waiter_at(0), waiter::WORDS, "waiting request"),
            (self.process_at(0), process::WORDS, "process"),
            (self.journal_at(0), JOURNAL_WORDS, "change"),
        ];
        match tables.into_iter().find(|(begins, ..)| at >= *begins) {
            Some((begins, words, of)) => format!("word {} of {of} {}", (at - begins) % words, (at - begins) / words),
            None => format!("word {at} of the header"),
        }
    }

    /// Returns the first word of a journal entry.
    pub const fn journal_at(self, entry: usize) -> usize {
        header::WORDS + JOURNAL_WORDS * entry
    }

    /// Returns the first word of a process's row.
    pub const fn process_at(self, slot: usize) -> usize {
        self.journal_at(self.journal) + slot * process::WORDS
    }

    /// Returns the first word of a row in the queue.
    pub const fn waiter_at(self, entry: usize) -> usize {
        self.process_at(self.processes) + entry * waiter::WORDS
    }

    const fn nodes_at(self) -> usize {
        self.waiter_at(self.waiters).next_multiple_of(LINE)
    }

    /// Returns the first word of a node.
    pub const fn node_at(self, node: usize) -> usize {
        self.nodes_at() + node * node::WORDS
    }
}

/// The drawing at the top of this file, in bytes.
const _: () = {
    const FILE: LedgerLayout = LedgerLayout::FILE;
    assert!(VERSION == 3 && FILE.words() * 8 == 262_144 && FILE.shape() == 24 << 48 | 256 << 32 | 256 << 16 | 1301);

    assert!(FILE.journal_at(0) * 8 == 256 && JOURNAL_WORDS * 8 == 16);
    assert!(FILE.process_at(0) * 8 == 640 && process::WORDS * 8 == 128);
    assert!(FILE.waiter_at(0) * 8 == 33_408 && waiter::WORDS * 8 == 80);
    assert!(FILE.node_at(0) * 8 == 53_888 && node::WORDS * 8 == 160);
    assert!(FILE.waiter_at(FILE.waiters) * 8 == 53_888, "nothing lies between the queue and the nodes");
    assert!(FILE.node_at(FILE.nodes) * 8 == 262_048, "the tables fit");
    assert!(FILE.node_at(0).is_multiple_of(LINE), "the nodes begin at a cache line");

    use header as h;
    assert!(h::MAGIC * 8 == 0 && h::VERSION * 8 == 8 && h::SHAPE * 8 == 16 && h::UUID * 8 == 24 && h::TOTAL * 8 == 40);
    assert!(h::NAME * 8 == 48 && h::NAME_WORDS == 8 && h::CHECKSUM * 8 == 120 && h::LOCK * 8 == 128);
    assert!(h::NODES_HIGH * 8 == 192 && h::PROCESSES_HIGH * 8 == 200 && h::WAITING * 8 == 208 && h::TICKET * 8 == 216);
    assert!(h::UNMANAGED * 8 == 224 && h::DAMAGED * 8 == 232 && h::JOURNAL * 8 == 248 && h::WORDS * 8 == 256);

    use process as p;
    assert!(
        p::STATE * 8 == 0 && p::OCCUPIED == 1 << 55 && p::PID * 8 == 8 && p::SINCE * 8 == 16 && p::EVENTS * 8 == 24
    );
    assert!(p::RETURN_REQUESTED * 8 == 32 && p::DEPARTED * 8 == 40 && p::NAME * 8 == 64 && p::NAME_WORDS == 4);

    use waiter as w;
    assert!(w::FREE == 0 && w::WAITING == 1 && w::GRANTED == 2 && w::STATES == 3);
    assert!(
        w::STATE * 8 == 0 && w::OWNER * 8 == 8 && w::TENANT * 8 == 16 && w::BYTES * 8 == 24 && w::PRIORITY * 8 == 32
    );
    assert!(w::TICKET * 8 == 40 && w::NODE * 8 == 48 && w::SINCE * 8 == 56 && w::ABANDONED * 8 == 64);
    assert!(w::KEPT * 8 == 72);

    use node as n;
    assert!(n::BALANCE * 8 == 0 && n::RETURNED * 8 == 8 && n::CLOSED * 8 == 16 && n::TOTAL * 8 == 24);
    assert!(n::GUARANTEE * 8 == 32 && n::CEILING * 8 == 40 && n::KIND * 8 == 64 && n::PARENT * 8 == 72);
    assert!(n::OWNER * 8 == 80 && n::SETTLED * 8 == 88 && n::GENERATION * 8 == 96 && n::NAME * 8 == 104);
    assert!(n::NAME_WORDS == 7 && LETTERS == 7);
};

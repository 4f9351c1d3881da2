//! The layout of a ledger file, format version 6.
//!
//! A ledger file has 524,288 bytes: 65,536 words of 64 bits, little-endian, mapped into every process that has the ledger
//! open. It consists of a header, counters, the undo journal and four tables with rows of a fixed size. Rows are reused;
//! nothing moves and nothing grows.
//!
//! ```text
//!   bytes              words             contents
//!        0 …     255       0 …     31    header
//!      256 …     447      32 …     55    counters
//!      448 …     831      56 …    103    journal                24 entries of  2 words
//!      832 … 131,903     104 … 16,487    table of processes    256 rows    of 64 words
//!  131,904 … 152,383  16,488 … 19,047    queue                 256 rows    of 10 words
//!  152,384 … 156,991  19,048 … 19,623    last refusals          32 rows    of 18 words
//!  156,992 … 365,151  19,624 … 45,643    table of nodes      1,301 rows    of 20 words
//!  365,152 … 524,287  45,644 … 65,535    unused
//! ```
//!
//! The table of nodes begins at a cache line (64 bytes). A private ledger has the same words in anonymous memory.
//!
//! # Header
//!
//! ```text
//!  byte  word  field            stored    contents
//!     0     0  MAGIC            plain     "BURSARLG"
//!     8     1  VERSION          plain     6
//!    16     2  SHAPE            plain     refusals << 56 | journal entries << 48 | processes << 32 | queue rows << 16 | nodes
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
//! # Counters
//!
//! They are about everyone, whoever comes and goes, and never go back.
//!
//! ```text
//!  byte  word  field      stored    contents
//!   256    32  REFUSED    counter   requests that were refused, by reason (`refusal.rs`): 8 words
//!   320    40  WAITS      counter   requests that have left the queue, by how long they waited (`waits.rs`): 11 words
//!   408    51  –                    0
//!   416    52  WAITED     counter   how long they all waited, in milliseconds
//!   424    53  REFUSALS   sealed    how many rows of the table of last refusals were ever written
//!   432    54  –                    0
//! ```
//!
//! # Journal
//!
//! Entry `n` is at byte 448 + 16 `n`. Entries are valid while a step is being made; undoing them from last to first restores
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
//! The row of slot `s` is at byte 832 + 512 `s`: see [`process`].
//!
//! # Queue
//!
//! Row `q` is at byte 131,904 + 80 `q`.
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
//! # Last refusals
//!
//! Row `r` is at byte 152,384 + 144 `r`. The `n`th refusal, counted from 0, is in row `n` modulo 32.
//!
//! ```text
//!  byte  word  field      stored    contents
//!     0     0  NUMBER     sealed    one more than how many were written before it; 0 in a row that was never written
//!     8     1  WHEN       sealed    when the request was refused, in milliseconds since 1970
//!    16     2  PID        sealed    the id of the process that asked, in its own namespace
//!    24     3  REASON     sealed    the reason: its place among the counters
//!    32     4  REQUESTED  sealed    the bytes that were asked for
//!    40     5  AVAILABLE  sealed    the bytes that would have been granted
//!    48     6  LIMIT      sealed    the bytes that could have been granted at most
//!    56     7  NAME       sealed    the name of the process, 7 bytes a word: 4 words
//!    88    11  TENANT     sealed    the name of the tenant, 7 bytes a word: 7 words
//! ```
//!
//! # Table of nodes
//!
//! Node `n` is at byte 156,992 + 160 `n`; node 0 is the device.
//!
//! ```text
//!  byte  word  field      stored    contents
//!     0     0  BALANCE    own seal  bytes that can be charged at once, two flags and the generation: see book/balance.rs
//!     8     1  RETURNED   product   all bytes ever released here without the lock
//!    16     2  CLOSED     sealed    note: one more than the generation of this node whose handle is gone
//!    24     3  TOTAL      sealed    bytes it has of its parent: its balance, what is held, and the totals of its children
//!    32     4  GUARANTEE  sealed    bytes a tenant may always have; of the device, all there are
//!    40     5  CEILING    sealed    bytes a tenant, or the whole device, may have at most
//!    48     6  REFUSED    counter   requests for a tenant that were refused
//!    56     7  WAITED     counter   how long requests for a tenant waited in the queue, in milliseconds
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
//! - *counter*: a sealed value that is added to without the lock, and never journaled: sums of products are products. It is
//!   set to 0 when its row gets an owner.
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
pub const VERSION: u64 = 6;

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

/// The words of the counters, from the first of them on.
pub mod counter {
    /// The requests that were refused, by reason: [`REASONS`] words.
    pub const REFUSED: usize = 0;
    /// The number of words for reasons.
    pub const REASONS: usize = 8;
    /// The requests that have left the queue, by how long they waited: [`BUCKETS`] words.
    pub const WAITS: usize = 8;
    /// The number of words for waits.
    pub const BUCKETS: usize = 11;
    /// The milliseconds that they waited together.
    pub const WAITED: usize = 20;
    /// The number of rows ever written in the table of last refusals.
    pub const REFUSALS: usize = 21;
    /// The number of words of the counters.
    pub const WORDS: usize = 24;
}

pub mod process;

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

/// The words of a row in the table of last refusals.
pub mod refusal {
    /// One more than the number of refusals that were written before; 0 in a row that was never written.
    pub const NUMBER: usize = 0;
    /// When the request was refused, in milliseconds since 1970.
    pub const WHEN: usize = 1;
    /// The id of the process that asked, in its own namespace.
    pub const PID: usize = 2;
    /// The reason: its place among the counters.
    pub const REASON: usize = 3;
    /// The bytes that were asked for.
    pub const REQUESTED: usize = 4;
    /// The bytes that would have been granted.
    pub const AVAILABLE: usize = 5;
    /// The bytes that could have been granted at most.
    pub const LIMIT: usize = 6;
    /// The name of the process, as many words as in its row.
    pub const NAME: usize = 7;
    /// The name of the tenant, as many words as in its node.
    pub const TENANT: usize = NAME + super::process::NAME_WORDS;
    /// The number of words of a row.
    pub const WORDS: usize = TENANT + super::node::NAME_WORDS;
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
    /// The requests for a tenant that were refused.
    pub const REFUSED: usize = 6;
    /// The milliseconds that requests for a tenant waited in the queue.
    pub const WAITED: usize = 7;
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
    /// The number of refusals that are remembered.
    pub refusals: usize,
}

impl LedgerLayout {
    /// The layout of every ledger file: 512 KiB.
    pub const FILE: Self = Self { journal: STEP_MAX, processes: 256, waiters: 256, nodes: 1301, refusals: 32 };

    /// A layout for models, with as few words as make sense.
    pub const SMALL: Self = Self { journal: STEP_MAX, processes: 3, waiters: 3, nodes: 12, refusals: 1 };

    /// Returns the sizes as the header has them.
    pub const fn shape(self) -> u64 {
        (self.refusals as u64) << 56
            | (self.journal as u64) << 48
            | (self.processes as u64) << 32
            | (self.waiters as u64) << 16
            | self.nodes as u64
    }

    /// Returns the number of words of a ledger: a power of two.
    pub const fn words(self) -> usize {
        (self.nodes_at() + self.nodes * node::WORDS).next_power_of_two()
    }

    /// Describes the word `at` to people: which word of which row it is.
    pub fn name_of(self, at: usize) -> String {
        let tables = [
            (self.nodes_at(), node::WORDS, "account"),
            (self.refusal_at(0), refusal::WORDS, "refusal"),
            (self.waiter_at(0), waiter::WORDS, "waiting request"),
            (self.process_at(0), process::WORDS, "process"),
            (self.journal_at(0), JOURNAL_WORDS, "change"),
        ];
        match tables.into_iter().find(|(begins, ..)| at >= *begins) {
            Some((begins, words, of)) => format!("word {} of {of} {}", (at - begins) % words, (at - begins) / words),
            None if at >= self.counters_at() => format!("counter {}", at - self.counters_at()),
            None => format!("word {at} of the header"),
        }
    }

    /// Returns the first of the counters.
    pub const fn counters_at(self) -> usize {
        header::WORDS
    }

    /// Returns the first word of a journal entry.
    pub const fn journal_at(self, entry: usize) -> usize {
        self.counters_at() + counter::WORDS + JOURNAL_WORDS * entry
    }

    /// Returns the first word of a process's row.
    pub const fn process_at(self, slot: usize) -> usize {
        self.journal_at(self.journal) + slot * process::WORDS
    }

    /// Returns the first word of a row in the queue.
    pub const fn waiter_at(self, entry: usize) -> usize {
        self.process_at(self.processes) + entry * waiter::WORDS
    }

    /// Returns the first word of a row of the table of last refusals.
    pub const fn refusal_at(self, row: usize) -> usize {
        self.waiter_at(self.waiters) + row * refusal::WORDS
    }

    const fn nodes_at(self) -> usize {
        self.refusal_at(self.refusals).next_multiple_of(LINE)
    }

    /// Returns the first word of a node.
    pub const fn node_at(self, node: usize) -> usize {
        self.nodes_at() + node * node::WORDS
    }
}

/// The drawing at the top of this file, in bytes.
const _: () = {
    const FILE: LedgerLayout = LedgerLayout::FILE;
    let shape = 32 << 56 | 24 << 48 | 256 << 32 | 256 << 16 | 1301;
    assert!(VERSION == 6 && FILE.words() * 8 == 524_288 && FILE.shape() == shape);

    assert!(FILE.counters_at() * 8 == 256 && counter::WORDS * 8 == 192);
    assert!(FILE.journal_at(0) * 8 == 448 && JOURNAL_WORDS * 8 == 16);
    assert!(FILE.process_at(0) * 8 == 832 && process::WORDS * 8 == 512);
    assert!(FILE.waiter_at(0) * 8 == 131_904 && waiter::WORDS * 8 == 80);
    assert!(FILE.refusal_at(0) * 8 == 152_384 && refusal::WORDS * 8 == 144);
    assert!(FILE.node_at(0) * 8 == 156_992 && node::WORDS * 8 == 160);
    assert!(FILE.refusal_at(FILE.refusals) * 8 == 156_992, "nothing lies between the refusals and the nodes");
    assert!(FILE.node_at(FILE.nodes) * 8 == 365_152, "the tables fit");
    assert!(FILE.node_at(0).is_multiple_of(LINE), "the nodes begin at a cache line");
    assert!(FILE.words() <= 1 << 16, "the journal has sixteen bits for the index of a word");

    use header as h;
    assert!(h::MAGIC * 8 == 0 && h::VERSION * 8 == 8 && h::SHAPE * 8 == 16 && h::UUID * 8 == 24 && h::TOTAL * 8 == 40);
    assert!(h::NAME * 8 == 48 && h::NAME_WORDS == 8 && h::CHECKSUM * 8 == 120 && h::LOCK * 8 == 128);
    assert!(h::NODES_HIGH * 8 == 192 && h::PROCESSES_HIGH * 8 == 200 && h::WAITING * 8 == 208 && h::TICKET * 8 == 216);
    assert!(h::UNMANAGED * 8 == 224 && h::DAMAGED * 8 == 232 && h::JOURNAL * 8 == 248 && h::WORDS * 8 == 256);

    use counter as c;
    assert!(c::REFUSED == 0 && c::REASONS == 8 && c::WAITS * 8 == 64 && c::BUCKETS == 11);
    assert!(c::WAITED * 8 == 160 && c::REFUSALS * 8 == 168);

    use refusal as r;
    assert!(r::NUMBER == 0 && r::WHEN * 8 == 8 && r::PID * 8 == 16 && r::REASON * 8 == 24 && r::REQUESTED * 8 == 32);
    assert!(r::AVAILABLE * 8 == 40 && r::LIMIT * 8 == 48 && r::NAME * 8 == 56 && r::TENANT * 8 == 88);
    assert!(r::WORDS < STEP_MAX, "a refusal is written in one step");

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
    assert!(n::REFUSED * 8 == 48 && n::WAITED * 8 == 56);
    assert!(n::OWNER * 8 == 80 && n::SETTLED * 8 == 88 && n::GENERATION * 8 == 96 && n::NAME * 8 == 104);
    assert!(n::NAME_WORDS == 7 && LETTERS == 7);
};

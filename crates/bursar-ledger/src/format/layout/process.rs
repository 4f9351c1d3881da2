//! The table of processes: who has the ledger open, what each uses, and what others ask of it.
//!
//! The row of slot `s` is at byte 832 + 512 `s`. While a process has the ledger open it holds an exclusive lock on byte
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
//!    48     6  REFUSED           counter   requests of the process that were refused
//!    56     7  WAITED            counter   how long its requests waited in the queue, in milliseconds
//!    64     8  NAME              sealed    the name of the process, 7 bytes a word: 4 words
//!    96    12  PUBLISHED         sealed    when it last said what it uses, in milliseconds since 1970; 0 if it did not
//!   104    13  LIVE              sealed    the bytes that it uses, as it said; 2^48 for all that it holds and does not cache
//!   112    14  CACHED            sealed    the bytes that its pools hold and nobody uses
//!   120    15  PEAK              sealed    the most bytes that it held at a time
//!   128    16  HOLDERS           sealed    the tags that hold most: 4 times the bytes, and the tag, 7 bytes a word, in 5 words
//!   320    40  LISTENS           sealed    1 while it takes requests of other processes, otherwise 0
//!   328    41  REQUEST           sealed    the last request of another process: see below. Whoever asks sleeps on this word
//!   336    42  ASKER             sealed    bits 0 … 15: one more than the slot of who asks; above: 40 bits of that slot's generation
//!   344    43  PATIENCE          sealed    how long the request may wait, in milliseconds
//!   352    44  OUTCOME           sealed    how the request ended: see `book/requests.rs`
//!   360    45  FIGURES           sealed    the figures of its end: 6 words
//!   408    51  TEXT              sealed    why it failed, 7 bytes a word: 12 words
//!   504    63  UNWANTED          sealed    note: the number of the request that nobody waits for any more
//! ```
//!
//! The words from PUBLISHED to LISTENS belong to the process that has the slot, and are nobody's once it has left. Those from REQUEST
//! to TEXT are changed behind the lock only. REQUEST consists of:
//!
//! ```text
//!  bits        contents
//!   0 …  1     NONE 0, ASKED 1, TAKEN 2 or DONE 3
//!   2          WITHDRAWN: who asked has ended, or does not wait any more; once it is DONE, also that its end was read
//!   3          WAKE: the memory of the process is to wake; otherwise it is to sleep
//!   4          KEEP_PLACE: what sleeps stays charged
//!   8 … 55     the number of the request: how many were made of this slot, whoever had it
//! ```

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
/// The requests of the process that were refused.
pub const REFUSED: usize = 6;
/// The milliseconds that its requests waited in the queue.
pub const WAITED: usize = 7;
/// The name of the process, [`NAME_WORDS`] words.
pub const NAME: usize = 8;
/// The number of words of its name, of [`LETTERS`](super::LETTERS) bytes.
pub const NAME_WORDS: usize = 4;
/// When it last said what it uses, in milliseconds since 1970; 0 if it did not.
pub const PUBLISHED: usize = 12;
/// The bytes that it uses; one more than there can be, where that is all it holds and does not cache.
pub const LIVE: usize = 13;
/// The bytes that its pools hold and nobody uses.
pub const CACHED: usize = 14;
/// The most bytes that it held at a time.
pub const PEAK: usize = 15;
/// The tags that hold most: [`HOLDERS_MAX`] times the bytes and the tag.
pub const HOLDERS: usize = 16;
/// The number of tags that are kept.
pub const HOLDERS_MAX: usize = 4;
/// The number of words of a tag, of [`LETTERS`](super::LETTERS) bytes.
pub const TAG_WORDS: usize = 5;
/// 1 while the process takes requests of others.
pub const LISTENS: usize = HOLDERS + HOLDERS_MAX * (1 + TAG_WORDS);
/// The last request of another process: see `book/requests.rs`; whoever asks sleeps on this word.
pub const REQUEST: usize = LISTENS + 1;
/// The slot and the generation of who asks.
pub const ASKER: usize = REQUEST + 1;
/// The time that the request may wait, in milliseconds.
pub const PATIENCE: usize = ASKER + 1;
/// The kind of end that the request had.
pub const OUTCOME: usize = PATIENCE + 1;
/// The figures of its end: [`FIGURES_MAX`] words.
pub const FIGURES: usize = OUTCOME + 1;
/// The number of figures.
pub const FIGURES_MAX: usize = 6;
/// The reason of a failure: [`TEXT_WORDS`] words, of [`LETTERS`](super::LETTERS) bytes.
pub const TEXT: usize = FIGURES + FIGURES_MAX;
/// The number of words of a text.
pub const TEXT_WORDS: usize = 12;
/// A note, written without the lock: the number of the request that nobody waits for any more. See `book/notes.rs`.
pub const UNWANTED: usize = TEXT + TEXT_WORDS;
/// The number of words of a row.
pub const WORDS: usize = UNWANTED + 1;

/// The drawing at the top of this file, in bytes.
const _: () = {
    assert!(STATE * 8 == 0 && OCCUPIED == 1 << 55 && PID * 8 == 8 && SINCE * 8 == 16 && EVENTS * 8 == 24);
    assert!(RETURN_REQUESTED * 8 == 32 && DEPARTED * 8 == 40 && NAME * 8 == 64 && NAME_WORDS == 4);
    assert!(REFUSED * 8 == 48 && WAITED * 8 == 56 && PUBLISHED * 8 == 96 && LIVE * 8 == 104);
    assert!(CACHED * 8 == 112 && PEAK * 8 == 120 && HOLDERS * 8 == 128);
    assert!(HOLDERS_MAX == 4 && TAG_WORDS == 5);
    assert!(LISTENS * 8 == 320 && REQUEST * 8 == 328 && ASKER * 8 == 336 && PATIENCE * 8 == 344);
    assert!(OUTCOME * 8 == 352 && FIGURES * 8 == 360 && FIGURES_MAX == 6 && TEXT * 8 == 408);
    assert!(UNWANTED * 8 == 504);
    assert!(TEXT_WORDS == 12 && 1 + FIGURES_MAX + TEXT_WORDS < super::STEP_MAX, "an end is written in one step");
};

//! The C interface of Bursar: devices, memory in stream order, budgets, statistics and reservations, for programs in any
//! language that can call C.
//!
//! `include/bursar.h` is the whole of it: the header is written from this code (`cargo xtask header`) and a test says where
//! the two differ. `cargo xtask install-c PREFIX` puts the header, `libbursar.so`, `libbursar.a` and `bursar.pc` where
//! compilers find them.
//!
//! # Rules
//! - **Errors are values.** A call returns a [`bursar_status`], and [`bursar_last_error`] has the numbers and the text.
//! - **Nothing unwinds out of a call.** A panic is [`BURSAR_PANIC`](bursar_status::BURSAR_PANIC).
//! - **Handles are numbers that are looked up**, and pointers are not: a null, one that was closed, and one of another kind
//!   are [`BURSAR_INVALID_HANDLE`](bursar_status::BURSAR_INVALID_HANDLE), whatever they were made of.
//! - **Structures begin with their size.** One of another size is refused; a later version knows the sizes of earlier ones.
//! - **Nothing starts by itself.** Loading the library does nothing; the first thread is started by the first reservation
//!   that waits.
//! - **A process that is forked off is told so**, once a driver was opened before: locks in it may be those of threads that are
//!   not there.
//!
//! # Structure
//! Each module uses only those above it:
//!
//! - `forks` knows whether this process was forked off.
//! - `status` has the statuses and the last failure of a thread; `enter` is the way into every call, and `arguments` are the
//!   pointers that callers pass.
//! - `running` knows the calls that run, `table` has what handles stand for, and `handles` are the kinds of them.
//! - `version`, `driver`, `tag`, `device`, `reservation`, `stream`, `stack`, `sleep`, `block` and `graph` are the calls.
//!
//! # The way of an allocation
//! No lock, no hashing, and nothing that threads write together. A call enters itself in a record of its thread, so that
//! nothing that it has found can be closed meanwhile: one exchange. The stack and the stream are those that the thread used
//! last, if nothing was closed since; otherwise each is a look into its table, two loads and two comparisons. A block is a slot
//! of its table, which a free claims by one exchange more; slots are kept by each thread.
//!
//! An allocation adds some 150 instructions to those of the pool and a free 145, most of them moves, and each eleven for the
//! thread-local record, which the code of a shared library asks the linker for.

mod arguments;
mod block;
mod device;
mod driver;
mod enter;
mod forks;
mod graph;
mod handles;
mod reservation;
mod running;
mod sleep;
mod stack;
mod status;
mod stream;
mod table;
mod tag;
mod version;

pub use block::{BURSAR_READ, BURSAR_WRITE, bursar_allocate, bursar_block, bursar_free, bursar_record_use};
pub use device::{
    bursar_device, bursar_device_close, bursar_device_open, bursar_device_options, bursar_device_statistics,
    bursar_device_statistics_of, bursar_statistics,
};
pub use driver::{
    BURSAR_DRIVER_CUDA, BURSAR_DRIVER_DEFAULT, BURSAR_DRIVER_SIMULATED, bursar_device_facts, bursar_device_memory,
    bursar_device_memory_read, bursar_device_read, bursar_driver, bursar_driver_close, bursar_driver_facts,
    bursar_driver_open, bursar_driver_options, bursar_driver_read,
};
pub use graph::{
    bursar_capture_begin, bursar_capture_end, bursar_capture_enter, bursar_capture_order, bursar_graph_launched,
    bursar_graph_memory_open, bursar_graph_memory_release,
};
pub use reservation::{
    BURSAR_FOREVER, bursar_available, bursar_cancel, bursar_cancellation, bursar_cancellation_close,
    bursar_cancellation_create, bursar_reservation, bursar_reservation_close, bursar_reservation_read,
    bursar_reservation_reading, bursar_reserve, bursar_reserve_options, bursar_share,
};
pub use sleep::{
    BURSAR_SLEEP_ASLEEP, BURSAR_SLEEP_AWAKE, BURSAR_SLEEP_MOVING, BURSAR_SLEEP_PARTLY, bursar_device_sleep,
    bursar_device_sleep_read, bursar_device_wake, bursar_sleep_options, bursar_sleep_reading, bursar_sleep_report,
    bursar_wake_report,
};
pub use stack::{
    BURSAR_ACCOUNT_LEDGER, BURSAR_ACCOUNT_NONE, BURSAR_ACCOUNT_RESERVATION, BURSAR_STACK_ASYNC, BURSAR_STACK_DIRECT,
    BURSAR_STACK_POOL, bursar_granted_size, bursar_stack, bursar_stack_close, bursar_stack_device, bursar_stack_open,
    bursar_stack_options, bursar_stack_read, bursar_stack_reading, bursar_stack_trim,
};
pub use status::bursar_status;
pub use stream::{
    bursar_stream, bursar_stream_adopt, bursar_stream_close, bursar_stream_create, bursar_stream_raw,
    bursar_stream_synchronize,
};
pub use tag::{BURSAR_UNTAGGED, bursar_tag};
pub use version::{
    BURSAR_INTERFACE, bursar_error, bursar_interface, bursar_last_error, bursar_last_refusal, bursar_status_name,
    bursar_version,
};

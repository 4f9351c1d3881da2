//! The pool on the simulated device: what it reuses, moves, waits for and gives back.

mod common;
#[path = "pool/frames.rs"]
mod frames;
#[path = "pool/hooked.rs"]
mod hooked;
#[path = "pool/programs.rs"]
mod programs;
#[path = "pool/recent.rs"]
mod recent;
#[path = "pool/returning.rs"]
mod returning;
#[path = "pool/reuse.rs"]
mod reuse;
#[path = "pool/rig.rs"]
mod rig;
#[path = "pool/shortage.rs"]
mod shortage;
#[path = "pool/sparing.rs"]
mod sparing;
#[path = "pool/stalls.rs"]
mod stalls;
#[path = "pool/streams.rs"]
mod streams;
#[path = "pool/stuck.rs"]
mod stuck;
#[path = "pool/threads.rs"]
mod threads;

//! The pool on the simulated device: what it reuses, moves, waits for and gives back.

#[path = "pool/ahead.rs"]
mod ahead;
#[path = "pool/apart.rs"]
mod apart;
mod common;
#[path = "pool/ending_asleep.rs"]
mod ending_asleep;
#[path = "pool/following.rs"]
mod following;
#[path = "pool/foreign_frees.rs"]
mod foreign_frees;
#[path = "pool/frames.rs"]
mod frames;
#[path = "pool/hooked.rs"]
mod hooked;
#[path = "pool/programs.rs"]
mod programs;
#[path = "pool/recent_magazines.rs"]
mod recent_magazines;
#[path = "pool/reuse.rs"]
mod reuse;
#[path = "pool/rig.rs"]
mod rig;
#[path = "pool/shortage.rs"]
mod shortage;
#[path = "pool/slack.rs"]
mod slack;
#[path = "pool/sleep.rs"]
mod sleep;
#[path = "pool/sleep_faults.rs"]
mod sleep_faults;
#[path = "pool/sleep_programs.rs"]
mod sleep_programs;
#[path = "pool/sleep_rig.rs"]
mod sleep_rig;
#[path = "pool/sleep_uses.rs"]
mod sleep_uses;
#[path = "pool/stalls.rs"]
mod stalls;
#[path = "pool/streams.rs"]
mod streams;
#[path = "pool/stuck_frames.rs"]
mod stuck_frames;
#[path = "pool/threads.rs"]
mod threads;
#[path = "pool/trim.rs"]
mod trim;
#[path = "pool/undo_sleep.rs"]
mod undo_sleep;
#[path = "pool/waking.rs"]
mod waking;

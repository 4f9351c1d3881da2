//! The facts of Linux that more than one crate of Bursar needs, each read in one place.
//!
//! - [`MemoryInfo`] is the machine's memory and [`ControlGroup`] a limit on it, both read below a root folder, so that tests can
//!   write down the files of any machine. Fitting workers into RAM and pinning host memory obey the same limits.
//! - [`shared_folder`] is the folder that the processes of one user share, and [`create_private_folder`] makes such a folder.
//!   The ledger and simulated devices with a name keep their files there.
//!
//! This crate depends on no other crate of Bursar. Sizes are plain numbers of bytes.
//!
//! # Invariants
//!
//! - **Every control group above ours limits us.** All groups from that of this process to the outermost visible one are
//!   returned, of version 2 and of version 1, at the mount points that `/proc/self/mountinfo` lists. No mount point is assumed.
//! - **A missing file means "no limit" only where the kernel would not write it.** Every other file that is missing or makes no
//!   sense is an error that names the file, and each caller decides what an unreadable limit means.
//! - **A private folder belongs to its user, and nobody else can write to it.** One that was found, rather than made, is checked.

#![forbid(unsafe_code)]

mod cgroup;
mod folder;
mod meminfo;
mod text;

pub use cgroup::{ControlGroup, GroupMemory, control_groups};
pub use folder::{FOLDER_VARIABLE, NotPrivate, check_owner, create_private_folder, shared_folder, user_id};
pub use meminfo::MemoryInfo;
pub use text::ReadError;

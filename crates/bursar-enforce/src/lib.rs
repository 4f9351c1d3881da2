//! A preloaded library that charges what any CUDA program takes to its share.
//!
//! `bursar run` sets memory of a device aside for a program and starts it with this library loaded before all others
//! (`LD_PRELOAD=libbursar_enforce.so`). The program knows nothing of Bursar. Every call by which it takes device memory is charged to its
//! share of the ledger before the driver is asked, at what the driver will take, and refused at the byte with the driver's own
//! out-of-memory status; what it is told about memory is its share. Without a share in the environment everything passes.
//!
//! It keeps honest programs honest. It is no security boundary: a program can call the kernel without the driver's library, load
//! its own copy of the C library's loader, or take the variable out of its environment.
//!
//! # How programs reach the driver
//! Three ways lead to a wrapper, and [`table`] lists the functions that have one. Everything else is the driver's own function, at no
//! cost:
//!
//! - a program or library that was linked with the driver is bound to the symbols that this library exports;
//! - `dlsym` and `dlvsym` are this library's ([`interpose`]), which finds the C library's by reading the loaded objects ([`elf`]), and
//!   what is loaded with deep binding is rebound ([`deep_binding`]);
//! - `cuGetProcAddress` is wrapped ([`proc_address`]): the driver is asked as the program asked, and a function is known by its address,
//!   so that a newer version of one passes untouched.
//!
//! A wrapper ([`hook`]) that is called within another on the same thread is the driver calling itself, and passes.
//!
//! # What is charged
//! Linear memory ([`linear`]) is charged by the multiple that the driver rounds to, which is learned ([`granule`]), or by the pages that
//! it lies in. Physical memory with a handle ([`handles`]) is charged until it is released and mapped nowhere. Pools and graphs
//! ([`stores`]) cost what they have reserved, arrays ([`arrays`]) what was free before and is not after. A context
//! ([`contexts`]) is measured when it is made, with what the driver takes later ([`growth`]), and ends what was allocated in it. Where a cost is known only afterwards, the most is
//! charged before the call and what is too much given back; where there is no room for the most, the least is charged, and a call
//! that turned out to cost more than is left is taken back and refused.
//!
//! An entry is taken out before the driver frees and put back if that fails: once memory is free, another thread may be given the same
//! address.
//!
//! # Programs that use Bursar
//! They are charged once; see [`own`].
//!
//! # Processes
//! Every process that the program starts has the same share in its environment and draws on it. In a child that was forked after its
//! parent had taken something, allocating calls return `CUDA_ERROR_NOT_INITIALIZED`, as the driver's own do there. However a process ends, the
//! ledger gives back what it held.
//!
//! # Limits
//! What is said above does not hold here:
//!
//! - `dlmopen` into another namespace loads another driver, which is not wrapped: what is taken by it is not charged.
//! - The constructors of a library that is loaded with deep binding run before it is rebound, and reach the driver itself. A library
//!   that defines a function of the driver and calls the next one is left to that, also where nothing of ours calls it.
//! - A program that closes the ledger's descriptor gives its charges back while it still has the memory. One that is started without
//!   standard streams may have the ledger in the place of one, and write to it.
//! - A share is of one device. What the program takes of others is not charged and not refused; `CUDA_VISIBLE_DEVICES` keeps it from them.
//! - An array, and a context where NVML does not list the process, is measured by what is free before and after. While others take
//!   or free memory of the device that is inexact: up to twice its elements is charged for an array.
//! - Where several processes draw on one share, nobody keeps what `cuMemGetInfo` says is free for the one that asked.
//! - Of a pool that was destroyed with allocations in use, the driver tells nothing any more. Its charge is what these allocations lie
//!   in, and ends with the call that frees the last of them, which may be before its stream has come to that.
//! - Where there is no room for the most that a stream-ordered allocation may take, it is charged for what its pool lacks. If the driver
//!   cannot use what the pool has, because that lies in parts or is not free in the order of the stream, it takes more than the share
//!   for a moment, until the call is taken back.
#![cfg_attr(test, allow(dead_code, reason = "a test has none of the symbols that lead to a wrapper"))]
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod arrays;
mod charge;
mod contexts;
mod deep_binding;
mod device;
mod driver;
mod elf;
mod entry;
mod gate;
mod granule;
mod graph_nodes;
mod graphs;
mod growth;
mod handles;
mod hook;
mod info;
mod integer_map;
mod interpose;
mod linear;
mod loader;
mod nvml;
mod own;
mod pools;
mod proc_address;
mod refusal;
mod report;
mod share;
mod steps;
mod stores;
mod table;

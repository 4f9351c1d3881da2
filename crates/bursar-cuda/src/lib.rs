//! The CUDA driver of Bursar, loaded at run time.
//!
//! [`Cuda`] implements [`Driver`](bursar_core::Driver) over the CUDA driver API as cudarc declares it. Building needs no
//! CUDA at all; running without it is a [`LoadError`] that says what was looked for:
//!
//! ```
//! use bursar_cuda::{Cuda, LoadError};
//!
//! match Cuda::load() {
//!     Ok(cuda) => println!("CUDA {}", cuda.version()),
//!     Err(LoadError::NotFound { looked_for, .. }) => println!("this machine has no {}", looked_for[0]),
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! # Beside other libraries
//! Only primary contexts are used, memory is plain and never managed, and no setting of a device is changed. A call works
//! on any thread, whatever another library made current there, and leaves that as it was; nor does it disturb a graph
//! that another thread captures. Once the process has begun to exit, every new call answers
//! [`Status::Unavailable`](bursar_core::Status::Unavailable) without reaching the driver.
//!
//! # Versions
//! Everything that is called exists in every driver since CUDA 12.2, under the same name and with the same signature, and
//! is looked up when the driver is loaded. The types come from one of cudarc's bindings, by default that of 12.2. cudarc
//! compiles with exactly one of them, so a program that uses cudarc itself with another (`cuda-13000`, say) turns this
//! crate's default features off; nothing else changes.

mod conv;
mod cuda;
mod device;
mod driver;
mod exit;
mod load;
mod nvml;
mod raw;
mod version;

pub use cuda::Cuda;
pub use load::LoadError;
pub use nvml::ProcessMemory;
pub use version::Version;

//! The CUDA driver of Bursar, loaded at run time.
//!
//! [`Cuda`] implements [`Driver`](bursar_core::Driver) over the CUDA driver API. Building needs no CUDA at all;
//! loading it where it is missing returns a [`LoadError`] that names the libraries searched for:
//!
//! ```
//! use bursar::cuda::{Cuda, LoadError};
//!
//! match Cuda::load() {
//!     Ok(cuda) => println!("CUDA {}", cuda.version()),
//!     Err(LoadError::NotFound { looked_for, .. }) => println!("this machine has no {}", looked_for[0]),
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! # Beside other libraries
//! Only primary contexts are used, memory is plain and never managed, and no setting of a device is changed. A call works on
//! any thread, whatever context another library made current there, and leaves that as it was; nor does it disturb a graph
//! that another thread captures. Once the process has begun to exit, every new call returns
//! [`Status::Unavailable`](bursar_core::Status::Unavailable) without reaching the driver.
//!
//! # Versions
//! Every function that is called exists in every driver since CUDA 12.2, under the same name and with the same signature,
//! and is looked up when the driver is loaded. The types are declared here, so this crate stands beside cudarc with any of
//! its version features.
//!
//! # Structure
//! Three levels, each of which uses only those before it:
//!
//! - `raw` is the table of driver functions, the only place that calls them; results are plain numbers.
//! - `conv` is the only place that converts between CUDA's types and Bursar's. `device` runs each call in the right context.
//! - `cuda` and `driver` are [`Cuda`] and its [`Driver`](bursar_core::Driver) methods.
//!
//! Beside them, `load` finds the library, `exit` stops calls when the process exits, and `nvml` reads links and processes.
//!
//! # Decision: our own table of symbols
//! cudarc's functions panic where a symbol is missing, and return a closed enumeration, for which the status of a newer
//! driver would be undefined behaviour. The table here looks every symbol up once and returns plain integers. Nor does
//! anything else here depend on cudarc, which compiles with exactly one of its version features: a library that chose one
//! would choose it for every program. Tests compare every declaration with cudarc's.

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

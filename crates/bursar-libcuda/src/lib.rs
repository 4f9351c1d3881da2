//! The simulated driver of Bursar behind CUDA's own C interface: a `libcuda.so.1` for machines without a GPU.

mod arguments;
mod calls;
mod captures;
mod enter;
mod handle;
mod hazards;
mod host_functions;
mod lookup;
mod machine;
mod memory_file;
mod message;
mod nvml;
mod port;
mod process;
mod progress;
mod resolve;
mod state;
mod status;
mod table;
mod thread;
mod types;
mod visible;

pub use lookup::EntryPoint;
pub use nvml::NvmlReturn;
pub use status::CUresult;
pub use table::entry_points;

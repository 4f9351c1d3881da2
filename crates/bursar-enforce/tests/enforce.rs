//! Programs that know nothing of Bursar, under a share: in C, over the simulated driver as `libcuda.so.1`, with the library preloaded.

#[path = "enforce/cudarc_program.rs"]
mod cudarc_program;
#[path = "enforce/entry_points.rs"]
mod entry_points;
#[path = "enforce/odd_driver.rs"]
mod odd_driver;
#[path = "enforce/processes.rs"]
mod processes;
#[path = "enforce/rust_program.rs"]
mod rust_program;
#[path = "enforce/scene.rs"]
mod scene;
#[path = "enforce/told.rs"]
mod told;
#[path = "enforce/watched.rs"]
mod watched;

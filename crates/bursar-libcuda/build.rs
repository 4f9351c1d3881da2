//! Gives the shared object the name under which programs are linked against the CUDA driver, and keeps it in memory.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Threads of the driver run its code, so it stays in memory when the last who loaded it lets go.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}

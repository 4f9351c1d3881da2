//! Gives the shared object the name that programs are linked against, with the number of its interface, and keeps it in memory.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbursar.so.0");
    // Threads of the library run its code, so it stays in memory when the last who loaded it lets go.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}

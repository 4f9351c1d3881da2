//! Gives the shared object the name that programs are linked against, with the number of its interface.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbursar.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}

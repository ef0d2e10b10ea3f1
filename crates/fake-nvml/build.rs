//! Gives the library the name under which clients load it, so that the dynamic linker treats a copy as the real thing.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
}

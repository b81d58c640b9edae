//! Declares the cfg that simulates a host other than Linux.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(toolpost_simulate_other_host)");
    println!("cargo::rerun-if-changed=build.rs");
}

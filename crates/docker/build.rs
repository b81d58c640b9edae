//! Declares the switch that makes this crate behave as on a host that is not Linux, for a check of that side.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(toolpost_simulate_other_host)");
    println!("cargo::rerun-if-changed=build.rs");
}

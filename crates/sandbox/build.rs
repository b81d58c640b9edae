//! Builds the first process of every sandbox.
fn main() {
    println!("cargo::rustc-check-cfg=cfg(toolpost_simulate_other_host)");
}

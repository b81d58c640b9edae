//! Records the build for `toolpost --version --json`: target, profile, compiler and commit.
//!
//! The commit is that of `.cargo_vcs_info.json`, which `cargo package` writes, or of `TOOLPOST_COMMIT`. It needs no Git.

use std::error::Error;
use std::path::Path;
use std::process::Command;

/// The file of a package with its commit.
const PACKAGED: &str = ".cargo_vcs_info.json";

#[expect(
    clippy::disallowed_methods,
    reason = "cargo passes values in the environment; the compiler prints its version"
)]
fn main() -> Result<(), Box<dyn Error>> {
    for name in ["TARGET", "PROFILE"] {
        println!("cargo::rustc-env=TOOLPOST_BUILD_{name}={}", std::env::var(name)?);
    }
    let version = Command::new(std::env::var("RUSTC")?).arg("--version").output()?;
    println!("cargo::rustc-env=TOOLPOST_BUILD_RUSTC={}", String::from_utf8(version.stdout)?.trim());
    println!("cargo::rerun-if-env-changed=TOOLPOST_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let named = std::env::var("TOOLPOST_COMMIT").ok();
    if let Some(commit) = named.or_else(packaged_commit).filter(|commit| is_commit(commit)) {
        println!("cargo::rustc-env=TOOLPOST_BUILD_COMMIT={commit}");
    }
    Ok(())
}

/// The commit that `cargo package` recorded.
fn packaged_commit() -> Option<String> {
    let text = std::fs::read_to_string(Path::new(PACKAGED)).ok()?;
    println!("cargo::rerun-if-changed={PACKAGED}");
    let (_, after) = text.split_once("\"sha1\"")?;
    Some(after.split('"').nth(1)?.to_owned())
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

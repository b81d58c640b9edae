//! The packages of a release: static binaries, archives, Debian and npm packages, image roots, a Homebrew formula, an
//! install script, a software bill of materials, and checksums.

pub mod bill;
pub mod build;
pub mod machine;
pub mod pack;

use std::env::consts;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::command::Task;
use crate::suite::report::Tally;
use crate::suite::{installs, setup};
use crate::workspace::Workspace;
use pack::Release;

/// A platform of the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Its architecture, as Rust names it.
    pub arch: &'static str,
    /// Its architecture, as Debian and Docker name it.
    pub debian: &'static str,
    /// Its architecture, as Node names it.
    pub node: &'static str,
    /// Its architecture, as Homebrew names it.
    pub homebrew: &'static str,
}

/// The platforms of the release.
pub const TARGETS: [Target; 2] = [
    Target { arch: "x86_64", debian: "amd64", node: "x64", homebrew: "intel" },
    Target { arch: "aarch64", debian: "arm64", node: "arm64", homebrew: "arm" },
];

impl Target {
    /// The platform of this machine.
    pub fn host() -> Option<Self> {
        TARGETS.into_iter().find(|target| target.arch == consts::ARCH)
    }

    /// The target as rustc names it.
    pub fn triple(self) -> String {
        format!("{}-unknown-linux-musl", self.arch)
    }
}

/// Builds the binaries of all platforms, packs them into `target/dist`, installs each package, and tries each binary on
/// a machine of its platform.
pub fn run(root: &Path) -> Result<bool> {
    setup::provide(root, &[setup::ZIG, setup::TARGETS, setup::TYPESCRIPT_PACKAGE]);
    let workspace = Workspace::read(root)?;
    let host = Target::host().ok_or_else(|| format!("no package is for {}", consts::ARCH))?;
    let mut binaries = Vec::new();
    for target in TARGETS {
        let binary = build::binary(&workspace, target)?;
        build::check(&binary, root)?;
        binaries.push((target, binary));
    }
    let own = binaries.iter().find(|(target, _)| *target == host).map(|(_, binary)| binary.clone());
    let own = own.ok_or("no binary runs here")?;
    let release = Release::read(root, &workspace.target.join("dist"), false)?;
    release.pack(&binaries, &own)?;
    let mut tally = Tally::default();
    installs::all(root, &release, host, &own, &mut tally)?;
    for (target, binary) in &binaries {
        machine::boot(root, *target, binary, &mut tally)?;
    }
    list(&release.output)?;
    print!("{tally}");
    Ok(tally.failed.is_empty())
}

/// Prints the files of the release and their sizes.
fn list(output: &Path) -> Result<()> {
    let text =
        fs::read_to_string(output.join(pack::SUMS)).map_err(|error| format!("no checksums: {error}"))?;
    for (_, name) in text.lines().filter_map(|line| line.split_once("  ")) {
        let size = fs::metadata(output.join(name)).map_or(0, |metadata| metadata.len());
        println!("{:9.2} MB  {name}", size as f64 / 1e6);
    }
    Ok(())
}

/// Runs a program that must end with status 0, and returns its standard output.
fn output(task: &Task) -> Result<String> {
    let captured = task.capture()?;
    if captured.success {
        return Ok(captured.text);
    }
    Err(format!("`{}` failed: {}{}", task.line(), captured.text, captured.errors.trim()))
}

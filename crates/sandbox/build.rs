//! Builds the embedded static programs, a few kilobytes each. If one cannot be built, the crate still builds,
//! and the dependent features report the reason.

use std::error::Error;
use std::path::Path;
use std::process::Command;

/// A program of `shim/`.
struct Shim {
    /// Its file name without extension, and its output name.
    name: &'static str,
    variable: &'static str,
    /// The form of its code in memory.
    model: &'static str,
    /// Its files beside `bare.rs`.
    files: &'static [&'static str],
    /// The name, and the part that is missing without it.
    is: &'static str,
    lost: &'static str,
    /// The feature that needs it, as cargo names it here.
    feature: Option<&'static str>,
}

/// At one address.
const STATIC: &str = "-Crelocation-model=static";
/// Position-independent, without relocations.
const RELATIVE: &str = "-Crelocation-model=pic";

const SHIMS: &[Shim] = &[
    Shim {
        name: "init",
        variable: "TOOLPOST_SANDBOX_INIT",
        model: STATIC,
        files: &["init.rs"],
        is: "the first process of a sandbox",
        lost: "no sandbox level will be available",
        feature: None,
    },
    Shim {
        name: "fork",
        variable: "TOOLPOST_SANDBOX_FORK",
        model: RELATIVE,
        files: &["fork.rs"],
        is: "the fork program of a zygote",
        lost: "Python pools will start cold",
        feature: None,
    },
    Shim {
        name: "container",
        variable: "TOOLPOST_SANDBOX_CONTAINER",
        model: STATIC,
        files: &["container.rs", "container_system.rs", "container_tunnel.rs"],
        is: "the first process of a container",
        lost: "container backends will not be available",
        feature: Some("CARGO_FEATURE_CONTAINER"),
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rustc-check-cfg=cfg(toolpost_simulate_other_host)");
    // `cargo fuzz` sets it.
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=shim/bare.rs");
    let output = variable("OUT_DIR")?;
    let target = variable("TARGET")?;
    let is_known =
        matches!(target.split('-').next(), Some("x86_64" | "aarch64")) && target.contains("-linux-");
    for shim in SHIMS.iter().filter(|shim| shim.feature.is_none_or(|feature| variable(feature).is_ok())) {
        for file in shim.files {
            println!("cargo::rerun-if-changed=shim/{file}");
        }
        let program = Path::new(&output).join(shim.name);
        let reason = if is_known {
            build(&target, shim, &program)?
        } else {
            Some(format!("{} does not support {target}", shim.is))
        };
        if let Some(reason) = &reason {
            std::fs::write(&program, [])?;
            println!("cargo::warning={}: {reason}", shim.lost);
        }
        println!("cargo::rustc-env={}={}", shim.variable, program.display());
        println!("cargo::rustc-env={}_MISSING={}", shim.variable, reason.unwrap_or_default());
    }
    Ok(())
}

/// Returns the reason if the program could not be built.
fn build(target: &str, shim: &Shim, program: &Path) -> Result<Option<String>, Box<dyn Error>> {
    let compiler = variable("RUSTC")?;
    let mut failures = Vec::new();
    // The C compiler as linker, then the toolchain's own linker.
    for linker in [&[][..], &["-Clinker=rust-lld", "-Clinker-flavor=ld.lld"][..]] {
        let direct = !linker.is_empty();
        let link_arguments: &[&str] = if direct {
            &["-Clink-args=-static -z noexecstack --build-id=none"]
        } else {
            &["-Clink-args=-nostartfiles -nostdlib -static -no-pie -Wl,-z,noexecstack -Wl,--build-id=none"]
        };
        // The start files of musl that come with the toolchain have a `_start` too.
        let start_files: &[&str] = if target.contains("-musl") { &["-Clink-self-contained=no"] } else { &[] };
        #[expect(clippy::disallowed_methods, reason = "a build script starts the compiler")]
        let result = Command::new(&compiler)
            .args(["--edition=2024", "--crate-type=bin", "--crate-name", shim.name, "--target", target])
            .args(["-Cpanic=abort", "-Copt-level=s", shim.model, "-Cstrip=symbols"])
            .args(["-Coverflow-checks=off", "-Cdebug-assertions=off", "-Cforce-unwind-tables=no"])
            .args(linker)
            .args(start_files)
            .args(link_arguments)
            .arg("-o")
            .arg(program)
            .arg(format!("shim/{}.rs", shim.name))
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .output();
        match result {
            Ok(output) if output.status.success() => return Ok(None),
            Ok(output) => failures.push(first_error(&output.stderr)),
            Err(error) => failures.push(error.to_string()),
        }
    }
    Ok(Some(format!("the compiler could not build {} ({})", shim.is, failures.join("; "))))
}

/// The first line that names an error: warnings precede it.
fn first_error(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let error = text.lines().find(|line| line.starts_with("error"));
    error.or_else(|| text.lines().next()).unwrap_or("no message").replace('"', "'")
}

#[expect(clippy::disallowed_methods, reason = "a build script is told everything by its environment")]
fn variable(name: &str) -> Result<String, Box<dyn Error>> {
    std::env::var(name).map_err(|error| format!("cargo did not set {name}: {error}").into())
}

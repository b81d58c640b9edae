//! Builds the first process of every sandbox (`shim/init.rs`): a static program without any library, embedded by the
//! crate; and in the same way what makes the children of a zygote (`shim/fork.rs`). Where it cannot be built the crate still builds, and no level is available, with the reason.

use std::error::Error;
use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rustc-check-cfg=cfg(toolpost_simulate_other_host)");
    println!("cargo::rerun-if-changed=shim/init.rs");
    println!("cargo::rerun-if-changed=build.rs");
    let output = variable("OUT_DIR")?;
    let target = variable("TARGET")?;
    let program = Path::new(&output).join("init");
    let reason = match target.split('-').next() {
        Some("x86_64" | "aarch64") if target.contains("-linux-") => {
            build(&target, "shim/init.rs", &program, STANDS)?
        }
        _ => Some(format!("the first process of a sandbox is not written for {target}")),
    };
    if let Some(reason) = &reason {
        std::fs::write(&program, [])?;
        println!("cargo::warning=no sandbox level will be available: {reason}");
    }
    println!("cargo::rustc-env=TOOLPOST_SANDBOX_INIT={}", program.display());
    println!("cargo::rustc-env=TOOLPOST_SANDBOX_INIT_MISSING={}", reason.unwrap_or_default());
    build_fork(&output, &target)?;
    if variable("CARGO_FEATURE_DOCKER").is_ok() {
        build_container(&output, &target)?;
    }
    Ok(())
}

/// A program whose code stands at one address.
const STANDS: &str = "-Crelocation-model=static";
/// Code that stands anywhere, without anything that would have to be put right.
const FLOATS: &str = "-Crelocation-model=pic";

/// What makes the children of a zygote. Without it pools of Python run cold.
fn build_fork(output: &str, target: &str) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=shim/fork.rs");
    let program = Path::new(output).join("fork");
    let is_known = matches!(target.split('-').next(), Some("x86_64" | "aarch64"));
    if !is_known || !target.contains("-linux-") || build(target, "shim/fork.rs", &program, FLOATS)?.is_some()
    {
        std::fs::write(&program, [])?;
    }
    println!("cargo::rustc-env=TOOLPOST_SANDBOX_FORK={}", program.display());
    Ok(())
}

/// The first process of a container.
fn build_container(output: &str, target: &str) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=shim/container.rs");
    println!("cargo::rerun-if-changed=shim/container_system.rs");
    let program = Path::new(output).join("container");
    let reason = match target.split('-').next() {
        Some("x86_64" | "aarch64") if target.contains("-linux-") => {
            build(target, "shim/container.rs", &program, STANDS)?
        }
        _ => Some(format!("the first process of a container is not written for {target}")),
    };
    if let Some(reason) = &reason {
        std::fs::write(&program, [])?;
        println!("cargo::warning=the Docker backend will not be available: {reason}");
    }
    println!("cargo::rustc-env=TOOLPOST_SANDBOX_CONTAINER={}", program.display());
    println!("cargo::rustc-env=TOOLPOST_SANDBOX_CONTAINER_MISSING={}", reason.unwrap_or_default());
    Ok(())
}

/// Gives the reason if the program could not be built.
fn build(target: &str, source: &str, program: &Path, model: &str) -> Result<Option<String>, Box<dyn Error>> {
    let compiler = variable("RUSTC")?;
    let mut failures = Vec::new();
    // The usual C compiler as linker, then the linker that comes with the toolchain.
    for linker in [&[][..], &["-Clinker=rust-lld", "-Clinker-flavor=ld.lld"][..]] {
        let direct = !linker.is_empty();
        let link_arguments: &[&str] = if direct {
            &["-Clink-args=-static -z noexecstack --build-id=none"]
        } else {
            &["-Clink-args=-nostartfiles -nostdlib -static -no-pie -Wl,-z,noexecstack -Wl,--build-id=none"]
        };
        #[expect(clippy::disallowed_methods, reason = "a build script starts the compiler")]
        let result = Command::new(&compiler)
            .args(["--edition=2024", "--crate-type=bin", "--crate-name=init", "--target", target])
            .args(["-Cpanic=abort", "-Copt-level=s", model, "-Cstrip=symbols"])
            .args(["-Coverflow-checks=off", "-Cdebug-assertions=off", "-Cforce-unwind-tables=no"])
            .args(linker)
            .args(link_arguments)
            .arg("-o")
            .arg(program)
            .arg(source)
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .output();
        match result {
            Ok(output) if output.status.success() => return Ok(None),
            Ok(output) => failures.push(first_line(&output.stderr)),
            Err(error) => failures.push(error.to_string()),
        }
    }
    Ok(Some(format!("the compiler could not build its first process ({})", failures.join("; "))))
}

fn first_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().next().unwrap_or("no message").replace('"', "'")
}

#[expect(clippy::disallowed_methods, reason = "a build script is told everything by its environment")]
fn variable(name: &str) -> Result<String, Box<dyn Error>> {
    std::env::var(name).map_err(|error| format!("cargo did not set {name}: {error}").into())
}

//! The arguments of `exec`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use toolpost_sandbox::{Language, Level};

use super::permission::{ChangesArgs, DirectoryArgs};
use super::values::{Backend, Pull};
use crate::parse::{duration, size};

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("program").required(true).multiple(true)
    .args(["code", "command", "fork", "reset", "interrupt", "end", "sessions"]))]
pub(crate) struct ExecArgs {
    /// A file with code, or `-` for standard input.
    #[arg(value_name = "CODE-FILE")]
    pub(crate) code: Option<PathBuf>,
    /// A host program with its arguments, or arguments of the code.
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<OsString>,
    /// The language of the code; defaults to the file's extension.
    #[arg(long, value_name = "LANGUAGE", help_heading = "Input")]
    pub(crate) lang: Option<Language>,
    /// Set an environment variable. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Input")]
    pub(crate) env: Vec<String>,
    /// A file for standard input; `-` passes this command's own.
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub(crate) stdin: Option<PathBuf>,
    /// Copy a file into the workspace. May be repeated.
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub(crate) attach: Vec<PathBuf>,
    /// Work in a host directory; apply checked changes at the end.
    #[arg(long, value_name = "DIR", help_heading = "Input")]
    pub(crate) workdir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) changes: ChangesArgs,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
    /// Sandbox level: minimal, standard, strict or maximum; defaults to the best.
    #[arg(long, value_name = "LEVEL", help_heading = "Sandbox")]
    pub(crate) level: Option<Level>,
    /// Fall back to a lower level when the host lacks `--level`.
    #[arg(long, hide = true, help_heading = "Sandbox", requires = "level")]
    pub(crate) allow_degraded: bool,
    /// Wall-clock limit, such as `10s`; defaults to 30s.
    #[arg(long, value_name = "D", help_heading = "Sandbox", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Memory limit of all processes, such as `1G`; defaults to 512M.
    #[arg(long, value_name = "SIZE", help_heading = "Sandbox", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// CPU quota in processors, such as `0.5`.
    #[arg(long, value_name = "X", help_heading = "Sandbox")]
    pub(crate) cpu: Option<f32>,
    /// CPU time limit of all processes, such as `5s`.
    #[arg(long, hide = true, value_name = "D", help_heading = "Sandbox", value_parser = duration)]
    pub(crate) cpu_time: Option<Duration>,
    /// Idle limit: time without output and CPU use, such as `10s`.
    #[arg(long, hide = true, value_name = "D", help_heading = "Sandbox", value_parser = duration)]
    pub(crate) idle: Option<Duration>,
    /// Limit of processes and threads; defaults to 64.
    #[arg(long, value_name = "N", help_heading = "Sandbox")]
    pub(crate) pids: Option<u32>,
    /// Stored size of each output, head and tail; defaults to 1M.
    #[arg(long, value_name = "SIZE", help_heading = "Sandbox", value_parser = size)]
    pub(crate) max_output: Option<u64>,
    /// Total output after which the program is stopped.
    #[arg(long, hide = true, value_name = "SIZE", help_heading = "Sandbox", value_parser = size)]
    pub(crate) max_total_output: Option<u64>,
    /// File size limit; defaults to 100M.
    #[arg(long, hide = true, value_name = "SIZE", help_heading = "Sandbox", value_parser = size)]
    pub(crate) max_file: Option<u64>,
    /// Allow a host, such as `pypi.org` or `*.example.org:443`. May be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Sandbox")]
    pub(crate) allow_host: Vec<String>,
    /// Allow a private address, such as `127.0.0.1:8080`. May be repeated.
    #[arg(long, hide = true, value_name = "ADDRESS:PORT", help_heading = "Sandbox")]
    pub(crate) allow_address: Vec<SocketAddr>,
    /// Show a host file or directory, read-only. May be repeated.
    #[arg(long, value_name = "PATH", help_heading = "Sandbox")]
    pub(crate) readable: Vec<PathBuf>,
    /// An egress policy in TOML or JSON: hosts, limits, secrets.
    #[arg(long, value_name = "FILE", help_heading = "Sandbox")]
    pub(crate) egress_policy: Option<PathBuf>,
    /// Run in `process` (the default) or `docker`.
    #[arg(long, value_enum, value_name = "BACKEND", help_heading = "Sandbox")]
    pub(crate) backend: Option<Backend>,
    /// The container runtime, such as `runsc`; defaults to the daemon's.
    #[arg(long, hide = true, value_name = "RUNTIME", help_heading = "Sandbox", requires = "backend")]
    pub(crate) runtime: Option<String>,
    /// The container image; defaults to `toolpost/PROFILE` or `toolpost/python`.
    #[arg(
        long,
        value_name = "IMAGE",
        help_heading = "Sandbox",
        requires = "backend",
        conflicts_with = "profile"
    )]
    pub(crate) image: Option<String>,
    /// When to pull `--image`: never (the default), missing or always.
    #[arg(long, hide = true, value_name = "POLICY", help_heading = "Sandbox", requires = "backend")]
    pub(crate) pull: Option<Pull>,
    /// Use the packages of a profile, such as `data`.
    #[arg(long, value_name = "PROFILE", help_heading = "Sandbox")]
    pub(crate) profile: Option<String>,
    /// Install a `pip` or `npm` package, such as `requests==2.*`. May be repeated.
    #[arg(long, value_name = "PACKAGE", help_heading = "Sandbox")]
    pub(crate) requirement: Vec<String>,
    /// Run the code in a live interpreter of this name.
    #[arg(long, value_name = "ID", help_heading = "Session", conflicts_with_all = ["stdin", "review", "discard"])]
    pub(crate) session: Option<String>,
    /// Fork the session's memory and files into a new session.
    #[arg(long, value_name = "ID", help_heading = "Session", requires = "session", conflicts_with_all = ["reset", "interrupt", "end"])]
    pub(crate) fork: Option<String>,
    /// Restart the session's interpreter; files stay.
    #[arg(long, help_heading = "Session", requires = "session")]
    pub(crate) reset: bool,
    /// Interrupt the code that runs in the session.
    #[arg(long, hide = true, help_heading = "Session", requires = "session", conflicts_with_all = ["code", "reset", "end"])]
    pub(crate) interrupt: bool,
    /// End the session.
    #[arg(long, help_heading = "Session", requires = "session", conflicts_with_all = ["code", "reset"])]
    pub(crate) end: bool,
    /// List the live sessions.
    #[arg(long, help_heading = "Session", conflicts_with_all = ["code", "command", "session"])]
    pub(crate) sessions: bool,
    /// Idle time after which a new session ends; defaults to 30m.
    #[arg(long, hide = true, value_name = "D", help_heading = "Session", requires = "session", value_parser = duration)]
    pub(crate) keep: Option<Duration>,
    /// Write new files to a directory, instead of listing them.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) artifacts: Option<PathBuf>,
}

//! The log: silent by default, on standard error or in a file.

use std::fs::OpenOptions;
use std::io;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::args::{Global, LogFormat};
use crate::env;
use crate::failure::Failure;

/// Starts the log. `--log` counts before `TOOLPOST_LOG`, and that before `-v`.
pub(crate) fn start(global: &Global) -> Result<(), Failure> {
    let asked = global.log.clone().or_else(|| env::get("TOOLPOST_LOG"));
    let usual = match (global.verbose, &global.log_file) {
        (0, None) => "off",
        (0 | 1, _) => "info",
        (2, _) => "debug",
        _ => "trace",
    };
    let filter = asked.as_deref().unwrap_or(usual);
    let filter = EnvFilter::builder().parse(filter).map_err(|error| {
        Failure::usage(format!("the log filter `{filter}`: {error}"))
            .hint("Write a level, or parts and levels: `debug`, `toolpost_llm=trace,warn`.")
    })?;
    let writer = match &global.log_file {
        None => BoxMakeWriter::new(io::stderr),
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            BoxMakeWriter::new(Mutex::new(file.map_err(|error| Failure::file("the log file", path, &error))?))
        }
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false);
    match global.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

//! Tool programs: a `main` that turns a toolbox into an executable.

pub(crate) mod log;
#[cfg(feature = "mcp")]
mod mcp;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{SpecError, ToolError};
use toolpost_exec::server::{self, Streams};
use toolpost_toolbox::{Toolbox, ToolboxBuilder};
use tracing::level_filters::LevelFilter;

use crate::environment;

/// The time that tasks that a tool left running may take to end.
const GRACE: Duration = Duration::from_millis(100);
/// The exit code when the toolbox fails to build.
const MISCONFIGURED: u8 = 2;

/// A value that [`main`] builds a toolbox from: a [`Toolbox`], a [`ToolboxBuilder`], or a `Result` of either.
pub trait IntoToolbox {
    /// Builds the toolbox.
    ///
    /// # Errors
    /// The first invalid tool, a duplicate name, or the error inside the `Result`.
    fn into_toolbox(self) -> Result<Toolbox, ToolError>;
}

impl IntoToolbox for Toolbox {
    fn into_toolbox(self) -> Result<Toolbox, ToolError> {
        Ok(self)
    }
}

impl IntoToolbox for ToolboxBuilder {
    fn into_toolbox(self) -> Result<Toolbox, ToolError> {
        Ok(self.build()?)
    }
}

impl IntoToolbox for Result<Toolbox, SpecError> {
    fn into_toolbox(self) -> Result<Toolbox, ToolError> {
        Ok(self?)
    }
}

impl<T: IntoToolbox> IntoToolbox for Result<T, ToolError> {
    fn into_toolbox(self) -> Result<Toolbox, ToolError> {
        self?.into_toolbox()
    }
}

/// Runs a toolbox as a program: handles the command line and returns the exit code.
///
/// The program speaks the executable protocol on standard input and output. On a terminal, a call prints its result as
/// text, and `--help` explains the rest. Output of tools and the log go to standard error. `TOOLPOST_LOG`, else
/// `RUST_LOG`, sets the log levels, such as `debug` or `toolpost::call=debug,warn`. `build` runs inside the runtime of
/// the calls. [`ToolProgram`] sets a name, a version and a description.
///
/// ```no_run
/// use toolpost::{Toolbox, tool};
///
/// /// Add two numbers.
/// #[tool]
/// async fn add(a: i64, b: i64) -> i64 {
///     a + b
/// }
///
/// fn main() -> std::process::ExitCode {
///     toolpost::main(|| Toolbox::builder().tool(add))
/// }
/// ```
pub fn main<T: IntoToolbox>(build: impl Fn() -> T) -> ExitCode {
    ToolProgram::new(build).main()
}

/// A tool program with its name, version and description for `--discover` and `--help`.
///
/// ```no_run
/// # use toolpost::{ToolProgram, Toolbox};
/// fn main() -> std::process::ExitCode {
///     ToolProgram::new(|| Toolbox::builder())
///         .name("weather")
///         .version(env!("CARGO_PKG_VERSION"))
///         .about("Forecasts for the places that you name.")
///         .main()
/// }
/// ```
#[derive(Clone)]
#[must_use = "a program does nothing until `main`"]
pub struct ToolProgram<Build> {
    build: Build,
    name: Option<String>,
    version: String,
    about: Option<String>,
}

impl<T: IntoToolbox, Build: Fn() -> T> ToolProgram<Build> {
    /// Creates a program whose toolbox `build` builds.
    pub fn new(build: Build) -> Self {
        Self { build, name: None, version: "0.1.0".to_owned(), about: None }
    }

    /// Sets the name. Defaults to the name of the executable file.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the version. Defaults to 0.1.0.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Sets the description in `--help`. Defaults to none.
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = Some(about.into());
        self
    }

    /// Handles the command line of this process.
    pub fn main(self) -> ExitCode {
        #[cfg(feature = "workers")]
        crate::worker_entry(&self.build);
        let mut words = std::env::args_os();
        let started_as = words.next().unwrap_or_default();
        let words: Vec<OsString> = words.collect();
        let for_terminal = std::io::stdout().is_terminal();
        // From here on, tools cannot write to the protocol output or read the protocol input.
        let output = server::own_output();
        let reads = ["--resident", "--session", "--sample-via", "--mcp"];
        let is_protocol = |word: &OsString| {
            let word = word.to_string_lossy();
            reads.iter().any(|option| *word == **option || word.starts_with(&format!("{option}=")))
        };
        // A server logs errors; a single call prints its error itself.
        let stays = words.first().is_some_and(|word| word.to_string_lossy().starts_with("--mcp"));
        let usual = if stays { LevelFilter::ERROR } else { LevelFilter::OFF };
        log::start(environment::log().as_deref(), usual);
        let own_input = words.iter().any(is_protocol).then(server::own_input);
        let file = std::path::Path::new(&started_as).file_stem().unwrap_or_default();
        let name = self.name.clone().unwrap_or_else(|| file.to_string_lossy().into_owned());
        let mut program = server::Program::new(name, self.version.clone());
        program.about.clone_from(&self.about);
        program.owns_process = true;
        program.offline = environment::is_offline();
        program.for_terminal = for_terminal;
        program.mcp = cfg!(feature = "mcp");
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return failed(&error.to_string()),
        };
        // Inside the runtime, but not on one of its threads: `build` may create its own runtime.
        let built = {
            let _entered = runtime.enter();
            (self.build)().into_toolbox()
        };
        let status = match built {
            #[cfg(feature = "mcp")]
            Ok(toolbox) if mcp::is_asked(&words) => {
                let served = mcp::serve(Arc::new(toolbox), &program, &words, own_input, output);
                runtime.block_on(served).map_err(|error| error.to_string())
            }
            Ok(toolbox) => {
                let output: Box<dyn Write + Send> = match output {
                    Ok(output) => Box::new(output),
                    Err(_) => Box::new(std::io::stdout()),
                };
                let input: Box<dyn Read + Send> = match own_input {
                    Some(Ok(input)) => Box::new(input),
                    _ => Box::new(std::io::stdin()),
                };
                let streams = Streams { input, output, errors: Box::new(std::io::stderr()) };
                Ok(runtime.block_on(server::serve(Arc::new(toolbox), program, words, streams)))
            }
            Err(error) => Err(error.to_string()),
        };
        runtime.shutdown_timeout(GRACE);
        match status {
            Ok(status) => status.into(),
            Err(error) => failed(&error),
        }
    }
}

impl<Build> std::fmt::Debug for ToolProgram<Build> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolProgram")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

fn failed(reason: &str) -> ExitCode {
    // Standard error is the last resort.
    let _ = writeln!(std::io::stderr(), "error: {reason}");
    ExitCode::from(MISCONFIGURED)
}

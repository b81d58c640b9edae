//! Tool programs: a `main` that makes an executable of a toolbox.

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
use toolpost_toolbox::{Builder, Toolbox};
use tracing::level_filters::LevelFilter;

use crate::environment;

/// How long what a tool leaves running may take to end with the process.
const GRACE: Duration = Duration::from_millis(100);
/// The exit status when the toolbox cannot be put together.
const MISCONFIGURED: u8 = 2;

/// What [`main`] makes a program of: a [`Toolbox`], a [`Builder`], or what `build` gives.
pub trait IntoToolbox {
    /// The toolbox.
    ///
    /// # Errors
    /// The first tool that contradicts itself, or whose name another one has; what `build` itself could not get.
    fn into_toolbox(self) -> Result<Toolbox, ToolError>;
}

impl IntoToolbox for Toolbox {
    fn into_toolbox(self) -> Result<Toolbox, ToolError> {
        Ok(self)
    }
}

impl IntoToolbox for Builder {
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

/// Makes a tool program of a toolbox: it answers its command line and gives the exit status.
///
/// The program speaks the protocol of executables on standard output and input. On a terminal, a call prints its result
/// as text, and `--help` explains the rest. Whatever tools print goes to standard error, and so does the log: `TOOLPOST_LOG`,
/// or else `RUST_LOG`, says which levels, such as `debug` or `toolpost_toolbox=debug,warn`. `build` is called within the runtime that the calls
/// run on. For a name, a version and a description of its own see [`Program`].
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
    Program::new(build).main()
}

/// A tool program with what `--discover` and `--help` say of it.
///
/// ```no_run
/// # use toolpost::{Program, Toolbox};
/// fn main() -> std::process::ExitCode {
///     Program::new(|| Toolbox::builder())
///         .name("weather")
///         .version(env!("CARGO_PKG_VERSION"))
///         .about("Forecasts for the places that you name.")
///         .main()
/// }
/// ```
#[derive(Clone)]
#[must_use = "a program does nothing until `main`"]
pub struct Program<Build> {
    build: Build,
    name: Option<String>,
    version: String,
    about: Option<String>,
}

impl<T: IntoToolbox, Build: Fn() -> T> Program<Build> {
    /// A program whose toolbox is built so.
    pub fn new(build: Build) -> Self {
        Self { build, name: None, version: "0.1.0".to_owned(), about: None }
    }

    /// Names it. Default: the name of the file that was started.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Says which version it is. Default: 0.1.0.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Says what it is for, in `--help`. Default: nothing.
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = Some(about.into());
        self
    }

    /// Answers the command line of this process.
    pub fn main(self) -> ExitCode {
        #[cfg(feature = "workers")]
        crate::worker_entry(&self.build);
        let mut words = std::env::args_os();
        let started_as = words.next().unwrap_or_default();
        let words: Vec<OsString> = words.collect();
        let for_person = std::io::stdout().is_terminal();
        // Nothing that runs later may write to standard output, or read what is for the protocol.
        let output = server::own_output();
        let reads = ["--resident", "--session", "--sample-via", "--mcp"];
        let is_protocol = |word: &OsString| {
            let word = word.to_string_lossy();
            reads.iter().any(|option| *word == **option || word.starts_with(&format!("{option}=")))
        };
        // A program that stays logs errors; one call prints its error itself.
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
        program.for_person = for_person;
        program.mcp = cfg!(feature = "mcp");
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return failed(&error.to_string()),
        };
        // Within the runtime, but not on one of its threads: what is built may bring a runtime of its own.
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

impl<Build> std::fmt::Debug for Program<Build> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

fn failed(reason: &str) -> ExitCode {
    // Nobody is left to tell if this cannot be written.
    let _ = writeln!(std::io::stderr(), "error: {reason}");
    ExitCode::from(MISCONFIGURED)
}

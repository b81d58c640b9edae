//! Parts of the process backend that a container backend shares: policy, capture, copies, commands of languages.

use std::borrow::Cow;
use std::ffi::OsString;

use crate::language::{CODE_PATH, HEAP, Product, Way};
use crate::platform::{heap, java_names};
use crate::{Error, Language, Level, Limits};

pub use crate::platform::{
    CacheLookup, CacheSlot, CopiedDirectory, OutputCapture, differences, open_regular,
};

/// The static program for the first process of a container, or the reason why this build lacks it.
///
/// It needs feature `container`.
pub fn first_process() -> Result<&'static [u8], &'static str> {
    #[cfg(feature = "container")]
    let (program, missing): (&[u8], _) =
        (include_bytes!(env!("TOOLPOST_SANDBOX_CONTAINER")), env!("TOOLPOST_SANDBOX_CONTAINER_MISSING"));
    #[cfg(not(feature = "container"))]
    let (program, missing): (&[u8], _) = (&[], "the feature `container` is off");
    if program.is_empty() { Err(missing) } else { Ok(program) }
}

/// The system call policy of a level as a seccomp profile for container runtimes.
pub fn seccomp_profile(level: Level, has_egress: bool) -> serde_json::Value {
    crate::platform::profile(level, has_egress)
}

/// Checks a file name that crosses between host and workspace.
pub fn check_file_name(name: &str) -> Result<(), Error> {
    crate::sandbox::check_file_name(name)
}

/// Checks the name of a variable.
pub fn check_variable(name: &str) -> Result<(), Error> {
    crate::sandbox::check_variable(name)
}

/// The commands that interpret code at `code_path`, in order of preference. Each begins with its program.
pub fn interpreters(language: Language, code_path: &str, arguments: &[OsString]) -> Vec<Vec<OsString>> {
    let command = |runner: &crate::language::Runner| {
        let Way::Interpret { arguments: own } = runner.way else { return None };
        let own = own.iter().map(|argument| if *argument == CODE_PATH { code_path } else { argument });
        let tail = language.tail(runner.program, std::iter::empty(), arguments);
        Some(std::iter::once(runner.program).chain(own).map(OsString::from).chain(tail).collect())
    };
    language.runners().iter().filter_map(command).collect()
}

/// The code in the form that its interpreter reads.
pub fn code_text(language: Language, source: &str) -> Cow<'_, [u8]> {
    language.text(source)
}

/// The names of a language's programs, for messages.
pub fn program_names(language: Language) -> String {
    language.program_names()
}

/// A compiler for code of a compiled language.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compiler {
    /// The name to search for.
    pub program: &'static str,
    /// The arguments.
    pub arguments: Vec<String>,
    /// The name of the source file.
    pub source_file: String,
    /// The shell script that runs the program and its arguments (`"$@"`).
    pub script: &'static str,
    /// The file that the build creates.
    pub result: &'static str,
    /// The class with `main`, for Java. The script reads it from the variable `MAIN_CLASS`.
    pub main_class: Option<String>,
}

impl Compiler {
    /// The compilers for code, in order of preference. `build_limits` apply to the build.
    pub fn all(language: Language, source: &str, build_limits: &Limits) -> Vec<Self> {
        let heap = heap(build_limits);
        let compiler = |runner: &crate::language::Runner| {
            let Way::Build { source: file, arguments, script, result, product } = runner.way else {
                return None;
            };
            let names = (product == Product::Archive).then(|| java_names(source));
            let source_file = names.as_ref().map_or_else(|| file.to_owned(), |names| names.file.clone());
            let mut arguments: Vec<String> =
                arguments.iter().map(|argument| argument.replace(HEAP, &heap)).collect();
            arguments.extend(names.is_some().then(|| source_file.clone()));
            let main_class = names.map(|names| names.main);
            Some(Self { program: runner.program, arguments, source_file, script, result, main_class })
        };
        language.runners().iter().filter_map(compiler).collect()
    }

    /// The command that starts the built program at a path, under the limits of the run.
    pub fn start(&self, path: &str, limits: &Limits) -> Vec<OsString> {
        let Some(main_class) = &self.main_class else { return vec![path.into()] };
        let machine = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"];
        let rest = [format!("-Xmx{}m", heap(limits)), "-cp".into(), path.into(), main_class.clone()];
        machine.map(str::to_owned).into_iter().chain(rest).map(OsString::from).collect()
    }
}

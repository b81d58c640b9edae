//! The languages whose code the sandbox runs: one table of their differences.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::level::{nearest, shorten};

/// A language whose code the sandbox can run.
///
/// [`crate::Outcome::value`] depends on the language, unless the code prints a line `::result JSON`. Python,
/// JavaScript, TypeScript, Ruby and R return the value of the last expression. Lua and PHP return the result
/// of a top-level `return`. SQLite returns the rows of the last statement that has any. The others return no
/// value: in Perl every last statement would have one, and shells and compiled languages have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Language {
    /// Python 3 in isolated mode.
    Python,
    /// JavaScript on Node.js.
    JavaScript,
    /// TypeScript: Node.js 22.13 or later with type stripping, else Deno, Bun, or `tsc` or `esbuild`.
    TypeScript,
    /// GNU bash, also for the name `shell` and for files `*.sh`, which often need it.
    Bash,
    /// The system's POSIX shell.
    Sh,
    /// Ruby.
    Ruby,
    /// Perl 5.
    Perl,
    /// Go, compiled.
    Go,
    /// Rust, compiled by `rustc`: the standard library only.
    Rust,
    /// Java, compiled; the class with `main` is detected.
    Java,
    /// C, compiled.
    C,
    /// C++, compiled.
    #[serde(rename = "c++")]
    Cpp,
    /// R.
    R,
    /// Lua.
    Lua,
    /// PHP, with or without the opening `<?php`.
    Php,
    /// SQL in the SQLite shell with a database in memory; `.open FILE` uses one of the workspace.
    Sqlite,
}

/// The program that runs or builds a language on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLanguage {
    /// The program.
    pub path: PathBuf,
    /// Its version, or the line that it printed: at most 80 printable characters.
    pub version: String,
    /// Builds the code.
    pub is_compiler: bool,
}

/// The processing of code by a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The program runs the code. [`CODE_PATH`] in an argument is the path of the code, also on descriptor 5.
    Interpret {
        /// The arguments.
        arguments: &'static [&'static str],
    },
    /// The program builds the code.
    Build {
        /// The name of the source file. For Java it depends on the code.
        source: &'static str,
        /// The arguments; [`HEAP`] in one is a share of the memory limit in MiB.
        arguments: &'static [&'static str],
        /// A shell script that runs the program and its arguments (`"$@"`).
        script: &'static str,
        /// The file that the build creates.
        result: &'static str,
        /// The kind of result.
        product: Product,
    },
}

/// The kind of a build's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Product {
    /// A native program.
    Program,
    /// An archive of Java classes.
    Archive,
    /// JavaScript for Node.js.
    JavaScript,
}

/// A program that can run or build a language.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    any(not(target_os = "linux"), toolpost_simulate_other_host),
    expect(dead_code, reason = "only the Linux side reads it")
)]
pub(crate) struct Runner {
    /// The name to search for.
    pub(crate) program: &'static str,
    /// The arguments that print its version.
    pub(crate) version: &'static [&'static str],
    /// The minimum version, if any.
    pub(crate) since: Option<(u32, u32)>,
    /// Its processing of the code.
    pub(crate) way: Way,
}

/// The placeholder for the path of the code in [`Way::Interpret`].
pub(crate) const CODE_PATH: &str = "{code}";
/// The placeholder for half of the memory limit in MiB, for the Java VM.
#[cfg_attr(
    any(not(target_os = "linux"), toolpost_simulate_other_host),
    expect(dead_code, reason = "only the Linux side reads it")
)]
pub(crate) const HEAP: &str = "{heap}";

/// A Python driver with the code that renders values and figures. A literal costs nothing until it is
/// compiled.
macro_rules! python_driver {
    ($driver:literal) => {
        concat!(
            "VALUE = r\"\"\"\n",
            include_str!("../drivers/value.py"),
            "\"\"\"\nDISPLAY = r\"\"\"\n",
            include_str!("../drivers/display.py"),
            "\"\"\"\n",
            include_str!($driver)
        )
    };
}
const PYTHON_DRIVER: &str = python_driver!("../drivers/python.py");
/// The driver of a Python session.
#[cfg_attr(
    any(not(target_os = "linux"), toolpost_simulate_other_host),
    expect(dead_code, reason = "only the Linux side reads it")
)]
pub(crate) const PYTHON_SESSION: &str = python_driver!("../drivers/session.py");
/// A JavaScript driver: a function with its first arguments, and the function that renders values.
macro_rules! javascript_driver {
    ($driver:literal, $arguments:literal) => {
        concat!("(", include_str!($driver), ")(", $arguments, include_str!("../drivers/value.js"), ")")
    };
}
/// One driver for both: they differ in the file name and in the conversion to JavaScript.
const JAVASCRIPT_DRIVER: &str = javascript_driver!("../drivers/node.js", "'main.js', (code) => code, ");
const TYPESCRIPT_DRIVER: &str =
    javascript_driver!("../drivers/node.js", "'main.ts', require('module').stripTypeScriptTypes, ");
/// The driver of a JavaScript session.
#[cfg_attr(
    any(not(target_os = "linux"), toolpost_simulate_other_host),
    expect(dead_code, reason = "only the Linux side reads it")
)]
pub(crate) const JAVASCRIPT_SESSION: &str = javascript_driver!("../drivers/session.js", "");
const RUBY_DRIVER: &str = include_str!("../drivers/ruby.rb");
const R_DRIVER: &str = include_str!("../drivers/r.R");
/// Begins with a line break: `lua` rejects code that begins with a dash, as a comment does.
const LUA_DRIVER: &str = concat!("\n", include_str!("../drivers/lua.lua"));
const PHP_DRIVER: &str = include_str!("../drivers/php.php");

/// One row of the table.
#[derive(Debug)]
struct LanguageEntry {
    language: Language,
    /// The name on a command line and in a record.
    name: &'static str,
    /// Other spellings.
    aliases: &'static [&'static str],
    /// The file extensions without the dot.
    extensions: &'static [&'static str],
    /// The programs that run or build it; the first one found is used.
    runners: &'static [Runner],
    /// The installation.
    hint: &'static str,
}

const VERSION: &[&str] = &["--version"];

const fn interpreter(program: &'static str, arguments: &'static [&'static str]) -> Runner {
    Runner { program, version: VERSION, since: None, way: Way::Interpret { arguments } }
}

const fn compiler(program: &'static str, source: &'static str, arguments: &'static [&'static str]) -> Runner {
    let way =
        Way::Build { source, arguments, script: DIRECTLY, result: "program", product: Product::Program };
    Runner { program, version: VERSION, since: None, way }
}

/// Runs the program.
const DIRECTLY: &str = r#"exec "$@""#;
/// Runs a compiler that prints messages to standard output.
const TO_STDERR: &str = r#"exec "$@" >&2"#;
/// Go needs a cache and must not fetch modules. Both stay out of the result.
const GO: &str = r#"export GOCACHE="$TMPDIR/go-cache" GOPATH="$TMPDIR/go-path" GOENV=off GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0
"$@"; status=$?
rm -rf "$GOCACHE" "$GOPATH"
exit $status"#;
/// `jar`, which is beside `javac`, packs the classes into one file.
const JAVA: &str =
    r#""$@" && exec "${1%javac}jar" --create --file program.jar --main-class "$MAIN_CLASS" -C classes ."#;

const C: &[&str] = &["-O2", "-o", "program", "main.c", "-lm"];
const CPP: &[&str] = &["-O2", "-o", "program", "main.cpp"];

/// Every language, in the order of the enum.
const TABLE: [LanguageEntry; 16] = [
    LanguageEntry {
        language: Language::Python,
        name: "python",
        aliases: &["python3", "py"],
        extensions: &["py"],
        runners: &[interpreter("python3", &["-I", "-c", PYTHON_DRIVER])],
        hint: "install it, for example `apt-get install python3`",
    },
    LanguageEntry {
        language: Language::JavaScript,
        name: "javascript",
        aliases: &["js", "node", "nodejs", "mjs"],
        extensions: &["js", "mjs", "cjs"],
        runners: &[interpreter("node", &["--no-warnings", "-e", JAVASCRIPT_DRIVER])],
        hint: "install it, for example `apt-get install nodejs`",
    },
    LanguageEntry {
        language: Language::TypeScript,
        name: "typescript",
        aliases: &["ts"],
        extensions: &["ts", "mts", "cts"],
        runners: &[
            Runner {
                program: "node",
                version: VERSION,
                // The version with `module.stripTypeScriptTypes`.
                since: Some((22, 13)),
                way: Way::Interpret { arguments: &["--no-warnings", "-e", TYPESCRIPT_DRIVER] },
            },
            Runner {
                program: "tsc",
                version: VERSION,
                // The version with `--noCheck`: types are removed without a check, as in Node.js.
                since: Some((5, 5)),
                way: Way::Build {
                    source: "main.ts",
                    arguments: &[
                        "--target",
                        "es2022",
                        "--module",
                        "es2022",
                        "--moduleResolution",
                        "bundler",
                        "--moduleDetection",
                        "auto",
                        "--noCheck",
                        "--pretty",
                        "false",
                        "main.ts",
                    ],
                    script: TO_STDERR,
                    result: "main.js",
                    product: Product::JavaScript,
                },
            },
            Runner {
                program: "esbuild",
                version: VERSION,
                since: None,
                way: Way::Build {
                    source: "main.ts",
                    arguments: &["main.ts", "--outfile=main.js", "--target=es2022", "--log-level=warning"],
                    script: DIRECTLY,
                    result: "main.js",
                    product: Product::JavaScript,
                },
            },
            interpreter(
                "deno",
                &["run", "--quiet", "--no-check", "--no-remote", "--allow-all", "--ext=ts", CODE_PATH],
            ),
        ],
        hint: "install Node.js 22.13 or later, or a compiler, for example `npm install --global typescript`",
    },
    LanguageEntry {
        language: Language::Bash,
        name: "bash",
        aliases: &["shell"],
        extensions: &["bash", "sh"],
        runners: &[interpreter("bash", &["--noprofile", "--norc", CODE_PATH])],
        hint: "install it, for example `apt-get install bash`",
    },
    LanguageEntry {
        language: Language::Sh,
        name: "sh",
        aliases: &["posix", "dash"],
        extensions: &[],
        runners: &[Runner {
            program: "sh",
            // POSIX defines no version option; other shells set one of these variables.
            version: &["-c", "echo \"${BASH_VERSION:-${KSH_VERSION:-POSIX}}\""],
            since: None,
            way: Way::Interpret { arguments: &[CODE_PATH] },
        }],
        hint: "install it, for example `apt-get install dash`",
    },
    LanguageEntry {
        language: Language::Ruby,
        name: "ruby",
        aliases: &["rb"],
        extensions: &["rb"],
        runners: &[interpreter("ruby", &["-e", RUBY_DRIVER])],
        hint: "install it, for example `apt-get install ruby`",
    },
    LanguageEntry {
        language: Language::Perl,
        name: "perl",
        aliases: &["pl", "perl5"],
        extensions: &["pl", "pm"],
        runners: &[Runner {
            program: "perl",
            version: &["-e", "print $^V"],
            since: None,
            way: Way::Interpret { arguments: &[CODE_PATH] },
        }],
        hint: "install it, for example `apt-get install perl`",
    },
    LanguageEntry {
        language: Language::Go,
        name: "go",
        aliases: &["golang"],
        extensions: &["go"],
        runners: &[Runner {
            program: "go",
            version: &["version"],
            since: None,
            way: Way::Build {
                source: "main.go",
                arguments: &["build", "-trimpath", "-ldflags=-s -w", "-o", "program", "main.go"],
                script: GO,
                result: "program",
                product: Product::Program,
            },
        }],
        hint: "install it, for example `apt-get install golang-go`",
    },
    LanguageEntry {
        language: Language::Rust,
        name: "rust",
        aliases: &["rs"],
        extensions: &["rs"],
        runners: &[compiler(
            "rustc",
            "main.rs",
            &[
                "--edition=2021",
                "--crate-name=main",
                "-Copt-level=2",
                "-Cstrip=symbols",
                "--color=never",
                "-o",
                "program",
                "main.rs",
            ],
        )],
        hint: "install it from https://rustup.rs, or for example `apt-get install rustc`; it needs `cc` to link",
    },
    LanguageEntry {
        language: Language::Java,
        name: "java",
        aliases: &["jdk"],
        extensions: &["java"],
        runners: &[Runner {
            program: "javac",
            version: VERSION,
            since: None,
            way: Way::Build {
                source: "Main.java",
                arguments: &[
                    "-J-Xmx{heap}m",
                    "-J-XX:+UseSerialGC",
                    "-J-XX:TieredStopAtLevel=1",
                    "-J-XX:-UsePerfData",
                    "-encoding",
                    "UTF-8",
                    "-d",
                    "classes",
                ],
                script: JAVA,
                result: "program.jar",
                product: Product::Archive,
            },
        }],
        hint: "install it, for example `apt-get install default-jdk-headless`",
    },
    LanguageEntry {
        language: Language::C,
        name: "c",
        aliases: &["c99", "c11", "c17"],
        extensions: &["c"],
        runners: &[compiler("cc", "main.c", C), compiler("gcc", "main.c", C), compiler("clang", "main.c", C)],
        hint: "install it, for example `apt-get install gcc libc6-dev`",
    },
    LanguageEntry {
        language: Language::Cpp,
        name: "c++",
        aliases: &["cpp", "cxx", "cc"],
        extensions: &["cpp", "cxx", "cc"],
        runners: &[
            compiler("c++", "main.cpp", CPP),
            compiler("g++", "main.cpp", CPP),
            compiler("clang++", "main.cpp", CPP),
        ],
        hint: "install it, for example `apt-get install g++`",
    },
    LanguageEntry {
        language: Language::R,
        name: "r",
        aliases: &["rscript"],
        extensions: &["r"],
        runners: &[interpreter("Rscript", &["--vanilla", "-e", R_DRIVER])],
        hint: "install it, for example `apt-get install r-base-core`",
    },
    LanguageEntry {
        language: Language::Lua,
        name: "lua",
        aliases: &[],
        extensions: &["lua"],
        runners: &[
            Runner { version: &["-v"], ..interpreter("lua", &["-e", LUA_DRIVER]) },
            Runner { version: &["-v"], ..interpreter("lua5.4", &["-e", LUA_DRIVER]) },
            Runner { version: &["-v"], ..interpreter("lua5.3", &["-e", LUA_DRIVER]) },
            Runner { version: &["-v"], ..interpreter("luajit", &["-e", LUA_DRIVER]) },
        ],
        hint: "install it, for example `apt-get install lua5.4`",
    },
    LanguageEntry {
        language: Language::Php,
        name: "php",
        aliases: &["php8"],
        extensions: &["php"],
        runners: &[interpreter("php", &["-d", "display_errors=stderr", "-r", PHP_DRIVER])],
        hint: "install it, for example `apt-get install php-cli`",
    },
    LanguageEntry {
        language: Language::Sqlite,
        name: "sqlite",
        aliases: &["sqlite3", "sql"],
        extensions: &["sql"],
        runners: &[interpreter("sqlite3", &["-batch", "-bail", "-json", ":memory:", ".read {code}"])],
        hint: "install it, for example `apt-get install sqlite3`",
    },
];

impl Language {
    /// Every language of this build.
    pub const ALL: [Self; 16] = [
        Self::Python,
        Self::JavaScript,
        Self::TypeScript,
        Self::Bash,
        Self::Sh,
        Self::Ruby,
        Self::Perl,
        Self::Go,
        Self::Rust,
        Self::Java,
        Self::C,
        Self::Cpp,
        Self::R,
        Self::Lua,
        Self::Php,
        Self::Sqlite,
    ];

    fn entry(self) -> &'static LanguageEntry {
        &TABLE[self as usize]
    }

    /// The canonical name.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// Other accepted names.
    pub fn aliases(self) -> &'static [&'static str] {
        self.entry().aliases
    }

    /// The file extensions, lower case, without the dot.
    pub fn extensions(self) -> &'static [&'static str] {
        self.entry().extensions
    }

    /// The language of a file extension (without the dot, in any case), if known.
    pub fn from_extension(extension: &str) -> Option<Self> {
        let lower = extension.to_ascii_lowercase();
        Self::ALL.into_iter().find(|language| language.extensions().contains(&lower.as_str()))
    }

    /// The usual program that runs or builds the language.
    pub fn program(self) -> &'static str {
        self.entry().runners[0].program
    }

    /// The programs that can run or build the language, in search order.
    pub fn programs(self) -> impl Iterator<Item = &'static str> {
        self.entry().runners.iter().map(|runner| runner.program)
    }

    /// Whether code is built before it runs, in a separate sandbox, by the usual program of the language.
    pub fn is_compiled(self) -> bool {
        matches!(self.entry().runners[0].way, Way::Build { .. })
    }

    /// The command that installs the program on a common system.
    pub fn install_hint(self) -> &'static str {
        self.entry().hint
    }

    /// The programs that can run or build it.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side reads it")
    )]
    pub(crate) fn runners(self) -> &'static [Runner] {
        self.entry().runners
    }

    /// The arguments after the program's own: package directories and the arguments of the code.
    ///
    /// A separator keeps the program from parsing the code's arguments as its own.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side reads it")
    )]
    pub(crate) fn tail(
        self,
        program: &str,
        packages: impl Iterator<Item = OsString>,
        arguments: &[OsString],
    ) -> Vec<OsString> {
        // The words before the packages, and between packages and arguments.
        let (first, mark) = match (self, program) {
            _ if arguments.is_empty() => (None, None),
            (Self::JavaScript | Self::TypeScript, "node") => (Some("--"), Some("--")),
            (Self::Python | Self::Ruby | Self::Php, _) => (None, Some("--")),
            (Self::Lua, _) => (None, Some("main.lua")),
            // The driver removes it.
            (Self::R, _) => (None, Some("main.R")),
            _ => (None, None),
        };
        let before = first.map(OsString::from).into_iter().chain(packages);
        before.chain(mark.map(OsString::from)).chain(arguments.iter().cloned()).collect()
    }

    /// The code in the form that the program reads.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side reads it")
    )]
    pub(crate) fn text(self, source: &str) -> std::borrow::Cow<'_, [u8]> {
        match self {
            // Messages then name the code instead of a descriptor.
            Self::Perl => format!("#line 1 \"main.pl\"\n{source}").into_bytes().into(),
            _ => source.as_bytes().into(),
        }
    }

    /// Whether the program prints the value itself, as R and the SQLite shell do.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side reads it")
    )]
    pub(crate) fn prints_value(self) -> bool {
        matches!(self, Self::R | Self::Sqlite)
    }

    /// Extracts the value from the output, for programs without another channel.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side reads it")
    )]
    pub(crate) fn printed_value(self, stdout: &crate::Captured) -> Option<serde_json::Value> {
        if self != Self::Sqlite || stdout.dropped > 0 {
            return None;
        }
        // One array per statement with rows; anything else means another output format.
        let mut last = None;
        for value in serde_json::Deserializer::from_slice(&stdout.head).into_iter() {
            last = Some(value.ok()?);
        }
        last
    }

    /// The names of all languages, for messages.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The program names for messages.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side reads it")
    )]
    pub(crate) fn program_names(self) -> String {
        let names: Vec<String> = self.programs().map(|name| format!("`{name}`")).collect();
        match names.as_slice() {
            [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
            _ => names.concat(),
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Language {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let lower = name.to_ascii_lowercase();
        let spellings = || {
            TABLE.iter().flat_map(|entry| {
                std::iter::once(entry.name)
                    .chain(entry.aliases.iter().copied())
                    .map(|spelling| (spelling, entry.language))
            })
        };
        spellings().find(|(spelling, _)| *spelling == lower).map(|(_, language)| language).ok_or_else(|| {
            // Names of one or two letters are near every other name.
            let candidates: Vec<&'static str> =
                spellings().map(|(spelling, _)| spelling).filter(|spelling| spelling.len() > 2).collect();
            Error::UnknownLanguage { name: shorten(name), suggestion: nearest(&lower, &candidates) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_every_spelling_is_one_language() {
        let mut spellings = Vec::new();
        let mut extensions = Vec::new();
        for (entry, language) in TABLE.iter().zip(Language::ALL) {
            assert_eq!(entry.language, language);
            assert!(!entry.runners.is_empty() && entry.hint.contains("install"), "{language}");
            spellings.push(entry.name);
            spellings.extend(entry.aliases);
            extensions.extend(entry.extensions);
        }
        for list in [&mut spellings, &mut extensions] {
            let count = list.len();
            list.sort_unstable();
            list.dedup();
            assert_eq!(list.len(), count, "duplicate spelling: {list:?}");
        }
        for language in Language::ALL {
            for spelling in std::iter::once(&language.name()).chain(language.aliases()) {
                assert_eq!(spelling.parse::<Language>().unwrap(), language);
            }
            for extension in language.extensions() {
                assert_eq!(Language::from_extension(extension), Some(language));
            }
            let text = serde_json::to_string(&language).unwrap();
            assert_eq!(text, format!("\"{}\"", language.name()));
            assert_eq!(serde_json::from_str::<Language>(&text).unwrap(), language);
        }
    }

    #[test]
    fn typing_errors_get_the_nearest_name() {
        assert_eq!("NODE".parse::<Language>().unwrap(), Language::JavaScript);
        assert_eq!("sh".parse::<Language>().unwrap(), Language::Sh);
        assert_eq!("shell".parse::<Language>().unwrap(), Language::Bash);
        assert_eq!(Language::from_extension("SH"), Some(Language::Bash));
        assert_eq!(Language::from_extension("txt"), None);
        for (wrong, right) in
            [("pyhton", "python"), ("typscript", "typescript"), ("jawascript", "javascript")]
        {
            let error = wrong.parse::<Language>().unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean `{right}`")), "{error}");
        }
        let error = "cobol".parse::<Language>().unwrap_err().to_string();
        assert!(
            !error.contains("did you mean") && error.contains("python, javascript, typescript"),
            "{error}"
        );
    }

    #[test]
    fn a_hostile_name_is_shortened_and_escaped() {
        let error = "\u{1b}]52;".repeat(1000).parse::<Language>().unwrap_err().to_string();
        assert!(error.len() < 1500 && !error.contains('\u{1b}'), "{error}");
    }

    #[test]
    fn rows_are_a_value_only_where_all_output_is_rows() {
        let printed = |text: &str| {
            let stdout = crate::Captured { head: text.into(), tail: Vec::new(), dropped: 0 };
            Language::Sqlite.printed_value(&stdout)
        };
        assert_eq!(printed("[{\"a\":1}]\n[{\"b\":2},\n{\"b\":3}]\n").unwrap()[1]["b"], 3);
        assert_eq!(printed("a|b\n"), None);
        assert_eq!(printed("[{\"a\":1}]\na|b\n"), None);
        assert_eq!(printed(""), None);
        let cut = crate::Captured { head: b"[1]".to_vec(), tail: b"[2]".to_vec(), dropped: 9 };
        assert_eq!(Language::Sqlite.printed_value(&cut), None);
    }
}

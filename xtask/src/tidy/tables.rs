//! The rules as data. Each row has its reason; to change a rule is to change a row.

use Internal::{All, Only};

/// Which packages of the workspace a package may use.
#[derive(Debug, Clone, Copy)]
pub enum Internal {
    /// These and no others.
    Only(&'static [&'static str]),
    /// Every library, except the one for tests.
    All,
}

/// A package and what it may use.
#[derive(Debug)]
pub struct Layer {
    /// The package's name.
    pub package: &'static str,
    /// Its directory.
    pub directory: &'static str,
    /// The packages of the workspace that it may use; the table of the design.
    pub may_use: Internal,
    /// The hidden part, which makes other arrows unnecessary.
    pub reason: &'static str,
}

/// The packages of the workspace and the arrows between them.
pub const LAYERS: &[Layer] = &[
    Layer {
        package: "toolpost-macros",
        directory: "crates/macros",
        may_use: Only(&[]),
        reason: "turns a function into a tool by text alone",
    },
    Layer {
        package: "toolpost-schema",
        directory: "crates/schema",
        may_use: Only(&[]),
        reason: "knows JSON Schema, nothing of tools and providers",
    },
    Layer {
        package: "toolpost-core",
        directory: "crates/core",
        may_use: Only(&["toolpost-macros", "toolpost-schema"]),
        reason: "the contracts: everything rests on it, so it rests on nothing",
    },
    Layer {
        package: "toolpost-compat",
        directory: "crates/compat",
        may_use: Only(&["toolpost-core"]),
        reason: "hides the vocabulary of another tool framework",
    },
    Layer {
        package: "toolpost-egress",
        directory: "crates/egress",
        may_use: Only(&[]),
        reason: "knows hosts, addresses and a listening socket, nothing of processes",
    },
    Layer {
        package: "toolpost-sandbox",
        directory: "crates/sandbox",
        may_use: Only(&["toolpost-egress"]),
        reason: "knows processes and limits, nothing of tools; useful alone",
    },
    Layer {
        package: "toolpost-runtimes",
        directory: "crates/runtimes",
        may_use: Only(&["toolpost-egress", "toolpost-sandbox"]),
        reason: "knows packages and interpreters, nothing of namespaces and tools",
    },
    Layer {
        package: "toolpost-docker",
        directory: "crates/docker",
        may_use: Only(&["toolpost-egress", "toolpost-sandbox", "toolpost-runtimes"]),
        reason: "hides the Docker API behind the sandbox's `Backend`",
    },
    Layer {
        package: "toolpost-store",
        directory: "crates/store",
        may_use: Only(&["toolpost-core"]),
        reason: "hides the database",
    },
    Layer {
        package: "toolpost-exec",
        directory: "crates/exec",
        may_use: Only(&["toolpost-core", "toolpost-sandbox", "toolpost-schema"]),
        reason: "hides the protocol of executables",
    },
    Layer {
        package: "toolpost-mcp",
        directory: "crates/mcp",
        may_use: Only(&["toolpost-core", "toolpost-sandbox"]),
        reason: "hides the Model Context Protocol",
    },
    Layer {
        package: "toolpost-llm",
        directory: "crates/llm",
        may_use: Only(&["toolpost-core", "toolpost-schema"]),
        reason: "hides the providers' wires; executes no tool",
    },
    Layer {
        package: "toolpost-toolbox",
        directory: "crates/toolbox",
        may_use: Only(&["toolpost-core", "toolpost-schema"]),
        reason: "hides the call path; knows no wire and no process",
    },
    Layer {
        package: "toolpost-gateway",
        directory: "crates/gateway",
        may_use: Only(&["toolpost-core", "toolpost-schema", "toolpost-toolbox"]),
        reason: "hides how sources become one: names, filters, pins, search; knows no wire and no process",
    },
    Layer {
        package: "toolpost-tools",
        directory: "crates/tools",
        may_use: Only(&["toolpost-core", "toolpost-compat", "toolpost-sandbox", "toolpost-runtimes"]),
        reason: "tools as anyone could write them, without the toolbox that calls them",
    },
    Layer {
        package: "toolpost-agent",
        directory: "crates/agent",
        may_use: Only(&["toolpost-core", "toolpost-toolbox", "toolpost-gateway", "toolpost-llm"]),
        reason: "hides the loop between model and tools",
    },
    Layer {
        package: "toolpost-flow",
        directory: "crates/flow",
        may_use: Only(&["toolpost-core", "toolpost-schema", "toolpost-toolbox"]),
        reason: "hides when steps run and what a crash leaves; knows no tool, no store's file and no process",
    },
    Layer {
        package: "toolpost-flow-restate",
        directory: "crates/flow-restate",
        may_use: Only(&["toolpost-core", "toolpost-flow", "toolpost-toolbox"]),
        reason: "hides the server and the library of a durable-execution engine behind the machine of flows",
    },
    Layer {
        package: "toolpost-claude-code",
        directory: "crates/claude-code",
        may_use: Only(&[
            "toolpost-core",
            "toolpost-toolbox",
            "toolpost-agent",
            "toolpost-llm",
            "toolpost-mcp",
            "toolpost-docker",
            "toolpost-sandbox",
        ]),
        reason: "hides the program of another maker, which runs its own loop",
    },
    Layer {
        package: "toolpost-flow",
        directory: "crates/flow",
        may_use: Only(&["toolpost-core", "toolpost-toolbox"]),
        reason: "hides plans and their drivers; an agent reaches it as a tool",
    },
    Layer {
        package: "toolpost-telemetry",
        directory: "crates/telemetry",
        may_use: Only(&["toolpost-core"]),
        reason: "hides the exporters and their names, which still change",
    },
    Layer {
        package: "toolpost-server",
        directory: "crates/server",
        may_use: Only(&[
            "toolpost-core",
            "toolpost-toolbox",
            "toolpost-store",
            "toolpost-mcp",
            "toolpost-agent",
            "toolpost-flow",
            "toolpost-telemetry",
        ]),
        reason: "hides the HTTP framework",
    },
    Layer {
        package: "toolpost",
        directory: "crates/toolpost",
        may_use: All,
        reason: "the façade: re-exports by feature",
    },
    Layer { package: "toolpost-cli", directory: "crates/cli", may_use: All, reason: "the command" },
    Layer {
        package: "toolpost-python",
        directory: "crates/python",
        may_use: Only(&["toolpost"]),
        reason: "the Python package is a user of the façade",
    },
    Layer {
        package: TEST_PACKAGE,
        directory: "crates/testkit",
        may_use: All,
        reason: "development only: it may imitate any part",
    },
    Layer {
        package: "xtask",
        directory: "xtask",
        may_use: Only(&[]),
        reason: "the chores must run while the crates do not build",
    },
];

/// The package that is never a normal dependency: it is not published.
pub const TEST_PACKAGE: &str = "toolpost-testkit";

/// The façade; it and the command are used by no library.
pub const TOP_PACKAGES: &[&str] = &["toolpost", "toolpost-cli", "toolpost-python", "xtask"];

/// The package that may use the façade.
pub const FACADE_USERS: &[&str] = &["toolpost-cli", "toolpost-python"];

/// External crates that only some packages may use, in their libraries, binaries and build scripts. Tests are free.
#[derive(Debug)]
pub struct Exclusive {
    /// The crates; a name that ends with `*` means every crate that begins so.
    pub crates: &'static [&'static str],
    /// The packages that may use them; an empty list means no package.
    pub only: &'static [&'static str],
    /// The reason.
    pub reason: &'static str,
}

/// Which external crates belong to which packages.
pub const EXCLUSIVE: &[Exclusive] = &[
    Exclusive {
        crates: &["axum", "axum-*", "tower-http"],
        only: &["toolpost-server"],
        reason: "one package hides the HTTP framework",
    },
    Exclusive {
        crates: &["rmcp", "rmcp-*"],
        only: &["toolpost-mcp"],
        reason: "the protocol's types change often and stay behind one trait",
    },
    Exclusive {
        crates: &["pyo3", "pyo3-*"],
        only: &["toolpost-python"],
        reason: "the interpreter is bound in one package",
    },
    Exclusive {
        crates: &["restate-sdk", "restate-sdk-*"],
        only: &["toolpost-flow-restate"],
        reason: "its releases break, so one package hides it",
    },
    Exclusive {
        crates: &["reqwest", "rustls", "rustls-*", "webpki-roots"],
        only: &[
            "toolpost-llm",
            "toolpost-tools",
            "toolpost-mcp",
            "toolpost-egress",
            "toolpost-docker",
            "toolpost-flow-restate",
            "toolpost-testkit",
        ],
        reason: "outward HTTP is opened where TOOLPOST_NO_NETWORK and the address rules are honoured; the loopback providers answer",
    },
    Exclusive {
        crates: &["hyper", "hyper-*"],
        only: &["toolpost-mcp", "toolpost-docker", "toolpost-testkit"],
        reason: "raw HTTP is for the MCP service, the Docker API and the loopback providers",
    },
    Exclusive {
        crates: &["clap", "clap_*", "lexopt", "rustyline", "anstream", "anstyle", "indicatif"],
        only: &["toolpost-cli"],
        reason: "only the command has arguments and a terminal",
    },
    Exclusive {
        crates: &["tracing-subscriber"],
        only: &["toolpost-cli"],
        reason: "libraries emit, the command decides where it goes",
    },
    Exclusive {
        crates: &["schemars"],
        only: &["toolpost-core"],
        reason: "schemas of Rust types are made in one place; others use the core's types",
    },
    Exclusive {
        crates: &["jsonschema"],
        only: &["toolpost-schema"],
        reason: "schemas are compiled in one place, which bounds the checks",
    },
    Exclusive {
        crates: &["syn", "quote", "proc-macro2", "darling"],
        only: &["toolpost-macros"],
        reason: "reading Rust is for the macros",
    },
    Exclusive {
        crates: &["libc", "nix"],
        only: &["toolpost-sandbox"],
        reason: "the system's interface, and the unsafe code that it asks for, live in one package",
    },
    Exclusive {
        crates: &["rustix"],
        only: &[
            "toolpost-egress",
            "toolpost-sandbox",
            "toolpost-docker",
            "toolpost-tools",
            "toolpost-exec",
            "toolpost-cli",
        ],
        reason: "the sandbox, its backends and its proxy, the file tools that stay below their root, a tool program's own descriptor for its \
                 protocol, which must not bring the sandbox, and the command's terminal",
    },
    Exclusive {
        crates: &["rusqlite", "libsqlite3-sys", "sqlx", "redb"],
        only: &["toolpost-store"],
        reason: "one package hides the database",
    },
    Exclusive {
        crates: &["opentelemetry", "opentelemetry*", "tracing-opentelemetry", "prometheus-client"],
        only: &["toolpost-telemetry"],
        reason: "the names of the conventions still change",
    },
    Exclusive {
        crates: &["trybuild", "insta", "proptest", "wiremock"],
        only: &["toolpost-testkit"],
        reason: "tests only",
    },
    Exclusive {
        crates: &["anyhow"],
        only: &["toolpost-core"],
        reason: "only the conversion of `CallError`, behind a feature",
    },
    Exclusive {
        crates: &["eyre", "miette"],
        only: &[],
        reason: "errors of libraries are types; the command has its own",
    },
    Exclusive {
        crates: &["openssl", "openssl-sys", "native-tls", "aws-lc-sys", "aws-lc-rs"],
        only: &[],
        reason: "TLS is rustls with ring, without a C library of the host",
    },
];

/// External crates that a package may not use although others may.
#[derive(Debug)]
pub struct Forbidden {
    /// The package.
    pub package: &'static str,
    /// The crates; a name that ends with `*` means every crate that begins so.
    pub crates: &'static [&'static str],
    /// The reason.
    pub reason: &'static str,
}

/// Packages that single crates may not use.
pub const FORBIDDEN: &[Forbidden] = &[
    Forbidden {
        package: "toolpost-core",
        crates: &["tokio", "tokio-*", "async-std", "smol", "mio", "futures-executor", "rayon", "tempfile"],
        reason: "the contracts have no runtime and do no I/O",
    },
    Forbidden {
        package: "toolpost-macros",
        crates: &["tokio", "serde", "serde_json", "tempfile"],
        reason: "every user's build waits for the macros",
    },
    Forbidden {
        package: "toolpost-sandbox",
        crates: &["tokio", "tokio-*", "toml", "serde-saphyr", "clap"],
        reason: "its child half must stay small, and it is useful without a runtime",
    },
    Forbidden {
        package: "xtask",
        crates: &["tokio", "reqwest", "clap", "regex", "serde"],
        reason: "the chores are the first thing that a fresh machine builds",
    },
];

/// Packages that may be nowhere in `Cargo.lock`, not even through another crate.
pub const NOT_IN_LOCKFILE: &[(&str, &str)] = &[
    ("openssl-sys", "TLS is rustls with ring: switch the crate that brings it to its rustls feature"),
    ("native-tls", "TLS is rustls with ring: switch the crate that brings it to its rustls feature"),
    ("aws-lc-sys", "it needs a C build; switch the crate that brings it to ring"),
    ("aws-lc-rs", "it needs a C build; switch the crate that brings it to ring"),
];

/// The most lines of code in a file.
pub const FILE_LIMIT: usize = 800;

/// Files above the limit: tables and generated code. The part after the path is the reason.
pub const LONG_FILES: &[(&str, &str)] = &[];

/// Directories whose files may say `unsafe`.
pub const UNSAFE_DIRECTORIES: &[(&str, &str)] = &[
    ("crates/toolpost/tests/ui/", "programs that must not compile, and one of them is unsafe"),
    ("crates/sandbox/", "starting and confining a process needs the system's interface"),
    ("xtask/", "the rules name the word"),
];

/// Crate roots without `#![forbid(unsafe_code)]`.
pub const UNSAFE_PACKAGES: &[&str] = &["toolpost-sandbox"];

/// A word that only some places may use.
#[derive(Debug)]
pub struct Word {
    /// The rule's name.
    pub rule: &'static str,
    /// The words, as they stand in code outside strings and comments.
    pub words: &'static [&'static str],
    /// The files where they are banned begin so; an empty text means everywhere.
    pub within: &'static str,
    /// Whether tests, benches and examples are free.
    pub free_in_tests: bool,
    /// Where they are allowed all the same: the beginning of a path, and why.
    pub allowed: &'static [(&'static str, &'static str)],
    /// The alternative.
    pub action: &'static str,
}

/// The words of the code that have a place.
pub const WORDS: &[Word] = &[
    Word {
        rule: "unfinished",
        words: &["todo!", "unimplemented!"],
        within: "",
        free_in_tests: false,
        allowed: &[],
        action: "finish it, or leave it out",
    },
    Word {
        rule: "print",
        words: &["println!", "eprintln!", "print!", "eprint!", "dbg!"],
        within: "",
        free_in_tests: true,
        allowed: &[("crates/cli/", "the command prints"), ("xtask/", "the chores talk to the developer")],
        action: "return the text, or emit a tracing event; only the command prints",
    },
    Word {
        rule: "output",
        words: &["io::stdout", "io::stderr", "println!", "eprintln!", "print!", "eprint!"],
        within: "crates/cli/src/",
        free_in_tests: true,
        allowed: &[
            ("crates/cli/src/print.rs", "it escapes untrusted text, and masks secrets"),
            ("crates/cli/src/logs.rs", "the log has its own escape"),
        ],
        action: "print through `Printer` or `print::Stream`, which escape untrusted text",
    },
    Word {
        rule: "exit",
        words: &["process::exit", "process::abort"],
        within: "",
        free_in_tests: true,
        allowed: &[
            ("crates/cli/", "the command exits"),
            ("crates/toolpost/src/workers.rs", "a process that was started as a worker is nothing else"),
        ],
        action: "return an error; only the command exits",
    },
    Word {
        rule: "environment",
        words: &["env::var", "env::var_os", "env::vars", "env::vars_os", "env::home_dir", "env::set_var"],
        within: "",
        free_in_tests: true,
        allowed: &[
            ("crates/cli/", "the command reads the environment"),
            ("xtask/", "the chores clean the environment of what they start"),
            ("crates/sandbox/src/protected/search_path.rs", "`PATH` says which programs a new file replaces"),
            ("crates/toolpost/src/environment.rs", "`main` of tool programs and `Model::from_env` read it"),
            ("crates/toolpost/src/workers.rs", "a worker gets the environment of who starts it"),
            ("crates/testkit/", "TOOLPOST_RECORDINGS names the directory of the recordings"),
        ],
        action: "take the value as an argument; only the command reads the environment",
    },
    Word {
        rule: "process",
        words: &["process::Command"],
        within: "",
        free_in_tests: true,
        allowed: &[
            ("crates/sandbox/", "the only package that starts processes"),
            (
                "crates/cli/src/commands/bench/process.rs",
                "plain processes are what the benchmark compares with",
            ),
            ("crates/testkit/", "certificates of tests are made by a program of the host"),
            ("xtask/", "the chores start Cargo"),
        ],
        action: "start it through the sandbox crate",
    },
    Word {
        rule: "core-does-no-io",
        words: &["std::fs", "std::net", "std::process", "std::os", "std::thread::spawn"],
        within: "crates/core/src/",
        free_in_tests: true,
        allowed: &[],
        action: "put it behind a trait of the core and implement it in the crate that hides it",
    },
];

/// Marks in comments that say that something is not finished.
pub const UNFINISHED_MARKS: &[&str] = &["FIXME", "XXX", "TODO"];

/// Files that may say `#[allow(…)]`: what they emit lands in a user's crate, where an `expect` would itself warn.
pub const ALLOW_FILES: &[(&str, &str)] = &[("crates/macros/src/", "the attributes that the macros emit")];

/// Directories of build machines. They must not be in any tracked file.
pub const MACHINE_DIRECTORIES: &[&str] =
    &[concat!("/", "work/"), concat!("/", "farm/"), concat!("/", "root/")];

/// Directories below which the first part is a person's name.
pub const HOME_DIRECTORIES: &[&str] = &["/home/", "/Users/"];

/// Files that may name such directories: path prefix, directory, reason.
pub const MACHINE_DIRECTORY_FILES: &[(&str, &str, &str)] = &[
    ("xtask/src/tidy/tables.rs", "", "this table"),
    ("xtask/tests/it/", "", "the rule's own test"),
    ("xtask/src/suite/containers/", "", "paths in containers"),
    ("crates/sandbox/src/directory.rs", "", "home directories are what its test is about"),
    ("crates/sandbox/src/directory_rules.rs", "", "rules of home directories are what its test is about"),
    ("crates/sandbox/src/linux/toolchain_roots.rs", "", "Homebrew installs in a home directory of its own"),
];

/// Directories of Rust files under `tests/` that are not part of `tests/it`.
pub const TEST_DIRECTORIES: &[(&str, &str)] = &[
    ("ui/", "programs of trybuild"),
    ("compile/", "programs of trybuild"),
    ("alone/", "a workspace of its own"),
    ("programs/", "programs that tests start"),
];

/// Rust files in `src/` that no `mod` names: the path, and how they are compiled.
pub const UNNAMED_SOURCES: &[(&str, &str)] = &[];

/// The headings of a decision record.
pub const DECISION_HEADINGS: &[&str] = &["What", "Why", "What was tried"];

/// The only dependencies of the program that shows what a user needs.
pub const ALONE: (&str, &[&str]) = ("crates/toolpost/tests/alone/Cargo.toml", &["toolpost", "tokio"]);

/// The license texts that each published package carries.
pub const LICENSES: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT"];

/// The maximum number of bytes of files in a published package. The registry accepts 10 MiB compressed, and text compresses to
/// a quarter.
pub const PACKAGE_LIMIT_BYTES: u64 = 4 << 20;

/// The maximum number of names in the root of the façade beside its modules.
pub const MAX_ROOT_NAMES: usize = 26;

/// The maximum number of names in the prelude of the façade.
pub const MAX_PRELUDE_NAMES: usize = 16;

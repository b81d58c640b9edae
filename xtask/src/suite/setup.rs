//! What the tests need of a machine, and how it is set up. Everything that can lie in the checkout lies below `.dev`.

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
    /// The commands that install it, one after another; none where it is the developer's choice.
    pub install: &'static [&'static [&'static str]],
    /// Whether installing needs root.
    pub needs_root: bool,
    /// What it is for.
    pub reason: &'static str,
    /// What is lost without it.
    pub without: &'static str,
}

/// Where tools are put that the machine does not have.
const OWN_TOOLS: &str = ".dev/tools";

/// Where cargo-nextest then is.
const OWN_NEXTEST: &str = ".dev/tools/bin/cargo-nextest";

/// The interpreter of the environment that tests of the profile `data` share.
const DATA_PYTHON: &str = ".dev/data-env/bin/python3";

/// How long an installation may take. Without it the run goes on.
const INSTALL_LIMIT: Duration = Duration::from_mins(12);

/// What the tests need. The toolchain, Git and Python are taken for granted.
pub const NEEDS: &[Need] = &[
    Need {
        name: "clippy",
        probe: &["cargo", "clippy", "--version"],
        install: &[&["rustup", "component", "add", "clippy"]],
        needs_root: false,
        reason: "the lints",
        without: "the step `clippy` fails",
    },
    Need {
        name: "rustfmt",
        probe: &["cargo", "fmt", "--version"],
        install: &[&["rustup", "component", "add", "rustfmt"]],
        needs_root: false,
        reason: "the format",
        without: "the step `format` fails",
    },
    Need {
        name: "bubblewrap",
        probe: &["bwrap", "--version"],
        install: &[
            &["apt-get", "-qq", "update"],
            &["apt-get", "-qq", "install", "--yes", "--no-install-recommends", "bubblewrap"],
        ],
        needs_root: true,
        reason: "the peer that the sandbox is compared with",
        without: "what compares with it is skipped",
    },
    Need {
        name: "node",
        probe: &["node", "--version"],
        install: &[],
        needs_root: false,
        reason: "JavaScript in the sandbox",
        without: "what runs JavaScript is skipped",
    },
    Need {
        name: "python3",
        probe: &["python3", "--version"],
        install: &[],
        needs_root: false,
        reason: "Python in the sandbox",
        without: "what runs Python is skipped",
    },
    Need {
        name: "described programs",
        probe: &["sh", "-c", "for program in rg jq sqlite3 file; do command -v $program || exit 1; done"],
        install: &[
            &["apt-get", "-qq", "update"],
            &[
                "apt-get",
                "-qq",
                "install",
                "--yes",
                "--no-install-recommends",
                "ripgrep",
                "jq",
                "sqlite3",
                "file",
            ],
        ],
        needs_root: true,
        reason: "the descriptions that come along are tested with their programs",
        without: "the tests of those that are not installed are skipped by name",
    },
    Need {
        name: "interpreters",
        probe: &["sh", "-c", "for program in ruby lua5.4 php; do command -v $program || exit 1; done"],
        install: &[
            &["apt-get", "-qq", "update"],
            &["apt-get", "-qq", "install", "--yes", "--no-install-recommends", "ruby", "lua5.4", "php-cli"],
        ],
        needs_root: true,
        reason: "Ruby, Lua and PHP in the sandbox",
        without: "the tests of those that are not installed are skipped by name",
    },
    Need {
        name: "go",
        probe: &["go", "version"],
        install: &[
            &["apt-get", "-qq", "update"],
            &["apt-get", "-qq", "install", "--yes", "--no-install-recommends", "golang-go"],
        ],
        needs_root: true,
        reason: "programs in Go, built in one sandbox and run in another",
        without: "what builds Go is skipped",
    },
    Need {
        name: "docker",
        probe: &[
            "sh",
            "-c",
            "for program in dockerd iptables busybox; do command -v $program || exit 1; done",
        ],
        install: &[
            &["apt-get", "-qq", "update"],
            &[
                "apt-get",
                "-qq",
                "install",
                "--yes",
                "--no-install-recommends",
                "docker.io",
                "iptables",
                "busybox-static",
            ],
        ],
        needs_root: true,
        reason: "the tests of the Docker backend start a daemon of their own",
        without: "what needs a daemon is skipped",
    },
    Need {
        name: "data environment",
        // Found, not imported: that would take seconds.
        probe: &[
            DATA_PYTHON,
            "-c",
            "import importlib.util as u, sys\nsys.exit(any(u.find_spec(name) is None for name in \
             'pandas numpy scipy sklearn statsmodels matplotlib pyarrow openpyxl xlrd PIL sympy mpmath tqdm \
             dateutil pytz joblib'.split()))",
        ],
        install: &[
            &["python3", "-m", "venv", ".dev/data-env"],
            &[
                DATA_PYTHON,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
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
                "joblib",
            ],
        ],
        needs_root: false,
        reason: "Python with what the profile `data` has",
        without: "what computes with pandas, SciPy, SymPy and matplotlib is skipped",
    },
    Need {
        name: "llm_factory_toolkit",
        // There, whole, and not older than what writes it.
        probe: &[
            "sh",
            "-c",
            "test crates/toolbox/tests/data/golden.py -ot .dev/llm_factory_toolkit/golden.json",
        ],
        install: &[&["python3", "crates/toolbox/tests/data/golden.py", ".dev/llm_factory_toolkit"]],
        needs_root: false,
        reason: "the answers that the catalog is compared with",
        without: "what compares with them is skipped",
    },
];

/// What the set-up found.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tools {
    /// The program and the first arguments that run nextest, if it could be had.
    pub nextest: Option<Vec<String>>,
}

/// Makes ready what can be made ready, and says on standard error what cannot.
pub fn prepare(root: &Path) -> Tools {
    provide(root, NEEDS);
    Tools { nextest: find_nextest(root).or_else(|| install_nextest(root)) }
}

/// Installs what is missing and can be installed, and says on standard error what is still missing.
pub fn provide(root: &Path, needs: &[Need]) {
    for need in needs {
        if there(root, need.probe) {
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
    Some(Task::new(program, arguments).folder(root))
}

fn there(root: &Path, probe: &[&str]) -> bool {
    task(root, probe)
        .and_then(|task| task.limit(Duration::from_mins(1)).capture().ok())
        .is_some_and(|captured| captured.success)
}

fn install(root: &Path, need: &Need) -> Result<(), String> {
    if need.install.is_empty() {
        return Err("it is not installed, and installing it is left to you".to_owned());
    }
    if need.needs_root && !is_root(root) {
        return Err("it is not installed, and installing it needs root".to_owned());
    }
    for command in need.install {
        let Some(task) = task(root, command) else { continue };
        let task = task.limit(INSTALL_LIMIT).variable("DEBIAN_FRONTEND", "noninteractive");
        eprintln!("installing {}: `{}`", need.name, task.line());
        let captured = task.capture()?;
        if !captured.success {
            let errors = captured.errors.trim();
            return Err(format!(
                "`{}` failed: {}",
                task.line(),
                errors.lines().last().unwrap_or("no message")
            ));
        }
    }
    Ok(())
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
        .folder(root)
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

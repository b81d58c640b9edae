//! Host paths that files, links and arguments name: they show nothing outside the workspace, system directories,
//! toolchain roots and grants.
//!
//! Every row is a form in which a project can name another directory, for every language, level and kind of
//! workspace. The program is a copy of `cat`, so that what a row shows is also read.

use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use toolpost_sandbox::{Level, Need, Origin, Outcome, Program, Sandbox, Workspace, program_directories};

use crate::support::{Mode, open_directory, quick, run};

const SECRET: &str = "the-content-of-another-directory";

/// The programs that a language starts with.
pub(crate) const LANGUAGES: [&str; 12] =
    ["python3", "node", "ruby", "perl", "java", "php", "rustc", "cargo", "go", "deno", "bun", "npm"];

pub(crate) fn file(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

pub(crate) fn program(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    // A hard link or copy of the same file: writing it here could leave it busy for a concurrent test.
    std::fs::copy("/usr/bin/cat", path).unwrap();
}

pub(crate) fn link(target: impl AsRef<Path>, path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

/// A project of code, and directories of another project.
pub(crate) struct World {
    _directory: tempfile::TempDir,
    pub(crate) root: PathBuf,
    pub(crate) project: PathBuf,
    pub(crate) other: PathBuf,
}

impl World {
    fn new() -> Self {
        Self::with_other("other/app")
    }

    /// A world whose other directory is there.
    pub(crate) fn with_other(path: &str) -> Self {
        let directory = open_directory();
        let root = directory.path().canonicalize().unwrap();
        let (project, other) = (root.join("work/project"), root.join(path));
        file(&project.join("pyproject.toml"), "");
        file(&project.join("package.json"), "{}");
        for name in
            ["secret.txt", "data/secret.txt", "pkg/__init__.py", "lib/python3.11/os.py", "package.json"]
        {
            file(&other.join(name), SECRET);
        }
        for language in LANGUAGES {
            program(&other.join("bin").join(language));
        }
        Self { _directory: directory, root, project, other }
    }

    pub(crate) fn secrets(&self) -> Vec<OsString> {
        ["secret.txt", "data/secret.txt", "pkg/__init__.py"].map(|name| self.other.join(name).into()).into()
    }
}

/// A form in which a project names another directory: its name, how it is planted for a language, and the first word
/// of the command that starts it. None where the language has no such form.
type Form = (&'static str, fn(&World, &str) -> Option<OsString>);

const FORMS: [Form; 20] = [
    ("a link as program", |world, language| {
        link(world.other.join("bin").join(language), &world.project.join("bin").join(language));
        Some(format!("bin/{language}").into())
    }),
    ("a link as program, in the search path", |world, language| {
        link(world.other.join("bin").join(language), &world.project.join("bin").join(language));
        Some(language.into())
    }),
    ("a link as directory of the search path", |world, language| {
        link(world.other.join("bin"), &world.project.join("bin"));
        Some(language.into())
    }),
    ("an installation with a link for its libraries", |world, language| {
        program(&world.project.join("bin").join(language));
        for name in ["lib", "lib64", "share"] {
            link(&world.other, &world.project.join(name));
        }
        Some(format!("bin/{language}").into())
    }),
    ("the first line of a script", |world, language| {
        let interpreter = world.other.join("bin").join(language);
        file(&world.project.join("run"), &format!("#!{}\n", interpreter.display()));
        Some("./run".into())
    }),
    ("the first line of a script, by /proc/self/cwd", |world, language| {
        link(&world.other, &world.project.join("base"));
        file(&world.project.join("run"), &format!("#!/proc/self/cwd/base/bin/{language}\n"));
        Some("./run".into())
    }),
    ("an absolute path as argument", |world, language| Some(world.other.join("bin").join(language).into())),
    ("an absolute path as argument, out of the project", |world, language| {
        Some(world.project.join("../../other/app/bin").join(language).into())
    }),
    ("an absolute path as argument, through a link", |world, language| {
        link(&world.other, &world.project.join("x"));
        Some(world.project.join("x/bin").join(language).into())
    }),
    ("shims of a version manager", |world, language| {
        file(&world.project.join("shims").join(language), "#!/bin/sh\n");
        file(&world.project.join("version"), "x\n");
        link(&world.other, &world.project.join("versions/x"));
        Some(format!("shims/{language}").into())
    }),
    ("the settings of rustup", |world, language| {
        program(&world.project.join(".cargo/bin/rustup"));
        link("rustup", &world.project.join(".cargo/bin").join(language));
        file(&world.project.join(".rustup/settings.toml"), "default_toolchain = \"x\"\n");
        link(&world.other, &world.project.join(".rustup/toolchains/x"));
        Some(format!(".cargo/bin/{language}").into())
    }),
    ("a virtual environment: home", |world, language| {
        environment(world, language, &world.other.join("bin"), "");
        Some(format!(".venv/bin/{language}").into())
    }),
    ("a virtual environment: home, by a link", |world, language| {
        link(&world.other, &world.project.join("base"));
        environment(world, language, Path::new("/proc/self/cwd/base/bin"), "");
        Some(format!(".venv/bin/{language}").into())
    }),
    ("a virtual environment: lines of .pth", |world, language| {
        link(&world.other, &world.project.join("x.py"));
        link(world.other.join("data"), &world.project.join("src"));
        let lines = [&world.other, &world.other.join("data"), &world.project, &world.project.join("src")];
        let mut lines: Vec<String> = lines.iter().map(|path| path.display().to_string()).collect();
        lines.extend(["/proc/self/cwd".into(), "/proc/self/cwd/src".into(), "/proc/self/root".into()]);
        environment(world, language, Path::new("/usr/bin"), &lines.join("\n"));
        Some(format!(".venv/bin/{language}").into())
    }),
    ("a virtual environment: an editable finder", |world, language| {
        environment(world, language, Path::new("/usr/bin"), "");
        file(
            &world.project.join(".venv/lib/python3.11/site-packages/__editable___x_finder.py"),
            &format!("MAPPING = {{'pkg': '{0}/pkg', 'data': '{0}/data'}}\n", world.other.display()),
        );
        Some(format!(".venv/bin/{language}").into())
    }),
    ("a virtual environment that is a link", |world, language| {
        file(&world.other.join("pyvenv.cfg"), "home = /usr/bin\n");
        link(&world.other, &world.project.join(".venv"));
        Some(format!(".venv/bin/{language}").into())
    }),
    ("a virtual environment in the search path", |world, language| {
        environment(world, language, &world.other.join("bin"), &world.other.display().to_string());
        link(world.project.join(".venv/bin"), &world.project.join("bin"));
        Some(language.into())
    }),
    ("node_modules that are a link", |world, _| {
        file(&world.other.join("x/cli.js"), "#!/usr/bin/env node\n");
        link(&world.other, &world.project.join("node_modules"));
        Some("node_modules/x/cli.js".into())
    }),
    ("a linked package", |world, _| {
        file(&world.other.join("bin/cli.js"), "#!/usr/bin/env node\n");
        link(&world.other, &world.project.join("node_modules/x"));
        link("../x/bin/cli.js", &world.project.join("node_modules/.bin/x"));
        Some("node_modules/.bin/x".into())
    }),
    ("a linked program of packages", |world, language| {
        link(world.other.join("bin").join(language), &world.project.join("node_modules/.bin/x"));
        Some("node_modules/.bin/x".into())
    }),
];

/// An environment of a project whose program is a copy of `cat`.
fn environment(world: &World, language: &str, home: &Path, lines: &str) {
    let environment = world.project.join(".venv");
    program(&environment.join("bin").join(language));
    file(&environment.join("pyvenv.cfg"), &format!("home = {}\nversion = 3.11\n", home.display()));
    file(&environment.join("lib/python3.11/site-packages/x.pth"), lines);
}

/// Whether a run showed something of the other directory, by its report or to the program.
pub(crate) fn leak(world: &World, outcome: &Outcome) -> Option<String> {
    let shown = outcome
        .report
        .shown
        .iter()
        .find(|path| path.starts_with(&world.other) || world.other.starts_with(path));
    let printed = [outcome.stdout.text(), outcome.stderr.text()].concat();
    match shown {
        Some(path) => Some(format!("shows {}", path.display())),
        None if printed.contains(SECRET) => Some("prints it".into()),
        None => None,
    }
}

fn levels() -> impl Iterator<Item = (Level, Sandbox)> {
    let has_private_root = Mode::available().contains(&Mode::Strict);
    let levels =
        [Level::Standard, Level::Strict, Level::Maximum].into_iter().filter(move |_| has_private_root);
    levels.map(|level| (level, Sandbox::new().level(level).limits(quick())))
}

#[test]
fn what_a_project_names_shows_nothing_of_others() {
    let mut ran = 0;
    for (form, plant) in FORMS {
        for language in LANGUAGES {
            let world = World::new();
            let Some(first) = plant(&world, language) else { continue };
            let words = || std::iter::once(first.clone()).chain(world.secrets());
            let path = format!("{0}/bin:{0}/.venv/bin:/usr/bin:/bin", world.project.display());
            for (level, sandbox) in levels() {
                // One copy for each kind of workspace would repeat the same judgement.
                for (kind, workspace) in [
                    ("host", Workspace::Host(world.project.clone())),
                    ("live", Workspace::LiveHost(world.project.clone())),
                    ("read-only", Workspace::ReadOnlyHost(world.project.clone())),
                ] {
                    // Level and kind do not depend on the language.
                    if language != "python3" && (kind != "host" || level != Level::Strict) {
                        continue;
                    }
                    let sandbox =
                        sandbox.clone().workspace(workspace).search_path(&path).home(&world.project);
                    // The operator's own command line in a hostile project, and a model's.
                    for made in [Program::operator_argv(words()), Program::argv(words())] {
                        let by = if made == Program::argv(words()) { "a model" } else { "the operator" };
                        if by == "the operator" && form.starts_with("an absolute path") {
                            continue;
                        }
                        match run(&sandbox, &made) {
                            Ok(outcome) => {
                                ran += 1;
                                let leak = leak(&world, &outcome);
                                assert_eq!(leak, None, "{form}: {language}, {level}, {kind}, by {by}");
                            }
                            Err(error) => {
                                let text = error.to_string();
                                assert!(!text.contains(SECRET), "{form}: {text}");
                            }
                        }
                    }
                }
            }
        }
    }
    if levels().next().is_some() {
        assert!(ran > 200, "most programs start: {ran}");
    }
}

/// A planted fault: the same forms where the other directory is granted.
#[test]
fn the_check_notices_what_is_shown() {
    let (mut ran, mut noticed) = (0, 0);
    for (_, plant) in FORMS {
        let world = World::new();
        let Some(first) = plant(&world, "python3") else { continue };
        let words = std::iter::once(first).chain(world.secrets());
        let path = format!("{0}/bin:{0}/.venv/bin:/usr/bin:/bin", world.project.display());
        for (level, sandbox) in levels().filter(|(level, _)| *level == Level::Strict) {
            let sandbox = sandbox.workspace(Workspace::Host(world.project.clone())).search_path(&path);
            if let Ok(outcome) = run(&sandbox.read_only(&world.other), &Program::argv(words.clone())) {
                ran += 1;
                noticed += u32::from(leak(&world, &outcome).is_some());
            }
            assert_eq!(level, Level::Strict);
        }
    }
    assert!(noticed == ran && (ran > 10 || levels().next().is_none()), "{noticed} of {ran}");
}

#[test]
fn an_argument_outside_is_rejected_with_the_places_that_are_allowed() {
    let world = World::new();
    for (_, sandbox) in levels() {
        let sandbox = sandbox.workspace(Workspace::Host(world.project.clone()));
        let path = world.other.join("bin/python3");
        let words = [path.clone().into_os_string(), world.other.join("secret.txt").into()];
        let error = run(&sandbox, &Program::argv(&words)).unwrap_err().to_string();
        assert!(error.contains("must lie in the workspace"), "{error}");
        // The same path from the operator, by a grant, and in the operator's search path.
        let granted = sandbox.clone().read_only(&world.other);
        let outcome = run(&granted, &Program::argv(&words)).unwrap();
        assert_eq!(outcome.stdout.text(), SECRET);
        let searched = sandbox.clone().search_path(world.other.join("bin"));
        assert!(run(&searched, &Program::argv([&path])).is_ok());
        assert!(run(&sandbox, &Program::operator_argv([&path])).is_ok());
    }
}

#[test]
fn a_granted_path_in_the_workspace_does_not_lead_out_of_it() {
    let world = World::new();
    link(&world.other, &world.project.join("data"));
    for (_, sandbox) in levels() {
        let sandbox = sandbox.workspace(Workspace::Host(world.project.clone()));
        let error = run(&sandbox.clone().read_only(world.project.join("data")), &Program::argv(["true"]));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("a link in the workspace leads to") && error.contains("other/app"), "{error}");
        assert!(
            run(&sandbox.read_only(world.project.join("package.json")), &Program::argv(["true"])).is_ok()
        );
    }
}

#[test]
fn what_surrounds_a_program_is_shown_unless_it_is_a_link() {
    let world = World::new();
    file(&world.project.join("dist/server.js"), "");
    link(&world.other, &world.project.join("node_modules"));
    let needs = program_directories(&world.project.join("dist/server.js"));
    for (_, sandbox) in levels() {
        // Also where the project is not the workspace.
        for sandbox in [sandbox.clone(), sandbox.clone().workspace(Workspace::Host(world.project.clone()))] {
            let outcome = run(&sandbox.needs(needs.clone()), &Program::argv(["true"])).unwrap();
            assert_eq!(leak(&world, &outcome), None);
            assert!(
                outcome.report.shown.iter().any(|path| path.ends_with("project")),
                "{:?}",
                outcome.report
            );
            assert_eq!(outcome.report.not_shown, std::slice::from_ref(&world.other));
        }
        let lone = [Need::new(world.other.join("data"), Origin::Derived)];
        let outcome = run(&sandbox.clone().needs(lone), &Program::argv(["true"])).unwrap();
        assert_eq!(outcome.report.not_shown, [world.other.join("data")]);
    }
}

/// A program of an environment outside the workspace: its editable installs of its own project are shown, and nothing
/// that they or the links of the project name elsewhere.
#[test]
fn an_environment_of_the_operator_shows_the_sources_of_its_project_alone() {
    let world = World::new();
    let workspace = open_directory();
    for name in ["src/pkg/__init__.py", "notes/diary.txt", ".secrets/key"] {
        file(&world.project.join(name), "of the project");
    }
    link(&world.other, &world.project.join("linked"));
    file(&world.other.join("pyproject.toml"), "");
    let lines = ["project/src", "project/linked", "project/.secrets", "project/../../other/app"];
    let root = world.project.parent().unwrap().display().to_string();
    let lines: Vec<String> = lines.iter().map(|line| format!("{root}/{line}")).collect();
    environment(
        &world,
        "python3",
        Path::new("/usr/bin"),
        &format!("{}\n{}\n", lines.join("\n"), world.other.display()),
    );
    let program = world.project.join(".venv/bin/python3");
    let read: Vec<OsString> = ["src/pkg/__init__.py", "notes/diary.txt", ".secrets/key", "linked/secret.txt"]
        .map(|name| world.project.join(name).into())
        .into();
    let words =
        || std::iter::once(program.clone().into_os_string()).chain(read.clone()).chain(world.secrets());
    for (level, sandbox) in levels() {
        let sandbox = sandbox.workspace(Workspace::Host(workspace.path().to_owned()));
        let searched = sandbox.clone().search_path(program.parent().unwrap());
        let by_name = std::iter::once("python3".into()).chain(words().skip(1));
        for outcome in [
            run(&sandbox, &Program::operator_argv(words())).unwrap(),
            run(&searched, &Program::argv(by_name)).unwrap(),
        ] {
            assert_eq!(leak(&world, &outcome), None, "{level}");
            assert_eq!(outcome.stdout.text(), "of the project", "{level}: {:?}", outcome.report.shown);
        }
        // A model names no program there, and a project that code writes shows only itself.
        assert!(run(&sandbox, &Program::argv(words())).is_err());
        let own = sandbox.workspace(Workspace::Host(world.project.join(".venv")));
        if let Ok(outcome) = run(&own, &Program::operator_argv(words())) {
            assert_eq!(outcome.stdout.text(), "", "{level}: {:?}", outcome.report.shown);
        }
    }
}

/// The toolchain of each manager, the path of a program, and paths of it that are never shown.
const MANAGERS: [(&str, &str, &[&str]); 14] = [
    (".local/share/uv/python/cpython-3.12", "bin/python3.12", &["pip.conf"]),
    (".pyenv/versions/3.12.1", "bin/python3", &["pip.conf"]),
    ("miniconda3", "bin/python3", &[".condarc", "conda-meta/history", "pkgs/urls.txt", "envs/x/y"]),
    ("miniconda3/envs/x", "bin/python3", &["conda-meta/history", ".condarc"]),
    (".rustup/toolchains/stable", "bin/rustc", &[]),
    (".cargo", "bin/tool", &["credentials.toml", "credentials", "config.toml"]),
    (".nvm/versions/node/v20", "bin/node", &["etc/npmrc"]),
    (".local/share/mise/installs/node/20", "bin/node", &["etc/npmrc", ".npmrc"]),
    (".asdf/installs/ruby/3.2", "bin/ruby", &["etc/gemrc"]),
    (".sdkman/candidates/maven/3.9", "bin/mvn", &["conf/settings.xml"]),
    (".rbenv/versions/3.2", "bin/ruby", &["etc/gemrc"]),
    (".gradle/wrapper/dists/gradle-8/x", "bin/gradle", &["gradle.properties"]),
    ("sdk/go1.22", "bin/go", &[]),
    (".local/share/fnm/node-versions/v20", "bin/node", &["etc/npmrc"]),
];

#[test]
fn a_project_uses_toolchains_of_the_home_directory_without_their_credentials() {
    for (root, own, never) in MANAGERS {
        let world = World::new();
        let home = world.other.join("home");
        let toolchain = home.join(root);
        program(&toolchain.join(own));
        file(&toolchain.join("bin/library"), "of the toolchain");
        for path in never {
            file(&toolchain.join(path), SECRET);
        }
        file(&home.join(".ssh/id_rsa"), SECRET);
        // An environment whose interpreter is the manager's.
        let name = Path::new(own).file_name().unwrap();
        link(toolchain.join(own), &world.project.join(".venv/bin").join(name));
        file(
            &world.project.join(".venv/pyvenv.cfg"),
            &format!("home = {}\n", toolchain.join("bin").display()),
        );
        let mut words: Vec<OsString> = vec![Path::new(".venv/bin").join(name).into()];
        words.push(toolchain.join(own).into());
        words.extend(never.iter().map(|path| toolchain.join(path).into_os_string()));
        words.push(home.join(".ssh/id_rsa").into());
        for (level, sandbox) in levels() {
            let sandbox = sandbox.workspace(Workspace::Host(world.project.clone()));
            let outcome = run(&sandbox.clone().home(&home), &Program::argv(&words)).unwrap();
            let (printed, errors) = (outcome.stdout.text(), outcome.stderr.text());
            assert!(printed.starts_with('\u{7f}'), "{root}, {level}: it starts and reads itself: {errors}");
            assert!(!printed.contains(SECRET), "{root}, {level}: {:?}", outcome.report.shown);
            // Without a home directory nothing of it is shown.
            if let Ok(outcome) = run(&sandbox, &Program::argv(&words[..2])) {
                let shown = outcome.report.shown;
                assert!(!shown.iter().any(|path| path.starts_with(&toolchain)), "{root}: {shown:?}");
            }
        }
    }
}

#[test]
fn a_socket_in_a_shown_directory_does_not_answer() {
    let world = World::new();
    let python = "/usr/bin/python3";
    if !Path::new(python).exists() {
        println!("SKIP a_socket_in_a_shown_directory_does_not_answer: there is no Python");
        return;
    }
    let directory = world.other.join("data");
    // A socket's name has at most 107 bytes.
    let here = std::fs::File::open(&directory).unwrap();
    let short = format!("/proc/self/fd/{}/agent.sock", std::os::fd::AsRawFd::as_raw_fd(&here));
    let listener = std::os::unix::net::UnixListener::bind(&short).unwrap();
    std::fs::set_permissions(directory.join("agent.sock"), std::fs::Permissions::from_mode(0o777)).unwrap();
    let code = "import os, socket, sys\nos.chdir(sys.argv[1])\ntry:\n    socket.socket(socket.AF_UNIX).connect('agent.sock')\n    print('connected')\nexcept OSError as error:\n    print('refused')\na, b = socket.socketpair()\na.send(b'pair')\nprint(b.recv(9))";
    let words: [OsString; 4] = [python.into(), "-c".into(), code.into(), directory.clone().into()];
    for (level, sandbox) in levels() {
        let shown = [
            sandbox.clone().read_only(&directory),
            sandbox.clone().needs([Need::new(&directory, Origin::Around)]),
            sandbox.clone().read_only(&directory).host(without_overlays()),
        ];
        for sandbox in shown {
            let outcome = run(&sandbox, &Program::argv(&words)).unwrap();
            let printed = outcome.stdout.text();
            assert_eq!(printed, "refused\nb'pair'\n", "{level}: {}", outcome.stderr.text());
        }
    }
    drop(listener);
}

/// This host without overlays over shown directories.
fn without_overlays() -> toolpost_sandbox::Host {
    toolpost_sandbox::Host::probe().without_overlays()
}

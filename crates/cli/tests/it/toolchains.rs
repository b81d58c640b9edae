//! Everyday jobs with environments, packages and toolchains, at the default level.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use toolpost_sandbox::{Host, Level};

use crate::gateway::executable;
use crate::support::{Finished, TestEnv, repository};

/// A Python tool program that returns the word of a package.
const TOOL: &str = r#"
import json, sys
from PACKAGE import WORD
def main():
    if sys.argv[1:2] == ["--discover"]:
        tool = {"name": "word", "summary": "W.", "streaming": False, "session_mode": False, "schema": {"type": "object", "properties": {}}}
        print(json.dumps({"name": "t", "version": "1", "tools": [tool], "resources": [], "prompts": []}))
    else:
        print(json.dumps({"status": "success", "result": WORD}))
if __name__ == "__main__":
    main()
"#;

/// A project with an editable install: its name, the directory of its package, and its table for setuptools.
const EDITABLE: [(&str, &str, &str); 2] = [
    // A line of a `.pth` file.
    ("lines", "src/lines", "[tool.setuptools.packages.find]\nwhere = [\"src\"]\n"),
    // A module `__editable___…_finder.py`.
    (
        "finder",
        "lib/inner",
        "[tool.setuptools]\npackages = [\"finder\"]\npackage-dir = { finder = \"lib/inner\" }\n",
    ),
];

/// The Python of the system, which a home directory does not hide.
const PYTHON: &str = "/usr/bin/python3";

/// A world on a host with namespaces and some files.
fn world(test: &str, files: &[&Path]) -> Option<TestEnv> {
    let is_available = Host::probe().availability(Level::Strict).is_some_and(|entry| entry.available);
    let missing = files.iter().find(|path| !path.exists());
    match (is_available, missing) {
        (false, _) => println!("SKIP {test}: this host gives no namespaces"),
        (true, Some(path)) => println!("SKIP {test}: there is no {}", path.display()),
        (true, None) => return Some(TestEnv::new()),
    }
    None
}

/// The environment of the suite with uv and setuptools.
fn installers() -> PathBuf {
    repository("Cargo.toml").with_file_name(".dev/uv-env")
}

/// Runs a command that sets up a directory, without a boundary.
fn set_up(env: &TestEnv, directory: &str, command: &[&str]) -> Finished {
    let words =
        ["exec", "--level", "minimal", "--timeout", "100s", "--pids", "256", "--workdir", directory, "--"];
    env.run([&words[..], command].concat()).ok()
}

/// The site directory of an environment.
fn packages_of(environment: &Path) -> PathBuf {
    let entries = std::fs::read_dir(environment.join("lib")).unwrap().flatten();
    let python = entries.map(|entry| entry.path()).find(|path| path.join("site-packages").is_dir());
    python.unwrap().join("site-packages")
}

/// Projects with an editable install of themselves in `.venv`.
fn with_editable_installs(env: &TestEnv, installers: &Path) {
    let modules = format!("PYTHONPATH={}", packages_of(installers).display());
    for (name, package, table) in EDITABLE {
        env.write(
            &format!("{name}/pyproject.toml"),
            format!(
                "[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"setuptools.build_meta\"\n\
                 [project]\nname = \"{name}\"\nversion = \"1\"\n\
                 [project.scripts]\ntool = \"{name}.tool:main\"\n{table}"
            ),
        );
        env.write(&format!("{name}/{package}/__init__.py"), format!("WORD = 'word of {name}'\n"));
        env.write(&format!("{name}/{package}/tool.py"), TOOL.replace("PACKAGE", name));
        let python = installers.join("bin/python3").display().to_string();
        set_up(env, name, &[PYTHON, "-m", "venv", "--without-pip", ".venv"]);
        let pip = ["env", &modules, &python, "-m", "pip", "--python", ".venv", "install", "-q", "--no-index"];
        let pip = [&pip[..], &["--no-build-isolation", "-e", "."]].concat();
        set_up(env, name, &pip);
        let of_file = |python: &str| format!("#!{python}\n{}", TOOL.replace("PACKAGE", name));
        let own = env.path(name).join(".venv/bin/python3");
        executable(env, &format!("{name}/shebang"), &of_file(&own.display().to_string()));
        executable(env, &format!("{name}/active"), &of_file("/usr/bin/env python3"));
    }
}

#[test]
fn a_tool_program_finds_the_editable_install_of_its_repository() {
    let test = "a_tool_program_finds_the_editable_install_of_its_repository";
    let installers = installers();
    let Some(mut env) = world(test, &[Path::new(PYTHON), &installers]) else { return };
    with_editable_installs(&env, &installers);
    env.write("elsewhere/notes.txt", "");
    for (name, ..) in EDITABLE {
        let word = format!("word of {name}\n");
        let import = format!("from {name} import WORD; print(WORD)");
        let environment = env.path(name).join(".venv");
        // By path and by the first line, from the project and from elsewhere.
        for program in [".venv/bin/tool", "shebang"] {
            let program = format!("{name}/{program}");
            for more in [&[][..], &["--workdir", name], &["--workdir", "elsewhere"]] {
                let words = ["call", &program, "word"].into_iter().chain(more.iter().copied());
                assert_eq!(env.run(words).ok().out, word, "{program} {more:?}");
            }
        }
        let absolute = environment.join("bin/python").display().to_string();
        for (workdir, python) in [
            (name, ".venv/bin/python".to_owned()),
            ("elsewhere", absolute),
            ("elsewhere", format!("../{name}/.venv/bin/python")),
        ] {
            let words = ["exec", "--workdir", workdir, "--", &python, "-c", &import];
            assert_eq!(env.run(words).ok().out, word, "{python} in {workdir}");
        }
        let words = ["exec", "--", &format!("./{name}/.venv/bin/python"), "-c", &import];
        assert_eq!(env.run(words).ok().out, word);
        // Activated.
        let search = format!("{}:/usr/bin:/bin", environment.join("bin").display());
        env = env.with("PATH", search).with("VIRTUAL_ENV", environment);
        assert_eq!(env.run(["call", &format!("{name}/active"), "word"]).ok().out, word);
        for workdir in [name, "elsewhere"] {
            let words = ["exec", "--workdir", workdir, "--", "python", "-c", &import];
            assert_eq!(env.run(words).ok().out, word, "{workdir}");
            let code = format!("code={import}");
            let words = ["call", "run_code", "language=python", &code, "--workdir", workdir];
            let called = env.run(words).ok();
            assert!(called.out.contains(&word), "{workdir}: {called}");
        }
    }
}

#[test]
fn uv_runs_the_programs_of_a_project() {
    let installers = installers();
    let test = "uv_runs_the_programs_of_a_project";
    let Some(env) = world(test, &[Path::new(PYTHON), &installers.join("bin/uv")]) else { return };
    with_editable_installs(&env, &installers);
    env.write("elsewhere/notes.txt", "");
    let env = env.with("PATH", format!("{}:/usr/bin:/bin", installers.join("bin").display()));
    for (name, ..) in EDITABLE {
        let word = format!("word of {name}\n");
        let import = format!("from {name} import WORD; print(WORD)");
        env.write(&format!("{name}/main.py"), &import);
        for command in
            [&["python", "-c", &import][..], &["main.py"], &["--no-sync", "--", "python", "main.py"]]
        {
            let words = [&["exec", "--workdir", name, "--", "uv", "run"][..], command].concat();
            assert_eq!(env.run(words).ok().out, word, "{command:?}");
        }
        let tool = env.run(["exec", "--workdir", name, "--", "uv", "run", "tool"]).ok();
        assert!(tool.out.contains(word.trim_end()), "{tool}");
        // The project of a server is not the directory of its caller.
        let project = env.path(name).display().to_string();
        let words = ["exec", "--workdir", "elsewhere", "--", "uv", "run", "--project", &project, "tool"];
        let tool = env.run(words).ok();
        assert!(tool.out.contains(word.trim_end()), "{tool}");
    }
}

/// A package of Node.js with a program.
fn package(env: &TestEnv, directory: &str) {
    let manifest = r#"{"name":"wordtool","version":"1.0.0","bin":{"wordtool":"cli.js"}}"#;
    env.write(&format!("{directory}/package.json"), manifest);
    env.write(&format!("{directory}/word.js"), "module.exports = 'word of npm';");
    executable(env, &format!("{directory}/cli.js"), "#!/usr/bin/env node\nconsole.log(require('./word'));\n");
}

#[test]
fn npm_installs_and_starts_local_packages() {
    let test = "npm_installs_and_starts_local_packages";
    let Some(env) = world(test, &[Path::new("/usr/bin/node"), Path::new("/usr/bin/npm")]) else { return };
    let env = env.with("PATH", "/usr/bin:/bin");
    let quiet = ["--offline", "--no-audit", "--no-fund", "--no-update-notifier"];
    for (name, source) in [("packed", "file:wordtool.tgz"), ("linked", "file:tool")] {
        package(&env, &format!("{name}/tool"));
        set_up(&env, name, &["npm", "pack", "--silent", "./tool"]);
        std::fs::rename(env.path(name).join("wordtool-1.0.0.tgz"), env.path(name).join("wordtool.tgz"))
            .unwrap();
        let manifest =
            format!(r#"{{"name":"{name}","version":"1.0.0","dependencies":{{"wordtool":"{source}"}}}}"#);
        env.write(&format!("{name}/package.json"), manifest);
        set_up(&env, name, &[&["npm", "install", "--package-lock-only"][..], &quiet].concat());
        let exec = |command: &[&str]| {
            env.run(["exec", "--pids", "128", "--workdir", name, "--"].iter().chain(command)).ok().out
        };
        let install = [&["npm", "ci"][..], &quiet].concat();
        // A working directory gets no links from code.
        match name {
            "packed" => exec(&install),
            _ => set_up(&env, name, &install).out,
        };
        for command in [
            &["npx", "wordtool"][..],
            &["npx", "--no-install", "wordtool"],
            &["npm", "exec", "--offline", "wordtool"],
            &["node_modules/.bin/wordtool"],
            &["node", "-e", "console.log(require('wordtool/word'))"],
        ] {
            assert_eq!(exec(command), "word of npm\n", "{name}: {command:?}");
        }
        let code = "code=console.log(require('wordtool/word'))";
        let called = env.run(["call", "run_code", "language=javascript", code, "--workdir", name]).ok();
        assert!(called.out.contains("word of npm"), "{called}");
    }
}

/// Puts a program elsewhere, without a copy where the file system allows it.
fn place(program: &Path, path: &Path) {
    let program = program.canonicalize().unwrap();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::hard_link(&program, path).or_else(|_| std::fs::copy(&program, path).map(drop)).unwrap();
}

/// Where managers install Python: the root in the home directory, and from there the directory of the search path.
const PYTHONS: [(&str, &str); 6] = [
    (".local/share/uv/python/cpython-3-linux-x86_64-gnu", "bin"),
    (".pyenv/versions/3.11.7", "../../shims"),
    ("miniconda3", "bin"),
    ("miniconda3/envs/data", "bin"),
    (".local/share/mise/installs/python/3", "bin"),
    (".asdf/installs/python/3", "bin"),
];

#[test]
fn interpreters_of_managers_start_by_path_by_name_and_in_environments() {
    let test = "interpreters_of_managers_start_by_path_by_name_and_in_environments";
    let Some(mut env) = world(test, &[Path::new(PYTHON)]) else { return };
    let home = env.path("../home").canonicalize().unwrap();
    // `python3.N` and its library, which stays a link to the system's.
    let real = Path::new(PYTHON).canonicalize().unwrap();
    let name = real.file_name().unwrap();
    for (index, (root, bin)) in PYTHONS.iter().enumerate() {
        let root = home.join(root);
        place(&real, &root.join("bin").join(name));
        symlink(name, root.join("bin/python3")).unwrap();
        std::fs::create_dir_all(root.join("lib")).unwrap();
        symlink(Path::new("/usr/lib").join(name), root.join("lib").join(name)).unwrap();
        if bin.ends_with("shims") {
            let shims = root.join(bin);
            std::fs::create_dir_all(&shims).unwrap();
            let shims = shims.canonicalize().unwrap();
            executable(&env, "shim", "#!/usr/bin/env bash\nexec pyenv exec \"${0##*/}\" \"$@\"\n");
            std::fs::rename(env.path("shim"), shims.join("python3")).unwrap();
            std::fs::write(shims.with_file_name("version"), "3.11.7\n").unwrap();
        }
        let project = format!("project{index}");
        env.write(&format!("{project}/pyproject.toml"), "");
        let program = root.join("bin/python3").display().to_string();
        let print = "import sys, json; print(sys.base_prefix)";
        let prefix = format!("{}\n", root.display());
        set_up(&env, &project, &[&program, "-m", "venv", "--without-pip", ".venv"]);
        let search = root.join(bin).canonicalize().unwrap();
        env = env.with("PATH", format!("{}:/usr/bin:/bin", search.display()));
        let exec = |python: &str| {
            let finished = env.run(["exec", "--workdir", &project, "--", python, "-c", print]);
            assert_eq!(finished.out, prefix, "{python}: {finished}");
        };
        for python in [&program, "python3", ".venv/bin/python", ".venv/bin/python3"] {
            exec(python);
        }
        let code = format!("code={print}");
        let called = env.run(["call", "run_code", "language=python", &code]).ok();
        assert!(called.out.contains(&prefix), "{called}");
        // An environment of the manager's interpreter, where the search path has another one.
        env = env.with("PATH", "/usr/bin:/bin");
        let words = ["exec", "--workdir", &project, "--", ".venv/bin/python", "-c", print];
        assert_eq!(env.run(words).ok().out, prefix);
        let argv = format!("argv={}", serde_json::json!([program, "-c", print]));
        let called = env.run(["call", "run_command", &argv, "--yes"]).ok();
        assert!(called.out.contains(&prefix), "a model's argument: {called}");
    }
}

#[test]
fn node_of_nvm_starts_with_its_packages() {
    let test = "node_of_nvm_starts_with_its_packages";
    let modules = Path::new("/usr/lib/node_modules/npm");
    let Some(env) = world(test, &[Path::new("/usr/bin/node"), modules]) else { return };
    let home = env.path("../home").canonicalize().unwrap();
    let root = home.join(".nvm/versions/node/v20.0.0");
    place(Path::new("/usr/bin/node"), &root.join("bin/node"));
    // A package that is installed for all projects.
    package(&env, "../home/.nvm/versions/node/v20.0.0/lib/node_modules/wordtool");
    symlink("../lib/node_modules/wordtool/cli.js", root.join("bin/wordtool")).unwrap();
    symlink(modules, root.join("lib/node_modules/npm")).unwrap();
    for name in ["npm", "npx"] {
        symlink(format!("../lib/node_modules/npm/bin/{name}-cli.js"), root.join("bin").join(name)).unwrap();
    }
    env.write("project/package.json", "{}");
    let bin = root.join("bin").display().to_string();
    let env = env.with("PATH", format!("{bin}:/usr/bin:/bin"));
    let exec = |command: &[&str]| {
        env.run(["exec", "--workdir", "project", "--pids", "128", "--"].iter().chain(command)).ok().out
    };
    let print = "console.log(process.execPath)";
    let path = format!("{bin}/node\n");
    for program in ["node", &format!("{bin}/node")] {
        assert_eq!(exec(&[program, "-e", print]), path);
    }
    assert_eq!(exec(&["wordtool"]), "word of npm\n");
    assert_eq!(exec(&[&format!("{bin}/wordtool")]), "word of npm\n");
    for program in ["npm", "npx"] {
        assert!(exec(&[program, "--version"]).starts_with(|first: char| first.is_ascii_digit()));
    }
    let called = env.run(["call", "run_code", "language=javascript", &format!("code={print}")]).ok();
    assert!(called.out.contains(&path), "{called}");
}

#[test]
fn cargo_of_rustup_is_the_default_toolchain() {
    let test = "cargo_of_rustup_is_the_default_toolchain";
    let cargo = Path::new(env!("CARGO"));
    let Some(env) = world(test, &[cargo]) else { return };
    let home = env.path("../home").canonicalize().unwrap();
    // The launcher is never started: its settings name the toolchain.
    place(cargo, &home.join(".cargo/bin/rustup"));
    symlink("rustup", home.join(".cargo/bin/cargo")).unwrap();
    place(cargo, &home.join(".rustup/toolchains/stable/bin/cargo"));
    std::fs::write(home.join(".rustup/settings.toml"), "default_toolchain = \"stable\"\n").unwrap();
    std::fs::write(home.join(".cargo/credentials.toml"), "secret").unwrap();
    env.write("project/Cargo.toml", "[package]\nname = \"word\"\nversion = \"1.0.0\"\n");
    env.write("project/src/lib.rs", "");
    let bin = home.join(".cargo/bin").display().to_string();
    let env = env.with("PATH", format!("{bin}:/usr/bin:/bin"));
    for program in ["cargo", &format!("{bin}/cargo")] {
        let words = ["exec", "--workdir", "project", "--discard", "--", program, "locate-project"];
        assert!(env.run(words).ok().out.contains("Cargo.toml"), "{program}");
        let argv = format!("argv={}", serde_json::json!([program, "--version"]));
        let called = env.run(["call", "run_command", &argv, "--workdir", "project", "--yes"]).ok();
        assert!(called.out.contains("cargo 1."), "{called}");
    }
    let secret = home.join(".cargo/credentials.toml").display().to_string();
    let words = ["exec", "--workdir", "project", "--", "cat", &secret];
    assert!(!env.run(words).exit(1).out.contains("secret"));
}

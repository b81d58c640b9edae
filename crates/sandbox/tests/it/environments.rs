//! Programs of virtual environments, Node.js packages and version managers.

use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use toolpost_sandbox::{Level, Program, Sandbox, Workspace};

use crate::support::{Mode, open_directory, quick, run};

fn file(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Every mode at a level of this host.
fn sandboxes() -> Vec<(String, Sandbox)> {
    let minimal = Sandbox::new().level(Level::Minimal).limits(quick());
    let modes = Mode::available().into_iter().map(|mode| (format!("{mode:?}"), mode.sandbox()));
    [("Minimal".to_owned(), minimal)].into_iter().chain(modes).collect()
}

/// The output of a program, with its errors.
fn printed(sandbox: &Sandbox, words: &[OsString]) -> String {
    match run(sandbox, &Program::operator_argv(words)) {
        Ok(outcome) => format!("{}{}", outcome.stdout.text(), outcome.stderr.text()),
        Err(error) => error.to_string(),
    }
}

/// An environment of the project `work` with the module `only_here`, an editable install of the project, and a link
/// to the interpreter. None, with a message, without Python.
fn environment(test: &str, root: &Path) -> Option<PathBuf> {
    let look = "import sys\nprint(sys.base_prefix, sys.executable, '%d.%d' % sys.version_info[:2])";
    let code = Program::code(toolpost_sandbox::Language::Python, look);
    let facts = run(&Mode::Standard.sandbox(), &code).map(|outcome| outcome.stdout.text());
    let facts = facts.unwrap_or_default();
    let [base, program, version] = facts.split_whitespace().collect::<Vec<_>>()[..] else {
        println!("SKIP {test}: there is no Python");
        return None;
    };
    let environment = root.join("work/venv");
    let packages = environment.join(format!("lib/python{version}/site-packages"));
    file(&packages.join("only_here.py"), "import edited\nVALUE = 'of the environment, ' + edited.VALUE\n");
    file(&root.join("work/pyproject.toml"), "");
    file(&root.join("work/src/edited.py"), "VALUE = 'edited'\n");
    file(&packages.join("source.pth"), &format!("{}\n", root.join("work/src").display()));
    let program = Path::new(program).strip_prefix(base).unwrap();
    symlink(base, root.join("base")).unwrap();
    let interpreter = root.join("base").join(program);
    let home = format!("home = {}\n", interpreter.parent().unwrap().display());
    file(&environment.join("pyvenv.cfg"), &home);
    std::fs::create_dir_all(environment.join("bin")).unwrap();
    symlink(&interpreter, environment.join("bin/python3")).unwrap();
    symlink("python3", environment.join("bin/python")).unwrap();
    Some(environment)
}

#[test]
fn a_virtual_environment_is_used_at_every_level() {
    let directory = open_directory();
    let root = directory.path().canonicalize().unwrap();
    let Some(environment) = environment("a_virtual_environment_is_used_at_every_level", &root) else {
        return;
    };
    let code = "import sys, only_here\nprint(sys.prefix, only_here.VALUE, *sys.argv[1:])\n";
    let python = environment.join("bin/python");
    file(&root.join("own"), &format!("#!{}\n{code}", python.display()));
    file(&root.join("found"), &format!("#!/usr/bin/env python\n{code}"));
    file(&root.join("split"), &format!("#!/usr/bin/env -S python -u\n{code}"));
    let activated = OsString::from(format!("{}:/usr/bin:/bin", environment.join("bin").display()));
    let expected = format!("{} of the environment, edited", environment.display());
    for (name, sandbox) in sandboxes() {
        let sandbox = sandbox.search_path(activated.clone()).read_only(root.join("work/src"));
        let code = |program: PathBuf| vec![program.into_os_string(), "-c".into(), code.into()];
        for words in [code(python.clone()), code(root.join("work/venv/bin/python3")), code("python".into())] {
            assert_eq!(printed(&sandbox, &words).trim(), expected, "{name} {words:?}");
        }
        for script in ["own", "found", "split"] {
            let words = [root.join(script).into_os_string(), "x".into()];
            assert_eq!(printed(&sandbox, &words).trim(), format!("{expected} x"), "{name} {script}");
        }
    }
}

#[test]
fn only_the_needs_of_an_environment_are_shown_and_reported() {
    let test = "only_the_needs_of_an_environment_are_shown_and_reported";
    let directory = open_directory();
    let root = directory.path().canonicalize().unwrap();
    let Some(environment) = environment(test, &root) else { return };
    if !Mode::available().contains(&Mode::Strict) {
        return;
    }
    file(&root.join("work/.env"), "KEY=1");
    let code = "import os, sys\nprint(os.path.exists(sys.argv[1]), os.access(sys.argv[2], os.W_OK))";
    let words: Vec<OsString> = vec![
        environment.join("bin/python").into(),
        "-c".into(),
        code.into(),
        root.join("work/.env").into(),
        environment.clone().into(),
    ];
    let outcome = run(&Mode::Strict.sandbox(), &Program::operator_argv(&words)).unwrap();
    assert_eq!(outcome.stdout.text().trim(), "False False", "{}", outcome.stderr.text());
    // The environment names the sources of its own project, which the operator named with it.
    let shown = [&environment, &root.join("work/src")].iter().all(|path| outcome.report.shown.contains(path));
    assert!(shown && outcome.report.not_shown.is_empty(), "{:?}", outcome.report);
    let outcome =
        run(&Mode::Strict.sandbox().workspace(Workspace::Host(root.join("work"))), &Program::argv(&words));
    let report = outcome.unwrap().report;
    assert!(report.shown.contains(&root.join("work/src")) && report.not_shown.is_empty(), "{report:?}");
}

#[test]
fn a_program_of_the_workspace_is_found_by_its_relative_path() {
    let directory = open_directory();
    let root = directory.path().canonicalize().unwrap();
    let test = "a_program_of_the_workspace_is_found_by_its_relative_path";
    if environment(test, &root).is_none() {
        return;
    }
    let code = "import only_here, sys\nprint(only_here.VALUE)";
    file(&root.join("work/tool"), &format!("#!{}\n{code}\n", root.join("work/venv/bin/python").display()));
    for (name, sandbox) in sandboxes() {
        let sandbox = sandbox.workspace(Workspace::Host(root.join("work")));
        let words: Vec<OsString> = vec!["venv/bin/python".into(), "-c".into(), code.into()];
        if name == "Shared" {
            println!("SKIP {test}: a host without namespaces shows no directory");
            continue;
        }
        assert_eq!(printed(&sandbox, &words).trim(), "of the environment, edited", "{name}");
        assert_eq!(printed(&sandbox, &["./tool".into()]).trim(), "of the environment, edited", "{name}");
    }
}

#[test]
fn a_program_of_node_modules_reads_its_packages() {
    let test = "a_program_of_node_modules_reads_its_packages";
    let node =
        std::env::split_paths(toolpost_sandbox::SYSTEM_SEARCH_PATH).map(|directory| directory.join("node"));
    let Some(node) = node.into_iter().find(|node| node.is_file()) else {
        println!("SKIP {test}: there is no Node.js");
        return;
    };
    let directory = open_directory();
    let root = directory.path().canonicalize().unwrap();
    let modules = root.join("project/node_modules");
    let code = "#!/usr/bin/env node\nconsole.log(require('greeting'), process.argv[2]);\n";
    file(&modules.join("tool/cli.js"), code);
    file(&modules.join("greeting/index.js"), "module.exports = 'hello';\n");
    // A linked package, and a Node.js of a version manager.
    file(&root.join("linked/package.json"), "{}");
    file(&root.join("linked/bin/cli.js"), "#!/usr/bin/env node\nconsole.log(require('../lib'));\n");
    file(&root.join("linked/lib.js"), "module.exports = 'linked';\n");
    symlink("../../linked", modules.join("linked")).unwrap();
    std::fs::create_dir_all(modules.join(".bin")).unwrap();
    symlink("../tool/cli.js", modules.join(".bin/tool")).unwrap();
    symlink("../linked/bin/cli.js", modules.join(".bin/linked")).unwrap();
    std::fs::create_dir_all(root.join("versions/v20/bin")).unwrap();
    // Another process copies it: a child of a concurrent test could hold a file open that this one writes, and a file
    // that is open for writing does not start.
    #[expect(clippy::disallowed_methods, reason = "copies a program on the host")]
    let copied = Command::new("cp").args([&node, &root.join("versions/v20/bin/node")]).status();
    assert!(copied.unwrap().success());
    for (name, sandbox) in sandboxes() {
        let limits = quick().with_memory(2 << 30);
        let path = format!("{}/versions/v20/bin:/usr/bin:/bin", root.display());
        let sandbox = sandbox.limits(limits).search_path(path);
        let tool = [modules.join(".bin/tool").into_os_string(), "x".into()];
        assert_eq!(printed(&sandbox, &tool).trim(), "hello x", "{name}");
        assert_eq!(printed(&sandbox, &[modules.join(".bin/linked").into()]).trim(), "linked", "{name}");
    }
}

//! Host paths that files of a project name: the outcome names them, and `--readable` shows them.

use std::os::unix::fs::symlink;

use serde_json::json;

use crate::support::TestEnv;

/// A project whose environment names a directory of another one, and the path of a file there.
fn project() -> (TestEnv, String) {
    let env = TestEnv::new();
    let work = env.path("");
    env.write("other/setup.py", "");
    let data = env.write("other/src/data.txt", "of-the-other-project\n");
    let name = work.join("other/src");
    env.write("project/pyproject.toml", "");
    env.write("project/.venv/pyvenv.cfg", "home = /usr/bin\n");
    env.write("project/.venv/lib/python3/site-packages/x.pth", format!("{}\n", name.display()));
    std::fs::create_dir_all(work.join("project/.venv/bin")).unwrap();
    symlink("/usr/bin/cat", work.join("project/.venv/bin/app")).unwrap();
    (env, data.display().to_string())
}

/// `exec` names what is not shown, and shows it when asked to.
#[test]
pub(crate) fn exec() {
    let (env, data) = project();
    let words = |more: &[&str]| {
        let mut all = vec!["exec", "--workdir", "project"];
        all.extend(more);
        all.extend(["--", ".venv/bin/app", &data]);
        env.run(all)
    };
    let hidden = words(&[]).exit(1);
    assert!(
        hidden.err.contains("not shown:") && hidden.err.contains("`--readable PATH` shows it"),
        "{hidden}"
    );
    assert!(!hidden.out.contains("of-the-other-project"), "{hidden}");
    let report = words(&["--json"]).json()["report"].take();
    assert!(report["not_shown"][0].as_str().unwrap().ends_with("other/src"), "{report}");
    for level in ["standard", "strict", "maximum"] {
        let shown = words(&["--readable", "other/src", "--level", level]).ok();
        assert_eq!(shown.out, "of-the-other-project\n", "{shown}");
    }
}

/// `call`, `run` and `serve` show it to code.
#[test]
pub(crate) fn code() {
    let (env, data) = project();
    let argv = json!([".venv/bin/app", data]).to_string();
    let call = |more: &[&str]| {
        let mut all = vec!["call", "run_command"];
        let argument = format!("argv={argv}");
        all.extend([argument.as_str(), "--workdir", "project", "--yes"]);
        all.extend(more);
        env.run(all)
    };
    assert!(!call(&[]).out.contains("of-the-other-project"));
    assert!(call(&["--readable", "other/src"]).ok().out.contains("of-the-other-project"));
    let turns = json!({"turns": [
        {"calls": [{"tool": "run_command", "args": {"argv": [".venv/bin/app", data]}}]},
        {"text": "{{ last.structured.stdout }}"},
    ]});
    env.write("model.yaml", turns.to_string());
    let run = |more: &[&str]| {
        let mut all = vec!["run", "-p", "x", "-m", "script:model.yaml", "--workdir", "project", "--yes"];
        all.extend(["--tools", "run_command"]);
        all.extend(more);
        env.run(all)
    };
    assert!(!run(&[]).ok().out.contains("of-the-other-project"));
    assert!(run(&["--readable", "other/src"]).ok().out.contains("of-the-other-project"));
    let line = crate::serve::call(1, "run_command", &json!({ "argv": [".venv/bin/app", data] })) + "\n";
    let serve = |more: &[&str]| {
        let mut all = vec!["serve", "builtin:run_command", "--workdir", "project"];
        all.extend(["--approve", "run_command"]);
        all.extend(more);
        env.run_with(line.clone(), all)
    };
    assert!(!serve(&[]).out.contains("of-the-other-project"));
    let shown = serve(&["--readable", "other/src"]);
    assert!(shown.out.contains("of-the-other-project"), "{shown}");
}

/// A model names no program of another project.
#[test]
fn an_argument_of_a_model_stays_in_the_workspace() {
    let (env, _) = project();
    let own = env.path("project/.venv/bin/own");
    // Another process copies it: this one could hold it open for writing when a concurrent test forks.
    env.run(["exec", "--workdir", "project", "--", "cp", "/usr/bin/cat", ".venv/bin/own"]).ok();
    let python = own.display().to_string();
    env.write("elsewhere/x", "");
    for level in ["standard", "strict", "maximum"] {
        let argv = format!("argv={}", json!([python, "/etc/hostname"]));
        let words = ["call", "run_command", &argv, "--workdir", "elsewhere", "--yes", "--level", level];
        let refused = env.run(words).exit(1);
        assert!(refused.err.contains("must lie in the workspace"), "{refused}");
        assert!(!refused.err.contains("project/.venv/lib"), "{refused}");
    }
}

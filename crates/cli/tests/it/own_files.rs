//! Toolpost's own files: no program and no tool reads or writes them, whatever the working directory.

use std::path::Path;

use serde_json::json;

use crate::support::{Finished, TestEnv};

/// The own directories with the variables that place them. The last name is that of the program.
const OWN: [(&str, &str); 4] = [
    ("XDG_CONFIG_HOME", "base/config/toolpost"),
    ("XDG_STATE_HOME", "base/state/toolpost"),
    ("XDG_DATA_HOME", "base/data/toolpost"),
    ("XDG_CACHE_HOME", "base/cache/toolpost"),
];

/// Own directories with a secret each, and a store in the working directory.
fn world() -> TestEnv {
    let mut env = TestEnv::new();
    for (variable, own) in OWN {
        env.write(&format!("{own}/secret"), format!("canary of {own}\n"));
        let parent = env.path(own).parent().unwrap().to_owned();
        env = env.with(variable, parent);
    }
    env.write("base/x.db", "");
    env.write("base/free", "of the user\n");
    env.leaving_files()
}

/// Every directory from which an own directory can be reached, and the path from there.
fn views() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (_, own) in OWN {
        for above in Path::new(own).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            let below = Path::new(own).strip_prefix(above).unwrap().display().to_string();
            all.push((above.display().to_string(), below));
        }
    }
    all
}

fn holds(env: &TestEnv, finished: &Finished, label: &str) {
    assert!(!finished.out.contains("canary of"), "{label}: {finished}");
    for (_, own) in OWN {
        assert_eq!(env.read(&format!("{own}/secret")), format!("canary of {own}\n"), "{label}: {finished}");
        for planted in ["planted", "config.toml", "trust.json"] {
            assert!(!env.path(&format!("{own}/{planted}")).exists(), "{label}: {finished}");
        }
    }
}

#[test]
fn programs_neither_read_nor_write_them() {
    let env = world();
    for (directory, below) in views() {
        let script = format!(
            "cat {below}/secret; mkdir -p {below}; echo x > {below}/planted; echo 'level = \"minimal\"' > {below}/config.toml; \
             rm -f {below}/secret; echo ok > made"
        );
        for words in [
            vec!["exec", "--workdir", &directory, "--", "sh", "-c", &script],
            vec!["call", "run_command", "--workdir", &directory, "--yes", "argv=[\"sh\",\"-c\",SCRIPT]"],
            vec!["call", "run_code", "--workdir", &directory, "--yes", "language=bash", "code=SCRIPT"],
        ] {
            let quoted = json!(script).to_string();
            let words: Vec<String> = words
                .iter()
                .map(|word| match *word {
                    "code=SCRIPT" => format!("code={script}"),
                    word => word.replace("SCRIPT", &quoted),
                })
                .collect();
            let finished = env.run(&words);
            let label = format!("{} in {directory}", words[..2].join(" "));
            holds(&env, &finished, &label);
            // The rest of the directory is written.
            assert_eq!(env.read(&format!("{directory}/made")), "ok\n", "{label}: {finished}");
            std::fs::remove_file(env.path(&format!("{directory}/made"))).unwrap();
        }
    }
}

#[test]
fn file_tools_neither_read_nor_write_them() {
    let env = world();
    for (directory, below) in views() {
        for (tool, arguments, is_denied) in [
            ("read_file", vec![format!("path={below}/secret")], true),
            ("write_file", vec![format!("path={below}/secret"), "content=x".into()], true),
            ("write_file", vec![format!("path={below}/config.toml"), "content=x".into()], true),
            ("list_directory", vec![format!("path={below}")], true),
            ("list_directory", vec!["path=.".into(), "recursive=true".into()], false),
        ] {
            let mut words = vec!["call", tool, "--workdir", &directory, "--yes"];
            words.extend(arguments.iter().map(String::as_str));
            let finished = env.run(&words);
            let label = format!("{words:?}");
            holds(&env, &finished, &label);
            assert_eq!(finished.status.success(), !is_denied, "{label}: {finished}");
            assert!(!finished.out.contains("secret"), "{label}: {finished}");
        }
    }
}

#[test]
fn a_working_directory_in_them_is_rejected() {
    let env = world();
    env.write("model.yaml", "turns: [{text: hi}]");
    for (_, own) in OWN {
        std::fs::create_dir_all(env.path(&format!("{own}/inner"))).unwrap();
        for directory in [own.to_owned(), format!("{own}/inner")] {
            for words in [
                vec!["exec", "--workdir", &directory, "--", "true"],
                vec!["exec", "--live", "--workdir", &directory, "--", "true"],
                vec!["call", "read_file", "path=secret", "--workdir", &directory],
                vec!["run", "-p", "x", "-m", "script:model.yaml", "--workdir", &directory],
            ] {
                let finished = env.run(&words).exit(2);
                assert!(finished.err.contains("is in") && finished.err.contains("own files"), "{finished}");
            }
        }
    }
}

/// A store in the working directory works, and code does not see it.
#[test]
fn a_store_in_the_working_directory_is_hidden() {
    let env = world();
    std::fs::remove_file(env.path("base/x.db")).unwrap();
    let turns = json!({"turns": [
        {"calls": [{"tool": "run_command", "args": {"argv": ["sh", "-c", "cat x.db; echo planted > x.db; ls; echo ok > made"]}}]},
        {"text": "{{ last.structured.stdout }}"},
    ]});
    env.write("model.yaml", turns.to_string());
    let words = ["run", "-p", "x", "-m", "script:model.yaml", "--yes", "--tools", "run_command"];
    let all = words.into_iter().chain(["--workdir", "base", "--store", "base/x.db"]);
    let finished = env.run(all).ok();
    assert!(!finished.out.contains("SQLite"), "{finished}");
    assert_eq!(env.read("base/made"), "ok\n");
    let listed = env.run(["runs", "ls", "--json", "--store", "base/x.db"]).ok().json();
    assert_eq!(listed["runs"].as_array().unwrap().len(), 1, "the store is whole");
}

/// Files that other programs execute or obey are protected by the whole path of the working directory.
#[test]
fn the_path_of_the_working_directory_counts() {
    let env = TestEnv::new();
    for (directory, path) in [
        ("a/.config", "fish/config.fish"),
        ("b/.config/fish", "config.fish"),
        ("a/.config/systemd/user", "a.service"),
        ("a/.local/bin", "ls"),
        ("b/.local", "bin/ls"),
        ("a/.git", "hooks/pre-commit"),
        ("b/.git/hooks", "pre-commit"),
        ("c/.git", "config"),
        ("p/.claude", "settings.json"),
        ("p/.vscode", "tasks.json"),
        ("p/.cargo", "bin/cargo"),
    ] {
        std::fs::create_dir_all(env.path(directory)).unwrap();
        let script = format!("mkdir -p $(dirname {path}); echo x > {path}");
        let code = env.run(["exec", "--workdir", directory, "--", "sh", "-c", &script]);
        let content = format!("path={path}");
        let tool = env.run([
            "call",
            "write_file",
            "--workdir",
            directory,
            "--yes",
            &content,
            "content=x",
            "create_directories=true",
        ]);
        for finished in [code, tool] {
            assert_eq!(finished.status.code(), Some(5), "{directory}/{path}: {finished}");
            assert!(!env.path(directory).join(path).exists(), "{directory}/{path}: {finished}");
        }
        let allowed = ["exec", "--workdir", directory, "--allow-protected", ".", "--", "sh", "-c", &script];
        env.run(allowed).ok();
        assert!(env.path(directory).join(path).exists(), "{directory}/{path}");
    }
    // A checkout of an agent is an ordinary project.
    std::fs::create_dir_all(env.path("p/.claude/worktrees/a")).unwrap();
    env.run(["exec", "--workdir", "p/.claude/worktrees/a", "--", "sh", "-c", "echo x > main.py"]).ok();
    assert_eq!(env.read("p/.claude/worktrees/a/main.py"), "x\n");
}

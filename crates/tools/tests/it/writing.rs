//! `write_file`: nothing is lost, nothing is half done.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use serde_json::json;
use toolpost_core::{Code, ToolError};
use toolpost_sandbox::SandboxHint;
use toolpost_tools::FileRoot;

use crate::support::{Bench, names_in, skip};

#[tokio::test]
async fn the_result_says_whether_the_file_is_new() {
    let bench = Bench::new();
    let value = bench.value("write_file", json!({"path": "a.txt", "content": "é"})).await;
    assert_eq!(value, json!({"path": "a.txt", "bytes": 2, "created": true, "backup": null}));
    let arguments = json!({"path": "a.txt", "content": "two", "create_backup": true});
    let output = bench.run("write_file", arguments).await.unwrap();
    assert_eq!(output.to_text(), "Replaced a.txt (3 bytes); backup: a.txt.backup");
    assert_eq!(output.structured.unwrap()["created"], false);
    assert_eq!(bench.read("a.txt").await, "two");
}

/// Sandboxed programs of root run as another user, who could not change a file of root.
#[tokio::test]
async fn files_of_root_belong_to_the_owner_of_their_directory() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can give files to others");
    }
    let bench = Bench::new();
    std::os::unix::fs::chown(bench.directory.path(), Some(1234), Some(1235)).unwrap();
    let arguments = json!({"path": "d/a", "content": "1", "create_directories": true});
    bench.value("write_file", arguments).await;
    bench.value("write_file", json!({"path": "b", "content": "1", "atomic": false})).await;
    for name in ["d", "d/a", "b"] {
        let metadata = bench.path(name).metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (1234, 1235), "{name}");
    }
}

#[tokio::test]
async fn copies_overwrite_nothing() {
    let bench = Bench::new();
    bench.put("d/a", "0");
    bench.put("d/a.backup", "mine");
    for (content, backup) in [("1", "d/a.backup-1"), ("2", "d/a.backup-2")] {
        let arguments = json!({"path": "d/a", "content": content, "create_backup": true});
        let value = bench.value("write_file", arguments).await;
        assert_eq!(value["backup"], backup);
    }
    for (name, content) in
        [("d/a", "2"), ("d/a.backup", "mine"), ("d/a.backup-1", "0"), ("d/a.backup-2", "1")]
    {
        assert_eq!(bench.read(name).await, content, "{name}");
    }
    let value = bench.value("write_file", json!({"path": "d/a", "content": "3"})).await;
    assert_eq!(value["backup"], json!(null));
    assert_eq!(names_in(&bench.path("d")), ["a", "a.backup", "a.backup-1", "a.backup-2"]);
}

#[tokio::test]
async fn an_atomic_write_replaces_the_file() {
    let bench = Bench::new();
    let path = bench.put("a", "old and longer");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = path.metadata().unwrap().ino();
    let arguments = json!({"path": "a", "content": "in place", "atomic": false, "create_backup": false});
    bench.value("write_file", arguments).await;
    assert_eq!((path.metadata().unwrap().ino(), bench.read("a").await.as_str()), (before, "in place"));
    bench.value("write_file", json!({"path": "a", "content": "new", "create_backup": false})).await;
    let after = path.metadata().unwrap();
    assert_ne!(after.ino(), before);
    assert_eq!(after.mode() & 0o7777, 0o640);
    assert_eq!(bench.names(), ["a"]);
    bench.value("write_file", json!({"path": "b", "content": "new", "atomic": false})).await;
    assert_eq!(bench.read("b").await, "new");
}

#[tokio::test]
async fn a_hard_link_is_not_changed() {
    let bench = Bench::new();
    let outside = tempfile::NamedTempFile::new_in(bench.directory.path().parent().unwrap()).unwrap();
    std::fs::write(outside.path(), "outside").unwrap();
    std::fs::hard_link(outside.path(), bench.path("a")).unwrap();
    let in_place = json!({"path": "a", "content": "x", "atomic": false, "create_backup": false});
    assert_eq!(bench.error("write_file", in_place).await.code(), Code::Permission);
    bench.value("write_file", json!({"path": "a", "content": "x"})).await;
    assert_eq!(std::fs::read_to_string(outside.path()).unwrap(), "outside");
}

#[tokio::test]
async fn directories_are_created_on_request() {
    let bench = Bench::new();
    let error = bench.error("write_file", json!({"path": "x/y/a", "content": ""})).await;
    assert_eq!(error.code(), Code::InvalidPath);
    assert!(error.suggestion().unwrap().contains("create_directories"), "{error}");
    assert!(bench.names().is_empty());
    bench.value("write_file", json!({"path": "x/y/a", "content": "a", "create_directories": true})).await;
    assert_eq!(bench.read("x/y/a").await, "a");
}

#[tokio::test]
async fn readers_see_the_old_file_or_the_new_one() {
    let bench = Bench::new();
    let path = bench.put("a", "A".repeat(100_000));
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let watching = std::sync::Arc::clone(&done);
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        while !watching.load(std::sync::atomic::Ordering::Relaxed) {
            let bytes = std::fs::read(&path).unwrap();
            assert!(bytes.len() == 100_000 && bytes.iter().all(|byte| *byte == bytes[0]));
            seen += 1;
        }
        seen
    });
    for letter in ["B", "C"].repeat(50) {
        let arguments = json!({"path": "a", "content": letter.repeat(100_000), "create_backup": false});
        bench.value("write_file", arguments).await;
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
    assert_eq!(bench.names(), ["a"]);
}

#[tokio::test]
async fn a_failed_write_leaves_no_file() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("directory")).unwrap();
    for path in ["directory", ".", "directory/", "new\u{7}name"] {
        let error = bench.error("write_file", json!({"path": path, "content": "x"})).await;
        assert_eq!(error.code(), Code::InvalidPath, "{path}");
    }
    assert_eq!(
        (bench.names(), names_in(&bench.path("directory"))),
        (vec!["directory".to_owned()], Vec::new())
    );
}

async fn write(bench: &Bench, path: &str, content: &str) -> Result<(), ToolError> {
    let arguments = json!({"path": path, "content": content, "create_directories": true});
    bench.run("write_file", arguments).await.map(drop)
}

/// Each row: what the host has, the files that are written one after another, and those of them that are rejected.
#[tokio::test]
async fn protected_paths_and_shapes_are_rejected() {
    for (before, written, rejected) in [
        (&[][..], &[".git/config", ".git", "new/.git", "new/.GIT/HEAD", "GIT~1/config"][..], "....."),
        (
            &[],
            &[".ssh/authorized_keys", "sub/.BashRC", ".claude/x", ".mcp.json.", ".husky/pre-commit"],
            ".....",
        ),
        (&[], &["HEAD", "config", "objects/x", "refs/heads/x", "hooks/update"], "+++.+"),
        (&["HEAD", "objects/x"], &["refs/x", "commondir", "notes"], "..+"),
        (&["a/HEAD"], &["a/refs/x", "a/objects/x", "a/commondir"], "+.."),
        (&["a/HEAD", "a/objects/x", "a/refs/x"], &["a/config", "a/hooks/update", "a/refs/y"], "..."),
        (
            &[".git/HEAD"],
            &[
                ".git/config",
                ".git/hooks/x",
                ".git/rebase-merge/git-rebase-todo",
                ".git/index",
                ".git/refs/heads/x",
            ],
            ".....",
        ),
        (&["AGENTS.md"], &["AGENTS.md", "agents.md", "sub/AGENTS.md", "CLAUDE.md", "GEMINI.md"], ".++++"),
        (&["CLAUDE.md", "GEMINI.md"], &["CLAUDE.md", "GEMINI.md"], ".."),
    ] {
        let bench = Bench::new();
        for name in before {
            bench.put(name, "host");
        }
        for (path, expected) in written.iter().zip(rejected.chars()) {
            match write(&bench, path, "x").await {
                Ok(()) => assert_eq!(expected, '+', "{path} after {before:?}"),
                Err(error) => {
                    assert_eq!((error.code(), expected), (Code::Permission, '.'), "{path}: {error}");
                    assert_eq!(error.hint(), Some(SandboxHint::AllowProtected), "{error}");
                }
            }
        }
        for name in before.iter().filter(|name| !written.contains(name)) {
            assert_eq!(bench.read(name).await, "host", "{name}");
        }
    }
}

#[tokio::test]
async fn only_existing_git_drivers_are_accepted() {
    let bench = Bench::new();
    bench.put("lfs/.gitattributes", "*.bin filter=lfs\n");
    for (path, content, is_written) in [
        (".gitattributes", "* filter=evil\n", false),
        ("a/.GitAttributes", "*.c diff=evil", false),
        (".gitattributes", "*.png binary\n", true),
        ("lfs/.gitattributes", "*.bin filter=lfs\n* merge=evil\n", false),
        ("lfs/.gitattributes", "*.bin filter=lfs\n*.png binary\n", true),
    ] {
        let result = write(&bench, path, content).await;
        assert_eq!(result.is_ok(), is_written, "{path} {content} {result:?}");
    }
}

#[tokio::test]
async fn the_operator_admits_protected_paths() {
    let root = tempfile::tempdir().unwrap();
    let admitted = FileRoot::new(root.path()).allow_protected([".vscode", "sub/.octaverc"]);
    let bench = Bench::with(|builder| builder.provide(admitted));
    std::fs::create_dir(root.path().join("sub")).unwrap();
    for (path, is_written) in [
        (".vscode", true),
        ("sub/.octaverc", true),
        (".octaverc", false),
        ("sub/.vscode", false),
        (".vscode2", true),
    ] {
        let result = bench.toolbox.run("write_file", json!({"path": path, "content": "x"})).await;
        assert_eq!(result.is_ok(), is_written, "{path} {result:?}");
    }
}

/// The host's side: git reads what was written, and executes nothing of it.
#[tokio::test]
async fn git_executes_nothing_that_write_file_has_written() {
    let bench = Bench::new();
    let canary = bench.path("canary");
    let config = format!(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = {}\n\tfsmonitor = \"touch {}; false\"\n",
        bench.directory.path().display(),
        canary.display()
    );
    for prefix in ["", ".git/"] {
        for (name, content) in [
            ("HEAD", "ref: refs/heads/main\n"),
            ("config", config.as_str()),
            ("objects/x", ""),
            ("refs/x", ""),
            ("index", ""),
        ] {
            // Some of them are rejected, which ones is for the rows above.
            let _ = write(&bench, &format!("{prefix}{name}"), content).await;
        }
    }
    for words in [&["status"][..], &["log"], &["diff"]] {
        #[expect(clippy::disallowed_methods, reason = "the host's side of the row")]
        let mut git = std::process::Command::new("git");
        let place = bench.directory.path();
        let parent = place.parent().unwrap();
        match git.args(words).current_dir(place).env("GIT_CEILING_DIRECTORIES", parent).output() {
            Ok(output) => assert!(!output.status.success() && !canary.exists(), "{words:?} {output:?}"),
            Err(error) => skip(error),
        }
    }
}

#[tokio::test]
async fn what_git_and_links_name_is_not_written() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap().join("root");
    for directory in [".git/objects", ".git/refs", "pkg", "d"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    std::fs::write(root.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let config = "[core]\n\thooksPath = pkg/hooks\n\tfsmonitor = sh tools/f\n[include]\n\tpath = ../team\n";
    std::fs::write(root.join(".git/config"), config).unwrap();
    std::os::unix::fs::symlink("d", root.join(".vscode")).unwrap();
    let global = place.path().join("global");
    std::fs::write(&global, "[core]\n\tpager = ./pager\n\teditor = ~/root/edit\n").unwrap();
    let home = place.path().canonicalize().unwrap();
    let git = toolpost_sandbox::ProtectedPath::GitConfig { file: global, home };
    let write = async |directory: &str, path: &str, allowed: &str| {
        let file_root = FileRoot::new(root.join(directory)).protect([git.clone()]).allow_protected([allowed]);
        let bench = Bench::with(|builder| builder.provide(file_root));
        bench
            .toolbox
            .run("write_file", json!({"path": path, "content": "x", "create_directories": true}))
            .await
    };
    for (directory, path) in [
        ("", "pkg/hooks/pre-commit"),
        ("pkg", "hooks/pre-push"),
        ("", "tools/f"),
        ("", "team"),
        ("", "d/tasks.json"),
        ("", "pager"),
        ("", "edit"),
    ] {
        let error = write(directory, path, "none").await.unwrap_err();
        assert!(error.to_string().contains("the path is protected"), "{path}: {error}");
        assert!(!root.join(directory).join(path).exists(), "{path}");
        write(directory, path, path).await.unwrap();
    }
    for path in ["pkg/other", "tools/g", "notes"] {
        write("", path, "none").await.unwrap();
    }
}

#[tokio::test]
async fn protected_paths_are_not_written_under_any_name() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    std::fs::create_dir_all(root.join("server/lib")).unwrap();
    std::fs::create_dir(root.join("docs")).unwrap();
    for file in ["way.toml", "server/main.py", "outside.toml"] {
        std::fs::write(root.join(file), "trusted").unwrap();
    }
    std::os::unix::fs::symlink(root.join("way.toml"), place.path().join("named")).unwrap();
    std::os::unix::fs::symlink(&root, place.path().join("again")).unwrap();
    std::fs::hard_link(root.join("way.toml"), root.join("twin.toml")).unwrap();
    let protected = [place.path().join("named"), root.join("server"), root.join("missing/.env")];
    let write = async |directory: &std::path::Path, path: &str, atomic: bool| {
        let file_root = FileRoot::new(directory).protect(protected.clone());
        let bench = Bench::with(|builder| builder.provide(file_root));
        let arguments = json!({"path": path, "content": "x", "atomic": atomic, "create_directories": true, "create_backup": false});
        bench.toolbox.run("write_file", arguments).await
    };
    let again = place.path().join("again");
    for (directory, path, is_written) in [
        (&root, "way.toml", false),
        (&root, "./way.toml", false),
        (&root, "WAY.toml", false),
        (&root, "twin.toml", false),
        (&again, "way.toml", false),
        (&again, "server/main.py", false),
        (&root, "server/new.py", false),
        (&root, "server/lib/new.py", false),
        (&root, "server", false),
        (&root, "missing", false),
        (&root, "missing/.env", false),
        (&root, "missing/.env/x", false),
        (&root.join("server/lib"), "new.py", false),
        (&root, "missing/other", true),
        (&root, "missing/.ENV", false),
        (&root, "docs/way.toml", true),
        (&root, "servers/a.py", true),
        (&root, "outside.toml", true),
    ] {
        for atomic in [true, false] {
            let done = write(directory, path, atomic).await;
            assert_eq!(done.is_ok(), is_written, "{}: {path}: {done:?}", directory.display());
            if let Err(error) = done {
                assert_eq!(error.code(), Code::Permission, "{path}: {error}");
            }
        }
    }
    for file in ["way.toml", "server/main.py"] {
        assert_eq!(std::fs::read_to_string(root.join(file)).unwrap(), "trusted");
    }
    assert!(!root.join("missing/.env").exists() && !root.join("server/new.py").exists());
}

#[tokio::test]
async fn programs_of_the_system_and_activate_are_not_written() {
    use toolpost_sandbox::ProtectedPath;
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    for (file, content) in
        [(".venv/pyvenv.cfg", "home = /usr/bin"), (".venv/bin/activate", "of the operator")]
    {
        std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        std::fs::write(root.join(file), content).unwrap();
    }
    let entries = [root.join(".venv/bin"), "tools".into()].map(ProtectedPath::SearchPath);
    let bench = Bench::with(|builder| builder.provide(FileRoot::new(&root).protect(entries)));
    for (path, program) in [
        (".venv/bin/ls", Some("the shell")),
        (".venv/bin/toolpost", Some("the shell")),
        ("a/tools/ls", Some("the shell")),
        (".venv/bin/activate", Some("shells")),
        (".venv/bin/own-tool", None),
        (".venv/bin/python3", None),
        (".venv/bin/activate.fish", None),
        ("other/bin/activate", None),
        ("a/ls", None),
    ] {
        let arguments = json!({"path": path, "content": "x", "create_directories": true});
        let done = bench.toolbox.run("write_file", arguments).await;
        assert_eq!(done.is_ok(), program.is_none(), "{path} {done:?}");
        if let (Err(error), Some(program)) = (done, program) {
            assert!(error.to_string().contains(&format!("protected, {program} ")), "{error}");
        }
    }
}

#[tokio::test]
async fn code_of_trusted_programs_is_not_written_under_any_name() {
    use toolpost_sandbox::{Loader, ProtectedPath};
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap().join("root");
    std::fs::create_dir_all(root.join("src/pkg")).unwrap();
    std::fs::create_dir_all(root.join("docs")).unwrap();
    std::fs::write(root.join("src/helper.py"), "honest").unwrap();
    std::fs::hard_link(root.join("src/helper.py"), root.join("docs/helper.txt")).unwrap();
    std::os::unix::fs::symlink(&root, place.path().join("again")).unwrap();
    let again = place.path().join("again");
    let protected = [ProtectedPath::Code { directory: root.join("src"), loader: Loader::Python }];
    let write = async |directory: &std::path::Path, path: &str, is_protected: bool| {
        let protected = protected.iter().filter(|_| is_protected).cloned();
        let file_root = FileRoot::new(directory).protect(protected).allow_protected(["."]);
        let bench = Bench::with(|builder| builder.provide(file_root));
        let arguments = json!({"path": path, "content": "evil", "atomic": false, "create_directories": true, "create_backup": false});
        bench.toolbox.run("write_file", arguments).await
    };
    for (directory, path, is_written) in [
        (&root, "src/helper.py", false),
        (&root, "SRC/Helper.PY", false),
        (&root, "src/json.py", false),
        (&root, "src/new/__pycache__/a.pyc", false),
        (&again, "src/helper.py", false),
        (&root.join("src"), "helper.py", false),
        (&root.join("src/pkg"), "a.so", false),
        (&root, "src", false),
        (&root, "src/notes.md", true),
        (&root, "src/app.js", true),
        (&root, "helper.py", true),
    ] {
        let done = write(directory, path, true).await;
        assert_eq!(done.is_ok(), is_written, "{}: {path}: {done:?}", directory.display());
        if let Err(error) = done {
            let text = error.to_string();
            assert!(text.contains(path) && text.contains("a trusted target loads code"), "{error}");
            assert!(error.suggestion().unwrap().contains("trust the target again"), "{error}");
        }
    }
    // In place, the write would change the module.
    assert_eq!(write(&root, "docs/helper.txt", true).await.unwrap_err().code(), Code::Permission);
    assert_eq!(std::fs::read_to_string(root.join("src/helper.py")).unwrap(), "honest");
    write(&root, "src/json.py", false).await.unwrap();
}

/// A row of the budget: what is written, and whether there is room for it.
struct Row {
    path: &'static str,
    kib: usize,
    backup: bool,
    fits: bool,
}

fn row(path: &'static str, kib: usize, backup: bool, fits: bool) -> Row {
    Row { path, kib, backup, fits }
}

#[tokio::test]
async fn a_disk_budget_is_measured_when_used_up() {
    let root = tempfile::tempdir().unwrap();
    let sparse = std::fs::File::create(root.path().join("sparse")).unwrap();
    sparse.set_len(1 << 33).unwrap();
    let provide = |bytes, entries| {
        let bench = Bench::with(|builder| builder.provide(FileRoot::new(root.path()).limits(bytes, entries)));
        async move |row: &Row| {
            let arguments = json!({"path": row.path, "content": "x".repeat(row.kib << 10),
                "create_backup": row.backup, "create_directories": true});
            match bench.toolbox.run("write_file", arguments).await {
                Ok(_) => true,
                Err(error) => {
                    assert_eq!(error.code(), Code::Limit, "{error}");
                    assert!(error.message().contains("exceed"), "{error}");
                    false
                }
            }
        }
    };
    let write = provide(1 << 20, 100);
    for row in [
        row("z", 1025, false, false),
        row("a", 600, false, true),
        row("b", 600, false, false),
        // The copy takes room too.
        row("a", 200, true, false),
        row("a", 200, false, true),
        // What was replaced is measured as gone.
        row("b", 600, false, true),
        row("c", 400, false, false),
    ] {
        assert_eq!(write(&row).await, row.fits, "{} {}", row.path, row.kib);
    }
    assert_eq!(names_in(root.path()), ["a", "b", "sparse"]);
    std::fs::remove_file(root.path().join("b")).unwrap();
    assert!(write(&row("c", 400, false, true)).await, "removed files free their room");
    // Three files are there: they count as soon as the directory is measured.
    let write = provide(1 << 30, 5);
    for row in [
        row("d/e/f", 0, false, true),
        row("g", 0, false, true),
        row("h", 0, false, true),
        row("i", 0, false, false),
        row("j/k", 0, false, false),
        row("g", 1, false, true),
        row("g", 1, true, false),
    ] {
        assert_eq!(write(&row).await, row.fits, "{} {}", row.path, row.backup);
    }
    assert_eq!(names_in(root.path()), ["a", "c", "d", "g", "h", "sparse"]);
}

#[tokio::test]
async fn a_divided_root_separates_the_callers_of_its_directories() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    for name in ["ada", "eve"] {
        std::fs::create_dir(path(name)).unwrap();
        std::fs::write(path(name).join("notes"), format!("of {name}")).unwrap();
    }
    std::os::unix::fs::symlink("../ada", path("eve/link")).unwrap();
    std::os::unix::fs::symlink("ada", path("alias")).unwrap();
    let file_root = FileRoot::new(root.path()).divided().allow_protected([".vscode"]);
    let bench = Bench::with(|builder| builder.provide(file_root));
    let code = |code: &str| json!({ "language": "sh", "code": code });
    let other = path("ada/notes").display().to_string();
    for (directory, tool, arguments, expected) in [
        (Some("eve"), "read_file", json!({ "path": "notes" }), Ok("of eve")),
        (Some("alias"), "read_file", json!({ "path": "notes" }), Ok("of ada")),
        (Some("eve"), "read_file", json!({ "path": path("eve/notes") }), Ok("of eve")),
        (Some("eve"), "read_file", json!({ "path": other }), Err(Code::InvalidPath)),
        (Some("eve"), "read_file", json!({ "path": "link/notes" }), Err(Code::InvalidPath)),
        (Some("eve"), "write_file", json!({ "path": "../ada/x", "content": "" }), Err(Code::InvalidPath)),
        (Some("eve"), "write_file", json!({ "path": "link/x", "content": "" }), Err(Code::InvalidPath)),
        (
            Some("eve"),
            "write_file",
            json!({ "path": ".vscode/x", "content": "", "create_directories": true }),
            Ok("Created"),
        ),
        (Some("eve"), "write_file", json!({ "path": ".idea/x", "content": "" }), Err(Code::Permission)),
        (Some("eve"), "run_code", code(&format!("cat {other} ../ada/notes link/notes; echo end")), Ok("end")),
        (Some("."), "read_file", json!({ "path": "ada/notes" }), Err(Code::Precondition)),
        (Some(".."), "read_file", json!({ "path": "notes" }), Err(Code::Permission)),
        (None, "read_file", json!({ "path": "ada/notes" }), Err(Code::Precondition)),
        (None, "write_file", json!({ "path": "x", "content": "" }), Err(Code::Precondition)),
        (None, "list_directory", json!({ "path": "." }), Err(Code::Precondition)),
        (None, "run_code", code("ls"), Err(Code::Precondition)),
    ] {
        let mut call = bench.call(tool, arguments.clone());
        call.options.working_dir = directory.map(path);
        let result = bench.toolbox.call(call).await.result;
        let label = format!("{directory:?} {tool} {arguments}");
        match expected {
            Ok(text) => {
                let output = result.unwrap_or_else(|error| panic!("{label}: {error}"));
                let found = output.to_text();
                assert!(found.contains(text), "{label}: {found}");
                assert!(text == "of ada" || !found.contains("of ada"), "{label}: {found}");
            }
            Err(code) => assert_eq!(result.unwrap_err().code(), code, "{label}"),
        }
    }
    assert_eq!(std::fs::read_dir(path("ada")).unwrap().count(), 1);
}

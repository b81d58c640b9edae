//! The descriptions that come with the toolkit, each with its real program.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use toolpost_core::{Args, Code, Hint, ToolError};
use toolpost_exec::command::{CommandTools, SHIPPED};

use crate::command::support::{Run, is_installed, own_search_path};
use crate::host::sandbox_or_skip;

/// A directory with files, and calls of the tools of one shipped description in it.
struct Bench {
    program: &'static str,
    directory: TempDir,
}

impl Bench {
    /// A bench; `None` without the program or the sandbox.
    fn new(program: &'static str) -> Option<Self> {
        (is_installed(program) && sandbox_or_skip().is_some())
            .then(|| Self { program, directory: tempfile::tempdir().unwrap() })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Runs a program on the host to prepare something.
    fn host(&self, program: &str, arguments: &[&str]) {
        #[expect(clippy::disallowed_methods, reason = "prepares a directory on the host")]
        let output = std::process::Command::new(program)
            .args(arguments)
            .current_dir(self.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?} {}", String::from_utf8_lossy(&output.stderr));
    }

    fn run(&self, tool: &str, args: Value) -> Run {
        Run::of(CommandTools::shipped(self.program).unwrap(), tool, args).directory(self.path()).settings(
            |settings| {
                settings.search_path = search_path(self.program);
            },
        )
    }

    async fn value(&self, tool: &str, args: Value) -> Value {
        self.run(tool, args).value().await
    }

    async fn text(&self, tool: &str, args: Value) -> String {
        self.run(tool, args).text().await
    }

    async fn error(&self, tool: &str, args: Value) -> ToolError {
        self.run(tool, args).error().await
    }

    /// One column of the items.
    async fn column(&self, tool: &str, args: Value, name: &str) -> Vec<String> {
        let value = self.value(tool, args).await;
        let items = value["items"].as_array().unwrap().iter();
        items.map(|item| item[name].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// Where the program is when it is not in a system directory.
fn search_path(program: &str) -> Option<OsString> {
    let system = toolpost_sandbox::SYSTEM_SEARCH_PATH.split(':');
    let in_system = system.into_iter().any(|directory| Path::new(directory).join(program).is_file());
    (!in_system).then(own_search_path)
}

#[test]
fn all_are_read_and_each_example_makes_a_command_line() {
    let mut names = BTreeSet::new();
    for (program, _) in SHIPPED {
        let tools = CommandTools::shipped(program).unwrap();
        for spec in tools.specs() {
            assert_eq!(spec.meta["program"], program);
            assert!(names.insert(spec.name.clone()), "`{}` is there twice", spec.name);
            assert!(spec.annotations.read_only, "{}", spec.name);
            assert!(!spec.examples.is_empty(), "{} has no example", spec.name);
            for example in &spec.examples {
                let line = tools.command_line(&spec.name, &Args::from(example.args.clone())).unwrap();
                assert_eq!(line[0], program);
            }
        }
    }
    assert!(names.len() >= 12, "{names:?}");
}

/// No text parameter of any of them can become an option of its program.
#[test]
fn no_value_becomes_an_option_of_a_shipped_tool() {
    for (program, _) in SHIPPED {
        let tools = CommandTools::shipped(program).unwrap();
        for spec in tools.specs() {
            let schema = spec.input_schema.as_value();
            let mut args = spec.examples[0].args.clone();
            let plain = tools.command_line(&spec.name, &args.clone().into()).unwrap();
            for (name, parameter) in schema["properties"].as_object().unwrap() {
                let hostile = match parameter["type"].as_str() {
                    Some("string") => json!("--evil"),
                    Some("array") => json!(["--evil"]),
                    _ => continue,
                };
                let before = std::mem::replace(&mut args[name], hostile);
                let line = tools.command_line(&spec.name, &args.clone().into());
                if let Ok(line) = line {
                    let place = line.iter().position(|argument| argument == "--evil");
                    // Either it stands after `--`, or directly after an option that takes any value.
                    let is_operand = |place: usize| {
                        line[..place].iter().any(|argument| argument == "--")
                            || (program == "find" && ["-name", "-path"].contains(&line[place - 1].as_str()))
                    };
                    assert!(place.is_none_or(is_operand), "{} {name}: {line:?} {plain:?}", spec.name);
                }
                args[name] = before;
            }
        }
    }
}

/// Paths out of a working directory with the links of [`a_path_of_a_shipped_tool_stays_in_the_working_directory`].
const OUTSIDE: [&str; 12] = [
    "/etc/passwd",
    "//etc/passwd",
    "/",
    "..",
    "../secret",
    "in/../../secret",
    "./in/..",
    "file_out",
    "directory_out/secret",
    "in/up/secret",
    "dangling_out",
    "loop",
];

#[tokio::test]
async fn a_path_of_a_shipped_tool_stays_in_the_working_directory() {
    use std::os::unix::fs::symlink;
    let host = tempfile::tempdir().unwrap();
    let directory = host.path().join("work");
    std::fs::create_dir_all(directory.join("in")).unwrap();
    std::fs::write(host.path().join("secret"), "canary").unwrap();
    symlink("/etc/passwd", directory.join("file_out")).unwrap();
    symlink(host.path(), directory.join("directory_out")).unwrap();
    symlink("../..", directory.join("in/up")).unwrap();
    symlink("missing/../../secret", directory.join("dangling_out")).unwrap();
    symlink("loop", directory.join("loop")).unwrap();

    let mut checked = 0;
    for (program, _) in SHIPPED {
        let tools = CommandTools::shipped(program).unwrap();
        for spec in tools.specs() {
            for (name, parameter) in spec.input_schema.as_value()["properties"].as_object().unwrap() {
                let is_list = parameter["items"]["format"] == "file";
                if !is_list && parameter["format"] != "file" {
                    continue;
                }
                for path in OUTSIDE {
                    let mut args = spec.examples[0].args.clone();
                    args[name] = if is_list { json!(["in", path]) } else { json!(path) };
                    let run = Run::of(tools.clone(), &spec.name, args).directory(&directory);
                    let error = run.error().await;
                    let pointer = if is_list { format!("/{name}/1") } else { format!("/{name}") };
                    let found = (error.code(), error.context()["pointer"].as_str());
                    assert_eq!(found, (Code::InvalidPath, Some(&*pointer)), "{} {path}: {error}", spec.name);
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 16 * OUTSIDE.len(), "a path parameter lost its type");
}

#[tokio::test]
async fn revisions_are_no_paths() {
    let Some(bench) = Bench::new("git") else { return };
    bench.put("a", "canary-a\n");
    bench.put("b", "canary-b\n");
    for args in [json!({ "from": "a", "to": "b" }), json!({ "from": "a", "paths": ["b"] })] {
        let error = bench.error("git_diff", args).await;
        assert_eq!(error.code(), Code::Precondition, "{error}");
        assert!(error.message().contains("not the root of a Git repository"), "{error}");
    }
}

#[tokio::test]
async fn git() {
    let Some(bench) = Bench::new("git") else { return };
    for tool in ["git_log", "git_show", "git_diff", "git_status"] {
        let error = bench.error(tool, json!({})).await;
        assert_eq!(error.code(), Code::Precondition, "{tool} {error}");
        assert!(error.message().contains("not the root of a Git repository"), "{tool} {error}");
    }

    bench.host("git", &["init", "-q", "-b", "main"]);
    bench.host("git", &["config", "user.name", "Ada"]);
    bench.host("git", &["config", "user.email", "ada@example.com"]);
    bench.put("a.txt", "one\ntwo\n");
    bench.host("git", &["add", "."]);
    bench.host("git", &["commit", "-q", "-m", "first: a | pipe"]);
    bench.put("a.txt", "one\n2\n");
    bench.put("b c.txt", "b\n");
    bench.host("git", &["add", "."]);
    bench.host("git", &["commit", "-q", "-m", "second"]);

    // What a stranger's repository would have started.
    bench.host("git", &["config", "core.fsmonitor", "touch evil"]);
    bench.host("git", &["config", "diff.external", "touch evil"]);

    let log = bench.value("git_log", json!({})).await;
    assert_eq!(log["items"].as_array().unwrap().len(), 2, "{log}");
    let newest = &log["items"][0];
    assert_eq!((newest["author"].as_str(), newest["subject"].as_str()), (Some("Ada"), Some("second")));
    assert!(newest["commit"].as_str().unwrap().len() >= 40 && newest["date"].as_str().unwrap().contains('T'));
    let subjects = |args: Value| bench.column("git_log", args, "subject");
    assert_eq!(subjects(json!({ "limit": 1 })).await, ["second"]);
    assert_eq!(subjects(json!({ "skip": 1 })).await, ["first: a | pipe"]);
    assert_eq!(subjects(json!({ "message": "pipe" })).await, ["first: a | pipe"]);
    assert_eq!(subjects(json!({ "author": "nobody" })).await, Vec::<String>::new());
    assert_eq!(subjects(json!({ "paths": ["b c.txt"] })).await, ["second"]);
    assert_eq!(subjects(json!({ "revision": "HEAD~1" })).await, ["first: a | pipe"]);
    assert_eq!(subjects(json!({ "since": "2 hours ago" })).await.len(), 2);
    assert_eq!(subjects(json!({ "until": "2001-01-01" })).await, Vec::<String>::new());
    // A file whose name begins with `-` is a path and no option.
    assert_eq!(subjects(json!({ "paths": ["--output=evil"] })).await, Vec::<String>::new());
    let error = bench.error("git_log", json!({ "revision": "--output=evil" })).await;
    assert_eq!(error.code(), Code::InvalidInput);
    let error = bench.error("git_log", json!({ "revision": "nothing" })).await;
    assert_eq!(error.code(), Code::InvalidInput, "{error}");
    assert!(error.message().contains("nothing"), "{error}");

    let show = bench.text("git_show", json!({})).await;
    assert!(show.contains("+2") && show.contains("second"), "{show}");
    assert!(bench.text("git_show", json!({ "stat": true })).await.contains("2 files changed"));
    assert_eq!(bench.text("git_show", json!({ "revision": "HEAD~1:a.txt" })).await, "one\ntwo\n");

    assert_eq!(bench.text("git_diff", json!({})).await, "");
    let diff = bench
        .text("git_diff", json!({ "from": "HEAD~1", "to": "HEAD", "paths": ["a.txt"], "context": 0 }))
        .await;
    assert!(diff.contains("-two\n+2\n") && !diff.contains("\n one"), "{diff}");
    bench.put("a.txt", "three\n");
    assert!(bench.text("git_diff", json!({ "stat": true })).await.contains("1 file changed"));
    assert_eq!(bench.text("git_diff", json!({ "staged": true })).await, "");

    bench.put("new/c.txt", "c");
    bench.host("git", &["-c", "core.fsmonitor=false", "mv", "b c.txt", "d.txt"]);
    let status = bench.value("git_status", json!({})).await;
    assert_eq!(
        status["items"],
        json!([
            { "index": " ", "worktree": "M", "path": "a.txt" },
            { "index": "D", "worktree": " ", "path": "b c.txt" },
            { "index": "A", "worktree": " ", "path": "d.txt" },
            { "index": "?", "worktree": "?", "path": "new/" },
        ])
    );
    assert_eq!(
        bench.value("git_status", json!({ "untracked": "no", "paths": ["new"] })).await["items"],
        json!([])
    );

    let blame = bench.value("git_blame", json!({ "path": "a.txt", "revision": "HEAD" })).await;
    let lines: Vec<(&Value, &Value, &Value)> = blame["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| (&line["line"], &line["text"], &line["author"]))
        .collect();
    assert_eq!(lines, [(&json!(1), &json!("one"), &json!("Ada")), (&json!(2), &json!("2"), &json!("Ada"))]);
    let blame =
        bench.value("git_blame", json!({ "path": "a.txt", "revision": "HEAD", "from": 2, "to": 2 })).await;
    assert_eq!(blame["items"].as_array().unwrap().len(), 1);
    assert!(!bench.path().join("evil").exists());
}

#[tokio::test]
async fn rg() {
    let Some(bench) = Bench::new("rg") else { return };
    bench.put("a.txt", "Hello\nhello world\n");
    bench.put("sub/b.md", "say hello: 1\n");
    bench.put(".hidden", "hello\n");
    let value = bench.value("rg", json!({ "pattern": "hello", "paths": ["a.txt"] })).await;
    assert_eq!(
        value,
        json!({ "items": [{ "path": "a.txt", "line": 2, "text": "hello world" }], "truncated": false })
    );
    let count = |args: Value| async { bench.value("rg", args).await["items"].as_array().unwrap().len() };
    assert_eq!(count(json!({ "pattern": "hello" })).await, 2);
    assert_eq!(count(json!({ "pattern": "hello", "ignore_case": true })).await, 3);
    assert_eq!(count(json!({ "pattern": "hello", "hidden": true })).await, 3);
    assert_eq!(count(json!({ "pattern": "hello", "globs": ["*.md"] })).await, 1);
    assert_eq!(count(json!({ "pattern": "h.llo", "fixed": true })).await, 0);
    assert_eq!(count(json!({ "pattern": "o", "max_per_file": 1 })).await, 2);
    assert_eq!(count(json!({ "pattern": "--files" })).await, 0);
    let error = bench.error("rg", json!({ "pattern": "(" })).await;
    assert_eq!(error.code(), Code::InvalidInput, "{error}");
}

#[tokio::test]
async fn jq() {
    let Some(bench) = Bench::new("jq") else { return };
    bench.put("data.json", r#"{"items": [{"name": "a", "n": 1}, {"name": "b", "n": 2}]}"#);
    let names = bench.value("jq", json!({ "program": ".items[] | .name", "file": "data.json" })).await;
    assert_eq!(names, json!({ "items": ["a", "b"], "truncated": false }));
    let sum = bench.value("jq", json!({ "program": "add", "input": "1 2 3", "slurp": true })).await;
    assert_eq!(sum["items"], json!([6]));
    assert_eq!(
        bench.value("jq", json!({ "program": "1 + 1", "null_input": true })).await["items"],
        json!([2])
    );
    let error = bench.error("jq", json!({ "program": ".[", "input": "1" })).await;
    assert_eq!(error.code(), Code::InvalidInput, "{error}");
    let error = bench.error("jq", json!({ "program": ".a", "input": "[1]" })).await;
    assert_eq!(error.code(), Code::InvalidInput, "{error}");
    let error = bench.error("jq", json!({ "program": ".", "file": "none.json" })).await;
    assert_eq!(error.code(), Code::InvalidPath, "{error}");
    // Nothing of the caller's environment is there.
    let environment =
        bench.value("jq", json!({ "program": "env | has(\"HOME\", \"CARGO\")", "null_input": true })).await;
    assert_eq!(environment["items"], json!([true, false]));
}

#[tokio::test]
async fn curl() {
    let tools = CommandTools::shipped("curl").unwrap();
    let args = json!({ "url": "https://example.com/", "header": "Accept: text/plain", "authorization": "Bearer canary", "head": true });
    let line = tools.command_line("curl", &args.clone().into()).unwrap();
    assert!(!line.iter().any(|argument| argument.contains("canary")), "{line:?}");
    assert_eq!(line[1], "--disable");
    assert!(line.ends_with(&[
        "--head".into(),
        "--header".into(),
        "@-".into(),
        "--header".into(),
        "Accept: text/plain".into(),
        "--url".into(),
        "https://example.com/".into()
    ]));
    for hostile in [
        json!({ "url": "file:///etc/passwd" }),
        json!({ "url": "https://example.com/", "header": "@/etc/passwd" }),
        json!({ "url": "https://example.com/", "header": "A: b\r\nC: d" }),
        json!({ "url": "https://example.com/", "authorization": "a\nHost: b" }),
    ] {
        let error = Run::of(tools.clone(), "curl", hostile.clone()).error().await;
        assert_eq!(error.code(), Code::InvalidInput, "{hostile}");
    }
    let error = Run::of(tools, "curl", args).error().await;
    assert_eq!(error.code(), Code::Permission, "{error}");
    assert_eq!(error.hint(), Some(Hint::AllowHost { host: None }), "{error}");
}

#[tokio::test]
async fn find() {
    let Some(bench) = Bench::new("find") else { return };
    bench.put("a.csv", "1,2\n");
    bench.put("deep/er/b.csv", "x".repeat(5000));
    bench.put("deep/c\nd.txt", "");
    std::os::unix::fs::symlink("a.csv", bench.path().join("link")).unwrap();
    let all = bench.value("find", json!({})).await;
    assert_eq!(all["items"].as_array().unwrap().len(), 7, "{all}");
    let files = bench.value("find", json!({ "name": "*.csv", "max_depth": 1 })).await;
    let item = &files["items"][0];
    assert_eq!((&item["kind"], &item["size"], &item["path"]), (&json!("f"), &json!(4), &json!("./a.csv")));
    assert!(
        item["changed"].as_str().unwrap().ends_with('Z') && item["changed"].as_str().unwrap().len() == 20,
        "{item}"
    );
    let paths = |args: Value| bench.column("find", args, "path");
    assert_eq!(paths(json!({ "larger_than": 4096, "kind": "file" })).await, ["./deep/er/b.csv"]);
    assert_eq!(paths(json!({ "kind": "link" })).await, ["./link"]);
    assert_eq!(paths(json!({ "kind": "directory", "directory": "deep" })).await, ["deep", "deep/er"]);
    assert_eq!(paths(json!({ "path": "*/er/*" })).await, ["./deep/er/b.csv"]);
    assert_eq!(paths(json!({ "name": "c*" })).await, ["./deep/c\nd.txt"]);
    assert_eq!(paths(json!({ "changed_within_days": 1, "kind": "file" })).await.len(), 3);
    assert_eq!(paths(json!({ "name": "-delete" })).await, Vec::<String>::new());
    for directory in ["-delete", "(", "!"] {
        assert_eq!(
            bench.error("find", json!({ "directory": directory })).await.code(),
            Code::InvalidInput,
            "{directory}"
        );
    }
    assert_eq!(bench.error("find", json!({ "directory": "none" })).await.code(), Code::InvalidPath);
}

#[tokio::test]
async fn wc() {
    let Some(bench) = Bench::new("wc") else { return };
    bench.put("a b.txt", "one two\nthree\n");
    bench.put("-x", "x");
    let value = bench.value("wc", json!({ "paths": ["a b.txt", "-x"] })).await;
    assert_eq!(
        value["items"],
        json!([
            { "lines": 2, "words": 3, "bytes": 14, "path": "a b.txt" },
            { "lines": 0, "words": 1, "bytes": 1, "path": "-x" },
            { "lines": 2, "words": 4, "bytes": 15, "path": "total" },
        ])
    );
    assert_eq!(bench.error("wc", json!({ "paths": ["none"] })).await.code(), Code::InvalidPath);
    assert_eq!(bench.error("wc", json!({ "paths": [] })).await.code(), Code::InvalidInput);
}

#[tokio::test]
async fn tar() {
    let Some(bench) = Bench::new("tar") else { return };
    bench.put("in/a file.txt", "hello");
    bench.host("tar", &["-czf", "host:x.tar.gz", "--force-local", "in"]);
    let value = bench.value("tar_list", json!({ "archive": "host:x.tar.gz" })).await;
    let items = value["items"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{value}");
    assert_eq!((&items[1]["path"], &items[1]["size"]), (&json!("in/a file.txt"), &json!(5)), "{value}");
    let one = bench
        .column("tar_list", json!({ "archive": "host:x.tar.gz", "members": ["in/a file.txt"] }), "path")
        .await;
    assert_eq!(one, ["in/a file.txt"]);
    assert_eq!(bench.error("tar_list", json!({ "archive": "none.tar" })).await.code(), Code::InvalidPath);
}

#[tokio::test]
async fn sqlite3() {
    let Some(bench) = Bench::new("sqlite3") else { return };
    bench.host(
        "sqlite3",
        &[
            "shop.db",
            "CREATE TABLE items(name TEXT, price REAL); INSERT INTO items VALUES ('pen', 1.5), ('ink', 9);",
        ],
    );
    let query = |sql: &str| json!({ "database": "shop.db", "sql": sql });
    let rows = bench.value("sqlite_query", query("SELECT name, price FROM items ORDER BY price")).await;
    assert_eq!(rows, json!([{ "name": "pen", "price": 1.5 }, { "name": "ink", "price": 9.0 }]));
    assert_eq!(bench.value("sqlite_query", query("SELECT * FROM items WHERE price > 100")).await, json!([]));
    for sql in [
        "DELETE FROM items",
        "SELECT * FROM none",
        "ATTACH 'other.db' AS o",
        "SELECT load_extension('x')",
        ".shell touch evil",
    ] {
        let error = bench.error("sqlite_query", query(sql)).await;
        assert_eq!(error.code(), Code::InvalidInput, "{sql} {error}");
    }
    assert_eq!(
        bench.value("sqlite_query", query("SELECT count(*) AS n FROM items")).await,
        json!([{ "n": 2 }])
    );
    let error = bench.error("sqlite_query", json!({ "database": "none.db", "sql": "SELECT 1" })).await;
    assert_eq!(error.code(), Code::InvalidPath, "{error}");
    assert!(!bench.path().join("none.db").exists() && !bench.path().join("evil").exists());
}

#[tokio::test]
async fn diff() {
    let Some(bench) = Bench::new("diff") else { return };
    bench.put("old/a", "1\n2\n3\n");
    bench.put("new/a", "1\nII\n3\n");
    bench.put("new/b", "b\n");
    let text = bench.text("diff", json!({ "from": "old/a", "to": "new/a", "context": 0 })).await;
    assert!(text.ends_with("@@ -2 +2 @@\n-2\n+II\n"), "{text}");
    assert_eq!(bench.text("diff", json!({ "from": "old/a", "to": "old/a" })).await, "");
    assert!(
        bench.text("diff", json!({ "from": "old", "to": "new", "recursive": true })).await.contains("+b")
    );
    bench.put("space", "1\n2 \n3\n");
    assert_eq!(bench.text("diff", json!({ "from": "old/a", "to": "space", "ignore_space": true })).await, "");
    assert_eq!(bench.error("diff", json!({ "from": "old/a", "to": "none" })).await.code(), Code::InvalidPath);
}

#[tokio::test]
async fn file() {
    let Some(bench) = Bench::new("file") else { return };
    bench.put("a: b", "#!/bin/sh\n");
    bench.put("p", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0");
    let types = bench.value("file_type", json!({ "paths": ["a: b", "p"], "media_type": true })).await;
    assert_eq!(
        types["items"],
        json!([{ "path": "a: b", "kind": "text/x-shellscript" }, { "path": "p", "kind": "image/png" }])
    );
    let kind = bench.column("file_type", json!({ "paths": ["p"] }), "kind").await;
    assert!(kind[0].starts_with("PNG image data"), "{kind:?}");
}

#[tokio::test]
async fn du() {
    let Some(bench) = Bench::new("du") else { return };
    bench.put("a/one", "x".repeat(1000));
    bench.put("a/b/two.o", "x".repeat(50_000));
    let value = bench.value("du", json!({ "paths": ["a"], "depth": 1 })).await;
    let items = value["items"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{value}");
    assert_eq!(items[1]["path"], "a");
    assert!(items[1]["bytes"].as_u64().unwrap() >= 51_000, "{value}");
    assert_eq!(bench.column("du", json!({ "paths": ["a"], "depth": 0 }), "path").await, ["a"]);
    let without = bench.value("du", json!({ "paths": ["a"], "depth": 0, "excludes": ["*.o"] })).await;
    assert!(without["items"][0]["bytes"].as_u64().unwrap() < 51_000, "{without}");
    let files = bench.column("du", json!({ "paths": ["a"], "files": true, "depth": 9 }), "path").await;
    assert!(files.contains(&"a/one".to_owned()), "{files:?}");
    assert_eq!(bench.error("du", json!({ "paths": ["none"] })).await.code(), Code::InvalidPath);
}

#[tokio::test]
async fn sha256sum() {
    let Some(bench) = Bench::new("sha256sum") else { return };
    bench.put("a", "abc");
    let value = bench.value("sha256sum", json!({ "paths": ["a"] })).await;
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(value["items"], json!([{ "sha256": digest, "path": "a" }]));
    assert_eq!(bench.error("sha256sum", json!({ "paths": ["none"] })).await.code(), Code::InvalidPath);
}

#[tokio::test]
async fn date() {
    let Some(bench) = Bench::new("date") else { return };
    let value = bench.value("date", json!({ "when": "2026-01-31 + 10 days" })).await;
    assert_eq!(
        value,
        json!({ "time": "2026-02-10T00:00:00+00:00", "unix": 1_770_681_600, "weekday": 2, "week": "07", "day_of_year": "041" })
    );
    let oslo = bench.value("date", json!({ "when": "2026-07-01", "time_zone": "Europe/Oslo" })).await;
    assert_eq!(oslo["time"], "2026-07-01T00:00:00+02:00");
    assert_eq!(bench.error("date", json!({ "when": "no day at all" })).await.code(), Code::InvalidInput);
    for zone in ["x; id", "/etc/passwd", "../etc/passwd", ":/etc/passwd"] {
        assert_eq!(
            bench.error("date", json!({ "time_zone": zone })).await.code(),
            Code::InvalidInput,
            "{zone}"
        );
    }
}

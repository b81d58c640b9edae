//! `FileSystemTool`: the last rule that fits decides, and no link leads round it.

use serde_json::{Value, json};
use tempfile::TempDir;
use toolpost_core::{Code, Output, ToolError};
use toolpost_toolbox::Toolbox;
use toolpost_tools::{FilePermission, FileSystemTool};

use FilePermission::{None, Read, Write};

struct Files {
    directory: TempDir,
    toolbox: Toolbox,
}

impl Files {
    fn new(rules: &[(&str, FilePermission)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (path, content) in [
            ("a.txt", "alpha"),
            ("notes.md", "one two one"),
            ("sub/b.txt", "beta"),
            ("sub/deep/c.txt", "gamma"),
            ("out/old.txt", "old"),
            (".env", "SECRET=1"),
            ("sub/.env", "SECRET=2"),
        ] {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let tool = FileSystemTool::new(directory.path(), rules.iter().copied()).unwrap();
        Self { toolbox: Toolbox::builder().tools(tool).build().unwrap(), directory }
    }

    async fn run(&self, tool: &str, arguments: Value) -> Result<Output, ToolError> {
        Ok(self.toolbox.run(tool, arguments).await?)
    }

    async fn code(&self, tool: &str, arguments: Value) -> Code {
        match self.run(tool, arguments.clone()).await {
            Ok(output) => panic!("{tool} {arguments}: {}", output.to_text()),
            Err(error) => error.code(),
        }
    }

    async fn listed(&self) -> Vec<String> {
        let list = self.run("list", json!({})).await.unwrap().structured.unwrap();
        let files = list["files"].as_array().unwrap().iter();
        files
            .map(|file| {
                let mark = if file["writable"] == true { "+" } else { "" };
                format!("{}{mark}", file["path"].as_str().unwrap())
            })
            .collect()
    }
}

#[tokio::test]
async fn the_last_matching_rule_decides() {
    let files = Files::new(&[("**", Read), ("out/**", Write), ("**/.env", None), ("sub/.env", Read)]);
    assert_eq!(
        files.listed().await,
        ["a.txt", "notes.md", "out/old.txt+", "sub/.env", "sub/b.txt", "sub/deep/c.txt"]
    );
    // A later rule that gives less counts as much as one that gives more.
    let reversed = Files::new(&[("out/**", Write), ("**", Read)]);
    assert_eq!(
        reversed.code("write", json!({ "path": "out/old.txt", "content": "x" })).await,
        Code::Permission
    );
    let nothing = Files::new(&[]);
    assert!(nothing.listed().await.is_empty());
    assert_eq!(nothing.code("read", json!({ "path": "a.txt" })).await, Code::Permission);
    // A denied file and a missing file have the same error.
    assert_eq!(nothing.code("read", json!({ "path": "no such file" })).await, Code::Permission);
}

#[tokio::test]
async fn a_pattern_means_the_whole_path() {
    let files = Files::new(&[("*.txt", Read)]);
    assert_eq!(files.listed().await, ["a.txt"]);
    assert_eq!(files.code("read", json!({ "path": "sub/b.txt" })).await, Code::Permission);
    let deep = Files::new(&[("**/*.txt", Read)]);
    assert_eq!(deep.listed().await, ["a.txt", "out/old.txt", "sub/b.txt", "sub/deep/c.txt"]);
    let one = Files::new(&[("./sub/*", Read)]);
    assert_eq!(one.listed().await, ["sub/.env", "sub/b.txt"]);
    assert_eq!(one.run("read", json!({ "path": "sub//./b.txt" })).await.unwrap().to_text(), "beta");
    assert!(FileSystemTool::new("/tmp", [("a{b", Read)]).is_err());
}

#[tokio::test]
async fn files_are_written_where_permitted() {
    let files = Files::new(&[("**", Read), ("out/**", Write), ("notes.md", Write)]);
    let made = files.run("write", json!({ "path": "out/new/x.txt", "content": "hi" })).await.unwrap();
    assert_eq!(made.to_text(), "Created out/new/x.txt (2 bytes)");
    assert_eq!(files.code("write", json!({ "path": "a.txt", "content": "x" })).await, Code::Permission);
    files.run("update", json!({ "path": "notes.md", "old_text": "two", "new_text": "2" })).await.unwrap();
    assert_eq!(std::fs::read_to_string(files.directory.path().join("notes.md")).unwrap(), "one 2 one");
    for old in ["one", "", "three"] {
        let arguments = json!({ "path": "notes.md", "old_text": old, "new_text": "x" });
        assert_eq!(files.code("update", arguments).await, Code::InvalidInput, "{old:?}");
    }
    assert_eq!(std::fs::read_to_string(files.directory.path().join("notes.md")).unwrap(), "one 2 one");
    let arguments = json!({ "path": "a.txt", "old_text": "alpha", "new_text": "x" });
    assert_eq!(files.code("update", arguments).await, Code::Permission);
}

#[tokio::test]
async fn no_pattern_escapes_or_bypasses_a_rule() {
    let files = Files::new(&[("**", Write), ("**/.env", None)]);
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "SECRET=3").unwrap();
    let link = |to: &std::path::Path, name: &str| {
        std::os::unix::fs::symlink(to, files.directory.path().join(name)).unwrap();
    };
    link(&outside.path().join("secret"), "out.txt");
    link(outside.path(), "outside");
    link(std::path::Path::new(".env"), "inside.txt");
    link(std::path::Path::new("sub"), "directory");
    for path in [
        "out.txt",
        "outside/secret",
        "inside.txt",
        "directory/b.txt",
        "../x",
        "/etc/passwd",
        ".env",
        "sub/.env",
    ] {
        let read = files.run("read", json!({ "path": path })).await;
        assert!(read.is_err(), "{path}: {}", read.unwrap().to_text());
        let written = files.run("write", json!({ "path": path, "content": "x" })).await;
        // A link itself may be replaced by a file; what it points to stays.
        assert!(written.is_err() || ["out.txt", "inside.txt"].contains(&path), "{path}");
    }
    assert_eq!(std::fs::read_to_string(outside.path().join("secret")).unwrap(), "SECRET=3");
    assert_eq!(std::fs::read_to_string(files.directory.path().join(".env")).unwrap(), "SECRET=1");
    assert!(!files.listed().await.iter().any(|path| path.contains("directory/") || path.contains("outside")));
    // What other programs obey stays as it is, whatever the rules say.
    assert_eq!(files.code("write", json!({ "path": ".bashrc", "content": "x" })).await, Code::Permission);
}

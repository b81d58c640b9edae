//! `read_file`: what it gives, and what it refuses.

use serde_json::json;
use toolpost_core::Code;
use toolpost_tools::FileRoot;

use crate::support::Bench;

#[tokio::test]
async fn a_file_comes_back_with_its_facts() {
    let bench = Bench::new();
    bench.put("data/a.txt", "one\ntwo\nthree");
    let output = bench.run("read_file", json!({"path": "data/a.txt"})).await.unwrap();
    assert_eq!(output.to_text(), "one\ntwo\nthree");
    assert_eq!(
        output.structured.unwrap(),
        json!({
            "path": "data/a.txt", "content": "one\ntwo\nthree", "encoding": "utf-8", "size": 13, "lines": 3,
            "first_line": 1, "truncated": false, "lossy": false
        })
    );
}

#[tokio::test]
async fn offset_and_limit_select_lines() {
    let bench = Bench::new();
    bench.put("a", "1\n2\n3\n4\n");
    for (arguments, content, truncated) in [
        (json!({"path": "a", "offset": 3}), "3\n4\n", false),
        (json!({"path": "a", "limit": 1}), "1\n", true),
        (json!({"path": "a", "offset": 2, "limit": 2}), "2\n3\n", true),
        (json!({"path": "a", "offset": 4, "limit": 9}), "4\n", false),
    ] {
        let value = bench.value("read_file", arguments.clone()).await;
        assert_eq!(
            (&value["content"], &value["truncated"]),
            (&json!(content), &json!(truncated)),
            "{arguments}"
        );
    }
    let error = bench.error("read_file", json!({"path": "a", "offset": 5})).await;
    assert_eq!((error.code(), &error.context()["lines"]), (Code::InvalidInput, &json!(4)));
}

#[tokio::test]
async fn max_size_mb_is_a_limit() {
    let bench = Bench::new();
    bench.put("big", vec![b'a'; (2 << 20) + 1]);
    let error = bench.error("read_file", json!({"path": "big", "max_size_mb": 2})).await;
    assert_eq!(error.code(), Code::Limit);
    assert!(error.suggestion().unwrap().contains("max_size_mb"), "{error}");
    let value = bench.value("read_file", json!({"path": "big", "max_size_mb": 3})).await;
    assert_eq!(value["size"], (2 << 20) + 1);
    bench.put("huge", vec![b'a'; (10 << 20) + 1]);
    assert_eq!(bench.error("read_file", json!({"path": "huge"})).await.code(), Code::Limit);
}

#[tokio::test]
async fn binary_files_are_rejected() {
    let bench = Bench::new();
    bench.put("plot.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    let error = bench.error("read_file", json!({"path": "plot.png"})).await;
    assert_eq!(error.code(), Code::InvalidPath);
    assert!(error.message().contains("PNG") && error.suggestion().is_some(), "{error}");
}

#[tokio::test]
async fn a_missing_file_suggests_its_neighbours() {
    let bench = Bench::new();
    bench.put("data/sales.csv", "");
    for (path, expected) in
        [("data/sale.csv", "`sales.csv`"), ("date/sales.csv", "`data`"), ("zzz", "list_directory")]
    {
        let error = bench.error("read_file", json!({ "path": path })).await;
        assert_eq!(error.code(), Code::InvalidPath);
        assert!(error.suggestion().unwrap().contains(expected), "{path}: {error}");
        assert_eq!(error.context()["pointer"], "/path");
    }
}

#[tokio::test]
async fn an_absolute_path_inside_the_directory_is_accepted() {
    let bench = Bench::new();
    let path = bench.put("a.txt", "a").canonicalize().unwrap();
    assert_eq!(bench.read(path.to_str().unwrap()).await, "a");
}

#[tokio::test]
async fn a_copy_resolves_paths_of_its_original() {
    let copy = tempfile::tempdir().unwrap();
    std::fs::write(copy.path().join("a.txt"), "a").unwrap();
    let root = FileRoot::new(copy.path()).copy_of("/srv/project");
    assert_eq!((root.path(), root.original()), (copy.path(), std::path::Path::new("/srv/project")));
    let bench = Bench::with(|builder| builder.provide(root));
    let mut call = bench.call("read_file", json!({"path": "/srv/project/a.txt"}));
    call.options.working_dir = Some(copy.path().to_owned());
    assert_eq!(bench.toolbox.call(call.clone()).await.result.unwrap().to_text(), "a");
    call.arguments = json!({"path": copy.path().join("a.txt")}).into();
    let error = bench.toolbox.call(call).await.result.unwrap_err();
    assert_eq!(error.code(), Code::InvalidPath);
    assert!(error.message().contains("outside the working directory `/srv/project`"), "{error}");
}

#[tokio::test]
async fn reads_follow_links_inside_the_root() {
    let bench = Bench::new();
    bench.put("data/a.txt", "inside");
    std::os::unix::fs::symlink("data/a.txt", bench.path("link")).unwrap();
    std::os::unix::fs::symlink("data", bench.path("directory")).unwrap();
    assert_eq!(bench.read("link").await, "inside");
    assert_eq!(bench.read("directory/a.txt").await, "inside");
}

#[tokio::test]
async fn a_missing_working_directory_is_an_error() {
    let bench = Bench::new();
    let error = bench.toolbox.run("read_file", json!({"path": "a"})).await.unwrap_err();
    assert_eq!(error.code(), Code::Precondition);
    let hint = error.suggestion().unwrap();
    assert!(hint.contains("Set a working directory"), "{hint}");
    let mut call = bench.call("read_file", json!({"path": "a"}));
    call.options.working_dir = Some(bench.path("missing"));
    assert_eq!(bench.toolbox.call(call).await.result.unwrap_err().code(), Code::Precondition);
}

#[tokio::test]
async fn a_root_confines_the_working_directory() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("run")).unwrap();
    std::fs::write(root.path().join("run/a"), "in the run").unwrap();
    std::fs::write(root.path().join("secret"), "of the root").unwrap();
    let bench = Bench::with(|builder| builder.provide(FileRoot::new(root.path())));
    let output = bench.toolbox.run("read_file", json!({"path": "run/a"})).await.unwrap();
    assert_eq!(output.to_text(), "in the run");
    // The bench has another working directory.
    assert_eq!(bench.error("read_file", json!({"path": "a"})).await.code(), Code::Permission);
    let mut call = bench.call("read_file", json!({"path": "a"}));
    call.options.working_dir = Some(root.path().join("run"));
    assert_eq!(bench.toolbox.call(call.clone()).await.result.unwrap().to_text(), "in the run");
    call.arguments = json!({"path": root.path().join("secret")}).into();
    assert_eq!(bench.toolbox.call(call).await.result.unwrap_err().code(), Code::InvalidPath);
}

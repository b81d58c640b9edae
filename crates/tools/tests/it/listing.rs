//! `list_directory`: what is there, in a stable order, within bounds.

use serde_json::{Value, json};
use toolpost_core::Code;

use crate::support::Bench;

fn paths(listing: &Value) -> Vec<&str> {
    listing["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect()
}

fn tree() -> Bench {
    let bench = Bench::new();
    for name in ["b.txt", "a/x.csv", "a/b/y.csv", "a/b/c/z.csv", "a/b/c/d/deep.csv", ".hidden/h", "c.csv"] {
        bench.put(name, "12345");
    }
    std::os::unix::fs::symlink("/etc", bench.path("link")).unwrap();
    bench
}

#[tokio::test]
async fn every_parameter_changes_the_listing() {
    let bench = tree();
    for (arguments, expected) in [
        (json!({}), vec!["a", "b.txt", "c.csv", "link"]),
        (json!({"path": "a"}), vec!["a/b", "a/x.csv"]),
        (json!({"include_hidden": true}), vec![".hidden", "a", "b.txt", "c.csv", "link"]),
        (json!({"pattern": "*.csv"}), vec!["c.csv"]),
        (
            json!({"recursive": true}),
            vec!["a", "a/b", "a/b/c", "a/b/y.csv", "a/x.csv", "b.txt", "c.csv", "link"],
        ),
        (json!({"recursive": true, "max_depth": 2, "pattern": "*.csv"}), vec!["a/x.csv", "c.csv"]),
        (
            json!({"recursive": true, "max_depth": 9, "pattern": "a/b/**/*.csv"}),
            vec!["a/b/c/d/deep.csv", "a/b/c/z.csv", "a/b/y.csv"],
        ),
        (json!({"path": "a", "recursive": true, "pattern": "b/*.csv"}), vec!["a/b/y.csv"]),
    ] {
        let listing = bench.value("list_directory", arguments.clone()).await;
        assert_eq!(paths(&listing), expected, "{arguments}");
        assert_eq!(listing["truncated"], false);
    }
}

#[tokio::test]
async fn entries_have_kind_size_and_time() {
    let bench = tree();
    let output = bench.run("list_directory", json!({})).await.unwrap();
    assert_eq!(output.to_text(), "a/\nb.txt  5 bytes\nc.csv  5 bytes\nlink -> /etc\n");
    let listing = output.structured.unwrap();
    let facts: Vec<_> = listing["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["kind"].as_str().unwrap(), entry["size"].as_u64().unwrap(), &entry["target"]))
        .collect();
    let none = json!(null);
    assert_eq!(
        facts,
        [("directory", 0, &none), ("file", 5, &none), ("file", 5, &none), ("symlink", 0, &json!("/etc"))]
    );
    assert!(listing["entries"][1]["modified"].as_str().unwrap().starts_with("20"), "{listing}");
}

#[tokio::test]
async fn links_are_not_followed_out() {
    let bench = tree();
    let error = bench.error("list_directory", json!({"path": "link"})).await;
    assert_eq!(error.code(), Code::InvalidPath);
    let listing = bench.value("list_directory", json!({"recursive": true, "max_depth": 32})).await;
    assert!(!paths(&listing).iter().any(|path| path.starts_with("link/")));
}

#[tokio::test]
async fn too_many_entries_are_truncated_with_a_note() {
    let bench = Bench::new();
    for index in 0..10_050 {
        bench.put(&format!("f{index:05}"), "");
    }
    let output = bench.run("list_directory", json!({})).await.unwrap();
    assert!(output.to_text().ends_with("use a pattern]\n"));
    let listing = output.structured.unwrap();
    assert_eq!((paths(&listing).len(), &listing["truncated"]), (10_000, &json!(true)));
    assert_eq!(paths(&listing)[9999], "f09999");
    let listing = bench.value("list_directory", json!({"pattern": "f0000?"})).await;
    assert_eq!((paths(&listing).len(), &listing["truncated"]), (10, &json!(false)));
}

#[tokio::test]
async fn a_path_that_is_no_directory_is_rejected() {
    let bench = tree();
    for (arguments, pointer) in [
        (json!({"path": "b.txt"}), "/path"),
        (json!({"path": "missing"}), "/path"),
        (json!({"pattern": "["}), "/pattern"),
    ] {
        assert_eq!(bench.error("list_directory", arguments).await.context()["pointer"], pointer);
    }
}

#[tokio::test]
async fn strange_names_stay_on_their_line() {
    let bench = Bench::new();
    bench.put("a\nb\u{1b}[2J", "");
    let output = bench.run("list_directory", json!({})).await.unwrap();
    assert_eq!(output.to_text(), "a\\nb\\u{1b}[2J  0 bytes\n");
}

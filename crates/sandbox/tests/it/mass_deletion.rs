//! Runs that delete more than a person would expect are held.

use std::fs;
use std::path::Path;

use toolpost_sandbox::{ApplyState, Sandbox, Workspace};

use crate::support::{bash, skip_without_namespaces};

/// Creates files with their own names as content.
fn create(directory: &Path, files: &[&str]) {
    for name in files {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
}

#[test]
fn changes_that_delete_much_are_held() {
    if skip_without_namespaces("changes_that_delete_much_are_held") {
        return;
    }
    let ten = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let with = |more: &[&'static str]| [&ten[..], more].concat();
    let objects: Vec<String> = (0..30).map(|number| format!("o/{number}.o")).collect();
    let objects: Vec<&str> = objects.iter().map(String::as_str).chain(["main.c", "util.c"]).collect();
    let rows: Vec<(&str, Vec<&str>, &str, &str, bool)> = vec![
        // Name, files, `.gitignore`, script, whether it is held.
        ("one file", vec!["a"], "", "rm a", false),
        ("both files", vec!["a", "b"], "", "rm a b", true),
        ("all of twelve", with(&["k", "l"]), "", "rm *", true),
        ("all, and new ones", with(&[]), "", "rm *; echo x > new1; echo x > new2", true),
        ("all in a directory that is created again", vec!["d/a", "d/b"], "", "rm -r d; mkdir d", true),
        ("five of ten", with(&[]), "", "rm a b c d e", false),
        ("six of ten", with(&[]), "", "rm a b c d e f", true),
        ("five of nine", ten[..9].to_vec(), "", "rm a b c d e", false),
        ("renamed files", with(&[]), "", "mkdir n; mv a b c d e f g h i j n", false),
        ("a renamed directory", vec!["d/a", "d/b", "d/c"], "", "mv d e", false),
        ("copied with its times, then deleted", vec!["a", "b"], "", "cp -p a x; cp -p b y; rm a b", false),
        ("copies with new times", vec!["a", "b"], "", "sleep 0.02; cat a > x; cat b > y; rm a b", true),
        ("a build directory", vec!["a", "target/x", "target/y", "target/z"], "", "rm -r target", false),
        ("ignored objects", objects.clone(), "*.o", "rm -r o", false),
        ("an ignored directory", objects.clone(), "/o/", "rm -r o", false),
        ("all but ignored files", vec!["a", "b", "x.log"], "*.log", "rm a b .gitignore", true),
        ("objects that are not ignored", objects, "*.log", "rm -r o", true),
        ("changed files", with(&[]), "", "for f in *; do echo new > $f; done", false),
    ];
    for (name, files, ignored, script, is_held) in rows {
        let (directory, layers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        create(directory.path(), &files);
        if !ignored.is_empty() {
            fs::write(directory.path().join(".gitignore"), ignored).unwrap();
        }
        let workspace = Workspace::Host(directory.path().to_owned());
        let outcome = bash(&Sandbox::new().workspace(workspace).layers(layers.path()), script);
        let applied = outcome.applied.as_ref().unwrap();
        assert_eq!(outcome.exit_code, Some(0), "{name}: {}", outcome.stderr.text());
        assert_eq!(applied.state == ApplyState::Held, is_held, "{name}: {applied:?}");
        if is_held {
            assert!(files.iter().all(|file| directory.path().join(file).exists()), "{name}");
        }
    }
}

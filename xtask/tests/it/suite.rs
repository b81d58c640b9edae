use xtask::suite::changed::Selection;
use xtask::suite::report::Tally;
use xtask::suite::setup::{Tools, find_nextest};
use xtask::suite::steps;
use xtask::workspace::Workspace;

use crate::made_tree::MadeTree;

const LIBRARY: &str = r#"//! The contracts.
//!
//! ```
//! assert!(true);
//! ```

#[cfg(test)]
mod tests {
    #[test]
    fn good() {}

    #[test]
    fn skips() {
        println!("SKIP landlock <4>: \"old\" kernel & more");
    }

    #[test]
    fn bad() {
        assert_eq!(1, 2);
    }
}
"#;

fn tally(nextest: Option<Vec<String>>) -> Tally {
    let tree = MadeTree::new();
    tree.write("crates/core/src/lib.rs", LIBRARY);
    tree.write("crates/sandbox/src/lib.rs", "//! Starts.\n");
    let profiles = std::fs::read_to_string(xtask::root().join(".config/nextest.toml")).unwrap();
    // The overrides name packages that the test tree does not have.
    let (profiles, _) = profiles.split_once("[test-groups]").unwrap();
    tree.write(".config/nextest.toml", profiles);
    let workspace = Workspace::read(tree.root()).unwrap();
    steps(&workspace, &Selection::All, || Ok(Tools { nextest })).unwrap()
}

/// No step is skipped because another failed, and the rest of each is counted.
#[test]
fn a_run_counts_passes_failures_and_skips() {
    let Some(nextest) = find_nextest(&xtask::root()) else {
        println!("SKIP xtask suite: nextest is not installed");
        return;
    };
    let tally = tally(Some(nextest));
    // The test tree has the directories of the examples without their files, and no command for the pages.
    let is_expected = |name: &&String| name.contains("examples/") || *name == "pages";
    let failed: Vec<&String> = tally.failed.iter().filter(|name| !is_expected(name)).collect();
    assert!(matches!(failed[..], [bad] if bad.starts_with("toolpost-core tests::bad: thread")), "{failed:?}");
    assert_eq!(tally.skipped["landlock <4>"], "\"old\" kernel & more");
    assert!(tally.skipped.contains_key("other hosts"), "{:?}", tally.skipped);
    // One test, one documentation test, and the steps format, clippy and documentation; dependencies with cargo-deny.
    let dependencies = usize::from(!tally.skipped.contains_key("dependencies"));
    assert_eq!(tally.passed - dependencies, 5);
    let last = tally.to_string().lines().last().map(str::to_owned);
    let expected =
        format!("{} passed, {} failed, {} skipped", tally.passed, tally.failed.len(), tally.skipped.len());
    assert_eq!(last, Some(expected));
}

#[test]
fn without_nextest_the_same_tests_run() {
    let tally = tally(None);
    assert!(tally.failed.contains(&"tests::bad".to_owned()), "{:?}", tally.failed);
    assert_eq!(tally.skipped["landlock <4>"], "\"old\" kernel & more");
}

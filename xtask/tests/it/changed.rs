use xtask::suite::changed::Selection;
use xtask::workspace::Workspace;

/// Each file, and packages that its change reaches and does not reach. No package: it reaches all.
#[test]
fn a_change_reaches_the_packages_that_depend_on_it() {
    let workspace = Workspace::read(&xtask::root()).unwrap();
    let rows: &[(&str, &[&str], &[&str])] = &[
        (
            "crates/egress/src/lib.rs",
            &["toolpost-egress", "toolpost-sandbox", "toolpost-cli"],
            &["toolpost-llm"],
        ),
        ("crates/cli/src/main.rs", &["toolpost-cli", "xtask"], &["toolpost-core", "toolpost-sandbox"]),
        ("crates/core/src/new.rs", &["toolpost-core", "toolpost-llm", "toolpost"], &["toolpost-egress"]),
        ("docs/fidelity.md", &["toolpost-llm", "xtask"], &["toolpost-core"]),
        ("docs/decisions/0001-one.md", &["xtask"], &["toolpost-core", "toolpost-cli"]),
        ("Cargo.lock", &[], &[]),
        (".config/nextest.toml", &[], &[]),
    ];
    for (file, reached, others) in rows {
        let selection = Selection::reached(&workspace, &[*file].into());
        assert_eq!(selection == Selection::All, reached.is_empty(), "{file}: {selection:?}");
        for package in *reached {
            assert!(selection.has(package), "{file}: {selection:?}");
            assert!(selection.options().contains(package), "{file}: {selection:?}");
        }
        for package in *others {
            assert!(!selection.has(package), "{file}: {selection:?}");
        }
    }
    // The command has no library, so no documentation test either.
    let command = Selection::reached(&workspace, &["crates/cli/src/main.rs"].into());
    assert!(!command.libraries(&workspace).has("toolpost-cli"));
}

use std::fs;

use xtask::tidy;
use xtask::tidy::tables::{
    ALLOW_FILES, LONG_FILES, MACHINE_DIRECTORY_FILES, UNNAMED_SOURCES, UNSAFE_DIRECTORIES, WORDS,
};
use xtask::workspace::Workspace;

use crate::made_tree::MadeTree;

/// The rules, held against this very project.
#[test]
fn tidy_is_clean() {
    let workspace = Workspace::read(&xtask::root()).unwrap();
    assert!(workspace.packages.len() > 5, "the workspace was not read: {:?}", workspace.packages);
    let complaints: Vec<String> = tidy::check(&workspace).unwrap().iter().map(ToString::to_string).collect();
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// An exception that outlives its place would let something else in.
#[test]
fn every_exception_names_a_place_that_is_there() {
    let workspace = Workspace::read(&xtask::root()).unwrap();
    let exceptions = UNSAFE_DIRECTORIES
        .iter()
        .chain(ALLOW_FILES)
        .chain(LONG_FILES)
        .chain(UNNAMED_SOURCES)
        .chain(WORDS.iter().flat_map(|word| word.allowed))
        .map(|(path, _)| *path)
        .chain(MACHINE_DIRECTORY_FILES.iter().map(|(path, _, _)| *path));
    let gone: Vec<&str> =
        exceptions.filter(|path| !workspace.files.iter().any(|file| file.starts_with(path))).collect();
    assert_eq!(gone, [""; 0], "remove these rows from xtask/src/tidy/tables.rs");
}

#[test]
fn a_tidy_tree_has_no_complaint() {
    assert_eq!(MadeTree::new().complaints(), [""; 0]);
}

#[test]
fn dependencies_follow_the_layers() {
    let rows = [
        (
            "[dependencies]\ntoolpost-sandbox = { path = \"../sandbox\" }",
            "crates/core/Cargo.toml: [layers] `toolpost-core` may not use `toolpost-sandbox`",
        ),
        (
            "[dependencies]\ntokio = { version = \"1\", optional = true }",
            "crates/core/Cargo.toml: [external-crates] `toolpost-core` may not use `tokio`",
        ),
        (
            "[build-dependencies]\naxum = \"1\"",
            "crates/core/Cargo.toml: [external-crates] `toolpost-core` may not use `axum`",
        ),
        (
            "[dependencies]\nhttp = { package = \"reqwest\", version = \"1\" }",
            "crates/core/Cargo.toml: [external-crates] `toolpost-core` may not use `reqwest`",
        ),
        (
            "[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"",
            "crates/core/Cargo.toml: [external-crates] `toolpost-core` may not use `libc`",
        ),
    ];
    for (dependencies, expected) in rows {
        let tree = MadeTree::new();
        tree.package("crates/core", "toolpost-core", dependencies);
        tree.complains(expected);
    }
}

#[test]
fn development_dependencies_are_free() {
    let tree = MadeTree::new();
    let dependencies = "[dev-dependencies]\ntoolpost-sandbox = { path = \"../sandbox\" }\ntokio = \"1\"\n";
    tree.package("crates/core", "toolpost-core", dependencies);
    assert_eq!(tree.complaints(), [""; 0]);
}

#[test]
fn the_package_for_tests_is_never_a_normal_dependency() {
    for (section, expected) in [("dependencies", 1), ("build-dependencies", 1), ("dev-dependencies", 0)] {
        let tree = MadeTree::new();
        tree.package("crates/testkit", "toolpost-testkit", "");
        let page = "//! For tests.\n//!\n//! # Invariants\n\n#![forbid(unsafe_code)]\n";
        tree.write("crates/testkit/src/lib.rs", page);
        let dependency = format!("[{section}]\ntoolpost-testkit = {{ path = \"../testkit\" }}");
        tree.package("crates/core", "toolpost-core", &dependency);
        let complaints = tree.complaints();
        assert_eq!(complaints.len(), expected, "{section}: {complaints:?}");
        assert!(complaints.iter().all(|complaint| complaint.contains("[test-package]")), "{complaints:?}");
    }
}

#[test]
fn a_package_has_a_layer_and_lies_where_it_says() {
    let tree = MadeTree::new();
    tree.package("crates/utils", "toolpost-utils", "");
    tree.write(
        "crates/utils/src/lib.rs",
        "//! Odds and ends.\n//!\n//! # Invariants\n\n#![forbid(unsafe_code)]\n",
    );
    tree.complains("crates/utils/Cargo.toml: [layers] the package `toolpost-utils` is in no layer");

    let tree = MadeTree::new();
    tree.package("crates/models", "toolpost-llm", "");
    tree.write("crates/models/src/lib.rs", "//! Wires.\n//!\n//! # Invariants\n\n#![forbid(unsafe_code)]\n");
    tree.complains(
        "crates/models/Cargo.toml: [layers] `toolpost-llm` lies in `crates/models`, expected `crates/llm`",
    );
}

#[test]
fn the_lockfile_has_a_budget_and_banned_names() {
    let package = |name: &str| format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\n\n");
    let tree = MadeTree::new();
    tree.write("Cargo.lock", &["a", "b", "c"].map(package).concat());
    tree.complains("Cargo.lock: [lockfile] 3 packages, expected at most 2");

    let tree = MadeTree::new();
    tree.write("Cargo.lock", &["a", "openssl-sys"].map(package).concat());
    tree.complains("Cargo.lock:6: [lockfile] `openssl-sys` is banned");

    let tree = MadeTree::new();
    tree.write("xtask/budgets.toml", "[lockfile]\n");
    tree.complains("xtask/budgets.toml: [lockfile] no number at `lockfile.packages`");
}

#[test]
fn a_file_has_at_most_800_lines_of_code() {
    let of = |lines: usize| "//! Page.\n\n".to_owned() + &"// why\n\nconst A: u8 = 0;\n".repeat(lines);
    let tree = MadeTree::new();
    tree.module(&of(800));
    assert_eq!(tree.complaints(), [""; 0]);
    tree.module(&of(801));
    tree.complains("crates/core/src/more.rs: [file-size] 801 lines of code, expected at most 800");
}

#[test]
fn words_have_their_place() {
    let rows = [
        ("fn f() { todo!() }", "[unfinished] `todo!`"),
        ("fn f() { unimplemented!(\"x\") }", "[unfinished] `unimplemented!`"),
        ("// FIXME: later", "[unfinished] a comment says `FIXME`"),
        ("/// XXX", "[unfinished] a comment says `XXX`"),
        ("fn f() { println!(\"x\"); }", "[print] `println!`"),
        ("fn f() { eprint!(\"x\"); }", "[print] `eprint!`"),
        ("fn f() { std::process::exit(1) }", "[core-does-no-io] `std::process`"),
        ("fn f() { std::env::var(\"A\"); }", "[environment] `env::var`"),
        ("use std::fs;", "[core-does-no-io] `std::fs`"),
        ("#[allow(dead_code)] fn f() {}", "[no-allow] an `allow`"),
        ("#[cfg_attr(test, allow(dead_code))] fn f() {}", "[no-allow] an `allow`"),
        ("#[expect(dead_code)] fn f() {}", "[expect-reason] an `expect`"),
        ("#[expect(missing_docs, reason = \"x\")] fn f() {}", "[documented] the lint `missing_docs`"),
        ("#[ignore = \"slow\"] fn f() {}", "[no-ignore] an ignored test"),
        ("fn f() { unsafe { g() } }", "[unsafe] unsafe code outside"),
    ];
    for (line, expected) in rows {
        let tree = MadeTree::new();
        tree.module(&format!("\n{line}\n"));
        let complaints = tree.complaints();
        let beginning = format!("crates/core/src/more.rs:2: {expected}");
        assert!(
            complaints.iter().any(|complaint| complaint.starts_with(&beginning)),
            "{line}: {complaints:?}"
        );
    }
}

#[test]
fn words_in_strings_comments_and_tests_are_free() {
    let tree = MadeTree::new();
    tree.module(
        "// unsafe, todo!, println!\nconst A: &str = \"unsafe { todo!() }\";\n\
         #[expect(dead_code, reason = \"x\")]\nfn f() {}\n\
         #[cfg(test)]\nmod tests {\n    fn f() { println!(\"SKIP a: b\"); std::fs::read(\"x\"); }\n}\n",
    );
    assert_eq!(tree.complaints(), [""; 0]);
}

#[test]
fn only_the_printer_of_the_command_writes() {
    let tree = MadeTree::new();
    tree.package("crates/cli", "toolpost-cli", "");
    let page = "//! The command.\n//!\n//! # Invariants\n\n#![forbid(unsafe_code)]\nmod more;\nmod print;\n";
    tree.write("crates/cli/src/lib.rs", page);
    for write in ["std::io::stdout().lock()", "io::stderr()", "println!(\"x\")", "eprint!(\"x\")"] {
        tree.write("crates/cli/src/print.rs", &format!("fn f() {{ {write}; }}\n"));
        tree.write("crates/cli/src/more.rs", "");
        assert_eq!(tree.complaints(), [""; 0], "{write}");
        tree.write("crates/cli/src/more.rs", &format!("fn f() {{ {write}; }}\n"));
        let [complaint] = &tree.complaints()[..] else { panic!("{write}: {:?}", tree.complaints()) };
        assert!(complaint.starts_with("crates/cli/src/more.rs:1: [output] "), "{complaint}");
    }
}

#[test]
fn only_the_sandbox_starts_processes() {
    let tree = MadeTree::new();
    tree.write("crates/sandbox/src/start.rs", "use std::process::Command;\n");
    let page = "//! Starts.\n//!\n//! # Invariants\n\nmod start;\n";
    tree.write("crates/sandbox/src/lib.rs", page);
    assert_eq!(tree.complaints(), [""; 0]);
    tree.package("crates/tools", "toolpost-tools", "");
    tree.write(
        "crates/tools/src/lib.rs",
        "//! Tools.\n//!\n//! # Invariants\n\n#![forbid(unsafe_code)]\nuse tokio::process::Command;\n",
    );
    tree.complains("crates/tools/src/lib.rs:6: [process] `process::Command` has no place here");
}

#[test]
fn unsafe_blocks_of_the_sandbox_say_why() {
    let rows = [
        ("// SAFETY: the pointer is not null.\nlet a =\n    unsafe { f() };", 0),
        ("// SAFETY: one.\n#[cfg(unix)]\nunsafe impl Send for A {}", 0),
        ("unsafe fn f() {}", 0),
        ("#![expect(unsafe_code, reason = \"x\")]", 0),
        ("let a = unsafe { f() };", 1),
        ("// SAFETY: of another statement.\nf();\nunsafe { f() }", 1),
        ("unsafe impl Send for A {}", 1),
    ];
    for (text, expected) in rows {
        let tree = MadeTree::new();
        tree.write("crates/sandbox/src/start.rs", text);
        tree.write("crates/sandbox/src/lib.rs", "//! Starts.\n//!\n//! # Invariants\n\nmod start;\n");
        let complaints = tree.complaints();
        assert_eq!(complaints.len(), expected, "{text}: {complaints:?}");
        assert!(complaints.iter().all(|complaint| complaint.contains("[safety-comment]")), "{complaints:?}");
    }
}

#[test]
fn crate_roots_have_a_page_with_invariants_and_forbid_unsafe_code() {
    let rows = [
        ("#![forbid(unsafe_code)]\n", vec!["[crate-page]", "[invariants]"]),
        ("//! Contracts.\n\n#![forbid(unsafe_code)]\n", vec!["[invariants]"]),
        ("//! Contracts.\n//!\n//! # Invariants\n", vec!["[forbid-unsafe]"]),
    ];
    for (text, expected) in rows {
        let tree = MadeTree::new();
        tree.write("crates/core/src/lib.rs", text);
        let complaints = tree.complaints();
        assert_eq!(complaints.len(), expected.len(), "{complaints:?}");
        for rule in expected {
            assert!(complaints.iter().any(|complaint| complaint.contains(rule)), "{rule} in {complaints:?}");
        }
    }
}

#[test]
fn packages_inherit_the_lints() {
    let tree = MadeTree::new();
    let manifest = "[package]\nname = \"toolpost-core\"\nversion = \"0.1.0\"\npublish = false\n";
    tree.write("crates/core/Cargo.toml", manifest);
    tree.complains("crates/core/Cargo.toml: [documented] the lints of the workspace do not apply");
}

#[test]
fn every_file_is_compiled_and_there_is_one_test_binary() {
    let rows: [(&[&str], &str); 5] = [
        (&["crates/core/src/lost.rs"], "crates/core/src/lost.rs: [forgotten-file]"),
        (&["crates/core/src/a/b.rs"], "crates/core/src/a/b.rs: [forgotten-file]"),
        (&["crates/core/tests/other.rs"], "crates/core/tests/other.rs: [one-test-binary]"),
        (
            &["crates/core/tests/it/main.rs", "crates/core/tests/it/lost.rs"],
            "crates/core/tests/it/lost.rs: [forgotten-file]",
        ),
        (&["crates/core/tests/it/data.json"], "crates/core/tests/it/main.rs: [one-test-binary]"),
    ];
    for (paths, expected) in rows {
        let tree = MadeTree::new();
        for path in paths {
            tree.write(path, "");
        }
        tree.complains(expected);
    }
    let tree = MadeTree::new();
    tree.write("crates/core/tests/it/main.rs", "mod one;\nmod two;\n");
    for path in ["one.rs", "two/mod.rs", "two/three.rs"] {
        tree.write(&format!("crates/core/tests/it/{path}"), "mod three;\n");
    }
    tree.write("crates/core/tests/ui/misuse.rs", "fn main() {}\n");
    tree.module("#[cfg(unix)]\n#[path = \"unix/mod.rs\"]\nmod platform;\n");
    tree.write("crates/core/src/unix/mod.rs", "mod process;\n");
    tree.write("crates/core/src/unix/process.rs", "\n");
    assert_eq!(tree.complaints(), [""; 0]);
}

#[test]
fn every_example_is_named_and_is_there() {
    let tree = MadeTree::new();
    tree.write("examples/unnamed/run.sh", "true\n");
    tree.complains("examples/unnamed: [examples] no row of EXAMPLES names it");

    let tree = MadeTree::new();
    std::fs::remove_dir_all(tree.root().join("examples/weather")).unwrap();
    tree.complains("xtask/src/suite/examples.rs: [examples] `examples/weather` is not there");

    let tree = MadeTree::new();
    tree.write("crates/core/examples/unnamed.rs", "fn main() {}\n");
    tree.complains("crates/core/examples/unnamed.rs: [examples] neither EXAMPLES nor BENCHES names it");
}

#[test]
fn decision_records_have_numbers_and_headings() {
    let tree = MadeTree::new();
    tree.write("docs/decisions/0003-third.md", "## What\n## Why\n## What was tried\n");
    tree.complains("docs/decisions/0003-third.md: [decisions] numbered `0003`, expected `0002`");

    let tree = MadeTree::new();
    tree.write("docs/decisions/0002-second.md", "## What\n\n## What was tried\n");
    tree.complains("docs/decisions/0002-second.md: [decisions] has the headings");
}

#[test]
fn no_file_names_a_directory_of_a_build_machine() {
    let rows = [
        (concat!("see /", "work/main/x"), 1),
        ("\"/root/.cargo\"", 1),
        ("path=/home/jane/x", 1),
        ("`/Users/jane`", 1),
        ("https://example.org/work/x and ./work/x", 0),
        ("/home/ and /homework/", 0),
        ("a working/root/x", 0),
    ];
    for (text, expected) in rows {
        let tree = MadeTree::new();
        tree.write("docs/guide.md", &format!("# Guide\n\n{text}\n"));
        let complaints = tree.complaints();
        assert_eq!(complaints.len(), expected, "{text}: {complaints:?}");
        let beginning = "docs/guide.md:3: [machine-path]";
        assert!(complaints.iter().all(|complaint| complaint.starts_with(beginning)), "{complaints:?}");
    }
}

#[test]
fn no_file_has_the_marks_of_a_merge() {
    for (mark, count) in [("<<<<<<< HEAD", 1), (">>>>>>> 1a2b3c (x)", 1), ("a <<<<<<< b", 0), ("=======", 0)]
    {
        let tree = MadeTree::new();
        tree.write("docs/guide.md", &format!("# A guide\n\n{mark}\n"));
        let found = tree.complaints();
        assert_eq!(found.len(), count, "{mark}: {found:?}");
        assert!(found.iter().all(|line| line.starts_with("docs/guide.md:3: [merge]")), "{found:?}");
    }
}

#[test]
fn the_program_that_stands_alone_needs_two_crates() {
    let tree = MadeTree::new();
    let manifest =
        "[package]\nname = \"alone\"\n\n[dependencies]\ntoolpost = \"0.1\"\nserde = \"1\"\ntokio = \"1\"\n";
    tree.write("crates/toolpost/tests/alone/Cargo.toml", manifest);
    tree.package("crates/toolpost", "toolpost", "");
    tree.write("crates/toolpost/src/lib.rs", "//! All.\n//!\n//! # Invariants\n\n#![forbid(unsafe_code)]\n");
    tree.complains("crates/toolpost/tests/alone/Cargo.toml: [alone] depends on `serde`");
}

/// Each part breaks one rule.
#[test]
fn a_published_package_has_what_the_registry_requires() {
    const EGRESS: &str = "[dependencies]\ntoolpost-egress = { path = \"../egress\", version = \"0.1.0\" }\n";
    const MANIFEST: &str = "crates/sandbox/Cargo.toml";
    let made = |more: &str| {
        let tree = MadeTree::new();
        tree.published("crates/sandbox", "toolpost-sandbox", more);
        tree.package("crates/egress", "toolpost-egress", "");
        let page = "//! Egress.\n//!\n//! # Invariants\n\n#![forbid(unsafe_code)]\n";
        tree.write("crates/egress/src/lib.rs", page);
        tree
    };
    let of = |found: &str| format!("{MANIFEST}: [published-package] {found}");
    assert_eq!(made("").complaints(), [""; 0]);
    assert_eq!(made(&EGRESS.replace("[dep", "[dev-dep")).complaints(), [""; 0]);
    made(EGRESS).complains(&of("`toolpost-egress` is never published"));
    let tree = made(&EGRESS.replace(", version = \"0.1.0\"", ""));
    tree.published("crates/egress", "toolpost-egress", "");
    tree.complains(&of("`toolpost-egress` has a path and no version"));
    for field in ["description", "license", "repository"] {
        let tree = made("");
        let manifest = fs::read_to_string(tree.root().join(MANIFEST)).unwrap();
        tree.write(MANIFEST, &manifest.replace(&format!("{field} ="), &format!("# {field} =")));
        tree.complains(&of(&format!("no `{field}`")));
    }
    let tree = made("");
    fs::remove_file(tree.root().join("crates/sandbox/LICENSE-MIT")).unwrap();
    tree.complains(&of("no `LICENSE-MIT` beside it"));
    let tree = made("");
    tree.write("crates/sandbox/data.txt", &"x".repeat(4 << 20));
    tree.complains(&of("4194"));
}

#[test]
fn a_published_package_includes_no_file_of_others() {
    let rows = [
        ("pub const TEXT: &str = include_str!(\"../data.txt\");\n", false),
        ("pub const TEXT: &str = include_str!(\"../../data.txt\");\n", true),
        ("pub const TEXT: &str = include_str!(concat!(\"../../\", \"data.txt\"));\n", true),
        ("#[cfg(test)]\nmod tests {\n    const TEXT: &str = include_str!(\"../../data.txt\");\n}\n", false),
    ];
    for (code, leaves_package) in rows {
        let tree = MadeTree::new();
        tree.published("crates/core", "toolpost-core", "");
        let page = "//! Core.\n//!\n//! # Invariants\n\n#![forbid(unsafe_code)]\n";
        tree.write("crates/core/src/lib.rs", &format!("{page}{code}"));
        if leaves_package {
            tree.complains("crates/core/src/lib.rs:6: [published-package] includes `../../");
        } else {
            assert_eq!(tree.complaints(), [""; 0], "{code}");
        }
    }
}

#[test]
fn pages_have_no_dead_links_and_are_listed() {
    let rows = [
        ("docs/a.md", "[b](b.md)\n", "docs/a.md:1: [links] no file `b.md`"),
        ("docs/a.md", "# A\n\n[b](#c)\n", "docs/a.md:3: [links] `docs/a.md` has no heading `#c`"),
        (
            "README.md",
            "[b](docs/decisions/0001-first.md#that)\n",
            "README.md:1: [links] `docs/decisions/0001-first.md` has no heading `#that`",
        ),
        (
            "docs/SUMMARY.md",
            "# Summary\n",
            "docs/decisions/0001-first.md: [links] docs/SUMMARY.md does not list it",
        ),
    ];
    for (path, text, expected) in rows {
        let tree = MadeTree::new();
        tree.write(path, text);
        tree.complains(expected);
    }
    let tree = MadeTree::new();
    tree.write("README.md", "# A\n\n[a](#a), [b](docs/decisions), [c](https://example.com), `[d](e)`\n");
    assert_eq!(tree.complaints(), [""; 0]);
}

#[test]
fn claims_have_tests_that_exist() {
    let tree = MadeTree::new();
    tree.module("//! Tests.\n\n#[test]\nfn held() {}\n\nfn helper() {}\n");
    let claims = |row: &str| format!("# Claims\n\n| claim | test |\n|---|---|\n| A claim. | {row} |\n");
    tree.write("docs/SUMMARY.md", "[a](claims.md) [b](decisions/0001-first.md)\n");
    tree.write("docs/claims.md", &claims("`crates/core/src/more.rs::held`"));
    assert_eq!(tree.complaints(), [""; 0]);
    for (row, expected) in [
        ("none", "no test holds the claim \"A claim.\""),
        ("`crates/core/src/more.rs::other`", "no test `crates/core/src/more.rs::other`"),
        ("`crates/core/src/more.rs::helper`", "no test `crates/core/src/more.rs::helper`"),
        ("`crates/core/src/other.rs::held`", "no test `crates/core/src/other.rs::held`"),
    ] {
        tree.write("docs/claims.md", &claims(row));
        tree.complains(&format!("docs/claims.md:5: [claims] {expected}"));
    }
}

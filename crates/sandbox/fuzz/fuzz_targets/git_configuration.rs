//! A fuzzed configuration of git in a project, with a part that is known. A slow reference says which paths the known
//! part names; they are protected whatever the rest is, in bounded time and memory.

#![no_main]

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use toolpost_sandbox::{DirectoryRules, ProtectedEntryKind, SingleChange};

/// Settings of the known part, and the path that each one names.
const KNOWN: [(&str, &str); 8] = [
    ("[core]\n\thooksPath = .githooks\n", ".githooks/pre-commit"),
    ("[core] fsmonitor = sh tools/f.sh # x\n", "tools/f.sh"),
    ("[include]\n\tpath = ../team\n", "team"),
    ("[includeIf \"onbranch:x\"]\npath=\"../te\\\nam\"\n", "team"),
    ("[filter \"a\\\"b\"]\r\nclean = \"'tools/my clean' %f\"\r\n", "tools/my clean"),
    ("[alias]\nx = \"!f() { cd tools; ./x; }; f\"\n", "tools/x"),
    ("[credential \"https://h\"]\nhelper = !$(git rev-parse --show-toplevel)/cred\n", "cred"),
    ("[diff.old]\ntextconv = python3 -m tools.conv\n", "tools/conv.py"),
];

struct Project {
    _place: tempfile::TempDir,
    top: PathBuf,
}

impl Project {
    fn new() -> Self {
        let place = tempfile::Builder::new().prefix("fuzz").tempdir_in("/dev/shm").unwrap();
        let top = place.path().canonicalize().unwrap().join("p");
        std::fs::create_dir_all(top.join(".git/objects")).unwrap();
        std::fs::create_dir_all(top.join(".git/refs")).unwrap();
        std::fs::write(top.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        Self { _place: place, top }
    }
}

thread_local! {
    static PROJECT: RefCell<Project> = RefCell::new(Project::new());
}

fuzz_target!(|input: &[u8]| {
    let Some((&[first, second], input)) = input.split_first_chunk::<2>() else { return };
    let (known, path) = KNOWN[first as usize % KNOWN.len()];
    // The fuzzed bytes are in the repository's configuration, or in an included file.
    let (own, team) = match second % 2 {
        // A section that is not closed ends at the next line.
        0 => ([known.as_bytes(), input].concat(), Vec::new()),
        _ => (format!("{known}[include]\npath = ../team\n").into_bytes(), input.to_vec()),
    };
    PROJECT.with_borrow(|project| {
        std::fs::write(project.top.join(".git/config"), &own).unwrap();
        std::fs::write(project.top.join("team"), &team).unwrap();
        let rules = DirectoryRules::of_host(&project.top, [], []);
        assert!(rules.protected().len() <= 20_000);
        let path = Path::new(path);
        let change = SingleChange::new(path, Some(ProtectedEntryKind::File), &|_| None);
        let is_protected = rules.protection(path, &change).is_some();
        assert!(is_protected, "{path:?} with {:?}", String::from_utf8_lossy(&own));
        // Nothing outside the directory is named, and nothing of it as a whole.
        for protected in rules.protected() {
            let path = protected.path();
            assert!(path.starts_with(&project.top) || project.top.starts_with(path), "{path:?}");
        }
    });
});

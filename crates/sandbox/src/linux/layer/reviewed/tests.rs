//! Compares reviews with applies, over generated layers.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::AsFd as _;
use rustix::fs::{FileType, Mode, XattrFlags};

use super::super::changes::whiteout;
use super::super::held::HeldLayer;
use super::super::{Overlay, open_directory};
use crate::apply::{Applied, ApplyState, MAX_NAMED};
use crate::review::{ChangeKind, Review, ReviewDecision, ReviewedChange};
use crate::{ApplyMode, DenialReason, DirectoryRules, Mark, ProtectedEntryKind, ProtectedPath};

/// The number of generated layers per place.
const ROUNDS: u64 = 120;

/// Names with and without a rule.
const NAMES: [&str; 18] = [
    "a",
    "b",
    "d",
    "e",
    "run.sh",
    "Makefile",
    "package.json",
    "CLAUDE.md",
    ".envrc",
    ".vscode",
    ".git",
    "HEAD",
    "objects",
    "refs",
    "config",
    ".gitattributes",
    ".cargo",
    "trusted.py",
];

/// A deterministic generator: splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, number: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % number
    }

    fn is(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A host directory, its layer and the rules.
struct Bench {
    host: tempfile::TempDir,
    layers: tempfile::TempDir,
    allowed: Vec<PathBuf>,
}

impl Bench {
    fn new(place: &Path) -> Self {
        let host = tempfile::tempdir_in(place).unwrap();
        Self { host, layers: tempfile::tempdir().unwrap(), allowed: Vec::new() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.host.path().join(path)
    }

    fn write(&self, path: &str, content: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), content).unwrap();
    }

    fn layer(&self) -> Overlay {
        let path = self.host.path().canonicalize().unwrap();
        let host = open_directory(&path).unwrap();
        let stat = rustix::fs::fstat(&host).unwrap();
        Overlay::of_copy(host.as_fd(), &path, &stat, Some(self.layers.path())).unwrap()
    }

    fn rules(&self) -> DirectoryRules {
        let path = self.host.path().canonicalize().unwrap();
        let trusted = ProtectedPath::Trusted(path.join("trusted.py"));
        DirectoryRules::of_host(&path, [trusted], self.allowed.iter().cloned())
    }

    /// The held layer in this directory alone, however many others the machine has.
    fn held(&self, id: &str) -> Option<HeldLayer> {
        let mut all = fs::read_dir(self.layers.path()).unwrap().flatten().map(|entry| entry.path());
        let path = all.find(|path| path.to_string_lossy().ends_with(id))?;
        Some(HeldLayer::open(&path).unwrap()).filter(HeldLayer::is_waiting)
    }
}

/// An entry of a tree: kind, mode, and content or target.
type Entry = (ProtectedEntryKind, u32, Vec<u8>);
type Tree = BTreeMap<PathBuf, Entry>;

fn tree(root: &Path) -> Tree {
    let (mut all, mut waiting) = (Tree::new(), vec![PathBuf::new()]);
    while let Some(below) = waiting.pop() {
        for entry in fs::read_dir(root.join(&below)).unwrap().flatten() {
            let path = below.join(entry.file_name());
            let found = fs::symlink_metadata(entry.path()).unwrap();
            let (kind, content) = match () {
                () if found.is_symlink() => {
                    let target = fs::read_link(entry.path()).unwrap();
                    (ProtectedEntryKind::Link, target.into_os_string().into_encoded_bytes())
                }
                () if found.is_dir() => {
                    waiting.push(path.clone());
                    (ProtectedEntryKind::Directory, Vec::new())
                }
                () if found.is_file() => (ProtectedEntryKind::File, fs::read(entry.path()).unwrap()),
                () => (ProtectedEntryKind::Special, Vec::new()),
            };
            let mode = if kind == ProtectedEntryKind::Link { 0 } else { found.mode() & 0o7777 };
            all.insert(path, (kind, mode, content));
        }
    }
    all
}

/// Changes a tree as the review says.
fn changed(mut all: Tree, review: &Review, content: &dyn Fn(&Path) -> Vec<u8>) -> Tree {
    for change in review.with(ReviewDecision::Applied) {
        let path = &change.path;
        let there = all.get(path).cloned();
        assert_eq!(
            there.as_ref().map(|there| there.0),
            change.before.as_ref().map(|one| one.kind),
            "{change:?}"
        );
        let modes = there.as_ref().map(|there| (there.0 != ProtectedEntryKind::Link).then_some(there.1));
        assert_eq!(modes, change.before.as_ref().map(|one| one.mode), "{change:?}");
        if matches!(change.kind, ChangeKind::Deleted | ChangeKind::Replaced) {
            let gone = all.keys().filter(|inner| inner.starts_with(path)).count();
            assert_eq!(gone, change.beneath + 1, "{change:?}");
            all.retain(|inner, _| !inner.starts_with(path));
        }
        let Some(after) = &change.after else { continue };
        let content = match after.kind {
            ProtectedEntryKind::Link => after.target.clone().unwrap().into_os_string().into_encoded_bytes(),
            ProtectedEntryKind::File => content(path),
            _ => Vec::new(),
        };
        assert!(after.size.is_none_or(|size| size == content.len() as u64), "{change:?}");
        all.insert(path.clone(), (after.kind, after.mode.unwrap_or(0), content));
    }
    all
}

/// Compares the host directory, and the outcome of apply, with a review.
fn check_tree(
    before: Tree,
    bench: &Bench,
    applied: &Applied,
    review: &Review,
    content: &dyn Fn(&Path) -> Vec<u8>,
    case: &str,
) {
    let expected = changed(before, review, content);
    let after = tree(bench.host.path());
    for path in expected.keys().chain(after.keys()) {
        assert_eq!(after.get(path), expected.get(path), "{case}: {}", path.display());
    }
    for denied in &applied.denied {
        let is_denied =
            |one: &ReviewedChange| one.path == denied.path && one.reason.as_ref() == Some(&denied.reason);
        assert!(review.changes.iter().any(is_denied), "{case}: {denied:?}");
    }
    let written = review.with(ReviewDecision::Applied).count() + review.more_applied;
    let withheld = review.changes.iter().filter(|change| is_withheld(change, applied)).count();
    let all = review.changes.len() + review.more_applied + review.more_denied;
    assert_eq!(applied.denied_count, all - written - withheld, "{case}");
}

/// Whether a change waits for another path: a reference for a commit.
fn is_withheld(change: &ReviewedChange, applied: &Applied) -> bool {
    let is_unchecked =
        || change.message.as_ref().is_some_and(|message| message.starts_with("its commits were not checked"));
    let waits = matches!(change.reason, Some(DenialReason::Committed(_))) || is_unchecked();
    waits && applied.denied.iter().all(|denied| denied.path != change.path)
}

/// Fills a directory with entries of any kind.
fn populate(dice: &mut Dice, at: &Path, depth: u32) {
    for name in NAMES {
        if !dice.is(if depth == 0 { 45 } else { 25 }) {
            continue;
        }
        let path = at.join(name);
        match dice.below(10) {
            0 => symlink(dice.pick(&["a", "../..", "/etc", "d"]), path).unwrap(),
            1..4 if depth < 2 => {
                fs::create_dir(&path).unwrap();
                populate(dice, &path, depth + 1);
                let mode = dice.pick(&[0o755, 0o700, 0o1777]);
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            _ => {
                fs::write(&path, dice.pick(&["one", "two", "* filter=x\n"])).unwrap();
                let mode = dice.pick(&[0o644, 0o755, 0o600, 0o4755]);
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    }
}

/// Fills a layer over a host directory, as a program would.
fn work(dice: &mut Dice, upper: &Path, host: &Path, depth: u32) {
    for name in NAMES {
        if !dice.is(if depth == 0 { 45 } else { 35 }) {
            continue;
        }
        let (path, below) = (upper.join(name), host.join(name));
        match dice.below(12) {
            0..2 => {
                let directory = open_directory(upper).unwrap();
                whiteout(directory.as_fd(), name.as_ref()).unwrap();
            }
            2 => symlink(dice.pick(&["b", "../../..", "/etc/passwd", "d/e"]), &path).unwrap(),
            3 => rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap(),
            4..8 if depth < 2 => {
                fs::create_dir(&path).unwrap();
                work(dice, &path, &below, depth + 1);
                let is_root = rustix::process::geteuid().is_root();
                let opaque = if is_root { c"trusted.overlay.opaque" } else { c"user.overlay.opaque" };
                if dice.is(30) {
                    rustix::fs::setxattr(&path, opaque, b"y", XattrFlags::empty()).unwrap();
                }
                let there = fs::symlink_metadata(&below).ok().filter(fs::Metadata::is_dir);
                let mode = there.map_or(0o755, |found| found.mode() & 0o777);
                let mode = if dice.is(20) { 0o750 } else { mode };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            // The same content with another mode, or as a whole.
            8 if below.is_file() && !below.is_symlink() => {
                fs::copy(&below, &path).unwrap();
                let found = fs::metadata(&below).unwrap();
                fs::File::open(&path).unwrap().set_modified(found.modified().unwrap()).unwrap();
                if dice.is(50) {
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o711)).unwrap();
                }
            }
            _ => {
                fs::write(&path, dice.pick(&["new", "newer", "* filter=x\n", "* text\n"])).unwrap();
                let mode = dice.pick(&[0o644, 0o755, 0o400, 0o4711]);
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    }
}

/// Changes a part of the host directory during the run.
fn interfere(dice: &mut Dice, host: &Path) {
    for path in tree(host).into_keys().map(|path| host.join(path)) {
        let found = fs::symlink_metadata(&path);
        match dice.below(12) {
            0 if found.as_ref().is_ok_and(fs::Metadata::is_file) => fs::write(&path, "of the host").unwrap(),
            1 if found.is_ok_and(|found| !found.is_dir()) => fs::remove_file(&path).unwrap(),
            _ => {}
        }
    }
}

fn truncated(review: &Review) -> Review {
    let mut first = review.clone();
    first.truncate(MAX_NAMED);
    first
}

/// Compares reviews change by change, for a short message.
fn check_same(one: &Review, other: &Review, case: &str) {
    for (one, other) in one.changes.iter().zip(&other.changes) {
        assert_eq!(one, other, "{case}");
    }
    assert_eq!(one.changes.len(), other.changes.len(), "{case}");
    assert_eq!((one.more_applied, one.more_denied), (other.more_applied, other.more_denied), "{case}");
}

/// The places of host directories: one on the mount of the layers, so that files are moved, and one on another.
fn places() -> Vec<PathBuf> {
    let other = PathBuf::from("/dev/shm");
    let is_usable = tempfile::tempdir_in(&other).is_ok();
    if !is_usable {
        println!("SKIP reviews of a host directory on another mount: `/dev/shm` is not writable");
    }
    [std::env::temp_dir()].into_iter().chain(is_usable.then_some(other)).collect()
}

#[test]
fn a_review_says_what_apply_does() {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for (place, seed) in places().iter().flat_map(|place| (0..ROUNDS).map(move |seed| (place, seed))) {
        let mut dice = Dice(seed);
        let mut bench = Bench::new(place);
        populate(&mut dice, bench.host.path(), 0);
        bench.allowed = match dice.below(5) {
            0 => vec![".".into()],
            1 => vec![".envrc".into(), "d".into()],
            _ => Vec::new(),
        };
        let rules = bench.rules();
        let mut layer = bench.layer();
        work(&mut dice, &layer.path.join("upper"), bench.host.path(), 0);
        if dice.is(50) {
            std::thread::sleep(Duration::from_millis(12));
            interfere(&mut dice, bench.host.path());
        }
        let before = tree(bench.host.path());
        let written = tree(&layer.path.join("upper"));
        let content = |path: &Path| written[path].2.clone();
        let mode = if dice.is(30) { ApplyMode::Now } else { ApplyMode::Hold };
        let ended = layer.end(mode, None, &rules).unwrap();
        let id = ended.id.clone();
        drop(layer);
        let mut done = Vec::new();
        if ended.state == ApplyState::Applied {
            // An outcome lists the first changes alone.
            let is_whole = ended.review.more_applied + ended.review.more_denied == 0;
            if is_whole {
                check_tree(before, &bench, &ended, &ended.review, &content, &format!("seed {seed}"));
            }
            done.push(ended.review);
        } else {
            let review = bench.held(&id).unwrap().review(&bench.allowed).unwrap();
            check_same(&ended.review, &truncated(&review), &format!("{seed}: held"));
        }
        // Another apply judges held changes again: without the denied ones, they can be harmless.
        for round in 0..3 {
            let case = format!("seed {seed}, round {round}, host in {}", place.display());
            let Some(held) = bench.held(&id) else { break };
            let before = tree(bench.host.path());
            let review = held.review(&bench.allowed).unwrap();
            assert_eq!(tree(bench.host.path()), before, "{case}: a review writes nothing");
            let applied = held.apply(&bench.allowed).unwrap();
            check_same(&applied.review, &truncated(&review), &case);
            check_tree(before, &bench, &applied, &review, &content, &case);
            done.push(review);
        }
        let last = done.last().unwrap();
        assert_eq!(
            bench.held(&id).is_some(),
            last.with(ReviewDecision::Held).next().is_some(),
            "{seed}: {last:?}"
        );
        for change in done.iter().flat_map(|review| &review.changes) {
            let reason = change.reason.as_ref().map_or("", |reason| match reason {
                DenialReason::Protected(_) => "protected",
                DenialReason::Conflict => "conflict",
                DenialReason::GitDriver => "git driver",
                DenialReason::Committed(_) => "committed",
                DenialReason::Special => "special",
                DenialReason::NotEmpty => "not empty",
                DenialReason::Failed(_) => "failed",
            });
            *seen.entry(format!("{:?} {:?} {reason}", change.kind, change.decision)).or_default() += 1;
        }
    }
    for kind in ["Created", "Changed", "Deleted", "Replaced"] {
        for decision in ["Applied ", "Held protected", "Held conflict"] {
            let name = format!("{kind} {decision}");
            // A conflict needs an entry of the host.
            let is_possible = name != "Created Held conflict";
            assert!(!is_possible || seen.get(&name).is_some_and(|count| *count >= 3), "{name}: {seen:#?}");
        }
    }
    for name in ["Created Denied special", "Replaced Held not empty"] {
        assert!(seen.contains_key(name), "{name}: {seen:#?}");
    }
}

/// A row: a name, the host's entries, the work in the layer, and the expected lines of the review.
type Row = (&'static str, fn(&Bench), fn(&Path), &'static [&'static str]);

/// A change in one line: decision, kind, path, entries, marks and reason.
fn line(change: &ReviewedChange) -> String {
    let entry = |entry: &Option<crate::ReviewedEntry>| {
        entry.as_ref().map_or("nothing".to_owned(), |entry| {
            let kind = format!("{:?}", entry.kind).to_lowercase();
            let mode = entry.mode.map_or(String::new(), |mode| format!(" {mode:o}"));
            let target =
                entry.target.as_ref().map_or(String::new(), |target| format!(" {}", target.display()));
            format!("{kind}{mode}{target}")
        })
    };
    let decision = format!("{:?}", change.decision).to_lowercase();
    let beneath = if change.beneath > 0 { format!(" with {}", change.beneath) } else { String::new() };
    let marks = change.marks.iter().map(|mark| format!(" [{mark:?}]")).collect::<Vec<_>>().concat();
    let protection = change.protection.map_or(String::new(), |rule| format!(" [{:?}]", rule.kind));
    let reason = change.message.as_ref().map_or(String::new(), |message| {
        let (begin, _) = message.split_once(':').unwrap_or((message, ""));
        format!(" ({begin})")
    });
    format!(
        "{decision} {}: {}{beneath} -> {}{marks}{protection}{reason}",
        change.path.display(),
        entry(&change.before),
        entry(&change.after),
    )
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn delete(upper: &Path, name: &str) {
    whiteout(open_directory(upper).unwrap().as_fd(), name.as_ref()).unwrap();
}

/// Writes a file of the layer with a mode.
fn put(upper: &Path, path: &str, content: &str, mode: u32) {
    let path = upper.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    set_mode(&path, mode);
}

#[test]
fn each_kind_of_change_is_reviewed_as_it_is_applied() {
    let rows: [Row; 21] = [
        (
            "a directory becomes a link",
            |bench| {
                bench.write("d/one", "1");
                bench.write("d/in/two", "2");
            },
            |upper| symlink("/etc", upper.join("d")).unwrap(),
            &["applied d: directory 755 with 3 -> link /etc [LeadsOutside]"],
        ),
        (
            "a file becomes a link",
            |bench| bench.write("f", "1"),
            |upper| symlink("g", upper.join("f")).unwrap(),
            &["applied f: file 644 -> link g"],
        ),
        (
            "a link gets another target",
            |bench| symlink("a", bench.at("l")).unwrap(),
            |upper| symlink("../../x", upper.join("l")).unwrap(),
            &["applied l: link a -> link ../../x [LeadsOutside]"],
        ),
        (
            "a link becomes a directory",
            |bench| symlink("a", bench.at("l")).unwrap(),
            |upper| put(upper, "l/x", "1", 0o644),
            &["applied l: link a -> directory 755", "applied l/x: nothing -> file 644"],
        ),
        (
            "a file becomes executable",
            |bench| bench.write("run.sh", "1"),
            |upper| put(upper, "run.sh", "1", 0o755),
            &["applied run.sh: file 644 -> file 755 [Executable]"],
        ),
        (
            "a file is no longer executable",
            |bench| {
                bench.write("run.sh", "1");
                set_mode(&bench.at("run.sh"), 0o755);
            },
            |upper| put(upper, "run.sh", "2", 0o644),
            &["applied run.sh: file 755 -> file 644"],
        ),
        (
            "set-user-ID",
            |bench| {
                bench.write("s", "1");
                set_mode(&bench.at("s"), 0o4755);
            },
            |upper| {
                put(upper, "s", "2", 0o4755);
                put(upper, "t", "2", 0o6711);
            },
            &["applied s: file 4755 -> file 755 [Executable]", "applied t: nothing -> file 711 [Executable]"],
        ),
        (
            "a new directory with a protected name inside",
            |_| {},
            |upper| {
                put(upper, "new/.envrc", "1", 0o644);
                put(upper, "new/x", "1", 0o644);
                put(upper, "new/.vscode/tasks.json", "{}", 0o644);
            },
            &[
                "applied new: nothing -> directory 755",
                "applied new/x: nothing -> file 644",
                "held new/.envrc: nothing -> file 644 [StartFile] (protected)",
                "held new/.vscode: nothing -> directory 755 [Editor] (protected)",
                "held new/.vscode/tasks.json: nothing -> file 644 [Editor] (protected)",
            ],
        ),
        (
            "denied and held beside applied",
            |_| {},
            |upper| {
                put(upper, "made", "1", 0o644);
                put(upper, ".envrc", "1", 0o644);
                rustix::fs::mknodat(rustix::fs::CWD, upper.join("pipe"), FileType::Fifo, Mode::RUSR, 0)
                    .unwrap();
            },
            &[
                "applied made: nothing -> file 644",
                "held .envrc: nothing -> file 644 [StartFile] (protected)",
                "denied pipe: nothing -> special 400 (it is a socket, a FIFO or a device)",
            ],
        ),
        (
            "marks",
            |_| {},
            |upper| {
                put(upper, "Makefile", "1", 0o644);
                put(upper, "CLAUDE.md", "1", 0o644);
                put(upper, "gradlew", "1", 0o755);
                symlink("/usr/x", upper.join("AGENTS.md")).unwrap();
            },
            &[
                "applied AGENTS.md: nothing -> link /usr/x [Instructions] [LeadsOutside]",
                "applied CLAUDE.md: nothing -> file 644 [Instructions]",
                "applied Makefile: nothing -> file 644 [Build]",
                "applied gradlew: nothing -> file 755 [Build] [Executable]",
            ],
        ),
        (
            "an allowed protected name",
            |_| {},
            |upper| put(upper, "allowed/.envrc", "1", 0o644),
            &[
                "applied allowed: nothing -> directory 755",
                "applied allowed/.envrc: nothing -> file 644 [StartFile]",
            ],
        ),
        (
            "a pinned file",
            |bench| bench.write("trusted.py", "1"),
            |upper| put(upper, "trusted.py", "2", 0o644),
            &["held trusted.py: file 644 -> file 644 [Trusted] (protected)"],
        ),
        (
            "existing instructions",
            |bench| bench.write("CLAUDE.md", "1"),
            |upper| put(upper, "CLAUDE.md", "2", 0o644),
            &["held CLAUDE.md: file 644 -> file 644 [Instructions] [Instructions] (protected)"],
        ),
        (
            "a driver of git",
            |_| {},
            |upper| put(upper, ".gitattributes", "* filter=x\n", 0o644),
            &["held .gitattributes: nothing -> file 644 [Repository] (protected)"],
        ),
        (
            "a deletion",
            |bench| {
                bench.write("f", "1");
                bench.write("d/x", "1");
            },
            |upper| {
                delete(upper, "f");
                delete(upper, "d");
            },
            &["applied d: directory 755 with 1 -> nothing", "applied f: file 644 -> nothing"],
        ),
        (
            "a mass deletion",
            |bench| (0..30).for_each(|number| bench.write(&format!("d/{number}"), "1")),
            |upper| delete(upper, "d"),
            &["applied d: directory 755 with 30 -> nothing"],
        ),
        (
            "a deletion that a protected name prevents in part",
            |bench| {
                bench.write("d/in/.envrc", "1");
                bench.write("d/x", "1");
            },
            |upper| delete(upper, "d"),
            &[
                "applied d/x: file 644 -> nothing",
                "held d/in/.envrc: file 644 -> nothing [StartFile] (protected)",
            ],
        ),
        (
            "a file in place of a directory with a protected name",
            |bench| bench.write("d/.envrc", "1"),
            |upper| put(upper, "d", "1", 0o644),
            &[
                "held d/.envrc: file 644 -> nothing [StartFile] (protected)",
                "held d: directory 755 -> file 644 (it replaces a directory with denied entries)",
            ],
        ),
        (
            "a directory is created again",
            |bench| {
                bench.write("d/old", "1");
                bench.write("d/both", "1");
            },
            |upper| {
                put(upper, "d/both", "2", 0o644);
                let is_root = rustix::process::geteuid().is_root();
                let opaque = if is_root { c"trusted.overlay.opaque" } else { c"user.overlay.opaque" };
                rustix::fs::setxattr(upper.join("d"), opaque, b"y", XattrFlags::empty()).unwrap();
            },
            &["applied d/old: file 644 -> nothing", "applied d/both: file 644 -> file 644"],
        ),
        (
            "a conflict",
            |bench| {
                bench.write("conflict", "1");
                bench.write("gone", "1");
            },
            |upper| {
                put(upper, "conflict", "2", 0o644);
                put(upper, "x", "2", 0o644);
            },
            &["applied x: nothing -> file 644", "held conflict: file 644 -> file 644 (conflict)"],
        ),
        (
            "the mode of a directory",
            |bench| {
                bench.write("d/x", "1");
                bench.write(".vscode/x", "1");
            },
            |upper| {
                for name in ["d", ".vscode"] {
                    fs::create_dir(upper.join(name)).unwrap();
                    set_mode(&upper.join(name), 0o700);
                }
            },
            &[
                "applied d: directory 755 -> directory 700",
                "held .vscode: directory 755 -> directory 700 [Editor] (protected)",
            ],
        ),
    ];
    for (place, (name, host, work, expected)) in
        places().iter().flat_map(|place| rows.iter().map(move |row| (place, row)))
    {
        let mut bench = Bench::new(place);
        bench.allowed = vec!["allowed".into()];
        host(&bench);
        let mut layer = bench.layer();
        work(&layer.path.join("upper"));
        if bench.at("conflict").exists() {
            std::thread::sleep(Duration::from_millis(20));
            bench.write("conflict", "of the host");
        }
        let written = tree(&layer.path.join("upper"));
        let content = |path: &Path| written[path].2.clone();
        let before = tree(bench.host.path());
        let ended = layer.end(ApplyMode::Hold, None, &bench.rules()).unwrap();
        let id = ended.id.clone();
        drop(layer);
        let lines: Vec<String> = ended.review.changes.iter().map(line).collect();
        assert_eq!(lines, *expected, "{name}");
        let applied = bench.held(&id).unwrap().apply(&bench.allowed).unwrap();
        check_same(&applied.review, &ended.review, name);
        check_tree(before, &bench, &applied, &ended.review, &content, name);
        let marked: Vec<(&Path, Mark)> =
            applied.marked.iter().map(|marked| (marked.path.as_path(), marked.mark)).collect();
        let in_review: Vec<(&Path, Mark)> = applied
            .review
            .with(ReviewDecision::Applied)
            .flat_map(|change| change.marks.iter().map(|mark| (change.path.as_path(), *mark)))
            .collect();
        assert_eq!(marked, in_review, "{name}");
        // JSON has the same value.
        let json = serde_json::to_value(&applied).unwrap();
        let mut read: Applied = serde_json::from_value(json).unwrap();
        // JSON has the kind of a rule; the message has the rest.
        let mut applied = applied;
        for change in read.review.changes.iter_mut().chain(&mut applied.review.changes) {
            change.reason = None;
            change.protection = change.protection.map(|rule| rule.kind.into());
        }
        assert_eq!(read.review, applied.review, "{name}");
    }
}

#[test]
fn what_the_host_rejects_is_foreseen() {
    if rustix::process::geteuid().is_root() {
        println!("SKIP what_the_host_rejects_is_foreseen: root may write everywhere");
        return;
    }
    let bench = Bench::new(&std::env::temp_dir());
    bench.write("closed/x", "1");
    bench.write("closed/y", "1");
    let mut layer = bench.layer();
    let upper = layer.path.join("upper");
    put(&upper, "closed/x", "2", 0o644);
    put(&upper, "closed/new", "2", 0o644);
    delete(&upper.join("closed"), "y");
    set_mode(&upper.join("closed"), 0o555);
    set_mode(&bench.at("closed"), 0o555);
    let ended = layer.end(ApplyMode::Hold, None, &bench.rules()).unwrap();
    let id = ended.id.clone();
    drop(layer);
    let review = bench.held(&id).unwrap().review(&[]).unwrap();
    let applied = bench.held(&id).unwrap().apply(&[]).unwrap();
    set_mode(&bench.at("closed"), 0o755);
    check_same(&applied.review, &review, "closed");
    assert_eq!((applied.changed, applied.failed_count), (0, 3), "{applied:?}");
    for change in &review.changes {
        assert_eq!(change.decision, ReviewDecision::Held, "{change:?}");
        assert!(change.hint.as_deref().unwrap().contains("write permission"), "{change:?}");
    }
}

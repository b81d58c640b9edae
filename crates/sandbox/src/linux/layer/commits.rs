//! Judges commits of code before they move the host's references.
//!
//! Git writes the files of a commit or of the index into the work tree on `git stash`, `checkout`, `reset`, `pull` and
//! `rebase`. So an entry that a moved reference or the index adds is judged like a change of its path. If one is
//! denied, references and index wait, and only objects are applied. Objects must have the content of their names: git
//! would read others without a check.

mod comparison;
mod index;
mod references;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::{AsRawFd as _, BorrowedFd};
use rustix::fs::{Mode, OFlags};

use super::super::files::open_beneath;
use super::changes::{Change, Kind};
use super::entries::same_content;
use super::held::Record;
use super::view::{After, View, stat_of};
use super::{Overlay, path_of};
use crate::denial::DenialReason;
use crate::protected::{ChangedTree, ProtectedEntryKind, Protection, ProtectionRule, fold, folded_parts};
use crate::writer::MAX_ATTRIBUTES;
use crate::{DirectoryRules, adds_git_driver};

use self::comparison::{Found, MAX_BYTES, MAX_OBJECTS, Objects, Pair, hexadecimal};
use self::index::{GitEntry, Index, ObjectId};
use self::references::{Id, Moves, Old, Reason, Repository, read};

/// The first names in a repository that change what git checks out.
const DATA: [&str; 12] = [
    "head",
    "orig_head",
    "fetch_head",
    "merge_head",
    "cherry_pick_head",
    "revert_head",
    "auto_merge",
    "packed-refs",
    "refs",
    "logs",
    "index",
    "objects",
];
const SHARED_INDEX: &str = "sharedindex.";
/// The longest time in which a file system gives equal times.
const MAX_TICK: Duration = Duration::from_millis(20);
/// The maximum number of denied entries that are compared with the user's own files.
const MAX_CANDIDATES: usize = 200;
/// The largest file of the work tree that is compared, in bytes.
const MAX_TEXT: u64 = 1 << 20;
/// The maximum number of branches whose files are compared.
const MAX_TIPS: usize = 100;
/// The maximum number of directories of shared objects.
const MAX_SHARED: usize = 8;
/// The modes of git's entries.
const FILE: u32 = 0o100_644;
const EXECUTABLE: u32 = 0o100_755;
const LINK: u32 = 0o120_000;
const SUBMODULE: u32 = 0o160_000;

/// The parts of a layer that are judged.
#[derive(Clone, Copy)]
pub(super) struct LayerParts<'a> {
    pub(super) record: &'a Record,
    pub(super) host: BorrowedFd<'a>,
    pub(super) upper: BorrowedFd<'a>,
}

impl Overlay {
    pub(super) fn parts(&self) -> LayerParts<'_> {
        LayerParts { record: &self.record, host: self.host(), upper: self.upper() }
    }
}

/// A repository whose data a layer changes.
#[derive(Debug)]
pub(super) struct JudgedRepository {
    /// The directory of git's data, relative to the host directory.
    pub(super) git: PathBuf,
    withheld: Withheld,
    /// The denied paths with their reasons.
    pub(super) denied: Vec<(PathBuf, DenialReason)>,
}

/// The part that is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Withheld {
    Nothing,
    /// All but objects.
    Moves,
    All,
}

impl JudgedRepository {
    pub(super) fn has(&self, path: &Path) -> bool {
        path != self.git && path.starts_with(&self.git)
    }

    /// Whether a change waits.
    pub(super) fn withholds(&self, path: &Path) -> bool {
        match self.withheld {
            Withheld::Nothing => false,
            Withheld::Moves => !path.starts_with(self.git.join("objects")),
            Withheld::All => true,
        }
    }

    /// Whether git takes a file's word for objects that it does not read.
    pub(super) fn is_cache(&self, path: &Path) -> bool {
        path.strip_prefix(&self.git).is_ok_and(is_cache)
    }
}

fn is_cache(name: &Path) -> bool {
    let parts = folded_parts(name);
    match parts.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["objects", "info", name, ..] => name.starts_with("commit-graph"),
        ["objects", "pack", name, ..] => name.starts_with("multi-pack-index"),
        _ => false,
    }
}

/// Judges the repositories among changes. `is_live` means that the program still runs.
pub(super) fn judge(
    layer: LayerParts<'_>,
    rules: &DirectoryRules,
    changes: &[Change],
    is_live: bool,
) -> Vec<JudgedRepository> {
    // The changes of a private copy are judged when they reach the original.
    if layer.record.of_copy {
        return Vec::new();
    }
    let after = After::default();
    let view = View { host: layer.host, upper: layer.upper, after: &after, planned: None };
    let mut judged = Vec::new();
    let found = repositories(&view, changes);
    if is_live && !found.is_empty() {
        // From here, each write gives a file another time than the listed one.
        std::thread::sleep(MAX_TICK);
    }
    for (git, changes) in found {
        let repository = Repository { view: &view, git };
        let examined = if rules.admits(&repository.git) {
            Ok(Vec::new())
        } else {
            Examination { layer, rules, repository: &repository }.run(&changes)
        };
        let (withheld, denied) = match examined {
            Ok(denied) if denied.is_empty() => (Withheld::Nothing, denied),
            Ok(denied) => (Withheld::Moves, denied),
            Err(reason) => {
                let reason = format!("its commits were not checked: {reason}");
                let failed = DenialReason::Failed(std::io::Error::other(reason).into());
                let is_all = repository.git.as_os_str().is_empty();
                let path = if is_all { PathBuf::from(".") } else { repository.git.clone() };
                (Withheld::All, vec![(path, failed)])
            }
        };
        judged.push(JudgedRepository { git: repository.git, withheld, denied });
    }
    judged
}

/// The repositories of the host with changed data, and these changes.
fn repositories<'a>(view: &View<'_>, changes: &'a [Change]) -> BTreeMap<PathBuf, Vec<&'a Change>> {
    let mut known: HashMap<PathBuf, bool> = HashMap::new();
    let mut found: BTreeMap<PathBuf, Vec<&Change>> = BTreeMap::new();
    for change in changes.iter().filter(|change| !matches!(change.kind, Kind::Directory { .. })) {
        let mut above = PathBuf::new();
        for part in &change.path {
            let name = fold(&part.to_string_lossy()).into_owned();
            if DATA.contains(&name.as_str()) || name.starts_with(SHARED_INDEX) {
                let is_git = match known.get(&above) {
                    Some(known) => *known,
                    None => {
                        let is_git = is_repository(view, &above);
                        known.insert(above.clone(), is_git);
                        is_git
                    }
                };
                if is_git {
                    found.entry(above).or_default().push(change);
                    break;
                }
            }
            above.push(part);
        }
    }
    found
}

/// Whether the host has a repository at a path, or a part of one.
fn is_repository(view: &View<'_>, git: &Path) -> bool {
    let is_named = git.file_name().is_some_and(|name| fold(&name.to_string_lossy()) == ".git");
    let has = |name: &str| view.before(&git.join(name)).is_some();
    is_named && view.before(git) == Some(ProtectedEntryKind::Directory)
        || has("HEAD") && (has("objects") && has("refs") || has("commondir"))
}

/// The examination of one repository.
struct Examination<'a> {
    layer: LayerParts<'a>,
    rules: &'a DirectoryRules,
    repository: &'a Repository<'a>,
}

/// The entries that git would check out.
#[derive(Default)]
struct Entries {
    /// Entries that new commits add, change or delete.
    committed: BTreeSet<GitEntry>,
    /// Entries of the index.
    indexed: BTreeSet<GitEntry>,
    /// Others of the same trees.
    present: BTreeSet<GitEntry>,
}

impl Entries {
    /// Whether a new entry can complete a directory to a repository.
    fn can_be_repository(&self) -> bool {
        let is_part = |name: &[u8]| {
            let name = String::from_utf8_lossy(name);
            ["head", "objects", "refs", "commondir"].contains(&fold(&name).as_ref())
        };
        let mut added = self.committed.iter().chain(&self.indexed).filter(|entry| entry.mode != 0);
        added.any(|entry| entry.path.split(|byte| *byte == b'/').any(is_part))
    }
}

/// An entry that is denied unless it is the user's own.
struct Candidate {
    /// Relative to the host directory.
    path: PathBuf,
    entry: GitEntry,
    protection: ProtectionRule,
    /// Whether only its content can deny it.
    is_attributes: bool,
    /// Whether only the index has it.
    is_indexed: bool,
}

impl Examination<'_> {
    /// Returns the denied entries.
    fn run(&self, changes: &[&Change]) -> Result<Vec<(PathBuf, DenialReason)>, Reason> {
        let git = &self.repository.git;
        let names: Vec<(&Path, &Change)> = changes
            .iter()
            .filter_map(|change| Some((change.path.strip_prefix(git).ok()?, *change)))
            .collect();
        let config = self.repository.before(Path::new("config"))?.unwrap_or_default();
        let config = String::from_utf8_lossy(&config).to_lowercase();
        let is_sha256 = config.contains("objectformat") && config.contains("sha256");
        let mut objects = self.objects(&names)?;
        objects.id_length = if is_sha256 { 32 } else { 20 };
        let old = Old::read(self.repository)?;
        let moves = old.moves(&names.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
        objects.shallow = self.repository.after(Path::new("shallow"))?;
        let own = self.repository.before(Path::new("index"))?;
        let own = own.map(|file| index::read(&file, objects.id_length)).transpose();
        let mut pairs = Vec::new();
        let mut entries = Entries::default();
        let empty = Index::default();
        for (name, _) in &names {
            match folded_parts(name).as_slice() {
                [only] if only == "index" => {
                    let Some(file) = self.repository.after(name)? else { continue };
                    let fail = |reason| format!("the index is not readable: {reason}");
                    let new = index::read(&file, objects.id_length).map_err(fail)?;
                    let own = own.as_ref().map_err(|reason| fail(reason))?;
                    let own = own.as_ref().unwrap_or(&empty);
                    entries.indexed.extend(new.added(own));
                    let trees = new.trees.iter().filter(|(path, tree)| own.trees.get(*path) != Some(tree));
                    pairs.extend(trees.map(|(path, tree)| Pair::new(path, old.head.as_ref(), tree)));
                    entries.present.extend(new.entries);
                }
                [only] if only.starts_with(SHARED_INDEX) => return Err("it is a split index".into()),
                _ => {}
            }
        }
        let has_moves = !(moves.all.is_empty() && moves.remote.is_empty());
        if has_moves || !(objects.new.is_empty() && pairs.is_empty()) {
            let compared = objects.compare(&pairs, &moves, &old.tips)?;
            entries.committed.extend(compared.committed);
            entries.indexed.extend(compared.cached);
        }
        if entries.can_be_repository() {
            let ids = moves.all.iter().chain(moves.remote.values());
            let whole: Vec<Pair> =
                pairs.iter().map(Pair::to_whole).chain(ids.map(|id| Pair::whole(b"", id.clone()))).collect();
            let all = objects.compare(&whole, &Moves::default(), &HashSet::new())?;
            entries.present.extend(all.cached);
        }
        let own = own.ok().flatten().unwrap_or_default();
        let candidates = self.candidates(&entries, &own);
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        self.denied(candidates, &objects, &old, moves.head.as_ref())
    }

    /// The directory into which git checks out.
    fn work_tree(&self) -> &Path {
        let git = &self.repository.git;
        let is_named = git.file_name().is_some_and(|name| fold(&name.to_string_lossy()) == ".git");
        git.parent().filter(|_| is_named).unwrap_or(git)
    }

    /// The new objects.
    fn objects(&self, names: &[(&Path, &Change)]) -> Result<Objects, Reason> {
        let (mut objects, mut bytes) = (Objects::default(), 0u64);
        let (mut packs, mut of_packs) = (BTreeSet::new(), BTreeSet::new());
        for (name, change) in names {
            let parts = folded_parts(name);
            let is_hexadecimal = |name: &str, lengths: &[usize]| {
                lengths.contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
            };
            let pack = match parts.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                ["objects", first, rest]
                    if is_hexadecimal(first, &[2]) && is_hexadecimal(rest, &[38, 62]) =>
                {
                    None
                }
                ["objects", "pack", file] => match file.rsplit_once('.') {
                    Some((stem, kind @ ("pack" | "idx" | "rev"))) => Some((stem.to_owned(), kind == "pack")),
                    _ => continue,
                },
                _ => continue,
            };
            if change.kind == Kind::Deleted {
                continue;
            }
            if name.as_os_str() != parts.iter().collect::<PathBuf>().as_os_str() || change.kind != Kind::File
            {
                return Err(format!("`{}` is not an object", name.display()));
            }
            if self.repository.view.before(&change.path).is_some() {
                self.check_same(&change.path)?;
                continue;
            }
            match pack {
                Some((stem, true)) => packs.insert(stem),
                Some((stem, false)) => of_packs.insert(stem),
                None => false,
            };
            bytes += change.stat.st_size.unsigned_abs();
            let upper = self.layer.upper.as_raw_fd();
            let file = PathBuf::from(format!("/proc/self/fd/{upper}")).join(&change.path);
            objects.new.push((parts.join("/"), file));
        }
        if !of_packs.is_subset(&packs) {
            return Err("an index of objects belongs to no new objects".into());
        }
        if bytes > MAX_BYTES || objects.new.len() > MAX_OBJECTS {
            return Err("there are more than 20,000 new objects, or more than 256 MiB".into());
        }
        let directory = path_of(&self.layer.record.directory);
        objects.git = directory.join(&self.repository.git);
        let shared = self.repository.before(Path::new("objects/info/alternates"))?.unwrap_or_default();
        let lines = shared.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let paths = lines.map(|line| objects.git.join("objects").join(OsStr::from_bytes(line)));
        objects.shared = paths.filter_map(|path| path.canonicalize().ok()).take(MAX_SHARED).collect();
        Ok(objects)
    }

    /// Checks that an object of the host does not change.
    fn check_same(&self, path: &Path) -> Result<(), Reason> {
        let open = |root| {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            open_beneath(root, path, flags, Mode::empty()).map(std::fs::File::from)
        };
        let view = self.repository.view;
        let is_same = match (open(view.host), open(view.upper)) {
            (Ok(mut old), Ok(mut new)) => same_content(&mut old, &mut new).unwrap_or(false),
            _ => false,
        };
        if is_same { Ok(()) } else { Err(format!("the existing object `{}` changes", path.display())) }
    }

    /// The entries that the rules deny.
    fn candidates(&self, entries: &Entries, own: &Index) -> Vec<Candidate> {
        let work_tree = self.work_tree();
        let path_of = |entry: &GitEntry| work_tree.join(OsStr::from_bytes(&entry.path));
        let mut tree = CommittedTree { view: self.repository.view, kinds: HashMap::new() };
        let Entries { committed, indexed, present } = entries;
        for entry in present.iter().chain(indexed).chain(committed).filter(|entry| entry.mode != 0) {
            let path = path_of(entry);
            for above in path.ancestors().skip(1) {
                tree.kinds.entry(above.to_owned()).or_insert(ProtectedEntryKind::Directory);
            }
            tree.kinds.insert(path, kind(entry.mode));
        }
        let mut candidates = Vec::new();
        let is_new = |entry: &&GitEntry| !own.entries.contains(*entry);
        for entry in committed.union(indexed).filter(is_new) {
            let is_indexed = !committed.contains(entry);
            let path = path_of(entry);
            // Git would not check it out. A tree that a program made can have it.
            let parts = entry.path.split(|byte| *byte == b'/');
            let is_invalid = parts.into_iter().any(|part| {
                matches!(part, b"" | b"." | b"..") || fold(&String::from_utf8_lossy(part)) == ".git"
            });
            let is_submodule = entry.mode == SUBMODULE && !self.rules.admits(&path);
            let found = if is_invalid || is_submodule {
                Some(Protection::Repository.into())
            } else {
                self.rules.protection(&path, &tree.at(&path, entry.mode))
            };
            let name = path.file_name().unwrap_or_default();
            let is_attributes = found.is_none()
                && entry.mode != 0
                && fold(&name.to_string_lossy()) == ".gitattributes"
                && !self.rules.admits(&path);
            if let Some(protection) = found.or_else(|| is_attributes.then(|| Protection::Repository.into())) {
                candidates.push(Candidate {
                    path,
                    entry: entry.clone(),
                    protection,
                    is_attributes,
                    is_indexed,
                });
            }
        }
        candidates
    }

    /// The candidates that are neither in the work tree nor in a branch of the user.
    fn denied(
        &self,
        mut candidates: Vec<Candidate>,
        objects: &Objects,
        old: &Old<'_>,
        head: Option<&Id>,
    ) -> Result<Vec<(PathBuf, DenialReason)>, Reason> {
        let rest = candidates.split_off(candidates.len().min(MAX_CANDIDATES));
        // The current commit before and after: if the latter is denied, the index is too.
        let heads = [old.head.as_ref(), head];
        let none = objects.empty_tree().to_owned();
        let tips = heads.map(|head| head.unwrap_or(&none)).into_iter().chain(old.tips.iter().take(MAX_TIPS));
        let tips: Vec<&Id> = tips.collect();
        let texts: Vec<Vec<u8>> =
            candidates.iter().map(|candidate| self.text(candidate).unwrap_or_default()).collect();
        let name = |candidate: &Candidate, tip: &String| {
            let path = std::str::from_utf8(&candidate.entry.path).ok().filter(|path| !path.contains('\n'));
            format!("{tip}:{}", path.unwrap_or_default())
        };
        let names =
            candidates.iter().flat_map(|candidate| tips.iter().map(|tip| name(candidate, tip))).collect();
        let contents: Vec<_> = candidates
            .iter()
            .filter(|candidate| candidate.is_attributes)
            .map(|candidate| hexadecimal(&candidate.entry.id))
            .collect();
        let Found { hashes, ids, contents } = objects.look_up(&texts, names, &contents)?;
        let mut contents = contents.into_iter();
        let mut denied = Vec::new();
        for ((candidate, hash), ids) in candidates.iter().zip(&hashes).zip(ids.chunks_exact(tips.len())) {
            let content = if candidate.is_attributes { contents.next().flatten() } else { None };
            let is_there = self.repository.view.before(&candidate.path).is_some();
            let entry = &candidate.entry;
            let is_equal = |number: usize, id: &Option<ObjectId>| {
                // The second is of the index alone.
                let counts = number != 1 || candidate.is_indexed;
                counts
                    && if entry.mode == 0 {
                        number < 2 && id.is_none()
                    } else {
                        id.as_ref() == Some(&entry.id)
                    }
            };
            let is_in_tips = ids.iter().enumerate().any(|(number, id)| is_equal(number, id));
            let is_own = match entry.mode {
                0 => !is_there || is_in_tips,
                mode => *hash == entry.id && self.has_mode(candidate) || mode == FILE && is_in_tips,
            };
            let adds_nothing = || {
                let content = content.filter(|_| candidate.entry.mode != LINK);
                content.is_some_and(|content| self.adds_no_driver(candidate, &content))
            };
            if !(is_own || candidate.is_attributes && adds_nothing()) {
                denied.push((candidate.path.clone(), DenialReason::Committed(candidate.protection)));
            }
        }
        denied.extend(rest.into_iter().map(|one| (one.path, DenialReason::Committed(one.protection))));
        denied.dedup();
        Ok(denied)
    }

    /// The content of the work tree's entry.
    fn text(&self, candidate: &Candidate) -> Option<Vec<u8>> {
        let host = self.repository.view.host;
        match self.repository.view.before(&candidate.path)? {
            ProtectedEntryKind::Link => {
                let (above, name) = super::live::parent(host, &candidate.path).ok()?;
                let target = rustix::fs::readlinkat(&above, name, Vec::new()).ok()?;
                Some(target.into_bytes())
            }
            ProtectedEntryKind::File => {
                let stat = stat_of(host, &candidate.path).ok()??;
                let is_small = stat.st_size.unsigned_abs() <= MAX_TEXT;
                read(host, &candidate.path).ok().flatten().filter(|_| is_small)
            }
            _ => None,
        }
    }

    /// Whether the work tree's entry has the kind and the executable bit of a candidate.
    fn has_mode(&self, candidate: &Candidate) -> bool {
        let Ok(Some(stat)) = stat_of(self.repository.view.host, &candidate.path) else { return false };
        match (self.repository.view.before(&candidate.path), candidate.entry.mode) {
            (Some(ProtectedEntryKind::File), EXECUTABLE) => stat.st_mode & 0o100 != 0,
            (Some(ProtectedEntryKind::File), FILE) | (Some(ProtectedEntryKind::Link), LINK) => true,
            _ => false,
        }
    }

    fn adds_no_driver(&self, candidate: &Candidate, content: &[u8]) -> bool {
        let before = || self.text(candidate).unwrap_or_default();
        content.len() as u64 <= MAX_ATTRIBUTES && !adds_git_driver(&candidate.path, before, content)
    }
}

fn kind(mode: u32) -> ProtectedEntryKind {
    match mode {
        LINK => ProtectedEntryKind::Link,
        SUBMODULE => ProtectedEntryKind::Directory,
        _ => ProtectedEntryKind::File,
    }
}

/// The work tree with the entries of commits.
struct CommittedTree<'a> {
    view: &'a View<'a>,
    kinds: HashMap<PathBuf, ProtectedEntryKind>,
}

impl CommittedTree<'_> {
    /// Compares one entry: entries of several commits can differ.
    fn at<'a>(&'a self, path: &'a Path, mode: u32) -> CommittedEntry<'a> {
        CommittedEntry { tree: self, path, kind: (mode != 0).then(|| kind(mode)) }
    }
}

struct CommittedEntry<'a> {
    tree: &'a CommittedTree<'a>,
    path: &'a Path,
    kind: Option<ProtectedEntryKind>,
}

impl ChangedTree for CommittedEntry<'_> {
    fn before(&self, path: &Path) -> Option<ProtectedEntryKind> {
        self.tree.view.before(path)
    }

    fn after(&self, path: &Path) -> Option<ProtectedEntryKind> {
        if path == self.path {
            return self.kind;
        }
        self.tree.kinds.get(path).copied().or_else(|| self.before(path))
    }

    /// A commit has no `.git`. A repository in another form, such as one of a test, has no work tree.
    fn judges_commits(&self) -> bool {
        true
    }
}

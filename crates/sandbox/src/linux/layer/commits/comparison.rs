//! Compares trees by git in a sandbox without a network: code wrote the objects.
//!
//! Git gets the new objects as files, and the host's repository read-only. First it checks that the content of each new
//! object has the object's name, because it does not check that when it reads an object.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::index::{GitEntry, ObjectId};
use super::references::{Id, Moves, Reason};
use crate::{Cancel, Level, Limits, Outcome, Program, Sandbox, Source, Stdin};

/// The maximum time of one comparison.
const MAX_TIME: Duration = Duration::from_secs(20);
/// The maximum size of the new objects and of the files of the work tree, in bytes.
pub(super) const MAX_BYTES: u64 = 256 << 20;
/// The maximum number of new objects.
pub(super) const MAX_OBJECTS: usize = 20_000;
/// The maximum output of git, in bytes.
const MAX_OUTPUT: usize = 32 << 20;
/// The exit code for an object whose content does not have its name.
const FORGED: i32 = 10;
/// The exit code for a missing object.
const MISSING: i32 = 12;

const BEGIN: &str = r#"
command -v git >/dev/null || exit 127
export GIT_DIR=g GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_NO_LAZY_FETCH=1 LC_ALL=C
git() { command git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c protocol.allow=never "$@"; }
"#;

/// Arguments: the host's objects, the empty tree, and the host's repository if remote-tracking branches moved.
const COMPARE: &str = r#"
git fsck --no-full --no-dangling --no-progress >&2 &
check=$!
for pack in g/objects/pack/*.pack; do
    [ ! -e "$pack" ] || git index-pack --verify "$pack" >&2 || exit 10
done
export GIT_ALTERNATE_OBJECT_DIRECTORIES="$1"
if [ -n "$3" ]; then
    upstreams=$(git --git-dir="$3" for-each-ref --format='+%(upstream)+' refs/heads) || exit 11
    while read -r id name; do
        case $upstreams in *"+$name+"*) echo "$id" ;; esac
    done <remotes >>commits
fi
git cat-file --batch-check='%(objecttype) %(objectname)' <names >trees || exit 12
while read -r kind old && read -r other new; do
    case $kind in tree) ;; *) old=$2 ;; esac
    case $other in tree) ;; *) exit 12 ;; esac
    echo "$old $new"
done <trees >trees.and.commits
[ ! -s commits ] || git rev-list --stdin <commits >>trees.and.commits || exit 12
# Of a merge, the entries that differ from those of all parents.
git diff-tree --stdin -r -c -z --root --no-renames <trees.and.commits 2>errors || exit 12
[ ! -s errors ] || exit 12
wait $check || exit 10
"#;

/// Argument: the host's objects.
const LOOK_UP: &str = r#"
export GIT_ALTERNATE_OBJECT_DIRECTORIES="$1"
git hash-object --no-filters --stdin-paths <paths || exit 12
echo
git cat-file --batch-check='%(objectname)' <names || exit 12
echo
git cat-file --batch <contents || exit 12
"#;

/// The new objects of a repository, and the host's.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// The host's git data.
    pub(super) git: PathBuf,
    /// The host directories of objects that the repository shares.
    pub(super) shared: Vec<PathBuf>,
    /// The new objects by their path in the repository, and their files.
    pub(super) new: Vec<(String, PathBuf)>,
    /// The commits whose parents are missing.
    pub(super) shallow: Option<Vec<u8>>,
    /// The length of an id in bytes.
    pub(super) id_length: usize,
}

/// A tree of the index, to compare with the one of the current commit.
#[derive(Debug)]
pub(super) struct Pair {
    /// The directory of both trees.
    path: Vec<u8>,
    /// An expression for the tree before; a missing one is empty.
    old: Option<String>,
    new: Id,
}

impl Pair {
    pub(super) fn new(path: &[u8], head: Option<&Id>, tree: &ObjectId) -> Self {
        let text = std::str::from_utf8(path).ok().filter(|text| !text.contains('\n'));
        let old = match (head, text) {
            (Some(head), Some("")) => Some(format!("{head}^{{tree}}")),
            (Some(head), Some(path)) => Some(format!("{head}:{path}")),
            _ => None,
        };
        Self { path: path.to_vec(), old, new: hexadecimal(tree) }
    }

    /// All entries of a tree or commit.
    pub(super) fn whole(path: &[u8], new: Id) -> Self {
        Self { path: path.to_vec(), old: None, new }
    }

    /// All entries of the same tree.
    pub(super) fn to_whole(&self) -> Self {
        Self::whole(&self.path, self.new.clone())
    }
}

/// The new entries. A mode of 0 is a deletion.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) cached: Vec<GitEntry>,
    pub(super) committed: Vec<GitEntry>,
}

/// Ids and contents that were looked up. None for what is missing.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) hashes: Vec<ObjectId>,
    pub(super) ids: Vec<Option<ObjectId>>,
    pub(super) contents: Vec<Option<Vec<u8>>>,
}

/// A file with lines.
fn lines(lines: impl IntoIterator<Item = String>) -> Source {
    let mut text = String::new();
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    Source::Bytes(text.into_bytes())
}

impl Objects {
    /// The id of a tree without entries, which needs no object.
    pub(super) fn empty_tree(&self) -> &'static str {
        match self.id_length {
            32 => "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
            _ => "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
        }
    }

    /// Returns the entries of trees, and those of new commits: ones that no tip leads to.
    pub(super) fn compare(
        &self,
        pairs: &[Pair],
        moves: &Moves,
        tips: &HashSet<Id>,
    ) -> Result<Comparison, Reason> {
        let empty = self.empty_tree();
        let names = pairs.iter().flat_map(|pair| {
            [pair.old.clone().unwrap_or_else(|| empty.into()), format!("{}^{{tree}}", pair.new)]
        });
        let commits = moves.all.iter().cloned().chain(tips.iter().map(|tip| format!("^{tip}")));
        let remotes = moves.remote.iter().map(|(name, id)| format!("{id} {}", name.display()));
        let sandbox = self
            .sandbox()
            .file("names", lines(names))
            .file("commits", lines(commits))
            .file("remotes", lines(remotes));
        let git = if moves.remote.is_empty() { OsString::new() } else { self.git.clone().into_os_string() };
        let output = self.run(&sandbox, COMPARE, [empty.into(), git])?;
        parse(&output, pairs).ok_or_else(|| "git returned an unknown output".to_owned())
    }

    /// Returns the ids of texts, those of `names`, and the contents of objects.
    pub(super) fn look_up(
        &self,
        texts: &[Vec<u8>],
        names: Vec<String>,
        contents: &[Id],
    ) -> Result<Found, Reason> {
        let paths = (0..texts.len()).map(|number| format!("texts/{number}"));
        let (names_count, mut sandbox) = (names.len(), self.sandbox());
        sandbox = sandbox
            .file("paths", lines(paths.clone()))
            .file("names", lines(names))
            .file("contents", lines(contents.iter().cloned()));
        for (path, text) in paths.zip(texts) {
            sandbox = sandbox.file(path, Source::Bytes(text.clone()));
        }
        let output = self.run(&sandbox, LOOK_UP, [])?;
        let parsed = || {
            let mut rest = output.as_slice();
            let hashes = texts.iter().map(|_| id(line(&mut rest)?)).collect::<Option<_>>()?;
            line(&mut rest).filter(|line| line.is_empty())?;
            let ids = (0..names_count).map(|_| Some(id(line(&mut rest)?))).collect::<Option<_>>()?;
            line(&mut rest).filter(|line| line.is_empty())?;
            let contents = contents.iter().map(|_| content(&mut rest)).collect::<Option<_>>()?;
            Some(Found { hashes, ids, contents })
        };
        parsed().ok_or_else(|| "git returned an unknown output".to_owned())
    }

    fn sandbox(&self) -> Sandbox {
        let bytes = |text: &str| Source::Bytes(text.into());
        let limits = Limits::for_level(Level::Standard)
            .with_wall(MAX_TIME)
            .with_memory(1 << 30)
            .with_file_size(2 * MAX_BYTES)
            .with_workspace_bytes(2 * MAX_BYTES)
            .with_workspace_inodes(2 * MAX_OBJECTS as u64 + 1_000)
            .with_stdout(MAX_OUTPUT)
            .with_stderr(4 << 10);
        let mut sandbox = Sandbox::new()
            .level(Level::Standard)
            .limits(limits)
            .read_only(&self.git)
            .stdin(Stdin::Empty)
            .file("g/HEAD", bytes("ref: refs/heads/none\n"))
            .file("g/refs/.none", bytes(""))
            .file("g/objects/info/.none", bytes(""));
        if self.id_length == 32 {
            let format = "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectformat = sha256\n";
            sandbox = sandbox.file("g/config", bytes(format));
        }
        if let Some(shallow) = &self.shallow {
            sandbox = sandbox.file("g/shallow", Source::Bytes(shallow.clone()));
        }
        for shared in &self.shared {
            sandbox = sandbox.read_only(shared);
        }
        for (name, file) in &self.new {
            sandbox = sandbox.file(format!("g/{name}"), Source::Path(file.clone()));
        }
        sandbox
    }

    fn run<const N: usize>(
        &self,
        sandbox: &Sandbox,
        script: &str,
        arguments: [OsString; N],
    ) -> Result<Vec<u8>, Reason> {
        let mut words = vec!["sh".into(), "-c".into(), format!("{BEGIN}{script}").into(), "check".into()];
        words.push(quoted(&self.git.join("objects")));
        words.extend(arguments);
        let outcome = sandbox
            .run(&Program::argv(words), &Cancel::new(), &mut |_| {})
            .map_err(|error| format!("git did not start in a sandbox: {error}"))?;
        match outcome.exit_code {
            Some(0) if outcome.stdout.dropped == 0 => Ok(outcome.stdout.head),
            Some(0) => Err("more than 32 MiB differ".into()),
            Some(127) => Err("git is not installed in a system directory".into()),
            Some(FORGED) => Err("the content of an object does not have the object's name".into()),
            Some(MISSING) => Err("an object is missing".into()),
            _ => Err(format!("git failed: {}", explain(&outcome))),
        }
    }
}

fn explain(outcome: &Outcome) -> String {
    let text = outcome.stderr.text();
    match text.lines().last() {
        Some(line) if outcome.exit_code.is_some() => line.chars().take(200).collect(),
        _ => format!("{:?}", outcome.verdict),
    }
}

/// A path in git's list of object directories.
fn quoted(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b':' | b'"' | b'\\' | b'\n')) {
        return path.into();
    }
    let mut text = vec![b'"'];
    for byte in bytes {
        match byte {
            b'\n' => text.extend_from_slice(b"\\n"),
            b'"' | b'\\' => text.extend_from_slice(&[b'\\', *byte]),
            _ => text.push(*byte),
        }
    }
    text.push(b'"');
    OsString::from_vec(text)
}

pub(super) fn hexadecimal(id: &ObjectId) -> Id {
    use std::fmt::Write as _;
    id.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn id(text: &[u8]) -> Option<ObjectId> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let is_id = [40, 64].contains(&text.len());
    let pairs = text.chunks_exact(2).map(|pair| match pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    });
    pairs.collect::<Option<_>>().filter(|_| is_id)
}

/// Takes a line.
fn line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    until(rest, b'\n')
}

fn until<'a>(rest: &mut &'a [u8], delimiter: u8) -> Option<&'a [u8]> {
    let at = rest.iter().position(|byte| *byte == delimiter)?;
    let (taken, after) = rest.split_at(at);
    *rest = after.get(1..)?;
    Some(taken)
}

/// Takes an object of `cat-file --batch`. The inner value is none for a missing one.
#[expect(clippy::option_option, reason = "a missing object and an unknown output are two answers")]
fn content(rest: &mut &[u8]) -> Option<Option<Vec<u8>>> {
    let head = String::from_utf8_lossy(line(rest)?).into_owned();
    let mut words = head.split(' ').skip(1);
    if words.next() == Some("missing") {
        return Some(None);
    }
    let size: usize = words.next()?.parse().ok()?;
    let content = rest.get(..size)?.to_vec();
    *rest = rest.get(size + 1..)?;
    Some(Some(content))
}

fn parse(output: &[u8], pairs: &[Pair]) -> Option<Comparison> {
    let mut rest = output;
    let mut comparison = Comparison::default();
    let (mut paths, mut path) = (pairs.iter().map(|pair| pair.path.as_slice()), None);
    while let Some(first) = rest.first() {
        if *first != b':' {
            // Two trees end with a line feed, a commit with a NUL byte.
            let end = *rest.iter().find(|byte| matches!(byte, b'\n' | 0))?;
            let text = std::str::from_utf8(until(&mut rest, end)?).ok()?;
            text.split(' ').all(|one| id(one.as_bytes()).is_some()).then_some(())?;
            path = if text.contains(' ') { Some(paths.next()?) } else { None };
            continue;
        }
        let fields = std::str::from_utf8(until(&mut rest, 0)?).ok()?;
        // One mode and id for each tree before, then those of the new one.
        let count = fields.bytes().take_while(|byte| *byte == b':').count();
        let mut fields = fields.trim_start_matches(':').split(' ').skip(count);
        let mode = u32::from_str_radix(fields.next()?, 8).ok()?;
        let id = id(fields.nth(count)?.as_bytes())?;
        let name = until(&mut rest, 0)?;
        match path {
            None => comparison.committed.push(GitEntry { path: name.to_vec(), mode, id }),
            Some(b"") => comparison.cached.push(GitEntry { path: name.to_vec(), mode, id }),
            Some(above) => {
                comparison.cached.push(GitEntry { path: [above, b"/", name].concat(), mode, id });
            }
        }
    }
    paths.next().is_none().then_some(comparison)
}

//! Commits of code: what the user's next git command writes into the work tree.
//!
//! In each row code changes the data of a repository. Then git of the host really runs. A protected file must not be in
//! the work tree afterwards, and ordinary work must be there as a whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use toolpost_sandbox::{
    Applied, Cancel, CellLimits, DenialReason, HeldRun, Language, Program, Protection, Sandbox, Session,
    Workspace,
};

use crate::support::{Mode, quick, skip_without_namespaces};

/// The beginning of each script.
const BEGIN: &str = r#"
set -e
export HOME=/tmp GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_EDITOR=true
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git config --get-all safe.directory >/dev/null || true
git() { command git -c safe.directory='*' "$@"; }
# A commit with a file: MESSAGE PATH. It becomes neither a branch nor a file.
planted() {
    blob=$(echo EVIL | git hash-object -w --stdin)
    GIT_INDEX_FILE=.git/objects/planted git read-tree HEAD
    GIT_INDEX_FILE=.git/objects/planted git update-index --add --cacheinfo "100644,$blob,$1"
    tree=$(GIT_INDEX_FILE=.git/objects/planted git write-tree)
    rm .git/objects/planted
    git commit-tree -p HEAD -m planted "$tree"
}
"#;

/// A repository of a user, and the layers of its runs.
struct World {
    _directory: tempfile::TempDir,
    root: PathBuf,
    layers: tempfile::TempDir,
}

impl World {
    /// A repository with a history, a branch, a remote repository and a linked work tree.
    fn new(format: &str) -> Self {
        let directory = crate::support::open_directory();
        let root = directory.path().canonicalize().unwrap();
        let world = Self { root, _directory: directory, layers: tempfile::tempdir().unwrap() };
        let repo = world.repo();
        world.git_in(&world.root, &["init", "-q", "-b", "main", format, "repo"]);
        world.write("a.txt", "one\n");
        world.write("b/c.txt", "one\n");
        world.write(".vscode/settings.json", "{}\n");
        world.write(".inputrc", "ignore-scripts=true\n");
        world.write("CLAUDE.md", "old\n");
        world.git(&["add", "-f", "."]);
        world.git(&["commit", "-qm", "first"]);
        world.git(&["checkout", "-qb", "side"]);
        world.write("side.txt", "one\n");
        world.write(".vscode/settings.json", "{\"user\": 1}\n");
        world.git(&["add", "-f", "."]);
        world.git(&["commit", "-qm", "side"]);
        world.git(&["checkout", "-q", "main"]);
        world.git_in(&world.root, &["clone", "-q", "--bare", "repo", "remote.git"]);
        world.git(&["remote", "add", "origin", world.root.join("remote.git").to_str().unwrap()]);
        world.git(&["fetch", "-q"]);
        world.git(&["branch", "-q", "--set-upstream-to", "origin/main", "main"]);
        world.git(&["branch", "-q", "linked"]);
        world.git(&["worktree", "add", "-q", "../linked", "linked"]);
        assert!(repo.join(".git").is_dir());
        world
    }

    fn repo(&self) -> PathBuf {
        self.root.join("repo")
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.repo().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[expect(clippy::disallowed_methods, reason = "git of the host, as the user starts it")]
    fn try_git(&self, directory: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(directory).env("HOME", &self.root).env("GIT_EDITOR", "true");
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        for name in ["GIT_AUTHOR", "GIT_COMMITTER"] {
            command.env(format!("{name}_NAME"), "user").env(format!("{name}_EMAIL"), "user@example.org");
        }
        command.output().unwrap()
    }

    fn git_in(&self, directory: &Path, arguments: &[&str]) -> String {
        let output = self.try_git(directory, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn git(&self, arguments: &[&str]) -> String {
        self.git_in(&self.repo(), arguments)
    }

    fn sandbox(&self) -> Sandbox {
        Sandbox::new()
            .workspace(Workspace::Host(self.repo()))
            .layers(self.layers.path())
            .read_only(self.root.join("remote.git"))
            .limits(quick())
    }

    /// Runs a script in the repository.
    fn run(sandbox: &Sandbox, script: &str) -> Applied {
        let script = format!("{BEGIN}{script}");
        let outcome =
            sandbox.run(&Program::argv(["bash", "-c", &script]), &Cancel::new(), &mut |_| {}).unwrap();
        let (printed, failed) = (outcome.stdout.text(), outcome.stderr.text());
        assert_eq!(outcome.exit_code, Some(0), "{script}: {printed} {failed}");
        outcome.applied.unwrap()
    }

    /// The files that code planted, in all work trees.
    fn planted(&self) -> Vec<PathBuf> {
        let (mut found, mut waiting) = (Vec::new(), vec![self.repo(), self.root.join("linked")]);
        while let Some(path) = waiting.pop() {
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if path.ends_with(".git") {
                continue;
            }
            let is_planted = match () {
                () if kind.is_symlink() => fs::read_link(&path).unwrap() == Path::new("EVIL"),
                () if kind.is_dir() => {
                    waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                    path.ends_with("planted-submodule") || path.ends_with(".claude")
                }
                () => fs::read_to_string(&path).is_ok_and(|text| text.contains("EVIL")),
            };
            if is_planted {
                found.push(path);
            }
        }
        found
    }

    /// Runs the next commands of a user, without the name of a file.
    fn work(&self) {
        let commands: [&[&str]; 18] = [
            &["status"],
            &["checkout", "--", "."],
            &["rebase"],
            &["rebase", "--abort"],
            &["merge"],
            &["stash"],
            &["stash", "pop"],
            &["stash", "pop"],
            &["commit", "--allow-empty", "-qm", "of the user"],
            &["checkout", "-q", "-"],
            &["reset", "-q", "--hard"],
            &["merge", "-q", "FETCH_HEAD"],
            &["checkout", "-q", "v1"],
            &["checkout", "-q", "side"],
            &["checkout", "-q", "main"],
            &["merge", "-q", "side"],
            &["reset", "-q", "--hard"],
            &["pull", "-q"],
        ];
        for arguments in commands {
            self.try_git(&self.repo(), arguments);
            let planted = self.planted();
            assert!(planted.is_empty(), "{arguments:?} writes {planted:?}");
        }
        self.try_git(&self.root.join("linked"), &["stash"]);
        self.try_git(&self.root.join("linked"), &["reset", "-q", "--hard"]);
        assert_eq!(self.planted(), Vec::<PathBuf>::new(), "in the linked work tree");
    }
}

fn committed(applied: &Applied) -> Vec<&Path> {
    let is_committed = |reason: &DenialReason| matches!(reason, DenialReason::Committed(_));
    let denied = applied.denied.iter().filter(|denied| is_committed(&denied.reason));
    denied.map(|denied| denied.path.as_path()).collect()
}

/// The steps of the user before the run.
type Setup<'a> = &'a dyn Fn(&World);

/// The expectation of a row: a denied path, or the beginning of the reason for which nothing was checked.
enum Expected {
    Denied(&'static str),
    Unchecked(&'static str),
}

#[test]
fn commits_with_protected_files_wait() {
    use Expected::{Denied, Unchecked};
    if skip_without_namespaces("commits_with_protected_files_wait") {
        return;
    }
    // Another branch of the remote repository, which the user fetched and never checked out.
    let foreign = |world: &World| {
        world.git(&["checkout", "-qb", "foreign"]);
        world.write(".envrc", "EVIL");
        world.git(&["add", "-f", "."]);
        world.git(&["commit", "-qm", "foreign"]);
        world.git(&["update-ref", "refs/remotes/origin/foreign", "HEAD"]);
        world.git(&["checkout", "-q", "main"]);
        world.git(&["branch", "-qD", "foreign"]);
    };
    let nothing = |_: &World| {};
    let tag = |world: &World| drop(world.git(&["tag", "v1"]));
    let work_tree_of_feature =
        |world: &World| drop(world.git(&["config", "extensions.worktreeConfig", "false"]));
    let split = |world: &World| drop(world.git(&["update-index", "--split-index"]));
    let rows: [(&str, Setup<'_>, &str, Expected); 44] = [
        (
            "a commit",
            &nothing,
            "mkdir -p .vscode; echo EVIL > .vscode/tasks.json; git add -f .; git commit -qm x",
            Denied(".vscode/tasks.json"),
        ),
        (
            "several files",
            &nothing,
            "echo EVIL > .envrc; mkdir .claude; echo EVIL > .claude/settings.json; git add -f .; git commit -qm x",
            Denied(".claude/settings.json"),
        ),
        ("an amended commit", &nothing, "echo EVIL > .envrc; git add -f .; git commit -q --amend -m x", Denied(".envrc")),
        (
            "a commit without the file in the work tree",
            &nothing,
            "git update-ref refs/heads/main $(planted .envrc)",
            Denied(".envrc"),
        ),
        (
            "a commit before the last one",
            &nothing,
            "commit=$(planted .envrc); git update-ref refs/heads/main $(git commit-tree -p $commit -m x HEAD^{tree})",
            Denied(".envrc"),
        ),
        (
            "a merge with a file of no parent",
            &nothing,
            "tree=$(git rev-parse $(planted .envrc)^{tree})
             git update-ref refs/heads/main $(git commit-tree -p main -p side -m x $tree)",
            Denied(".envrc"),
        ),
        (
            "a merge",
            &nothing,
            "git checkout -qb x; echo EVIL > .envrc; git add -f .; git commit -qm x; git checkout -q main
             echo two > a.txt; git commit -qam y; git merge -q --no-edit x",
            Denied(".envrc"),
        ),
        (
            "a rebase",
            &nothing,
            "git checkout -qb x; echo EVIL > .envrc; git add -f .; git commit -qm x; git checkout -q main
             echo two > a.txt; git commit -qam y; git checkout -q x; git rebase -q main",
            Denied(".envrc"),
        ),
        ("a stash", &nothing, "echo EVIL > .envrc; git add -f .envrc; git stash -q", Denied(".envrc")),
        (
            "untracked files of a stash",
            &nothing,
            "echo EVIL > .envrc; echo x > x; git stash -q -u",
            Denied(".envrc"),
        ),
        (
            "a stash that is not the last one",
            &nothing,
            "echo EVIL > .envrc; git add -f .envrc; git stash -q; echo two > a.txt; git stash -q",
            Denied(".envrc"),
        ),
        (
            "the index",
            &nothing,
            "blob=$(echo EVIL | git hash-object -w --stdin)
             printf '100644 %s\\t.envrc\\n' $blob | git update-index --add --index-info",
            Denied(".envrc"),
        ),
        (
            "a changed entry of the index",
            &nothing,
            "blob=$(echo EVIL | git hash-object -w --stdin); git update-index --cacheinfo 100644,$blob,.inputrc",
            Denied(".inputrc"),
        ),
        (
            "an index of version 4",
            &nothing,
            "git update-index --index-version 4; echo EVIL > .envrc; git add -f .envrc",
            Denied(".envrc"),
        ),
        (
            "a cached tree of the index",
            &nothing,
            "git read-tree HEAD; tree=$(git rev-parse $(planted .envrc)^{tree}); old=$(git rev-parse HEAD^{tree})
             python3 -c 'import sys
data = open(\".git/index\", \"rb\").read()
old, new = (bytes.fromhex(word) for word in sys.argv[1:])
assert old in data
open(\".git/index\", \"wb\").write(data.replace(old, new))' $old $tree",
            Denied(".envrc"),
        ),
        (
            "a symbolic reference to a new branch",
            &nothing,
            "git update-ref refs/heads/x $(planted .envrc); git symbolic-ref HEAD refs/heads/x",
            Denied(".envrc"),
        ),
        ("a symbolic reference to a fetched branch", &foreign, "git symbolic-ref HEAD refs/remotes/origin/foreign", Denied(".envrc")),
        (
            "a branch that is a symbolic reference",
            &foreign,
            "git symbolic-ref refs/heads/main refs/remotes/origin/foreign",
            Denied(".envrc"),
        ),
        ("a branch that moves to a fetched commit", &foreign, "git update-ref refs/heads/main origin/foreign", Denied(".envrc")),
        (
            "packed references",
            &nothing,
            "git update-ref refs/heads/main $(planted .envrc); git pack-refs --all",
            Denied(".envrc"),
        ),
        (
            "a packed reference behind another one",
            &nothing,
            "commit=$(planted .envrc); main=$(git rev-parse main); git pack-refs --all
             sed -i s,$main\\ refs/heads/main,$commit\\ refs/heads/main, .git/packed-refs
             echo $main > .git/refs/heads/main",
            Denied(".envrc"),
        ),
        (
            "a detached HEAD",
            &nothing,
            "git checkout -q --detach; echo EVIL > .envrc; git add -f .; git commit -qm x",
            Denied(".envrc"),
        ),
        (
            "a new branch",
            &nothing,
            "git checkout -qb x; echo EVIL > .envrc; git add -f .; git commit -qm x",
            Denied(".envrc"),
        ),
        ("another branch of the user", &nothing, "git update-ref refs/heads/side $(planted .envrc)", Denied(".envrc")),
        (
            "a branch without a parent",
            &nothing,
            "git checkout -q --orphan x; echo EVIL > .envrc; git add -f .; git commit -qm x",
            Denied(".envrc"),
        ),
        (
            "the HEAD of a linked work tree",
            &work_tree_of_feature,
            "git update-ref refs/heads/linked $(planted .envrc)",
            Denied(".envrc"),
        ),
        (
            "the branch that the current one follows",
            &nothing,
            "git update-ref refs/remotes/origin/main $(planted .envrc)",
            Denied(".envrc"),
        ),
        ("a tag that moves", &tag, "git tag -f v1 $(planted .envrc)", Denied(".envrc")),
        ("ORIG_HEAD", &nothing, "planted .envrc > .git/ORIG_HEAD", Denied(".envrc")),
        ("MERGE_HEAD", &nothing, "planted .envrc > .git/MERGE_HEAD", Denied(".envrc")),
        ("FETCH_HEAD", &nothing, "echo \"$(planted .envrc)\t\tbranch 'main' of x\" > .git/FETCH_HEAD", Denied(".envrc")),
        (
            "the log of HEAD",
            &nothing,
            "head=$(git rev-parse HEAD); commit=$(planted .envrc)
             echo \"$head $head a <a@b> 1700000000 +0000\tcheckout: moving from $commit to main\tnot-for-merge\t\" >> .git/logs/HEAD",
            Denied(".envrc"),
        ),
        (
            "a submodule",
            &nothing,
            "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),planted-submodule; git commit -qm x",
            Denied("planted-submodule"),
        ),
        (
            "a submodule at a protected name",
            &nothing,
            "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),.claude; git commit -qm x",
            Denied(".claude"),
        ),
        (
            "the file of submodules",
            &nothing,
            "printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = EVIL\\n' > .gitmodules; git add -f .; git commit -qm x",
            Denied(".gitmodules"),
        ),
        (
            "a link at a protected name",
            &nothing,
            "ln -s EVIL .claude; git add -f .; git commit -qm x",
            Denied(".claude"),
        ),
        (
            "a nested directory",
            &nothing,
            "mkdir -p b/d/.vscode; echo EVIL > b/d/.vscode/tasks.json; git add -f .; git commit -qm x",
            Denied("b/d/.vscode/tasks.json"),
        ),
        (
            "another case of the name",
            &nothing,
            "mkdir .VSCODE; echo EVIL > .VSCODE/tasks.json; git add -f .; git commit -qm x",
            Denied(".VSCODE/tasks.json"),
        ),
        (
            "attributes with a driver",
            &nothing,
            "git update-ref refs/heads/main $(printf '*.txt filter=EVIL\\n' > b/.gitattributes; git add -f b; git commit -qm x; git rev-parse HEAD)",
            Denied("b/.gitattributes"),
        ),
        (
            "instructions that existed",
            &nothing,
            "echo EVIL > CLAUDE.md; git commit -qam x",
            Denied("CLAUDE.md"),
        ),
        (
            "a directory that is a repository",
            &nothing,
            "mkdir -p r/objects r/refs; echo EVIL > r/objects/x; echo EVIL > r/refs/x; echo ref: EVIL > r/HEAD
             echo EVIL > r/config; git add -f .; git commit -qm x",
            Denied("r/HEAD"),
        ),
        (
            "an object that replaces another one",
            &nothing,
            "git replace -f HEAD $(planted .envrc)",
            Unchecked("`refs/replace/"),
        ),
        (
            "an object with another content",
            &nothing,
            "tree=$(git rev-parse HEAD^{tree}); new=$(git rev-parse $(planted .envrc)^{tree})
             file=.git/objects/${tree:0:2}/${tree:2}; chmod u+w $file; cat .git/objects/${new:0:2}/${new:2} > $file",
            Unchecked("the existing object"),
        ),
        (
            "a new object with another content",
            &nothing,
            "blob=$(echo x | git hash-object -w --stdin); other=$(echo EVIL | git hash-object -w --stdin)
             file=.git/objects/${blob:0:2}/${blob:2}; chmod u+w $file; cat .git/objects/${other:0:2}/${other:2} > $file",
            Unchecked("the content of an object"),
        ),
    ];
    let more: [(&str, Setup<'_>, &str, Expected); 5] = [
        (
            "packed objects with other names",
            &nothing,
            "echo x > x; git add x; git commit -qm x; git repack -q; index=$(ls .git/objects/pack/*.idx); chmod u+w $index
             printf EVIL | dd of=$index bs=1 seek=1040 conv=notrunc 2>/dev/null",
            Unchecked("the content of an object"),
        ),
        (
            "an index of the user's objects",
            &|world: &World| drop(world.git(&["repack", "-qad"])),
            "index=$(ls .git/objects/pack/*.idx); chmod u+w $index; echo EVIL >> $index",
            Unchecked("the existing object"),
        ),
        ("a split index", &split, "echo x > x; git add x", Unchecked("the index is not readable: it is a split index")),
        (
            "a missing commit",
            &nothing,
            "echo 1111111111111111111111111111111111111111 > .git/refs/heads/main",
            Unchecked("an object is missing"),
        ),
        ("an invalid reference", &nothing, "echo EVIL > .git/refs/heads/main", Unchecked("`refs/heads/main` is not")),
    ];
    for (name, setup, script, expected) in rows.into_iter().chain(more) {
        let world = World::new("--object-format=sha1");
        setup(&world);
        let before = world.git(&["rev-parse", "HEAD"]);
        let applied = World::run(&world.sandbox(), script);
        assert!(applied.held_count > 0, "{name}: {applied:?}");
        match expected {
            Denied(path) => {
                assert!(committed(&applied).contains(&Path::new(path)), "{name}: {applied:?}");
                assert_eq!(applied.failed_count, 0, "{name}: {applied:?}");
            }
            Unchecked(text) => {
                let reason = &applied.denied[0].message;
                assert!(
                    reason.starts_with(&format!("its commits were not checked: {text}")),
                    "{name}: {reason}"
                );
                assert_eq!(applied.failed_count, 1, "{name}: {applied:?}");
            }
        }
        assert_eq!(world.git(&["rev-parse", "HEAD"]), before, "{name}");
        world.git(&["fsck", "--no-dangling"]);
        world.work();
    }
}

#[test]
fn ordinary_work_is_applied_as_a_whole() {
    if skip_without_namespaces("ordinary_work_is_applied_as_a_whole") {
        return;
    }
    // The remote repository has a commit that this one misses.
    let pushed = |world: &World| {
        world.git_in(&world.root, &["clone", "-q", "remote.git", "other"]);
        let other = world.root.join("other");
        fs::write(other.join("pushed.txt"), "one\n").unwrap();
        world.git_in(&other, &["add", "."]);
        world.git_in(&other, &["commit", "-qm", "pushed"]);
        world.git_in(&other, &["push", "-q", "origin", "main"]);
        // A branch that no branch follows.
        world.git_in(&other, &["checkout", "-qb", "foreign"]);
        fs::write(other.join(".envrc"), "of another user\n").unwrap();
        world.git_in(&other, &["add", "-f", "."]);
        world.git_in(&other, &["commit", "-qm", "foreign"]);
        world.git_in(&other, &["push", "-q", "origin", "foreign"]);
    };
    let instructions = |world: &World| world.write("CLAUDE.md", "of the user\n");
    let staged = |world: &World| {
        world.write(".vscode/tasks.json", "of the user\n");
        world.git(&["add", "-f", ".vscode/tasks.json"]);
        fs::remove_file(world.repo().join(".vscode/tasks.json")).unwrap();
    };
    let removed = |world: &World| fs::remove_file(world.repo().join(".inputrc")).unwrap();
    let drivers = |world: &World| world.write(".gitattributes", "*.bin diff=hex\n");
    let packed = |world: &World| drop(world.git(&["gc", "-q"]));
    let edited = |world: &World| {
        world.write(".vscode/settings.json", "{\"edited\": 1}\n");
        world.git(&["commit", "-qam", "edited"]);
    };
    let shallow = |world: &World| {
        edited(world);
        world.git(&["push", "-q", "origin", "main"]);
        fs::remove_dir_all(world.repo()).unwrap();
        let url = format!("file://{}/remote.git", world.root.display());
        world.git_in(&world.root, &["clone", "-q", "--depth", "1", &url, "repo"]);
    };
    let nothing = |_: &World| {};
    let rows: [(&str, Setup<'_>, &str, &str); 30] = [
        // Name, what the user did before, script, and the last commit.
        ("a commit", &nothing, "echo two > a.txt; git commit -qam second", "second"),
        ("a file beside a protected one", &nothing, "mkdir -p b; echo x > b/new; git add .; git commit -qm new", "new"),
        ("an amended commit", &nothing, "echo two > a.txt; git commit -qa --amend -m changed", "changed"),
        ("a branch", &nothing, "git checkout -qb x; echo two > a.txt; git commit -qam x", "x"),
        (
            "a merge",
            &nothing,
            "git checkout -qb x; echo x > x; git add .; git commit -qm x; git checkout -q main; echo two > a.txt
             git commit -qam y; git merge -q -m merged x",
            "merged",
        ),
        (
            "a rebase",
            &nothing,
            "git checkout -qb x; echo x > x; git add .; git commit -qm x; git checkout -q main; echo two > a.txt
             git commit -qam y; git checkout -q x; git rebase -q main; git branch -f main x; git checkout -q main",
            "x",
        ),
        ("a stash", &nothing, "echo two > a.txt; git stash -q; git stash pop -q; git commit -qam stashed", "stashed"),
        ("an ordinary stash that stays", &nothing, "echo two > a.txt; git stash -q", "first"),
        ("a cherry-pick", &nothing, "git checkout -qb x; echo x > x; git add .; git commit -qm x; git checkout -q main; git cherry-pick x", "x"),
        ("a reset", &nothing, "echo two > a.txt; git commit -qam second; git reset -q --hard HEAD~", "first"),
        ("a reset to an older commit of the user", &edited, "git reset -q HEAD~", "first"),
        ("a detached HEAD", &edited, "git checkout -q --detach; echo two > a.txt; git commit -qam detached", "detached"),
        ("a shallow clone", &shallow, "echo two > a.txt; git commit -qam second; git gc -q", "second"),
        ("a tag", &nothing, "git tag v1; git tag -a v2 -m x; echo two > a.txt; git commit -qam second", "second"),
        ("a pull", &pushed, "git pull -q", "pushed"),
        ("a pull with a rebase", &pushed, "echo two > a.txt; git commit -qam own; git pull -q --rebase", "own"),
        ("a fetch", &pushed, "git fetch -q", "first"),
        ("packed references", &nothing, "echo two > a.txt; git commit -qam second; git pack-refs --all", "second"),
        ("collected garbage", &nothing, "echo two > a.txt; git commit -qam second; git gc -q", "second"),
        ("a repository that is packed", &packed, "echo two > a.txt; git commit -qam second; git gc -q --aggressive", "second"),
        ("a cache of commits", &packed, "echo two > a.txt; git commit -qam second; git commit-graph write --reachable", "second"),
        ("an index of version 4", &nothing, "git update-index --index-version 4; echo x > x; git add x; git commit -qm x", "x"),
        ("many files", &nothing, "for i in $(seq 300); do echo $i > b/$i; done; git add .; git commit -qm many", "many"),
        ("the user's instructions", &instructions, "git commit -qam instructions", "instructions"),
        ("a file that the user staged", &staged, "git commit -qm staged", "staged"),
        ("a file that the user removed", &removed, "git commit -qam removed", "removed"),
        ("drivers that the user named", &drivers, "git add .; git commit -qm drivers", "drivers"),
        ("attributes without a driver", &nothing, "echo '*.txt text' > .gitattributes; git add .; git commit -qm text", "text"),
        ("a branch of the user", &nothing, "git branch -q copy side; echo two > a.txt; git commit -qam second", "second"),
        (
            "a merge of a branch of the user",
            &nothing,
            "tree=$(git merge-tree --write-tree main side | head -1)
             git update-ref refs/heads/main $(git commit-tree -p main -p side -m merged $tree)",
            "merged",
        ),
    ];
    for format in ["--object-format=sha1", "--object-format=sha256"] {
        let count = if format.ends_with('1') { rows.len() } else { 8 };
        for (name, setup, script, last) in rows.iter().take(count) {
            let world = World::new(format);
            setup(&world);
            let applied = World::run(&world.sandbox(), script);
            // `git gc` writes files that only other programs read.
            let others = [".git/info/refs", ".git/worktrees/linked/logs/HEAD"].map(Path::new);
            let denied = applied.denied.iter().filter(|denied| !others.contains(&denied.path.as_path()));
            let state = (applied.held_count, denied.count(), applied.failed_count);
            assert_eq!(state, (0, 0, 0), "{name}, {format}: {applied:?}");
            assert_eq!(world.git(&["log", "-1", "--format=%s"]).trim(), *last, "{name}, {format}");
            world.git(&["fsck", "--no-dangling"]);
            assert!(!world.repo().join(".git/objects/info/commit-graph").exists(), "{name}");
        }
    }
}

#[test]
fn a_first_commit_is_judged_by_the_work_tree() {
    if skip_without_namespaces("a_first_commit_is_judged_by_the_work_tree") {
        return;
    }
    let rows = [
        ("git add -f .; git commit -qm x", None),
        ("echo EVIL > .envrc; git add -f .; git commit -qm x", Some(".envrc")),
        ("echo EVIL > .inputrc; git add -f .; git commit -qm x", Some(".inputrc")),
        ("chmod +x .inputrc; git add -f .; git commit -qm x", Some(".inputrc")),
    ];
    for (script, expected) in rows {
        let world = World::new("--object-format=sha1");
        fs::remove_dir_all(world.repo().join(".git")).unwrap();
        world.git(&["init", "-q", "-b", "main"]);
        let applied = World::run(&world.sandbox(), script);
        let denied: Vec<_> = expected.iter().map(Path::new).collect();
        assert_eq!(committed(&applied), denied, "{script}: {applied:?}");
        assert_eq!(applied.held_count > 0, expected.is_some(), "{script}");
    }
}

#[test]
fn a_repository_is_not_committed_in_two_halves() {
    if skip_without_namespaces("a_repository_is_not_committed_in_two_halves") {
        return;
    }
    let world = World::new("--object-format=sha1");
    let first = "mkdir -p r/objects r/refs; echo x > r/objects/x; echo x > r/refs/x; git add -f r; git commit -qm x; rm -r r";
    assert_eq!(World::run(&world.sandbox(), first).denied, []);
    let second = "mkdir r; echo ref: EVIL > r/HEAD; echo EVIL > r/config; git add -f r/HEAD r/config; git commit -qm y; rm -r r";
    let applied = World::run(&world.sandbox(), second);
    assert!(committed(&applied).contains(&Path::new("r/config")), "{applied:?}");
    world.work();
}

#[test]
fn held_commits_are_applied_by_consent() {
    if skip_without_namespaces("held_commits_are_applied_by_consent") {
        return;
    }
    let world = World::new("--object-format=sha1");
    let script = "echo EVIL > .envrc; echo two > a.txt; git add -f .; git commit -qm second";
    let applied = World::run(&world.sandbox(), script);
    // The work tree is applied, and the objects.
    assert_eq!(fs::read_to_string(world.repo().join("a.txt")).unwrap(), "two\n");
    let is_start_file = |reason: &DenialReason| matches!(reason, DenialReason::Committed(rule) if rule.kind == Protection::StartFile);
    assert!(applied.denied.iter().any(|denied| is_start_file(&denied.reason)), "{applied:?}");
    let find = || HeldRun::find(&applied.id, Some(world.layers.path())).unwrap();
    let again = find().apply(&[]).unwrap();
    assert!(again.held_count > 0 && committed(&again) == [Path::new(".envrc")], "{again:?}");
    assert_eq!(world.git(&["log", "-1", "--format=%s"]).trim(), "first");
    let allowed = find().apply(&[".envrc".into()]).unwrap();
    assert_eq!((allowed.held_count, allowed.denied.len()), (0, 0), "{allowed:?}");
    assert_eq!(world.git(&["log", "-1", "--format=%s"]).trim(), "second");
    assert_eq!(world.git(&["status", "--short"]), "");
    find().undo().unwrap();
    assert_eq!(world.git(&["log", "-1", "--format=%s"]).trim(), "first");
    // From the beginning.
    let world = World::new("--object-format=sha1");
    for allowed in [".envrc", ".git", "."] {
        let applied = World::run(&world.sandbox().allow_protected([allowed.into()]), script);
        assert_eq!(committed(&applied), Vec::<&Path>::new(), "{allowed}: {applied:?}");
        world.git(&["reset", "-q", "--hard", "HEAD~"]);
    }
}

#[test]
fn commits_wait_in_every_kind_of_host_directory() {
    for mode in Mode::available() {
        let world = World::new("--object-format=sha1");
        let workspace = Workspace::Host(world.repo());
        let sandbox = || mode.sandbox().workspace(workspace.clone()).layers(world.layers.path());
        let begin = "cd \"${TOOLPOST_WORKDIR:-.}\"; ";
        let script = format!("{begin} echo two > a.txt; git commit -qam second");
        let applied = World::run(&sandbox(), &script);
        assert_eq!(applied.denied, [], "{mode:?}");
        assert_eq!(world.git(&["log", "-1", "--format=%s"]).trim(), "second", "{mode:?}");
        let script = format!("{begin} echo EVIL > .envrc; git add -f .; git commit -qm third");
        let applied = World::run(&sandbox(), &script);
        assert!(committed(&applied).contains(&Path::new(".envrc")), "{mode:?}: {applied:?}");
        assert_eq!(world.git(&["log", "-1", "--format=%s"]).trim(), "second", "{mode:?}");
        world.work();
    }
}

#[test]
fn commits_of_a_session_wait_until_they_are_ordinary() {
    for mode in Mode::available() {
        let world = World::new("--object-format=sha1");
        let workspace = Workspace::Host(world.repo());
        let sandbox = mode.sandbox().workspace(workspace).layers(world.layers.path());
        let Ok(session) = Session::start(&sandbox, Language::Python) else {
            println!("SKIP {mode:?}: it has no sessions");
            continue;
        };
        let run = |script: &str| {
            let script = format!("cd \"${{TOOLPOST_WORKDIR:-.}}\"; {BEGIN}{script}").replace('\\', "\\\\");
            let code =
                format!("import subprocess\nsubprocess.run(['bash', '-c', r'''{script}'''], check=True)");
            let outcome = session.run(&code, &CellLimits::default(), &Cancel::new(), &mut |_| {}).unwrap();
            assert_eq!(outcome.exit_code, Some(0), "{mode:?}: {} {:?}", outcome.stderr.text(), outcome.value);
            outcome.applied
        };
        let last = || world.git(&["log", "-1", "--format=%s"]).trim().to_owned();
        run("echo two > a.txt; git commit -qam second");
        assert_eq!(last(), "second", "{mode:?}");
        let applied = run("echo EVIL > .envrc; git add -f .; git commit -qm third").unwrap();
        assert!(committed(&applied).contains(&Path::new(".envrc")), "{mode:?}: {applied:?}");
        assert_eq!(last(), "second", "{mode:?}");
        run(
            "git rm -q --cached .envrc; git commit -q --amend --allow-empty -m fourth; git log --format=%s | cat",
        );
        assert_eq!(last(), "second", "{mode:?}: the log still has the commit");
        run(
            "git reset -q --hard HEAD~; git reflog expire --expire=now --all; echo x > x; git add x; git commit -qm fifth",
        );
        assert_eq!(last(), "fifth", "{mode:?}");
        run("echo EVIL > .envrc; git add -f .; git commit -qm sixth");
        drop(session);
        assert_eq!(last(), "fifth", "{mode:?}");
        let held =
            HeldRun::all(Some(world.layers.path())).into_iter().find(|run| run.directory() == world.repo());
        let allowed = held.unwrap().apply(&[".envrc".into()]).unwrap();
        assert_eq!((allowed.held_count, allowed.denied.len()), (0, 0), "{mode:?}: {allowed:?}");
        assert_eq!(last(), "sixth", "{mode:?}");
        world.git(&["fsck", "--no-dangling"]);
    }
}

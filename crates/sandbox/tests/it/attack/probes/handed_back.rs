//! Row 58: what a run leaves in a host directory. Host programs run afterwards and must execute none of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use toolpost_sandbox::{ProtectedEntryKind, SingleChange};
use toolpost_sandbox::{Workspace, protection};

use crate::attack::expected::{OK, all};
use crate::attack::{Place, Probe, Who, host};
use crate::support::{open_directory, python};

/// The host directory has neither a layer nor a private copy.
const NO_LAYER: &[(Who, &str)] = &[
    (Who::Level("minimal"), "there is no private layer, and the report says so"),
    (Who::Backend("docker"), "a container is given a copy; the tests of that backend hold what comes back"),
];

pub(crate) const PROBES: &[Probe] = &[
    host(58, "start files and settings", start_files, all(OK)).not_for(NO_LAYER),
    host(58, "files of an editor and of direnv", opened, all(OK)).not_for(NO_LAYER),
    host(58, "a bare repository at the top", bare_at_the_top, all(OK)).not_for(NO_LAYER),
    host(58, "a bare repository in a subdirectory", bare_below, all(OK)).not_for(NO_LAYER),
    host(58, "a repository in two halves", halves, all(OK)).not_for(NO_LAYER),
    host(58, "a new `.git`, as a directory and as a file", new_git, all(OK)).not_for(NO_LAYER),
    host(58, "70 decoys of repositories", decoys, all(OK)).not_for(NO_LAYER),
    host(58, "hooks, settings and a rebase in a repository", existing_git, all(OK)).not_for(NO_LAYER),
    host(58, "names in other spellings, and links", spellings, all(OK)).not_for(NO_LAYER),
    host(58, "whiteout of the whole tree", whiteout, all(OK)).not_for(NO_LAYER),
    host(58, "attributes of an overlay in a host directory", forged, all(OK)).not_for(NO_LAYER),
    host(31, "a Unix socket in the working directory", socket, all(OK)).not_for(NO_LAYER),
];

/// The maximum number of subdirectories in which host programs run.
const MAX_PLACES: usize = 12;
/// The text that the code writes where it must not run.
const CANARY: &str = "executed";

/// Helpers of each attack.
const HELPER: &str = "import os\ndef put(path, text='touch executed\\n'):\n    \
     os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n    open(path, 'w').write(text)\n";

/// Runs code in a directory, then the usual actions of a person.
fn attack(place: &Place<'_>, setup: &dyn Fn(&Path), codes: &[&str]) -> String {
    attack_with(place, setup, codes, &[])
}

/// A variant with more host programs.
fn attack_with(place: &Place<'_>, setup: &dyn Fn(&Path), codes: &[&str], others: &[&[&str]]) -> String {
    let directory = open_directory();
    setup(directory.path());
    std::fs::write(directory.path().join("notes"), "before").unwrap();
    for code in codes {
        let code = format!("{HELPER}open('notes', 'a').write('x')\n{code}\n0");
        let outcome = python(&place.sandbox().workspace(Workspace::Host(directory.path().to_owned())), &code);
        if !outcome.verdict.is_ok() {
            return format!("{:?} {}", outcome.verdict, outcome.stderr.text());
        }
    }
    if std::fs::read_to_string(directory.path().join("notes")).unwrap() == "before" {
        return "the rest was not applied".into();
    }
    use_directory(directory.path(), others);
    let mut directories = vec![directory.path().to_owned()];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(&next).unwrap().flatten() {
            if entry.file_name() == CANARY {
                return format!("code was executed in {}", next.display());
            }
            if entry.path().symlink_metadata().unwrap().is_dir() {
                directories.push(entry.path());
            }
        }
    }
    "ok".into()
}

/// Programs that read settings of their directory. Package managers take half a second each.
const OTHERS: [&[&str]; 4] = [
    &["bash", "-lic", "true"],
    &["npm", "config", "list"],
    &["pip", "config", "list"],
    &["cargo", "--version"],
];

/// A person opens a file, a shell and a console, and a shell with direnv enters the directory.
const OPENS: [&[&str]; 14] = [
    &["vim", "-n", "-T", "dumb", "--not-a-term", "-c", "qall!", "notes"],
    &["nvim", "--headless", "+qall", "notes"],
    &["direnv", "export", "bash"],
    &["bash", "-lic", "true"],
    &["bash", "-ic", "true"],
    &["zsh", "-lic", "true"],
    &["fish", "-lic", "true"],
    &["perl", "-d", "-e", "1"],
    &["/usr/bin/python3", "-m", "pdb", "-c", "q", "notes"],
    &["R", "--no-save", "-q", "-e", "1"],
    &["octave", "--eval", "1"],
    &["gdb", "-batch"],
    &["hg", "status"],
    &["ghci", "-e", "1"],
];

/// Actions of people and their programs in a directory that should execute nothing.
fn use_directory(top: &Path, others: &[&[&str]]) {
    const GIT: [&[&str]; 5] = [
        &["git", "status"],
        &["git", "log"],
        &["git", "diff"],
        &["git", "rebase", "--continue"],
        &["git", "commit", "--allow-empty", "-m", "x"],
    ];
    let below = std::fs::read_dir(top).unwrap().flatten().map(|entry| entry.path());
    let mut places: Vec<PathBuf> = below.filter(|path| path.is_dir()).take(MAX_PLACES).collect();
    places.push(top.to_owned());
    for place in &places {
        let others = if place == top { others } else { &[] };
        for arguments in GIT.iter().chain(others) {
            let [program, rest @ ..] = arguments else { continue };
            #[expect(
                clippy::disallowed_methods,
                reason = "the host's side, which must stay free of the code"
            )]
            let mut command = Command::new(program);
            command.args(rest).current_dir(place).env("HOME", top).env("GIT_TERMINAL_PROMPT", "0");
            command.env("GIT_AUTHOR_NAME", "a").env("GIT_AUTHOR_EMAIL", "a").env("GIT_EDITOR", "true");
            command.env("GIT_COMMITTER_NAME", "a").env("GIT_COMMITTER_EMAIL", "a");
            command.stdin(std::process::Stdio::null());
            // A missing program executes nothing.
            let _ = command.output();
        }
    }
}

const NOTHING: &dyn Fn(&Path) = &|_| {};

const REPOSITORY: &str = "
def bare(d):
    for inner in ('objects', 'refs', 'hooks'): os.makedirs(d + inner, exist_ok=True)
    put(d + 'HEAD', 'ref: refs/heads/main\\n')
    put(d + 'config', '[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tworktree = .\\n\\tfsmonitor = touch executed; false\\n')
";

fn start_files(place: &Place<'_>) -> String {
    attack_with(place, NOTHING, &["for name in ('.bashrc', '.bash_profile', '.profile', '.bash_login', '.inputrc', '.envrc',
     '.npmrc', '.gitconfig', 'pip.conf', '.cargo/config.toml', 'rust-toolchain.toml', '.vscode/tasks.json', '.mcp.json',
     '.claude/settings.json', '.husky/pre-commit', '.ssh/rc', '.config/git/config', '.config/pip/pip.conf', '.pdbrc'): put(name)
put('.gitconfig', '[core]\\n\\tfsmonitor = touch executed; false\\n')
put('sub/.bashrc')"], &OTHERS)
}

/// A file that direnv does not allow.
fn refused_file(directory: &Path) {
    std::fs::write(directory.join(".envrc"), "touch executed\n").unwrap();
}

/// A Mercurial repository.
fn mercurial(directory: &Path) {
    for name in ["store", "cache"] {
        std::fs::create_dir_all(directory.join(".hg").join(name)).unwrap();
    }
    std::fs::write(directory.join(".hg/requires"), "revlogv1\nstore\n").unwrap();
}

/// A program of [`OPENS`], the host's files before, and code that plants a file so that the program runs the
/// canary.
type Planted = (&'static str, &'static dyn Fn(&Path), &'static str);

const PLANTED: [Planted; 18] = [
    ("bash", NOTHING, "put('.bashrc')"),
    ("bash", NOTHING, "put('.bash_profile')"),
    ("zsh", NOTHING, "put('.zshrc')"),
    ("zsh", NOTHING, "put('.zshenv')"),
    ("fish", NOTHING, "put('.config/fish/config.fish')"),
    ("perl", NOTHING, "put('.perldb', 'system(\"touch executed\");\\n')"),
    (
        "/usr/bin/python3",
        NOTHING,
        "put('.pdbrc', 'import os; os.system(\"touch executed\")\\n')\nput('notes', '1\\n')",
    ),
    (
        "/usr/bin/python3",
        NOTHING,
        "for minor in range(8, 20): put(f'.local/lib/python3.{minor}/site-packages/x.pth', \
         'import os; os.system(\"touch executed\")\\n')",
    ),
    ("R", NOTHING, "put('.Rprofile', 'system(\"touch executed\")\\n')"),
    ("gdb", NOTHING, "put('.gdbinit', 'shell touch executed\\n')"),
    ("octave", NOTHING, "put('.octaverc', 'system(\"touch executed\");\\n')"),
    ("nvim", NOTHING, "put('.config/nvim/init.vim', 'silent !touch executed\\n')"),
    ("vim", NOTHING, "put('.vimrc', 'silent !touch executed\\n')"),
    ("vim", NOTHING, "put('.vim/plugin/x.vim', 'silent !touch executed\\n')"),
    ("direnv", &refused_file, "put('.config/direnv/direnv.toml', '[whitelist]\\nprefix = [\"/\"]\\n')"),
    (
        "direnv",
        &refused_file,
        "import hashlib\npath = os.path.realpath('.envrc')\nput('.local/share/direnv/allow/' + \
         hashlib.sha256((path + '\\n' + open(path).read()).encode()).hexdigest(), path)",
    ),
    ("hg", &mercurial, "put('.hg/hgrc', '[hooks]\\npre-status = touch executed\\n')"),
    ("ghci", NOTHING, "put('.ghci', ':!touch executed\\n')"),
];

fn opened(place: &Place<'_>) -> String {
    let answers = PLANTED.map(|(_, setup, code)| attack_with(place, setup, &[code], &OPENS));
    answers.into_iter().find(|answer| answer != "ok").unwrap_or_else(|| "ok".into())
}

/// Without a sandbox the planted files execute: otherwise the probe would prove nothing.
#[test]
fn planted_files_execute_without_a_sandbox() {
    for (program, setup, code) in PLANTED {
        #[expect(clippy::disallowed_methods, reason = "whether the host has the program")]
        let is_there = Command::new(program).arg("--version").output().is_ok();
        if !is_there {
            println!("SKIP {program}: not installed");
            continue;
        }
        let directory = open_directory();
        setup(directory.path());
        let code = format!("{HELPER}{code}");
        #[expect(clippy::disallowed_methods, reason = "the control of the probe, without a sandbox")]
        let status = Command::new("python3").args(["-c", &code]).current_dir(directory.path()).status();
        assert!(status.unwrap().success(), "{code}");
        use_directory(directory.path(), &OPENS);
        assert!(directory.path().join(CANARY).exists(), "{program} did not execute: {code}");
    }
}

fn bare_at_the_top(place: &Place<'_>) -> String {
    attack(place, NOTHING, &[&format!("{REPOSITORY}bare('')")])
}

fn bare_below(place: &Place<'_>) -> String {
    attack(place, NOTHING, &[&format!("{REPOSITORY}bare('lib/')\nbare('deep/er/')")])
}

fn halves(place: &Place<'_>) -> String {
    let first = format!("{REPOSITORY}bare('d/')\nos.rmdir('d/refs')");
    attack(
        place,
        NOTHING,
        &[&first, "os.makedirs('d/refs', exist_ok=True)", "os.makedirs('d/refs/heads', exist_ok=True)"],
    )
}

fn new_git(place: &Place<'_>) -> String {
    attack(
        place,
        NOTHING,
        &[&format!(
            "{REPOSITORY}bare('new/.git/')\nbare('real/')\nput('sub/.git', 'gitdir: ../real\\n')\nbare('third/.GIT/')\n\
         put('fourth/.git.', 'gitdir: ../real\\n')"
        )],
    )
}

fn decoys(place: &Place<'_>) -> String {
    attack(place, NOTHING, &[&format!("{REPOSITORY}for number in range(70): bare('r%d/.git/' % number)")])
}

fn existing_git(place: &Place<'_>) -> String {
    let setup = |directory: &Path| {
        #[expect(clippy::disallowed_methods, reason = "the host's own repository")]
        let made = Command::new("git").args(["init", "-q"]).current_dir(directory).status();
        assert!(made.is_ok_and(|status| status.success()));
    };
    attack(place, &setup, &["put('.git/config', '[core]\\n\\tfsmonitor = touch executed; false\\n\\trepositoryformatversion = 0\\n')
for hook in ('pre-commit', 'post-checkout', 'post-index-change', 'reference-transaction'):
    put('.git/hooks/' + hook, '#!/bin/sh\\ntouch executed\\n'); os.chmod('.git/hooks/' + hook, 0o755)
put('.git/rebase-merge/git-rebase-todo', 'exec touch executed\\n')
for name in ('head-name', 'onto', 'orig-head', 'msgnum', 'end'): put('.git/rebase-merge/' + name, '1\\n')
put('.git/info/attributes', '* filter=evil\\n')
put('.git/commondir', '../common\\n')
put('common/config', '[core]\\n\\tfsmonitor = touch executed; false\\n')
put('.gitattributes', '* filter=evil\\n')
os.makedirs('.git/modules/x', exist_ok=True)"])
}

/// Names are denied in each spelling that a file system or a program treats as equal.
fn spellings(place: &Place<'_>) -> String {
    let names = [
        ".BashRC",
        ".bashrc.",
        ".bashrc ",
        ".bash\u{200b}rc",
        ".GIT/config",
        "git~1/config",
        ".ſsh/rc",
        ".Vscode/tasks.json",
    ];
    let directory = open_directory();
    let text = serde_json::to_string(&names).unwrap();
    let code = format!(
        "import os\nfor name in {text}:\n    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)\n    open(name, 'w').write('x')\n\
         os.makedirs('evil', exist_ok=True)\nopen('evil/config.toml', 'w').write('x')\nos.symlink('evil', '.cargo')\n\
         os.symlink('/etc', '.ssh')\nos.symlink('evil', '.claude')\n0"
    );
    let outcome = python(&place.sandbox().workspace(Workspace::Host(directory.path().to_owned())), &code);
    if !outcome.verdict.is_ok() {
        return format!("{:?} {}", outcome.verdict, outcome.stderr.text());
    }
    let links = [".cargo", ".ssh", ".claude"];
    match names.iter().chain(&links).find(|name| directory.path().join(name).symlink_metadata().is_ok()) {
        None => "ok".into(),
        Some(name) => format!("{name:?} is on the host"),
    }
}

fn whiteout(place: &Place<'_>) -> String {
    let directory = open_directory();
    for number in 0..5 {
        std::fs::create_dir_all(directory.path().join(format!("d{number}/e"))).unwrap();
        for file in 0..5 {
            std::fs::write(directory.path().join(format!("d{number}/e/file{file}")), "x").unwrap();
        }
    }
    let code = "import os, shutil\nfor name in os.listdir('.'): shutil.rmtree(name)\n0";
    let outcome = python(&place.sandbox().workspace(Workspace::Host(directory.path().to_owned())), code);
    if !outcome.verdict.is_ok() {
        return format!("{:?} {}", outcome.verdict, outcome.stderr.text());
    }
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    if left == 5 { "ok".into() } else { format!("{left} of 5 directories are left") }
}

/// Forged overlay attributes on a host directory have no effect.
fn forged(place: &Place<'_>) -> String {
    let directory = open_directory();
    std::fs::create_dir(directory.path().join("d")).unwrap();
    std::fs::write(directory.path().join("d/file"), "x").unwrap();
    let opened = std::fs::File::open(directory.path().join("d")).unwrap();
    for (name, value) in [
        ("user.overlay.opaque", &b"y"[..]),
        ("user.overlay.redirect", b"/etc"),
        ("user.overlay.origin", b"x"),
    ] {
        let _ = rustix::fs::fsetxattr(&opened, name, value, rustix::fs::XattrFlags::empty());
    }
    let code = "import os\nopen('d/new', 'w').write('n')\n\
                try: os.setxattr('d', 'user.overlay.opaque', b'y')\nexcept OSError: pass\nsorted(os.listdir('d'))";
    let outcome = python(&place.sandbox().workspace(Workspace::Host(directory.path().to_owned())), code);
    if outcome.value.as_ref().is_none_or(|value| value.to_string().contains("passwd")) {
        return format!("{:?} {}", outcome.value, outcome.stderr.text());
    }
    if std::fs::read_to_string(directory.path().join("d/file")).is_ok_and(|text| text == "x") {
        return "ok".into();
    }
    "a file of the host is gone".into()
}

fn socket(place: &Place<'_>) -> String {
    let directory = open_directory();
    let _listener = std::os::unix::net::UnixListener::bind(directory.path().join("daemon.sock")).unwrap();
    let code = "import socket\ntry:\n    socket.socket(socket.AF_UNIX).connect('daemon.sock'); found = 'connected'\n\
                except OSError: found = 'ok'\nfound";
    let outcome = python(&place.sandbox().workspace(Workspace::Host(directory.path().to_owned())), code);
    match outcome.value {
        Some(serde_json::Value::String(found)) => found,
        // At level `maximum` a socket ends the program.
        other if matches!(outcome.verdict, toolpost_sandbox::Verdict::Denied { .. }) => {
            other.map_or("ok".into(), |_| "ok".into())
        }
        other => format!("{other:?} {:?}", outcome.verdict),
    }
}

/// The table denies the planted paths: otherwise the probe would prove nothing.
#[test]
fn the_table_denies_what_the_probes_plant() {
    let nothing = |_: &Path| None;
    for path in [".bashrc", ".git/config", "d/.git", ".perldb", ".config/nvim/init.lua"] {
        let path = Path::new(path);
        let change = SingleChange::new(path, Some(ProtectedEntryKind::File), &nothing);
        assert!(protection(path, &change).is_some(), "{}", path.display());
    }
}

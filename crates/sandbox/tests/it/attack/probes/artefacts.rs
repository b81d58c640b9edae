//! Rows 12, 52, 53, 55, 56, 57, 58: artifacts, and what they could do to the host.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use toolpost_sandbox::{Outcome, Workspace};

use crate::attack::expected::{OK, all};
use crate::attack::{Place, Probe, Who, host};
use crate::support::open_directory;

const NAMELESS: &str = "the workspace has no name on the host";

pub(crate) const PROBES: &[Probe] = &[
    host(12, "sparse artefact", sparse, all(OK)).cells(),
    host(52, "links to files of the host as artefacts", links, all(OK)).cells(),
    host(52, "export onto links", export_over_links, all(OK)),
    host(53, "second names", second_names, all(OK)).cells(),
    host(54, "names of artefacts", download_names, all(OK)).cells(),
    host(55, "artefacts that are not files", no_files, all(OK)).cells(),
    host(55, "artefacts that grow", growing, all(OK)).slow(),
    host(56, "archives are data", archives, all(OK)).cells().slow(),
    host(56, "set-user-id bits", set_user_id, all(OK)).cells(),
    host(51, "set-user-id programs left in a directory of the host", left_programs, all(OK)).cells().not_for(
        &[
            (Who::Level("minimal"), "no boundary is promised for files"),
            (Who::Backend("docker"), "a container is given a copy of the directory"),
        ],
    ),
    host(58, "artifacts that programs of the host obey", obeyed, all(OK)).cells(),
    host(57, "temporary names cannot be guessed or prepared", temporary, all(OK))
        .not_for(&[(Who::PrivateRoot, NAMELESS), (Who::Backend("docker"), NAMELESS)]),
];

/// Exports everything to a fresh directory and returns the names and sizes there.
fn exported(outcome: &Outcome) -> Vec<(String, u64)> {
    let target = tempfile::tempdir().unwrap();
    outcome.export(target.path()).unwrap();
    let mut found = Vec::new();
    let mut waiting = vec![target.path().to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            let metadata = entry.path().symlink_metadata().unwrap();
            if metadata.is_dir() {
                waiting.push(entry.path());
                continue;
            }
            assert!(metadata.is_file() && metadata.permissions().mode() & 0o7111 == 0, "{entry:?}");
            let name = entry.path().strip_prefix(target.path()).unwrap().display().to_string();
            found.push((name, metadata.len()));
        }
    }
    found.sort();
    found
}

fn only_good(outcome: &Outcome) -> String {
    let found = exported(outcome);
    if found == [("good".to_owned(), 4)] {
        "ok".into()
    } else {
        format!("{found:?} {}", outcome.stderr.text())
    }
}

fn sparse(place: &Place<'_>) -> String {
    let code = "import os\nopen('good', 'w').write('good')\nopen('sparse', 'wb').truncate(900 << 20)";
    let outcome = place.attack(code);
    let listed = outcome.changes.new.iter().any(|path| path.as_os_str() == "sparse");
    let answer = only_good(&outcome);
    if answer == "ok" && !listed { "it is not listed".into() } else { answer }
}

fn links(place: &Place<'_>) -> String {
    let outcome = place.attack(
        "os.symlink(HOST + '/secret', 'link')\nos.symlink(HOST, 'directory')\nos.symlink('/proc/self/mem', 'memory')\n\
         os.symlink('/proc/1/root/etc/shadow', 'shadow')\nos.mkdir('d')\nos.symlink('../../../../etc', 'd/up')\n\
         open('good', 'w').write('good')",
    );
    let answer = only_good(&outcome);
    if std::fs::read(place.world.directory().join("secret")).unwrap() != b"canary" {
        return "the host's file was written".into();
    }
    answer
}

fn obeyed(place: &Place<'_>) -> String {
    only_good(&place.attack(
        "for path in ('.git/config', '.git/hooks/post-checkout', '.ssh/authorized_keys', '.bashrc', '.mcp.json',\n        \
             '.claude/settings.json', '.vscode/tasks.json', '.octaverc', '.envrc', 'new/.git', 'new/.GIT/config'):\n    \
         os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n    \
         open(path, 'w').write('evil')\n\
         open('good', 'w').write('good')",
    ))
}

/// The export directory is the operator's: existing entries are neither followed nor overwritten.
fn export_over_links(place: &Place<'_>) -> String {
    let outcome =
        place.attack("os.makedirs('d')\nopen('good', 'w').write('evil')\nopen('d/x', 'w').write('evil')");
    let target = tempfile::tempdir().unwrap();
    let secret = open_directory();
    std::fs::write(secret.path().join("x"), "host").unwrap();
    std::os::unix::fs::symlink(secret.path().join("x"), target.path().join("good")).unwrap();
    std::os::unix::fs::symlink(secret.path(), target.path().join("d")).unwrap();
    // One file gets another name, the other has no valid path: an error, and nothing beyond the link.
    let result = outcome.export(target.path());
    let kept = std::fs::read(secret.path().join("x")).unwrap() == b"host";
    let alone = std::fs::read_dir(secret.path()).unwrap().count() == 1;
    if kept && alone && result.is_err() {
        "ok".into()
    } else {
        format!("{result:?}, kept {kept}, alone {alone}")
    }
}

fn second_names(place: &Place<'_>) -> String {
    only_good(&place.attack(
        "open('one', 'w').write('x')\nos.link('one', 'two')\nopen('good', 'w').write('good')\n\
         for path in ('/etc/shadow', '/usr/bin/su', HOST + '/secret'):\n    attempt(lambda: os.link(path, 'stolen' + path[-1]))",
    ))
}

fn download_names(place: &Place<'_>) -> String {
    only_good(&place.attack(
        "for name in ['-rf', 'new\\nline', 'CON', 'nul.txt', 'back\\\\slash', 'rtl\\u202etxt.exe', 'zero\\u200bwidth', '\\x1b[2J', '\\x7f']: open(name, 'w').close()\n\
         open(b'\\xff\\xfe', 'w').close()\nos.mkdir('-d'); open('-d/x', 'w').close()\nopen('good', 'w').write('good')",
    ))
}

fn no_files(place: &Place<'_>) -> String {
    only_good(&place.attack(
        "os.mkfifo('fifo')\nos.mkdir('directory')\nattempt(lambda: socket.socket(socket.AF_UNIX).bind('socket'))\n\
         attempt(lambda: os.mknod('device', 0o20666, os.makedev(1, 5)))\nos.symlink('/proc/self/fd/0', 'magic')\n\
         open('good', 'w').write('good')",
    ))
}

/// A writer that outlives the program would change the hashed file.
fn growing(place: &Place<'_>) -> String {
    let outcome = place.attack(
        "import time\nopen('good', 'w').write('good')\n\
         if os.fork() == 0:\n    os.setsid()\n    while True:\n        open('grows', 'ab').write(b'x' * 1000); time.sleep(0.001)\ntime.sleep(0.2)",
    );
    let Some(artifact) = outcome.artifacts.iter().find(|artifact| artifact.path == "grows") else {
        return format!("not copied back: {:?}", outcome.report.notes);
    };
    std::thread::sleep(std::time::Duration::from_millis(100));
    match artifact.read() {
        Ok(content) if content.len() as u64 == artifact.size => "ok".into(),
        other => format!("{:?}", other.map(|content| content.len())),
    }
}

/// Artifacts are never unpacked: an archive keeps its bytes.
fn archives(place: &Place<'_>) -> String {
    let outcome = place.attack(
        "import io, tarfile, zipfile\n\
         with tarfile.open('a.tar', 'w') as tar:\n    \
         def add(name, **fields):\n        \
         entry = tarfile.TarInfo(name)\n        \
         for field, value in fields.items(): setattr(entry, field, value)\n        \
         tar.addfile(entry, io.BytesIO(b'x' * entry.size))\n    \
         add('../../escaped', size=4)\n    add('/tmp/escaped', size=4)\n    \
         add('link', type=tarfile.SYMTYPE, linkname='/etc')\n    add('link/passwd', size=4)\n    \
         add('hard', type=tarfile.LNKTYPE, linkname='/etc/shadow')\n    add('suid', size=4, mode=0o6755)\n\
         with zipfile.ZipFile('bomb.zip', 'w', zipfile.ZIP_DEFLATED) as bomb: bomb.writestr('../zeros', b'\\0' * (64 << 20))",
    );
    let found = exported(&outcome);
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    if names != ["a.tar", "bomb.zip"] || found.iter().any(|(_, size)| *size > 1 << 20) {
        return format!("{found:?} {}", outcome.stderr.text());
    }
    let kinds: Vec<_> = outcome.artifacts.iter().map(|artifact| artifact.media_type).collect();
    if kinds == ["application/x-tar", "application/zip"] { "ok".into() } else { format!("{kinds:?}") }
}

/// No unpacking crate is a dependency of the sandbox.
#[test]
fn nothing_in_the_crate_unpacks_archives() {
    let manifest = include_str!("../../../../Cargo.toml");
    for unpacker in ["tar", "zip", "flate2", "xz2", "zstd", "async-tar", "libarchive", "sevenz-rust"] {
        let used = manifest.lines().any(|line| {
            line.trim_start()
                .strip_prefix(unpacker)
                .is_some_and(|rest| rest.trim_start().starts_with(['=', '.']))
        });
        assert!(!used, "`{unpacker}` unpacks archives: answer row 56 for it before it is used");
    }
}

fn set_user_id(place: &Place<'_>) -> String {
    let outcome = place.attack("open('good', 'w').write('good')\nos.chmod('good', 0o6777)");
    only_good(&outcome)
}

/// The host's directory: only its owner can enter, and the next name is unpredictable.
fn temporary(place: &Place<'_>) -> String {
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let outcome =
            place.attack("import stat\nprint(os.getcwd())\noct(stat.S_IMODE(os.stat('.').st_mode))");
        let path = outcome.stdout.text().trim().to_owned();
        if outcome.value != Some("0o700".into()) {
            return format!("{:?} {}", outcome.value, outcome.stderr.text());
        }
        let random = path.rsplit('-').next().unwrap_or_default().to_owned();
        if random.len() < 16 || !names.insert(random) {
            return format!("a name that can be guessed: {path}");
        }
        drop(outcome);
        if std::path::Path::new(&path).exists() {
            return format!("{path} is left");
        }
    }
    "ok".into()
}

/// Files that a run leaves in a host directory belong to its owner, maybe root: with a setuid bit they would
/// give every user those permissions.
fn left_programs(place: &Place<'_>) -> String {
    let directory = open_directory();
    let sandbox = place.sandbox().workspace(Workspace::Host(directory.path().to_owned()));
    let code = format!(
        "{}import shutil\nshutil.copyfile('/bin/true', 'own')\n\
         tried = [attempt(lambda: os.chmod('own', 0o6777)), attempt(lambda: os.chmod(os.open('own', os.O_RDONLY), 0o4755)),\n \
         attempt(lambda: os.open('opened', os.O_CREAT | os.O_WRONLY, 0o4777)), attempt(lambda: os.mknod('node', 0o104777)),\n \
         attempt(lambda: os.mkdir('directory', 0o2777)), call(90, b'own', 0o4777), call(85, b'created', 0o4777),\n \
         call(437, -100, b'opened2', struct.pack('QQQ', 0o101, 0o4777, 0), 24), call(452, -100, b'own', 0o4777, 0)]\n\
         str([name for name in os.listdir('.') if os.stat(name).st_mode & 0o6000 and name != '.git'])",
        place.world.prelude()
    );
    let outcome = crate::support::python(&sandbox, &code);
    let left: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .flatten()
        .filter(|entry| entry.metadata().is_ok_and(|metadata| metadata.mode() & 0o6000 != 0))
        .map(|entry| {
            format!("{} of user {}", entry.path().display(), entry.metadata().map_or(0, |it| it.uid()))
        })
        .collect();
    if !left.is_empty() {
        return format!("left on the host: {left:?}");
    }
    match outcome.value {
        Some(value) if value == "[]" => "ok".into(),
        _ => crate::attack::modes::verdict_of(&outcome),
    }
}

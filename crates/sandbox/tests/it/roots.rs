//! The private root of level `strict`: equal with and without a template, and isolated between runs.

use serde_json::{Value, json};
use toolpost_sandbox::{Language, Program, Sandbox, Workspace};

use crate::support::{Mode, open_directory, python, quick, run};

/// Level `strict`, if this host supports it.
fn strict() -> Option<Sandbox> {
    Mode::available().contains(&Mode::Strict).then(|| Mode::Strict.sandbox().limits(quick()))
}

/// Everything in the root besides `/usr` and `/proc`, and the visible mounts.
const INVENTORY: &str = r"
import os
found = []
for directory, directories, files in os.walk('/'):
    if directory == '/':
        directories[:] = [name for name in directories if name not in ('usr', 'proc', 'tmp')]
    for name in directories + files:
        path = os.path.join(directory, name)
        stat = os.lstat(path)
        link = os.readlink(path) if os.path.islink(path) else None
        found.append([path, stat.st_mode, stat.st_uid, stat.st_nlink, link])
mounts = [line.split(' ')[4:6] for line in open('/proc/self/mountinfo')]
mounts = [entry for entry in mounts if not entry[0].startswith('/tmp/')]
[sorted(found, key=str), sorted(mounts)]
";

#[test]
fn a_root_from_the_template_equals_one_built_by_a_run() {
    let Some(sandbox) = strict() else { return };
    // A run with a shown path builds its own root.
    let directory = open_directory();
    let own = python(&sandbox.clone().read_only(directory.path()), INVENTORY).value.unwrap();
    let shared = python(&sandbox, INVENTORY).value.unwrap();
    assert_eq!(own[1], shared[1], "mounts");
    assert_eq!(own[0], shared[0], "files");
    let text = shared.to_string();
    assert!(text.contains("/etc/passwd") && text.contains("/dev/urandom"), "{text}");
}

/// The `/etc` entries that level `standard` may show: names and prefixes.
const ETC: &str = "R alternatives ca-certificates crypto-policies fonts group hosts java java-* ld-musl-* ld.so.cache \
                   ld.so.conf ld.so.conf.d locale.alias locale.conf localtime magic magic.mime mime.types \
                   nsswitch.conf os-release passwd perl pki protocols python* resolv.conf services ssl static \
                   terminfo timezone";

#[test]
fn standard_shows_needed_etc_entries_and_generated_accounts() {
    if !Mode::available().contains(&Mode::Standard) {
        return;
    }
    let code = "import os, pwd, socket\n[os.listdir('/etc'), os.listdir('/etc/ssl'), [entry.pw_name for entry in pwd.getpwall()], \
                pwd.getpwuid(os.getuid()).pw_name, socket.gethostbyname('localhost'), open('/etc/resolv.conf').read()]";
    let outcome = python(&Mode::Standard.sandbox(), code);
    let seen = outcome.value.unwrap_or_else(|| panic!("{}", outcome.stderr.text()));
    let names = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    for name in names(&seen[0]) {
        let is_listed = ETC.split_whitespace().any(|known| match known.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == known,
        });
        assert!(is_listed, "{name}");
    }
    for name in names(&seen[1]) {
        assert!(["certs", "cert.pem", "openssl.cnf"].contains(&name.as_str()), "{name}");
    }
    assert_eq!(seen[2], json!(["root", "sandbox", "nobody"]));
    assert_eq!((&seen[3], &seen[4], &seen[5]), (&json!("sandbox"), &json!("127.0.0.1"), &json!("")));
    let directory = open_directory();
    let home = "import os, pwd\n[pwd.getpwuid(os.getuid()).pw_dir, os.environ['HOME'], os.getcwd()]";
    for workspace in [Workspace::Fresh, Workspace::ReadOnlyHost(directory.path().to_owned())] {
        let homes = python(&Mode::Standard.sandbox().workspace(workspace), home).value.unwrap();
        assert!(homes[0] == "/tmp" && homes[1] == "/tmp" && homes[2] != "/tmp", "{homes}");
    }
    // The caller shows more, also instead of generated files.
    let more = Mode::Standard.sandbox().read_only("/etc/passwd").read_only("/etc/login.defs");
    let outcome = run(&more, &Program::argv(["cat", "/etc/passwd", "/etc/login.defs"])).unwrap();
    let expected =
        ["/etc/passwd", "/etc/login.defs"].map(|file| std::fs::read_to_string(file).unwrap()).concat();
    assert_eq!(outcome.stdout.text(), expected, "{outcome:?}");
    let all = Mode::Standard.sandbox().read_only("/etc");
    assert_eq!(run(&all, &Program::argv(["cat", "/etc/login.defs"])).unwrap().exit_code, Some(0));
}

#[test]
fn strict_shows_certificates_and_no_keys() {
    if !Mode::available().contains(&Mode::Strict) {
        return;
    }
    let code = "import os\n[os.path.exists('/etc/ssl/certs/ca-certificates.crt'), sorted(os.listdir('/etc/ssl')) if os.path.exists('/etc/ssl') else []]";
    let outcome = python(&Mode::Strict.sandbox(), code);
    let seen = outcome.value.unwrap_or_else(|| panic!("{}", outcome.stderr.text()));
    let is_here = std::path::Path::new("/etc/ssl/certs/ca-certificates.crt").exists();
    assert_eq!(seen[0], json!(is_here));
    let names: Vec<String> = serde_json::from_value(seen[1].clone()).unwrap();
    assert!(
        names.iter().all(|name| ["certs", "cert.pem", "openssl.cnf"].contains(&name.as_str())),
        "{names:?}"
    );
}

#[test]
fn a_program_in_opt_sees_only_its_package() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let Ok(package) = tempfile::Builder::new().prefix("toolpost-test-").tempdir_in("/opt") else {
        println!("SKIP a_program_in_opt_sees_only_its_package: this user cannot write to `/opt`");
        return;
    };
    let other = tempfile::Builder::new().prefix("toolpost-other-").tempdir_in("/opt").unwrap();
    let place = |name: &str| package.path().join(name);
    std::fs::create_dir_all(place("1.0/libexec")).unwrap();
    std::fs::write(place("data"), "own data\n").unwrap();
    std::fs::write(place("1.0/libexec/tool"), "#!/bin/sh\ncat \"$(dirname \"$0\")/../../data\"\nls /opt\n")
        .unwrap();
    symlink("1.0", place("current")).unwrap();
    for path in [package.path(), other.path(), &place("1.0/libexec/tool")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let outside = open_directory();
    symlink(place("current/libexec/tool"), outside.path().join("tool")).unwrap();
    for mode in Mode::available() {
        for program in [place("1.0/libexec/tool"), place("current/libexec/tool"), outside.path().join("tool")]
        {
            let outcome = run(&mode.sandbox(), &Program::operator_argv([&program])).unwrap();
            // Directories above shown paths cannot be listed.
            let expected = match mode {
                Mode::Standard | Mode::Shared => "own data\n",
                // Only its own file.
                Mode::Strict => "",
            };
            assert_eq!(outcome.stdout.text(), expected, "{mode:?} {program:?} {outcome:?}");
        }
        if mode != Mode::Shared {
            let shown = mode.sandbox().read_only("/opt");
            let listed = run(&shown, &Program::argv(["ls", "/opt"])).unwrap().stdout.text();
            let name = other.path().file_name().unwrap().to_string_lossy();
            assert!(listed.lines().any(|line| line == name), "{mode:?} {listed}");
        }
    }
}

/// Programs with arguments, and their output.
const PROGRAMS: [(&[&str], &str); 15] = [
    (&["git", "init", "-q", "x"], ""),
    (
        &[
            "python3",
            "-c",
            "import os, ssl; p = ssl.get_default_verify_paths(); print(bool(p.cafile or os.listdir(p.capath)))",
        ],
        "True",
    ),
    (&["node", "-e", "console.log(require('tls').rootCertificates.length > 0)"], "true"),
    (&["npm", "--version"], "."),
    (&["java", "-version"], "version"),
    (&["perl", "-MPOSIX", "-e", "print POSIX::strftime('%Z', localtime), \"\\n\""], ""),
    (
        &[
            "bash",
            "-c",
            "printf '#include <stdio.h>\nint main() { puts(\"made\"); }' > a.c && gcc a.c -o a && ./a",
        ],
        "made",
    ),
    (&["curl", "--version"], "https"),
    (&["openssl", "version", "-d"], "OPENSSLDIR"),
    (&["jq", "-n", "1 + 1"], "2"),
    (&["sqlite3", ":memory:", "select 6 * 7"], "42"),
    (&["file", "--mime-type", "/usr/bin/env"], "application/"),
    (&["getent", "services", "https"], "443/tcp"),
    (&["getent", "hosts", "localhost"], "localhost"),
    (&["locale", "-a"], "POSIX"),
];

#[test]
fn common_programs_run_at_standard() {
    for mode in Mode::available().into_iter().filter(|mode| *mode != Mode::Strict) {
        for (line, expected) in PROGRAMS {
            let installed = toolpost_sandbox::SYSTEM_SEARCH_PATH
                .split(':')
                .any(|directory| std::path::Path::new(directory).join(line[0]).is_file());
            if !installed {
                println!("SKIP `{}` at standard: not installed", line[0]);
                continue;
            }
            let sandbox = mode.sandbox().limits(quick().with_memory(2 << 30));
            let outcome = run(&sandbox, &Program::argv(line)).unwrap();
            let printed = outcome.stdout.text() + &outcome.stderr.text();
            assert!(outcome.verdict.is_ok() && printed.contains(expected), "{mode:?} {line:?} {outcome:?}");
        }
    }
}

/// Writes marks wherever it can, tries to change entries, and first looks for the marks of others.
const MARKS: &str = r"
import os, stat
marks, kept = [], []
for directory, directories, files in os.walk('/'):
    if directory == '/':
        directories[:] = [name for name in directories if name not in ('usr', 'proc')]
    marks += [os.path.join(directory, name) for name in files if name.startswith('mark')]
    for name in files:
        path = os.path.join(directory, name)
        # A device takes what is written; what must stay is the node itself.
        try:
            if stat.S_ISREG(os.lstat(path).st_mode):
                open(path, 'a').write('changed')
                kept.append(path)
        except OSError:
            pass
        for change in (lambda: os.utime(path, (1, 1), follow_symlinks=False), lambda: os.remove(path), lambda: os.rename(path, path + '2')):
            try:
                change()
                kept.append(path)
            except OSError:
                pass
    try:
        open(os.path.join(directory, 'mark'), 'w').write('x')
        kept.append(directory)
    except OSError:
        pass
[marks, sorted(set(kept)), open('/etc/passwd').read()]
";

#[test]
fn runs_leave_no_marks_in_the_root() {
    let Some(sandbox) = strict() else { return };
    let looks: Vec<Value> = (0..3).map(|_| python(&sandbox, MARKS).value.unwrap()).collect();
    for look in &looks {
        assert_eq!(look[0], json!([]), "marks of another run");
        // Only the run's own directories. That they take marks proves that the test tries.
        assert_eq!(look[1], json!(["/dev/shm", "/tmp", "/workspace"]));
        assert_eq!(look[2], looks[0][2]);
    }
}

#[test]
fn concurrent_runs_have_separate_mounts() {
    let Some(sandbox) = strict() else { return };
    let code = "import os, time\nopen('/tmp/mark', 'x')\nopen('/dev/shm/mark', 'x')\nopen('mark', 'x')\ntime.sleep(1)\n\
                [os.readlink('/proc/self/ns/mnt'), len(os.listdir('/tmp') + os.listdir('/dev/shm') + os.listdir('.'))]";
    let program = Program::code(Language::Python, code);
    let values: Vec<Value> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| run(&sandbox, &program).unwrap())).collect();
        runs.into_iter().map(|run| run.join().unwrap().value.unwrap()).collect()
    });
    for (index, value) in values.iter().enumerate() {
        assert_eq!(value[1], 3, "{values:?}");
        assert!(values[..index].iter().all(|other| other[0] != value[0]), "{values:?}");
    }
}

#[test]
fn later_host_mounts_are_visible_to_the_next_run() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP what_the_host_mounts_later: only root mounts");
        return;
    }
    // In a separate mount namespace, so that the machine's stays unchanged.
    #[expect(clippy::disallowed_methods, reason = "the test program itself, with other mounts")]
    let output = std::process::Command::new("unshare")
        .args(["--mount", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "roots::helper_that_mounts", "--nocapture"])
        .env(crate::support::HELPER, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn helper_that_mounts() {
    // For later_host_mounts_are_visible_to_the_next_run.
    if !crate::support::is_helper() {
        return;
    }
    let Some(sandbox) = strict() else { return };
    let seen = |expected: &str| {
        let outcome = crate::support::bash(&sandbox, "ls /usr/local/share");
        assert_eq!(outcome.stdout.text().contains("later"), expected == "later", "{outcome:?}");
    };
    let mount = |program: &str, arguments: &[&str]| {
        #[expect(clippy::disallowed_methods, reason = "what a host does meanwhile")]
        let status = std::process::Command::new(program).args(arguments).status().unwrap();
        assert!(status.success());
    };
    seen("nothing");
    seen("nothing");
    mount("mount", &["-t", "tmpfs", "none", "/usr/local/share"]);
    std::fs::write("/usr/local/share/later", "x").unwrap();
    seen("later");
    seen("later");
    // No cache pins the mount.
    mount("umount", &["/usr/local/share"]);
    seen("nothing");
}

#[test]
fn a_granted_directory_is_writable_except_protected_paths() {
    let directory = open_directory();
    let granted = directory.path().canonicalize().unwrap();
    std::fs::create_dir_all(granted.join(".git/hooks")).unwrap();
    let name = granted.display();
    let script =
        format!("echo made > {name}/made-$1; echo evil > {name}/.git/hooks/post-commit; echo value: $KEY");
    for (mode, level) in Mode::available().into_iter().zip(["a", "b", "c"]) {
        if mode == Mode::Shared {
            continue;
        }
        let program = Program::argv(["sh", "-c", &script, "sh", level]);
        run(&mode.sandbox(), &program).unwrap();
        assert!(!granted.join(format!("made-{level}")).exists(), "{mode:?} without the grant");
        let sandbox = mode.sandbox().read_write(&granted).raw_variable("KEY", "hunter2");
        let outcome = run(&sandbox, &program).unwrap();
        let made = std::fs::read_to_string(granted.join(format!("made-{level}")));
        assert_eq!(made.unwrap_or_default(), "made\n", "{mode:?} {outcome:?}");
        assert!(!granted.join(".git/hooks/post-commit").exists(), "{mode:?}");
        assert_eq!(outcome.stdout.text(), "value: hunter2\n");
        assert_eq!(outcome.report.raw_variables, ["KEY"]);
        // A program must not reach files pinned by trust.
        std::fs::write(granted.join("pinned"), "").unwrap();
        let error = run(&sandbox.protect([granted.join("pinned")]), &program).unwrap_err();
        assert!(error.to_string().contains("pinned"), "{error}");
        std::fs::remove_file(granted.join("pinned")).unwrap();
        // A directory beneath the workspace, which has a layer.
        std::fs::create_dir_all(granted.join("sub")).unwrap();
        let within =
            mode.sandbox().workspace(Workspace::Host(granted.clone())).read_write(granted.join("sub"));
        run(&within, &Program::argv(["sh", "-c", &format!("echo live > {name}/sub/live")])).unwrap();
        assert_eq!(std::fs::read_to_string(granted.join("sub/live")).unwrap(), "live\n", "{mode:?}");
        std::fs::remove_dir_all(granted.join("sub")).unwrap();
    }
}

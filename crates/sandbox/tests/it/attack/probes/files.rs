//! Rows 1, 2, 46, 47, 49, 51, 53, 57, 58.

use crate::attack::expected::{ANY, Answers, INVISIBLE, NO_WRITE, OK, REFUSED, all, of};
use crate::attack::{Probe, Who, inside};

/// Denied, or missing on this host.
const UNREADABLE: Answers = &["EPERM", "EACCES", "ENOENT"];

pub(crate) const PROBES: &[Probe] = &[
    inside(
        1,
        "read /etc/shadow",
        "attempt(lambda: open('/etc/shadow'))",
        // The image has its own.
        of(ANY, INVISIBLE, REFUSED, INVISIBLE).in_container(REFUSED),
    ),
    inside(
        1,
        "read settings of the host in /etc",
        "first(*[attempt(lambda: open(p)) for p in ('/etc/machine-id', '/etc/fstab', '/etc/login.defs', '/etc/pam.conf', '/etc/ssh/ssh_config', '/etc/gitconfig')])",
        // The image has its own.
        of(ANY, INVISIBLE, UNREADABLE, INVISIBLE).in_container(ANY),
    ),
    inside(
        1,
        "list directories of keys and services in /etc",
        "first(*[attempt(lambda: os.listdir(p)) for p in ('/etc/ssl/private', '/etc/ssh', '/etc/cron.d', '/etc/sudoers.d', '/etc/NetworkManager', '/etc/skel')])",
        of(ANY, INVISIBLE, UNREADABLE, INVISIBLE).in_container(ANY),
    ),
    inside(
        2,
        "list packages in /opt",
        "def others():\n    own = sys.base_prefix.split('/')[1:3]\n    if not [n for n in os.listdir('/opt') if ['opt', n] != own]: raise FileNotFoundError(errno.ENOENT, 'none')\nattempt(others)",
        of(ANY, INVISIBLE, UNREADABLE, INVISIBLE).in_container(ANY),
    ),
    inside(
        2,
        "read a file of the host outside",
        "attempt(lambda: open(HOST + '/secret'))",
        of(ANY, INVISIBLE, REFUSED, INVISIBLE),
    ),
    inside(
        2,
        "list a home directory",
        "first(*[attempt(lambda: os.listdir(p)) for p in ('/root', '/home')])",
        // The image has its own empty one.
        of(ANY, INVISIBLE, REFUSED, INVISIBLE).in_container(&["allowed"]),
    ),
    inside(
        46,
        "overwrite the running program",
        "first(*[attempt(lambda: open(p, 'r+b')) for p in ('/proc/self/exe', '/proc/1/exe')])",
        all(NO_WRITE),
    ),
    inside(
        47,
        "out of the working directory",
        "found = [p for p in ('/proc/self/cwd/..', '/proc/self/cwd/../..') if attempt(lambda: open(p + HOST + '/secret')) == 'allowed']\n'ok' if not found else str(found)",
        all(OK).minimal(ANY),
    ),
    inside(
        47,
        "parents of descriptors",
        "first(*[attempt(lambda: os.listdir(f'/proc/self/fd/{n}/..')) for n in range(6)])",
        all(&["ENOENT", "ENOTDIR", "EACCES"]).minimal(ANY),
    ),
    inside(
        49,
        "root by another name",
        "first(attempt(lambda: open('/proc/self/root/etc/shadow')), attempt(lambda: open('/proc/1/root/etc/shadow')), attempt(lambda: open(f'/proc/self/root{HOST}/secret')))",
        of(ANY, INVISIBLE, REFUSED, &["ENOENT", "EACCES"]).in_container(&["ENOENT", "EACCES"]),
    ),
    inside(
        51,
        "no new privileges",
        "'ok' if libc.prctl(39, 0, 0, 0, 0) == 1 else 'allowed'",
        all(OK).minimal(ANY),
    ),
    inside(
        51,
        "setuid programs",
        "import subprocess\ntry:\n    r = subprocess.run(['/usr/bin/su', '-c', 'id -u'], input=b'', capture_output=True)\n    r = 'allowed' if r.returncode == 0 else 'ok'\nexcept OSError: r = 'ok'\nr",
        all(OK).minimal(ANY),
    ).slow(),
    inside(
        53,
        "hard link to a host file",
        "first(*[attempt(lambda: os.link(p, 'x')) for p in ('/usr/bin/env', '/etc/passwd')])",
        all(&["EXDEV", "EPERM", "EACCES"]),
    ).not_for(&[(Who::Level("minimal"), "allowed there, and it would write to the operator's own files")]),
    inside(
        57,
        "shared temporary directory",
        "'ok' if os.listdir('/tmp') == [] else 'allowed'", of(ANY, OK, &["verdict:exit"], OK)),
    inside(
        58,
        "persistence outside of the workspace",
        "first(*[attempt(lambda: open(p, 'w')) for p in ('/etc/cron.d/x', '/usr/lib/python3/dist-packages/x.pth', '/root' + '/.bashrc')])",
        all(NO_WRITE).minimal(ANY),
    ).not_for(&[(Who::Level("minimal"), "allowed there, and it would write to the operator's own files")]),
];

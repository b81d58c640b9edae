//! Rows 34, 35, 50, 65, 66, 68 to 70: backend-specific attacks, and limited hosts.

use toolpost_sandbox::{Layer, Level, Report};

use super::requests::refusal;
use crate::attack::expected::{ANY, OK, REFUSED, all, of};
use crate::attack::modes::result_of;
use crate::attack::{Place, Probe, Who, host, inside};
use crate::support::{python, run};

const NO_CONTAINER: &str = "there is no container and no daemon";

pub(crate) const PROBES: &[Probe] = &[
    inside(
        34,
        "no proxy without an allowlist",
        "found = [name for name in os.environ if name.lower().endswith('_proxy')]\n'ok' if not found else str(found)",
        all(OK),
    ),
    inside(
        35,
        "a name server is asked",
        "import struct\nquery = struct.pack('>6H', 1, 256, 1, 0, 0, 0) + b'\\6secret\\7example\\3com\\0' + struct.pack('>2H', 1, 1)\nattempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(query, ('127.0.0.53', 53)))",
        all(REFUSED).minimal(ANY).in_own_kernel(&["allowed"]),
    ),
    // No level restricts which programs run: all have the same restrictions.
    inside(
        50,
        "a program from memory",
        "def f():\n    fd = os.memfd_create('x')\n    os.write(fd, open('/bin/true', 'rb').read())\n    if os.fork() == 0:\n        try: os.execv(f'/proc/self/fd/{fd}', ['true'])\n        except OSError as error: os._exit(error.errno)\n    status = os.waitstatus_to_exitcode(os.wait()[1])\n    if status: raise OSError(status, '')\nattempt(f)",
        all(ANY),
    ),
    inside(
        50,
        "a program through the loader",
        "import subprocess, glob\nloader = (glob.glob('/lib64/ld-linux*') + glob.glob('/lib/ld-linux*'))[0]\nattempt(lambda: subprocess.run([loader, '/bin/true'], check=True))",
        all(ANY),
    ),
    inside(
        50,
        "a program without the right to run, through its interpreter",
        "import subprocess\nopen('x.sh', 'w').write('exit 0')\nattempt(lambda: subprocess.run(['sh', 'x.sh'], check=True))",
        all(ANY),
    ),
    // A run from memory gains nothing.
    inside(
        50,
        "a program from memory has the same lock",
        "def child():\n    import subprocess\n    fd = os.memfd_create('x')\n    os.write(fd, open('/bin/cat', 'rb').read())\n    r = subprocess.run([f'/proc/self/fd/{fd}', HOST + '/secret'], pass_fds=[fd], capture_output=True)\n    return 'allowed' if b'canary' in r.stdout else 'ok'\ntry: r = child()\nexcept OSError: r = 'ok'\nr",
        all(OK).minimal(ANY),
    ),
    host(65, "a second run sees nothing of the first", next_run, all(OK)).cells().slow(),
    inside(
        66,
        "control descriptors cannot be found",
        "found = [n for n in range(3, 256) if n not in (4, 5) and attempt(lambda: os.fstat(n)) == 'allowed']\nfound = [n for n in found if not os.readlink(f'/proc/self/fd/{n}').startswith('/proc')]\n'ok' if not found else str([os.readlink(f'/proc/self/fd/{n}') for n in found])",
        all(OK),
    ),
    host(68, "what a container has of the host", container, all(OK))
        .cells()
        .not_for(&[(Who::ButBackend("docker"), NO_CONTAINER)]),
    host(69, "the daemon is not there, or says nothing", no_daemon, all(OK))
        .not_for(&[(Who::ButBackend("docker"), NO_CONTAINER)]),
    host(70, "a level that the host cannot give", degraded, all(OK)),
    host(70, "what is reported as active is active", attested, of(OK, OK, OK, OK)),
];

/// Whatever the image and the caller, a container has no privileges, no egress and no host files.
fn container(place: &Place<'_>) -> String {
    let code = "status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)\n\
        wrong = []\n\
        if int(status['CapEff'], 16) or int(status['CapBnd'], 16): wrong.append('capabilities')\n\
        if libc.prctl(39, 0, 0, 0, 0) != 1: wrong.append('new privileges')\n\
        if not OWN_KERNEL and status.get('Seccomp', '').strip() != '2': wrong.append('no filter')\n\
        if os.getuid() == 0: wrong.append('root')\n\
        if any(os.path.exists(p) for p in ('/var/run/docker.sock', '/run/docker.sock', HOST)): wrong.append('of the host')\n\
        if attempt(lambda: open('/evil', 'w')) == 'allowed': wrong.append('writable root')\n\
        names = [line.split(':')[0].strip() for line in open('/proc/net/dev').read().splitlines()[2:]]\n\
        if [name for name in names if name != 'lo']: wrong.append(str(names))\n\
        'ok' if not wrong else str(wrong)";
    // With its own kernel it needs no filter.
    let code = code.replace("OWN_KERNEL", if place.has_own_kernel() { "True" } else { "False" });
    result_of(&Ok(place.attack(&code)))
}

fn no_daemon(_place: &Place<'_>) -> String {
    use toolpost_docker::{Docker, DockerHost, Options};
    let directory = tempfile::tempdir().unwrap();
    let silent = directory.path().join("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    for socket in [directory.path().join("missing"), silent] {
        let options = Options::new("x").answer_timeout(std::time::Duration::from_secs(1));
        let result = Docker::connect(&DockerHost::Unix(socket.clone()), options);
        if result.is_ok() {
            return format!("{} is taken for a daemon", socket.display());
        }
    }
    "ok".into()
}

/// Run A leaves marks; run B, maybe in the same pool, looks for them.
fn next_run(place: &Place<'_>) -> String {
    let leave = "import random, builtins, json, threading, time\n\
        for directory in ('/tmp', '/dev/shm', '.', os.environ.get('TMPDIR', '.')):\n    attempt(lambda: open(directory + '/left', 'w').write('x'))\n\
        builtins.left = 1; json.dumps = lambda *a, **k: 'patched'; sys.modules['left'] = sys\n\
        os.environ['LEFT'] = '1'; random.seed(1)\n\
        attempt(lambda: socket.socket(socket.AF_UNIX).bind('\\0left'))\n\
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n\
        sys.path.append('/left'); os.umask(0o777)\n'ok'";
    let look = "import random, builtins, json, threading\nfound = []\n\
        for directory in ('/tmp', '/dev/shm', '.', os.environ.get('TMPDIR', '.')):\n    \
        if os.path.exists(directory + '/left'): found.append(directory)\n\
        if hasattr(builtins, 'left') or 'left' in sys.modules: found.append('module')\n\
        if json.dumps([1]) != '[1]': found.append('patch')\n\
        if 'LEFT' in os.environ: found.append('environment')\n\
        if '/left' in sys.path: found.append('path')\n\
        if threading.active_count() != 1: found.append('thread')\n\
        if os.umask(0) == 0o777: found.append('umask')\n\
        print(random.random())\n'ok' if not found else str(found)";
    if place.mode.level.name() == "minimal" {
        return minimal_next_run(place);
    }
    let first = place.attack(leave);
    if !first.verdict.is_ok() {
        return format!("the first run failed: {}", first.stderr.text());
    }
    drop(first);
    let (second, third) = (place.attack(look), place.attack(look));
    if second.stdout.text() == third.stdout.text() {
        return format!("both got the same random number {}", second.stdout.text());
    }
    result_of(&Ok(second))
}

/// Without a private root the host's temporary directory is shared, as documented; the workspace is not.
fn minimal_next_run(place: &Place<'_>) -> String {
    drop(place.attack("open('left', 'w').write('x')\nos.environ['LEFT'] = '1'\n'ok'"));
    result_of(&Ok(
        place.attack("'ok' if not os.path.exists('left') and 'LEFT' not in os.environ else 'allowed'")
    ))
}

fn degraded(place: &Place<'_>) -> String {
    if place.mode.backend != "process" {
        return "ok".into();
    }
    let poor = place.host.without_namespaces().with_landlock(0).without_cgroups();
    for level in Level::ALL {
        let sandbox = place.sandbox().level(level).host(poor.clone());
        let available = poor.availability(level).is_some_and(|entry| entry.available);
        match refusal(&sandbox) {
            Some(answer) if answer == "error:LevelUnavailable" && !available => {}
            None if available => {}
            other => return format!("{level} on the poorest host: {other:?}"),
        }
        if available {
            continue;
        }
        // Lowered only with consent, and reported.
        match run(&sandbox.allow_degraded(true), &toolpost_sandbox::Program::argv(["true"])) {
            Ok(outcome) => {
                let report = &outcome.report;
                let said = report.degraded
                    && report.requested == Some(level)
                    && report.effective < level
                    && report.effective != Level::Unconfined
                    && !report.missing.is_empty();
                if !said {
                    return format!("{level} was lowered in silence: {report:?}");
                }
            }
            Err(toolpost_sandbox::Error::LevelUnavailable { .. }) => {}
            Err(error) => return error.to_string(),
        }
    }
    "ok".into()
}

/// Compares layers that are visible from inside with the report.
fn attested(place: &Place<'_>) -> String {
    let code = "status = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines() if ':' in line)\n\
        [status.get('Seccomp', '').strip() == '2', libc.prctl(39, 0, 0, 0, 0) == 1, int(status['CapEff'], 16) == 0, os.getppid() == 1,\n \
        attempt(lambda: os.listdir(HOST)) == 'ENOENT', os.getuid() != 0]";
    let outcome = python(&place.sandbox(), &format!("{}{code}", place.world.prelude()));
    let Some(seen) = outcome.value.as_ref().and_then(serde_json::Value::as_array) else {
        // Without the host's /proc nothing is visible: the report must match.
        return if outcome.report.has(Layer::MountNamespace) {
            outcome.stderr.text()
        } else {
            look_without_proc(place)
        };
    };
    let seen: Vec<bool> = seen.iter().map(|value| value == true).collect();
    let layers = [
        Layer::Seccomp,
        Layer::NoNewPrivileges,
        Layer::NoCapabilities,
        Layer::PidNamespace,
        Layer::PrivateRoot,
    ];
    for (layer, seen) in layers.into_iter().zip(&seen) {
        if claims(&outcome.report, layer) && !seen {
            return format!("{layer:?} is reported and not active");
        }
    }
    "ok".into()
}

fn look_without_proc(place: &Place<'_>) -> String {
    let outcome = place.attack("[libc.prctl(21, 0, 0, 0, 0) == 2, libc.prctl(39, 0, 0, 0, 0) == 1]");
    let expected = [Layer::Seccomp, Layer::NoNewPrivileges].map(|layer| claims(&outcome.report, layer));
    if outcome.value == Some(serde_json::json!(expected)) {
        "ok".into()
    } else {
        format!("{:?}", outcome.value)
    }
}

fn claims(report: &Report, layer: Layer) -> bool {
    report.layers.contains(&layer)
}

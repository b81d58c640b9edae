//! Runs the attack table in every mode, and says what came out.

use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt as _;

use toolpost_sandbox::{Host, Limits, Outcome, Verdict};

use crate::attack_rows::{PRELUDE, ROWS};
use crate::support::{Mode, eventually, is_running, open_folder, python, quick};

/// A process of the host with the identity that the code has.
struct Sentinel(std::process::Child);

impl Sentinel {
    fn start() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the process that attacks are aimed at")]
        let mut command = std::process::Command::new("sleep");
        command.arg("75001").env("CANARY", "secret").env_remove("CARGO");
        let is_root =
            std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
        if is_root {
            command.uid(1_900_000_000).gid(1_900_000_000);
        }
        Self(command.spawn().unwrap())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kind(verdict: &Verdict) -> String {
    let json = serde_json::to_value(verdict).unwrap();
    format!("verdict:{}", json["kind"].as_str().unwrap())
}

fn answer(outcome: &Outcome) -> String {
    match outcome.value.as_ref().and_then(serde_json::Value::as_str) {
        Some(text) => text.to_owned(),
        None => kind(&outcome.verdict),
    }
}

#[test]
fn the_attack_table_holds_in_every_mode() {
    let folder = open_folder();
    std::fs::write(folder.path().join("secret"), "canary").unwrap();
    let host = folder.path().display().to_string();
    let _listener = UnixListener::bind(folder.path().join("socket")).unwrap();
    let _datagrams = UnixDatagram::bind(folder.path().join("datagrams")).unwrap();
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&host).unwrap()).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    // A descriptor that a careless host leaves inheritable.
    let leaked = rustix::io::dup(std::fs::File::open(folder.path().join("secret")).unwrap()).unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let mut sentinel = Sentinel::start();
    let prelude = format!("{PRELUDE}HOST = {host:?}\nPID = {}\nPORT = {port}\n", sentinel.0.id());
    let limits = Limits::default()
        .with_wall(std::time::Duration::from_secs(20))
        .with_processes(30)
        .with_memory(96 << 20)
        .with_workspace_bytes(8 << 20)
        .with_workspace_inodes(2000)
        .with_file_size(1 << 30);
    let modes = Mode::available();
    let mut table = Vec::new();
    let mut wrong = Vec::new();
    for row in ROWS {
        let mut cells = Vec::new();
        for mode in &modes {
            let outcome = python(&mode.sandbox().limits(limits.clone()), &format!("{prelude}{}", row.code));
            let found = answer(&outcome);
            let wanted = row.answers[Mode::ALL.iter().position(|other| other == mode).unwrap()];
            if !wanted.contains(&found.as_str()) {
                wrong.push(format!(
                    "row {} {} in {mode:?}: {found}, expected one of {wanted:?}\n{}",
                    row.number,
                    row.name,
                    outcome.stderr.text()
                ));
            }
            let unproven = row.number == 9 && found == "verdict:exit" && row.name == "memory bomb";
            cells.push(if unproven { "unproven here: no cgroup".to_owned() } else { found });
            assert!(sentinel.0.try_wait().unwrap().is_none(), "row {} killed a host process", row.number);
        }
        table.push(format!("{:3} {:38} {}", row.number, row.name, cells.join(" | ")));
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "attack table, modes {modes:?}\n{}", table.join("\n")).unwrap();
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
    eventually("no orphan of an attack lives", || !is_running("74001"));
}

#[test]
fn two_runs_do_not_see_each_other() {
    for mode in Mode::available() {
        let code = "import socket, time, os\n\
                    try:\n    s = socket.socket(socket.AF_UNIX); s.bind('\\0toolpost-sibling'); s.listen()\nexcept OSError: pass\n\
                    open('own', 'w').write('x')\nprint(os.getpid(), flush=True)\ntime.sleep(1.5)";
        let spy = "import socket, os, time\n\
                   time.sleep(0.7)\nresults = []\n\
                   try:\n    socket.socket(socket.AF_UNIX).connect('\\0toolpost-sibling'); results.append('socket')\nexcept OSError: pass\n\
                   try:\n    if 'toolpost-sibling' in open('/proc/net/unix').read(): results.append('name')\nexcept OSError: pass\n\
                   if os.path.exists('own'): results.append('file')\nresults";
        std::thread::scope(|scope| {
            let first = scope.spawn(|| python(&mode.sandbox(), code));
            let outcome = python(&mode.sandbox(), spy);
            assert_eq!(outcome.value, Some(serde_json::json!([])), "{mode:?} {}", outcome.stderr.text());
            assert!(first.join().unwrap().verdict.is_ok());
        });
    }
}

#[test]
fn an_older_landlock_still_holds_what_it_can() {
    // What Ubuntu 24.04 has: version 4, without scopes. Signals are then refused by the system call policy.
    for abi in 1..=5 {
        let host = Host::probe().without_namespaces().with_landlock(abi);
        let mut sentinel = Sentinel::start();
        let sandbox = toolpost_sandbox::Sandbox::new().host(host).limits(quick());
        let code = format!(
            "{PRELUDE}PID = {}\n[attempt(lambda: os.kill(PID, 9)), call(62, -1, 9), call(234, PID, PID, 9), attempt(lambda: open('/etc/shadow')), attempt(lambda: os.listdir('/tmp'))]",
            sentinel.0.id()
        );
        let outcome = python(&sandbox, &code);
        assert_eq!(
            outcome.value,
            Some(serde_json::json!(["EPERM", "EPERM", "EPERM", "EACCES", "EACCES"])),
            "{abi} {}",
            outcome.stderr.text()
        );
        assert!(sentinel.0.try_wait().unwrap().is_none());
        let late = crate::support::bash(&sandbox, "setsid sleep 75901 & sleep 75901 & exit 0");
        assert!(late.verdict.is_ok(), "{late:?}");
        eventually("nothing survives", || !is_running("sleep 75901"));
    }
}

#[test]
fn a_host_that_refuses_user_namespaces_is_found_out() {
    // A user namespace in which no further one can be made: what a hardened kernel answers.
    let program = std::env::current_exe().unwrap();
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && echo 0 > /proc/sys/user/max_mnt_namespaces && exec {} --exact attacks::helper_poor_host --nocapture",
        program.display()
    );
    #[expect(clippy::disallowed_methods, reason = "the poor host")]
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "sh", "-c", &script])
        .env("TMPDIR", "/tmp")
        .env(crate::support::HELPER, "1")
        .current_dir("/");
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        // Real root would have no other user to run code as, which is refused.
        command.uid(65_534).gid(65_534);
    }
    let output = command.output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if text.contains("unshare failed") || text.contains("Permission denied") {
        println!("SKIP a_host_that_refuses_user_namespaces: {text}");
        return;
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn helper_poor_host() {
    // For a_host_that_refuses_user_namespaces_is_found_out.
    if !crate::support::is_helper() {
        return;
    }
    let host = Host::probe();
    let strict = host.availability(toolpost_sandbox::Level::Strict).unwrap();
    assert!(!strict.available, "{host:?}");
    assert!(strict.reason.as_ref().unwrap().contains("No space left"), "{strict:?}");
    assert!(strict.fix.as_ref().unwrap().contains("max_user_namespaces"), "{strict:?}");
    assert_eq!(host.best(), Some(toolpost_sandbox::Level::Standard));
    let sandbox = toolpost_sandbox::Sandbox::new().limits(quick());
    let outcome = crate::support::bash(&sandbox, "echo x > file; cat file; setsid sleep 75801 & exit 0");
    assert!(outcome.verdict.is_ok() && outcome.stdout.text() == "x\n", "{outcome:?}");
    eventually("nothing survives", || !is_running("sleep 75801"));
}

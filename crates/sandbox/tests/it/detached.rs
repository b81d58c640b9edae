//! A program that outlives its host program.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::path::Path;

use toolpost_sandbox::{Error, start_detached};

fn sh(script: &str) -> [OsString; 2] {
    ["-c".into(), script.into()]
}

#[test]
fn it_has_its_own_session_and_streams_and_inherits_nothing_else() {
    // Without close-on-exec a child would inherit it.
    let kept = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 50).unwrap();
    rustix::io::fcntl_setfd(&kept, rustix::io::FdFlags::empty()).unwrap();
    let script = "read line; echo $line $NAME $HOME; pwd; cut -d ' ' -f 1,6 /proc/self/stat; ls /proc/self/fd; \
                  echo lost >&2";
    let mut started =
        start_detached(Path::new("/bin/sh"), &sh(script), &[("NAME".into(), "Ada".into())]).unwrap();
    started.stdin.write_all(b"hello\n").unwrap();
    drop(started.stdin);
    let mut said = String::new();
    started.stdout.read_to_string(&mut said).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines[0], lines[1]), ("hello Ada", "/"));
    let session: u32 = lines[2].split(' ').nth(1).unwrap().parse().unwrap();
    let own = std::fs::read_to_string("/proc/self/stat").unwrap();
    let own: u32 = own.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_ne!(session, own);
    // `ls` has opened the directory that it lists.
    assert_eq!(lines[3..], ["0", "1", "2", "3"], "{said}");
}

#[test]
fn a_failed_start_is_an_error() {
    let error = start_detached(Path::new("/nowhere/program"), &[], &[]).unwrap_err();
    assert!(matches!(error, Error::ProgramNotStarted { .. }), "{error}");
}

//! The command on a terminal.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::{Finished, Running, TestEnv};

impl TestEnv {
    /// Runs the command on a terminal on which somebody has typed. What the terminal shows is the output; the
    /// terminal turns line feeds into CR LF and echoes what is typed.
    pub(crate) fn on_terminal(
        &self,
        typed: &str,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Finished {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let terminal = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let mut command = self.command(words);
        command.stdin(terminal.try_clone().unwrap());
        command.stdout(terminal.try_clone().unwrap());
        command.stderr(Stdio::from(terminal));
        let running = Running::start(command).unwrap();
        let mut controller = File::from(controller);
        controller.write_all(typed.as_bytes()).unwrap();
        let shown = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // When the last program has closed the terminal, reading it is an error.
            let _ = controller.read_to_end(&mut bytes);
            bytes
        });
        let mut finished = self.ended(running);
        finished.out = String::from_utf8_lossy(&shown.join().unwrap()).into_owned();
        finished
    }
}

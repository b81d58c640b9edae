//! The command on a terminal.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::{Finished, Running, TestEnv};

/// The other side of a terminal: what it shows, as it comes.
pub(crate) struct Screen {
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    keys: File,
}

impl Screen {
    /// The output so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Presses keys.
    pub(crate) fn press(&self, keys: &str) {
        (&self.keys).write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until it shows a text so many times.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str, times: usize) {
        self.wait_for_any(&[text], times);
    }

    /// Waits until it shows these texts so many times together.
    #[track_caller]
    fn wait_for_any(&self, texts: &[&str], times: usize) {
        let begun = std::time::Instant::now();
        let count = || texts.iter().map(|text| self.text().matches(text).count()).sum::<usize>();
        while count() < times {
            assert!(begun.elapsed() < std::time::Duration::from_mins(1), "no {texts:?}: {}", self.text());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl TestEnv {
    /// Runs the command on a terminal with typed input. What the terminal shows is the output; the
    /// terminal turns line feeds into CR LF and echoes what is typed.
    pub(crate) fn on_terminal(
        &self,
        typed: &str,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Finished {
        let (screen, running) = self.start_on_terminal(typed, words);
        self.shown(screen, running)
    }

    /// Runs the command on a terminal, and answers each question after it appears.
    pub(crate) fn answering(
        &self,
        answers: &[&str],
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Finished {
        let (screen, running) = self.start_on_terminal("", words);
        for (asked, answer) in (1..).zip(answers) {
            screen.wait_for_any(&["yes / session / no", "  answer: "], asked);
            screen.press(answer);
        }
        self.shown(screen, running)
    }

    /// Waits for the end, and gives what the terminal shows.
    pub(crate) fn shown(&self, screen: Screen, running: Running) -> Finished {
        let mut finished = self.ended(running);
        screen.reader.join().unwrap();
        finished.out = String::from_utf8_lossy(&screen.shown.lock().unwrap()).into_owned();
        finished
    }

    /// Starts the command on a terminal with typed input.
    pub(crate) fn start_on_terminal(
        &self,
        typed: &str,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> (Screen, Running) {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let terminal = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let mut command = self.command(words);
        command.stdin(terminal.try_clone().unwrap());
        command.stdout(terminal.try_clone().unwrap());
        command.stderr(Stdio::from(terminal));
        let mut controller = File::from(controller);
        controller.write_all(typed.as_bytes()).unwrap();
        let running = Running::start(command).unwrap();
        let keys = controller.try_clone().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&shown);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // When the last program has closed the terminal, reading it is an error.
            while let Ok(length @ 1..) = controller.read(&mut piece) {
                kept.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        });
        (Screen { shown, reader, keys }, running)
    }
}

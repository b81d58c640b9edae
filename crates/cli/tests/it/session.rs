//! `toolpost exec --session`: interpreters that persist between commands.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Finished, Running, TestEnv, eventually};

/// A home whose sessions end with the test.
struct Sessions {
    env: TestEnv,
}

impl Drop for Sessions {
    fn drop(&mut self) {
        for id in self.ids() {
            self.env.run(["exec", "--session", &id, "--end"]);
        }
    }
}

impl Sessions {
    /// Skips the test where sessions are unavailable.
    fn new(test: &str) -> Option<Self> {
        let sessions = Self { env: TestEnv::new().leaving_files() };
        let tried = sessions.cell("try", "1", &[]);
        if tried.status.code() == Some(0) {
            sessions.env.run(["exec", "--session", "try", "--end"]).ok();
            return Some(sessions);
        }
        println!("SKIP {test}: this host has no sessions: {}", tried.err);
        None
    }

    fn directory(&self) -> PathBuf {
        self.env.path("../home/.local/state/toolpost/sessions")
    }

    /// The sockets of sessions.
    fn ids(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory()).into_iter().flatten().flatten();
        let mut ids: Vec<String> = entries
            .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".sock")?.to_owned()))
            .collect();
        ids.sort();
        ids
    }

    /// The holders of this home.
    fn holders(&self) -> Vec<u32> {
        let home = format!("HOME={}", self.env.path("../home").canonicalize().unwrap().display());
        let ids = std::fs::read_dir("/proc").unwrap().flatten();
        let read = |id: u32, file: &str| std::fs::read(format!("/proc/{id}/{file}")).unwrap_or_default();
        ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|id| read(*id, "cmdline").split(|byte| *byte == 0).any(|word| word == b"hold-session"))
            .filter(|id| {
                read(*id, "environ").split(|byte| *byte == 0).any(|variable| {
                    variable.ends_with(home.trim_start_matches("HOME=/").as_bytes())
                        && variable.starts_with(b"HOME=")
                })
            })
            .collect()
    }

    fn cell(&self, id: &str, code: &str, options: &[&str]) -> Finished {
        let words = ["exec", "--json", "--session", id, "--lang", "python"];
        self.env.run_with(code, words.iter().chain(options).chain(&["-"]))
    }

    /// The value of a successful cell.
    #[track_caller]
    fn value(&self, id: &str, code: &str) -> Value {
        self.cell(id, code, &[]).ok().json()["value"].take()
    }
}

#[test]
pub(crate) fn session() {
    let Some(sessions) = Sessions::new("session") else { return };
    assert_eq!(sessions.value("one", "x = 20"), Value::Null);
    assert_eq!(sessions.value("one", "x + 22"), 42);
    // Another name is another interpreter.
    let other = sessions.cell("two", "x", &[]).exit(1);
    assert!(other.json()["stderr"]["text"].as_str().unwrap().contains("NameError"), "{other}");
    // An error ends the cell, not the session.
    sessions.cell("one", "1 / 0", &[]).exit(1);
    assert_eq!(sessions.value("one", "x"), 20);
    assert_eq!(sessions.ids(), ["one", "two"]);
}

#[test]
pub(crate) fn sessions() {
    let Some(sessions) = Sessions::new("sessions") else { return };
    let list = || sessions.env.run(["exec", "--sessions", "--json"]).ok().json();
    assert_eq!(list(), json!([]));
    sessions.value("one", "x = 42");
    sessions.env.run_with("var x = 1", ["exec", "--session", "js", "--lang", "javascript", "-"]).ok();
    let all = list();
    let facts: Vec<_> = all.as_array().unwrap().iter().map(|one| (&one["id"], &one["language"])).collect();
    assert_eq!(facts, [(&json!("js"), &json!("javascript")), (&json!("one"), &json!("python"))]);
    let keep = Duration::from_mins(30).as_millis() as u64;
    assert!(all[0]["ends_after_ms"].as_u64().is_some_and(|left| left > 0 && left <= keep), "{all}");
    let text = sessions.env.run(["exec", "--sessions"]).ok();
    assert!(text.out.contains("one  python · level "), "{text}");
    // A live session knows its language.
    let told = sessions.env.run_with("x", ["exec", "-q", "--session", "one", "-"]).ok();
    assert_eq!(told.out, "42\n");
    let unknown = sessions.env.run_with("x", ["exec", "--session", "new", "-"]).exit(2);
    assert!(unknown.err.contains("--lang"), "{unknown}");
    // A listing does not count as use.
    sessions.cell("short", "1", &["--keep", "1s"]).ok();
    eventually("an unused session ends although it is looked at", || list().as_array().unwrap().len() == 2);
}

#[test]
fn each_cell_has_its_arguments() {
    let Some(sessions) = Sessions::new("each_cell_has_its_arguments") else { return };
    let env = &sessions.env;
    env.write("a.py", "import sys\nprint(sys.argv[1:])\n");
    env.write("a.js", "console.log(JSON.stringify(process.argv.slice(2)))\n");
    for (code, given, none) in
        [("a.py", "['x', 'it\\'s \"é\"']\n", "[]\n"), ("a.js", "[\"x\",\"it's \\\"é\\\"\"]\n", "[]\n")]
    {
        let id = code.replace('.', "-");
        let words = ["exec", "-q", "--session", &id, code];
        assert_eq!(env.run(words.iter().chain(&["--", "x", "it's \"é\""])).ok().out, given);
        // Arguments of one cell are not those of the next.
        assert_eq!(env.run(words).ok().out, none);
    }
    let command = env.run(["exec", "--session", "a-py", "--", "ls"]).exit(2);
    assert!(command.err.contains("a session runs code, not a command"), "{command}");
}

/// The control groups of a process, at any depth.
fn groups(directory: &Path, process: u32) -> Vec<PathBuf> {
    let own = format!("toolpost-{process}-");
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()) {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&own)) {
            found.push(path);
        } else {
            found.extend(groups(&path, process));
        }
    }
    found
}

#[test]
pub(crate) fn end() {
    let Some(sessions) = Sessions::new("end") else { return };
    assert_eq!(sessions.value("one", "x = 1\nx"), 1);
    let holders = sessions.holders();
    assert_eq!(holders.len(), 1);
    sessions.env.run(["exec", "--session", "one", "--end"]).ok();
    assert_eq!(groups(Path::new("/sys/fs/cgroup"), holders[0]), Vec::<PathBuf>::new());
    assert_eq!(sessions.ids(), Vec::<String>::new());
    eventually("the holder ends", || sessions.holders().is_empty());
    let left: Vec<_> = std::fs::read_dir(sessions.env.path("../tmp")).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    sessions.cell("one", "x", &[]).exit(1);
    let gone = sessions.env.run(["exec", "--session", "never", "--end", "--json"]).exit(1);
    assert_eq!(gone.error()["code"], "NOT_FOUND");
}

#[test]
pub(crate) fn reset() {
    let Some(sessions) = Sessions::new("reset") else { return };
    sessions.value("one", "x = 1\nopen('kept.txt', 'w').write('kept')");
    sessions.env.run(["exec", "--session", "one", "--reset"]).ok();
    let fresh = "'x' in globals(), open('kept.txt').read()";
    assert_eq!(sessions.value("one", fresh), json!([false, "kept"]));
    // Before the code, in one command.
    sessions.value("one", "x = 1");
    assert_eq!(sessions.cell("one", "'x' in globals()", &["--reset"]).ok().json()["value"], false);
}

/// Starts `long.py` in the session `one` and waits until it runs.
fn busy(sessions: &Sessions) -> Running {
    let begun = Instant::now();
    let mut head_start = Duration::from_millis(50);
    loop {
        let mut running = sessions.env.start(["exec", "--json", "--session", "one", "long.py"]);
        // A probing cell that comes first rejects this one. Each attempt has twice the head start, so
        // that the two cannot meet in the same order forever.
        std::thread::sleep(head_start);
        head_start *= 2;
        while running.child.try_wait().unwrap().is_none() {
            if !sessions.cell("one", "1", &[]).status.success() {
                return running;
            }
            assert!(begun.elapsed() < Duration::from_mins(1), "the cell never runs");
        }
    }
}

#[test]
pub(crate) fn interrupt() {
    let Some(sessions) = Sessions::new("interrupt") else { return };
    sessions.value("one", "x = 1");
    sessions.env.write("long.py", "print('begun', flush=True)\nimport time\ntime.sleep(100)");
    let begun = Instant::now();
    let running = busy(&sessions);
    let busy = sessions.cell("one", "1", &[]).exit(1);
    assert!(busy.error()["message"].as_str().unwrap().contains("running"), "{busy}");
    sessions.env.run(["exec", "--session", "one", "--interrupt"]).ok();
    let finished = running.finish();
    assert_eq!(finished.json()["verdict"]["kind"], "interrupted", "{finished}");
    assert!(begun.elapsed() < Duration::from_secs(50));
    assert_eq!(sessions.value("one", "x"), 1);
}

#[test]
fn ctrl_c_stops_the_cell_and_not_the_session() {
    let Some(sessions) = Sessions::new("ctrl_c") else { return };
    sessions.value("one", "x = 1");
    sessions.env.write("long.py", "import time\ntime.sleep(100)");
    let running = busy(&sessions);
    running.signal(rustix::process::Signal::INT);
    let finished = running.finish().exit(130);
    assert_eq!(finished.json()["verdict"]["kind"], "interrupted", "{finished}");
    assert_eq!(sessions.value("one", "x"), 1);
}

#[test]
fn a_command_that_is_killed_stops_its_cell() {
    let Some(sessions) = Sessions::new("killed command") else { return };
    sessions.value("one", "x = 1");
    sessions.env.write("long.py", "import time\ntime.sleep(100)");
    let mut running = busy(&sessions);
    running.child.kill().unwrap();
    eventually("the session is free", || sessions.cell("one", "x", &[]).status.code() == Some(0));
}

#[test]
pub(crate) fn fork() {
    let Some(sessions) = Sessions::new("fork") else { return };
    sessions.value("one", "x = 1\nopen('f.txt', 'w').write('parent')");
    let forked = sessions.env.run(["exec", "--session", "one", "--fork", "two", "--json"]);
    if forked.status.code() != Some(0) {
        println!("SKIP fork: this host forks no sessions: {}", forked.err);
        return;
    }
    assert_eq!(sessions.value("two", "x += 1; open('f.txt', 'w').write('child')\nx"), 2);
    assert_eq!(sessions.value("one", "x, open('f.txt').read()"), json!([1, "parent"]));
    // Fork and run there, in one command.
    assert_eq!(sessions.cell("one", "x + 41", &["--fork", "three"]).ok().json()["value"], 42);
    let taken = sessions.env.run(["exec", "--session", "one", "--fork", "two", "--json"]).exit(1);
    assert_eq!(taken.error()["code"], "CONFLICT");
    // The end of the first session does not end its forks.
    sessions.env.run(["exec", "--session", "one", "--end"]).ok();
    assert_eq!(sessions.value("two", "x"), 2);
    assert_eq!(sessions.ids(), ["three", "two"]);
}

#[test]
pub(crate) fn keep() {
    let Some(sessions) = Sessions::new("keep") else { return };
    sessions.cell("one", "1", &["--keep", "400ms"]).ok();
    eventually("the session ends by itself", || sessions.ids().is_empty() && sessions.holders().is_empty());
    // The default is long.
    sessions.cell("two", "1", &[]).ok();
    std::thread::sleep(Duration::from_millis(900));
    assert_eq!(sessions.ids(), ["two"]);
}

#[test]
fn an_option_that_differs_from_the_session_is_rejected() {
    let Some(sessions) = Sessions::new("options of a session") else { return };
    sessions.cell("one", "1", &["--memory", "400M"]).ok();
    sessions.cell("one", "1", &["--memory", "400M"]).ok();
    sessions.cell("one", "1", &[]).ok();
    for options in [&["--memory", "300M"][..], &["--pids", "9"], &["--env", "A=1"]] {
        let refused = sessions.cell("one", "1", options).exit(1).error();
        assert_eq!(refused["code"], "PRECONDITION");
        assert!(refused["message"].as_str().unwrap().contains(options[0]), "{refused}");
    }
    // Each cell has its own time limit.
    let slow = sessions.cell("one", "import time\ntime.sleep(100)", &["--timeout", "300ms"]).exit(4);
    assert_eq!(slow.json()["verdict"]["kind"], "interrupted");
}

#[test]
fn files_are_copied_in_and_out_of_a_session() {
    let Some(sessions) = Sessions::new("files of a session") else { return };
    sessions.env.write("in.txt", "given");
    let code = "open('out.txt', 'w').write(open('in.txt').read() + ' and taken')";
    sessions.cell("one", code, &["--attach", "in.txt", "--artifacts", "kept"]).ok();
    assert_eq!(sessions.env.read("kept/out.txt"), "given and taken");
}

#[test]
fn a_file_that_is_attached_again_is_replaced() {
    let Some(sessions) = Sessions::new("attached again") else { return };
    let read = |text: &str| {
        sessions.env.write("in.txt", text);
        let code = "open('in.txt').read()";
        sessions.cell("one", code, &["--attach", "in.txt"]).ok().json()["value"].take()
    };
    assert_eq!(read("the first, and longer"), "the first, and longer");
    assert_eq!(read("the second"), "the second");
}

#[test]
fn output_of_a_cell_is_streamed() {
    let Some(sessions) = Sessions::new("output of a cell") else { return };
    sessions.env.write("talk.py", "import sys\nprint('one')\nprint('two', file=sys.stderr)\n40 + 2");
    let plain = sessions.env.run(["exec", "--session", "one", "talk.py"]).ok();
    assert_eq!(plain.out, "one\n42\n");
    assert!(plain.err.contains("two\n"), "{plain}");
    let lines = sessions.env.run(["exec", "--format", "jsonl", "--session", "one", "talk.py"]).ok().lines();
    for line in &lines {
        crate::support::fits("exec-event", line);
    }
    assert_eq!(lines[0]["session"], "one");
    assert!(lines.iter().any(|line| line["type"] == "stdout" && line["text"] == "one\n"), "{lines:?}");
    assert_eq!(lines.last().unwrap()["outcome"]["value"], 42);
}

#[test]
fn a_killed_holder_does_not_block_a_new_session() {
    let Some(sessions) = Sessions::new("killed holder") else { return };
    sessions.value("one", "x = 1");
    let [holder] = sessions.holders()[..] else { panic!("not one holder") };
    let holder = rustix::process::Pid::from_raw(holder.try_into().unwrap()).unwrap();
    rustix::process::kill_process(holder, rustix::process::Signal::KILL).unwrap();
    // A dead process is invisible before it releases its socket.
    let socket = sessions.directory().join("one.sock");
    eventually("it is dead", || std::os::unix::net::UnixStream::connect(&socket).is_err());
    let fresh = sessions.cell("one", "'x' in globals()", &[]).ok();
    assert_eq!(fresh.json()["value"], false);
}

#[test]
fn concurrent_commands_start_one_session() {
    let Some(sessions) = Sessions::new("two commands at once") else { return };
    sessions.env.write("code.py", "x = 1");
    let begun: Vec<_> = (0..4).map(|_| sessions.env.start(["exec", "--session", "one", "code.py"])).collect();
    // One of them runs; the others may find the session busy.
    assert!(begun.into_iter().map(crate::support::Running::finish).any(|ended| ended.status.success()));
    assert_eq!(sessions.holders().len(), 1);
}

#[test]
pub(crate) fn a_directory_open_to_others_is_rejected() {
    use std::os::unix::fs::PermissionsExt as _;
    let env = TestEnv::new();
    let named = env.run(["exec", "--json", "--session", "../a", "--end"]).exit(2);
    assert!(named.error()["hints"][0].as_str().unwrap().contains("letters"), "{named}");
    let runtime = env.path("run");
    let directory = runtime.join("toolpost/sessions");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let env = env.with("XDG_RUNTIME_DIR", &runtime);
    let refused = env.run_with("1", ["exec", "--json", "--session", "a", "--lang", "python", "-"]).exit(2);
    assert!(refused.error()["message"].as_str().unwrap().contains("this user alone"), "{refused}");
}

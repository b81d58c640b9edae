//! The shell of a page: its files, commands and Python programs, one after another.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::compare::fits;
use super::markdown::Command;
use crate::Result;
use crate::command::Task;

/// The time that one page may take.
const LIMIT: Duration = Duration::from_mins(5);

/// The beginning of a line of the protocol between the shell and this program.
const MARK: char = '\u{1e}';

/// The number of lines of output in a report.
const MAX_SHOWN: usize = 40;

/// One thing that the shell does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Writes a file.
    File {
        /// Its path below the directory of the page.
        name: String,
        /// Its content.
        text: String,
    },
    /// Runs a command.
    Command(Command),
    /// Runs a Python program. A line `print(…)  # TEXT` of it must print TEXT.
    Python {
        /// The line of its fence.
        line: usize,
        /// The program.
        text: String,
    },
}

/// Where a page runs.
#[derive(Debug)]
pub struct Place {
    /// A directory that exists; the files of the shell are in it.
    pub directory: PathBuf,
    /// The working directory at the beginning.
    pub work: PathBuf,
    /// The environment besides that of a new user.
    pub variables: Vec<(&'static str, String)>,
}

/// A false statement on a page: its line, and the found text.
pub type Wrong = (usize, String);

impl Place {
    /// A task with the environment of a new user: an empty home.
    pub fn task(&self, program: &str, arguments: &[&str]) -> Task {
        let home = self.directory.join("home");
        let directories = [
            ("HOME", ""),
            ("XDG_CACHE_HOME", ".cache"),
            ("XDG_CONFIG_HOME", ".config"),
            ("XDG_DATA_HOME", ".local/share"),
            ("XDG_STATE_HOME", ".local/state"),
        ];
        let task = Task::new(program, arguments).directory(&self.work).variable("NO_COLOR", "1");
        let task = directories
            .iter()
            .fold(task, |task, (name, path)| task.variable(name, &home.join(path).to_string_lossy()));
        self.variables.iter().fold(task, |task, (name, value)| task.variable(name, value))
    }

    /// Runs the steps, and stops at the first that fails. The log gets the script and the output.
    pub fn run(&self, steps: &[Step], log: &Path) -> Result<Option<Wrong>> {
        let directory = self.directory.join("steps");
        for made in [&directory, &self.work, &self.directory.join("home")] {
            fs::create_dir_all(made).map_err(|error| format!("cannot make {}: {error}", made.display()))?;
        }
        let output = self.directory.join("output");
        // Not through a pipe: a process that stays behind would hold it open.
        let mut script =
            format!("exec >'{}' 2>&1; trap 'kill $(jobs -p) 2>/dev/null' EXIT\n", output.display());
        // A page says how long a server takes to start on an idle machine.
        script.push_str(
            "sleep() { case $1 in *[!0-9]*) command sleep $1;; *) command sleep $((3 * $1));; esac; }\n",
        );
        for (index, step) in steps.iter().enumerate() {
            let path = directory.join(format!("{index}.py"));
            let (text, command, exit_code) = match step {
                Step::File { name, text } => {
                    let mode = if text.starts_with("#!") { "755" } else { "644" };
                    (text, format!("install -D -m {mode} '{}' '{name}'", path.display()), 0)
                }
                Step::Command(command) => {
                    (&command.text, format!("eval \"$(<'{}')\"", path.display()), command.exit_code)
                }
                Step::Python { text, .. } => {
                    (text, format!("PYTHONPATH=\"$PWD:${{PYTHONPATH-}}\" python3 '{}'", path.display()), 0)
                }
            };
            fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            // Writing to a string cannot fail.
            let _ = writeln!(
                script,
                "printf '\\x1e\\n'; {command}\ncode=$?; printf '\\x1e%d\\n' $code; [ $code = {exit_code} ] || exit 1"
            );
        }
        let captured = self.task("bash", &["-c", &script]).limit(LIMIT).capture()?;
        let text = fs::read(&output).map_err(|error| format!("cannot read {}: {error}", output.display()))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        fs::write(log, format!("{script}\n{text}\n{}", captured.errors))
            .map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        Ok(judge(steps, &text))
    }
}

/// The first step that was not as written, if any.
fn judge(steps: &[Step], output: &str) -> Option<Wrong> {
    // Before each step a mark, and after it one with its exit code.
    let mut parts = output.split(MARK).skip(1);
    for step in steps {
        let printed = parts.next().unwrap_or_default();
        let code = parts.next().and_then(|part| part.lines().next()?.parse::<i32>().ok());
        let printed: Vec<&str> = printed.lines().skip(1).filter(|line| !is_of_shell(line)).collect();
        let end = printed.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |last| last + 1);
        let printed = &printed[..end];
        let (line, expected, exit_code, subject) = match step {
            Step::File { name, .. } => (0, Vec::new(), 0, format!("the file `{name}`")),
            Step::Command(command) => {
                let expected = command.expected.iter().map(String::as_str).collect();
                (command.line, expected, command.exit_code, format!("`{}`", command.text))
            }
            Step::Python { line, text } => (*line, prints(text), 0, "the program".to_owned()),
        };
        let found = || shown(printed);
        match code {
            None => return Some((line, format!("{subject} did not end; found:\n{}", found()))),
            Some(code) if code != exit_code => {
                let expected = if exit_code == 0 { String::new() } else { format!(", expected {exit_code}") };
                return Some((
                    line,
                    format!("{subject} ended with exit code {code}{expected}; found:\n{}", found()),
                ));
            }
            Some(_) if expected.is_empty() || fits(printed, &expected) => {}
            Some(_) => {
                let expected = shown(&expected);
                return Some((line, format!("{subject}; expected:\n{expected}\nfound:\n{}", found())));
            }
        }
    }
    None
}

/// Whether the shell reports the end of a background process with this line.
fn is_of_shell(line: &str) -> bool {
    line.starts_with("bash: line ") && (line.contains(" Terminated ") || line.contains(" Killed "))
}

fn shown(lines: &[&str]) -> String {
    let left = lines.len().saturating_sub(MAX_SHOWN);
    let more = if left == 0 { String::new() } else { format!("\n    and {left} lines more") };
    let lines: Vec<String> = lines.iter().take(MAX_SHOWN).map(|line| format!("    {line}")).collect();
    lines.join("\n") + &more
}

/// The promised output in comments of a Python program: the text after `print(…)  # `.
fn prints(program: &str) -> Vec<&str> {
    let comment = |line: &'_ str| line.trim_start().starts_with("print(") && line.contains(")  # ");
    let lines = program.lines().filter(|line| comment(line));
    lines.filter_map(|line| line.rsplit_once(")  # ").map(|(_, text)| text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: usize, text: &str, expected: &[&str], exit_code: i32) -> Step {
        let expected = expected.iter().map(|line| (*line).to_owned()).collect();
        Step::Command(Command { line, text: text.to_owned(), expected, exit_code })
    }

    fn run(steps: &[Step]) -> Option<Wrong> {
        let directory = tempfile::tempdir().unwrap();
        let place = Place {
            directory: directory.path().to_owned(),
            work: directory.path().join("work"),
            variables: Vec::new(),
        };
        place.run(steps, &directory.path().join("log")).unwrap()
    }

    #[test]
    fn steps_share_a_shell() {
        let file =
            Step::File { name: "a/b.sh".to_owned(), text: "#!/bin/sh\necho \"$1\"; exit 3\n".to_owned() };
        let program = "print(1 + 1)  # 2\nprint('x')  # …\n";
        let steps = [
            file,
            command(4, "cd a; N=five", &[], 0),
            command(5, "./b.sh $N", &["five"], 3),
            command(6, "echo; echo one; echo; echo two >&2", &["", "one", "…", "two"], 0),
            command(7, "sleep 60 & P=$!", &[], 0),
            command(8, "kill $P; wait $P", &[], 143),
            command(9, "echo $HOME", &["…/home/"], 0),
            Step::Python { line: 10, text: program.to_owned() },
        ];
        assert_eq!(run(&steps), None);
    }

    #[test]
    fn a_step_that_is_not_as_written_is_named() {
        let rows = [
            (command(3, "echo a", &["b"], 0), (3, "`echo a`; expected:\n    b\nfound:\n    a")),
            (command(3, "echo a; exit 2", &["a"], 0), (3, "`echo a; exit 2` did not end; found:\n    a")),
            (command(3, "false", &[], 0), (3, "`false` ended with exit code 1; found:\n")),
            (command(3, "true", &[], 4), (3, "`true` ended with exit code 0, expected 4; found:\n")),
            (
                Step::Python { line: 3, text: "print(2)  # 3".to_owned() },
                (3, "the program; expected:\n    3\nfound:\n    2"),
            ),
        ];
        for (step, (line, text)) in rows {
            let steps = [command(1, "true", &[], 0), step, command(9, "true", &[], 0)];
            assert_eq!(run(&steps), Some((line, text.to_owned())));
        }
    }
}

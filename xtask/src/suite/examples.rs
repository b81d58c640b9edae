//! The examples: each is run, and what it must answer is written down here.

use std::path::Path;
use std::time::{Duration, Instant};

use super::pages::{self, Package, Readme};
use super::report::Tally;
use crate::command::Task;
use crate::workspace::Workspace;

/// An example of the project.
#[derive(Debug)]
pub struct Example {
    /// Its path below the root: an entry of `examples/`, or an example program of a crate.
    pub path: &'static str,
    /// The action.
    pub checks: &'static [Check],
}

/// The use of an example.
#[derive(Debug)]
pub enum Check {
    /// A command is run in the root of the checkout, without a network.
    Command {
        /// The program and its arguments.
        command: &'static [&'static str],
        /// The exit status that it must end with.
        status: i32,
        /// The text that it must print, on standard output or standard error.
        prints: &'static str,
    },
    /// An example program of a crate is built, with all features of the façade, and run without a network.
    Example {
        /// Its name.
        name: &'static str,
        /// Its arguments.
        arguments: &'static [&'static str],
        /// The exit status that it must end with.
        status: i32,
        /// The text that it must print, on standard output or standard error.
        prints: &'static str,
    },
    /// Tests build it with all others and start it.
    Tested {
        /// The file of the tests.
        by: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// The blocks of its README run like those of a page.
    Readme(Readme),
    /// The Rust program has at most 1.2 times the lines of code of the Python program.
    Beside {
        /// The Rust file below the example.
        rust: &'static str,
        /// The Python file below the example.
        python: &'static str,
    },
    /// A table is there whole.
    Table {
        /// The file below the example.
        file: &'static str,
        /// Its header line.
        header: &'static str,
        /// The number of rows that follow.
        rows: usize,
    },
}

/// Every example. `cargo xtask tidy` reports a directory or program without a row.
pub const EXAMPLES: &[Example] = &[
    Example {
        path: "examples/seeds",
        checks: &[
            beside("stateful.rs", "stateful.py"),
            program("seed_stateful", &["increment_counter"], 0, "\"new_value\":"),
            program("seed_stateful", &["add_item", "--item", "a"], 0, "\"item_count\":"),
            beside("factorials.rs", "factorials.py"),
            program(
                "seed_factorials",
                &["heavy_computation", "{\"numbers\":[5,19]}"],
                0,
                "{\"factorials\":[120,121645100408832000]}",
            ),
            beside("calculator.rs", "calculator.py"),
            program("seed_calculator", &["--operation", "divide", "--a", "7", "--b", "2"], 0, "3.5"),
            program(
                "seed_calculator",
                &["--operation", "divide", "--a", "7", "--b", "0"],
                1,
                "division by zero",
            ),
            beside("secure_code.rs", "secure_code.py"),
            program("seed_secure_code", &[], 0, "Output: Hello from sandbox!"),
            beside("orchestrator.rs", "orchestrator.py"),
            program("seed_orchestrator", &[], 0, "Success rate: 100.00%"),
            program("seed_orchestrator", &[], 0, "Agent data_processing_agent: completed"),
            beside("process_items.rs", "process_items.py"),
            program("seed_process_items", &["--stream", "{\"items\":[\"a\",\"b\"]}"], 0, "Processing b..."),
            beside("weather.rs", "weather.py"),
            program(
                "seed_weather",
                &["script:examples/seeds/weather.yaml"],
                0,
                "Today: 20C and sunny in London.",
            ),
        ],
    },
    Example {
        path: "examples/weather",
        checks: &[
            Check::Table {
                file: "seattle-weather.csv",
                header: "date,precipitation,temp_max,temp_min,wind,weather",
                rows: 1_461,
            },
            Check::Command { command: super::BUILD_PROGRAM, status: 0, prints: "" },
            // The first command of the README.
            Check::Command {
                command: &[
                    "target/debug/toolpost",
                    "run",
                    "--attach",
                    "examples/weather/seattle-weather.csv",
                    "--model",
                    "script:examples/weather/weather.yaml",
                    "-p",
                    "Which year was the wettest?",
                ],
                status: 0,
                prints: "2014 was the wettest year: it rained 1232.8 mm, +48.9 %",
            },
        ],
    },
    Example {
        path: "examples/python-tool",
        checks: &[Check::Readme(Readme { packages: &[Package::Python("requests")], is_online: false })],
    },
    Example {
        path: "examples/node-tool",
        checks: &[Check::Readme(Readme { packages: &[Package::Node("ms")], is_online: false })],
    },
    Example {
        path: "examples/mcp-servers",
        checks: &[Check::Readme(Readme {
            packages: &[
                Package::Node("@modelcontextprotocol/server-everything"),
                Package::Python("mcp-server-fetch"),
            ],
            is_online: true,
        })],
    },
    Example {
        path: "examples/analysis-session",
        checks: &[Check::Readme(Readme {
            packages: &[Package::Python("pandas"), Package::Python("matplotlib")],
            is_online: true,
        })],
    },
    Example { path: "examples/flows", checks: &[Check::Readme(Readme { packages: &[], is_online: false })] },
    Example {
        path: "examples/gateway",
        checks: &[Check::Readme(Readme { packages: &[], is_online: false })],
    },
    Example {
        path: "crates/toolpost/examples/counter.rs",
        // What one process keeps, the next one finds.
        checks: &[
            counter(&["reset", "--name", "apples"], "{\"status\":\"success\""),
            counter(
                &["add", "--name", "apples", "--by", "2"],
                "{\"status\":\"success\",\"result\":{\"result\":2}}",
            ),
            counter(
                &["add", "--name", "apples", "--by", "3"],
                "{\"status\":\"success\",\"result\":{\"result\":5}}",
            ),
        ],
    },
    Example {
        path: "crates/toolpost/examples/tool_program.rs",
        checks: &[Check::Example {
            name: "tool_program",
            arguments: &["greet", "--name", "Ada"],
            status: 0,
            prints: "{\"status\":\"success\",\"result\":{\"result\":\"Hello, Ada\"}}",
        }],
    },
    Example {
        path: "crates/toolpost/examples/worker_program.rs",
        checks: &[Check::Example {
            name: "worker_program",
            arguments: &["die"],
            // The worker died, and the program tells how.
            status: 1,
            prints: "was killed by signal 6",
        }],
    },
    Example {
        path: "crates/toolpost/examples/calculator.rs",
        checks: &[
            program(
                "calculator",
                &["divide", "--a", "7", "--b", "2"],
                0,
                "{\"status\":\"success\",\"result\":{\"result\":3.5}}",
            ),
            program("calculator", &["divide", "--a", "7", "--b", "0"], 1, "nothing can be divided by 0"),
        ],
    },
    Example {
        path: "crates/toolpost/examples/weather.rs",
        checks: &[program(
            "weather",
            &["forecast", "--city", "Oslo", "--days", "2"],
            0,
            "\"city\":\"Oslo\",\"days\":[{\"ahead\":1,",
        )],
    },
    Example {
        path: "crates/toolpost/examples/notebook.rs",
        // What one process writes, the next one reads.
        checks: &[
            program("notebook", &["throw_away", "--notebook", "trip"], 0, "{\"status\":\"success\""),
            program(
                "notebook",
                &["write", "--notebook", "trip", "--text", "Buy a map."],
                0,
                "{\"status\":\"success\",\"result\":{\"result\":1}}",
            ),
            program(
                "notebook",
                &["read", "--notebook", "trip"],
                0,
                "{\"status\":\"success\",\"result\":{\"result\":[\"Buy a map.\"]}}",
            ),
        ],
    },
    Example {
        path: "crates/toolpost/examples/agent.rs",
        checks: &[program("agent", &[], 0, "2 × lamp: 99 €")],
    },
    Example {
        path: "crates/toolpost/examples/analysis.rs",
        checks: &[program(
            "analysis",
            &["longest_chain", "--below", "100000"],
            0,
            "{\"start\":77031,\"length\":351}",
        )],
    },
    Example {
        path: "crates/toolpost/examples/gateway.rs",
        checks: &[program(
            "gateway",
            &[],
            0,
            "guest may not clear: PERMISSION\nadmin sees: calc__plus, calc__clear, weather__forecast\nadmin clears\n\
             calc__plus: 42\nweather__forecast: sun\nweather__forecast: the tool `forecast` is quarantined: its \
             definition has changed since its approval\n",
        )],
    },
    Example {
        path: "crates/sandbox/examples/real_work.rs",
        // What this machine lacks is skipped by name.
        checks: &[Check::Example {
            name: "real_work",
            arguments: &["--programs", ".dev/data-env/bin"],
            status: 0,
            prints: " 0 failed",
        }],
    },
    Example {
        path: "crates/mcp/examples/conformance_server.rs",
        checks: &[Check::Tested {
            by: "crates/mcp/tests/it/server/conformance.rs",
            name: "conformance_server",
        }],
    },
    Example {
        path: "crates/mcp/examples/conformance_client.rs",
        checks: &[Check::Tested {
            by: "crates/mcp/tests/it/client/conformance.rs",
            name: "conformance_client",
        }],
    },
    Example {
        path: "crates/mcp/examples/protocol_server.rs",
        checks: &[Check::Tested { by: "crates/mcp/tests/it/client/support.rs", name: "protocol_server" }],
    },
    Example {
        path: "crates/toolpost/examples/claude_code.rs",
        checks: &[Check::Tested { by: "crates/toolpost/tests/it/claude_code.rs", name: "claude_code" }],
    },
];

const fn counter(arguments: &'static [&'static str], prints: &'static str) -> Check {
    Check::Example { name: "counter", arguments, status: 0, prints }
}

const fn beside(rust: &'static str, python: &'static str) -> Check {
    Check::Beside { rust, python }
}

const fn program(
    name: &'static str,
    arguments: &'static [&'static str],
    status: i32,
    prints: &'static str,
) -> Check {
    Check::Example { name, arguments, status, prints }
}

/// The end of a check that did not fail.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Everything was as written.
    Passed,
    /// It was not run, for this reason.
    Skipped(String),
}

/// Runs the examples alone: all, or those whose paths have one of these words. The answer is whether nothing failed.
pub fn run_alone(root: &Path, words: &[String]) -> Result<bool, String> {
    let workspace = Workspace::read(root)?;
    let logs = super::logs(root)?;
    let mut tally = Tally::default();
    run(&workspace, &logs, words, &mut tally);
    print!("{tally}");
    if tally.passed + tally.failed.len() + tally.skipped.len() == 0 {
        return Err("no path of an example has these words".to_owned());
    }
    Ok(tally.failed.is_empty())
}

/// Runs every check of every example whose path has one of these words; of all, without words.
pub fn run(workspace: &Workspace, logs: &Path, words: &[String], tally: &mut Tally) {
    let is_wanted = |example: &&Example| {
        words.is_empty() || words.iter().any(|word| example.path.contains(word.as_str()))
    };
    for example in EXAMPLES.iter().filter(is_wanted) {
        for (position, check) in example.checks.iter().enumerate() {
            let name = format!("{} ({})", example.path, position + 1);
            let begin = Instant::now();
            match one(workspace, logs, example.path, position, check) {
                Ok(End::Passed) => {
                    tally.passed += 1;
                    if matches!(check, Check::Readme(_)) {
                        eprintln!("{name}: ok, {:.1} s", begin.elapsed().as_secs_f64());
                    }
                }
                Ok(End::Skipped(reason)) => tally.skip(&name, &reason),
                Err(error) => {
                    eprintln!("{name}: {error}");
                    tally.failed.push(name);
                }
            }
        }
    }
}

/// The command that builds an example program: with the features of the tests, so that nothing is built twice.
fn build_command(name: &str) -> [&str; 8] {
    ["cargo", "build", "--quiet", "--workspace", "--features", super::FEATURES, "--example", name]
}

fn one(
    workspace: &Workspace,
    logs: &Path,
    path: &str,
    position: usize,
    check: &Check,
) -> Result<End, String> {
    let root = workspace.root.as_path();
    let log = logs.join(format!("{}-{position}.log", path.replace(['/', '.'], "-")));
    let done = match check {
        Check::Readme(check) => return pages::run_example(workspace, &log, path, check),
        Check::Command { command, status, prints } => command_ends(root, &log, command, *status, prints),
        Check::Example { name, arguments, status, prints } => {
            command_ends(root, &log, &build_command(name), 0, "")?;
            let program = workspace.target.join("debug/examples").join(name);
            let program =
                program.to_str().ok_or("the directory of built programs has a name that is not text")?;
            let command: Vec<&str> = [program].iter().chain(*arguments).copied().collect();
            command_ends(root, &log, &command, *status, prints)
        }
        Check::Tested { by, name } => {
            let file = root.join(by);
            let text = std::fs::read_to_string(&file)
                .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            let starts = [format!("\"{name}\""), format!("\"{name}{{}}\"")];
            if starts.iter().any(|start| text.contains(start)) {
                return Ok(End::Passed);
            }
            Err(format!("expected that {by} starts it, found no `{name}` there"))
        }
        Check::Beside { rust, python } => is_as_short(&root.join(path), rust, python),
        Check::Table { file, header, rows } => {
            let file = root.join(path).join(file);
            let text = std::fs::read_to_string(&file)
                .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            let found = text.lines().next().unwrap_or_default();
            if found != *header {
                return Err(format!("expected the header `{header}`, found `{found}`"));
            }
            let found = text.lines().count() - 1;
            if found == *rows { Ok(()) } else { Err(format!("expected {rows} rows, found {found}")) }
        }
    };
    done.map(|()| End::Passed)
}

/// Whether a Rust program has at most 1.2 times the lines of code of a Python program.
fn is_as_short(directory: &Path, rust: &str, python: &str) -> Result<(), String> {
    let lines = |file: &str, comment: &str| {
        let path = directory.join(file);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with(comment);
        Ok::<_, String>(text.lines().filter(is_code).count())
    };
    let (ours, theirs) = (lines(rust, "//")?, lines(python, "#")?);
    if ours * 5 <= theirs * 6 {
        return Ok(());
    }
    Err(format!("{rust} has {ours} lines of code, {python} has {theirs}; expected at most 1.2 times as many"))
}

fn command_ends(root: &Path, log: &Path, command: &[&str], status: i32, prints: &str) -> Result<(), String> {
    let (program, arguments) = command.split_first().ok_or("no command")?;
    let task = Task::new(program, arguments)
        .directory(root)
        .variable("TOOLPOST_NO_NETWORK", "1")
        .limit(Duration::from_mins(15));
    let captured = task.capture_to(log)?;
    expect(status, prints, captured.status, &captured.text, &captured.errors)
        .map_err(|error| format!("`{}` {error}", task.line()))
}

fn expect(status: i32, prints: &str, found: Option<i32>, text: &str, errors: &str) -> Result<(), String> {
    if found != Some(status) {
        let found = found.map_or("a signal or the time limit".to_owned(), |found| format!("status {found}"));
        return Err(format!("ended with {found}, expected status {status}\n{text}{errors}"));
    }
    if !text.contains(prints) && !errors.contains(prints) {
        return Err(format!("did not print `{prints}`\n{text}{errors}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn tree(root: &Path) -> Workspace {
        Workspace {
            root: root.to_owned(),
            files: BTreeSet::new(),
            packages: Vec::new(),
            target: root.to_owned(),
        }
    }

    #[test]
    fn a_command_must_end_and_print_as_written() {
        let rows = [
            (Some(0), "a wet year", "", true),
            (Some(0), "", "a wet year", true),
            (Some(0), "a dry year", "", false),
            (Some(1), "a wet year", "", false),
            (None, "a wet year", "", false),
        ];
        for (status, text, errors, good) in rows {
            assert_eq!(expect(0, "wet", status, text, errors).is_ok(), good, "{status:?} {text} {errors}");
        }
    }

    #[test]
    fn an_example_that_tests_start_is_named_there() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("it.rs"), "start(\"server\")").unwrap();
        let check = |name| {
            one(&tree(directory.path()), directory.path(), "", 0, &Check::Tested { by: "it.rs", name })
        };
        assert_eq!(check("server"), Ok(End::Passed));
        assert!(check("serve").is_err());
    }

    #[test]
    fn a_program_may_have_a_fifth_more_lines_of_code_than_its_python() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.py"), "# comment\n\na\nb\nc\nd\ne\n").unwrap();
        std::fs::write(directory.path().join("a.rs"), "//! comment\na\nb\nc\nd\ne\n\nf\n").unwrap();
        std::fs::write(directory.path().join("b.rs"), "a\nb\nc\nd\ne\nf\ng\n").unwrap();
        assert_eq!(is_as_short(directory.path(), "a.rs", "a.py"), Ok(()));
        let found = "b.rs has 7 lines of code, a.py has 5; expected at most 1.2 times as many";
        assert_eq!(is_as_short(directory.path(), "b.rs", "a.py"), Err(found.to_owned()));
    }

    #[test]
    fn a_table_must_be_whole() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("t.csv"), "a,b\n1,2\n3,4\n").unwrap();
        let check = |header, rows| {
            one(
                &tree(directory.path()),
                directory.path(),
                "",
                0,
                &Check::Table { file: "t.csv", header, rows },
            )
        };
        assert_eq!(check("a,b", 2), Ok(End::Passed));
        assert_eq!(check("a,b", 3), Err("expected 3 rows, found 2".to_owned()));
        assert_eq!(check("a;b", 2), Err("expected the header `a;b`, found `a,b`".to_owned()));
    }
}

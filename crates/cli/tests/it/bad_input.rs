//! Invalid input: exit code, reason and hint, as text and as JSON.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use serde_json::Value;

use crate::support::{Finished, TestEnv, repository};

/// One kind of bad input.
struct Case {
    words: &'static [&'static str],
    exit: i32,
    code: &'static str,
    /// Parts of the message.
    says: &'static [&'static str],
    /// Part of a hint.
    hint: &'static str,
}

const fn case(
    words: &'static [&'static str],
    exit: i32,
    code: &'static str,
    says: &'static [&'static str],
    hint: &'static str,
) -> Case {
    Case { words, exit, code, says, hint }
}

const SCRIPT: &str = "script:hello.yaml";

/// Every row runs twice: as text and with `--format json`.
const CASES: &[Case] = &[
    // The command line.
    case(&["nosuch"], 2, "USAGE", &["unrecognized subcommand 'nosuch'"], "--help"),
    case(&["runn"], 2, "USAGE", &["'runn'"], "'run'"),
    case(&["tools", "--nosuch"], 2, "USAGE", &["'--nosuch'"], "--help"),
    case(&["help", "exit-code"], 2, "USAGE", &["unknown command or topic `exit-code`"], "`exit-codes`"),
    case(&["schema", "events"], 2, "USAGE", &["no schema `events`"], "`event`"),
    case(&["completions", "bsh"], 2, "USAGE", &["'bsh'", "bash, elvish, fish"], "'bash'"),
    case(&["--log", "a=b=c", "tools"], 2, "USAGE", &["log filter `a=b=c`"], "toolpost::call=debug"),
    case(&["--log-file", "no/such/log", "tools"], 2, "USAGE", &["log file `no/such/log`"], "Check the name"),
    case(&["-q", "-v", "tools"], 2, "USAGE", &["'--quiet'", "'--verbose...'"], "--help"),
    // Targets and tools.
    case(
        &["call", "nosuch"],
        2,
        "USAGE",
        &["unknown target `nosuch`"],
        "`toolpost tools` lists the built-in tools",
    ),
    case(&["call", "builtin:calculat"], 2, "USAGE", &["`builtin:calculat`"], "`builtin:calculate`"),
    case(&["call", "builtin"], 2, "USAGE", &["`builtin` has ", " tools: name one"], "`toolpost tools`"),
    case(&["call", "builtin", "calculat"], 1, "NOT_FOUND", &["`calculat`"], "`calculate`"),
    case(&["tools", "nosuch"], 2, "USAGE", &["unknown target `nosuch`"], "`toolpost tools`"),
    case(&["tools", "--manifest", "raed_file"], 2, "USAGE", &["unknown tool `raed_file`"], "`read_file`"),
    // Arguments of tools.
    case(
        &["call", "calculate", "expression=1", "variables=3"],
        1,
        "INVALID_INPUT",
        &["/variables", "found"],
        "--manifest calculate",
    ),
    case(
        &["call", "read_file", "path=a", "offset=many"],
        1,
        "INVALID_INPUT",
        &["/offset", "expected integer", "many"],
        "--manifest read_file",
    ),
    case(&["call", "calculate"], 1, "MISSING_PARAM", &["`expression` is missing"], "--manifest calculate"),
    case(
        &["call", "calculate", "expresion=1"],
        1,
        "MISSING_PARAM",
        &["`expresion`"],
        "Did you mean `expression`?",
    ),
    case(
        &["call", "calculate", "1+1"],
        2,
        "USAGE",
        &["`1+1` is not an argument of `calculate`"],
        "key=value",
    ),
    case(&["call", "calculate", "=1"], 2, "USAGE", &["`=1` is not an argument"], "key=value"),
    case(
        &["call", "calculate", "expression=1", "expression=2"],
        2,
        "USAGE",
        &["duplicate argument `expression`"],
        "once",
    ),
    case(&["call", "calculate", "{\"expression\": 1"], 2, "USAGE", &["not JSON", "line 1"], "key=value"),
    case(&["call", "calculate", "@no.json"], 2, "USAGE", &["`no.json`: No such file"], "Check the name"),
    case(&["call", "calculate", "@latin1.json"], 2, "USAGE", &["`latin1.json`", "utf-8"], "UTF-8"),
    case(
        &["call", "calculate", "@directory"],
        2,
        "USAGE",
        &["`directory`: Is a directory"],
        "Name a file in it",
    ),
    case(
        &["call", "calculate", "expression=1", "--meta", "fact"],
        2,
        "USAGE",
        &["`--meta fact`", "KEY=VALUE"],
        "NAME=value",
    ),
    case(
        &["call", "calculate", "expression=1", "--priority", "huge"],
        2,
        "USAGE",
        &["`huge` is not a priority"],
        "--help",
    ),
    case(
        &["call", "calculate", "expression=1", "--timeout", "5x"],
        2,
        "USAGE",
        &["`5x` is not a duration"],
        "--help",
    ),
    case(
        &["call", "calculate", "expression=1", "--workdir", "nosuch"],
        2,
        "USAGE",
        &["directory `nosuch`"],
        "Check the name",
    ),
    case(
        &["call", "calculate", "expression=1", "--approve", "calculat"],
        2,
        "USAGE",
        &["`--approve calculat`"],
        "`calculate`",
    ),
    case(
        &["call", "calculate", "expression=1", "--ask", "--no-input"],
        5,
        "PERMISSION",
        &["calculate"],
        "--approve",
    ),
    case(
        &["call", "calculate", "expression=1", "--level", "maximal"],
        2,
        "USAGE",
        &["`maximal`", "standard, strict"],
        "--help",
    ),
    // Paths.
    case(
        &["call", "read_file", "path=nosuch.txt"],
        1,
        "INVALID_PATH",
        &["`nosuch.txt` does not exist"],
        "list_directory",
    ),
    case(&["call", "read_file", "path=../secret"], 1, "INVALID_PATH", &["`..`"], "working"),
    case(&["call", "read_file", "path=directory/../../secret"], 1, "INVALID_PATH", &["`..`"], "working"),
    case(&["call", "read_file", "path=/etc/passwd"], 1, "INVALID_PATH", &["/etc/passwd"], "working"),
    case(&["call", "read_file", "path=out"], 1, "INVALID_PATH", &["symbolic link"], "working"),
    case(&["call", "read_file", "{\"path\": \"a\\u0000b\"}"], 1, "INVALID_PATH", &["NUL"], ""),
    // Code.
    case(&["exec", "no.py"], 2, "USAGE", &["the code `no.py`: No such file"], "Check the name"),
    case(&["exec", "notes.txt"], 2, "USAGE", &["language of `notes.txt`"], "--lang python"),
    case(&["exec", "-"], 2, "USAGE", &["language of `-`"], "--lang python"),
    case(&["exec", "--lang", "pythn", "notes.txt"], 2, "USAGE", &["`pythn`", "`python`"], "--help"),
    case(&["exec", "latin1.py"], 2, "USAGE", &["`latin1.py`", "utf-8"], "UTF-8"),
    case(&["exec", "directory.py"], 2, "USAGE", &["`directory.py`: Is a directory"], "Name a file in it"),
    case(&["exec", "ls", "directory"], 2, "USAGE", &["'directory'"], "toolpost exec"),
    case(&["exec"], 2, "USAGE", &["CODE-FILE", "COMMAND"], "--help"),
    case(&["exec", "--lang", "python", "--", "ls"], 2, "USAGE", &["`--lang` is for code"], "before `--`"),
    case(&["exec", "--", "no-such-program"], 2, "SANDBOX", &["`no-such-program`"], "path"),
    case(
        &["exec", "--level", "maximal", "--", "true"],
        2,
        "USAGE",
        &["`maximal`", "standard, strict"],
        "--help",
    ),
    case(&["exec", "--allow-degraded", "--", "true"], 2, "USAGE", &["--level"], "--help"),
    case(&["exec", "--memory", "1.5G", "--", "true"], 2, "USAGE", &["`1.5G` is not a size"], "--help"),
    case(&["exec", "--memory", "0", "--", "true"], 2, "SANDBOX", &["`memory` is 0", "expected"], ""),
    case(&["exec", "--cpu", "nan", "--", "true"], 2, "SANDBOX", &["`cpu_quota`", "expected"], ""),
    case(&["exec", "--env", "NAME", "--", "true"], 2, "USAGE", &["`--env NAME`", "KEY=VALUE"], "NAME=value"),
    case(&["exec", "--stdin", "no.txt", "--", "cat"], 2, "SANDBOX", &["`no.txt`", "No such file"], ""),
    case(&["exec", "--attach", "no.csv", "--", "cat"], 2, "SANDBOX", &["no.csv", "No such file"], ""),
    case(
        &["exec", "--workdir", "nosuch", "--", "true"],
        2,
        "USAGE",
        &["directory `nosuch`"],
        "Check the name",
    ),
    case(&["exec", "--timeout", "0s", "--", "true"], 2, "USAGE", &["`0s`", "above 0"], "--help"),
    // Runs.
    case(&["run", "-p", "x", "--max-time", "0s"], 2, "USAGE", &["`0s`", "above 0", "1m30s"], "--help"),
    case(&["run", "-p", "x", "--max-time", "0ms"], 2, "USAGE", &["--max-time", "`0ms`", "above 0"], "--help"),
    case(&["run", "-p", "x", "--max-tokens", "0"], 2, "USAGE", &["--max-tokens", "1.."], "--help"),
    case(&["run", "-p", "x", "--config", "tool_timeout=0s"], 2, "USAGE", &["tool_timeout", "above 0"], ""),
    case(
        &["run", "-p", "x", "--output-schema", "no-schema.json"],
        2,
        "USAGE",
        &["the schema `no-schema.json`: ", "strnig"],
        "`--output-schema` takes a file",
    ),
    case(&["run"], 2, "USAGE", &["--prompt", "--file"], "--help"),
    case(&["run", "-p", ""], 2, "USAGE", &["the task is empty"], "-p TEXT"),
    case(&["run", "-f", "empty.txt"], 2, "USAGE", &["the task is empty"], "-f FILE"),
    case(&["run", "-f", "no.txt"], 2, "USAGE", &["the task `no.txt`"], "Check the name"),
    case(&["run", "-f", "latin1.json"], 2, "USAGE", &["the task `latin1.json`"], "UTF-8"),
    case(&["run", "-p", "x", "-f", "y"], 2, "USAGE", &["'--prompt <TEXT>'", "'--file <FILE>'"], "--help"),
    case(&["run", "-p", "x"], 3, "AUTH", &["no model is named, and no key is set"], "ANTHROPIC_API_KEY"),
    case(&["run", "-p", "x"], 3, "AUTH", &["no key"], "script:FILE"),
    case(&["run", "-p", "x"], 3, "AUTH", &["no key"], "Ollama"),
    case(&["run", "-p", "x", "-m", "claude-x"], 3, "AUTH", &["ANTHROPIC_API_KEY"], "key"),
    case(
        &["run", "-p", "x", "-m", "antropic/x"],
        2,
        "CONFIGURATION",
        &["`antropic`", "`anthropic`"],
        "help models",
    ),
    case(
        &["run", "-p", "x", "-m", "gtp-7"],
        2,
        "CONFIGURATION",
        &["`gtp-7`", "PROVIDER/NAME"],
        "help models",
    ),
    case(
        &["run", "-p", "x", "-m", "script:no.yaml"],
        2,
        "SCRIPT",
        &["no.yaml", "No such file"],
        "help scripts",
    ),
    case(
        &["run", "-p", "x", "-m", "script:typo.yaml"],
        2,
        "SCRIPT",
        &["typo.yaml", "`txt`", "line 2", "`text`"],
        "help scripts",
    ),
    case(
        &["run", "-p", "x", "-m", "script:latin1.json"],
        2,
        "SCRIPT",
        &["latin1.json", "UTF-8"],
        "help scripts",
    ),
    case(
        &["run", "-p", "x", "-m", "replay:no.jsonl"],
        2,
        "SCRIPT",
        &["no.jsonl", "No such file"],
        "`--record FILE`",
    ),
    case(&["run", "-p", "x", "-m", "replay:hello.yaml"], 2, "SCRIPT", &["hello.yaml"], ""),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--tools", "raed_file"],
        2,
        "USAGE",
        &["`raed_file`"],
        "`read_file`",
    ),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--approve", "run_cod"],
        2,
        "USAGE",
        &["`--approve run_cod`"],
        "`run_code`",
    ),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--approve", "zzz"],
        2,
        "USAGE",
        &["`--approve zzz`"],
        "There are: read_file",
    ),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--attach", "no.csv"],
        2,
        "USAGE",
        &["attachment `no.csv`"],
        "Check the name",
    ),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--attach", "notes.txt", "--attach", "directory/notes.txt"],
        2,
        "USAGE",
        &["two attachments"],
        "Rename",
    ),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--attach", "/dev/zero"],
        2,
        "USAGE",
        &["/dev/zero", "neither a file nor a directory"],
        "",
    ),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--workdir", "no"],
        2,
        "USAGE",
        &["working directory `no`"],
        "Check the name",
    ),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--workdir", "notes.txt"],
        2,
        "USAGE",
        &["notes.txt", "not a directory"],
        "",
    ),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--workdir", "directory", "--attach", "notes.txt"],
        2,
        "USAGE",
        &["notes.txt"],
        "Copy it there",
    ),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--record", "notes.txt"],
        2,
        "USAGE",
        &["recording `notes.txt`", "exists"],
        "Nothing is overwritten",
    ),
    case(&["run", "-p", "x", "-m", SCRIPT, "--temperature", "nan"], 2, "USAGE", &["0 to 2"], "--help"),
    case(&["run", "-p", "x", "-m", SCRIPT, "--temperature", "2.1"], 2, "USAGE", &["0 to 2"], "--help"),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--effort", "hihg"],
        2,
        "USAGE",
        &["minimal, low", "`high`"],
        "--help",
    ),
    case(&["run", "-p", "x", "-m", SCRIPT, "--max-iterations", "0"], 2, "USAGE", &["'0'"], "--help"),
    case(&["run", "-p", "x", "-m", SCRIPT, "--max-tokens", "0"], 2, "USAGE", &["'0'"], "--help"),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--max-time", "soon"],
        2,
        "USAGE",
        &["`soon` is not a duration"],
        "--help",
    ),
    case(
        &["run", "-p", "x", "-m", SCRIPT, "--level", "strikt"],
        2,
        "USAGE",
        &["`strikt`", "strict"],
        "--help",
    ),
];

/// A world with the files that the cases name.
fn world() -> TestEnv {
    let env = TestEnv::new();
    env.write("hello.yaml", "turns:\n  - text: hello\n");
    env.write("typo.yaml", "turns:\n  - txt: hello\n");
    env.write("no-schema.json", "{\"type\": \"strnig\"}");
    env.write("latin1.json", b"{\"expression\": \"\xe9\"}");
    env.write("latin1.py", b"print('\xe9')");
    env.write("notes.txt", "notes");
    env.write("empty.txt", " \n");
    env.write("directory/notes.txt", "more notes");
    env.write("directory.py/notes.txt", "no code");
    env.write("../secret", "not for you");
    std::os::unix::fs::symlink("../secret", env.path("out")).unwrap();
    env
}

/// The faults of an error's text.
fn faults(env: &TestEnv, case: &Case) -> Vec<String> {
    let Case { words, exit, code, says, hint } = case;
    let person = env.run(*words);
    let program = env.run(["--format", "json"].iter().chain(*words));
    let mut faults = Vec::new();
    let mut expect = |holds: bool, what: &str, of: &Finished| {
        if !holds {
            faults.push(format!("expected {what}: {of}"));
        }
    };
    for finished in [&person, &program] {
        expect(finished.status.code() == Some(*exit), &format!("exit status {exit}"), finished);
        expect(
            !finished.out.contains("not for you") && !finished.err.contains("not for you"),
            "no secret",
            finished,
        );
    }
    for part in says.iter().chain([hint]) {
        expect(person.err.contains(part), &format!("`{part}`"), &person);
    }
    expect(person.err.lines().any(|line| line.starts_with("error: ")), "an error", &person);
    let error = program.error();
    expect(error["code"] == *code || code.is_empty(), code, &program);
    for part in *says {
        expect(error["message"].as_str().unwrap().contains(part), &format!("`{part}`"), &program);
    }
    let hints: Vec<_> = error["hints"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    expect(
        hint.is_empty() || hints.iter().any(|text| text.contains(hint)),
        &format!("hint `{hint}`"),
        &program,
    );
    faults
}

#[test]
fn every_invalid_input_has_an_exit_code_a_reason_and_a_hint() {
    let env = world();
    let faults: Vec<String> = CASES.iter().flat_map(|case| faults(&env, case)).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n---\n"));
}

#[test]
fn an_invalid_command_line_writes_nothing() {
    let env = world();
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(env.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    for mistake in
        [["--tools", "nosuch"], ["--approve", "nosuch"], ["--attach", "nosuch"], ["--model", "nosuch"]]
    {
        let words = ["run", "-p", "x", "--record", "new.jsonl"];
        let model = if mistake[0] == "--model" { &[][..] } else { &["--model", SCRIPT] };
        env.run(words.iter().chain(model).chain(&mistake)).exit(2);
    }
    assert_eq!(names(), before);
}

#[test]
fn an_argument_that_is_not_utf_8() {
    let env = TestEnv::new();
    for words in [&["call", "calculate"][..], &["run", "--model", "script:x", "-p"], &["tools", "--manifest"]]
    {
        let bad = OsString::from_vec(b"expression=\xff".to_vec());
        let words: Vec<OsString> = words.iter().map(OsString::from).chain([bad]).collect();
        let finished = env.run(&words).exit(2);
        assert!(finished.err.contains("invalid UTF-8"), "{finished}");
        let program: Vec<OsString> = [OsString::from("--json")].into_iter().chain(words).collect();
        assert!(env.run(&program).exit(2).error()["message"].as_str().unwrap().contains("UTF-8"));
    }
}

#[test]
fn file_names_that_are_not_utf_8_are_fine() {
    use std::os::unix::ffi::OsStrExt as _;
    let env = TestEnv::new();
    let name = std::ffi::OsStr::from_bytes(b"t\xffsk.txt");
    std::fs::write(env.path("").join(name), "hello").unwrap();
    env.write("hello.yaml", "turns:\n  - text: hello\n");
    let words = [OsString::from("run"), "--model".into(), SCRIPT.into(), "-f".into(), name.into()];
    assert_eq!(env.run(words).ok().out, "hello\n");
}

/// 100 MiB of JSON: one object with one long text.
fn large() -> Vec<u8> {
    let mut json = b"{\"expression\": \"".to_vec();
    json.resize(100 << 20, b'1');
    json.extend(b"\"}");
    json
}

#[test]
fn a_hundred_mebibytes_of_arguments() {
    let env = TestEnv::new();
    env.write("large.json", large());
    for finished in [
        env.run(["call", "calculate", "@large.json", "--json"]),
        env.run_with(large(), ["call", "calculate", "-", "--json"]),
    ] {
        let error = finished.exit(6).error();
        assert_eq!(error["code"], "LIMIT");
        assert!(error["message"].as_str().unwrap().contains("larger than 16 MiB"), "{error}");
        assert!(error["hints"][0].as_str().unwrap().contains("pass its path"), "{error}");
    }
}

#[test]
fn a_hundred_mebibytes_of_task_code_and_script() {
    let env = TestEnv::new();
    env.write("large.txt", large());
    std::fs::rename(env.path("large.txt"), env.path("large.py")).unwrap();
    for (words, exit) in [
        (&["run", "--model", "script:x", "-f", "large.py", "--json"][..], 2),
        (&["run", "--model", "script:large.py", "-p", "x", "--json"], 2),
        (&["run", "--model", "replay:large.py", "-p", "x", "--json"], 2),
        (&["exec", "large.py", "--json"], 2),
    ] {
        let error = env.run(words).exit(exit).error();
        let message = error["message"].as_str().unwrap();
        assert!(message.len() < 500 && !message.contains("1111"), "{words:?}: {message:.500}");
    }
}

#[test]
fn a_binary_table() {
    let env = TestEnv::new();
    env.write("table.csv", b"a,b\n\x00\xff\xfe\x81,\x00\n");
    let error = env.run(["call", "read_file", "path=table.csv", "--json"]).exit(1).error();
    assert!(error["message"].as_str().unwrap().contains("table.csv"), "{error}");
    assert!(!error["hints"].as_array().unwrap().is_empty(), "{error}");
}

#[test]
fn a_broken_pipe_is_no_failure() {
    let env = TestEnv::new();
    let script = repository("examples/weather/weather.yaml");
    let table = repository("examples/weather/seattle-weather.csv");
    let model = format!("script:{}", script.display());
    let run = ["run", "-p", "x", "--model", &model, "--attach", table.to_str().unwrap(), "--format", "jsonl"];
    for words in [
        &run[..],
        &["tools"],
        &["tools", "--json"],
        &["--help"],
        &["help", "run"],
        &["schema", "event"],
        &["completions", "bash"],
        &["doctor"],
        &["call", "calculate", "expression=1"],
        &["exec", "--", "seq", "100000"],
    ] {
        let finished = env.run_into_nothing(words);
        assert_eq!(finished.status.code(), Some(0), "{finished}");
        let loud = finished
            .err
            .lines()
            .any(|line| line.contains("error") || line.contains("panicked") || line.contains("roken pipe"));
        assert!(!loud, "{finished}");
    }
}

#[test]
fn a_full_disk_is_reported() {
    let env = TestEnv::new();
    for words in [&["tools"][..], &["schema", "event"], &["call", "calculate", "expression=1"], &["--help"]] {
        let finished = env.run_into("/dev/full", words).exit(6);
        assert!(finished.err.contains("standard output: No space left on device"), "{finished}");
    }
}

//! Invalid requests: each is rejected at once, in a sentence with a fix.

use std::time::Duration;

use toolpost_sandbox::{Language, Level, Limits, Program, Sandbox, Source, Stdin, Workspace};

use crate::support::run;

/// A request, and the expected words of its error.
type Row = (&'static str, fn() -> Result<(), toolpost_sandbox::Error>, &'static [&'static str]);

#[expect(clippy::needless_pass_by_value, reason = "a row of the table reads better")]
fn refused(sandbox: Sandbox, program: Program) -> Result<(), toolpost_sandbox::Error> {
    run(&sandbox, &program).map(|_| ())
}

fn limited(change: fn(Limits) -> Limits) -> Result<(), toolpost_sandbox::Error> {
    refused(Sandbox::new().limits(change(Limits::default())), Program::argv(["true"]))
}

fn python(code: impl Into<String>) -> Program {
    Program::code(Language::Python, code)
}

fn named(name: &str) -> Result<(), toolpost_sandbox::Error> {
    refused(Sandbox::new().file(name, Source::Bytes(vec![])), Program::argv(["true"]))
}

const ROWS: &[Row] = &[
    ("unknown language", || "pyhton".parse::<Language>().map(|_| ()), &["`pyhton`", "did you mean `python`"]),
    (
        "language of nobody",
        || "klingon".parse::<Language>().map(|_| ()),
        &["unknown language `klingon`", "python"],
    ),
    ("empty language", || "".parse::<Language>().map(|_| ()), &["unknown language ``"]),
    ("language with escapes", || "\u{1b}[2Jx".parse::<Language>().map(|_| ()), &["unknown language", "x"]),
    ("unknown level", || "strikt".parse::<Level>().map(|_| ()), &["`strikt`", "did you mean `strict`"]),
    ("the level without confinement", || "unconfined".parse::<Level>().map(|_| ()), &["unknown level"]),
    ("code with NUL", || refused(Sandbox::new(), python("a\0b")), &["code", "NUL byte at offset 1"]),
    (
        "100 MiB of code",
        || refused(Sandbox::new(), python("1".repeat(100 << 20))),
        &["code has 104857600 bytes", "at most 8388608", "upload large data as a file"],
    ),
    ("no program", || refused(Sandbox::new(), Program::argv([""])), &["the argument list is empty"]),
    ("argument with NUL", || refused(Sandbox::new(), Program::argv(["a", "b\0"])), &["argument", "NUL byte"]),
    (
        "program that is not there",
        || refused(Sandbox::new(), Program::argv(["no-such-program"])),
        &["`no-such-program`", "not found"],
    ),
    ("program that is a directory", || refused(Sandbox::new(), Program::argv(["/usr"])), &["/usr"]),
    (
        "no time",
        || limited(|limits| limits.with_wall(Duration::ZERO)),
        &["limit `wall` is 0", "at least 1 ms"],
    ),
    (
        "no processor time",
        || limited(|limits| limits.with_cpu(Duration::ZERO)),
        &["limit `cpu`", "at least 1 ms"],
    ),
    ("no memory", || limited(|limits| limits.with_memory(0)), &["limit `memory` is 0", "at least"]),
    ("no process", || limited(|limits| limits.with_processes(0)), &["limit `processes` is 0", "at least 1"]),
    (
        "no descriptors",
        || limited(|limits| limits.with_descriptors(0)),
        &["limit `descriptors` is 0", "at least 16"],
    ),
    ("no file size", || limited(|limits| limits.with_file_size(0)), &["limit `file_size` is 0"]),
    ("no workspace", || limited(|limits| limits.with_workspace_bytes(0)), &["limit `workspace_bytes` is 0"]),
    ("no inodes", || limited(|limits| limits.with_workspace_inodes(0)), &["limit `workspace_inodes` is 0"]),
    ("no output", || limited(|limits| limits.with_stdout(0)), &["limit `stdout` is 0"]),
    ("no errors", || limited(|limits| limits.with_stderr(0)), &["limit `stderr` is 0"]),
    ("no output at all", || limited(|limits| limits.with_output_total(0)), &["limit `output_total` is 0"]),
    ("no value", || limited(|limits| limits.with_value_bytes(0)), &["limit `value_bytes` is 0"]),
    ("no artifacts", || limited(|limits| limits.with_artifacts(0)), &["limit `artifacts` is 0"]),
    (
        "no artifact bytes",
        || limited(|limits| limits.with_artifact_bytes(0)),
        &["limit `artifact_bytes` is 0"],
    ),
    (
        "more output kept than is taken",
        || limited(|limits| limits.with_stdout(8 << 20).with_output_total(1 << 20)),
        &["limit `stdout` is 8388608", "at most `output_total`"],
    ),
    (
        "a file larger than its directory",
        || limited(|limits| limits.with_file_size(8 << 20).with_workspace_bytes(1 << 20)),
        &["limit `file_size` is 8388608", "at most `workspace_bytes`"],
    ),
    ("no share of a processor", || limited(|limits| limits.with_cpu_quota(0.0)), &["limit `cpu_quota` is 0"]),
    (
        "no number as a share",
        || limited(|limits| limits.with_cpu_quota(f32::NAN)),
        &["limit `cpu_quota` is NaN"],
    ),
    ("a negative share", || limited(|limits| limits.with_cpu_quota(-1.0)), &["limit `cpu_quota` is -1"]),
    (
        "an upload above its limit",
        || {
            let sandbox = Sandbox::new()
                .limits(Limits::default().with_workspace_bytes(4096))
                .file("x", Source::Bytes(vec![0; 10_000]));
            refused(sandbox, Program::argv(["true"]))
        },
        &["upload has 10000 bytes", "at most 4096", "raise the limit `workspace_bytes`"],
    ),
    ("an upload above", || named("../x"), &["file name `../x` is not allowed", "`..`"]),
    ("an absolute upload", || named("/etc/x"), &["must be relative to the workspace"]),
    ("an upload as an option", || named("-rf"), &["like an option"]),
    ("an upload as a device", || named("CON"), &["device name"]),
    ("an upload with a line break", || named("a\nb"), &["control or invisible character"]),
    ("an upload with a reversed name", || named("a\u{202e}b"), &["control or invisible character"]),
    ("an upload without a name", || named(""), &["it is empty"]),
    (
        "an upload that is a device",
        || refused(Sandbox::new().file("x", Source::Path("/dev/zero".into())), Program::argv(["true"])),
        &["/dev/zero", "not a regular file"],
    ),
    (
        "input from a directory",
        || refused(Sandbox::new().stdin(Stdin::File("/etc".into())), Program::argv(["true"])),
        &["/etc", "not a regular file"],
    ),
    (
        "the root as workspace",
        || refused(Sandbox::new().workspace(Workspace::Host("/".into())), Program::argv(["true"])),
        &["workspace `/`", "cannot be a workspace"],
    ),
    (
        "a workspace that is not there",
        || refused(Sandbox::new().workspace(Workspace::Host("/no/such".into())), Program::argv(["true"])),
        &["workspace `/no/such`", "No such file"],
    ),
    (
        "files for a read-only directory",
        || {
            let sandbox = Sandbox::new()
                .workspace(Workspace::ReadOnlyHost("/usr".into()))
                .file("x", Source::Bytes(vec![]));
            refused(sandbox, Program::argv(["true"]))
        },
        &["read-only"],
    ),
    (
        "showing the kernel's directories",
        || refused(Sandbox::new().read_only("/proc"), Program::argv(["true"])),
        &["/proc", "never shown"],
    ),
    (
        "a variable of the linker",
        || refused(Sandbox::new().env("LD_PRELOAD", "x"), Program::argv(["true"])),
        &["variable `LD_PRELOAD` is not allowed"],
    ),
];

/// The processor time of this thread: on a busy machine wall time proves nothing.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|used| used.parse().ok()).unwrap_or_default())
}

#[test]
fn invalid_requests_are_rejected_at_once_with_a_clear_sentence() {
    let mut wrong = Vec::new();
    for (name, request, words) in ROWS {
        let start = processor_time();
        let result = request();
        let took = processor_time().saturating_sub(start);
        let Err(error) = result else {
            wrong.push(format!("{name}: accepted"));
            continue;
        };
        let text = error.to_string();
        if let Some(missing) = words.iter().find(|word| !text.contains(**word)) {
            wrong.push(format!("{name}: no {missing:?} in: {text}"));
        }
        if text.chars().any(char::is_control) || text.len() > 600 {
            wrong.push(format!("{name}: not fit for a terminal: {text:?}"));
        }
        if took > Duration::from_secs(2) {
            wrong.push(format!("{name}: took {took:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// If limits contradict each other, the smaller one ends the run and is named.
#[test]
fn the_smaller_of_contradictory_limits_counts() {
    use toolpost_sandbox::Verdict;
    let sandbox = |limits: Limits| Sandbox::new().limits(limits);
    let limits = Limits::default().with_wall(Duration::from_millis(400)).with_cpu(Duration::from_mins(1));
    let outcome = run(&sandbox(limits), &Program::argv(["sleep", "20"])).unwrap();
    assert_eq!(outcome.verdict, Verdict::Timeout { limit_ms: 400 });
}

/// Hostile names wherever errors quote a name.
#[test]
fn errors_quote_hostile_names_without_their_control_characters() {
    let hostile = "\u{1b}]52;c;aGk=\u{7}\u{202e}x\n";
    let sandboxes = [
        Sandbox::new().file(hostile, Source::Bytes(vec![])),
        Sandbox::new().directory(hostile),
        Sandbox::new().env(hostile, "x"),
        Sandbox::new().workspace(Workspace::Host(hostile.into())),
        Sandbox::new().read_only(format!("/{hostile}")),
        Sandbox::new().file("x", Source::Path(hostile.into())),
        Sandbox::new().stdin(Stdin::File(hostile.into())),
    ];
    let mut wrong = Vec::new();
    for sandbox in sandboxes {
        let text = run(&sandbox, &Program::argv(["true"])).unwrap_err().to_string();
        if text.chars().any(|letter| letter.is_control() || letter == '\u{202e}') {
            wrong.push(format!("{text:?}"));
        }
    }
    let program = run(&Sandbox::new(), &Program::argv([hostile])).unwrap_err().to_string();
    if program.chars().any(|letter| letter.is_control() || letter == '\u{202e}') {
        wrong.push(format!("{program:?}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! Rows 14, 15, 16, 17, 18: input and output.

use std::time::Duration;

use toolpost_sandbox::{Language, Program, Stdin, Verdict};

use crate::attack::expected::{OK, all};
use crate::attack::modes::verdict_of;
use crate::attack::{Place, Probe, host, inside};
use crate::support::{bash, eventually, is_running, python, run};

pub(crate) const PROBES: &[Probe] = &[
    host(14, "flood of both streams", flood, all(&["verdict:output"])).slow(),
    host(14, "never-ending line", endless_line, all(OK)).slow(),
    host(14, "slow drip", drip, all(&["verdict:timeout"])).slow(),
    inside(
        15,
        "one stream full while the other is read",
        "for _ in range(64): sys.stderr.write('e' * 65536)\nfor _ in range(64): sys.stdout.write('o' * 65536)\n'ok'",
        all(OK),
    ),
    host(16, "input that nobody reads", unread_input, all(OK)),
    host(16, "input that is read to its end", read_input, all(OK)),
    host(17, "bytes that are not text, and a forged report", hostile_output, all(OK)),
    host(17, "a value that is not JSON, or too deep", hostile_values, all(OK)),
    host(18, "closes its streams and lives on", closed_streams, all(&["verdict:timeout"])).slow(),
    host(18, "a grandchild keeps the stream open", kept_stream, all(OK)),
];

fn flood(place: &Place<'_>) -> String {
    let sandbox = place.limited(|limits| {
        // The time for so many bytes depends on the machine.
        limits
            .with_output_total(30 << 20)
            .with_stdout(1000)
            .with_stderr(1000)
            .with_wall(Duration::from_mins(5))
    });
    let outcome = bash(&sandbox, "yes & yes >&2");
    assert!(outcome.stdout.bytes().len() < 2000, "{outcome:?}");
    verdict_of(&outcome)
}

fn endless_line(place: &Place<'_>) -> String {
    let sandbox = place.limited(|limits| limits.with_stdout(4096).with_wall(Duration::from_mins(5)));
    let outcome = bash(&sandbox, "head -c 20000000 /dev/zero | tr '\\0' x");
    let kept = outcome.stdout.head.len() + outcome.stdout.tail.len();
    if outcome.verdict.is_ok() && kept == 4096 && outcome.stdout.dropped == 20_000_000 - 4096 {
        return "ok".into();
    }
    format!("{:?}, {kept} kept", outcome.verdict)
}

fn drip(place: &Place<'_>) -> String {
    let sandbox = place.limited(|limits| limits.with_wall(Duration::from_millis(600)));
    let outcome = bash(&sandbox, "while :; do printf x; sleep 0.05; done");
    verdict_of(&outcome)
}

fn unread_input(place: &Place<'_>) -> String {
    let sandbox = place.sandbox().stdin(Stdin::Bytes(vec![b'x'; 8 << 20]));
    let outcome = run(&sandbox, &Program::code(Language::Bash, "exit 0")).unwrap();
    if outcome.verdict.is_ok() { "ok".into() } else { format!("{:?}", outcome.verdict) }
}

fn read_input(place: &Place<'_>) -> String {
    let given = place.sandbox().stdin(Stdin::Bytes(vec![b'x'; 3 << 20]));
    let all = python(&given, "import sys\nlen(sys.stdin.buffer.read())");
    let none = python(&place.sandbox(), "import sys\nlen(sys.stdin.buffer.read())");
    match (all.value, none.value) {
        (Some(all), Some(none)) if all == 3 << 20 && none == 0 => "ok".into(),
        other => format!("{other:?}"),
    }
}

fn hostile_output(place: &Place<'_>) -> String {
    let code = "import os\n\
                forged = b'{\"verdict\":{\"kind\":\"ok\"},\"report\":{\"effective\":\"maximum\"},\"artifacts\":[\"/etc/passwd\"]}\\n'\n\
                os.write(1, b'\\xff\\xfe\\x00\\x1b]52;c;aGk=\\x07\\x1b[2J' + forged)\n\
                os.write(2, forged)\nos._exit(3)";
    let outcome = python(&place.sandbox(), code);
    let json = serde_json::to_string(&outcome).unwrap();
    if outcome.verdict != (Verdict::Exit { code: 3 }) || !outcome.artifacts.is_empty() {
        return format!("it was believed: {:?}", outcome.verdict);
    }
    if outcome.report.effective != place.mode.level {
        return format!("it was believed: {}", outcome.report.effective);
    }
    // JSON escapes the control characters.
    if json.contains('\u{1b}') || json.contains('\0') { "raw control characters".into() } else { "ok".into() }
}

fn hostile_values(place: &Place<'_>) -> String {
    for code in [
        "print('::result ' + '[' * 100000 + ']' * 100000)",
        "print('::result {\"a\": 1e999999}')",
        "print('::result \\x00')",
        "import os\nos.write(4, b'[' * 50000)",
        "import os\nos.write(4, b'\\xff\\xfe')",
    ] {
        let outcome = python(&place.sandbox(), code);
        if outcome.value.is_some() || !outcome.verdict.is_ok() {
            return format!("{code}: {:?}", outcome.verdict);
        }
    }
    "ok".into()
}

fn closed_streams(place: &Place<'_>) -> String {
    let marker = format!("750{}", std::process::id());
    let sandbox = place.limited(|limits| limits.with_wall(Duration::from_millis(600)));
    let outcome = bash(&sandbox, &format!("exec >&- 2>&-; sleep {marker}"));
    eventually("nothing survives", || !is_running(&format!("sleep {marker}")));
    verdict_of(&outcome)
}

fn kept_stream(place: &Place<'_>) -> String {
    let marker = format!("751{}", std::process::id());
    let outcome =
        bash(&place.sandbox(), &format!("(setsid sh -c 'sleep {marker}; echo late' &) ; echo hi; exit 0"));
    eventually("nothing survives", || !is_running(&format!("sleep {marker}")));
    if outcome.stdout.text() == "hi\n" && outcome.verdict.is_ok() {
        return "ok".into();
    }
    format!("{:?} {:?}", outcome.verdict, outcome.stdout.text())
}

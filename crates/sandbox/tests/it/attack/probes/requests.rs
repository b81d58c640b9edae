//! Rows 48, 54, 58 to 61, 70: requests from a model, and host directories.

use std::sync::atomic::{AtomicBool, Ordering};

use toolpost_sandbox::{Error, Language, Layer, Program, Sandbox, Source, Workspace};

use crate::attack::expected::{OK, all};
use crate::attack::modes::{error_of, result_of};
use crate::attack::{Place, Probe, Who, host};
use crate::support::{open_directory, python, run};

const NO_DIRECTORY: (Who, &str) = (Who::Backend("docker"), "a container is given a copy of the directory");

pub(crate) const PROBES: &[Probe] = &[
    host(48, "the workspace is swapped for a link during the start", swapped, all(OK))
        .slow()
        .not_for(&[(Who::Level("minimal"), "no boundary is promised for files"), NO_DIRECTORY]),
    host(54, "names of uploads", upload_names, all(OK)),
    host(54, "uploads onto a link of a host directory", upload_over_links, all(OK)).not_for(&[NO_DIRECTORY]),
    host(58, "a host directory without masks is copied", without_masks, all(OK))
        .not_for(&[(Who::ButShared, "there are masks here"), (Who::Level("minimal"), "allowed there")]),
    host(59, "working directory and variables widen nothing", widening, all(OK)),
    host(60, "variables that redirect programs", variables, all(OK)),
    host(61, "huge arguments and variables", huge, all(OK)).slow(),
    host(61, "huge code, code with NUL", huge_code, all(OK)),
];

fn swapped(place: &Place<'_>) -> String {
    use std::os::unix::fs::symlink;
    let outer = open_directory();
    let real = outer.path().join("real");
    std::fs::create_dir(&real).unwrap();
    std::fs::write(real.join("mine"), "x").unwrap();
    let given = outer.path().join("given");
    std::fs::create_dir(&given).unwrap();
    std::fs::write(given.join("mine"), "x").unwrap();
    let done = AtomicBool::new(false);
    let target = place.world.directory();
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            let away = outer.path().join("away");
            while !done.load(Ordering::Relaxed) {
                std::fs::rename(&given, &away).unwrap();
                symlink(target, &given).unwrap();
                std::fs::remove_file(&given).unwrap();
                std::fs::rename(&away, &given).unwrap();
            }
        });
        let mut seen = Vec::new();
        for _ in 0..25 {
            let sandbox = place.sandbox().workspace(Workspace::Host(given.clone()));
            // The opened directory is the shown one: never a checked one with another shown.
            if let Ok(outcome) = run(&sandbox, &Program::argv(["ls"])) {
                seen.push((outcome.verdict.is_ok(), outcome.stdout.text()));
            }
        }
        done.store(true, Ordering::Relaxed);
        seen
    });
    // The operator's path may lead to either directory, and each is shown whole; nothing else of the host is.
    // A private copy has no sockets.
    let good = [vec!["mine"], vec!["datagrams", "secret", "socket"], vec!["secret"]];
    let shown = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    match seen.iter().find(|(ok, text)| *ok && !good.iter().any(|names| *names == shown(text))) {
        None => "ok".into(),
        Some(found) => format!("{found:?}"),
    }
}

fn upload_names(place: &Place<'_>) -> String {
    let long = "x".repeat(256);
    let path = format!("{}x", "d/".repeat(600));
    for name in [
        "",
        "/etc/x",
        "../x",
        "a/../../b",
        "a//b",
        "./a",
        "a\0b",
        "a\nb",
        "-rf",
        "d/-x",
        "CON",
        "nul.txt",
        "COM1",
        "a\\b",
        "x\u{202e}gnp.exe",
        "\u{feff}a",
        "\u{1b}[2J",
        &long,
        &path,
    ] {
        match run(&place.sandbox().file(name, Source::Bytes(vec![])), &Program::argv(["true"])) {
            Err(Error::InvalidName { .. }) => {}
            other => return format!("{name:?}: {}", result_of(&other)),
        }
    }
    let twice = place.sandbox().file("a", Source::Bytes(vec![])).file("A", Source::Bytes(vec![]));
    if !matches!(run(&twice, &Program::argv(["true"])), Err(Error::InvalidName { .. })) {
        return "two names that differ in case are taken".into();
    }
    for special in ["/dev/zero", "/dev/stdin", "/etc"] {
        let sandbox = place.sandbox().file("x", Source::Path(special.into()));
        if run(&sandbox, &Program::argv(["true"])).is_ok() {
            return format!("{special} is taken");
        }
    }
    "ok".into()
}

fn upload_over_links(place: &Place<'_>) -> String {
    use std::os::unix::fs::symlink;
    let directory = open_directory();
    symlink(place.world.directory().join("secret"), directory.path().join("file")).unwrap();
    symlink(place.world.directory(), directory.path().join("directory")).unwrap();
    for name in ["file", "directory/secret", "directory/new"] {
        let sandbox = place
            .sandbox()
            .workspace(Workspace::Host(directory.path().to_owned()))
            .file(name, Source::Bytes(b"evil".to_vec()));
        if let Ok(outcome) = run(&sandbox, &Program::argv(["true"])) {
            return format!("{name} is taken: {:?}", outcome.verdict);
        }
    }
    if std::fs::read(place.world.directory().join("secret")).unwrap() != b"canary" {
        return "the host's file was written".into();
    }
    if place.world.directory().join("new").exists() {
        "a file was made on the host".into()
    } else {
        "ok".into()
    }
}

fn without_masks(place: &Place<'_>) -> String {
    let directory = open_directory();
    std::fs::write(directory.path().join("file"), "before").unwrap();
    let at = directory.path().display();
    let sandbox = place.sandbox().workspace(Workspace::Host(directory.path().to_owned()));
    let code = format!("open('file', 'w').write('copied'); open('{at}/file', 'w')");
    let outcome = python(&sandbox, &code);
    let content = std::fs::read_to_string(directory.path().join("file")).unwrap();
    match (
        outcome.report.has(Layer::PrivateCopy),
        outcome.stderr.text().contains("PermissionError"),
        &*content,
    ) {
        (true, true, "copied") => "ok".into(),
        found => format!("{found:?}: {}", outcome.stderr.text()),
    }
}

fn widening(place: &Place<'_>) -> String {
    for directory in ["..", "/etc", "a/../..", "", "-x", "a\0b"] {
        match run(&place.sandbox().directory(directory), &Program::argv(["true"])) {
            Err(Error::InvalidName { .. }) => {}
            other => return format!("{directory:?}: {}", result_of(&other)),
        }
    }
    for path in [".", "bin", ":/bin", "/bin:", "/usr/../tmp"] {
        if run(&place.sandbox().env("PATH", path), &Program::argv(["true"])).is_ok() {
            return format!("PATH={path} is taken");
        }
    }
    if place.mode.level.name() == "minimal" {
        return "ok".into();
    }
    // A variable with a host path gives no access to it.
    let host = place.world.directory().display().to_string();
    let sandbox = place.sandbox().env("HOME", &host).env("TMPDIR", &host).env("XDG_CONFIG_HOME", &host);
    let outcome = python(
        &sandbox,
        "import os\n[name for name in ('HOME', 'TMPDIR') if os.access(os.environ[name] + '/secret', os.R_OK) and open(os.environ[name] + '/secret').read()]",
    );
    if outcome.value == Some(serde_json::json!([])) || !outcome.verdict.is_ok() {
        return "ok".into();
    }
    format!("{:?}", outcome.value)
}

fn variables(place: &Place<'_>) -> String {
    for name in [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "PYTHONSTARTUP",
        "PYTHONPATH",
        "PYTHONHOME",
        "NODE_OPTIONS",
        "BASH_ENV",
        "ENV",
        "IFS",
        "PS4",
        "PROMPT_COMMAND",
        "BASH_FUNC_ls%%",
        "GIT_SSH_COMMAND",
        "GIT_EXEC_PATH",
        "PERL5LIB",
        "RUBYOPT",
        "JAVA_TOOL_OPTIONS",
        "GLIBC_TUNABLES",
        "GCONV_PATH",
        "DYLD_INSERT_LIBRARIES",
        "A=B",
        "",
        "1A",
        "a b",
        "x\0y",
    ] {
        match run(&place.sandbox().env(name, "x"), &Program::argv(["true"])) {
            Err(Error::InvalidName { .. }) => {}
            other => return format!("{name:?}: {}", result_of(&other)),
        }
    }
    "ok".into()
}

fn huge(place: &Place<'_>) -> String {
    let try_it = |sandbox: Sandbox, program: Program| match run(&sandbox, &program) {
        Err(Error::TooLarge { .. } | Error::InvalidName { .. }) => None,
        other => Some(result_of(&other)),
    };
    let none: [&str; 0] = [];
    let attempts = [
        ("one argument", try_it(place.sandbox(), Program::argv(["true".into(), "x".repeat(200_000)]))),
        ("all arguments", try_it(place.sandbox(), Program::argv(vec!["x".repeat(100_000); 30]))),
        ("many arguments", try_it(place.sandbox(), Program::argv(vec!["x"; 2_000_000]))),
        ("one variable", try_it(place.sandbox().env("A", "x".repeat(200_000)), Program::argv(["true"]))),
        ("argument with NUL", try_it(place.sandbox(), Program::argv(["true", "a\0b"]))),
        ("variable with NUL", try_it(place.sandbox().env("A", "a\0b"), Program::argv(["true"]))),
        ("no argument", try_it(place.sandbox(), Program::argv(none))),
    ];
    let many = (0..40)
        .fold(place.sandbox(), |sandbox, number| sandbox.env(format!("A{number}"), "x".repeat(100_000)));
    if let Some(answer) = try_it(many, Program::argv(["true"])) {
        return format!("all variables: {answer}");
    }
    attempts
        .into_iter()
        .find_map(|(what, answer)| answer.map(|answer| format!("{what}: {answer}")))
        .unwrap_or_else(|| "ok".into())
}

fn huge_code(place: &Place<'_>) -> String {
    let large = run(&place.sandbox(), &Program::code(Language::Python, "1".repeat(100 << 20)));
    let nul = run(&place.sandbox(), &Program::code(Language::Python, "1\x002"));
    match (large, nul) {
        (Err(Error::TooLarge { what: "code", .. }), Err(Error::InvalidName { what: "code", .. })) => {
            "ok".into()
        }
        (large, nul) => format!("{} {}", result_of(&large), result_of(&nul)),
    }
}

/// The error of an unavailable level.
pub(super) fn refusal(sandbox: &Sandbox) -> Option<String> {
    run(sandbox, &Program::argv(["true"])).err().map(|error| error_of(&error))
}

//! Compiled languages: built in one sandbox, run in another, cached.

use std::time::{Duration, Instant};

use toolpost_sandbox::{
    Build, BuildCache, Cancel, Error, Language, Level, Limits, Program, Sandbox, Stdin, Verdict,
};

use crate::languages::{code, told};
use crate::support::{Mode, run};

/// A program in each compiled language that reads its input and repeats it.
const PROGRAMS: [(Language, &str); 5] = [
    (
        Language::C,
        "#include <stdio.h>\n#include <math.h>\nint main(void) { int n; if (scanf(\"%d\", &n) != 1) return 4;\n\
         printf(\"::result %d\\n\", (int)sqrt(n)); return 0; }",
    ),
    (
        Language::Cpp,
        "#include <iostream>\n#include <vector>\n#include <cmath>\nint main() { int n; if (!(std::cin >> n)) return 4;\n\
         std::vector<int> v{n}; std::cout << \"::result \" << std::sqrt(v[0]) << std::endl; }",
    ),
    (
        Language::Rust,
        "use std::io::Read;\nfn main() { let mut s = String::new(); std::io::stdin().read_to_string(&mut s).unwrap();\n\
         let n: f64 = s.trim().parse().unwrap_or_else(|_| std::process::exit(4)); println!(\"::result {}\", n.sqrt() as i32); }",
    ),
    (
        Language::Go,
        "package main\nimport (\"fmt\"; \"math\"; \"os\")\nfunc main() { var n float64\n\
         if _, err := fmt.Scan(&n); err != nil { os.Exit(4) }\nfmt.Printf(\"::result %d\\n\", int(math.Sqrt(n))) }",
    ),
    (
        Language::Java,
        "import java.util.*;\npublic class Root { public static void main(String[] a) { Scanner s = new Scanner(System.in);\n\
         if (!s.hasNextInt()) System.exit(4);\nSystem.out.println(\"::result \" + (int) Math.sqrt(s.nextInt())); } }",
    ),
];

/// A program in each compiled language with an error on its second line.
const BROKEN: [(Language, &str, &str); 5] = [
    (Language::C, "int main(void) {\n  return missing;\n}", "main.c:2:"),
    (Language::Cpp, "int main() {\n  return missing;\n}", "main.cpp:2:"),
    (Language::Rust, "fn main() {\n  missing();\n}", "main.rs:2:"),
    (Language::Go, "package main\nfunc main() { missing() }", "main.go:2:"),
    (Language::Java, "class Main {\n  int x = missing;\n}", "Main.java:2:"),
];

fn with_rust(sandbox: Sandbox) -> Sandbox {
    // The rustup directory of the user who builds this test.
    match option_env!("CARGO") {
        Some(cargo) => {
            let directory = std::path::Path::new(cargo).parent().unwrap().display().to_string();
            sandbox.search_path(format!("{directory}:{}", toolpost_sandbox::SYSTEM_SEARCH_PATH))
        }
        None => sandbox,
    }
}

fn cache() -> (tempfile::TempDir, BuildCache) {
    let directory = tempfile::tempdir().unwrap();
    let cache = BuildCache::at(directory.path().join("builds")).unwrap();
    (directory, cache)
}

#[test]
fn compiled_code_is_built_and_runs_with_input_value_and_status() {
    for mode in Mode::available() {
        let (_directory, cache) = cache();
        for (language, source) in PROGRAMS {
            let sandbox = with_rust(mode.sandbox()).build_cache(cache.clone());
            let Some(outcome) =
                code(&sandbox.clone().stdin(Stdin::Bytes(b"1764".to_vec())), language, source)
            else {
                continue;
            };
            assert_eq!(outcome.verdict, Verdict::Ok, "{mode:?} {language} {}", told(&outcome));
            assert_eq!(outcome.value, Some(42.into()), "{mode:?} {language} {}", told(&outcome));
            assert!(outcome.report.notes[0].starts_with("build: "), "{:?}", outcome.report.notes);
            assert!(outcome.artifacts.is_empty() && outcome.changes.new.is_empty(), "{:?}", outcome.changes);
            let start = Instant::now();
            let again = code(&sandbox, language, source).unwrap();
            assert_eq!(again.verdict, Verdict::Exit { code: 4 }, "{mode:?} {language} {}", told(&again));
            assert!(again.report.notes[0].starts_with("build: from the cache"), "{:?}", again.report.notes);
            assert!(start.elapsed() < Duration::from_secs(5), "{language} {:?}", start.elapsed());
        }
    }
}

#[test]
fn a_compile_error_is_an_outcome_of_the_build_and_nothing_runs() {
    for mode in [Mode::available()[0]] {
        let (directory, cache) = cache();
        for (language, source, place) in BROKEN {
            let sandbox = with_rust(mode.sandbox()).build_cache(cache.clone());
            for _ in 0..2 {
                let Some(outcome) = code(&sandbox, language, source) else { continue };
                assert!(matches!(outcome.verdict, Verdict::Exit { .. }), "{language} {}", told(&outcome));
                assert!(
                    outcome.report.notes[0].starts_with("build: the compiler rejected the code"),
                    "{}",
                    told(&outcome)
                );
                assert!(outcome.stderr.text().contains(place), "{language} {}", told(&outcome));
            }
            let live =
                sandbox.start(&Program::code(language, source)).and_then(|running| running.wait().map(drop));
            match live {
                Err(Error::Build { language: of, reason }) => {
                    assert!(of == language && reason.contains(place), "{reason}");
                }
                Err(Error::LanguageMissing { .. }) => {}
                other => panic!("{language} {other:?}"),
            }
        }
        assert!(
            std::fs::read_dir(directory.path().join("builds"))
                .unwrap()
                .flatten()
                .all(|entry| entry.file_name().to_string_lossy().starts_with("lock-"))
        );
    }
}

#[test]
fn a_cached_program_depends_on_code_and_level_and_damage_rebuilds_it() {
    let (directory, cache) = cache();
    let mode = Mode::available()[0];
    let sandbox = mode.sandbox().build_cache(cache.clone());
    let source = "#include <stdio.h>\nint main(void) { puts(\"one\"); }";
    let Some(first) = code(&sandbox, Language::C, source) else { return };
    assert!(!first.report.notes[0].contains("from the cache"), "{}", told(&first));
    let other = code(&sandbox, Language::C, &source.replace("one", "two")).unwrap();
    assert_eq!(other.stdout.text(), "two\n", "another code is another program");
    assert!(!other.report.notes[0].contains("from the cache"), "{}", told(&other));
    let entries = || -> Vec<_> {
        let all =
            std::fs::read_dir(directory.path().join("builds")).unwrap().flatten().map(|entry| entry.path());
        all.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with("lock-")).collect()
    };
    assert_eq!(entries().len(), 2);
    for path in entries() {
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        std::fs::write(&path, bytes).unwrap();
    }
    let again = code(&sandbox, Language::C, source).unwrap();
    assert_eq!(again.stdout.text(), "one\n");
    assert!(again.report.notes[0].contains("invalid cache entry"), "{}", told(&again));
    let kept = code(&sandbox, Language::C, source).unwrap();
    assert!(kept.report.notes[0].contains("from the cache"), "{}", told(&kept));
    if mode == Mode::Strict {
        let lower = code(&sandbox.level(Level::Standard), Language::C, source).unwrap();
        assert!(!lower.report.notes[0].contains("from the cache"), "{}", told(&lower));
    }
}

#[test]
fn concurrent_builds_of_the_same_code_are_shared() {
    let (_directory, cache) = cache();
    let sandbox = Mode::available()[0].sandbox().build_cache(cache);
    let source = "#include <stdio.h>\nint main(void) { puts(\"once\"); }";
    if code(&Mode::available()[0].sandbox(), Language::C, source).is_none() {
        return;
    }
    let built = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| run(&sandbox, &Program::code(Language::C, source)).unwrap()))
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(outcomes.iter().all(|outcome| outcome.stdout.text() == "once\n"));
        outcomes.iter().filter(|outcome| !outcome.report.notes[0].contains("from the cache")).count()
    });
    assert_eq!(built, 1);
}

#[test]
fn building_and_running_have_separate_limits() {
    let endless = "#include <stdio.h>\nint main(void) { for (;;); }";
    let sandbox = Mode::available()[0].sandbox();
    let short = Limits::default().with_wall(Duration::from_millis(700));
    let Some(outcome) = code(&sandbox.clone().limits(short), Language::C, endless) else { return };
    assert_eq!(outcome.verdict, Verdict::Timeout { limit_ms: 700 }, "{}", told(&outcome));
    assert!(outcome.report.notes[0].starts_with("build: ") && !outcome.report.notes[0].contains("ended"));
    let small = Limits::for_builds().with_wall(Duration::from_millis(1));
    let outcome = code(&sandbox.clone().build_limits(small), Language::C, endless).unwrap();
    assert_eq!(outcome.verdict, Verdict::Timeout { limit_ms: 1 }, "{}", told(&outcome));
    assert!(outcome.report.notes[0].starts_with("build: the compiler was ended"), "{}", told(&outcome));
    let none = Limits::for_builds().with_wall(Duration::ZERO);
    let program = Program::code(Language::C, endless);
    assert!(matches!(run(&sandbox.build_limits(none), &program), Err(Error::InvalidLimit { .. })));
}

#[test]
fn a_build_reaches_neither_the_network_nor_hidden_files() {
    let sandbox =
        Mode::available()[0].sandbox().file("secret.h", toolpost_sandbox::Source::Bytes(b"x".to_vec()));
    for include in ["/etc/shadow", "secret.h"] {
        let source = format!("#include \"{include}\"\nint main(void) {{ return 0; }}");
        let Some(outcome) = code(&sandbox, Language::C, &source) else { return };
        assert!(matches!(outcome.verdict, Verdict::Exit { .. }), "{include} {}", told(&outcome));
        assert!(!outcome.stderr.text().contains("root:"), "{}", told(&outcome));
    }
}

#[test]
fn a_built_program_runs_repeatedly_with_other_settings() {
    let sandbox = Mode::available()[0].sandbox();
    let source = "#include <stdio.h>\nint main(void) { int c, n = 0; while ((c = getchar()) != EOF) n++; printf(\"%d\", n); }";
    let built = match sandbox.build(&Program::code(Language::C, source), &Cancel::new()) {
        Ok(Build::Ready { program, .. }) => program,
        Err(Error::LanguageMissing { .. }) => {
            println!("SKIP a_program_that_was_built_runs_often: no C compiler");
            return;
        }
        other => panic!("{other:?}"),
    };
    for mode in Mode::available() {
        for input in ["", "four"] {
            let outcome = run(&mode.sandbox().stdin(Stdin::Bytes(input.into())), &built).unwrap();
            assert_eq!(outcome.stdout.text(), input.len().to_string(), "{mode:?}");
        }
    }
    let plain = sandbox.build(&Program::argv(["true"]), &Cancel::new()).unwrap();
    assert!(matches!(plain, Build::Ready { program, .. } if program == Program::argv(["true"])));
}

#[test]
fn a_cancelled_build_ends_at_once() {
    let cancel = Cancel::new();
    cancel.cancel();
    let program = Program::code(Language::C, "int main(void) { return 0; }");
    match Mode::available()[0].sandbox().run(&program, &cancel, &mut |_| {}) {
        Err(Error::LanguageMissing { .. }) => println!("SKIP a_cancelled_build_ends_at_once: no C compiler"),
        other => assert_eq!(other.unwrap().verdict, Verdict::Cancelled),
    }
}

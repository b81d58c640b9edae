//! Every language: values, output, exit statuses, errors.

use serde_json::{Value, json};
use toolpost_sandbox::{Error, Language, Outcome, Program, Sandbox, Verdict};

use crate::support::{Mode, quick, run};

/// Runs code, or prints that the language is missing.
pub(crate) fn code(sandbox: &Sandbox, language: Language, source: &str) -> Option<Outcome> {
    match run(sandbox, &Program::code(language, source)) {
        Err(Error::LanguageMissing { .. }) => {
            println!("SKIP {language}: not installed");
            None
        }
        other => Some(other.unwrap()),
    }
}

/// The relevant parts of an outcome, for messages.
pub(crate) fn told(outcome: &Outcome) -> String {
    format!(
        "{:?} stdout: {} stderr: {} {:?}",
        outcome.verdict,
        outcome.stdout.text(),
        outcome.stderr.text(),
        outcome.report.notes
    )
}

#[test]
fn each_language_returns_the_value_of_code() {
    let typed = |kind: &str, text: &str| Some(json!({ "type": kind, "text": text }));
    let cases: [(Language, &str, Option<Value>); 43] = [
        (Language::Python, "x = 40\nx + 2", Some(json!(42))),
        (Language::JavaScript, "const x = 40; ({a: [x + 2]})", Some(json!({"a": [42]}))),
        (Language::Ruby, "x = 40\nx + 2", Some(json!(42))),
        (
            Language::Ruby,
            "{a: [1, 2.5, nil, 'ü'], 'b' => true}",
            Some(json!({"a": [1, 2.5, null, "ü"], "b": true})),
        ),
        (Language::Ruby, "def f; 7; end\nputs f", None),
        (Language::Ruby, "2**100", typed("int", "1267650600228229401496703205376")),
        (Language::Ruby, "(1..3)", typed("Range", "1..3")),
        (Language::Ruby, "{1 => 2}", typed("Hash", "{1=>2}")),
        (Language::Ruby, "\"a\\xff\"", typed("String", "\"a\\xFF\"")),
        (Language::Ruby, "[1.0 / 0, :a]", {
            Some(json!([{"type": "Float", "text": "Infinity"}, {"type": "Symbol", "text": ":a"}]))
        }),
        (Language::R, "x <- c(1.5, 2, 3)\nx * 2", Some(json!([3, 4, 6]))),
        (Language::R, "mean(c(1, 2, 6))", Some(json!(3))),
        (
            Language::R,
            "list(a = 1L, b = c('x', 'ü\"\\n'), c = TRUE, d = NA)",
            Some(json!({"a": 1, "b": ["x", "ü\"\n"], "c": true, "d": null})),
        ),
        (Language::R, "data.frame(a = 1:2, b = c('x', 'y'))", Some(json!({"a": [1, 2], "b": ["x", "y"]}))),
        (Language::R, "x <- 5", None),
        (Language::R, "f <- function() 1\nf", typed("function", "function() 1")),
        (Language::R, "as.Date('2024-01-02')", typed("Date", "[1] \"2024-01-02\"")),
        (Language::R, "1i", typed("complex", "[1] 0+1i")),
        (Language::R, "0.1 + 0.2", Some(json!(0.300_000_000_000_000_04))),
        (Language::R, "c(1, NA, NaN)", Some(json!([1, null, {"type": "numeric", "text": "NaN"}]))),
        (Language::Lua, "local x = 40\nreturn x + 2", Some(json!(42))),
        (
            Language::Lua,
            "return {a = {1, 2.5, 'ü\\n'}, b = true}",
            Some(json!({"a": [1, 2.5, "ü\n"], "b": true})),
        ),
        (Language::Lua, "return {}", Some(json!([]))),
        (Language::Lua, "return 1 / 0", typed("number", "inf")),
        (Language::Lua, "return {1, x = 2}", typed("table", "{[1] = 1, x = 2}")),
        (Language::Lua, "return 'a\\255'", typed("string", "\"a\\255\"")),
        (Language::Lua, "print(7)", None),
        (Language::Php, "$x = 40;\nreturn $x + 2;", Some(json!(42))),
        (
            Language::Php,
            "<?php\ndeclare(strict_types=1);\nreturn ['a' => [1, 2.5, null, 'ü']];",
            Some(json!({"a": [1, 2.5, null, "ü"]})),
        ),
        (Language::Php, "echo 7;", None),
        (Language::Php, "return 1;", Some(json!(1))),
        (Language::Php, "return NAN;", typed("float", "NAN")),
        (Language::Php, "return \"a\\xff\";", typed("string", "'a\\377'")),
        (Language::Php, "class P { public $x = 1; } return new P;", {
            typed("P", "P Object\n(\n    [x] => 1\n)")
        }),
        (
            Language::Sqlite,
            "create table t(a, b); insert into t values (1, 'x'), (2, null); select * from t order by a;",
            Some(json!([{"a": 1, "b": "x"}, {"a": 2, "b": null}])),
        ),
        (Language::Sqlite, "select 1 as one; select 2 as two;", Some(json!([{"two": 2}]))),
        (Language::Sqlite, ".mode list\nselect 1, 2;", None),
        (Language::Perl, "print 7", None),
        (Language::Perl, "print '::result {\"a\": [1]}', \"\\n\"", Some(json!({"a": [1]}))),
        (Language::Sh, "echo '::result [1]'", Some(json!([1]))),
        (Language::Bash, "a=(1 2); echo \"::result ${#a[@]}\"", Some(json!(2))),
        (Language::Lua, "print('::result 5')\nreturn 6", Some(json!(5))),
        (Language::R, "cat('::result {\"r\": 1}\\n')", Some(json!({"r": 1}))),
    ];
    for mode in Mode::available() {
        for (language, source, expected) in &cases {
            let Some(outcome) = code(&mode.sandbox(), *language, source) else { continue };
            assert_eq!(&outcome.value, expected, "{mode:?} {language} {source} {}", told(&outcome));
            assert_eq!(outcome.verdict, Verdict::Ok, "{mode:?} {language} {source} {}", told(&outcome));
        }
    }
}

#[test]
fn code_gets_its_arguments() {
    let given = ["-x", "--", "a b", "{heap}", "--lang"];
    let cases = [
        (Language::Python, "import sys\nprint('|'.join(sys.argv[1:]))"),
        (Language::JavaScript, "console.log(process.argv.slice(2).join('|'))"),
        (Language::TypeScript, "const given: string[] = process.argv.slice(2); console.log(given.join('|'))"),
        (Language::Bash, "IFS='|'; echo \"$*\""),
        (Language::Sh, "IFS='|'; echo \"$*\""),
        (Language::Ruby, "puts ARGV.join('|')"),
        (Language::Perl, "print join('|', @ARGV), \"\\n\""),
        (Language::R, "cat(paste(commandArgs(TRUE), collapse = '|'), '\\n', sep = '')"),
        (Language::Lua, "print(table.concat({...}, '|'))\nassert(#arg == 5)"),
        (Language::Php, "echo implode('|', array_slice($argv, 1)), \"\\n\";"),
        (
            Language::Go,
            "package main\nimport (\"fmt\"; \"os\"; \"strings\")\nfunc main() { fmt.Println(strings.Join(os.Args[1:], \"|\")) }",
        ),
        (
            Language::Java,
            "class A { public static void main(String[] a) { System.out.println(String.join(\"|\", a)); } }",
        ),
        (
            Language::C,
            "#include <stdio.h>\nint main(int c, char **v) { for (int i = 1; i < c; i++) printf(i > 1 ? \"|%s\" : \"%s\", v[i]); puts(\"\"); }",
        ),
    ];
    let sandbox = Mode::available()[0]
        .sandbox()
        .limits(quick().with_memory(2 << 30).with_processes(256))
        .build_limits(toolpost_sandbox::Limits::for_builds());
    for (language, source) in cases {
        let Some(outcome) = code(&sandbox.clone().arguments(given), language, source) else { continue };
        assert_eq!(outcome.stdout.text(), "-x|--|a b|{heap}|--lang\n", "{language} {}", told(&outcome));
        let Some(outcome) = code(&sandbox, language, source) else { continue };
        // Lua's own check of their number fails without them.
        assert_eq!(outcome.stdout.text(), "\n", "{language} {}", told(&outcome));
    }
    // A pool's worker has none.
    let pool =
        toolpost_sandbox::Pool::builder(&Mode::available()[0].sandbox()).language(Language::Python).build();
    if let Ok(pool) = pool {
        let pooled = Mode::available()[0].sandbox().backend(std::sync::Arc::new(pool)).arguments(["x"]);
        let outcome = code(&pooled, Language::Python, "import sys; sys.argv[1:]").unwrap();
        assert_eq!(outcome.value, Some(json!(["x"])), "{}", told(&outcome));
    }
    let refused = run(&sandbox.arguments(["x"]), &Program::code(Language::Sqlite, "select 1;"));
    assert!(refused.unwrap_err().to_string().contains("takes no arguments"));
}

#[test]
fn a_printed_value_is_marked() {
    let sandbox = Mode::available()[0].sandbox();
    for (language, source, expected) in [
        (Language::Python, "print(1)\n6 * 7", false),
        (Language::Python, "print('::result 42')", true),
        (Language::Sqlite, "select 42;", true),
        (Language::R, "6 * 7", true),
    ] {
        let Some(outcome) = code(&sandbox, language, source) else { continue };
        assert!(outcome.value.is_some(), "{language} {}", told(&outcome));
        assert_eq!(outcome.value_printed, expected, "{language} {source}");
    }
}

#[test]
fn interpreted_code_fails_with_its_own_status_and_message() {
    let cases = [
        (Language::Python, "import sys; sys.stderr.write('err'); sys.exit(3)", 3, "err"),
        (Language::JavaScript, "console.error('err'); process.exit(3)", 3, "err"),
        (Language::Bash, "echo err >&2; exit 3", 3, "err"),
        (Language::Sh, "echo err >&2; exit 3", 3, "err"),
        (Language::Ruby, "warn 'err'; exit 3", 3, "err"),
        (Language::Ruby, "x = 1\nraise 'own words'", 1, "main.rb:2:in `<main>': own words"),
        (Language::Perl, "print STDERR 'err'; exit 3", 3, "err"),
        (Language::Perl, "my $x = 1;\ndie 'own words'", 255, "own words at main.pl line 2"),
        (Language::R, "message('err'); quit(status = 3)", 3, "err"),
        (Language::R, "x <- 1\nstop('own words')", 1, "own words"),
        (Language::Lua, "io.stderr:write('err'); os.exit(3)", 3, "err"),
        (Language::Lua, "local x\nerror('own words')", 1, "main.lua:2: own words"),
        (Language::Lua, "x = = 1", 1, "main.lua:1:"),
        (Language::Php, "fwrite(STDERR, 'err'); exit(3);", 3, "err"),
        (Language::Php, "\nthrow new Exception('own words');", 255, "own words"),
        (Language::Sqlite, "select 1;\nselect * from missing;", 1, "no such table: missing"),
    ];
    for mode in Mode::available() {
        for (language, source, status, message) in cases {
            let Some(outcome) = code(&mode.sandbox(), language, source) else { continue };
            assert_eq!(
                outcome.verdict,
                Verdict::Exit { code: status },
                "{mode:?} {language} {source} {}",
                told(&outcome)
            );
            let text = outcome.stderr.text();
            assert!(text.contains(message), "{mode:?} {language} {source} {text}");
            assert_eq!(outcome.value, None, "{language} {source}");
        }
    }
}

#[test]
fn interpreted_code_reads_its_input_and_writes_files() {
    let cases = [
        (Language::Python, "open('out', 'w').write(input())"),
        (
            Language::JavaScript,
            "require('fs').writeFileSync('out', require('fs').readFileSync(0, 'utf8').trim())",
        ),
        (Language::Bash, "read line; printf %s \"$line\" > out"),
        (Language::Sh, "read line; printf %s \"$line\" > out"),
        (Language::Ruby, "File.write('out', gets.chomp)"),
        (Language::Perl, "my $line = <STDIN>; chomp $line; open my $out, '>', 'out'; print $out $line;"),
        (Language::R, "cat(readLines(file('stdin'), n = 1), file = 'out')"),
        (Language::Lua, "local out = io.open('out', 'w'); out:write(io.read('l')); out:close()"),
        (Language::Php, "file_put_contents('out', trim(fgets(STDIN)));"),
        (Language::Sqlite, ".import '|cat' t\n.mode list\n.once out\nselect * from t;"),
    ];
    for (language, source) in cases {
        let input = if language == Language::Sqlite { "column\nline 1\n" } else { "line 1\n" };
        let sandbox = Mode::available()[0].sandbox().stdin(toolpost_sandbox::Stdin::Bytes(input.into()));
        let Some(outcome) = code(&sandbox, language, source) else { continue };
        assert_eq!(outcome.verdict, Verdict::Ok, "{language} {}", told(&outcome));
        let content = outcome
            .artifacts
            .first()
            .unwrap_or_else(|| panic!("{language} {}", told(&outcome)))
            .read()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&content).trim_end(), "line 1", "{language}");
    }
}

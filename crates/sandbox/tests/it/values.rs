//! Values of code: exact JSON, or their type and text, and the same from each way to run code.

use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_sandbox::{
    Error, Host, Language, Level, Outcome, Pool, Program, Reached, Sandbox, Session, Verdict,
};

use crate::generated_values::{self, Batch};
use crate::sessions;
use crate::support::{Mode, python, quick, run};

/// The ways to run code of a language on this host, each with its name.
struct Ways {
    test: &'static str,
    language: Language,
    sandboxes: Vec<(&'static str, Sandbox)>,
    session: Session,
}

impl Ways {
    fn new(test: &'static str, language: Language) -> Option<Self> {
        Self::with(test, language, Mode::available().first()?.sandbox())
    }

    fn with(test: &'static str, language: Language, sandbox: Sandbox) -> Option<Self> {
        let session = match Session::start(&sandbox, language) {
            Err(error @ Error::LanguageMissing { .. }) => {
                println!("SKIP {test}: {error}");
                return None;
            }
            session => session.unwrap(),
        };
        let mut sandboxes = vec![("cold", sandbox.clone())];
        if Host::probe().availability(Level::Strict).is_some_and(|entry| entry.available) {
            let pool = Pool::builder(&sandbox).language(language).build().unwrap();
            sandboxes.push(("pool", sandbox.backend(Arc::new(pool))));
        } else {
            println!("SKIP pool of {test}: this host gives no namespaces");
        }
        Some(Self { test, language, sandboxes, session })
    }

    /// The outcome of code that succeeds, from each way.
    fn outcomes(&self, code: &str) -> Vec<(&'static str, Outcome)> {
        let program = Program::code(self.language, code);
        let cold = self.sandboxes.iter().map(|(way, sandbox)| (*way, run(sandbox, &program).unwrap()));
        let outcomes: Vec<_> = cold.chain([("session", sessions::run(&self.session, code))]).collect();
        for (way, outcome) in &outcomes {
            let text = outcome.stderr.text();
            assert_eq!(outcome.verdict, Verdict::Ok, "{} {way} {code}: {text}", self.test);
        }
        outcomes
    }

    /// Checks values one by one in the session, and together in the other ways.
    fn check_texts(&self, start: &str, rows: &[(&str, &str, &str)]) {
        let mut expected = Vec::new();
        for (code, kind, shown) in rows {
            expected.push(text(kind, shown));
            let outcome = sessions::run(&self.session, &format!("{start}{code}"));
            assert_eq!(
                outcome.value.as_ref(),
                expected.last(),
                "{} {code} {}",
                self.test,
                outcome.stderr.text()
            );
        }
        let all: Vec<&str> = rows.iter().map(|(code, ..)| *code).collect();
        self.check(&format!("{start}[{}]", all.join(", ")), Some(&expected.into()));
    }

    fn check(&self, code: &str, expected: Option<&Value>) {
        for (way, outcome) in self.outcomes(code) {
            let notes = &outcome.report.notes;
            assert_eq!(outcome.value.as_ref(), expected, "{} {way} {code} {notes:?}", self.test);
        }
    }
}

/// A value that is its type and text.
fn text(kind: &str, text: &str) -> Value {
    json!({ "type": kind, "text": text })
}

/// The imports and classes of the values in [`PYTHON_TEXTS`].
const PYTHON_START: &str = "\
from collections import Counter, OrderedDict, namedtuple
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import PurePosixPath
class Color(Enum): RED = 1
class Size(IntEnum): LARGE = 3
class Own:
    def __init__(self, x): self.x = x
    def __repr__(self): return f'Own({self.x})'
class Liar:
    def __repr__(self): raise ValueError('no')
Point = namedtuple('Point', 'x y')
";

/// Values of Python that JSON cannot hold: source, type and text.
const PYTHON_TEXTS: [(&str, &str, &str); 29] = [
    ("{7}", "set", "{7}"),
    ("frozenset({1})", "frozenset", "frozenset({1})"),
    ("b'a\\x00'", "bytes", "b'a\\x00'"),
    ("bytearray(b'x')", "bytearray", "bytearray(b'x')"),
    ("1 + 2j", "complex", "(1+2j)"),
    ("range(3)", "range", "range(0, 3)"),
    ("slice(1, 2)", "slice", "slice(1, 2, None)"),
    ("...", "ellipsis", "Ellipsis"),
    ("NotImplemented", "NotImplementedType", "NotImplemented"),
    ("float('nan')", "float", "nan"),
    ("float('inf')", "float", "inf"),
    ("float('-inf')", "float", "-inf"),
    ("'a\\ud800'", "str", "'a\\ud800'"),
    ("Decimal('1.10')", "decimal.Decimal", "Decimal('1.10')"),
    ("Fraction(1, 3)", "fractions.Fraction", "Fraction(1, 3)"),
    ("date(2024, 1, 2)", "datetime.date", "datetime.date(2024, 1, 2)"),
    (
        "datetime(2024, 1, 2, 3, 4, 5, 678, timezone.utc)",
        "datetime.datetime",
        "datetime.datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=datetime.timezone.utc)",
    ),
    ("timedelta(days=1)", "datetime.timedelta", "datetime.timedelta(days=1)"),
    ("PurePosixPath('a/b')", "pathlib.PurePosixPath", "PurePosixPath('a/b')"),
    ("Color.RED", "__main__.Color", "<Color.RED: 1>"),
    ("Own({1})", "__main__.Own", "Own({1})"),
    ("Liar()", "__main__.Liar", "<__main__.Liar object; its repr raised ValueError>"),
    ("Own", "type", "<class '__main__.Own'>"),
    ("len", "builtin_function_or_method", "<built-in function len>"),
    ("{1: 'a', '1': 'b'}", "dict", "{1: 'a', '1': 'b'}"),
    ("{None: 1, True: 2}", "dict", "{None: 1, True: 2}"),
    ("{('a', 1): {2}}", "dict", "{('a', 1): {2}}"),
    ("{'\\udfff': 1}", "dict", "{'\\udfff': 1}"),
    ("{'a': 1}.keys()", "dict_keys", "dict_keys(['a'])"),
];

#[test]
fn values_of_python_are_exact_or_text() {
    let Some(ways) = Ways::new("values_of_python_are_exact_or_text", Language::Python) else { return };
    for (code, expected) in [
        ("2**100", text("int", "1267650600228229401496703205376")),
        ("-2**63 - 1", text("int", "-9223372036854775809")),
        ("2**64 - 1", json!(u64::MAX)),
        ("-2**63", json!(i64::MIN)),
        ("[2**64, 10**25]", {
            json!([text("int", "18446744073709551616"), text("int", "10000000000000000000000000")])
        }),
        ("hash", text("builtin_function_or_method", "<built-in function hash>")),
        ("True", json!(true)),
        ("-0.0", json!(-0.0)),
        ("1.0", json!(1.0)),
        ("5e-324", json!(5e-324)),
        ("0.1 + 0.2", json!(0.300_000_000_000_000_04)),
        ("'é\\n\\x00\\U0001f600'", json!("é\n\0\u{1f600}")),
        ("(1, (2,))", json!([1, [2]])),
        ("[]", json!([])),
        ("{'a': None}", json!({ "a": null })),
        ("Counter('aab')", json!({ "a": 2, "b": 1 })),
        ("OrderedDict(b=1, a={2})", json!({ "b": 1, "a": text("set", "{2}") })),
        ("Point(1, 2.5)", json!([1, 2.5])),
        ("Size.LARGE", json!(3)),
        ("[1, {'a': {2}}, float('nan')]", json!([1, { "a": text("set", "{2}") }, text("float", "nan")])),
        ("a = [1]; a.append(a); {'a': a}", json!({ "a": [1, text("list", "[1, [...]]")] })),
        ("a = {}; a['b'] = [a, 1]; a", json!({ "b": [text("dict", "{'b': [{...}, 1]}"), 1] })),
        ("a = [2]; [a, a]", json!([[2], [2]])),
        ("{'n': 1, 'at': date(2024, 1, 2)}", {
            json!({ "n": 1, "at": text("datetime.date", "datetime.date(2024, 1, 2)") })
        }),
        ("import asyncio\nx = await asyncio.sleep(0, 8)\nx", json!(8)),
        ("await asyncio.sleep(0, {1})", text("set", "{1}")),
        ("print('::result 1e999')\n{1}", text("set", "{1}")),
        ("print('::result [18446744073709551616]')", json!([text("int", "18446744073709551616")])),
    ] {
        let start = if code.starts_with("import") { "" } else { "import asyncio\n" };
        ways.check(&format!("{PYTHON_START}{start}{code}"), Some(&expected));
    }
    for code in ["None", "x = 5", "import sys", "def f(): pass"] {
        ways.check(code, None);
    }
    ways.check_texts(PYTHON_START, &PYTHON_TEXTS);
    // More digits than Python prints, and deeper than JSON is read.
    for (way, outcome) in ways.outcomes("1 << 20_000") {
        assert_eq!(outcome.value, Some(text("int", &format!("0x1{}", "0".repeat(5000)))), "{way}");
    }
    for (way, outcome) in ways.outcomes("d = 1\nfor _ in range(70): d = [d]\nd") {
        let mut value = &outcome.value.unwrap();
        for _ in 0..64 {
            value = &value[0];
        }
        assert_eq!(*value, text("list", "[[[[[[1]]]]]]"), "{way}");
    }
    // A value of two to the power of fifty parts.
    let value = sessions::value(&ways.session, "d = [1]\nfor _ in range(50): d = [d, d]\nd");
    assert!(value["text"].as_str().unwrap().starts_with("[[[[[[[...], [...]]"), "{value}");
}

/// Values of JavaScript that JSON cannot hold: source, type and text.
const JAVASCRIPT_TEXTS: [(&str, &str, &str); 25] = [
    ("new Map([[1, 2]])", "Map", "Map(1) { 1 => 2 }"),
    ("new Set([{ a: [1n] }])", "Set", "Set(1) { { a: [ 1n ] } }"),
    ("new Date(0)", "Date", "1970-01-01T00:00:00.000Z"),
    ("new Date(NaN)", "Date", "Invalid Date"),
    ("/a+/gi", "RegExp", "/a+/gi"),
    ("Symbol('s')", "symbol", "Symbol(s)"),
    ("NaN", "number", "NaN"),
    ("-Infinity", "number", "-Infinity"),
    ("'a\\ud800'", "string", "\"a\\ud800\""),
    ("({ '\\ud800': 1, a: /a/ })", "Object", "{ '\\ud800': 1, a: /a/ }"),
    ("(function named() {})", "function", "[Function: named]"),
    ("(class Own {})", "function", "[class Own]"),
    ("Math.max", "function", "[Function: max]"),
    ("new (class { [require('util').inspect.custom]() { return 'a\\ud800' } })()", "Object", "a\u{fffd}"),
    ("new (class Point { x = 1 })()", "Point", "Point { x: 1 }"),
    ("new (class Stack extends Map {})([[1, 2]])", "Stack", "Stack(1) [Map] { 1 => 2 }"),
    ("new Uint8Array([1, 2])", "Uint8Array", "Uint8Array(2) [ 1, 2 ]"),
    ("Buffer.from('ab')", "Buffer", "<Buffer 61 62>"),
    ("Object(1n)", "BigInt", "[BigInt: 1n]"),
    ("new WeakMap()", "WeakMap", "WeakMap { <items unknown> }"),
    ("[1, , 2]", "Array", "[ 1, <1 empty item>, 2 ]"),
    ("'abc'.match(/b/)", "Array", "[ 'b', index: 1, input: 'abc', groups: undefined ]"),
    ("({ [Symbol('s')]: 1 })", "Object", "{ [Symbol(s)]: 1 }"),
    ("new Proxy({ a: 1 }, {})", "Object", "{ a: 1 }"),
    ("({ get a() { throw 1 } })", "Object", "{ a: [Getter] }"),
];

#[test]
fn values_of_javascript_are_exact_or_text() {
    let Some(ways) = Ways::new("values_of_javascript_are_exact_or_text", Language::JavaScript) else {
        return;
    };
    let big = || text("int", "1180591620717411303424");
    for (code, expected) in [
        ("2n**70n", big()),
        ("-(2n**70n)", text("int", "-1180591620717411303424")),
        ("10n", json!(10)),
        ("({ a: [1n, 2n**70n] })", json!({ "a": [1, big()] })),
        ("2**53 + 2", json!(9_007_199_254_740_994_u64)),
        ("2**60", json!(1_152_921_504_606_846_976_u64)),
        ("-(2**63)", json!(i64::MIN)),
        ("2**64", json!(2f64.powi(64))),
        ("2**70", json!(2f64.powi(70))),
        ("-0", json!(-0.0)),
        ("5e-324", json!(5e-324)),
        ("0.1 + 0.2", json!(0.300_000_000_000_000_04)),
        ("'é\\n\\0\u{1f600}\u{2028}'", json!("é\n\0\u{1f600}\u{2028}")),
        ("({ a: undefined, b: null })", json!({ "a": text("undefined", "undefined"), "b": null })),
        ("[undefined, () => 1]", {
            json!([text("undefined", "undefined"), text("function", "[Function (anonymous)]")])
        }),
        ("({ at: new Date(0) })", json!({ "at": text("Date", "1970-01-01T00:00:00.000Z") })),
        ("(() => { const a = [1]; a.push(a); return { a } })()", {
            json!({ "a": [1, text("Array", "<ref *1> [ 1, [Circular *1] ]")] })
        }),
        ("(() => { const a = [2]; return [a, a] })()", json!([[2], [2]])),
        ("[{ get a() { throw 1 } }, 1]", json!([text("Object", "{ a: [Getter] }"), 1])),
        ("({ toJSON() { return 1 } })", json!({ "toJSON": text("function", "[Function: toJSON]") })),
        ("({ ['__proto__']: 1 })", json!({ "__proto__": 1 })),
        ("Object.assign(Object.create(null), { a: 1 })", json!({ "a": 1 })),
        ("require('vm').runInNewContext('({ a: [1] })')", json!({ "a": [1] })),
        ("Promise.resolve([7])", json!([7])),
        ("Promise.resolve(new Set([1]))", text("Set", "Set(1) { 1 }")),
        ("const late = await Promise.resolve(8);\nlate", json!(8)),
        ("await Promise.resolve(8); [1, 2].map((x) =>\n  x * 2\n); // the end", json!([2, 4])),
        ("const one = await 1;\none\n  + 2", json!(3)),
    ] {
        ways.check(code, Some(&expected));
    }
    for code in ["undefined", "null", "let unset; unset", "await Promise.resolve()"] {
        ways.check(code, None);
    }
    ways.check_texts("", &JAVASCRIPT_TEXTS);
    for (way, outcome) in ways.outcomes("new Promise(() => {})") {
        let value = outcome.value.unwrap();
        assert_eq!(value["type"], "Promise", "{way}");
        assert!(value["text"].as_str().unwrap().contains("<pending>"), "{way} {value}");
    }
    for (way, outcome) in ways.outcomes("let deep = 1;\nfor (let i = 0; i < 70; i++) deep = [deep];\ndeep") {
        let mut value = &outcome.value.unwrap();
        for _ in 0..64 {
            value = &value[0];
        }
        assert_eq!(value["type"], "Array", "{way} {value}");
    }
    for (way, outcome) in
        ways.outcomes("let wide = [1];\nfor (let i = 0; i < 50; i++) wide = [wide, wide];\nwide")
    {
        let value = outcome.value.unwrap();
        assert!(value["text"].as_str().unwrap().contains("[Array]"), "{way} {value}");
    }
}

/// A module has no completion value: its last expression is found in its text.
#[test]
fn the_last_expression_of_a_module_is_its_value() {
    let rows = [
        ("import os from 'node:os'\nos.EOL", Some(json!("\n"))),
        ("import os from 'node:os';\nos.EOL;\n// the end", Some(json!("\n"))),
        ("import { EOL } from 'node:os'; [EOL]; /* a\nb */", Some(json!(["\n"]))),
        ("import os from 'node:os'\n`a\n${os.EOL}`.length", Some(json!(3))),
        ("export const a = await (2n**70n)\na", Some(text("int", "1180591620717411303424"))),
        ("const f = async () => 7;\nawait f()", Some(json!(7))),
        ("await 1; \"a; b\"", Some(json!("a; b"))),
        ("await 1; x => x", Some(text("function", "[Function (anonymous)]"))),
        // No expression, or none that could be moved.
        ("await 1; const x = 5", None),
        ("await 1;\nif (false)\n  process.exit(3)", None),
        ("await 1;\nfor (const x of [1])\n  x", None),
        ("await 1;\nconst x =\n  5", None),
        ("import os from 'node:os'\n[os.EOL]", Some(json!(["\n"]))),
        ("await 1;\nfunction f() { return 1 }", None),
        ("await f();\nfunction f() { return 1 }", None),
        ("await 1;\n{ 5 }", None),
        ("await 1; export default 5", None),
    ];
    for mode in Mode::available() {
        for (code, expected) in &rows {
            let program = Program::code(Language::JavaScript, *code);
            let outcome = match run(&mode.sandbox(), &program) {
                Err(error @ Error::LanguageMissing { .. }) => {
                    println!("SKIP the_last_expression_of_a_module_is_its_value: {error}");
                    return;
                }
                outcome => outcome.unwrap(),
            };
            assert_eq!(
                (&outcome.value, &outcome.verdict),
                (expected, &Verdict::Ok),
                "{mode:?} {code} {outcome:?}"
            );
        }
        // No part of it runs twice, whatever its own errors are.
        for (code, error) in [
            ("console.log('once'); await 1; JSON.parse('{')", "SyntaxError: Expected property name"),
            ("console.log('once'); await 1;\nmissing", "main.js:2"),
        ] {
            let outcome = run(&mode.sandbox(), &Program::code(Language::JavaScript, code)).unwrap();
            assert_eq!(
                (outcome.verdict, outcome.stdout.text().as_str()),
                (Verdict::Exit { code: 1 }, "once\n")
            );
            assert!(outcome.stderr.text().contains(error), "{}", outcome.stderr.text());
        }
    }
}

#[test]
fn a_value_beyond_its_limit_is_its_type_its_first_characters_and_its_size() {
    let text = |kind: &str, text: &str, size: usize| json!({ "type": kind, "text": text, "size": size });
    let numbers = (0..2000).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    let limits = quick().with_value_bytes(20);
    for (language, code, expected) in [
        (Language::Python, "'x' * 5000", text("string", &format!("{}…", "x".repeat(19)), 5002)),
        (Language::Python, "list(range(2000))", text("array", "[0,1,2,3,4,5,6,7,8,9…", numbers.len() + 2)),
        (
            Language::Python,
            "set(range(2000))",
            text("set", "{\"type\":\"set\",\"text\"…", numbers.len() + 2025),
        ),
        (Language::Python, "10**100", text("number", &format!("1{}…", "0".repeat(19)), 101)),
        (Language::Python, "print('::result', [1] * 50)", text("array", "[1, 1, 1, 1, 1, 1, 1…", 150)),
        (Language::JavaScript, "'é'.repeat(5000)", text("string", "ééééééééé…", 10_002)),
        (Language::JavaScript, "Array.from({ length: 2000 }, (_, i) => i)", {
            text("array", "[0,1,2,3,4,5,6,7,8,9…", numbers.len() + 2)
        }),
    ] {
        let Some(mode) = Mode::available().first().copied() else { return };
        let name = "a_value_beyond_its_limit_is_its_type_its_first_characters_and_its_size";
        let Some(ways) = Ways::with(name, language, mode.sandbox().limits(limits.clone())) else { continue };
        let cells = sessions::limits().with_value_bytes(20);
        let cell = ways.session.run(code, &cells, &toolpost_sandbox::Cancel::new(), &mut |_| {}).unwrap();
        let cold = ways
            .sandboxes
            .iter()
            .map(|(way, sandbox)| (*way, run(sandbox, &Program::code(language, code)).unwrap()));
        for (way, outcome) in cold.chain([("session", cell)]) {
            assert_eq!(outcome.value.as_ref(), Some(&expected), "{way} {code}");
            assert_eq!(outcome.verdict, Verdict::Ok, "{way} {code}");
            assert_eq!(outcome.report.reached, [Reached::Value], "{way} {code}");
            assert!(outcome.report.notes.iter().any(|note| note.contains("truncated")), "{way} {code}");
        }
    }
    let limits = quick().with_value_bytes(200);
    let outcome = python(&Mode::available()[0].sandbox().limits(limits), "set(range(2000))");
    let value = outcome.value.unwrap();
    assert_eq!(value["type"], "set");
    assert!(value["text"].as_str().unwrap().starts_with("{0, 1, 2, 3"), "{value}");
}

#[test]
fn generated_values_arrive_equal_or_as_text() {
    let test = "generated_values_arrive_equal_or_as_text";
    for language in [Language::Python, Language::JavaScript] {
        let Some(ways) = Ways::new(test, language) else { continue };
        for seed in 0..generated_values::batches() {
            let batch = Batch::new(language, seed);
            let code = batch.code();
            // A session takes the least time.
            let outcomes = if seed % 5 == 0 {
                ways.outcomes(&code)
            } else {
                vec![("session", sessions::run(&ways.session, &code))]
            };
            for (way, outcome) in outcomes {
                let fault = batch.fault(&outcome.stdout.text(), outcome.value.as_ref());
                assert_eq!(fault, None, "seed {seed} {language} {way} {}", outcome.stderr.text());
            }
        }
    }
}

/// Faults that could be in the scripts that render values: each is a replaced text.
const FAULTS: [(Language, &str, &str); 15] = [
    (Language::Python, "float.__sub__(value, value) == 0", "value == value"),
    (
        Language::Python,
        "return value if self.is_unicode(value) else",
        "return self.clean(value) if True else",
    ),
    (
        Language::Python,
        "if not all(isinstance(key, str) and",
        "if False and not all(isinstance(key, str) and",
    ),
    (
        Language::Python,
        "return value\n        if isinstance(value, float)",
        "return int(float(value) if abs(value) < 2**1000 else value)\n        if isinstance(value, float)",
    ),
    (Language::Python, "for item in items]", "for item in list(items)[:3]]"),
    (
        Language::Python,
        "text = repr(value) if text is None else text",
        "text = str(value) if text is None else text",
    ),
    (Language::Python, "if isinstance(value, (list, tuple)):", "if isinstance(value, (list, tuple, set)):"),
    (Language::JavaScript, "if (is(value, -0)) return '-0.0';", ""),
    (
        Language::JavaScript,
        "BigInt(value).toString() : value.toExponential()",
        "value.toExponential() : value.toExponential()",
    ),
    (
        Language::JavaScript,
        "case 'bigint': return String(value);",
        "case 'bigint': return String(Number(value));",
    ),
    (
        Language::JavaScript,
        "? typed('string', stringify(value)) : stringify(value)",
        "? clean(value) : stringify(value)",
    ),
    (Language::JavaScript, "(list && names.length !== value.length)", "false"),
    (Language::JavaScript, "default: return text(value);", "default: return 'null';"),
    (Language::JavaScript, "if (!list && !isPlain(value)) return text(value);", ""),
    (Language::JavaScript, "|| types.isProxy(value)) return text(value)", ") return text(value)"),
];

#[test]
fn a_fault_of_a_script_that_renders_values_is_found() {
    let test = "a_fault_of_a_script_that_renders_values_is_found";
    for (language, script) in [
        (Language::Python, include_str!("../../drivers/value.py")),
        (Language::JavaScript, include_str!("../../drivers/value.js")),
    ] {
        let Some(ways) = Ways::new(test, language) else { continue };
        let fault = |script: &str, seed: u64| {
            let batch = Batch::new(language, seed);
            let outcome = sessions::run(&ways.session, &batch.code_with(script));
            let fault = batch.fault(&outcome.stdout.text(), outcome.value.as_ref());
            fault.map(|fault| format!("{fault} {}", outcome.stderr.text()))
        };
        for seed in 0..5 {
            assert_eq!(fault(script, seed), None, "the script itself, {language}, seed {seed}");
        }
        for (of, from, to) in FAULTS.iter().filter(|(of, ..)| *of == language) {
            let faulty = script.replace(from, to);
            assert_ne!(faulty, script, "{of} has no `{from}`");
            assert!((0..20).any(|seed| fault(&faulty, seed).is_some()), "not found: {of} {from}");
        }
    }
}

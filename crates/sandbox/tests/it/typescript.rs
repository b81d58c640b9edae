//! TypeScript with every supported compiler.

use serde_json::json;
use toolpost_sandbox::{Language, Sandbox, Verdict};

use crate::languages::{code, told};
use crate::support::Mode;

/// The installation directory of `npm install typescript esbuild deno`, besides the system's.
fn sandbox(mode: Mode) -> Sandbox {
    let root =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.dev/typescript/node_modules/.bin");
    match root.canonicalize() {
        Ok(directory) => mode.sandbox().search_path(format!(
            "{}:{}",
            directory.display(),
            toolpost_sandbox::SYSTEM_SEARCH_PATH
        )),
        Err(_) => mode.sandbox(),
    }
}

#[test]
fn types_are_removed_and_the_value_is_returned() {
    let cases = [
        ("interface Point { x: number; y: number }\nconst p: Point = { x: 40, y: 2 };\np.x + p.y", json!(42)),
        ("enum Colour { Red = 1, Blue }\nconst all: Colour[] = [Colour.Blue];\nall", json!([2])),
        (
            "import { strict as assert } from 'node:assert';\nassert.equal(1 as number, 1);\n\
             console.log('::result', JSON.stringify(await Promise.resolve<number>(7)));",
            json!(7),
        ),
    ];
    for mode in Mode::available() {
        let sandbox = sandbox(mode);
        for (source, value) in &cases {
            // Node.js itself only removes types; an enum is more than a type.
            let Some(outcome) = code(&sandbox, Language::TypeScript, source) else { return };
            if source.starts_with("enum")
                && outcome.stderr.text().contains("ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX")
            {
                continue;
            }
            assert_eq!(outcome.verdict, Verdict::Ok, "{mode:?} {source} {}", told(&outcome));
            // A separate program cannot return the value of an expression.
            let is_program = outcome.report.notes.is_empty() && outcome.value.is_none();
            if !is_program || source.contains("::result") {
                assert_eq!(outcome.value.as_ref(), Some(value), "{mode:?} {source} {}", told(&outcome));
            }
        }
        let broken = code(&sandbox, Language::TypeScript, "const x: = 5;").unwrap();
        assert!(matches!(broken.verdict, Verdict::Exit { .. }), "{}", told(&broken));
        assert!(broken.stderr.text().contains('1'), "{}", told(&broken));
    }
    println!("{:?}", sandbox(Mode::available()[0]).find_language(Language::TypeScript));
}

//! Whole outputs in files, of which a model gets a part.

use std::path::Path;

use serde_json::{Value, json};
use toolpost_core::{Code, Masks, Output, OutputFiles, Secret};
use toolpost_sandbox::Host;
use toolpost_tools::{CodePool, CodeSettings, OutputDirectory};

use crate::support::{Bench, names_in, skip};

/// Prints 2 MB and some secrets; the middle is beyond the limit of the result.
const PRINT: &str = "for i in range(250_000): print(f'{i:07}' if i % 1000 else 'top-secret')";

struct Place {
    bench: Bench,
    files: tempfile::TempDir,
}

impl Place {
    fn new(pool: Option<CodePool>) -> Self {
        let files = tempfile::tempdir().unwrap();
        let mut settings = CodeSettings::default();
        settings.read_only = vec![files.path().to_owned()];
        settings.masks = Masks::new([Secret::new("top-secret")]);
        settings.pool = pool;
        let output_files = OutputFiles::new(OutputDirectory::new(files.path()));
        Self {
            bench: Bench::with(|builder| {
                builder.tool(toolpost_tools::code_execution).provide(settings).provide(output_files)
            }),
            files,
        }
    }

    fn names(&self) -> Vec<String> {
        names_in(self.files.path())
    }

    /// The file that the note of an output names, and its content.
    fn stored(&self, output: &Output) -> (String, String) {
        let text = output.to_text();
        let note = text.lines().last().unwrap();
        let path = note.split('`').nth(1).unwrap_or_else(|| panic!("{note}"));
        assert!(Path::new(path).starts_with(self.files.path()), "{note}");
        let content = std::fs::read_to_string(path).unwrap();
        assert!(note.contains(&format!("the whole output of {} bytes", content.len())), "{note}");
        (path.to_owned(), content)
    }
}

fn printed() -> String {
    let line = |i: u32| if i.is_multiple_of(1000) { "[secret]".into() } else { format!("{i:07}") };
    (0..250_000).map(line).collect::<Vec<String>>().join("\n") + "\n"
}

fn runs_code() -> bool {
    let runs = Host::probe().best().is_some();
    if !runs {
        skip("this host runs no code");
    }
    runs
}

#[tokio::test]
async fn what_a_program_prints_is_stored_whole() {
    if !runs_code() {
        return;
    }
    let pool = CodePool::new();
    for (pool, calls) in [
        (None, vec![("run_code", json!({"language": "python", "code": PRINT}))]),
        (None, vec![("run_command", json!({"argv": ["python3", "-c", PRINT]}))]),
        (None, vec![("code_execution", json!({ "code": PRINT }))]),
        (Some(pool), vec![("run_code", json!({"language": "python", "code": PRINT})); 3]),
    ] {
        let place = Place::new(pool);
        for (tool, arguments) in &calls {
            let output = place.bench.run(tool, arguments.clone()).await.unwrap();
            let (path, content) = place.stored(&output);
            assert_eq!(content, printed(), "{tool}");
            assert!(output.to_text().len() <= 64 << 10);

            let part = json!({"path": path, "offset": 123_457, "limit": 1});
            assert_eq!(place.bench.value("read_file", part).await["content"], "0123456\n");
            let count = printed().lines().filter(|line| line.contains("777")).count();
            for (language, code) in [
                ("bash", format!("grep -c 777 {path}")),
                ("python", format!("print(sum('777' in line for line in open('{path}')))")),
            ] {
                let found = place.bench.value("run_code", json!({"language": language, "code": code})).await;
                assert_eq!(found["stdout"], format!("{count}\n"), "{tool} {found}");
            }
        }
        assert_eq!(place.names().len(), 1, "equal texts have one file");
    }
}

#[tokio::test]
async fn a_session_stores_what_a_cell_prints() {
    let place = Place::new(None);
    let session = json!({"id": "s"});
    let mut call =
        place.bench.call("run_code", json!({"language": "python", "code": PRINT, "session": session}));
    call.scope = Some(toolpost_core::Scope::new("conversation"));
    match place.bench.toolbox.call(call).await.result {
        Ok(output) => assert_eq!(place.stored(&output).1, printed()),
        Err(error) => skip(error),
    }
}

#[tokio::test]
async fn a_file_is_for_a_model_only() {
    if !runs_code() {
        return;
    }
    let place = Place::new(None);
    let mut call = place.bench.call("run_code", json!({"language": "python", "code": PRINT}));
    call.options.whole_output = true;
    let output = place.bench.toolbox.call(call).await.result.unwrap();
    assert!(!output.truncated.is_empty() && output.whole.is_none());
    place.bench.run("run_code", json!({"language": "python", "code": "print('short')"})).await.unwrap();
    assert_eq!(place.names(), [""; 0]);
}

#[tokio::test]
async fn any_long_output_is_stored() {
    let place = Place::new(None);
    let text = "some line of a file\n".repeat(20_000);
    place.bench.put("long.txt", &text);
    let output = place.bench.run("read_file", json!({"path": "long.txt"})).await.unwrap();
    assert_eq!(place.stored(&output).1, text);
    assert_eq!(output.structured.as_ref().unwrap()["content"], Value::from(text));
}

#[tokio::test]
async fn only_names_of_files_there_are_read() {
    let place = Place::new(None);
    std::fs::write(place.files.path().join("a.txt"), "stored").unwrap();
    let inside = |name: &str| place.files.path().join(name).display().to_string();
    assert_eq!(place.bench.value("read_file", json!({"path": inside("a.txt")})).await["content"], "stored");
    std::os::unix::fs::symlink("/etc/hostname", place.files.path().join("link")).unwrap();
    for path in ["../hostname", "a.txt/../../x", "link"] {
        let error = place.bench.error("read_file", json!({"path": inside(path)})).await;
        assert_eq!(error.code(), Code::InvalidPath, "{path}: {error}");
    }
    let error = place.bench.error("write_file", json!({"path": inside("b.txt"), "content": ""})).await;
    assert_eq!(error.code(), Code::InvalidPath, "{error}");
}

//! The first implementation's own fixtures and examples.

use serde_json::json;
use toolpost_core::{Code, ToolSource as _};

use super::{call, names, source};

#[tokio::test(flavor = "multi_thread")]
async fn the_fixtures_of_the_original_are_loaded() {
    let test = "the_fixtures_of_the_original_are_loaded";
    let Some(checkout) = toolpost_testkit::recordings::toolable() else {
        println!(
            "SKIP {test}: toolable is not beside the checkout, and TOOLPOST_TOOLABLE names no directory"
        );
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the Python of this machine, which needs pydantic")]
    let path = std::env::var_os("PATH").unwrap_or_default();
    let packages = checkout.join("src");
    // The sandbox takes no `PYTHONPATH`: each program is started by a line that adds the package's directory.
    let directory = tempfile::tempdir().unwrap();
    let mut builder = source().readable(&checkout).search_path(path);
    let fixtures = checkout.join("tests/fixtures");
    let mut programs: Vec<_> =
        std::fs::read_dir(fixtures).unwrap().flatten().map(|entry| entry.path()).collect();
    programs.push(checkout.join("example_tool.py"));
    programs.sort();
    for program in programs.iter().filter(|path| path.extension().is_some_and(|kind| kind == "py")) {
        let started = directory.path().join(program.file_name().unwrap());
        let script = format!(
            "import runpy, sys\nsys.path.insert(0, {:?})\nrunpy.run_path({:?}, run_name='__main__')\n",
            packages.to_str().unwrap(),
            program.to_str().unwrap()
        );
        std::fs::write(&started, script).unwrap();
        builder = builder.path(started);
    }
    let tools = builder.discover().await;
    println!("tools {:?}", names(&tools).await);
    let broken: Vec<_> = tools.diagnostics().into_iter().filter(|found| found.tool.is_none()).collect();
    let stderr = |error: &toolpost_core::ToolError| error.context().get("stderr").map(ToString::to_string);
    if broken.iter().filter_map(|found| stderr(&found.error)).any(|text| text.contains("'pydantic'")) {
        println!("SKIP {test}: Python has no pydantic");
        return;
    }
    for (program, code) in [("broken_tool.py", Code::Dependency), ("slow_tool.py", Code::Timeout)] {
        let found = broken.iter().find(|found| found.path.ends_with(program)).unwrap();
        assert_eq!(found.error.code(), code, "{found}");
    }
    assert_eq!(broken.len(), 2, "{broken:?}");
    // Its manifest is an envelope: its schema is not known.
    assert!(names(&tools).await.contains(&"example".to_owned()));
    assert!(call(&tools, "example", json!({})).await.result.is_ok());
    let sum = call(&tools, "add", json!({"a": 1, "b": 2})).await;
    assert_eq!(super::value(&sum), json!({"sum": 3}));
    let bad = call(&tools, "bad_json", json!({})).await;
    assert!(super::error(&bad).is_program_failure(), "{bad:?}");
    assert!(!tools.resources().await.unwrap().is_empty() && !tools.prompts().await.unwrap().is_empty());
    for name in names(&tools).await {
        let reply = call(&tools, &name, json!({})).await;
        assert!(reply.result.as_ref().err().is_none_or(|error| error.code() != Code::Internal), "{name}");
    }
}

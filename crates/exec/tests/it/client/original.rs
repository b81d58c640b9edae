//! The first implementation's own fixtures and examples, where a checkout of its 0.1 line is named.

use serde_json::json;
use toolpost_core::{Code, ToolSource as _};

use super::{call, names, source};

/// The variable that names the checkout. Its Python needs pydantic, and must find the package.
const CHECKOUT: &str = "TOOLPOST_TOOLABLE";

#[tokio::test(flavor = "multi_thread")]
async fn the_fixtures_of_the_original_are_loaded() {
    #[expect(clippy::disallowed_methods, reason = "the machine says where the original lies")]
    let Some(checkout) = std::env::var_os(CHECKOUT) else {
        println!("SKIP the_fixtures_of_the_original_are_loaded: {CHECKOUT} names no checkout");
        return;
    };
    let checkout = std::path::PathBuf::from(checkout).canonicalize().unwrap();
    let packages = checkout.join("src");
    // The sandbox takes no `PYTHONPATH`: each program is started by a line that adds the package's folder.
    let folder = tempfile::tempdir().unwrap();
    let mut builder = source().readable(&checkout);
    let fixtures = checkout.join("tests/fixtures");
    let mut programs: Vec<_> =
        std::fs::read_dir(fixtures).unwrap().flatten().map(|entry| entry.path()).collect();
    programs.push(checkout.join("example_tool.py"));
    programs.sort();
    for program in programs.iter().filter(|path| path.extension().is_some_and(|kind| kind == "py")) {
        let started = folder.path().join(program.file_name().unwrap());
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
    for (program, code) in [
        ("broken_tool.py", Code::Dependency),
        ("invalid_json_tool.py", Code::Dependency),
        ("slow_tool.py", Code::Timeout),
    ] {
        let found = broken.iter().find(|found| found.path.ends_with(program)).unwrap();
        assert_eq!(found.error.code(), code, "{found}");
    }
    assert_eq!(broken.len(), 3, "{broken:?}");
    assert!(!tools.resources().await.unwrap().is_empty() && !tools.prompts().await.unwrap().is_empty());
    for name in names(&tools).await {
        let reply = call(&tools, &name, json!({})).await;
        assert!(reply.result.as_ref().err().is_none_or(|error| error.code() != Code::Internal), "{name}");
    }
}

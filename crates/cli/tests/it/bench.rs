//! The benchmark with fake peers.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{TestEnv, eventually, fits, processes};

/// A Python that has packages, and crashes with the script of each.
const BROKEN: &str = "#!/bin/sh
case \"$2\" in
*importlib*) echo '{\"\": \"'\"$0\"'\", \"Python\": \"3.0\", \"pydantic-ai-slim\": \"9.9\", \"fastmcp\": \"8.8\"}' ;;
*) echo 'ImportError: no such library' >&2; exit 3 ;;
esac
";

fn program(env: &TestEnv, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = env.write(name, text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn row<'a>(results: &'a Value, comparison: &str, name: &str) -> &'a Value {
    let comparisons = results["comparisons"].as_array().unwrap();
    let comparison = comparisons.iter().find(|found| found["id"] == comparison).unwrap();
    let rows = comparison["rows"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {comparison:#}"))
}

#[test]
pub(crate) fn bench() {
    let env = TestEnv::new();
    program(&env, "broken", BROKEN);
    program(&env, "bin/srt", "#!/bin/sh\necho 'Error: no socat' >&2\nexit 1\n");
    let bin = env.path("bin").display().to_string();
    let env = env.with("PATH", format!("{bin}:/usr/bin:/bin"));
    let results =
        env.run(["bench", "--rounds", "1", "--python", "./broken", "--output", "out", "--json"]).ok().json();
    fits("bench", &results);
    assert_eq!(results, serde_json::from_str::<Value>(&env.read("out/results.json")).unwrap());
    assert_eq!(results["rounds"], 1);
    for (comparison, name) in [
        ("sandbox-true", "no sandbox"),
        ("loop-cpu", "Toolpost"),
        ("mcp-stdio", "Toolpost"),
        ("mcp-http", "Toolpost"),
        ("flow-wide", "Toolpost"),
    ] {
        let row = row(&results, comparison, name);
        assert_eq!(
            (&row["status"], row["figure"]["value"].as_f64() > Some(0.0)),
            (&"measured".into(), true),
            "{row}"
        );
    }
    for (comparison, name, reason) in [
        ("loop-cpu", "pydantic-ai", "exit status 3: ImportError: no such library"),
        ("mcp-stdio", "FastMCP", "exit status 3: ImportError: no such library"),
        ("sandbox-true", "sandbox-runtime", "exit status 1: Error: no socat"),
    ] {
        let row = row(&results, comparison, name);
        assert_eq!((&row["status"], &row["reason"]), (&"failed".into(), &reason.into()));
    }
    let skipped = row(&results, "flow-wide", "LangGraph");
    assert_eq!(
        (&skipped["status"], &skipped["fix"]),
        (&"skipped".into(), &"`./broken -m pip install \"langgraph\"`".into())
    );
    let report = env.read("out/report.md");
    assert!(
        report.contains("| pydantic-ai | failed: exit status 3: ImportError: no such library |"),
        "{report}"
    );
    // Each chart of the report is well-formed XML.
    let charts: Vec<&str> = report.split("](").skip(1).filter_map(|part| part.split(')').next()).collect();
    assert!(charts.len() >= 10, "{charts:?}");
    env.write("check.py", "import glob\nfrom xml.dom.minidom import parse\nprint(sum(parse(name).documentElement.tagName == 'svg' for name in glob.glob('*.svg')))");
    let files = charts.iter().flat_map(|name| ["--attach".to_owned(), format!("out/{name}")]);
    let words = ["exec", "check.py"].into_iter().map(str::to_owned).chain(files);
    assert_eq!(env.run(words).ok().out, format!("{}\n", charts.len()));
}

#[test]
pub(crate) fn compare() {
    let env = TestEnv::new();
    let words = ["bench", "flow", "--rounds", "2", "--python", "/nonexistent"];
    let page = env.run(words.iter().chain(&["--output", "one"])).ok();
    assert!(page.out.contains("Workflow: a chain") && !page.out.contains("MCP"), "{page}");
    // An earlier run that was much slower.
    let mut old: Value = serde_json::from_str(&env.read("one/results.json")).unwrap();
    old["comparisons"][1]["rows"][0]["figure"] =
        serde_json::json!({ "value": 9e9, "low": 8e9, "high": 1e10 });
    env.write("old.json", old.to_string());
    let page = env.run(words.iter().chain(&["--output", "two", "--compare", "old.json"])).ok();
    assert!(
        page.out.contains("of 2 figures agree") && page.out.contains("- Workflow: a chain, Toolpost"),
        "{page}"
    );
    assert!(env.read("two/report.md").contains("## Agreement"));
    env.write("old.json", "{}");
    let wrong = env.run(["bench", "flow", "--compare", "old.json"]).exit(2);
    assert!(wrong.err.contains("`old.json` has no results of a benchmark"), "{wrong}");
}

#[test]
fn ctrl_c_ends_it_and_its_peers() {
    let seconds = format!("304.{}", std::process::id());
    let env = TestEnv::new();
    program(&env, "slow", &format!("#!/bin/sh\nsleep {seconds}\n"));
    let running = env.start(["bench", "loop", "--python", "./slow"]);
    eventually("the peer runs", || !processes(&seconds).is_empty());
    running.signal(Signal::INT);
    running.finish().exit(130);
    assert_eq!(processes(&seconds), Vec::<u32>::new());
    assert!(!env.path("toolpost-bench").exists());
}

//! The names that tools have in other collections.

use serde_json::json;
use toolpost_core::Code;

use crate::support::{Bench, skip};

#[tokio::test]
async fn other_names_are_the_same_tools() {
    let bench = Bench::new();
    bench.put("note.txt", "text");
    let reply = bench.reply("read_local_file", json!({ "file_path": "note.txt" })).await;
    assert_eq!(
        (&*reply.record.tool, &reply.result.unwrap().structured.unwrap()["content"]),
        ("read_file", &json!("text"))
    );
    assert_eq!(bench.value("safe_math_evaluator", json!({ "expression": "2**10" })).await["value"], 1024);
    let analysis = json!({ "data": [1, 2, 3], "analysis_type": "descriptive" });
    assert_eq!(bench.value("data_analyzer", analysis).await["population_variance"], 2.0 / 3.0);
    let error = bench.error("python_code_executor", json!({ "code": "1", "language": "bash" })).await;
    assert_eq!((error.code(), &error.context()["pointer"]), (Code::InvalidInput, &json!("/language")));
}

#[tokio::test]
async fn python_code_executor_runs_python() {
    let bench = Bench::new();
    let reply = bench.reply("python_code_executor", json!({ "code": "6 * 7" })).await;
    assert_eq!(reply.record.arguments.as_deref(), Some(&json!({ "code": "6 * 7", "language": "python" })));
    match reply.result {
        Ok(output) => assert_eq!(output.structured.unwrap()["value"], 42),
        Err(error) => skip(error),
    }
}

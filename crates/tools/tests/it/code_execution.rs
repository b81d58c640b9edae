//! `code_execution`: the hosted tool's blocks from this host's own sandbox.

use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Call, Output, Scope, ToolError};
use toolpost_tools::{CodeSettings, Limits, code_execution};

use crate::support::{Bench, skip};

async fn run(bench: &Bench, scope: &Scope, code: &str) -> Result<Output, ToolError> {
    let call = Call::new("code_execution", json!({ "code": code })).with_scope(scope.clone());
    bench.toolbox.call(call).await.result
}

/// A bench with the tool; `None`, with a message, on a host without sessions.
async fn bench(settings: CodeSettings) -> Option<(Bench, Scope)> {
    let bench = Bench::with(|builder| builder.tool(code_execution()).provide(settings));
    let scope = Scope::new("ada").with_working_dir(bench.path(""));
    match run(&bench, &scope, "1").await {
        Ok(_) => Some((bench, scope)),
        Err(error) => {
            skip(error.message());
            None
        }
    }
}

async fn value(bench: &Bench, scope: &Scope, code: &str) -> Value {
    run(bench, scope, code).await.unwrap().structured.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_persists_variables_and_returns_hosted_blocks() {
    let Some((bench, _)) = bench(CodeSettings::default()).await else { return };
    bench.put("data.csv", "item,value\napple,30\nbanana,70\n");
    // Another conversation, which begins with the file.
    let scope = Scope::new("ada").with_working_dir(bench.path(""));
    let sum = "import csv\nrows = list(csv.DictReader(open('data.csv')))\nprint(sum(int(row['value']) for row in rows))";
    assert_eq!(
        value(&bench, &scope, sum).await,
        json!({"type": "code_execution_result", "stdout": "100\n", "stderr": "", "return_code": 0, "content": []})
    );
    let output = run(&bench, &scope, "open('out.txt', 'w').write(str(len(rows)))\nlen(rows)").await.unwrap();
    let block = output.structured.clone().unwrap();
    assert_eq!(block["content"], json!([{"type": "code_execution_output", "file_id": "out.txt"}]));
    assert_eq!(block["stdout"], "2\n");
    // The model reads the block, the user gets the file.
    assert_eq!(serde_json::from_str::<Value>(&output.to_text()).unwrap(), block);
    assert_eq!(output.artifacts.len(), 1);
    assert_eq!(std::fs::read_to_string(bench.path("out.txt")).unwrap(), "2");
    // Files that other programs execute are withheld, with a note.
    let code = "import os\nos.makedirs('.git/hooks')\nopen('.git/hooks/pre-commit', 'w').write('x')";
    let refused = value(&bench, &scope, code).await;
    assert!(
        refused["stderr"].as_str().unwrap().contains("was not written to the working directory"),
        "{refused}"
    );
    assert!(!bench.path(".git").exists());
    let failed = value(&bench, &scope, "print('so far')\n1 / 0").await;
    assert_eq!((&failed["type"], &failed["stdout"]), (&json!("code_execution_result"), &json!("so far\n")));
    assert!(
        failed["stderr"].as_str().unwrap().contains("ZeroDivisionError") && failed["return_code"] != 0,
        "{failed}"
    );
    assert_eq!(value(&bench, &scope, "print(len(rows))").await["stdout"], "2\n", "a failure ends nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_have_the_hosted_error_codes() {
    let mut settings = CodeSettings::default();
    settings.limits = Limits::default().with_wall(Duration::from_secs(2));
    let Some((bench, scope)) = bench(settings).await else { return };
    assert_eq!(
        value(&bench, &scope, "while True: pass").await,
        json!({"type": "code_execution_tool_result_error", "error_code": "execution_time_exceeded"})
    );
    assert_eq!(
        value(&bench, &scope, "  \n").await,
        json!({"type": "code_execution_tool_result_error", "error_code": "invalid_tool_input"})
    );
    let socket = "import socket\nsocket.create_connection(('1.1.1.1', 53), timeout=1)";
    assert_ne!(value(&bench, &scope, socket).await["return_code"], 0, "there is no network");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_separate_call_works_in_the_directory_itself() {
    let Some((bench, _)) = bench(CodeSettings::default()).await else {
        return;
    };
    let block = bench.value("code_execution", json!({ "code": "open('made.txt', 'w').write('x')" })).await;
    assert_eq!(block["content"][0]["file_id"], "made.txt", "{block}");
    assert_eq!(std::fs::read_to_string(bench.path("made.txt")).unwrap(), "x");
}

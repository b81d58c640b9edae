//! Tests of a description's grants to its program, and of those of its caller.

use std::path::Path;

use serde_json::json;
use toolpost_core::Code;
use toolpost_exec::command::CommandTools;
use toolpost_sandbox::Grants;

use super::support::{Run, description};
use crate::host::sandbox_or_skip;

const SHOW: &str = r#"args = ["-c", "pwd; cat /outside/read 2>/dev/null; echo $KEY; echo $KEY >&2; echo made > /outside/out/made || true"]"#;

/// A description with grants, and a directory outside of the one that it works in.
fn with(grants: &str, outside: &Path) -> CommandTools {
    let tool = SHOW.replace("/outside", outside.to_str().unwrap());
    let text = description("sh", grants, &format!("{tool}\n[tool.output]\nformat = \"text\""));
    CommandTools::from_toml(&text, outside.join("t.toml").display().to_string()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_description_grants_paths_and_a_level_and_the_caller_values() {
    let Some(()) = sandbox_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let outside = directory.path().canonicalize().unwrap();
    std::fs::create_dir_all(outside.join("out")).unwrap();
    std::fs::write(outside.join("read"), "outside\n").unwrap();
    let none = Run::of(with("", &outside), "t", json!({})).text().await;
    assert_eq!(none, "/workspace\n\n");
    let grants =
        "[grants]\nreadable = [\"read\"]\nwritable = [\"out\"]\nlevel = \"strict\"\nworkdir = \"out\"";
    let reply = Run::of(with(grants, &outside), "t", json!({})).reply().await;
    assert_eq!(reply.record.sandbox.as_ref().unwrap()["report"]["effective"], "strict");
    assert_eq!(reply.result.unwrap().to_text(), "/workspace\noutside\n\n");
    assert_eq!(std::fs::read_to_string(outside.join("out/made")).unwrap(), "made\n");

    // A variable is the operator's to give.
    let raw = "[grants]\nsecrets = [{ name = \"KEY\", raw = true }]";
    let error = Run::of(with(raw, &outside), "t", json!({})).error().await;
    assert!(error.code() == Code::Permission && error.message().contains("`KEY`"), "{error:?}");
    let tools = with(raw, &outside);
    let granted = tools.grants().resolve(&mut |_| Some("canary-of-a-key".to_owned())).unwrap();
    let reply = Run::of(tools.granted(granted), "t", json!({})).reply().await;
    assert_eq!(reply.record.sandbox.as_ref().unwrap()["report"]["raw_variables"], json!(["KEY"]));
    let output = reply.result.unwrap();
    assert_eq!(output.to_text(), "/workspace\n[secret]\n");
    assert!(!format!("{output:?} {:?}", reply.record).contains("canary"));

    // Grants of the caller replace those of the file.
    let nothing = Grants::default().resolve(&mut |_| None).unwrap();
    let replaced = Run::of(with(grants, &outside).granted(nothing), "t", json!({})).text().await;
    assert_eq!(replaced, "/workspace\n\n");
}

#[test]
fn a_wrong_grant_names_its_line() {
    for (grants, message) in [
        ("[grants]\nreadble = []", "readble"),
        ("[grants]\nsecrets = [1]", "the name of a variable"),
        ("grants = 1", "expected a table"),
        ("[grants]\nallow_hosts = [\"*\"]", "*"),
    ] {
        let error =
            CommandTools::from_toml(&description("sh", grants, ""), "t.toml").unwrap_err().to_string();
        assert!(error.starts_with("t.toml:4: grants") && error.contains(message), "{error}");
    }
}

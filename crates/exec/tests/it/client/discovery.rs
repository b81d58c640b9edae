//! Discovery of programs, its cache, and colliding names.

use std::path::Path;

use serde_json::{Value, json};
use toolpost_core::{Code, ToolSource as _};

use super::{Programs, call, error, names, shell, shown, source, value};

fn tools(list: &[&str]) -> Value {
    let list: Vec<_> = list
        .iter()
        .map(|name| json!({"name": name, "summary": "S.", "schema": {"type": "object"}}))
        .collect();
    json!({"name": "p", "version": "1", "tools": list})
}

const WHO: &str = "printf '{\"status\":\"success\",\"result\":[\"%s\",\"%s\"]}\\n' \"${0##*/}\" \"$1\"";

#[tokio::test(flavor = "multi_thread")]
async fn colliding_names_are_rejected_and_reported() {
    let programs = Programs::new();
    let one = programs.write("one", &shell(&tools(&["add", "only"]), WHO));
    let two = programs.write("two", &shell(&tools(&["add"]), WHO));
    let refused = source().path(&one).path(&two).discover().await;
    assert_eq!(names(&refused).await, ["add", "only"]);
    assert_eq!(value(&call(&refused, "add", json!({})).await), json!(["one", "add"]));
    let diagnostics = refused.diagnostics();
    assert_eq!(diagnostics.len(), 1);
    assert!(diagnostics[0].path.ends_with("two") && diagnostics[0].tool.as_deref() == Some("add"));
    assert_eq!(diagnostics[0].error.code(), Code::Conflict);

    let twice = source().path(&one).path(&one).discover().await;
    assert!(shown(&twice)[0].contains("named twice"));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tool_names_are_mapped() {
    let programs = Programs::new();
    let path = programs.write("odd", &shell(&tools(&["get weather", "9lives", "ok"]), WHO));
    let tools = source().path(path).discover().await;
    let specs = tools.list().await.unwrap();
    assert_eq!(specs[2].name, "ok");
    assert!(!specs[2].meta.contains_key("original_name"));
    for (spec, original) in specs.iter().zip(["get weather", "9lives"]) {
        assert_eq!(spec.check(), Ok(()));
        assert_eq!(spec.meta["original_name"], original);
        assert_eq!(value(&call(&tools, &spec.name, json!({})).await), json!(["odd", original]));
    }
}

/// A program whose version has the time of its start: it cannot write a file to count its starts.
fn counting(version: &str) -> String {
    format!(
        "#!/bin/sh\ncase \"$1\" in\n--discover) echo \"{{\\\"name\\\":\\\"c\\\",\\\"version\\\":\\\"{version} $(date +%N)\\\",\\\"tools\\\":[{{\\\"name\\\":\\\"t\\\"}}]}}\";;\nt) case \"$2\" in --manifest) echo '{{\"name\":\"inner\",\"summary\":\"S.\",\"description\":\"More.\",\"schema\":{{\"type\":\"object\",\"properties\":{{\"{version}\":{{\"type\":\"string\"}}}}}}}}';; *) echo '{{\"status\":\"success\",\"result\":\"{version}\"}}';; esac;;\nesac\n"
    )
}

async fn asked_at(cache: &Path, programs: &Programs) -> String {
    let tools = source().path(programs.path().join("c")).cache(cache).discover().await;
    assert_eq!(shown(&tools), Vec::<String>::new());
    let spec = tools.list().await.unwrap().remove(0);
    assert_eq!((spec.name.as_str(), spec.description.as_str()), ("t", "More."));
    spec.meta["program_version"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_is_cached_by_time_and_size() {
    let programs = Programs::new();
    let cache = tempfile::tempdir().unwrap();
    let directory = cache.path().join("made/for/it");
    let file = directory.join("executables-v1.json");
    let path = programs.write("c", &counting("one"));
    let first = asked_at(&directory, &programs).await;
    assert_eq!(asked_at(&directory, &programs).await, first, "it is not asked again");
    // A new time alone is not a change.
    let file_of = std::fs::File::options().append(true).open(&path).unwrap();
    file_of.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    drop(file_of);
    assert_eq!(asked_at(&directory, &programs).await, first);
    programs.write("c", &counting("two"));
    let second = asked_at(&directory, &programs).await;
    assert_ne!(second, first, "it changed");
    assert_eq!(asked_at(&directory, &programs).await, second);
    // A file that cannot be used is ignored and replaced.
    let mut last = second;
    for bad in ["", "garbage", "{\"v\":2,\"programs\":{}}", "{\"v\":1,\"programs\":{\"/x\":7}}", "[[["] {
        std::fs::write(&file, bad).unwrap();
        let again = asked_at(&directory, &programs).await;
        assert_ne!(again, last, "{bad}");
        assert_eq!(asked_at(&directory, &programs).await, again, "{bad}");
        last = again;
    }
    assert_eq!(serde_json::from_slice::<Value>(&std::fs::read(&file).unwrap()).unwrap()["v"], 1);
    // Without a writable cache, discovery works and reports it.
    std::fs::write(cache.path().join("file"), "").unwrap();
    let tools =
        source().path(programs.path().join("c")).cache(cache.path().join("file/sub")).discover().await;
    assert_eq!(names(&tools).await, ["t"]);
    assert!(shown(&tools)[0].contains("cannot write the manifest cache"), "{:?}", shown(&tools));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_program_is_discovered_again_or_rejected() {
    let programs = Programs::new();
    let path = programs.write("c", &shell(&tools(&["t"]), WHO));
    let source = source().path(&path).discover().await;
    let generation = source.generation();
    assert_eq!(value(&call(&source, "t", json!({})).await), json!(["c", "t"]));
    // The same tool of a new program.
    programs.write("c", &shell(&tools(&["t", "u"]), &WHO.replace("%s\\\",\\\"%s", "new %s\\\",\\\"%s")));
    assert!(call(&source, "t", json!({})).await.result.is_ok());
    assert!(source.generation() > generation);
    assert_eq!(names(&source).await, ["t", "u"]);
    // Another tool under the old name, with the old size and the old time.
    let before = std::fs::metadata(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap().replace("\"S.\"", "\"X.\"");
    programs.write("c", &text);
    let file = std::fs::File::options().append(true).open(&path).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    drop(file);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), before.len());
    let reply = call(&source, "t", json!({})).await;
    assert_eq!(error(&reply).code(), Code::Conflict, "{:?}", reply.result);
    assert!(call(&source, "t", json!({})).await.result.is_ok(), "listed again, it is what it is");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(error(&call(&source, "t", json!({})).await).code(), Code::Dependency);
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_of_a_directory_are_sorted_by_name() {
    let programs = Programs::new();
    programs.write("b", &shell(&tools(&["b"]), WHO));
    programs.write("a", &shell(&tools(&["a"]), WHO));
    programs.write(".hidden", &shell(&tools(&["h"]), WHO));
    std::fs::write(programs.path().join("readme.txt"), "no program").unwrap();
    std::fs::create_dir(programs.path().join("sub")).unwrap();
    let source = source().directory(programs.path()).directory(programs.path().join("none")).discover().await;
    assert_eq!(names(&source).await, ["a", "b"]);
    assert_eq!(source.diagnostics().len(), 1);
    programs.write("c", &shell(&tools(&["c"]), WHO));
    source.refresh().await;
    assert_eq!(names(&source).await, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_manifest_leaves_a_tool_without_schema() {
    let programs = Programs::new();
    let discovery = json!({"name": "p", "version": "1", "tools": [{"name": "t", "summary": "S."}]});
    let body = r#"[ "$2" = --manifest ] && { echo Traceback >&2; exit 1; }
printf '{"status":"success","result":%s}\n' "$2""#;
    let source = source().path(programs.write("p", &shell(&discovery, body))).discover().await;
    assert!(shown(&source)[0].contains("`t`: its schema is unknown"), "{:?}", shown(&source));
    assert_eq!(value(&call(&source, "t", json!({"x": 1})).await), json!({"x": 1}));
}

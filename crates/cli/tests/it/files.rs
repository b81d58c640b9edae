//! Files of providers: uploads, downloads, lists and removals with each provider.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};

use crate::support::{TestEnv, fits};

/// The key of the tests, which only the request's header may have.
const KEY: &str = "sk-canary-files-2f81";

/// The address of a provider: its name, and the header with the key.
const PROVIDERS: [(&str, &str, &str); 4] = [
    ("anthropic", "x-api-key", "sk-canary-files-2f81"),
    ("openai", "authorization", "Bearer sk-canary-files-2f81"),
    ("gemini", "x-goog-api-key", "sk-canary-files-2f81"),
    ("xai", "authorization", "Bearer sk-canary-files-2f81"),
];

/// A provider with a files API.
struct Keeper {
    provider: &'static str,
    /// The content and name of each file, by ID.
    files: Mutex<BTreeMap<String, (String, Vec<u8>)>>,
}

impl Keeper {
    fn start(provider: &'static str) -> (LoopbackProvider, TestEnv) {
        let keeper = Self { provider, files: Mutex::default() };
        let server = LoopbackProvider::start_with(move |request| keeper.answer(request)).unwrap();
        let name = provider.to_uppercase();
        let env = TestEnv::new()
            .with(&format!("{name}_API_KEY"), KEY)
            .with(&format!("{name}_BASE_URL"), server.base_url())
            .with("TOOLPOST_MODELS_RETRY_WAIT", "1ms");
        (server, env)
    }

    fn record(&self, id: &str, name: &str, size: usize) -> Value {
        match self.provider {
            "anthropic" => json!({"id": id, "type": "file", "filename": name, "size_bytes": size,
                "mime_type": "text/csv", "created_at": "2026-11-20T10:00:00Z", "downloadable": true}),
            "gemini" => json!({"name": id, "displayName": name, "sizeBytes": size.to_string(),
                "mimeType": "text/csv", "createTime": "2026-11-20T10:00:00Z",
                "expirationTime": "2026-11-22T10:00:00Z", "uri": format!("https://g.example/v1beta/{id}")}),
            _ => json!({"id": id, "object": "file", "filename": name, "bytes": size,
                "created_at": 1_795_168_800_u64, "purpose": "user_data"}),
        }
    }

    fn answer(&self, request: &ReceivedRequest) -> Reply {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let path = request.path.split('?').next().unwrap();
        let base = if self.provider == "gemini" { "/v1beta/files" } else { "/v1/files" };
        let id_of = |number: usize| match self.provider {
            "gemini" => format!("files/f{number}"),
            _ => format!("f{number}"),
        };
        if path == "/upload/v1beta/files" {
            let name = request.json()["file"]["display_name"].as_str().unwrap().to_owned();
            let id = id_of(files.len());
            files.insert(id, (name, Vec::new()));
            let host = request.header("host").unwrap();
            return Reply::json(200, "{}").header("x-goog-upload-url", &format!("http://{host}/session"));
        }
        if path == "/session" {
            let (id, (name, content)) = files.iter_mut().next_back().unwrap();
            content.extend_from_slice(&request.body);
            return Reply::json(200, json!({"file": self.record(id, name, content.len())}).to_string());
        }
        if path == base && request.method == "POST" {
            let form = String::from_utf8_lossy(&request.body).into_owned();
            let (head, rest) = form.rsplit_once("\r\n\r\n").unwrap();
            let name = head.rsplit_once("filename=\"").unwrap().1.split('"').next().unwrap().to_owned();
            let content = rest.rsplit_once("\r\n--").unwrap().0.as_bytes().to_vec();
            let id = id_of(files.len());
            let record = self.record(&id, &name, content.len());
            files.insert(id, (name, content));
            return Reply::json(200, record.to_string());
        }
        if path == base {
            let list: Vec<Value> =
                files.iter().map(|(id, (name, content))| self.record(id, name, content.len())).collect();
            let list = if self.provider == "gemini" { json!({"files": list}) } else { json!({"data": list}) };
            return Reply::json(200, list.to_string());
        }
        let end = if self.provider == "gemini" { ":download" } else { "/content" };
        let wanted = path.strip_prefix(base).unwrap().trim_start_matches('/');
        let (wanted, is_content) = wanted.strip_suffix(end).map_or((wanted, false), |id| (id, true));
        let id = if self.provider == "gemini" { format!("files/{wanted}") } else { wanted.to_owned() };
        match (files.get(&id).cloned(), request.method.as_str()) {
            (None, _) => missing(self.provider),
            (Some(_), "DELETE") => {
                files.remove(&id);
                Reply::json(200, "{}")
            }
            (Some((_, content)), _) if is_content => Reply::new(200, "application/octet-stream", content),
            (Some((name, content)), _) => {
                Reply::json(200, self.record(&id, &name, content.len()).to_string())
            }
        }
    }
}

/// The provider's error for a missing file.
fn missing(provider: &str) -> Reply {
    let error = match provider {
        "anthropic" => json!({"type": "error", "error": {"type": "not_found_error", "message": "no file"}}),
        "gemini" => json!({"error": {"code": 404, "message": "no file", "status": "NOT_FOUND"}}),
        _ => json!({"error": {"message": "no file", "type": "invalid_request_error", "code": null}}),
    };
    Reply::json(404, error.to_string())
}

#[test]
pub(crate) fn provider() {
    for (provider, header, key) in PROVIDERS {
        let (server, env) = Keeper::start(provider);
        env.write("a.csv", "x,y\n1,2\n");
        env.write("b.csv", "x\n");
        let run = |words: &[&str]| env.run(["files"].iter().chain(words).chain(&["--provider", provider]));
        let put = run(&["put", "a.csv", "b.csv", "--json"]).ok().json();
        fits("files", &put);
        let id = put["files"][0]["id"].as_str().unwrap().to_owned();
        assert_eq!((&put["provider"], &put["files"][0]["name"]), (&json!(provider), &json!("a.csv")));
        assert_eq!(put["files"][0]["size"], 8, "{put}");
        let listed = run(&["ls", "--json"]).ok().json();
        fits("files", &listed);
        assert_eq!((listed["files"].as_array().unwrap().len(), &listed["has_more"]), (2, &json!(false)));
        let text = run(&["ls"]).ok().out;
        let line = text.lines().next().unwrap();
        for part in [id.as_str(), "a.csv", "8 bytes", "2026-11-20"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let saved = run(&["get", &id, "-o", "copy.csv", "--json"]).ok().json();
        fits("files", &saved);
        assert_eq!((saved["saved"]["size"].as_u64(), env.read("copy.csv").as_str()), (Some(8), "x,y\n1,2\n"));
        let removed = run(&["rm", &id, "--json"]).ok().json();
        fits("files", &removed);
        assert_eq!(removed["removed"], json!([id]));
        let gone = run(&["get", &id, "--json"]).exit(1).error();
        assert_eq!(gone["code"], "NOT_FOUND");
        assert!(gone["hints"].to_string().contains(&format!("files ls --provider {provider}")), "{gone}");
        for request in server.requests().iter().filter(|request| request.path != "/session") {
            assert_eq!(request.header(header), Some(key), "{provider} {}", request.path);
        }
    }
}

#[test]
pub(crate) fn put() {
    let (server, env) = Keeper::start("anthropic");
    env.write("in/data.csv", "1\n");
    // One invalid file stops all uploads.
    for (word, code, exit) in [("absent.csv", "USAGE", 2), ("in", "USAGE", 2)] {
        let error = env.run(["files", "put", "in/data.csv", word, "--json"]).exit(exit).error();
        assert_eq!(error["code"], code);
        assert!(error["message"].as_str().unwrap().contains(word), "{error}");
    }
    let large = std::fs::File::create(env.path("large.bin")).unwrap();
    large.set_len(501 << 20).unwrap();
    let error = env.run(["files", "put", "large.bin", "--json"]).exit(6).error();
    assert!(error["message"].as_str().unwrap().contains("the provider's maximum of 524288000"), "{error}");
    assert!(server.requests().is_empty());
    // The provider of the only key is the default.
    let finished = env.run(["files", "put", "in/data.csv"]).ok();
    assert!(finished.out.starts_with("f0  data.csv  2 bytes"), "{finished}");
    let form = String::from_utf8(server.requests()[0].body.clone()).unwrap();
    assert!(form.contains("content-type: text/csv"), "{form}");
    // Earlier uploads are reported after a failure.
    let server = LoopbackProvider::start(vec![
        Reply::json(200, json!({"id": "one", "filename": "a"}).to_string()),
        Reply::json(413, r#"{"type":"error","error":{"type":"request_too_large","message":"too large"}}"#),
    ])
    .unwrap();
    let env = TestEnv::new().with("ANTHROPIC_API_KEY", KEY).with("ANTHROPIC_BASE_URL", server.base_url());
    env.write("a", "1");
    let finished = env.run(["files", "put", "a", "a", "--json"]);
    assert_eq!(finished.json()["files"][0]["id"], "one");
    assert!(finished.error()["message"].as_str().unwrap().contains("too large"), "{finished}");
}

#[test]
pub(crate) fn get() {
    let (server, env) = Keeper::start("openai");
    env.write("in/data.csv", "one\n");
    env.write("data.csv", "mine\n");
    env.run(["files", "put", "in/data.csv"]).ok();
    let finished = env.run(["files", "get", "f0"]).ok();
    assert_eq!(finished.out, "data-1.csv\n", "{finished}");
    assert_eq!((env.read("data.csv").as_str(), env.read("data-1.csv").as_str()), ("mine\n", "one\n"));
    let before = server.requests().len();
    let error = env.run(["files", "get", "f0", "-o", "data.csv", "--json"]).exit(2).error();
    assert!(error["hints"][0].as_str().unwrap().contains("Nothing is overwritten"), "{error}");
    assert_eq!(server.requests().len(), before, "it is not asked for in vain");
    assert_eq!(env.read("data.csv"), "mine\n");
    // A broken download leaves nothing.
    let cut = Reply::new(200, "text/csv", "x".repeat(100_000))
        .in_pieces(1_000, std::time::Duration::from_millis(1))
        .cut_after(50_000);
    let server = LoopbackProvider::start(vec![cut]).unwrap();
    let env = TestEnv::new().with("OPENAI_API_KEY", KEY).with("OPENAI_BASE_URL", server.base_url());
    env.run(["files", "get", "f0", "-o", "out.csv"]).exit(4);
    assert_eq!(std::fs::read_dir(env.path("")).unwrap().count(), 0);
}

#[test]
pub(crate) fn container() {
    let server = LoopbackProvider::start_with(|request| match request.path.as_str() {
        "/v1/containers/cntr_1/files/cfile_1" => Reply::json(
            200,
            json!({"id": "cfile_1", "container_id": "cntr_1", "path": "/mnt/data/plot.png", "bytes": 3})
                .to_string(),
        ),
        "/v1/containers/cntr_1/files/cfile_1/content" => Reply::new(200, "image/png", "png"),
        _ => missing("openai"),
    })
    .unwrap();
    let env = TestEnv::new().with("OPENAI_API_KEY", KEY).with("OPENAI_BASE_URL", server.base_url());
    let finished = env.run(["files", "get", "cfile_1", "--container", "cntr_1"]).ok();
    assert_eq!((finished.out.as_str(), env.read("plot.png").as_str()), ("plot.png\n", "png"));
}

#[test]
pub(crate) fn limit() {
    let (_server, env) = Keeper::start("xai");
    env.write("a", "1");
    env.run(["files", "put", "a", "a", "a"]).ok();
    let some = env.run(["files", "ls", "--limit", "2", "--json"]).ok().json();
    assert_eq!((some["files"].as_array().unwrap().len(), &some["has_more"]), (2, &json!(true)));
    let text = env.run(["files", "ls", "--limit", "2"]).ok();
    assert!(text.out.lines().count() == 2 && text.err.contains("`--limit N`"), "{text}");
    assert_eq!(env.run(["files", "ls", "--format", "jsonl"]).ok().lines().len(), 3);
}

#[test]
pub(crate) fn rm() {
    let (_server, env) = Keeper::start("gemini");
    env.write("a", "1");
    env.run(["files", "put", "a", "a"]).ok();
    // With and without the provider's prefix; a missing file is reported.
    let finished = env.run(["files", "rm", "files/f0", "f1", "f0", "--json"]).exit(1);
    assert_eq!(finished.json()["removed"], json!(["files/f0", "f1"]));
    assert_eq!(finished.error()["code"], "NOT_FOUND");
    let finished = env.run(["files", "ls"]).ok();
    assert!(finished.out.is_empty() && finished.err.contains("no files"), "{finished}");
}

#[test]
fn invalid_transfers_fail_before_a_request() {
    let env = TestEnv::new().with("ANTHROPIC_API_KEY", KEY);
    for (words, exit, part) in [
        (["files", "ls", "--provider", "antropic"], 2, "`anthropic`"),
        (["files", "ls", "--provider", "ollama"], 2, "anthropic, openai, gemini, xai"),
        (["files", "ls", "--provider", "openai"], 3, "OPENAI_API_KEY"),
        (["files", "ls", "--provider", "anthropic"], 5, "forbidden"),
        (["files", "rm", "../x", "--provider=anthropic"], 2, "expected letters"),
        (["files", "ls", "--config", "model=script:a.yaml"], 2, "`--provider`"),
    ] {
        let finished = env.run(words.iter().chain(&["--json"])).exit(exit);
        assert!(finished.error().to_string().contains(part), "{part}: {finished}");
        assert!(!finished.err.contains(KEY), "{finished}");
    }
    env.run(["files", "put"]).exit(2);
    TestEnv::new().run(["files", "ls"]).exit(3);
}

//! Provider file storage, from a loopback server and recordings.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_llm::{
    CreateFile, ErrorKind, FileRef, FileUpload, HostedModel, HttpClient, Item, Model as _, ModelError,
    ModelId, Provider, ProviderAccess, ProviderFiles, Request, SavedFile, Secret, Wire, output_files,
};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};

use crate::support;

const KEY: &str = "sk-canary-files-77";

/// Creates files in a directory; a taken name gets a number.
fn create_in(directory: &Path) -> impl Fn(&str) -> io::Result<(File, PathBuf)> + Sync {
    move |name| {
        std::fs::create_dir_all(directory)?;
        let taken = directory.join(name).exists().then(|| directory.read_dir().unwrap().count());
        let path = directory.join(taken.map_or_else(|| name.to_owned(), |count| format!("{count}-{name}")));
        Ok((File::create_new(&path)?, path))
    }
}

fn files_at(provider: &str, base_url: String) -> ProviderFiles {
    let access = ProviderAccess { base_url: Some(base_url), ..ProviderAccess::new(Secret::new(KEY)) };
    let client = HttpClient::new(support::options(3)).unwrap();
    ProviderFiles::new(Provider::find(provider).unwrap(), access, client).unwrap()
}

fn start(replies: Vec<Reply>) -> (LoopbackProvider, ProviderFiles) {
    let server = LoopbackProvider::start(replies).unwrap();
    let files = files_at("anthropic", server.base_url());
    (server, files)
}

fn stored(id: &str) -> Value {
    json!({"created_at": "2026-06-30T22:58:50.064000Z", "downloadable": false, "filename": "data.csv", "id": id,
        "mime_type": "text/csv", "size_bytes": 30, "type": "file"})
}

/// Downloads the output files of an answer.
async fn save_outputs(
    files: &ProviderFiles,
    items: &[Item],
    create: &CreateFile<'_>,
) -> Vec<(FileRef, Result<SavedFile, ModelError>)> {
    let mut saved = Vec::new();
    for file in output_files(items) {
        let result = files.save(&file, create).await;
        saved.push((file, result));
    }
    saved
}

#[tokio::test]
async fn an_upload_is_a_form_with_an_escaped_file_name() {
    let (server, files) = start(vec![Reply::json(200, stored("file_1").to_string())]);
    let content = "item,value\napple,30\n--toolpost-\r\n";
    let file = FileUpload::new("a\"b\r\nx-evil: 1.csv", "text/csv", content);
    let uploaded = files.upload(file).await.unwrap();
    assert_eq!(
        (uploaded.id.as_str(), uploaded.size, uploaded.downloadable),
        ("file_1", Some(30), Some(false))
    );
    assert_eq!(uploaded.created.unwrap().to_string(), "2026-06-30T22:58:50.064000Z");
    let request = &server.requests()[0];
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v1/files"));
    assert_eq!(request.header("x-api-key"), Some(KEY));
    assert_eq!(request.header("anthropic-version"), Some("2023-06-01"));
    let kind = request.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/form-data; boundary=").unwrap();
    let body = String::from_utf8(request.body.clone()).unwrap();
    let expected = format!(
        "--{boundary}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a%22b%0D%0Ax-evil: 1.csv\"\r\n\
         content-type: text/csv\r\n\r\n{content}\r\n--{boundary}--\r\n"
    );
    assert_eq!(body, expected);
}

#[tokio::test]
async fn betas_of_the_access_are_sent_with_every_request() {
    let answer = json!({"type": "message", "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}});
    let server = LoopbackProvider::start(vec![
        Reply::json(200, stored("a").to_string()),
        Reply::json(200, answer.to_string()),
    ])
    .unwrap();
    let access = ProviderAccess {
        base_url: Some(server.base_url()),
        betas: vec!["files-api-2025-04-14".into(), "beta-b".into()],
        ..ProviderAccess::new(Secret::new(KEY))
    };
    let (provider, client) =
        (Provider::find("anthropic").unwrap(), HttpClient::new(support::options(3)).unwrap());
    ProviderFiles::new(provider, access.clone(), client.clone()).unwrap().get("a").await.unwrap();
    let model = HostedModel::new(provider, "claude-x", access, client).unwrap();
    let request = Request { betas: vec!["beta-c".into(), "beta-b".into()], ..Request::new("hi") };
    model.respond(&request).await.unwrap();
    let sent: Vec<Option<String>> =
        server.requests().iter().map(|request| request.header("anthropic-beta").map(str::to_owned)).collect();
    assert_eq!(
        sent,
        [Some("files-api-2025-04-14,beta-b".into()), Some("files-api-2025-04-14,beta-b,beta-c".into())]
    );
}

#[tokio::test]
async fn pages_are_followed_up_to_a_limit() {
    let page = |ids: &[&str], rest: Value| {
        let mut page = json!({"data": ids.iter().map(|id| stored(id)).collect::<Vec<_>>()});
        page.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        Reply::json(200, page.to_string())
    };
    let (server, files) = start(vec![
        page(&["a", "b"], json!({"next_page": "page_x/2"})),
        page(&["c"], json!({"next_page": null})),
    ]);
    let all = files.list(10).await.unwrap();
    assert_eq!(all.iter().map(|file| file.id.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    let paths: Vec<String> = server.requests().iter().map(|request| request.path.clone()).collect();
    assert_eq!(paths, ["/v1/files?limit=100", "/v1/files?limit=100&page=page_x%2F2"]);
    // The older form continues after the last file.
    let (server, files) = start(vec![
        page(&["a", "b"], json!({"has_more": true, "last_id": "b"})),
        page(&["c"], json!({"has_more": false})),
    ]);
    assert_eq!(files.list(10).await.unwrap().len(), 3);
    assert!(server.requests()[1].path.ends_with("&after_id=b"));
    // An endless page token, and more files than the limit.
    let server = LoopbackProvider::start_with(move |_| {
        let page = json!({"data": [stored("a")], "next_page": "page_1"});
        Reply::json(200, page.to_string())
    })
    .unwrap();
    assert_eq!(files_at("anthropic", server.base_url()).list(100).await.unwrap().len(), 2);
    assert_eq!(files_at("anthropic", server.base_url()).list(1).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_download_is_bounded_and_not_retried_after_a_write() {
    let (server, files) = start(vec![
        Reply::json(529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#),
        Reply::new(200, "text/csv", "a,b\n1,2\n"),
    ]);
    let file = FileRef { id: "file_1".into(), ..FileRef::default() };
    let mut content = Vec::new();
    assert_eq!(files.download(&file, &mut content).await.unwrap(), 8);
    assert_eq!(content, b"a,b\n1,2\n");
    assert_eq!(server.requests()[1].path, "/v1/files/file_1/content");
    // Too large, with and without `content-length`.
    for reply in [
        Reply::new(200, "text/csv", "x".repeat(100)),
        Reply::events("x".repeat(100)).in_pieces(30, Duration::ZERO),
    ] {
        let (_server, files) = start(vec![reply]);
        let mut content = Vec::new();
        let error = files.with_max_download_bytes(50).download(&file, &mut content).await.unwrap_err();
        assert!(error.kind == ErrorKind::Protocol && error.message.contains("the limit is 50"), "{error}");
        assert!(content.len() <= 50);
    }
    // A connection that breaks after the first bytes is not retried: the bytes would be written twice.
    let cut = Reply::new(200, "text/csv", "x".repeat(100_000))
        .in_pieces(1_000, Duration::from_millis(1))
        .cut_after(50_000);
    let (server, files) = start(vec![cut, Reply::new(200, "text/csv", "again")]);
    let mut content = Vec::new();
    assert!(files.download(&file, &mut content).await.is_err());
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn errors_have_a_kind_and_no_api_key() {
    let missing =
        json!({"type": "error", "error": {"type": "not_found_error", "message": format!("no {KEY}")}});
    let (_server, files) = start(vec![Reply::json(404, missing.to_string())]);
    let error = files.get("file_1").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(!format!("{error} {error:?}").contains(KEY), "{error}");
    assert!(error.to_string().starts_with("anthropic/files: "), "{error}");
    for id in ["", "..", "a/../b", "a?b", "a b", &"x".repeat(300)] {
        let (server, files) = start(Vec::new());
        let error = files.delete(id).await.unwrap_err();
        assert_eq!((error.kind, server.requests().len()), (ErrorKind::InvalidRequest, 0), "{id}");
    }
    let (_server, files) = start(vec![Reply::new(200, "text/html", "<html>")]);
    assert_eq!(files.get("a").await.unwrap_err().kind, ErrorKind::Protocol);
    // `no_network` forbids the connection.
    let files = files_at("anthropic", "https://api.anthropic.com".to_owned());
    assert_eq!(files.list(1).await.unwrap_err().kind, ErrorKind::NetworkForbidden);
    let (server, files) = start(vec![Reply::json(200, r#"{"id":"a","type":"file_deleted"}"#)]);
    files.delete("a").await.unwrap();
    assert_eq!(server.requests()[0].method, "DELETE");
}

/// The items of an answer on Anthropic's wire.
fn items(content: &Value) -> Vec<Item> {
    let body = json!({"type": "message", "content": content}).to_string();
    Wire::Messages.read_body(&ModelId::new("anthropic", "claude-x"), 200, &body).unwrap().items
}

#[tokio::test]
async fn output_files_stay_in_the_directory() {
    let result = |ids: &[&str]| {
        let outputs: Vec<Value> =
            ids.iter().map(|id| json!({"type": "bash_code_execution_output", "file_id": id})).collect();
        json!({"type": "bash_code_execution_tool_result", "tool_use_id": "1", "content":
            {"type": "bash_code_execution_result", "stdout": "", "stderr": "", "return_code": 0, "content": outputs}})
    };
    let items = items(&json!([result(&["f1", "f2"]), result(&["f2", "f3", "f4"])]));
    let found: Vec<String> = output_files(&items).into_iter().map(|file| file.id).collect();
    assert_eq!(found, ["f1", "f2", "f3", "f4"]);
    let names = [("f1", "../../outside.txt"), ("f2", "plot.png"), ("f3", "plot.png")];
    let server = LoopbackProvider::start_with(move |request| {
        let path = request.path.strip_prefix("/v1/files/").unwrap();
        if let Some(id) = path.strip_suffix("/content") {
            return Reply::new(200, "application/octet-stream", format!("content of {id}"));
        }
        match names.iter().find(|(id, _)| *id == path) {
            Some((id, name)) => {
                Reply::json(200, json!({"id": id, "filename": name, "mime_type": "image/png"}).to_string())
            }
            None => {
                Reply::json(404, r#"{"type":"error","error":{"type":"not_found_error","message":"gone"}}"#)
            }
        }
    })
    .unwrap();
    let outer = tempfile::tempdir().unwrap();
    let directory = outer.path().join("a/b");
    let saved = save_outputs(&files_at("anthropic", server.base_url()), &items, &create_in(&directory)).await;
    let paths: Vec<String> = saved
        .iter()
        .map(|(_, result)| match result {
            Ok(file) => file.path.strip_prefix(&directory).unwrap().to_string_lossy().into_owned(),
            Err(error) => error.kind.as_str().to_owned(),
        })
        .collect();
    assert_eq!(paths, ["outside.txt", "plot.png", "2-plot.png", "not_found"]);
    assert_eq!(std::fs::read_to_string(directory.join("2-plot.png")).unwrap(), "content of f3");
    assert_eq!(saved[0].1.as_ref().unwrap().name.as_deref(), Some("../../outside.txt"));
    assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 1, "nothing beside the directory");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 3, "and no half file in it");
}

/// The fields of a form, by name, without their headers.
fn fields(request: &ReceivedRequest) -> Vec<(String, String)> {
    let kind = request.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/form-data; boundary=").unwrap();
    let body = String::from_utf8(request.body.clone()).unwrap();
    let line = format!("--{boundary}");
    let parts = body.split(&line).filter_map(|part| part.split_once("\r\n\r\n"));
    let name = |head: &str| head.split("name=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    parts.map(|(head, content)| (name(head), content.trim_end_matches("\r\n").to_owned())).collect()
}

#[tokio::test]
async fn openai_and_xai_files_use_their_apis() {
    for (provider, purpose, more) in [
        ("openai", "user_data", json!({"has_more": true, "last_id": "file-1"})),
        ("xai", "assistants", json!({"pagination_token": "t/2"})),
    ] {
        let record = |id: &str| {
            json!({"id": id, "object": "file", "bytes": 8, "created_at": 1_795_168_800_u64,
                "filename": "data.csv", "purpose": purpose, "expires_at": null})
        };
        let mut first = json!({"object": "list", "data": [record("file-1")]});
        first.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let last = json!({"object": "list", "data": [record("file-2")], "has_more": false});
        let server = LoopbackProvider::start(vec![
            Reply::json(200, record("file-1").to_string()),
            Reply::json(200, record("file-1").to_string()),
            Reply::json(200, first.to_string()),
            Reply::json(200, last.to_string()),
            Reply::json(200, record("file-1").to_string()),
            Reply::new(200, "application/octet-stream", "a,b\n1,2\n"),
            Reply::json(200, r#"{"id":"file-1","object":"file","deleted":true}"#),
        ])
        .unwrap();
        let files = files_at(provider, format!("{}/v1/", server.base_url()));
        let upload = || FileUpload::new("data.csv", "text/csv", "a,b\n1,2\n");
        let stored = files.upload(upload()).await.unwrap();
        assert_eq!(
            (stored.id.as_str(), stored.name.as_deref(), stored.size, stored.expires),
            ("file-1", Some("data.csv"), Some(8), None)
        );
        assert_eq!(stored.created.unwrap().to_string(), "2026-11-20T10:00:00.000000Z");
        files.upload(upload()).await.unwrap();
        let all = files.list(10).await.unwrap();
        assert_eq!(all.iter().map(|file| file.id.as_str()).collect::<Vec<_>>(), ["file-1", "file-2"]);
        assert_eq!(files.get("file-1").await.unwrap(), stored);
        let mut content = Vec::new();
        let file = FileRef { id: "file-1".into(), ..FileRef::default() };
        assert_eq!(files.download(&file, &mut content).await.unwrap(), 8);
        files.delete("file-1").await.unwrap();
        let requests = server.requests();
        let asked: Vec<(&str, &str)> =
            requests.iter().map(|request| (request.method.as_str(), request.path.as_str())).collect();
        let next = if provider == "openai" { "after=file-1" } else { "pagination_token=t%2F2" };
        assert_eq!(
            asked,
            [
                ("POST", "/v1/files"),
                ("POST", "/v1/files"),
                ("GET", "/v1/files?limit=100"),
                ("GET", &format!("/v1/files?limit=100&{next}")),
                ("GET", "/v1/files/file-1"),
                ("GET", "/v1/files/file-1/content"),
                ("DELETE", "/v1/files/file-1"),
            ]
        );
        let form = |purpose: &str| {
            vec![("purpose".to_owned(), purpose.to_owned()), ("file".to_owned(), "a,b\n1,2\n".to_owned())]
        };
        assert_eq!((fields(&requests[0]), fields(&requests[1])), (form(purpose), form(purpose)));
        for request in &requests {
            assert_eq!(request.header("authorization"), Some(&*format!("Bearer {KEY}")), "{}", request.path);
            assert_eq!(request.header("anthropic-version"), None);
        }
    }
}

#[tokio::test]
async fn gemini_files_use_its_api() {
    let record = |name: &str| {
        json!({"name": name, "displayName": "data.csv", "sizeBytes": "8", "mimeType": "text/csv",
            "createTime": "2026-11-20T10:00:00Z", "expirationTime": "2026-11-22T10:00:00Z",
            "uri": format!("https://g.example/v1beta/{name}")})
    };
    let server = LoopbackProvider::start_with(move |request| match request.path.as_str() {
        "/upload/v1beta/files" => {
            let session = format!("http://{}/session?upload_id=1", request.header("host").unwrap());
            Reply::json(200, "").header("x-goog-upload-url", &session)
        }
        "/session?upload_id=1" => Reply::json(200, json!({"file": record("files/a")}).to_string()),
        "/v1beta/files/a" if request.method == "DELETE" => Reply::json(200, "{}"),
        "/v1beta/files/a" => Reply::json(200, record("files/a").to_string()),
        "/v1beta/files/a:download?alt=media" => Reply::new(200, "text/csv", "a,b\n1,2\n"),
        _ => Reply::json(404, r#"{"error":{"code":404,"message":"none","status":"NOT_FOUND"}}"#),
    })
    .unwrap();
    let files = files_at("gemini", server.base_url());
    let stored = files.upload(FileUpload::new("data.csv", "text/csv", "a,b\n1,2\n")).await.unwrap();
    assert_eq!(
        (stored.id.as_str(), stored.uri.as_deref()),
        ("files/a", Some("https://g.example/v1beta/files/a"))
    );
    assert!(stored.expires.is_some());
    assert_eq!(files.get("a").await.unwrap(), stored);
    let mut content = Vec::new();
    files.download(&FileRef { id: "files/a".into(), ..FileRef::default() }, &mut content).await.unwrap();
    assert_eq!(content, b"a,b\n1,2\n");
    files.delete("files/a").await.unwrap();
    let requests = server.requests();
    assert_eq!(requests[0].header("x-goog-upload-header-content-type"), Some("text/csv"));
    assert_eq!(requests[0].json()["file"]["display_name"], "data.csv");
    // The upload address is a credential, so no API key is sent.
    assert_eq!(requests[1].header("x-goog-api-key"), None);
    assert_eq!(requests[1].header("x-goog-upload-command"), Some("upload, finalize"));
    assert_eq!(requests[1].body, b"a,b\n1,2\n");
}

#[tokio::test]
async fn container_files_are_downloaded() {
    let body = json!({"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-x", "output": [
        {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "container_id": "cntr_1",
            "code": "plot()", "outputs": null},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
            {"type": "output_text", "text": "Here it is.", "annotations": [
                {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1",
                    "filename": "plot.png", "start_index": 0, "end_index": 4}]}]}]});
    let response =
        Wire::Responses.read_body(&ModelId::new("openai", "gpt-x"), 200, &body.to_string()).unwrap();
    let server = LoopbackProvider::start_with(|request| match request.path.as_str() {
        "/v1/containers/cntr_1/files/cfile_1/content" => Reply::new(200, "image/png", "png"),
        other => Reply::json(404, json!({"error": {"message": other}}).to_string()),
    })
    .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let files = files_at("openai", server.base_url());
    let saved = save_outputs(&files, &response.items, &create_in(directory.path())).await;
    let [(file, Ok(saved))] = &saved[..] else { panic!("{saved:?}") };
    assert_eq!((file.id.as_str(), file.container.as_deref()), ("cfile_1", Some("cntr_1")));
    assert_eq!((saved.path.as_path(), saved.size), (&*directory.path().join("plot.png"), 3));
    assert_eq!(std::fs::read(&saved.path).unwrap(), b"png");
}

#[tokio::test]
async fn a_cancelled_download_leaves_no_file() {
    let slow = Reply::new(200, "text/csv", "x".repeat(100)).in_pieces(10, Duration::from_mins(1));
    let (server, files) = start(vec![slow]);
    let directory = tempfile::tempdir().unwrap();
    let file = FileRef { id: "f".into(), name: Some("a.csv".into()), container: None };
    let entries = || std::fs::read_dir(directory.path()).unwrap().count();
    let create = create_in(directory.path());
    tokio::select! {
        saved = files.save(&file, &create) => panic!("{saved:?}"),
        () = async { while server.requests().is_empty() || entries() == 0 { tokio::task::yield_now().await } } => {}
    }
    assert_eq!(entries(), 0);
}

#[test]
fn the_error_of_a_provider_without_files_names_others() {
    let client = HttpClient::new(support::options(3)).unwrap();
    for provider in toolpost_llm::PROVIDERS {
        let access = ProviderAccess {
            base_url: Some("http://127.0.0.1:1".into()),
            ..ProviderAccess::new(Secret::new(KEY))
        };
        let made = ProviderFiles::new(provider, access, client.clone());
        match (["anthropic", "openai", "gemini", "xai"].contains(&provider.name), made) {
            (true, Ok(_)) => {}
            (false, Err(error)) => {
                assert_eq!(error.kind, ErrorKind::Unsupported);
                assert!(error.message.contains("anthropic"), "{error}");
            }
            (_, made) => panic!("{}: {made:?}", provider.name),
        }
    }
}

/// A form without its boundary and with lower-case header names.
fn plain_form(body: &str) -> String {
    let boundary = body.lines().next().unwrap().trim_start_matches("--").trim_end();
    body.replace(boundary, "B")
        .replace("Content-Disposition", "content-disposition")
        .replace("Content-Type", "content-type")
}

#[tokio::test]
async fn an_upload_matches_the_recording() {
    let Some(directory) = toolpost_testkit::recordings::directory() else {
        println!("SKIP an_upload_matches_the_recording: the recordings are not beside the checkout");
        return;
    };
    let directory = directory.join("pydantic-ai/tests/cassettes/test_code_execution_files_vcr");
    let Ok(found) = std::fs::read_dir(directory) else {
        assert!(!toolpost_testkit::recordings::is_known(), "the recorded uploads are there");
        println!("SKIP an_upload_matches_the_recording: no upload is among the recordings");
        return;
    };
    let mut equal = 0;
    for file in found {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let recording: Value = serde_saphyr::from_str(&text).unwrap();
        for interaction in recording["interactions"].as_array().unwrap() {
            let request = &interaction["request"];
            if request["method"] != "POST" || request["uri"] != "https://api.anthropic.com/v1/files?beta=true"
            {
                continue;
            }
            let recorded = request["body"].as_str().unwrap();
            let content = recorded.split("\r\n\r\n").nth(1).unwrap().rsplit_once("\r\n--").unwrap().0;
            let answer = &interaction["response"]["parsed_body"];
            let (server, files) = start(vec![Reply::json(200, answer.to_string())]);
            let file = FileUpload::new("data.csv", "text/csv", content.to_owned());
            let stored = files.upload(file).await.unwrap();
            assert_eq!(stored.id, answer["id"].as_str().unwrap());
            assert_eq!(stored.size, answer["size_bytes"].as_u64());
            let sent = String::from_utf8(server.requests()[0].body.clone()).unwrap();
            assert_eq!(plain_form(&sent), plain_form(recorded));
            equal += 1;
        }
    }
    println!("uploads equal {equal}/{equal}");
    assert!(equal > 0 || !toolpost_testkit::recordings::is_known());
}

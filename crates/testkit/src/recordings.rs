//! Recorded traffic of real providers, in the three forms that it lies in beside the checkout.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use crate::packed::unpacked;

/// One file of recorded exchanges.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The file's path below the directory of recordings.
    pub path: String,
    /// Its exchanges in their order.
    pub interactions: Vec<Interaction>,
}

/// One exchange.
#[derive(Clone, Debug)]
pub struct Interaction {
    /// The request, if it was recorded.
    pub request: Option<RecordedRequest>,
    /// The HTTP status of the answer.
    pub status: u16,
    /// The answer.
    pub answer: Answer,
}

/// A recorded request.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// The address, or only its path.
    pub address: String,
    /// The body, if it was JSON.
    pub body: Option<Value>,
    /// The value of the header `anthropic-beta`, if it was recorded.
    pub beta: Option<String>,
}

/// A recorded answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A body.
    Body(String),
    /// A stream of server-sent events.
    Stream(String),
}

/// The files below a directory.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The files of exchanges.
    pub recordings: Vec<Recording>,
    /// Files that cannot be read, each with the reason.
    pub unread: Vec<String>,
    /// Files without any of the words that were asked for, each with its first address.
    pub others: Vec<String>,
}

/// The directory of recordings: `TOOLPOST_RECORDINGS`, or `shared/recordings` beside the checkout.
pub fn directory() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "for tests: the one place that says where recordings are")]
    let (named, manifest) = (std::env::var_os("TOOLPOST_RECORDINGS"), std::env::var_os("CARGO_MANIFEST_DIR"));
    let beside = || beside(&PathBuf::from(manifest?), "shared/recordings");
    let directory = named.map(PathBuf::from).or_else(beside)?;
    directory.is_dir().then_some(directory)
}

/// The source of toolable 0.1: `TOOLPOST_TOOLABLE`, or `shared/peers/toolable` beside the checkout.
pub fn toolable() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "for tests: the one place that says where the original is")]
    let (named, manifest) = (std::env::var_os("TOOLPOST_TOOLABLE"), std::env::var_os("CARGO_MANIFEST_DIR"));
    let beside = || beside(&PathBuf::from(manifest?), "shared/peers/toolable");
    named.map(PathBuf::from).or_else(beside)?.canonicalize().ok()
}

/// A directory beside the checkout that a package lies in.
fn beside(manifest: &Path, directory: &str) -> Option<PathBuf> {
    let checkout = manifest.ancestors().find(|directory| directory.join("Cargo.lock").is_file())?;
    Some(checkout.parent()?.join(directory))
}

/// Whether the directory is the one beside the checkout, whose contents are known: elsewhere nothing can be counted on.
pub fn is_known() -> bool {
    #[expect(clippy::disallowed_methods, reason = "for tests: the one place that says where recordings are")]
    let named = std::env::var_os("TOOLPOST_RECORDINGS");
    named.is_none()
}

/// Every recorded exchange whose text has one of these words in it, as far as it is of a form that is known: YAML
/// documents of `when` and `then`, YAML and JSON with `interactions`, JSON of one `request` and `response`, and fixtures
/// of answers alone.
pub fn all(directory: &Path, words: &[&str]) -> Found {
    enum One {
        Recording(Recording),
        Unread(String),
        Other(String),
    }
    let paths = ["yaml", "yml", "json", "chunks.txt"].iter().flat_map(|ending| files(directory, ending));
    let paths: Vec<PathBuf> = paths.collect();
    let read_one = |path: &PathBuf| -> One {
        let name = path.strip_prefix(directory).unwrap_or(path).to_string_lossy().into_owned();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return One::Unread(format!("{name}: {error}")),
        };
        let is_exchange = text.contains("\"request\"") && text.contains("\"response\"");
        let parse: fn(&Path, &str) -> Result<Vec<Interaction>, String> = match path.extension() {
            Some(ending) if ending == "yaml" || ending == "yml" => {
                if !words.iter().any(|word| text.contains(word)) {
                    return One::Other(format!("{name}: {}", first_address(&text)));
                }
                if text.contains("interactions:") || text.contains("\"interactions\"") { vcr } else { rig }
            }
            Some(_) if text.contains("\"interactions\"") => vcr,
            Some(ending) if ending == "json" && is_exchange => exchange,
            // Of fixtures the words say nothing: they have no addresses.
            _ => fixture,
        };
        match parse(path, &text) {
            Ok(interactions) => One::Recording(Recording { path: name, interactions }),
            Err(error) => One::Unread(format!("{name}: {} ({error})", first_address(&text))),
        }
    };
    let half = paths.len().div_ceil(2).max(1);
    let read: Vec<One> = std::thread::scope(|scope| {
        let threads: Vec<_> = paths
            .chunks(half)
            .map(|part| scope.spawn(move || part.iter().map(read_one).collect::<Vec<_>>()))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let mut found = Found::default();
    for one in read {
        match one {
            One::Recording(recording) => found.recordings.push(recording),
            One::Unread(reason) => found.unread.push(reason),
            One::Other(address) => found.others.push(address),
        }
    }
    found.recordings.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The first address that a file names, for a report.
fn first_address(text: &str) -> String {
    let address = text.lines().find_map(|line| {
        let line = line.trim_start().trim_start_matches('"');
        let rest = ["uri", "url", "path"].iter().find_map(|name| line.strip_prefix(name))?;
        rest.trim_start_matches('"').strip_prefix(':')
    });
    let address = address.map(|address| address.trim().trim_matches(['"', '\'', ',']));
    address
        .filter(|address| !address.is_empty())
        .map_or("no address".into(), |address| address.chars().take(120).collect())
}

/// The files below a directory whose names end in `.{extension}`, sorted.
fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let ending = format!(".{extension}");
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                directories.push(path);
            } else if path.to_string_lossy().ends_with(&ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// An answer of a content type, which some recorders leave out.
fn answer(content_type: &str, text: String) -> Result<Answer, String> {
    let text = plain(text)?;
    let is_stream = content_type.to_ascii_lowercase().starts_with("text/event-stream")
        || content_type.is_empty() && is_events(&text);
    Ok(if is_stream { Answer::Stream(text) } else { Answer::Body(text) })
}

fn is_events(text: &str) -> bool {
    ["data:", "event:", "id:", ":"].iter().any(|start| text.trim_start().starts_with(start))
}

/// A text that may have been kept compressed, or in base64, as recorders do with what they do not take for text.
fn plain(text: String) -> Result<String, String> {
    let is_said = |text: &str| text.trim_start().starts_with(['{', '[']) || is_events(text);
    if is_said(&text) {
        return Ok(text);
    }
    let packed: String = text.split_whitespace().collect();
    // Bytes in base64, or each as the character of its number.
    let bytes = match STANDARD.decode(packed) {
        Ok(bytes) => bytes,
        Err(_) => match text.chars().map(|letter| u8::try_from(letter as u32).ok()).collect() {
            Some(bytes) => bytes,
            None => return Ok(text),
        },
    };
    let bytes = unpacked(&bytes)?.unwrap_or(bytes);
    Ok(String::from_utf8(bytes).ok().filter(|text| is_said(text)).unwrap_or(text))
}

/// Several documents of `when` and `then` in a file.
fn rig(_: &Path, text: &str) -> Result<Vec<Interaction>, String> {
    #[derive(Deserialize)]
    struct Document {
        when: When,
        then: Then,
    }
    #[derive(Deserialize)]
    struct When {
        #[serde(default)]
        path: String,
        #[serde(default)]
        header: Vec<Header>,
        #[serde(default)]
        body: Option<String>,
    }
    #[derive(Deserialize)]
    struct Then {
        #[serde(default = "ok")]
        status: u16,
        #[serde(default)]
        header: Vec<Header>,
        #[serde(default)]
        body: String,
    }
    #[derive(Deserialize)]
    struct Header {
        name: String,
        value: String,
    }
    fn ok() -> u16 {
        200
    }
    let value_of = |headers: &[Header], name: &str| {
        headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value.clone())
    };
    let documents: Vec<Document> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    let interactions = documents.into_iter().map(|Document { when, then }| {
        let body = when.body.map(plain).transpose()?;
        Ok(Interaction {
            request: Some(RecordedRequest {
                beta: value_of(&when.header, "anthropic-beta"),
                address: when.path,
                body: body.and_then(|body| serde_json::from_str(&body).ok()),
            }),
            status: then.status,
            answer: answer(&value_of(&then.header, "content-type").unwrap_or_default(), then.body)?,
        })
    });
    interactions.collect()
}

/// One exchange as a JSON object.
fn exchange(path: &Path, text: &str) -> Result<Vec<Interaction>, String> {
    let exchange: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if !exchange["request"].is_object() || !exchange["response"].is_object() {
        return fixture(path, text);
    }
    vcr(path, &serde_json::json!({ "interactions": [exchange] }).to_string())
}

/// One document with a list of interactions.
fn vcr(_: &Path, text: &str) -> Result<Vec<Interaction>, String> {
    #[derive(Deserialize)]
    struct Document {
        #[serde(alias = "http_interactions")]
        interactions: Vec<Exchange>,
    }
    #[derive(Deserialize)]
    struct Exchange {
        #[serde(default)]
        request: Request,
        #[serde(default)]
        response: Response,
    }
    #[derive(Default, Deserialize)]
    struct Request {
        // Recordings of sockets have none.
        #[serde(default, alias = "url")]
        uri: String,
        #[serde(default)]
        headers: BTreeMap<String, Value>,
        #[serde(default)]
        parsed_body: Option<Value>,
        #[serde(default)]
        body: Option<Value>,
    }
    #[derive(Default, Deserialize)]
    struct Response {
        // A number, or an object with one.
        #[serde(default)]
        status: Value,
        #[serde(default)]
        headers: BTreeMap<String, Value>,
        #[serde(default)]
        parsed_body: Option<Value>,
        #[serde(default)]
        body: Option<Value>,
    }
    // A header has a list of values, or one.
    let first = |headers: &BTreeMap<String, Value>, name: &str| {
        let (_, value) = headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        value.as_array().and_then(|values| values.first()).unwrap_or(value).as_str().map(str::to_owned)
    };
    // A body is a text, or has one under a name that says how it was kept, or JSON as it is.
    let written = |body: &Option<Value>| {
        let body = body.as_ref()?;
        // Bodies of providers have members of these names too, but others beside them.
        let is_wrapper = body.as_object().is_some_and(|members| {
            members.keys().all(|name| {
                ["type", "encoding", "string", "base64_string", "text", "content"].contains(&name.as_str())
            })
        });
        let under = ["string", "base64_string", "text", "content"].iter().find_map(|name| body.get(name));
        match under.filter(|_| is_wrapper).unwrap_or(body) {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            Value::Object(members) if members.is_empty() => None,
            parsed => Some(parsed.to_string()),
        }
    };
    // Files that a client fetched are in base64 there; only the exchanges with the provider are wanted.
    let options = serde_saphyr::options! { ignore_binary_tag_for_string: true };
    let document: Document =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    let interactions = document.interactions.into_iter().map(|Exchange { request, response }| {
        let text = match &response.parsed_body {
            Some(parsed) => parsed.to_string(),
            None => written(&response.body).unwrap_or_default(),
        };
        let body = match request.parsed_body {
            Some(parsed) => Some(parsed),
            None => serde_json::from_str(&plain(written(&request.body).unwrap_or_default())?).ok(),
        };
        Ok(Interaction {
            request: Some(RecordedRequest {
                address: request.uri,
                body,
                beta: first(&request.headers, "anthropic-beta"),
            }),
            status: response.status.get("code").unwrap_or(&response.status).as_u64().unwrap_or_default()
                as u16,
            answer: answer(&first(&response.headers, "content-type").unwrap_or_default(), text)?,
        })
    });
    interactions.collect()
}

/// A body, or streams with one event's JSON a line.
fn fixture(path: &Path, text: &str) -> Result<Vec<Interaction>, String> {
    let of = |answer: Answer| Interaction { request: None, status: 200, answer };
    if path.to_string_lossy().ends_with(".json") {
        serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| error.to_string())?;
        return Ok(vec![of(Answer::Body(text.to_owned()))]);
    }
    // Of a stream as it came only the data is wanted.
    let data = text.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
    let is_named = |line: &str| ["event:", "id:", "retry:"].iter().any(|start| line.starts_with(start));
    let lines: Vec<&str> = data.filter(|line| !line.is_empty() && !is_named(line)).collect();
    for (number, line) in (1..).zip(&lines) {
        if line.starts_with('{') {
            serde_json::from_str::<serde::de::IgnoredAny>(line)
                .map_err(|error| format!("event {number}: {error}"))?;
        }
    }
    // A file may have the streams of several steps, one behind the other.
    let ends = ["message_stop", "response.completed", "response.incomplete", "response.failed"];
    let streams =
        lines.split_inclusive(|line| ends.iter().any(|end| line.contains(&format!("\"type\":\"{end}\""))));
    Ok(streams.map(|lines| of(Answer::Stream(format!("data: {}\n\n", lines.join("\n\ndata: "))))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::gzip;

    #[test]
    fn documents_of_when_and_then_are_exchanges() {
        let text = "when:\n  path: /v1/messages\n  method: POST\n  header:\n  - {name: Anthropic-Beta, value: b}\n  \
                    body: '{\"n\":1.0}'\nthen:\n  status: 200\n  header:\n  - {name: content-type, value: \
                    text/event-stream}\n  body: |+\n    data: {}\n\n---\nwhen: {path: /x}\nthen: {status: 404, body: no}\n";
        let exchanges = rig(Path::new("a.yaml"), text).unwrap();
        let request = exchanges[0].request.as_ref().unwrap();
        assert_eq!((request.address.as_str(), request.beta.as_deref()), ("/v1/messages", Some("b")));
        assert_eq!(request.body, Some(serde_json::json!({"n": 1.0})));
        assert!(matches!(&exchanges[0].answer, Answer::Stream(text) if text == "data: {}\n\n"));
        assert_eq!(exchanges[1].status, 404);
        assert!(matches!(&exchanges[1].answer, Answer::Body(text) if text == "no"));
    }

    #[test]
    fn interactions_are_exchanges() {
        let text = "interactions:\n- request: {uri: 'https://h/v1/messages', method: POST, parsed_body: {a: [1, 1.5]}}\n  \
                    response: {status: {code: 200, message: OK}, headers: {content-type: [application/json]}, \
                    parsed_body: {b: null}}\n- request: {uri: u, body: '{\"c\":2}'}\n  response: {status: {code: 200}, \
                    headers: {content-type: ['text/event-stream; charset=utf-8']}, body: {string: \"data: 1\\n\\n\"}}\n";
        let exchanges = vcr(Path::new("a.yaml"), text).unwrap();
        assert_eq!(exchanges[0].request.as_ref().unwrap().body, Some(serde_json::json!({"a": [1, 1.5]})));
        assert!(matches!(&exchanges[0].answer, Answer::Body(text) if text == "{\"b\":null}"));
        assert_eq!(exchanges[1].request.as_ref().unwrap().body, Some(serde_json::json!({"c": 2})));
        assert!(matches!(&exchanges[1].answer, Answer::Stream(text) if text == "data: 1\n\n"));
    }

    #[test]
    fn a_body_may_say_what_it_is() {
        let text = "interactions:\n- request: {uri: u, body: {type: json, content: {c: 2}}}\n  \
            response: {status: 404, headers: {content-type: [application/json]}, body: {type: json, content: {d: 3}}}\n\
            - request: {uri: u}\n  response: {status: 200, body: {type: text, content: 'e'}}\n";
        let exchanges = vcr(Path::new("a.yaml"), text).unwrap();
        assert_eq!(exchanges[0].status, 404);
        assert_eq!(exchanges[0].request.as_ref().unwrap().body, Some(serde_json::json!({"c": 2})));
        assert!(matches!(&exchanges[0].answer, Answer::Body(text) if text == r#"{"d":3}"#));
        assert!(matches!(&exchanges[1].answer, Answer::Body(text) if text == "e"));
    }

    #[test]
    fn bodies_may_stand_as_they_are() {
        let text = "interactions:\n- request: {uri: u, body: {content: x, model: m}}\n  \
            response: {status: 200, headers: {content-type: [application/json]}, body: {text: {}, output: []}}\n\
            - request: {uri: u, body: {}}\n  response: {status: 200, body: {encoding: UTF-8, string: 'e'}}\n";
        let exchanges = vcr(Path::new("a.yaml"), text).unwrap();
        let body = |place: usize| exchanges[place].request.as_ref().unwrap().body.clone();
        assert_eq!((body(0), body(1)), (Some(serde_json::json!({"content": "x", "model": "m"})), None));
        assert!(matches!(&exchanges[0].answer, Answer::Body(text) if text == r#"{"text":{},"output":[]}"#));
        assert!(matches!(&exchanges[1].answer, Answer::Body(text) if text == "e"));
    }

    #[test]
    fn other_recorders_keep_the_same_in_other_ways() {
        let packed = STANDARD.encode("data: 1\n\n");
        let text = format!(
            "interactions:\n- request: {{uri: u, headers: {{Anthropic-Beta: b}}, body: {{string: '{{\"c\":2}}'}}}}\n  \
             response: {{status: {{code: 200}}, headers: {{Content-Type: Text/Event-Stream}}, body: {{base64_string: {packed}}}}}\n\
             - request: {{uri: u}}\n  response: {{body: \"event: x\\ndata: 2\\n\\n\"}}\n"
        );
        let exchanges = vcr(Path::new("a.yml"), &text).unwrap();
        let request = exchanges[0].request.as_ref().unwrap();
        assert_eq!((request.beta.as_deref(), &request.body), (Some("b"), &Some(serde_json::json!({"c": 2}))));
        assert!(matches!(&exchanges[0].answer, Answer::Stream(text) if text == "data: 1\n\n"));
        assert!(matches!(&exchanges[1].answer, Answer::Stream(text) if text == "event: x\ndata: 2\n\n"));
        let text = format!("when: {{}}\nthen: {{body: {packed}}}\n");
        let exchanges = rig(Path::new("a.yaml"), &text).unwrap();
        assert!(matches!(&exchanges[0].answer, Answer::Stream(text) if text == "data: 1\n\n"));
        let lines = "event: x\r\ndata: {\"type\":\"message_stop\"}\r\n\r\n";
        let exchanges = fixture(Path::new("a.chunks.txt"), lines).unwrap();
        assert!(
            matches!(&exchanges[0].answer, Answer::Stream(text) if text == "data: {\"type\":\"message_stop\"}\n\n")
        );
    }

    #[test]
    fn compressed_bodies_are_unpacked_however_they_were_kept() {
        let body = gzip(b"data: 1\n\n");
        let asked = STANDARD.encode(gzip(b"{\"a\": 1}"));
        let characters: String =
            body.iter().map(|byte| format!("\\x{byte:02X}")).collect::<Vec<_>>().concat();
        for kept in [
            format!("{{base64_string: {}}}", STANDARD.encode(&body)),
            format!("{{string: !!binary {}}}", STANDARD.encode(&body)),
            format!("{{string: \"{characters}\"}}"),
        ] {
            let text = format!(
                "interactions:\n- request: {{uri: u, body: {asked}}}\n  response: {{headers: {{content-encoding: [gzip], \
                 content-type: [text/event-stream]}}, body: {kept}}}\n"
            );
            let exchanges = vcr(Path::new("a.yaml"), &text).unwrap();
            assert!(matches!(&exchanges[0].answer, Answer::Stream(text) if text == "data: 1\n\n"), "{kept}");
            let request = exchanges[0].request.as_ref().unwrap();
            assert_eq!(request.body, Some(serde_json::json!({"a": 1})));
        }
        let text = format!("when: {{}}\nthen: {{body: {}}}\n", STANDARD.encode(&body));
        let exchanges = rig(Path::new("a.yaml"), &text).unwrap();
        assert!(matches!(&exchanges[0].answer, Answer::Stream(text) if text == "data: 1\n\n"));
        // What cannot be unpacked is said, not passed over.
        let cut = STANDARD.encode(&body[..body.len() - 3]);
        let error = rig(Path::new("a.yaml"), &format!("when: {{}}\nthen: {{body: {cut}}}\n")).unwrap_err();
        assert!(error.contains("cannot be unpacked"), "{error}");
    }

    #[test]
    fn one_exchange_may_be_a_file_and_others_have_another_name() {
        let exchange = r#"{"request": {"url": "u", "body": "{\"a\":1}"}, "response": {"status": {"code": 200}, "body": "{}"}}"#;
        let exchanges = super::exchange(Path::new("a.json"), exchange).unwrap();
        assert_eq!(exchanges[0].request.as_ref().unwrap().address, "u");
        assert_eq!(exchanges[0].request.as_ref().unwrap().body, Some(serde_json::json!({"a": 1})));
        let exchanges = vcr(Path::new("a.yml"), "http_interactions:\n- request: {uri: u}\n").unwrap();
        assert_eq!(exchanges[0].request.as_ref().unwrap().address, "u");
    }

    #[test]
    fn the_streams_of_several_steps_are_told_apart() {
        let text = "{\"type\":\"message_start\"}\n{\"type\":\"message_stop\"}\n\n{\"type\":\"ping\"}\n";
        let exchanges = fixture(Path::new("a.chunks.txt"), text).unwrap();
        assert_eq!(exchanges.len(), 2);
        assert!(fixture(Path::new("a.chunks.txt"), "{\"type\":\"ping\"}\n{\"type\":").is_err());
        assert!(
            matches!(&exchanges[1].answer, Answer::Stream(text) if text == "data: {\"type\":\"ping\"}\n\n")
        );
        assert!(
            matches!(&fixture(Path::new("a.json"), "{}").unwrap()[0].answer, Answer::Body(text) if text == "{}")
        );
    }
}

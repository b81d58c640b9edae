//! Views of the parts of an answer.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fields::{Fields, Members};
use crate::{Citation, FileRef, HostedOutput, Item, ItemView, RawJson};

/// The prefix of generated call ids. They are never sent, because the provider does not know them.
const GENERATED_PREFIX: &str = "call-";

/// Maximum length of an id that generated ids may contain, in bytes: every item may have a copy.
const MAX_ID: usize = 256;

/// Maximum number of passages that are looked up, and of citations of an answer.
const MAX_PASSAGES: usize = 1_000;

/// Maximum size, in bytes, of an answer's citations.
const MAX_CITATION_BYTES: usize = 4 * 1024 * 1024;

/// The provider's id of a call; `None` if the id was generated.
pub(super) fn provider_id(id: &str) -> Option<&str> {
    (!id.is_empty() && !id.starts_with(GENERATED_PREFIX)).then_some(id)
}

/// Whether an id is usable in generated ids.
fn is_usable(id: &str) -> bool {
    (1..=MAX_ID).contains(&id.len())
}

/// Creates the views of an answer's parts in order, with generated ids for missing ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Views {
    /// A name of the answer that is unique in a conversation.
    answer: String,
    /// The number of calls without id.
    calls: usize,
    /// The number of code parts without id.
    codes: usize,
    /// The id of the last code part.
    code: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(default, borrow)]
    text: Option<&'a RawValue>,
    #[serde(default, borrow)]
    thought: Option<&'a RawValue>,
    #[serde(default, borrow)]
    thought_signature: Option<&'a RawValue>,
    #[serde(default, borrow)]
    function_call: Option<&'a RawValue>,
    #[serde(default, borrow)]
    executable_code: Option<&'a RawValue>,
    #[serde(default, borrow)]
    code_execution_result: Option<&'a RawValue>,
    #[serde(default, borrow)]
    tool_call: Option<&'a RawValue>,
    #[serde(default, borrow)]
    tool_response: Option<&'a RawValue>,
}

impl Views {
    /// Sets the name of the answer. The first one counts, so that ids stay the same.
    pub(super) fn name_answer(&mut self, response_id: Option<String>, prompt_tokens: Option<u64>) {
        if !self.is_named() {
            // Without an id, the length of the prompt is unique: a conversation grows.
            let id = response_id.filter(|id| is_usable(id));
            self.answer = id.or_else(|| prompt_tokens.map(|count| format!("p{count}"))).unwrap_or_default();
        }
    }

    pub(super) fn is_named(&self) -> bool {
        !self.answer.is_empty()
    }

    /// The generated id of the next call.
    pub(super) fn next_id(&self) -> String {
        format!("{GENERATED_PREFIX}{}-{}", self.answer, self.calls)
    }

    /// The item of the next part.
    pub(super) fn item(&mut self, raw: RawJson) -> Item {
        let view = serde_json::from_str::<Part<'_>>(raw.get()).ok().and_then(|part| self.known(&part));
        Item::new(view.unwrap_or_else(|| ItemView::Other { kind: kind(raw.get()) }), raw)
    }

    /// The view of a known part; `None` for an unknown kind or shape.
    fn known(&mut self, part: &Part<'_>) -> Option<ItemView> {
        if let Some(text) = part.text {
            let text: String = serde_json::from_str(text.get()).ok()?;
            let has_signature = part.thought_signature.is_some_and(|signature| signature.get() != "\"\"");
            let is_thought = part.thought.is_some_and(|thought| thought.get() == "true");
            // A signature without text is thinking.
            if is_thought || (text.is_empty() && has_signature) {
                return Some(ItemView::Thinking { text, has_signature });
            }
            return Some(ItemView::Text { text, citations: Vec::new() });
        }
        if let Some(call) = part.function_call {
            let call = Members::parse(call.get());
            let name = call.read("name")?;
            let arguments = Ok(call.get("args").map_or_else(|| RawJson::from(empty()), RawJson::from));
            let id = call.read::<String>("id").filter(|id| !id.is_empty()).unwrap_or_else(|| {
                let id = self.next_id();
                self.calls += 1;
                id
            });
            return Some(ItemView::ToolCall { id, name, arguments });
        }
        if let Some(raw) = part.executable_code {
            let id = Members::parse(raw.get()).read::<String>("id").filter(|id| is_usable(id));
            self.code = id.unwrap_or_else(|| {
                self.codes += 1;
                format!("code-{}-{}", self.answer, self.codes - 1)
            });
            return Some(ItemView::ServerToolCall {
                id: self.code.clone(),
                name: "code_execution".to_owned(),
                input: Some(raw.into()),
                output: None,
            });
        }
        if let Some(raw) = part.code_execution_result {
            let result = Members::parse(raw.get());
            let call_id = result.read::<String>("id").filter(|id| is_usable(id));
            let outcome: String = result.read("outcome").unwrap_or_default();
            let is_error = outcome != "OUTCOME_OK";
            let text: String = result.read("output").unwrap_or_default();
            // The wire has one member for output and errors.
            let (text, stderr) = if is_error { (String::new(), text) } else { (text, String::new()) };
            return Some(ItemView::ServerToolResult {
                call_id: call_id.unwrap_or_else(|| self.code.clone()),
                kind: "code_execution_result".to_owned(),
                output: Box::new(HostedOutput {
                    is_error,
                    error_code: is_error.then_some(outcome),
                    text,
                    stderr,
                    ..HostedOutput::default()
                }),
            });
        }
        if let Some(raw) = part.tool_call {
            let call = Members::parse(raw.get());
            return Some(ItemView::ServerToolCall {
                id: call.read("id").unwrap_or_default(),
                name: call.read("toolType")?,
                input: call.get("args").map(RawJson::from),
                output: None,
            });
        }
        let response = Members::parse(part.tool_response?.get());
        let text = response.get("response").map(|raw| raw.get().to_owned()).unwrap_or_default();
        Some(ItemView::ServerToolResult {
            call_id: response.read("id").unwrap_or_default(),
            kind: response.read("toolType")?,
            output: Box::new(HostedOutput { text, ..HostedOutput::default() }),
        })
    }
}

fn empty() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The kind of a part: the name of its data member.
fn kind(raw: &str) -> String {
    let members: Members<'_> = serde_json::from_str(raw).unwrap_or_default();
    let beside = ["thought", "thoughtSignature", "videoMetadata", "partMetadata", "mediaResolution"];
    let name = members.iter().map(|(name, _)| name).find(|name| !beside.contains(name)).unwrap_or_default();
    name.to_owned()
}

/// Adds the sources of a candidate to the texts that cite them.
pub(super) fn cite(items: &mut [Item], candidate: &Fields) {
    let grounding: Members<'_> = candidate.read("groundingMetadata").unwrap_or_default();
    let chunks: Vec<Members<'_>> = grounding.read("groundingChunks").unwrap_or_default();
    let mut sources: Vec<Option<Citation>> = chunks.iter().map(source).collect();
    let supports: Vec<Members<'_>> = grounding.read("groundingSupports").unwrap_or_default();
    let texts = Texts::from_items(items);
    // Each source is added once per item.
    let (mut cited, mut order) = (BTreeSet::new(), Vec::new());
    for support in supports.iter().take(MAX_PASSAGES) {
        let segment: Members<'_> = support.read("segment").unwrap_or_default();
        let Some(item) = texts.at(segment.read("partIndex"), segment.read("startIndex")) else { continue };
        let indices: Vec<usize> = support.read("groundingChunkIndices").unwrap_or_default();
        for index in indices.into_iter().filter(|index| sources.get(*index).is_some_and(Option::is_some)) {
            if cited.len() == MAX_PASSAGES {
                break;
            }
            if cited.insert((item, index)) {
                order.push((item, index));
            }
        }
    }
    let written: Members<'_> = candidate.read("citationMetadata").unwrap_or_default();
    let written: Vec<Members<'_>> =
        written.read("citationSources").or_else(|| written.read("citations")).unwrap_or_default();
    for source in written.iter().take(MAX_PASSAGES - order.len()) {
        let Some(item) = texts.at(None, source.read("startIndex")) else { continue };
        let citation = Citation { url: source.read("uri"), title: source.read("title"), file: None };
        if citation != Citation::default() {
            order.push((item, sources.len()));
            sources.push(Some(citation));
        }
    }
    let mut by_item: BTreeMap<usize, Vec<Citation>> = BTreeMap::new();
    let mut left = MAX_CITATION_BYTES;
    for (item, index) in order {
        let (Some(Some(citation)), citations) = (sources.get(index), by_item.entry(item).or_default()) else {
            continue;
        };
        if citations.contains(citation) {
            continue;
        }
        // The answer's JSON still has omitted citations.
        let Some(rest) = left.checked_sub(size_of(citation)) else { continue };
        left = rest;
        citations.push(citation.clone());
    }
    for (place, more) in by_item {
        let ItemView::Text { text, citations } = items[place].view() else { continue };
        let mut citations = citations.clone();
        citations.extend(more);
        items[place] =
            Item::new(ItemView::Text { text: text.clone(), citations }, items[place].raw().clone());
    }
}

/// The size of a citation in bytes.
fn size_of(citation: &Citation) -> usize {
    let file = citation.file.as_ref();
    let texts = [
        citation.url.as_ref(),
        citation.title.as_ref(),
        file.map(|file| &file.id),
        file.and_then(|file| file.name.as_ref()),
        file.and_then(|file| file.container.as_ref()),
    ];
    texts.into_iter().flatten().map(String::len).sum()
}

/// The positions of an answer's texts. Offsets count over all texts in a stream, and within one text in a body.
struct Texts(Vec<(usize, u64)>);

impl Texts {
    fn from_items(items: &[Item]) -> Self {
        let mut end = 0;
        let texts = items.iter().enumerate().filter_map(|(place, item)| match item.view() {
            ItemView::Text { text, .. } if !text.is_empty() => {
                end += text.len() as u64;
                Some((place, end))
            }
            _ => None,
        });
        Self(texts.collect())
    }

    /// The item of a passage: the named part if it is a text, else the text at the offset, else the last one.
    fn at(&self, part: Option<usize>, offset: Option<u64>) -> Option<usize> {
        if let Some(part) = part.filter(|part| self.0.binary_search_by_key(part, |(place, _)| *place).is_ok())
        {
            return Some(part);
        }
        let offset = offset.unwrap_or_default();
        let index = self.0.partition_point(|(_, end)| *end <= offset);
        self.0.get(index).or(self.0.last()).map(|(place, _)| *place)
    }
}

fn source(chunk: &Members<'_>) -> Option<Citation> {
    if let Some(page) = chunk.read::<Members<'_>>("web").or_else(|| chunk.read("maps")) {
        return Some(Citation { url: page.read("uri"), title: page.read("title"), file: None });
    }
    let passage: Members<'_> = chunk.read("retrievedContext")?;
    let title: Option<String> = passage.read("title");
    let store: Option<String> = passage.read("fileSearchStore");
    let file = store.map(|store| FileRef {
        id: passage.read("documentName").or_else(|| title.clone()).unwrap_or_else(|| store.clone()),
        name: title.clone(),
        container: Some(store),
    });
    Some(Citation { url: passage.read("uri"), title, file })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view_of(text: &str) -> ItemView {
        Views::default().item(RawJson::parse(text).unwrap()).view().clone()
    }

    fn text(text: &str) -> ItemView {
        ItemView::Text { text: text.into(), citations: Vec::new() }
    }

    #[test]
    fn known_parts_have_their_view() {
        assert_eq!(view_of(r#"{"text":"a","thoughtSignature":"s"}"#), text("a"));
        assert_eq!(view_of(r#"{"text":""}"#), text(""));
        for (part, words, has_signature) in [
            (r#"{"text":"a","thought":true}"#, "a", false),
            (r#"{"text":"a","thought":true,"thoughtSignature":"s"}"#, "a", true),
            (r#"{"text":"","thoughtSignature":"s"}"#, "", true),
        ] {
            assert_eq!(view_of(part), ItemView::Thinking { text: words.into(), has_signature }, "{part}");
        }
        let failed =
            view_of(r#"{"codeExecutionResult":{"outcome":"OUTCOME_FAILED","output":"no","id":"7"}}"#);
        let output = HostedOutput {
            is_error: true,
            error_code: Some("OUTCOME_FAILED".into()),
            stderr: "no".into(),
            ..HostedOutput::default()
        };
        let kind = "code_execution_result".to_owned();
        assert_eq!(
            failed,
            ItemView::ServerToolResult { call_id: "7".into(), kind, output: Box::new(output) }
        );
    }

    #[test]
    fn calls_without_an_id_get_one_that_is_never_sent() {
        let mut views = Views::default();
        views.name_answer(Some("r1".into()), Some(9));
        views.name_answer(Some("r2".into()), None);
        let raw =
            RawJson::parse(r#"{"functionCall":{"name":"t","args":{"x":1.0,"y":123456789012345678901}}}"#)
                .unwrap();
        let ids: Vec<String> = (0..2)
            .map(|_| {
                let item = views.item(raw.clone());
                let ItemView::ToolCall { id, arguments, .. } = item.view() else { panic!("not a call") };
                assert_eq!(arguments.as_ref().unwrap().get(), r#"{"x":1.0,"y":123456789012345678901}"#);
                id.clone()
            })
            .collect();
        assert_eq!(ids, ["call-r1-0", "call-r1-1"]);
        assert_eq!(provider_id(&ids[0]), None);
        assert_eq!(provider_id("call_7"), Some("call_7"));
        let mut unnamed = Views::default();
        unnamed.name_answer(None, Some(42));
        assert_eq!(unnamed.next_id(), "call-p42-0");
    }

    #[test]
    fn a_code_result_refers_to_the_code_before_it() {
        let mut views = Views::default();
        let code =
            views.item(RawJson::parse(r#"{"executableCode":{"language":"PYTHON","code":"1"}}"#).unwrap());
        let result =
            views.item(RawJson::parse(r#"{"codeExecutionResult":{"outcome":"OUTCOME_OK"}}"#).unwrap());
        let ItemView::ServerToolCall { id, .. } = code.view() else { panic!("not a call") };
        let ItemView::ServerToolResult { call_id, .. } = result.view() else { panic!("not a result") };
        assert_eq!(id, call_id);
    }

    #[test]
    fn unknown_parts_become_other() {
        for (text, kind) in [
            (r#"{"thoughtSignature":"s","hologram":{}}"#, "hologram"),
            (r#"{"inlineData":{"mimeType":"image/png","data":""}}"#, "inlineData"),
            (r#"{"text":7}"#, "text"),
            (r#"{"functionCall":{}}"#, "functionCall"),
            ("7", ""),
            ("{}", ""),
        ] {
            assert_eq!(view_of(text), ItemView::Other { kind: kind.into() }, "{text}");
        }
    }

    #[test]
    fn sources_are_added_to_their_texts() {
        let mut views = Views::default();
        let parts = [json!({"text": "t", "thought": true}), json!({"text": "abc"}), json!({"text": "def"})];
        let mut items: Vec<Item> = parts.iter().map(|part| views.item(part.into())).collect();
        let candidate: Fields = serde_json::from_value(json!({"groundingMetadata": {
            "groundingChunks": [
                {"web": {"uri": "u", "title": "t"}},
                {"retrievedContext": {"title": "d", "fileSearchStore": "s"}},
                {"new": {}},
            ],
            "groundingSupports": [
                {"segment": {"endIndex": 2}, "groundingChunkIndices": [0, 0, 2, 99]},
                {"segment": {"startIndex": 4, "endIndex": 5}, "groundingChunkIndices": [1]},
                {"segment": {"partIndex": 2, "startIndex": 0}, "groundingChunkIndices": [0]},
                {"segment": {"partIndex": 77, "startIndex": 5_000_000_000_u64}, "groundingChunkIndices": [0]},
            ],
        }}))
        .unwrap();
        cite(&mut items, &candidate);
        let page = Citation { url: Some("u".into()), title: Some("t".into()), file: None };
        let file = FileRef { id: "d".into(), name: Some("d".into()), container: Some("s".into()) };
        let passage = Citation { url: None, title: Some("d".into()), file: Some(file) };
        assert_eq!(*items[1].view(), ItemView::Text { text: "abc".into(), citations: vec![page.clone()] });
        assert_eq!(*items[2].view(), ItemView::Text { text: "def".into(), citations: vec![passage, page] });
    }
}

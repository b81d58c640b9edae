//! Views of the output items of the Responses API.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Dialect;
use crate::fields::{Members, Text};
use crate::{Citation, FileRef, HostedOutput, Item, ItemView, RawJson};

/// The argument with the free text of a custom tool's call.
pub(super) const CUSTOM_INPUT: &str = "input";

/// The separator between two parts of thinking.
pub(super) const PARAGRAPH: &str = "\n\n";

/// The item of an output item.
pub(super) fn item(dialect: Dialect, raw: RawJson) -> Item {
    Item::new(view(dialect, raw.get()), raw)
}

/// The `type` of an item; empty if there is none.
pub(super) fn kind_of(raw: &str) -> Cow<'_, str> {
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
    }
    serde_json::from_str::<Kind<'_>>(raw).map(|kind| kind.kind).unwrap_or_default()
}

fn view(dialect: Dialect, raw: &str) -> ItemView {
    let Ok(members) = serde_json::from_str::<Members<'_>>(raw) else {
        return ItemView::Other { kind: String::new() };
    };
    let kind: Cow<'_, str> = members.read::<Text<'_>>("type").unwrap_or_default().0;
    known(dialect, &kind, &members).unwrap_or_else(|| ItemView::Other { kind: kind.into_owned() })
}

/// The view of a known item type; `None` for an unknown type or shape.
fn known(dialect: Dialect, kind: &str, members: &Members<'_>) -> Option<ItemView> {
    let text = |name: &str| members.read::<String>(name);
    Some(match (kind, dialect) {
        ("message", _) => message(members)?,
        ("reasoning", _) => ItemView::Thinking {
            text: thinking(members),
            has_signature: text("encrypted_content").is_some_and(|content| !content.is_empty()),
        },
        ("function_call", _) => ItemView::ToolCall {
            id: text("call_id")?,
            name: text("name")?,
            arguments: arguments(&text("arguments")?),
        },
        ("custom_tool_call", Dialect::OpenAi) => ItemView::ToolCall {
            id: text("call_id")?,
            name: text("name")?,
            arguments: Ok((&serde_json::json!({ CUSTOM_INPUT: text("input")? })).into()),
        },
        // The caller runs these calls, unless a container of the provider ran them.
        ("shell_call", _) if !in_container(members) => ItemView::ToolCall {
            id: text("call_id")?,
            name: "shell".to_owned(),
            arguments: Ok(members.get("action")?.into()),
        },
        ("apply_patch_call", _) => ItemView::ToolCall {
            id: text("call_id")?,
            name: "apply_patch".to_owned(),
            arguments: Ok(members.get("operation")?.into()),
        },
        ("shell_call_output", _) => ItemView::ServerToolResult {
            call_id: text("call_id")?,
            kind: kind.to_owned(),
            output: Box::new(shell_output(members)),
        },
        // The caller answers its own tool searches with an item.
        ("tool_search_call", Dialect::OpenAi) if !is_for_caller(members) => ItemView::ServerToolCall {
            id: text("call_id").or_else(|| text("id"))?,
            name: "tool_search".to_owned(),
            input: members.get("arguments").map(RawJson::from),
            output: None,
        },
        ("tool_search_output", Dialect::OpenAi) if !is_for_caller(members) => ItemView::ServerToolResult {
            // Hosted searches have no common id of call and output.
            call_id: text("call_id").unwrap_or_default(),
            kind: kind.to_owned(),
            output: Box::new(HostedOutput { text: names(members), ..HostedOutput::default() }),
        },
        // A program of the model calls tools; the calls name it as their `caller`.
        ("program", Dialect::OpenAi) => ItemView::ServerToolCall {
            id: text("call_id")?,
            name: "program".to_owned(),
            input: Some((&serde_json::json!({ "code": text("code")? })).into()),
            output: None,
        },
        ("program_output", Dialect::OpenAi) => ItemView::ServerToolResult {
            call_id: text("call_id")?,
            kind: kind.to_owned(),
            output: Box::new(HostedOutput {
                is_error: text("status").is_some_and(|status| status == "incomplete"),
                text: text("result")?,
                ..HostedOutput::default()
            }),
        },
        ("mcp_list_tools", _) => ItemView::ServerToolCall {
            id: text("id")?,
            name: "mcp_list_tools".to_owned(),
            input: text("server_label").map(|label| (&serde_json::json!({ "server_label": label })).into()),
            output: Some(Box::new(HostedOutput {
                text: names(members),
                ..output(members).unwrap_or_default()
            })),
        },
        (
            "web_search_call"
            | "file_search_call"
            | "code_interpreter_call"
            | "mcp_call"
            | "image_generation_call"
            | "shell_call",
            _,
        ) => hosted(kind, members)?,
        // Any xAI call with a name is a hosted tool.
        (_, Dialect::Xai) if kind.ends_with("_call") && members.get("name").is_some() => {
            hosted(kind, members)?
        }
        _ => return None,
    })
}

/// The view of a message. Its parts are one text.
fn message(members: &Members<'_>) -> Option<ItemView> {
    if let Some(text) = members.read::<String>("content") {
        return Some(ItemView::Text { text, citations: Vec::new() });
    }
    let parts: Vec<Members<'_>> = members.read("content")?;
    let (mut text, mut citations) = (String::new(), Vec::new());
    for part in &parts {
        // A refusal replaces the text.
        let content = part.read::<Text<'_>>("text").or_else(|| part.read("refusal"));
        text.push_str(&content.unwrap_or_default().0);
        let annotations: Vec<Members<'_>> = part.read("annotations").unwrap_or_default();
        citations.extend(annotations.iter().map(citation));
    }
    Some(ItemView::Text { text, citations })
}

fn citation(annotation: &Members<'_>) -> Citation {
    Citation { url: annotation.read("url"), title: annotation.read("title"), file: file(annotation) }
}

/// The file of a citation or a search result.
fn file(members: &Members<'_>) -> Option<FileRef> {
    Some(FileRef {
        id: members.read("file_id")?,
        name: members.read("filename"),
        container: members.read("container_id"),
    })
}

/// The text of the summaries and of the thinking, if the provider shows it.
fn thinking(members: &Members<'_>) -> String {
    let parts = |name: &str| members.read::<Vec<Members<'_>>>(name).unwrap_or_default();
    let texts: Vec<String> = parts("summary")
        .iter()
        .chain(&parts("content"))
        .filter_map(|part| part.read::<String>("text").filter(|text| !text.is_empty()))
        .collect();
    texts.join(PARAGRAPH)
}

/// Parses the arguments. A call without parameters may have none.
fn arguments(text: &str) -> Result<RawJson, String> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    RawJson::parse(text).map_err(|_| text.to_owned())
}

/// Whether the caller runs the search, not the provider.
fn is_for_caller(members: &Members<'_>) -> bool {
    members.read::<Text<'_>>("execution").is_some_and(|who| who.0 == "client")
}

/// The names of the found tools, one per line.
fn names(members: &Members<'_>) -> String {
    let tools: Vec<Members<'_>> = members.read("tools").unwrap_or_default();
    let names: Vec<String> = tools.iter().filter_map(|tool| tool.read("name")).collect();
    names.join("\n")
}

fn in_container(members: &Members<'_>) -> bool {
    let environment: Members<'_> = members.read("environment").unwrap_or_default();
    environment.get("container_id").is_some()
}

fn hosted(kind: &str, members: &Members<'_>) -> Option<ItemView> {
    let text = |name: &str| members.read::<String>(name).filter(|text| !text.is_empty());
    let id = text("id").or_else(|| text("call_id"))?;
    let name = text("name").unwrap_or_else(|| kind.trim_end_matches("_call").to_owned());
    let input = text("arguments").or_else(|| text("input")).map(|arguments| {
        RawJson::parse(arguments.as_str()).unwrap_or_else(|_| (&serde_json::Value::from(arguments)).into())
    });
    let object =
        |name: &str, value: &RawValue| RawJson::parse(format!("{{\"{name}\":{}}}", value.get())).ok();
    let of = |name: &str| members.get(name).filter(|value| value.get() != "null");
    let input = input.or_else(|| of("action").map(RawJson::from)).or_else(|| {
        ["code", "queries", "revised_prompt", "prompt"]
            .into_iter()
            .find_map(|name| of(name).and_then(|value| object(name, value)))
    });
    Some(ItemView::ServerToolCall { id, name, input, output: output(members).map(Box::new) })
}

/// The output of a tool whose call and result are one item; `None` if there is none.
fn output(members: &Members<'_>) -> Option<HostedOutput> {
    let mut output = HostedOutput::default();
    let status: String = members.read("status").unwrap_or_default();
    output.is_error = status == "failed";
    // Search results and the pages of a search.
    let results: Vec<Members<'_>> = members.read("results").unwrap_or_default();
    let action: Members<'_> = members.read("action").unwrap_or_default();
    let pages: Vec<Members<'_>> = action.read("sources").unwrap_or_default();
    for result in results.iter().chain(&pages) {
        output.sources.push(Citation {
            url: result.read("url"),
            title: result.read("title").or_else(|| result.read("filename")),
            file: file(result),
        });
        append_line(&mut output.text, &result.read::<String>("text").unwrap_or_default());
    }
    // Outputs of code.
    let outputs: Vec<Members<'_>> = members.read("outputs").unwrap_or_default();
    for part in &outputs {
        append_line(&mut output.text, &part.read::<String>("logs").unwrap_or_default());
        if let Some(url) = part.read::<String>("url") {
            output.sources.push(Citation { url: Some(url), ..Citation::default() });
        }
    }
    // The output of an MCP tool.
    append_line(&mut output.text, &members.read::<String>("output").unwrap_or_default());
    match members.get("error").map(RawValue::get) {
        None | Some("null") => {}
        Some(error) => {
            output.is_error = true;
            let members: Members<'_> = serde_json::from_str(error).unwrap_or_default();
            output.error_code = members.read("code");
            let message = members.read("message").or_else(|| serde_json::from_str::<String>(error).ok());
            append_line(&mut output.stderr, &message.unwrap_or_else(|| error.to_owned()));
        }
    }
    (output != HostedOutput::default()).then_some(output)
}

/// The output of commands in a container of the provider, with the exit status of the last one.
fn shell_output(members: &Members<'_>) -> HostedOutput {
    let mut output = HostedOutput::default();
    let parts: Vec<Members<'_>> = members.read("output").unwrap_or_default();
    for part in &parts {
        output.text.push_str(&part.read::<String>("stdout").unwrap_or_default());
        output.stderr.push_str(&part.read::<String>("stderr").unwrap_or_default());
        let outcome: Members<'_> = part.read("outcome").unwrap_or_default();
        output.return_code = outcome.read("exit_code").or(output.return_code);
        if outcome.read::<String>("type").is_some_and(|kind| kind == "timeout") {
            output.is_error = true;
            output.error_code = Some("timeout".to_owned());
        }
    }
    output
}

fn append_line(text: &mut String, line: &str) {
    if !text.is_empty() && !line.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(line);
}

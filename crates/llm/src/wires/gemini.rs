//! Gemini's `GenerateContent`.

mod arguments;
mod body;
mod encode;
pub(super) mod error;
mod fold;
mod schemas;
mod view;

use std::sync::Arc;

use super::codec::{Codec, Encoded};
use super::{AnyFold, FoldOf};
use crate::catalog::ModelInfo;
use crate::{ErrorKind, HostedTool, ModelError, Part, Request, Response, Turn};

pub(crate) use self::fold::GenerateFold;

/// The largest seed of the wire, a 32-bit integer.
const MAX_SEED: u64 = i32::MAX as u64;

/// The wire for one model.
#[derive(Debug)]
pub(crate) struct GenerateCodec {
    info: Arc<ModelInfo>,
    schemas: schemas::Schemas,
}

impl GenerateCodec {
    pub(crate) fn new(info: Arc<ModelInfo>) -> Self {
        Self { info, schemas: schemas::Schemas::default() }
    }

    fn unsupported(&self, message: impl Into<String>) -> ModelError {
        ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id)
    }

    fn check_hosted(&self, tool: &HostedTool) -> Result<(), ModelError> {
        match tool {
            HostedTool::WebSearch { allowed_domains, blocked_domains, .. }
            | HostedTool::WebFetch { allowed_domains, blocked_domains, .. }
                if !allowed_domains.is_empty() || !blocked_domains.is_empty() =>
            {
                let name = tool.name();
                Err(self
                    .unsupported(format!("`{name}` has no domain filters on the Gemini wire: remove them")))
            }
            HostedTool::XSearch { .. } => {
                Err(self.unsupported("only xAI has the hosted tool `x_search`: use `web_search`"))
            }
            HostedTool::FileSearch { stores, .. } if stores.is_empty() => {
                Err(self.unsupported("`file_search` needs at least one store: add its name"))
            }
            HostedTool::CodeExecution { file_ids, .. } if !file_ids.is_empty() => Err(self.unsupported(
                "`code_execution` accepts no file ids on the Gemini wire: attach the files to the user turn",
            )),
            HostedTool::ToolSearch { .. } => {
                Err(self.unsupported("Gemini has no `tool_search`: use Anthropic or OpenAI"))
            }
            _ => Ok(()),
        }
    }
}

impl Codec for GenerateCodec {
    fn native_schema_obstacle(&self, request: &Request) -> Option<String> {
        (!request.tools.is_empty() && !is_modern(&self.info.id.name))
            .then(|| "models before Gemini 3 support a schema or tools, not both".to_owned())
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        let name = &self.info.id.name;
        // The name is part of the URL.
        let is_allowed =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/' | b'@');
        if name.is_empty()
            || !name.bytes().all(is_allowed)
            || name.split('/').any(|step| matches!(step, "" | "." | ".."))
        {
            let message = format!(
                "invalid model name: expected letters, digits, `.`, `-`, `_`, `@` and `/`, found `{name}`"
            );
            return Err(ModelError::new(ErrorKind::Configuration, message).with_model(&self.info.id));
        }
        if let Some(name) = request.metadata.keys().next() {
            return Err(
                self.unsupported(format!("metadata `{name}` is unsupported: the Gemini wire has none"))
            );
        }
        if let Some(beta) = request.betas.first() {
            return Err(
                self.unsupported(format!("beta `{beta}` is unsupported: the Gemini wire has no beta header"))
            );
        }
        if let Some(seed) = request.settings.seed.filter(|seed| *seed > MAX_SEED) {
            return Err(self.unsupported(format!("`seed`: expected at most {MAX_SEED}, found {seed}")));
        }
        request.hosted_tools.iter().try_for_each(|tool| self.check_hosted(tool))?;
        if let Some(edit) = request.context_edits.first() {
            let name = edit.name();
            return Err(self.unsupported(format!(
                "Gemini has no context edit `{name}`: use Anthropic, or OpenAI for `compact`"
            )));
        }
        let is_modern = is_modern(name);
        if request.settings.output.is_some() && !request.tools.is_empty() && !is_modern {
            return Err(self.unsupported("models before Gemini 3 support JSON answers or tools, not both"));
        }
        let parts = request.turns.iter().flat_map(|turn| match turn {
            Turn::User(parts) | Turn::System(parts) => parts.iter().collect::<Vec<_>>(),
            Turn::ToolResults(results) => results.iter().flat_map(|result| &result.content).collect(),
            Turn::Assistant(_) => Vec::new(),
        });
        if parts.into_iter().any(|part| matches!(part, Part::ContainerFile { .. })) {
            return Err(self.unsupported("the Gemini wire has no containers: send files as documents"));
        }
        Ok(())
    }

    fn encode(&self, request: &Request, stream: bool) -> Result<Encoded, ModelError> {
        let (body, notices) = encode::encode(&self.info, &self.schemas, request)?;
        let name = &self.info.id.name;
        // The names of tuned models include their collection.
        let kind = if name.contains('/') { "" } else { "models/" };
        let method = if stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
        Ok(Encoded { path: format!("/v1beta/{kind}{name}:{method}"), headers: Vec::new(), body, notices })
    }

    fn fold(&self) -> AnyFold {
        FoldOf::GenerateContent(GenerateFold::new(self.info.id.clone())).into()
    }

    fn read_body(&self, body: &str) -> Result<Response, ModelError> {
        body::read_body(&self.info.id, body)
    }

    fn read_error(&self, status: u16, body: &str) -> ModelError {
        error::read_error(status, body).with_model(&self.info.id)
    }
}

/// Whether a model is Gemini 3 or later. A name without a number is the newest model.
///
/// These models support thinking levels, media in results, and hosted tools together with functions. They require a
/// signature on the first call of each step.
fn is_modern(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    let Some(rest) = name.strip_prefix("gemini-") else { return false };
    let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
    number.is_empty() || number.parse::<u32>().is_ok_and(|number| number >= 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_the_generation() {
        for (name, expected) in [
            ("gemini-3-flash-preview", true),
            ("gemini-4-argon", true),
            ("gemini-12.5-pro", true),
            ("models/gemini-3.8-flash", true),
            ("gemini-flash-latest", true),
            ("gemini-2.5-pro", false),
            ("gemini-1.5-flash", false),
            ("gemma-4", false),
            ("tunedModels/mine", false),
        ] {
            assert_eq!(is_modern(name), expected, "{name}");
        }
    }
}

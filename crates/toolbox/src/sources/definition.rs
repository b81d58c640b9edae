//! What a source lists: tools, prompts and resources.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolpost_core::{BoxFuture, PromptSpec, ResourceSpec, ToolError, ToolSource, ToolSpec};

/// A kind of thing that a source has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Tool,
    Prompt,
    Resource,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Tool, Self::Prompt, Self::Resource];

    pub(super) const fn noun(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Prompt => "prompt",
            Self::Resource => "resource",
        }
    }

    /// How a name begins that says of which kind it is. No name of a tool has a colon.
    pub(super) const fn prefix(self) -> &'static str {
        match self {
            Self::Tool => "tool:",
            Self::Prompt => "prompt:",
            Self::Resource => "resource:",
        }
    }

    /// The kind that a text begins with, if it does, and the rest.
    pub(super) fn split(text: &str) -> (Option<Self>, &str) {
        let split = |kind: Self| Some((Some(kind), text.strip_prefix(kind.prefix())?));
        Self::ALL.into_iter().find_map(split).unwrap_or((None, text))
    }

    /// Whether a key is of this kind.
    pub(super) fn has(self, key: &str) -> bool {
        Self::split(key).0.unwrap_or(Self::Tool) == self
    }
}

/// A definition of any kind.
pub(super) trait Definition: Serialize + Send + Sync + Sized + 'static {
    const KIND: Kind;

    /// What callers call it by.
    fn name(&self) -> &str;

    /// What distinguishes it also from those of other kinds.
    fn key(&self) -> String {
        match Self::KIND {
            Kind::Tool => self.name().to_owned(),
            kind => format!("{}{}", kind.prefix(), self.name()),
        }
    }

    fn digest(&self) -> String;

    /// All of a source.
    fn of(source: &dyn ToolSource) -> BoxFuture<'_, Result<Vec<Arc<Self>>, ToolError>>;

    /// One of the same name with other words, and nothing else of it.
    fn without_words(&self, text: String, meta: Map<String, Value>) -> Self;
}

impl Definition for ToolSpec {
    const KIND: Kind = Kind::Tool;

    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> String {
        self.digest()
    }

    fn of(source: &dyn ToolSource) -> BoxFuture<'_, Result<Vec<Arc<Self>>, ToolError>> {
        source.list()
    }

    fn without_words(&self, text: String, meta: Map<String, Value>) -> Self {
        let mut listed = Self::new(self.name.clone(), text).input(json!({ "type": "object" }));
        listed.meta = meta;
        listed
    }
}

impl Definition for PromptSpec {
    const KIND: Kind = Kind::Prompt;

    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> String {
        self.digest()
    }

    fn of(source: &dyn ToolSource) -> BoxFuture<'_, Result<Vec<Arc<Self>>, ToolError>> {
        source.prompts()
    }

    fn without_words(&self, text: String, meta: Map<String, Value>) -> Self {
        let mut listed = Self::new(self.name.clone(), text);
        listed.meta = meta;
        listed
    }
}

impl Definition for ResourceSpec {
    const KIND: Kind = Kind::Resource;

    fn name(&self) -> &str {
        self.uri_pattern.as_str()
    }

    fn digest(&self) -> String {
        self.digest()
    }

    fn of(source: &dyn ToolSource) -> BoxFuture<'_, Result<Vec<Arc<Self>>, ToolError>> {
        source.resources()
    }

    fn without_words(&self, text: String, meta: Map<String, Value>) -> Self {
        let mut listed = Self::new(self.uri_pattern.clone(), text);
        listed.meta = meta;
        listed
    }
}

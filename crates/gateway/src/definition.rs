//! Definitions of a source: tools, prompts and resources.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolpost_core::{BoxFuture, PromptSpec, ResourceSpec, ToolSource, ToolSpec};

use super::{Manifest, Specs};

/// A kind of definition.
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

    /// The prefix of a key of this kind. No tool name contains a colon.
    pub(super) const fn prefix(self) -> &'static str {
        match self {
            Self::Tool => "tool:",
            Self::Prompt => "prompt:",
            Self::Resource => "resource:",
        }
    }

    /// Splits the prefix of a kind from a text.
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

    /// The name that callers use.
    fn name(&self) -> &str;

    /// The name, unique among all kinds.
    fn key(&self) -> String {
        match Self::KIND {
            Kind::Tool => self.name().to_owned(),
            kind => format!("{}{}", kind.prefix(), self.name()),
        }
    }

    fn digest(&self) -> String;

    /// All definitions of a source.
    fn of(source: &dyn ToolSource) -> BoxFuture<'_, Specs<Self>>;

    /// The definitions in a manifest.
    fn in_manifest(manifest: &Manifest) -> &[Arc<Self>];

    /// A definition with the same name, this description and nothing else.
    fn replaced(&self, text: String, meta: Map<String, Value>) -> Self;
}

impl Definition for ToolSpec {
    const KIND: Kind = Kind::Tool;

    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> String {
        self.digest()
    }

    fn of(source: &dyn ToolSource) -> BoxFuture<'_, Specs<Self>> {
        source.list()
    }

    fn in_manifest(manifest: &Manifest) -> &[Arc<Self>] {
        &manifest.tools
    }

    fn replaced(&self, text: String, meta: Map<String, Value>) -> Self {
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

    fn of(source: &dyn ToolSource) -> BoxFuture<'_, Specs<Self>> {
        source.prompts()
    }

    fn in_manifest(manifest: &Manifest) -> &[Arc<Self>] {
        &manifest.prompts
    }

    fn replaced(&self, text: String, meta: Map<String, Value>) -> Self {
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

    fn of(source: &dyn ToolSource) -> BoxFuture<'_, Specs<Self>> {
        source.resources()
    }

    fn in_manifest(manifest: &Manifest) -> &[Arc<Self>] {
        &manifest.resources
    }

    fn replaced(&self, text: String, meta: Map<String, Value>) -> Self {
        let mut listed = Self::new(self.uri_pattern.clone(), text);
        listed.meta = meta;
        listed
    }
}

//! Definitions of a source: tools, prompts and resources.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolpost_core::{Alias, BoxFuture, PromptSpec, ResourceSpec, ToolSource, ToolSpec, UriPattern};

use crate::{SourceManifest, Specs};

/// A kind of definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tool.
    Tool,
    /// A prompt.
    Prompt,
    /// A resource.
    Resource,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Tool, Self::Prompt, Self::Resource];

    pub(crate) const fn noun(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Prompt => "prompt",
            Self::Resource => "resource",
        }
    }

    /// The prefix of a key of this kind. No tool name contains a colon.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Tool => "tool:",
            Self::Prompt => "prompt:",
            Self::Resource => "resource:",
        }
    }

    /// Splits the prefix of a kind from a text.
    pub(crate) fn split(text: &str) -> (Option<Self>, &str) {
        let split = |kind: Self| Some((Some(kind), text.strip_prefix(kind.prefix())?));
        Self::ALL.into_iter().find_map(split).unwrap_or((None, text))
    }

    /// Whether a key is of this kind.
    pub(crate) fn has(self, key: &str) -> bool {
        Self::split(key).0.unwrap_or(Self::Tool) == self
    }
}

/// A definition of any kind.
pub(crate) trait Definition: Serialize + Send + Sync + Sized + 'static {
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

    /// Its other names.
    fn aliases(&self) -> &[Alias] {
        &[]
    }

    /// The pattern of its URIs.
    fn pattern(&self) -> Option<&UriPattern> {
        None
    }

    /// The SHA-256 of the canonical definition.
    fn digest(&self) -> String;

    /// All definitions of a source.
    fn list(source: &dyn ToolSource) -> BoxFuture<'_, Specs<Self>>;

    /// The definitions of this kind in a manifest.
    fn from_manifest(manifest: SourceManifest) -> Vec<Arc<Self>>;

    /// A manifest of these definitions alone.
    fn into_manifest(specs: Vec<Arc<Self>>) -> SourceManifest;

    /// A definition with the same name, this description and nothing else.
    fn replaced(&self, text: String, meta: Map<String, Value>) -> Self;
}

impl Definition for ToolSpec {
    const KIND: Kind = Kind::Tool;

    fn name(&self) -> &str {
        &self.name
    }

    fn aliases(&self) -> &[Alias] {
        &self.aliases
    }

    fn digest(&self) -> String {
        self.digest()
    }

    fn list(source: &dyn ToolSource) -> BoxFuture<'_, Specs<Self>> {
        source.list()
    }

    fn from_manifest(manifest: SourceManifest) -> Vec<Arc<Self>> {
        manifest.tools
    }

    fn into_manifest(tools: Vec<Arc<Self>>) -> SourceManifest {
        SourceManifest { tools, ..SourceManifest::default() }
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

    fn list(source: &dyn ToolSource) -> BoxFuture<'_, Specs<Self>> {
        source.prompts()
    }

    fn from_manifest(manifest: SourceManifest) -> Vec<Arc<Self>> {
        manifest.prompts
    }

    fn into_manifest(prompts: Vec<Arc<Self>>) -> SourceManifest {
        SourceManifest { prompts, ..SourceManifest::default() }
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

    fn pattern(&self) -> Option<&UriPattern> {
        Some(&self.uri_pattern)
    }

    fn digest(&self) -> String {
        self.digest()
    }

    fn list(source: &dyn ToolSource) -> BoxFuture<'_, Specs<Self>> {
        source.resources()
    }

    fn from_manifest(manifest: SourceManifest) -> Vec<Arc<Self>> {
        manifest.resources
    }

    fn into_manifest(resources: Vec<Arc<Self>>) -> SourceManifest {
        SourceManifest { resources, ..SourceManifest::default() }
    }

    fn replaced(&self, text: String, meta: Map<String, Value>) -> Self {
        let mut listed = Self::new(self.uri_pattern.clone(), text);
        listed.meta = meta;
        listed
    }
}

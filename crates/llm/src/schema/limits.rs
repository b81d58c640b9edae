//! Limits of the providers and of this crate.

/// Maximum number of values that lowering visits or writes. A reference that is inlined counts each time.
pub(super) const MAX_VALUES: usize = 50_000;

/// Maximum number of bytes of names, texts and enum values that lowering visits or copies.
pub(super) const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Maximum nesting of schemas.
pub(super) const MAX_DEPTH: usize = 64;

/// Maximum number of entries in a list of unchecked keywords.
pub(super) const MAX_UNCHECKED: usize = 50;

/// Maximum length of such an entry and of a constraint in a description, in characters.
pub(super) const MAX_ENTRY_CHARS: usize = 200;

/// OpenAI: maximum number of properties of all objects together.
pub(super) const OPENAI_MAX_PROPERTIES: usize = 5_000;

/// OpenAI: maximum nesting of objects.
pub(super) const OPENAI_MAX_OBJECT_DEPTH: usize = 10;

/// OpenAI: maximum number of enum values.
pub(super) const OPENAI_MAX_ENUM_VALUES: usize = 1_000;

/// OpenAI: maximum bytes of names and enum values together.
pub(super) const OPENAI_MAX_NAME_BYTES: usize = 120_000;

/// Anthropic: maximum number of strict tools in a request.
pub(super) const ANTHROPIC_MAX_STRICT_TOOLS: usize = 20;

/// Anthropic: maximum number of optional parameters in all strict schemas of a request.
pub(super) const ANTHROPIC_MAX_OPTIONAL: usize = 24;

/// Anthropic: maximum number of parameters with several types in all strict schemas of a request.
pub(super) const ANTHROPIC_MAX_UNIONS: usize = 16;

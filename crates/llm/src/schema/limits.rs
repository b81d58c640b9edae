//! Limits of the providers and of this crate.

/// The most values that lowering visits or writes. A reference that is inlined counts each time.
pub(super) const MAX_VALUES: usize = 50_000;

/// The most bytes of names, texts and enum values that lowering visits or copies.
pub(super) const MAX_BYTES: usize = 8 * 1024 * 1024;

/// The deepest nesting of schemas.
pub(super) const MAX_DEPTH: usize = 64;

/// The most entries in a list of unchecked keywords.
pub(super) const MAX_UNCHECKED: usize = 50;

/// The longest entry of that list, and the longest constraint in a description, in characters.
pub(super) const MAX_ENTRY_CHARS: usize = 200;

/// OpenAI: the most properties of all objects together.
pub(super) const OPENAI_MAX_PROPERTIES: usize = 5_000;

/// OpenAI: the deepest nesting of objects.
pub(super) const OPENAI_MAX_OBJECT_DEPTH: usize = 10;

/// OpenAI: the most enum values.
pub(super) const OPENAI_MAX_ENUM_VALUES: usize = 1_000;

/// OpenAI: the most bytes of names and enum values together.
pub(super) const OPENAI_MAX_NAME_BYTES: usize = 120_000;

/// Anthropic: the most strict tools in a request.
pub(super) const ANTHROPIC_MAX_STRICT_TOOLS: usize = 20;

/// Anthropic: the most optional parameters in all strict schemas of a request.
pub(super) const ANTHROPIC_MAX_OPTIONAL: usize = 24;

/// Anthropic: the most parameters with several types in all strict schemas of a request.
pub(super) const ANTHROPIC_MAX_UNIONS: usize = 16;

//! What providers and this crate bound.

/// The most values that are looked at or made while a schema is lowered; references that are written out count each
/// time.
pub(super) const MOST_VALUES: usize = 50_000;

/// The most bytes of names, words and listed values that are looked at or copied while a schema is lowered; references
/// that are written out count each time.
pub(super) const MOST_BYTES: usize = 8 * 1024 * 1024;

/// The deepest nesting of schemas.
pub(super) const DEEPEST: usize = 64;

/// The most entries of a list of what was lost.
pub(super) const MOST_LOST: usize = 50;

/// The longest entry of such a list, and the longest value of a constraint in a description, in characters.
pub(super) const LONGEST_ENTRY: usize = 200;

/// OpenAI: the most properties of all objects together.
pub(super) const OPENAI_PROPERTIES: usize = 5_000;

/// OpenAI: the deepest nesting of objects.
pub(super) const OPENAI_OBJECT_DEPTH: usize = 10;

/// OpenAI: the most listed values.
pub(super) const OPENAI_LISTED: usize = 1_000;

/// OpenAI: the most bytes of names and listed values together.
pub(super) const OPENAI_NAME_BYTES: usize = 120_000;

/// Anthropic: the most strict tools of a request.
pub(super) const ANTHROPIC_STRICT_TOOLS: usize = 20;

/// Anthropic: the most parameters that may be left out, in all strict schemas of a request.
pub(super) const ANTHROPIC_OPTIONAL: usize = 24;

/// Anthropic: the most parameters of several types, in all strict schemas of a request.
pub(super) const ANTHROPIC_UNIONS: usize = 16;

//! Defaults that help pages print too.

/// The default model per provider; the first provider with a key counts.
pub(crate) const MODELS: [(&str, &str); 4] = [
    ("anthropic", "anthropic/claude-sonnet-5-5"),
    ("openai", "openai/gpt-6.1-sol"),
    ("gemini", "gemini/gemini-3.8-flash"),
    ("xai", "xai/grok-4.7"),
];

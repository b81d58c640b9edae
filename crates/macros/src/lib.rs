//! How a function becomes a tool: #[tool], #[tools] and #[data].

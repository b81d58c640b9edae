//! The agentic loop.

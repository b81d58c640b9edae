//! The toolkit for the tools of LLM agents.

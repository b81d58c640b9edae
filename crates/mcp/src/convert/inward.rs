//! What servers send, as tools, outputs, errors, resources and prompts.

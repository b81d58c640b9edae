//! Tools, resources and prompts for clients of the protocol.

//! The provider wires: one request and response type, nothing lost.

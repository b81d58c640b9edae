//! What the protocol holds.

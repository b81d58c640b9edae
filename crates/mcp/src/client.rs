//! Servers of the protocol as sources of tools.

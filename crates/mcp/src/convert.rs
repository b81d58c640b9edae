//! Conversions between Toolpost types and MCP types: `outward` for clients, `inward` from servers.

#[cfg(feature = "client")]
pub(crate) mod inward;
#[cfg(feature = "server")]
pub(crate) mod outward;

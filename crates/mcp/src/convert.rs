//! Between our vocabulary and the protocol's: what is served (`outward`), and what comes from servers (`inward`).

#[cfg(feature = "client")]
pub(crate) mod inward;
#[cfg(feature = "server")]
pub(crate) mod outward;

//! Combinators over sources.

mod filtered;
mod gateway;
mod joined;
mod lazy;
mod named;
mod nested;
mod pinned;
mod revived;
mod searched;
mod upstream;

//! Combinators over sources.

mod filtered;
mod gateway;
mod lazy;
mod merged;
mod named;
mod nested;
mod pinned;
mod reconnecting;
mod searchable;
mod upstream;

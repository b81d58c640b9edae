//! The call path from outside.

// The attribute macros emit paths that begin with `::toolpost`.
extern crate toolpost_core as toolpost;

mod authoring;
mod limits;
mod shapes;
mod stages;

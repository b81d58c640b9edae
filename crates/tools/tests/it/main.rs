//! The built-in tools through a real toolbox.

mod arithmetic;
mod code;
mod encodings;
mod hostile;
mod listing;
mod reading;
mod specs;
mod support;
mod writing;

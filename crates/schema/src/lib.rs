//! JSON Schema 2020-12: validation, generated values, merged schemas and typed text.
//!
//! ```
//! use serde_json::json;
//! use toolpost_schema::Schema;
//!
//! let schema = Schema::new(json!({"type": "object", "required": ["city"]}));
//! assert_eq!(schema.problems(&json!({}))?[0].missing.as_deref(), Some("city"));
//! # Ok::<(), toolpost_schema::CheckError>(())
//! ```
//!
//! # Invariants
//!
//! - One resolver follows references ([`resolve`]), and one table names the keywords with subschemas ([`subschemas`]).
//! - Nothing is fetched: a reference that leaves the schema has no target.
//! - Every walk is bounded, because references multiply schemas and recursive schemas never end.
//! - Deliberately absent: tools, errors of tools, and the dialects of model providers.

#![forbid(unsafe_code)]

mod budget;
mod check;
mod generate;
mod graph;
mod merge;
mod nulls;
mod pattern;
mod reference;
mod repair;
mod steps;
mod suggest;
mod text;
mod types;
mod walk;
mod weight;

pub use self::budget::Budget;
pub use self::check::{CheckError, Problem, Schema, matches_own_format};
pub use self::generate::{SchemaDetail, generate};
pub use self::merge::Merger;
pub use self::nulls::without_nulls;
pub use self::reference::resolve;
pub use self::repair::repaired;
pub use self::suggest::{did_you_mean, suggestions};
pub use self::text::value_of_text;
pub use self::types::{Types, type_name, type_names};
pub use self::walk::{Part, applicable, subschemas, subschemas_mut};

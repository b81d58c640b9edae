//! Arguments that decide what runs.

use serde_json::Value;
use toolpost_schema::subschemas;

/// A way in which an argument decides the program. A tool declares it by the `format` of the argument's schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// `code`: source code, or a command line of a shell.
    Code,
    /// `program`: the name of a program, an interpreter or a language.
    Program,
    /// `argv`: a program and its arguments, a list.
    CommandLine,
    /// `stdin`: the input of the program of `argv`, which may be an interpreter.
    Input,
}

impl Evaluation {
    /// The meaning of a schema's `format`; `None` for a schema of plain data.
    pub fn of_schema(schema: &Value) -> Option<Self> {
        match schema.get("format")?.as_str()? {
            "code" => Some(Self::Code),
            "program" => Some(Self::Program),
            "argv" => Some(Self::CommandLine),
            "stdin" => Some(Self::Input),
            _ => None,
        }
    }

    /// Whether a schema or one within it declares an evaluation.
    pub(crate) fn is_declared_in(schema: &Value) -> bool {
        let mut pending = vec![schema];
        while let Some(schema) = pending.pop() {
            if Self::of_schema(schema).is_some() {
                return true;
            }
            pending.extend(subschemas(schema).into_iter().map(|(_, inner)| inner));
        }
        false
    }
}

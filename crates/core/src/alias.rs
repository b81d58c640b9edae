//! Other names of a tool.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Args, BoxFuture, Ctx, IntoTool, Output, Tool, ToolError, ToolSpec, check_tool_name};

/// Another name by which a tool can be called, such as one that it had elsewhere.
///
/// An alias is not listed and has no policy of its own: a call by it becomes a call of the tool before anything is
/// checked, permitted or recorded.
///
/// ```
/// # use toolpost_core::Alias;
/// # use serde_json::json;
/// let alias = Alias::new("python_code_executor").parameter("source", "code").argument("language", "python");
/// let arguments = alias.rewrite(&json!({ "source": "1 + 1" })).unwrap();
/// assert_eq!(arguments, json!({ "code": "1 + 1", "language": "python" }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alias {
    /// The other name.
    pub name: String,
    /// Names of arguments by this alias, and what they are called by the tool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Arguments that this alias stands for.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub arguments: Map<String, Value>,
}

impl Alias {
    /// A name that only stands for another.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), parameters: BTreeMap::new(), arguments: Map::new() }
    }

    /// An argument is called `here` by this alias, and `there` by the tool.
    #[must_use]
    pub fn parameter(mut self, here: impl Into<String>, there: impl Into<String>) -> Self {
        self.parameters.insert(here.into(), there.into());
        self
    }

    /// An argument that is always given. A call that gives another value for it is refused.
    #[must_use]
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.arguments.insert(name.into(), value.into());
        self
    }

    /// The arguments as the tool takes them. What is no object stays what it is: the schema refuses it.
    ///
    /// # Errors
    /// `INVALID_INPUT` if an argument is given by both of its names, or contradicts what the alias stands for.
    pub fn rewrite(&self, arguments: &Value) -> Result<Value, ToolError> {
        let Value::Object(given) = arguments else { return Ok(arguments.clone()) };
        let mut rewritten = Map::with_capacity(given.len() + self.arguments.len());
        for (name, value) in given {
            let there = self.parameters.get(name).unwrap_or(name);
            if there != name && given.contains_key(there) {
                return Err(ToolError::invalid_input(format!(
                    "`{name}` and `{there}` are the same argument, and both are given"
                ))
                .with("pointer", format!("/{name}"))
                .suggest(format!("Leave `{name}` out.")));
            }
            rewritten.insert(there.clone(), value.clone());
        }
        for (name, value) in &self.arguments {
            match rewritten.get(name) {
                None => {
                    rewritten.insert(name.clone(), value.clone());
                }
                Some(same) if same == value => {}
                Some(_) => {
                    return Err(ToolError::invalid_input(format!(
                        "`{name}` is always {value} in a call by the name `{}`",
                        self.name
                    ))
                    .with("pointer", format!("/{name}"))
                    .suggest("Leave it out, or call the tool by its own name."));
                }
            }
        }
        Ok(rewritten.into())
    }

    /// What is wrong with it, given the names of the tool's parameters.
    pub(crate) fn contradiction(&self, is_parameter: impl Fn(&str) -> bool) -> Option<String> {
        if let Err(message) = check_tool_name(&self.name) {
            return Some(format!("its alias `{}`: {message}", self.name));
        }
        let named = self.parameters.values().chain(self.arguments.keys());
        let unknown = named.into_iter().find(|name| !is_parameter(name))?;
        Some(format!("its alias `{}` names the argument `{unknown}`, which it does not have", self.name))
    }
}

/// A tool with further names.
struct Aliased {
    tool: Arc<dyn Tool>,
    spec: Arc<ToolSpec>,
}

impl Tool for Aliased {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::clone(&self.spec)
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.tool.call(args, ctx)
    }

    fn mock<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> Option<BoxFuture<'a, Result<Output, ToolError>>> {
        self.tool.mock(args, ctx)
    }

    fn secrets(&self, arguments: &Value) -> Vec<String> {
        self.tool.secrets(arguments)
    }
}

/// The same tool, which can also be called by these names.
pub fn with_aliases<Kind>(
    tool: impl IntoTool<Kind>,
    aliases: impl IntoIterator<Item = Alias>,
) -> Arc<dyn Tool> {
    let tool = tool.into_tool();
    let mut spec = ToolSpec::clone(&tool.spec());
    spec.aliases.extend(aliases);
    Arc::new(Aliased { tool, spec: Arc::new(spec) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_alias_rewrites_or_refuses() {
        let alias = Alias::new("old").parameter("file_path", "path").argument("format", "text");
        for (given, expected) in [
            (json!({}), Some(json!({ "format": "text" }))),
            (json!({ "file_path": "a", "x": 1 }), Some(json!({ "path": "a", "x": 1, "format": "text" }))),
            (json!({ "path": "a", "format": "text" }), Some(json!({ "path": "a", "format": "text" }))),
            (json!([1]), Some(json!([1]))),
            (json!({ "path": "a", "file_path": "b" }), None),
            (json!({ "format": "json" }), None),
        ] {
            assert_eq!(alias.rewrite(&given).ok(), expected, "{given}");
        }
    }

    #[test]
    fn an_alias_that_cannot_work_is_no_alias() {
        let spec = |alias: Alias| {
            let mut spec =
                ToolSpec::new("new", "New.").parameter("path", crate::ParameterType::String, "Path.");
            spec.aliases.push(alias);
            spec.check()
        };
        spec(Alias::new("old").parameter("file_path", "path")).unwrap();
        for alias in [
            Alias::new("o l d"),
            Alias::new("new"),
            Alias::new("old").parameter("file_path", "paht"),
            Alias::new("old").argument("mode", 1),
        ] {
            assert!(spec(alias.clone()).is_err(), "{alias:?}");
        }
    }
}

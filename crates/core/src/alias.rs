//! Aliases of tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Args, BoxFuture, Ctx, IntoTool, Output, Tool, ToolError, ToolSpec, check_tool_name};

/// An alternative name of a tool.
///
/// An alias is not listed and has no policy of its own. The toolbox replaces it by the tool's name before it checks,
/// permits or records the call.
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
    /// The alias.
    pub name: String,
    /// Argument names of the alias and the tool's names for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Arguments that the alias sets.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub arguments: Map<String, Value>,
}

impl Alias {
    /// An alias without argument changes.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), parameters: BTreeMap::new(), arguments: Map::new() }
    }

    /// Renames an argument: `from` in calls by this alias, `to` in the tool.
    #[must_use]
    pub fn parameter(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.parameters.insert(from.into(), to.into());
        self
    }

    /// Sets an argument. A call with another value for it is rejected.
    #[must_use]
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.arguments.insert(name.into(), value.into());
        self
    }

    /// Rewrites arguments for the tool. A value that is not an object stays as it is, and the schema rejects it.
    ///
    /// # Errors
    /// `INVALID_INPUT` if both names of an argument are given, or a value contradicts the alias.
    pub fn rewrite(&self, arguments: &Value) -> Result<Value, ToolError> {
        let Value::Object(given) = arguments else { return Ok(arguments.clone()) };
        let mut rewritten = Map::with_capacity(given.len() + self.arguments.len());
        for (name, value) in given {
            let target = self.parameters.get(name).unwrap_or(name);
            if target != name && given.contains_key(target) {
                return Err(ToolError::invalid_input(format!(
                    "`{name}` and `{target}` are the same argument; both are given"
                ))
                .with("pointer", format!("/{name}"))
                .suggest(format!("Omit `{name}`.")));
            }
            rewritten.insert(target.clone(), value.clone());
        }
        for (name, value) in &self.arguments {
            match rewritten.get(name) {
                None => {
                    rewritten.insert(name.clone(), value.clone());
                }
                Some(same) if same == value => {}
                Some(_) => {
                    return Err(ToolError::invalid_input(format!(
                        "the alias `{}` sets `{name}` to {value}",
                        self.name
                    ))
                    .with("pointer", format!("/{name}"))
                    .suggest("Omit it, or call the tool by its own name."));
                }
            }
        }
        Ok(rewritten.into())
    }

    /// The reason why the alias is invalid for a tool with these parameters.
    pub(crate) fn invalid_reason(&self, is_parameter: impl Fn(&str) -> bool) -> Option<String> {
        if let Err(message) = check_tool_name(&self.name) {
            return Some(format!("alias `{}`: {message}", self.name));
        }
        let named = self.parameters.values().chain(self.arguments.keys());
        let unknown = named.into_iter().find(|name| !is_parameter(name))?;
        Some(format!("alias `{}` sets the unknown argument `{unknown}`", self.name))
    }
}

/// A tool with aliases.
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

/// Adds aliases to a tool.
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

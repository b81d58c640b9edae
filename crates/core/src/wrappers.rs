//! Wrappers of tools: parameters that the application fills, and mocks.

use std::sync::Arc;

use serde_json::Value;

use crate::inject::not_provided;
use crate::{Args, BoxFuture, Ctx, IntoTool, Output, Schema, SpecError, Tool, ToolError, ToolSpec};

/// A tool with parameters that the application fills.
struct Prefilled {
    tool: Arc<dyn Tool>,
    spec: Arc<ToolSpec>,
    /// The schema of all parameters.
    full_schema: Arc<Schema>,
    /// Names of the excluded parameters, and whether the tool requires them.
    excluded: Vec<(String, bool)>,
}

impl Prefilled {
    fn fill(&self, args: &Args, ctx: &Ctx) -> Result<Args, ToolError> {
        let mut filled = args.as_value().clone();
        for (name, is_required) in &self.excluded {
            match ctx.inject_named::<Option<Value>>(name)? {
                Some(value) => filled[name] = value,
                None if *is_required => {
                    return Err(not_provided(&format!("the value `{name}`"), "provide_named(name, value)"));
                }
                None => {}
            }
        }
        // The caller's arguments are valid already, so an error concerns an injected value.
        self.full_schema.check(&filled).map_err(|error| {
            ToolError::internal(format!(
                "an injected value does not fit the tool's schema: {}",
                error.message()
            ))
        })?;
        Ok(Args::from(filled))
    }
}

impl Tool for Prefilled {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::clone(&self.spec)
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move { self.tool.call(&self.fill(args, ctx)?, ctx).await })
    }

    fn mock<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> Option<BoxFuture<'a, Result<Output, ToolError>>> {
        self.tool.mock(args, ctx)
    }

    fn secrets(&self, arguments: &Value) -> Vec<String> {
        self.tool.secrets(arguments)
    }
}

/// Removes parameters from a tool's schema, so that no model sees or sets them.
///
/// The application provides their values by name, on the toolbox or on the call
/// ([`Call::provide_named`](crate::Call::provide_named)).
///
/// # Errors
/// The tool has no such parameter.
pub fn exclude_parameters<Kind>(
    tool: impl IntoTool<Kind>,
    names: impl IntoIterator<Item = impl Into<String>>,
) -> Result<Arc<dyn Tool>, SpecError> {
    let tool = tool.into_tool();
    let mut spec = ToolSpec::clone(&tool.spec());
    let full_schema = Arc::clone(&spec.input_schema);
    let mut schema = full_schema.as_value().clone();
    let mut excluded = Vec::new();
    for name in names {
        let name = name.into();
        let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
        // A shift keeps the order of the other parameters, which a model sees.
        if properties.and_then(|properties| properties.shift_remove(&name)).is_none() {
            let message = format!("it has no parameter `{name}` to exclude");
            return Err(SpecError { tool: spec.name, message });
        }
        let required = schema.get_mut("required").and_then(Value::as_array_mut);
        let is_required = required.is_some_and(|required| {
            let before = required.len();
            required.retain(|known| known.as_str() != Some(&name));
            required.len() < before
        });
        for example in &mut spec.examples {
            if let Some(args) = example.args.as_object_mut() {
                args.shift_remove(&name);
            }
        }
        spec.sensitive.retain(|known| *known != name);
        spec.injected.push(name.clone());
        excluded.push((name, is_required));
    }
    spec.input_schema = Arc::new(Schema::new(schema));
    Ok(Arc::new(Prefilled { tool, spec: Arc::new(spec), full_schema, excluded }))
}

/// A tool with a mock.
struct Mocked<F> {
    tool: Arc<dyn Tool>,
    mock: F,
}

impl<F, Answer> Tool for Mocked<F>
where
    F: Fn(Args, Ctx) -> Answer + Send + Sync,
    Answer: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    fn spec(&self) -> Arc<ToolSpec> {
        self.tool.spec()
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.tool.call(args, ctx)
    }

    fn mock<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> Option<BoxFuture<'a, Result<Output, ToolError>>> {
        Some(Box::pin((self.mock)(args.clone(), ctx.clone())))
    }

    fn secrets(&self, arguments: &Value) -> Vec<String> {
        self.tool.secrets(arguments)
    }
}

/// Adds a mock to a tool: `mock` answers in mock mode, and its nested calls are mocked as well.
pub fn with_mock<Kind, F, Answer>(tool: impl IntoTool<Kind>, mock: F) -> Arc<dyn Tool>
where
    F: Fn(Args, Ctx) -> Answer + Send + Sync + 'static,
    Answer: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    Arc::new(Mocked { tool: tool.into_tool(), mock })
}

//! Tools with other sides: parameters that the application fills, and answers that are made up.

use std::sync::Arc;

use serde_json::Value;

use crate::inject::not_provided;
use crate::{Args, BoxFuture, Ctx, IntoTool, Output, Schema, SpecError, Tool, ToolError, ToolSpec};

/// A tool some of whose parameters the application fills.
struct Narrowed {
    tool: Arc<dyn Tool>,
    spec: Arc<ToolSpec>,
    /// The schema of all parameters.
    whole: Arc<Schema>,
    /// The names that are filled, and whether the tool needs them.
    filled: Vec<(String, bool)>,
}

impl Narrowed {
    fn fill(&self, args: &Args, ctx: &Ctx) -> Result<Args, ToolError> {
        let mut whole = args.as_value().clone();
        for (name, is_required) in &self.filled {
            match ctx.inject_named::<Option<Value>>(name)? {
                Some(value) => whole[name] = value,
                None if *is_required => {
                    return Err(not_provided(&format!("the value `{name}`"), "provide_named(name, value)"));
                }
                None => {}
            }
        }
        // What a model gave was checked already: only the application can be wrong here.
        self.whole.check(&whole).map_err(|error| {
            ToolError::internal(format!(
                "a value that the application gives does not fit: {}",
                error.message()
            ))
        })?;
        Ok(Args::from(whole))
    }
}

impl Tool for Narrowed {
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

/// The same tool without some of its parameters: a model neither sees them nor can give them. The application provides
/// their values by name, on the toolbox or on the call ([`Call::provide_named`](crate::Call::provide_named)).
///
/// # Errors
/// The tool has no such parameter.
pub fn exclude_parameters<Kind>(
    tool: impl IntoTool<Kind>,
    names: impl IntoIterator<Item = impl Into<String>>,
) -> Result<Arc<dyn Tool>, SpecError> {
    let tool = tool.into_tool();
    let mut spec = ToolSpec::clone(&tool.spec());
    let whole = Arc::clone(&spec.input_schema);
    let mut schema = whole.as_value().clone();
    let mut filled = Vec::new();
    for name in names {
        let name = name.into();
        let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
        // In place: the order of the others is part of what a model sees.
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
        filled.push((name, is_required));
    }
    spec.input_schema = Arc::new(Schema::new(schema));
    Ok(Arc::new(Narrowed { tool, spec: Arc::new(spec), whole, filled }))
}

/// A tool with a made-up answer of its own.
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

/// The same tool, for which `mock` answers in mock mode. What that calls is made up as well.
pub fn with_mock<Kind, F, Answer>(tool: impl IntoTool<Kind>, mock: F) -> Arc<dyn Tool>
where
    F: Fn(Args, Ctx) -> Answer + Send + Sync + 'static,
    Answer: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    Arc::new(Mocked { tool: tool.into_tool(), mock })
}

//! Tools and tool sources.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::__private::{ToolAnswer, ToolParameter, input_schema};
use crate::{
    Args, BoxFuture, Call, CallError, CallRecord, Caller, Ctx, IntoOutput, Output, PromptSpec, ResourceSpec,
    SourceStatus, ToolError, ToolSpec,
};

/// A callable tool. `#[tool]` creates one from a function; implement the trait for other cases.
pub trait Tool: Send + Sync {
    /// The definition, requested once at registration.
    fn spec(&self) -> Arc<ToolSpec>;

    /// Runs the tool with validated arguments.
    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>>;

    /// Moves the next call to a thread for blocking work: the returned tool runs there, with the rules of
    /// [`Placement::Blocking`](crate::Placement::Blocking). Default: `None`, so that the spec's placement decides.
    ///
    /// The method runs on the caller's thread. A tool of another language captures that thread's context there.
    fn on_thread(&self) -> Option<Arc<dyn Tool>> {
        None
    }

    /// Checks arguments beyond the schema without a run, as `pre_validate` of `#[tool]` does. Default: no check.
    ///
    /// The call path uses it for calls that only validate. A tool repeats the check itself when it runs.
    ///
    /// # Errors
    /// The first defect.
    fn pre_validate(&self, args: &Args) -> Result<(), ToolError> {
        let _ = args;
        Ok(())
    }

    /// Merges two concurrent changes of one value under the conflict policy `merge`. `None` means that the value does not
    /// exist.
    ///
    /// # Errors
    /// `CONFLICT` if the values cannot be merged, which is the default. The call fails with this error.
    fn merge_state(
        &self,
        before: Option<&Value>,
        mine: &Value,
        theirs: Option<&Value>,
    ) -> Result<Value, ToolError> {
        let _ = (before, mine, theirs);
        Err(ToolError::conflict(
            "another writer changed the same value, and the tool has no `merge` function",
        ))
    }

    /// Answers in mock mode without effects; nested calls are mocked as well.
    ///
    /// Default: `None`, which answers from the spec's examples or its output schema.
    fn mock<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> Option<BoxFuture<'a, Result<Output, ToolError>>> {
        let _ = (args, ctx);
        None
    }

    /// Secrets within the arguments, beyond the arguments that the spec marks as sensitive: a password in a URL, one header
    /// among many. Default: none. The arguments are not validated yet.
    fn secrets(&self, arguments: &Value) -> Vec<String> {
        let _ = arguments;
        Vec::new()
    }
}

/// The reply to a call: its result and its record.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The result for the caller.
    pub result: Result<Output, ToolError>,
    /// The record.
    pub record: Arc<CallRecord>,
}

impl Reply {
    /// Returns the output, and drops the record.
    ///
    /// # Errors
    /// The error of the call.
    pub fn into_output(self) -> Result<Output, CallError> {
        Ok(self.result?)
    }
}

/// A dynamic set of tools that runs its own calls: another toolbox, a server, a directory of programs.
///
/// A source is responsible for validation, retries and per-tool limits; the toolbox in front of it for identity,
/// permission, budgets and the caller's record. The call's id, parent, scope, deadline, depth and idempotency key reach
/// the source unchanged.
pub trait ToolSource: Send + Sync {
    /// The source's name, for records.
    fn name(&self) -> &str;

    /// Its current tools.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>>;

    /// A number that grows with every change of the list, so that a cached copy can be checked.
    fn generation(&self) -> u64;

    /// Runs a call. An error before its start has the advice [`RetryAdvice::NotStarted`](crate::RetryAdvice).
    fn call(&self, call: Call) -> BoxFuture<'_, Reply>;

    /// Its resources. Default: none.
    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Its prompts. Default: none.
    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Reads a resource: text, bytes or a structured value. Default: `NOT_FOUND`.
    ///
    /// The call's tool is the URI. Dropping the future cancels the read.
    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            Err(ToolError::not_found(format!("`{}` has no resource `{}`", self.name(), call.tool)))
        })
    }

    /// Renders a prompt: text, or a structured value such as messages. Default: `NOT_FOUND`.
    ///
    /// The call's tool and arguments are the prompt's name and arguments. Dropping the future cancels the rendering.
    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            Err(ToolError::not_found(format!("`{}` has no prompt `{}`", self.name(), call.tool)))
        })
    }

    /// Calls [`read`](Self::read) for this source's [viewer](Self::viewer).
    fn read_resource<'a>(&'a self, uri: &'a str) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.read(for_viewer(self.viewer(), uri, Value::Null))
    }

    /// Calls [`render`](Self::render) for this source's [viewer](Self::viewer).
    fn render_prompt<'a>(
        &'a self,
        name: &'a str,
        arguments: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.render(for_viewer(self.viewer(), name, Value::Object(arguments.clone())))
    }

    /// The caller of a view that [`seen_by`](Self::seen_by) created. Default: none.
    fn viewer(&self) -> Option<&Caller> {
        None
    }

    /// The view of one caller: what that caller may list, read and render. Default: `None`, the same for every caller.
    ///
    /// [`list`](Self::list) contains what any caller may see, so that a toolbox in front can route every call. Permission
    /// checks use the call's caller either way.
    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let _ = caller;
        None
    }

    /// Whether the source can serve calls, for the code that reconnects it. Must be quick and independent of single tools.
    /// Default: ready.
    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async { Ok(()) })
    }

    /// Status of the source and of its own sources, in order. Sends no request and does not wait. Default: empty.
    fn status(&self) -> Vec<SourceStatus> {
        Vec::new()
    }
}

fn for_viewer(viewer: Option<&Caller>, name: &str, arguments: Value) -> Call {
    let call = Call::new(name, arguments);
    match viewer {
        Some(viewer) => call.with_caller(viewer.clone()),
        None => call,
    }
}

/// Markers for type inference: kinds of values that convert into tools.
pub mod marker {
    /// A tool.
    #[derive(Debug)]
    pub struct Itself;
    /// The function that `#[tool]` generates in place of the original.
    #[derive(Debug)]
    pub struct Function;
    /// A shared tool.
    #[derive(Debug)]
    pub struct Shared;
    /// A group of tools.
    #[derive(Debug)]
    pub struct Group;
    /// A list of tools of one kind.
    #[derive(Debug)]
    pub struct Each<Kind>(std::marker::PhantomData<Kind>);
}

/// A value that converts into a tool: a [`Tool`], or the name of a function with `#[tool]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool",
    label = "expected a tool",
    note = "put `#[toolpost::tool]` on the function, or implement `toolpost::Tool`"
)]
pub trait IntoTool<Kind> {
    /// Converts the value.
    fn into_tool(self) -> Arc<dyn Tool>;
}

impl<T: Tool + 'static> IntoTool<marker::Itself> for T {
    fn into_tool(self) -> Arc<dyn Tool> {
        Arc::new(self)
    }
}

impl IntoTool<marker::Shared> for Arc<dyn Tool> {
    fn into_tool(self) -> Arc<dyn Tool> {
        self
    }
}

impl<T: Tool + 'static, F: FnOnce() -> T> IntoTool<marker::Function> for F {
    fn into_tool(self) -> Arc<dyn Tool> {
        Arc::new(self())
    }
}

/// Several tools that share one value, as `#[tools]` generates from an `impl` block.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a group of tools",
    note = "put `#[toolpost::tools]` on an `impl` block of the type"
)]
pub trait ToolGroup {
    /// The tools.
    fn into_tools(self) -> Vec<Arc<dyn Tool>>;
}

/// A value that converts into several tools: a [`ToolGroup`], or an iterator of tools.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a group of tools nor an iterator of them",
    note = "put `#[toolpost::tools]` on an `impl` block of the type, or pass a list of `Arc<dyn Tool>`"
)]
pub trait IntoTools<Kind> {
    /// Converts the value.
    fn into_list(self) -> Vec<Arc<dyn Tool>>;
}

impl<G: ToolGroup> IntoTools<marker::Group> for G {
    fn into_list(self) -> Vec<Arc<dyn Tool>> {
        self.into_tools()
    }
}

impl<Kind, I: IntoIterator> IntoTools<marker::Each<Kind>> for I
where
    I::Item: IntoTool<Kind>,
{
    fn into_list(self) -> Vec<Arc<dyn Tool>> {
        self.into_iter().map(IntoTool::into_tool).collect()
    }
}

/// A closure with an explicit spec.
struct FnTool<F> {
    spec: Arc<ToolSpec>,
    run: F,
}

impl<F, Answer> Tool for FnTool<F>
where
    F: Fn(Args, Ctx) -> Answer + Send + Sync,
    Answer: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::clone(&self.spec)
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin((self.run)(args.clone(), ctx.clone()))
    }
}

/// Creates a tool from a closure, for tools that are known only at run time.
pub fn tool_fn<F, Answer>(spec: ToolSpec, run: F) -> impl Tool + use<F, Answer>
where
    F: Fn(Args, Ctx) -> Answer + Send + Sync,
    Answer: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    FnTool { spec: Arc::new(spec), run }
}

/// Creates a tool from a closure over one struct with `#[toolpost::data]`.
///
/// The struct's fields are the parameters, and its schema replaces the spec's. The type in `Ok` provides the output
/// schema if the spec has none.
///
/// ```
/// # extern crate toolpost_core as toolpost;
/// use toolpost::{ToolSpec, ToolError, data, typed_tool_fn};
///
/// #[data]
/// struct Greeting {
///     /// Whom to greet.
///     name: String,
/// }
///
/// # fn main() {
/// let greet = typed_tool_fn(ToolSpec::new("greet", "Greet a person."), async |greeting: Greeting, _ctx| {
///     Ok::<_, ToolError>(format!("Hello, {}", greeting.name))
/// });
/// # }
/// ```
pub fn typed_tool_fn<Input, Answered, F, Answer>(
    spec: ToolSpec,
    run: F,
) -> impl Tool + use<Input, Answered, F, Answer>
where
    Input: ToolParameter + 'static,
    Answered: IntoOutput + ToolAnswer + 'static,
    F: Fn(Input, Ctx) -> Answer + Send + Sync,
    Answer: Future<Output = Result<Answered, ToolError>> + Send + 'static,
{
    let output_schema = spec.output_schema.clone().or_else(Answered::output_schema);
    let spec = ToolSpec { input_schema: input_schema::<Input>(), output_schema, ..spec };
    tool_fn(spec, move |args, ctx| {
        let answer = args.decode_all().map(|input| run(input, ctx));
        async move { answer?.await?.into_output() }
    })
}

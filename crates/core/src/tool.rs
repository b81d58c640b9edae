//! Tools, and sources of tools.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::__private::{ToolAnswer, ToolParameter, input_schema};
use crate::{
    Args, BoxFuture, Call, CallRecord, Caller, Ctx, IntoOutput, Output, PromptSpec, ResourceSpec,
    SourceStatus, ToolError, ToolSpec,
};

/// Something that can be called. `#[tool]` makes one of a function; implement it by hand for anything else.
pub trait Tool: Send + Sync {
    /// What is known before it is called. Asked once, at registration.
    fn spec(&self) -> Arc<ToolSpec>;

    /// Runs it, with arguments that fit its input schema.
    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>>;

    /// Looks at arguments that fit the input schema, without running: what `pre_validate` of `#[tool]` names. It is asked
    /// when a call is only to be checked; a tool that is run sees to it itself. Default: they are good.
    ///
    /// # Errors
    /// What is wrong with them.
    fn pre_validate(&self, args: &Args) -> Result<(), ToolError> {
        let _ = args;
        Ok(())
    }

    /// Makes one value of two that were made of the same one, when the policy of conflicts says `merge`: the value
    /// before, this call's, and somebody else's; `None` is a value that is not there.
    ///
    /// # Errors
    /// `CONFLICT` if they cannot be made one, and that is what the call fails with. So does a tool that has no function
    /// for it.
    fn merge_state(
        &self,
        before: Option<&Value>,
        mine: &Value,
        theirs: Option<&Value>,
    ) -> Result<Value, ToolError> {
        let _ = (before, mine, theirs);
        Err(ToolError::conflict("somebody else has changed the same value, and the tool cannot merge them"))
    }

    /// Answers in mock mode, without doing anything: what it calls by its context is made up as well. Default: `None`,
    /// and the answer is made of the spec's examples or its output schema.
    fn mock<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> Option<BoxFuture<'a, Result<Output, ToolError>>> {
        let _ = (args, ctx);
        None
    }

    /// Texts within the arguments that records and errors must not show, beyond the arguments that the spec calls
    /// sensitive: a password in an address, one header among many. Default: none. The arguments are not checked yet.
    fn secrets(&self, arguments: &Value) -> Vec<String> {
        let _ = arguments;
        Vec::new()
    }
}

/// What a call came to: the answer for the caller and the record of how it was made.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The answer.
    pub result: Result<Output, ToolError>,
    /// How it was made.
    pub record: Arc<CallRecord>,
}

/// A set of tools that may change and that runs its own calls: another toolbox, a server, a folder of programs.
///
/// A source owns the schema check, retries and per-tool limits of its tools; the toolbox in front of it owns identity,
/// permission, budgets and the caller's record. The call's id, parent, scope, deadline, depth and idempotency key
/// travel to it unchanged.
pub trait ToolSource: Send + Sync {
    /// Its name, for records.
    fn name(&self) -> &str;

    /// The tools that it has now.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>>;

    /// Grows with every change of the list, so that whoever keeps a copy can tell that it is old.
    fn generation(&self) -> u64;

    /// Runs a call. If it certainly did not start, the error says [`RetryAdvice::NotStarted`](crate::RetryAdvice).
    fn call(&self, call: Call) -> BoxFuture<'_, Reply>;

    /// What can be read from it by address. Default none.
    fn resources(&self) -> BoxFuture<'_, Result<Vec<Arc<ResourceSpec>>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The prompts that it can render. Default none.
    fn prompts(&self) -> BoxFuture<'_, Result<Vec<Arc<PromptSpec>>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Reads a resource for a caller: text, bytes or a structured value. The call's tool is the address, and its caller,
    /// scope, deadline and port are those of the call. Dropping the future is the cancellation. Default `NOT_FOUND`.
    fn read(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            Err(ToolError::not_found(format!("`{}` has no resource `{}`", self.name(), call.tool)))
        })
    }

    /// Renders a prompt for a caller: text, or a structured value such as messages. The call's tool is the prompt's name,
    /// its arguments are the prompt's. Dropping the future is the cancellation. Default `NOT_FOUND`.
    fn render(&self, call: Call) -> BoxFuture<'_, Result<Output, ToolError>> {
        Box::pin(async move {
            Err(ToolError::not_found(format!("`{}` has no prompt `{}`", self.name(), call.tool)))
        })
    }

    /// [`read`](Self::read) for whom this source is, or for nobody in particular.
    fn read_resource<'a>(&'a self, uri: &'a str) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.read(for_viewer(self.viewer(), uri, Value::Null))
    }

    /// [`render`](Self::render) for whom this source is, or for nobody in particular.
    fn render_prompt<'a>(
        &'a self,
        name: &'a str,
        arguments: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.render(for_viewer(self.viewer(), name, Value::Object(arguments.clone())))
    }

    /// For whom it is, if [`seen_by`](Self::seen_by) made it for one caller. Default: nobody in particular.
    fn viewer(&self) -> Option<&Caller> {
        None
    }

    /// The source as one caller may see it: what it lists, reads and renders. `None`, the default, if that is the same
    /// for everybody. [`list`](Self::list) has what anybody may see, so that a toolbox in front can take every call; a
    /// front shows its callers this. Calls carry their caller and are checked by it either way.
    fn seen_by(&self, caller: &Caller) -> Option<Arc<dyn ToolSource>> {
        let _ = caller;
        None
    }

    /// Whether it can serve calls now, for whoever revives it: must be quick, and must not fail for a tool's sake.
    /// Default: it can.
    fn health(&self) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async { Ok(()) })
    }

    /// How it is, and how the sources are that it consists of, in their order. Asks nobody and waits for nothing. Default:
    /// nothing, for a source of which there is nothing to say.
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

/// Kinds of things that can be turned into a tool; only type inference uses them.
pub mod marker {
    /// A tool itself.
    #[derive(Debug)]
    pub struct Itself;
    /// The function that `#[tool]` leaves in place of the one it was written on.
    #[derive(Debug)]
    pub struct Function;
    /// A shared tool.
    #[derive(Debug)]
    pub struct Shared;
    /// A group of tools.
    #[derive(Debug)]
    pub struct Group;
    /// A list of tools, each of a kind.
    #[derive(Debug)]
    pub struct Each<Kind>(std::marker::PhantomData<Kind>);
}

/// What a toolbox takes as a tool: a [`Tool`], or the name of a function with `#[tool]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool",
    label = "expected a tool",
    note = "put `#[toolpost::tool]` on the function, or implement `toolpost::Tool`"
)]
pub trait IntoTool<Kind> {
    /// The tool.
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

/// Several tools that share one value: what `#[tools]` makes of an `impl` block.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a group of tools",
    note = "put `#[toolpost::tools]` on an `impl` block of the type"
)]
pub trait ToolGroup {
    /// The tools.
    fn into_tools(self) -> Vec<Arc<dyn Tool>>;
}

/// What a toolbox takes as several tools: a [`ToolGroup`], or any iterator of tools.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a group of tools nor an iterator of them",
    note = "put `#[toolpost::tools]` on an `impl` block of the type, or give a list of `Arc<dyn Tool>`"
)]
pub trait IntoTools<Kind> {
    /// The tools.
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

/// Makes a tool of a closure, for tools that are only known at run time.
pub fn tool_fn<F, Answer>(spec: ToolSpec, run: F) -> impl Tool + use<F, Answer>
where
    F: Fn(Args, Ctx) -> Answer + Send + Sync,
    Answer: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    FnTool { spec: Arc::new(spec), run }
}

/// Makes a tool of a closure over one struct with `#[toolpost::data]`: its fields are the parameters, and its schema
/// takes the place of the spec's. What stands in `Ok` gives the output schema, if the spec has none.
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
/// let greet = typed_tool_fn(ToolSpec::new("greet", "Greet somebody."), async |greeting: Greeting, _ctx| {
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

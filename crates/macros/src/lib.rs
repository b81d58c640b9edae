//! The macros that define tools: `#[tool]`, `#[tools]`, `#[resource]`, `#[prompt]` and `#[data]`.
//!
//! # Invariants
//!
//! - The generated code refers to `::toolpost::__private` only, so a user's crate needs no other dependency.
//! - A misuse is a compile error at the wrong token, with the fix.
//! - The original function stays callable: `forecast::run(…)`.
//! - The macros contain no schema, call path or protocol; they refer to items of `core`.
#![forbid(unsafe_code)]

mod attributes;
mod data;
mod emit;
mod function;
mod group;
mod json;
mod parameter;
mod state;

use proc_macro::TokenStream;

/// Defines a tool from a function.
///
/// The doc comment is the description; doc comments on parameters describe them; `Option` parameters and those with a
/// default are optional; the return type gives the output schema. An async function runs inline, a plain one on a
/// blocking thread.
///
/// The application fills parameters of the types `Ctx`, `&Ctx` and `Inject<T>`; they are not in the schema.
///
/// Keys of the attribute, separated by commas:
///
/// | key | meaning |
/// |---|---|
/// | `name = "…"`, `description = "…"` | replace the function's name and doc comment |
/// | `summary = "…"` | a title for lists of tools |
/// | `tags("a", "b")` | tags for search |
/// | `examples(r#"{…}"#, …)` | example arguments |
/// | `streaming`, `session_mode` | as a program, the tool streams events or runs a session |
/// | `cpu_bound` | runs in a worker process |
/// | `timeout_s = 10` | the timeout of one attempt in seconds (60), also as a decimal number |
/// | `max_retries = 2` | retries of a failed attempt (2 if idempotent, else 0), or of a conflict (16) |
/// | `backoff_initial_ms = 5`, `backoff_max_ms = 250` | the first and the longest wait between retries |
/// | `conflict_policy = "retry"` or `"error"` | what follows a conflicting change of the same state |
/// | `policy(…)` | all other keys, below |
///
/// Keys of `policy(…)`:
///
/// | key | meaning |
/// |---|---|
/// | `read_only`, `destructive`, `idempotent`, `open_world` | hints about its effects |
/// | `category = "…"`, `group = "…"` | where the catalog lists it |
/// | `approval = "allow"`, `"ask"` or `"deny"` | whether a call needs approval |
/// | `cache = "5m"` | how long a success is cached (idempotent tools only) |
/// | `concurrency = 4`, `rate = "10/s"` | the maximum of parallel calls, and of calls per time |
/// | `no_timeout` | no timeout |
/// | `placement = "inline"` or `"blocking"` | runs on the caller's task, or on a blocking thread |
/// | `memory_mib = 512` | the memory of the worker process (1,024 MiB); with `cpu_bound` |
/// | `output_limit = 65536` | bytes of text that a model gets |
/// | `merge = path` | merges conflicting states: `fn(before: T, mine: T, theirs: T) -> T`, or with a `Result` |
/// | `task = "when_slow"`, `"at_once"`, `"only"` or `"never"` | whether a server call may outlive its request (`"when_slow"`) |
/// | `dry_run` | the tool checks `Ctx::is_dry_run`; without this key a dry run never calls it |
/// | `sensitive("password", …)` | arguments that records mask; for the fields of a whole input |
/// | `pre_validate = path` | a check `fn(&Input) -> Result<(), ToolError>` before a tool with a whole input |
///
/// Keys of `#[arg(…)]` on a parameter:
///
/// | key | meaning |
/// |---|---|
/// | `default = …` | the value of an absent argument |
/// | `min = 1`, `max = 14` | limits of a number |
/// | `min_len = 1`, `max_len = 40` | limits of the length of a string, list or map |
/// | `pattern = "^[A-Z]+$"` | a regular expression that a string matches |
/// | `format = "email"` | the format of a string: `file`, `url`, `email`, `uuid`, `datetime`, `json`, `base64`, `code`, or one of JSON Schema; `program`, `argv` and `stdin` declare what runs, as `code` does |
/// | `example = …` | an example value |
/// | `enum("a", "b")` | the allowed strings |
/// | `sensitive` | masked in records |
/// | `inject` | filled by the application, by name; excludes other keys |
/// | `input` | this struct is the whole input; excludes other keys |
///
/// A parameter `&mut T` or `&T` with `#[state(…)]` is a part of a stored document. `T` has a JSON form and a
/// default, the value of a missing document. A change is committed if the function succeeds, else discarded.
/// The keys:
///
/// | key | meaning |
/// |---|---|
/// | `id = "counters/{owner}"` | the document id: `{owner}` is the owner of the call, `{scope}` its run or conversation, any other name an argument; each fills a whole segment between `/` |
/// | `path = "/by_name/{name}"` | the JSON pointer of the part that the function gets (the whole document) |
/// | `existing` | a missing document is `NOT_FOUND` |
///
/// An invalid default, example, pattern or limit is an error when the tool is registered.
#[proc_macro_attribute]
pub fn tool(options: TokenStream, item: TokenStream) -> TokenStream {
    function::expand(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Defines a resource from a function: content that a client reads by URI.
///
/// The first item of the attribute is the URI pattern, `#[resource("notes://{user}")]`. The names in braces
/// are parameters of the function; `Ctx` and `Inject<T>` work as in a tool. Further keys:
/// `mime_types("text/plain")`, and those of [`macro@tool`].
#[proc_macro_attribute]
pub fn resource(options: TokenStream, item: TokenStream) -> TokenStream {
    function::resource(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Defines a prompt from a function: text or messages that a client requests by name.
///
/// The parameters are the arguments of the prompt; the keys are those of [`macro@tool`].
#[proc_macro_attribute]
pub fn prompt(options: TokenStream, item: TokenStream) -> TokenStream {
    function::prompt(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Defines tools from the `#[tool]` methods of an `impl` block. The tools share the value behind an `Arc`.
///
/// `#[tools(category = "…", group = "…")]` sets both for all of them. The methods take `&self`.
#[proc_macro_attribute]
pub fn tools(options: TokenStream, item: TokenStream) -> TokenStream {
    group::expand(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Derives `Serialize`, `Deserialize` and `JsonSchema` for a parameter or result of tools.
///
/// The derives name `toolpost` paths, so no further crate is needed.
#[proc_macro_attribute]
pub fn data(options: TokenStream, item: TokenStream) -> TokenStream {
    data::expand(&options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

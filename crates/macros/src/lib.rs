//! How a function becomes a tool: `#[tool]`, `#[tools]`, `#[resource]`, `#[prompt]` and `#[data]`.
//!
//! # Invariants
//!
//! - What is emitted refers to `::toolpost::__private` only, so that a user's crate needs `toolpost` and nothing else.
//! - Every misuse is a compile error at the token that is wrong, with a sentence that says what to write instead.
//! - The original function stays what it was: `forecast::run(…)` calls it.
//! - Knows no schema, no call path and no protocol: it only names what `core` provides.
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

/// Makes a tool of a function.
///
/// The doc comment is the description; doc comments on parameters describe them; `Option` parameters and those with a
/// default may be left out; the return type gives the output schema. An async function runs inline, a plain one on a
/// thread for blocking work.
///
/// Parameters of the types `Ctx`, `&Ctx` and `Inject<T>` are filled by the application and are not in the schema.
///
/// Options of the attribute, separated by commas:
///
/// | option | meaning |
/// |---|---|
/// | `name = "…"`, `title = "…"`, `description = "…"` | instead of the function's name and doc comment |
/// | `category = "…"`, `group = "…"`, `tags("a", "b")` | where it is found |
/// | `read_only`, `destructive`, `idempotent`, `open_world` | hints about its effects |
/// | `timeout = "10s"` or `timeout = "never"` | how long one attempt may run (60 s); `timeout_s = 10` is the same |
/// | `max_retries = 2`, `backoff = "100ms..2s"` | further attempts (2 if idempotent, else none) |
/// | `conflict = "retry"` or `"error"` | what happens when somebody else has changed the same state; `max_retries` (16) and `backoff` (`"5ms..250ms"`) are then about that |
/// | `merge = path` | a function `fn(before: T, mine: T, theirs: T) -> T`, or with a `Result`, that makes one state of two |
/// | `concurrency = 4`, `rate = "10/s"` | how many at once, how often |
/// | `cache = "5m"` | how long a success is kept (idempotent tools only) |
/// | `placement = "inline"`, `"blocking"` or `"worker"` | where it runs: on the caller's task, on a thread, in a process; `cpu_bound` is the same as `"worker"` |
/// | `memory_mib = 512` | the memory of the worker process (1,024 MiB) |
/// | `approval = "allow"`, `"ask"` or `"deny"` | whether it may be called |
/// | `output_limit = 65536` | bytes of text that a model gets |
/// | `mode = "unary"`, `"streaming"` or `"session"` | how it is called as a program: streams of events and sessions are asked for |
/// | `task = "when_slow"`, `"at_once"`, `"only"` or `"never"` | whether a call through a server may outlive its request (`"when_slow"`) |
/// | `dry_run` | it has a dry run of its own and looks at `Ctx::is_dry_run`; without it a dry run never calls it |
/// | `example = r#"{…}"#` | arguments as one would give them; may be repeated |
/// | `sensitive("password", …)` | arguments that records mask; for the fields of a whole input |
/// | `pre_validate = path` | a function `fn(&Input) -> Result<(), ToolError>` called before one with a whole input |
///
/// Options of `#[arg(…)]` on a parameter:
///
/// | option | meaning |
/// |---|---|
/// | `default = …` | what it is when the caller leaves it out |
/// | `min = 1`, `max = 14` | limits of a number |
/// | `min_len = 1`, `max_len = 40` | limits of the characters of a text, the items of a list, the entries of a map |
/// | `pattern = "^[A-Z]+$"` | a regular expression that a text matches |
/// | `format = "email"` | the form of a text: an everyday name (`file`, `url`, `email`, `uuid`, `datetime`, `json`, `base64`, `code`) or one of JSON Schema |
/// | `example = …` | a value as one would give it |
/// | `enum("a", "b")` | the only texts that it may be |
/// | `sensitive` | masked in records |
/// | `inject` | filled by the application, by its name; stands alone |
/// | `input` | this one struct is the whole input; stands alone |
///
/// A parameter `&mut T` or `&T` with `#[state(…)]` is a part of a document that is kept between calls; `T` has a JSON
/// form and a default, which is what it is when nothing is kept yet. What the function makes of it is committed when it
/// has succeeded, and thrown away otherwise. The options:
///
/// | option | meaning |
/// |---|---|
/// | `id = "counters/{owner}"` | the document: `{owner}` is whom the call belongs to, `{scope}` its run or conversation, any other name in braces the argument of that name; each fills a whole part between `/` |
/// | `path = "/by_name/{name}"` | the part of the document that the function sees, as a JSON pointer (all of it) |
/// | `existing` | the document must be there already: without it the call fails with `NOT_FOUND` |
///
/// A default or an example that does not fit, a pattern that is none, and a limit on a type that it says nothing of are
/// errors when the tool is registered.
#[proc_macro_attribute]
pub fn tool(options: TokenStream, item: TokenStream) -> TokenStream {
    function::expand(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a resource of a function: something that can be read by its address.
///
/// The first thing in the attribute is the pattern of the addresses, `#[resource("notes://{user}")]`; the parameters of the
/// function are filled from the parts in braces, and `Ctx` and `Inject<T>` as those of a tool. Further options:
/// `mime_types("text/plain")`, `tags("a", "b")`, and those of [`macro@tool`].
#[proc_macro_attribute]
pub fn resource(options: TokenStream, item: TokenStream) -> TokenStream {
    function::resource(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a prompt of a function: text, or messages, that a caller asks for by name.
///
/// The parameters are the prompt's arguments; the options are those of [`macro@tool`], such as `tags("a")`.
#[proc_macro_attribute]
pub fn prompt(options: TokenStream, item: TokenStream) -> TokenStream {
    function::prompt(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes tools of the methods of an `impl` block that have `#[tool]`; they share the value, behind an `Arc`.
///
/// `#[tools(category = "…", group = "…")]` sets both for all of them. The methods take `&self`.
#[proc_macro_attribute]
pub fn tools(options: TokenStream, item: TokenStream) -> TokenStream {
    group::expand(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a struct or an enum a parameter or a result of tools: it derives `Serialize`, `Deserialize` and `JsonSchema`
/// with the right paths, so that no further crate is needed.
#[proc_macro_attribute]
pub fn data(options: TokenStream, item: TokenStream) -> TokenStream {
    data::expand(&options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

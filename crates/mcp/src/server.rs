//! Tools, resources and prompts for clients of the protocol.
//!
//! A [`Server`] makes any [`ToolSource`](toolpost_core::ToolSource) reachable: over standard streams, streamable HTTP,
//! WebSocket and unix sockets, for clients of both eras at once.
//!
//! ```
//! # use std::sync::Arc;
//! # use toolpost_core as toolpost;
//! # use toolpost_core::{Output, ParameterType, ToolSpec, tool_fn};
//! # use toolpost_mcp::server::Server;
//! # use toolpost_toolbox::Toolbox;
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let spec = ToolSpec::new("double", "Double a number.").parameter("number", ParameterType::Integer, "The number.");
//! let double = tool_fn(spec, async |args, _ctx| Ok(Output::json((args.decode::<i64>("number")? * 2).into())));
//! let toolbox = Toolbox::builder().tool(double).build()?;
//!
//! let server = Server::builder(Arc::new(toolbox)).name("calc").version("1.0").build()?;
//! let running = server.http("127.0.0.1:0".parse()?).await?;
//! assert_eq!(running.connection_url(), format!("http://{}/mcp", running.address()));
//! running.stop().await;
//! # Ok::<(), toolpost_core::ToolError>(()) }).unwrap();
//! ```

mod answers;
mod builder;
mod calling;
mod calls;
mod changes;
#[cfg(test)]
mod fuzz;
mod guard;
mod handler;
mod hints;
mod http;
mod limits;
mod listening;
mod listing;
mod oauth;
mod patience;
mod port;
mod sessions;
mod streams;
mod tasks;
mod tls;
mod watched;
mod websocket;
mod wire;
mod work;

use std::sync::Arc;

pub use self::builder::{Builder, Completion, Server};
pub use self::hints::Hints;
pub use self::http::Running;
pub use self::limits::Limits;
pub use self::oauth::ResourceServer;
#[cfg(unix)]
pub use self::streams::UnixRunning;
pub use self::tls::Certificate;

/// Whom a request speaks for, when it was authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Principal(Option<Arc<str>>);

//! Serves tools, resources and prompts to MCP clients.
//!
//! A [`Server`] exposes any [`ToolSource`](toolpost_core::ToolSource) over stdio, streamable HTTP and
//! WebSocket, to clients of all protocol versions.
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

mod builder;
mod call_message;
mod calls;
mod changes;
mod client;
#[cfg(test)]
mod fuzz;
mod guard;
mod handler;
mod hints;
mod http;
mod limits;
mod listing;
mod oauth;
mod port;
mod request;
mod sessions;
mod single_json;
mod streams;
mod subscriptions;
mod tasks;
mod tls;
mod watch;
mod websocket;
mod wire;
mod write_timeout;

use std::sync::Arc;

pub use self::builder::{Completion, Server, ServerBuilder};
pub use self::hints::Hints;
pub use self::http::RunningServer;
pub use self::limits::ServerLimits;
pub use self::oauth::ResourceServer;
pub use self::tls::Certificate;

use self::client::Client;

/// The client of a request; none where the server authenticates nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Principal(Option<Arc<Client>>);

impl Principal {
    /// The name in permissions and records.
    fn name(&self) -> Option<&str> {
        Some(&self.0.as_ref()?.name)
    }

    /// The owner of tasks and documents.
    fn key(&self) -> Option<&str> {
        Some(&self.0.as_ref()?.key)
    }
}

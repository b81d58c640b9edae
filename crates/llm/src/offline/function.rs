//! A model that is a function.

use std::fmt;

use crate::offline::events::stream_of;
use crate::offline::reply::ModelReply;
use crate::{Model, ModelError, ModelId, Request, ResponseStream};

/// The provider's name in the [`ModelId`] of such a model.
const PROVIDER: &str = "function";

/// A model that answers with the result of a function, for tests.
///
/// ```
/// use toolpost_llm::{FunctionModel, Model, ModelReply, Request};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), toolpost_llm::ModelError> {
/// let model = FunctionModel::new("echo", |request: &Request| Ok(ModelReply::text(format!("{} turns", request.turns.len()))));
/// assert_eq!(model.respond(&Request::new("Hello.")).await?.text(), "1 turns");
/// # Ok(())
/// # }
/// ```
pub struct FunctionModel {
    id: ModelId,
    #[expect(clippy::type_complexity, reason = "the type is used once")]
    function: Box<dyn Fn(&Request) -> Result<ModelReply, ModelError> + Send + Sync>,
}

impl FunctionModel {
    /// A model with a name and a function. Concurrent requests call the function concurrently.
    pub fn new(
        name: impl Into<String>,
        function: impl Fn(&Request) -> Result<ModelReply, ModelError> + Send + Sync + 'static,
    ) -> Self {
        Self { id: ModelId::new(PROVIDER, name), function: Box::new(function) }
    }
}

impl fmt::Debug for FunctionModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionModel").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Model for FunctionModel {
    fn id(&self) -> &ModelId {
        &self.id
    }

    fn check(&self, _request: &Request) -> Result<(), ModelError> {
        Ok(())
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        let reply = (self.function)(request).map_err(|error| error.with_model(&self.id));
        stream_of(reply.map(|reply| reply.into_response(&self.id, request)))
    }
}

//! Selects the container of hosted code for a request.
//!
//! An answer reports its container and the expiry time. Both are provider state of the answer's turn, so that a stored
//! conversation resumes in the same container unless it has expired.

use serde::Deserialize as _;
use serde_json::{Map, Value};
use toolpost_core::Timestamp;

use crate::Request;
use crate::fields::{Fields, Members};

/// The member of requests and answers.
const CONTAINER: &str = "container";

/// The minimum remaining lifetime of a container, in microseconds: the request must arrive before it expires.
const MIN_LIFETIME_MICROS: u64 = 5_000_000;

/// The provider state of an answer.
pub(super) fn provider_state(message: &Fields) -> Map<String, Value> {
    let container: Option<Members<'_>> = message.read(CONTAINER);
    let Some(container) = container else { return Map::new() };
    let Some(id) = container.read::<String>("id") else { return Map::new() };
    let mut state = Map::new();
    state.insert("id".to_owned(), id.into());
    if let Some(end) = container.read::<String>("expires_at") {
        state.insert("expires_at".to_owned(), end.into());
    }
    Map::from_iter([(CONTAINER.to_owned(), state.into())])
}

/// The container of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Container<'a> {
    /// No container, or one in the caller's options.
    None,
    /// The container of the conversation.
    Reused(&'a str),
    /// The container of the conversation has expired.
    Expired { id: &'a str, at: &'a str },
}

/// The container of a request at this time.
pub(super) fn of_request<'a>(request: &'a Request, provider: &str, now: Timestamp) -> Container<'a> {
    let has_own = match request.provider_options.get(CONTAINER) {
        None => false,
        Some(Value::Object(own)) => own.get("id").is_some_and(|id| !id.is_null()),
        Some(_) => true,
    };
    let Some(state) = request.provider_state(provider, CONTAINER).filter(|_| !has_own) else {
        return Container::None;
    };
    let Some(id) = state["id"].as_str() else { return Container::None };
    // An invalid time is left to the provider.
    match state["expires_at"].as_str() {
        Some(at)
            if Timestamp::deserialize(&state["expires_at"])
                .is_ok_and(|end| end.as_micros() <= now.as_micros().saturating_add(MIN_LIFETIME_MICROS)) =>
        {
            Container::Expired { id, at }
        }
        _ => Container::Reused(id),
    }
}

//! The container that hosted code runs in: which one a request names.
//!
//! An answer says which container its code ran in and when that ends. Both travel in the answer's turn, so that a saved
//! conversation goes on in the same container, and not in one that is gone.

use serde::Deserialize as _;
use serde_json::{Map, Value};
use toolpost_core::Timestamp;

use crate::Request;
use crate::fields::{Fields, Members};

/// The member of a request and of an answer.
const CONTAINER: &str = "container";

/// A container that is over this soon is not named any more: the request must reach it before its end. In microseconds.
const MARGIN_MICROS: u64 = 5_000_000;

/// What later requests carry on from an answer.
pub(super) fn carry(message: &Fields) -> Map<String, Value> {
    let container: Option<Members<'_>> = message.read(CONTAINER);
    let Some(container) = container else { return Map::new() };
    let Some(id) = container.read::<String>("id") else { return Map::new() };
    let mut kept = Map::new();
    kept.insert("id".to_owned(), id.into());
    if let Some(end) = container.read::<String>("expires_at") {
        kept.insert("expires_at".to_owned(), end.into());
    }
    Map::from_iter([(CONTAINER.to_owned(), kept.into())])
}

/// What a request says of the container.
#[derive(Debug, PartialEq)]
pub(super) enum Container<'a> {
    /// Nothing: there is none, or the caller's own options name one.
    Unsaid,
    /// The one of the conversation.
    Named(&'a str),
    /// The one of the conversation has ended.
    Ended { id: &'a str, at: &'a str },
}

/// Which container a request goes on in at this time.
pub(super) fn of_request<'a>(request: &'a Request, provider: &str, now: Timestamp) -> Container<'a> {
    let has_own = match request.provider_options.get(CONTAINER) {
        None => false,
        Some(Value::Object(own)) => own.get("id").is_some_and(|id| !id.is_null()),
        Some(_) => true,
    };
    let Some(carried) = request.provider_state(provider, CONTAINER).filter(|_| !has_own) else {
        return Container::Unsaid;
    };
    let Some(id) = carried["id"].as_str() else { return Container::Unsaid };
    // A time that cannot be read is left to the provider.
    match carried["expires_at"].as_str() {
        Some(at)
            if Timestamp::deserialize(&carried["expires_at"])
                .is_ok_and(|end| end.as_micros() <= now.as_micros().saturating_add(MARGIN_MICROS)) =>
        {
            Container::Ended { id, at }
        }
        _ => Container::Named(id),
    }
}

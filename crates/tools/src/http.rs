//! HTTP requests to permitted addresses.

mod request;
mod secrets;
mod session;
mod settings;

pub use self::request::{HttpResponse, http_request};
pub(crate) use self::secrets::without_credentials;
pub(crate) use self::session::{OutgoingRequest, Session};
pub use self::settings::HttpSettings;

//! The registered resources and prompts of a toolbox.

use std::sync::Arc;

use toolpost_core::{Prompt, PromptSpec, Resource, ResourceSpec};

/// The registered resources and prompts, each with the key of its tool in the registry.
#[derive(Default)]
pub(crate) struct Offers {
    pub(crate) resources: Vec<(Arc<ResourceSpec>, Arc<str>)>,
    pub(crate) prompts: Vec<(Arc<PromptSpec>, Arc<str>)>,
}

/// A resource or a prompt to register.
pub(crate) enum Offer {
    Resource(Arc<dyn Resource>),
    Prompt(Arc<dyn Prompt>),
}

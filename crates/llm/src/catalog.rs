//! What is known of models.

use crate::ModelId;

/// What is known of a model. What is not known is allowed: the provider then has the word.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The model.
    pub id: ModelId,
}

impl ModelInfo {
    /// What is known of a model.
    pub fn find(id: &ModelId) -> Self {
        Self { id: id.clone() }
    }
}

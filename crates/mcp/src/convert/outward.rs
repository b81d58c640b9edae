//! Tools, outputs, errors, resources and prompts, as clients read them.

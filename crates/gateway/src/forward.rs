//! The macro that forwards methods of a source to another source.

/// Implements methods of [`ToolSource`](toolpost_core::ToolSource) with the same methods of another source.
macro_rules! forward {
    ($self:ident => $source:expr; $($method:ident),+) => { $(forward!(@$method $self => $source);)+ };
    (@name $self:ident => $source:expr) => {
        fn name(&$self) -> &str {
            $source.name()
        }
    };
    (@list $self:ident => $source:expr) => {
        forward!(@specs list $self => $source, ToolSpec);
    };
    (@resources $self:ident => $source:expr) => {
        forward!(@specs resources $self => $source, ResourceSpec);
    };
    (@prompts $self:ident => $source:expr) => {
        forward!(@specs prompts $self => $source, PromptSpec);
    };
    (@specs $method:ident $self:ident => $source:expr, $spec:ident) => {
        fn $method(&$self) -> toolpost_core::BoxFuture<'_, $crate::Specs<toolpost_core::$spec>> {
            $source.$method()
        }
    };
    (@generation $self:ident => $source:expr) => {
        fn generation(&$self) -> u64 {
            $source.generation()
        }
    };
    (@call $self:ident => $source:expr) => {
        fn call(&$self, call: toolpost_core::Call) -> toolpost_core::BoxFuture<'_, toolpost_core::Reply> {
            $source.call(call)
        }
    };
    (@read $self:ident => $source:expr) => {
        forward!(@output read $self => $source);
    };
    (@render $self:ident => $source:expr) => {
        forward!(@output render $self => $source);
    };
    (@output $method:ident $self:ident => $source:expr) => {
        fn $method(
            &$self,
            call: toolpost_core::Call,
        ) -> toolpost_core::BoxFuture<'_, Result<toolpost_core::Output, toolpost_core::ToolError>> {
            $source.$method(call)
        }
    };
    (@viewer $self:ident => $source:expr) => {
        fn viewer(&$self) -> Option<&toolpost_core::Caller> {
            $source.viewer()
        }
    };
    (@health $self:ident => $source:expr) => {
        fn health(&$self) -> toolpost_core::BoxFuture<'_, Result<(), toolpost_core::ToolError>> {
            $source.health()
        }
    };
    (@status $self:ident => $source:expr) => {
        fn status(&$self) -> Vec<toolpost_core::SourceStatus> {
            $source.status()
        }
    };
}

//! Values that the application injects into tools.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::Value;

use crate::ToolError;

/// A parameter that the application fills. It is not in the schema, and no argument can set it.
///
/// It dereferences to the value.
pub struct Inject<T>(Arc<T>);

impl<T> Inject<T> {
    /// Wraps a value, for tests that call a tool function directly.
    pub fn new(value: impl Into<Arc<T>>) -> Self {
        Self(value.into())
    }
}

impl<T> Deref for Inject<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Clone for Inject<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Inject<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inject<{}>", type_name::<T>())
    }
}

/// Injected values by type and by name. Empty values allocate nothing; clones share until one changes.
#[derive(Clone, Default)]
pub struct Values(Option<Arc<Inner>>);

#[derive(Clone, Default)]
struct Inner {
    by_type: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
    by_name: HashMap<String, Value>,
}

impl Values {
    fn change(&mut self) -> &mut Inner {
        Arc::make_mut(self.0.get_or_insert_default())
    }

    /// Adds a value by its type, replacing one of the same type.
    pub fn provide<T: Send + Sync + 'static>(&mut self, value: T) {
        self.change().by_type.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// Adds a shared value by its type.
    pub fn provide_shared<T: Send + Sync + 'static>(&mut self, value: Arc<T>) {
        self.change().by_type.insert(TypeId::of::<T>(), value);
    }

    /// Adds a value by name, replacing one of the same name.
    pub fn provide_named(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.change().by_name.insert(name.into(), value.into());
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The value of a type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.as_ref()?.by_type.get(&TypeId::of::<T>())?).downcast().ok()
    }

    /// The value with a name.
    pub fn get_named(&self, name: &str) -> Option<&Value> {
        self.0.as_ref()?.by_name.get(name)
    }
}

impl fmt::Debug for Values {
    /// Prints names only: values may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.0.as_deref();
        let mut names: Vec<&str> =
            inner.iter().flat_map(|inner| inner.by_name.keys().map(String::as_str)).collect();
        names.sort_unstable();
        f.debug_struct("Values")
            .field("types", &inner.map_or(0, |inner| inner.by_type.len()))
            .field("names", &names)
            .finish()
    }
}

/// The error for a missing injected value.
pub(crate) fn not_provided(what: &str, how: &str) -> ToolError {
    ToolError::precondition(format!("the tool needs {what}, which the application does not provide"))
        .suggest(format!("Provide it with `{how}` on the toolbox or on the call."))
}

/// Finds a value by type, in order of the sources.
pub(crate) fn find<T: Send + Sync + 'static>(sources: [&Values; 2]) -> Result<Inject<T>, ToolError> {
    sources
        .into_iter()
        .find_map(Values::get::<T>)
        .map(Inject)
        .ok_or_else(|| not_provided(&format!("a value of type `{}`", type_name::<T>()), "provide(value)"))
}

//! Transfer of a typed value from a conversation.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;
use toolpost::__private::{ToolParameter, input_schema};
use toolpost::{Ctx, IntoTool, Schema, Tool, ToolError, ToolSpec, check_tool_name, typed_tool_fn};

/// Transfers a typed value from a conversation: the model calls [`DataTransferTool::tool`], the application
/// [`DataTransferTool::get`]. Clones share the value, and each transfer replaces it.
///
/// ```
/// # extern crate toolpost_core as toolpost;
/// use toolpost::data;
/// use toolpost_tools::DataTransferTool;
///
/// #[data]
/// #[derive(Clone)]
/// struct Invoice {
///     /// Customer.
///     customer: String,
///     /// Amount in cents.
///     cents: u64,
/// }
///
/// # fn main() -> Result<(), toolpost::ToolError> {
/// let invoice = DataTransferTool::<Invoice>::new("transfer_invoice", "Hand over the invoice that you have found.")?;
/// let tool = invoice.tool(); // goes into a toolbox
/// assert!(invoice.get().is_none());
/// # let _ = tool;
/// # Ok(()) }
/// ```
pub struct DataTransferTool<T> {
    name: Arc<str>,
    description: Arc<str>,
    value: Arc<Mutex<Option<T>>>,
}

impl<T> Clone for DataTransferTool<T> {
    fn clone(&self) -> Self {
        Self {
            name: Arc::clone(&self.name),
            description: Arc::clone(&self.description),
            value: Arc::clone(&self.value),
        }
    }
}

impl<T> fmt::Debug for DataTransferTool<T> {
    /// Omits the value, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataTransferTool").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<T: ToolParameter + Clone + Send + 'static> DataTransferTool<T> {
    /// Creates a transfer without a value. The fields of the type are the parameters of the tool.
    ///
    /// # Errors
    /// `INVALID_INPUT` for an invalid tool name.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> Result<Self, ToolError> {
        let name = name.into();
        check_tool_name(&name).map_err(ToolError::invalid_input)?;
        Ok(Self { name: name.into(), description: description.into().into(), value: Arc::default() })
    }

    /// The tool for the model. An invalid value is rejected, and the previous one stays.
    pub fn tool(&self) -> Arc<dyn Tool> {
        let transfer = self.clone();
        let spec = ToolSpec::new(&*self.name, &*self.description);
        typed_tool_fn(spec, move |value: T, _ctx: Ctx| {
            let replaced = transfer.lock().replace(value).is_some();
            let text = if replaced { "Transferred, replacing the earlier value." } else { "Transferred." };
            async move { Ok::<_, ToolError>(text.to_owned()) }
        })
        .into_tool()
    }

    /// The latest value.
    pub fn get(&self) -> Option<T> {
        self.lock().clone()
    }

    /// Takes the latest value out.
    pub fn take(&self) -> Option<T> {
        self.lock().take()
    }

    /// Whether there is a value.
    pub fn has_data(&self) -> bool {
        self.lock().is_some()
    }

    /// Removes the value.
    pub fn clear(&self) {
        *self.lock() = None;
    }

    /// The JSON Schema of the type.
    pub fn schema(&self) -> Arc<Schema> {
        input_schema::<T>()
    }

    /// The latest value as JSON; null if there is none.
    ///
    /// # Errors
    /// `INTERNAL` if JSON cannot represent the value.
    pub fn to_json(&self) -> Result<Value, ToolError>
    where
        T: Serialize,
    {
        Ok(serde_json::to_value(&*self.lock())?)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<T>> {
        // A panic cannot leave the value half changed.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! A typed value out of a conversation.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;
use toolpost::__private::{ToolParameter, input_schema};
use toolpost::{Ctx, IntoTool, Schema, Tool, ToolError, ToolSpec, check_tool_name, typed_tool_fn};

/// Takes a typed value out of a conversation: the model calls [`DataTransferTool::tool`], the application
/// [`DataTransferTool::get`]. Clones share the value; the latest one counts.
///
/// ```
/// # extern crate toolpost_core as toolpost;
/// use toolpost::data;
/// use toolpost_tools::DataTransferTool;
///
/// #[data]
/// #[derive(Clone)]
/// struct Invoice {
///     /// Who is to pay.
///     customer: String,
///     /// How much, in cents.
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
    held: Arc<Mutex<Held<T>>>,
}

struct Held<T> {
    value: Option<T>,
    transfers: u64,
}

impl<T> Clone for DataTransferTool<T> {
    fn clone(&self) -> Self {
        Self {
            name: Arc::clone(&self.name),
            description: Arc::clone(&self.description),
            held: Arc::clone(&self.held),
        }
    }
}

impl<T> fmt::Debug for DataTransferTool<T> {
    /// Without the value, which may be anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataTransferTool").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<T: ToolParameter + Clone + Send + 'static> DataTransferTool<T> {
    /// Nothing has been handed over yet. The fields of the type are the parameters of the tool.
    ///
    /// # Errors
    /// `INVALID_INPUT` if no tool can have the name.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> Result<Self, ToolError> {
        let name = name.into();
        check_tool_name(&name).map_err(ToolError::invalid_input)?;
        Ok(Self {
            name: name.into(),
            description: description.into().into(),
            held: Arc::new(Mutex::new(Held { value: None, transfers: 0 })),
        })
    }

    /// The tool for the model. What does not fit the type is refused, and says where; what was held stays.
    pub fn tool(&self) -> Arc<dyn Tool> {
        let held = Arc::clone(&self.held);
        let spec = ToolSpec::new(&*self.name, &*self.description);
        typed_tool_fn(spec, move |value: T, _ctx: Ctx| {
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            let replaced = held.value.replace(value).is_some();
            held.transfers = held.transfers.saturating_add(1);
            let text = if replaced { "Handed over, in place of the earlier one." } else { "Handed over." };
            async move { Ok::<_, ToolError>(text.to_owned()) }
        })
        .into_tool()
    }

    /// What was handed over last.
    pub fn get(&self) -> Option<T> {
        self.lock().value.clone()
    }

    /// The same, and nothing is held any more.
    pub fn take(&self) -> Option<T> {
        self.lock().value.take()
    }

    /// Whether something was handed over.
    pub fn has_data(&self) -> bool {
        self.lock().value.is_some()
    }

    /// Forgets what was handed over.
    pub fn clear(&self) {
        self.lock().value = None;
    }

    /// How often something was handed over, whatever became of it.
    pub fn transfers(&self) -> u64 {
        self.lock().transfers
    }

    /// What the model sees of the type.
    pub fn schema(&self) -> Arc<Schema> {
        input_schema::<T>()
    }

    /// What was handed over last, as JSON; null if nothing was.
    ///
    /// # Errors
    /// `INTERNAL` if the type has no form in JSON.
    pub fn to_json(&self) -> Result<Value, ToolError>
    where
        T: Serialize,
    {
        Ok(serde_json::to_value(&self.lock().value)?)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held<T>> {
        // Nothing is half done behind this lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

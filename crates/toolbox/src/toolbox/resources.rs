//! The resources and prompts of a toolbox: tools that are called by URI or prompt name, never by a model.

use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_core::{
    Call, CallError, Caller, Output, Prompt, PromptSpec, Resource, ResourceSpec, SpecError, Tool, ToolError,
    did_you_mean,
};

use super::Toolbox;
use crate::offers::Offer;
use crate::registry::Entry;
use crate::shared::in_time;

impl Toolbox {
    /// Adds a resource.
    ///
    /// # Errors
    /// The resource is invalid, or another one has its URI pattern.
    pub fn add_resource(&self, resource: impl Resource + 'static) -> Result<(), SpecError> {
        self.offer(Offer::Resource(Arc::new(resource)))
    }

    /// Adds a prompt.
    ///
    /// # Errors
    /// The prompt is invalid, or another one has its name.
    pub fn add_prompt(&self, prompt: impl Prompt + 'static) -> Result<(), SpecError> {
        self.offer(Offer::Prompt(Arc::new(prompt)))
    }

    /// Registers the tool of a resource or prompt under a key that no tool can have as its name.
    pub(crate) fn offer(&self, offer: Offer) -> Result<(), SpecError> {
        let source = Arc::clone(&self.0.config.name);
        let hide = |kind: &str, name: &str, tool: Arc<dyn Tool>| {
            let key: Arc<str> = format!("{kind}:{name}").into();
            self.0.registry_mut().insert_hidden(Arc::clone(&key), Entry::local(tool, source))?;
            Ok(key)
        };
        match offer {
            Offer::Resource(resource) => {
                let spec = resource.resource_spec()?;
                let key = hide("resource", spec.uri_pattern.as_str(), resource)?;
                self.0.offers_mut().resources.push((Arc::new(spec), key));
            }
            Offer::Prompt(prompt) => {
                let spec = prompt.prompt_spec();
                let key = hide("prompt", &spec.name, prompt)?;
                self.0.offers_mut().prompts.push((Arc::new(spec), key));
            }
        }
        Ok(())
    }

    /// All resources, including those of its sources. A source that fails to list is omitted.
    pub async fn resources(&self) -> Vec<Arc<ResourceSpec>> {
        self.resources_for(None).await
    }

    /// The own definitions, and those that the sources show to a caller.
    pub(crate) async fn resources_for(&self, caller: Option<&Caller>) -> Vec<Arc<ResourceSpec>> {
        let mut specs: Vec<_> = self.0.offers().resources.iter().map(|(spec, _)| Arc::clone(spec)).collect();
        for source in self.0.sources_for(caller) {
            specs.extend(in_time(&*source, source.resources()).await.unwrap_or_default());
        }
        specs
    }

    /// All prompts, including those of its sources. A source that fails to list is omitted.
    pub async fn prompts(&self) -> Vec<Arc<PromptSpec>> {
        self.prompts_for(None).await
    }

    /// The own definitions, and those that the sources show to a caller.
    pub(crate) async fn prompts_for(&self, caller: Option<&Caller>) -> Vec<Arc<PromptSpec>> {
        let mut specs: Vec<_> = self.0.offers().prompts.iter().map(|(spec, _)| Arc::clone(spec)).collect();
        for source in self.0.sources_for(caller) {
            specs.extend(in_time(&*source, source.prompts()).await.unwrap_or_default());
        }
        specs
    }

    /// Reads a resource. The read takes the call path: it is checked, limited and recorded. The first matching
    /// pattern counts, own resources before those of sources.
    ///
    /// # Errors
    /// `NOT_FOUND` if no resource matches the URI; those of the resource.
    pub async fn read_resource(&self, uri: &str) -> Result<Output, CallError> {
        Ok(self.read(Call::new(uri, Value::Null)).await?)
    }

    /// Reads a resource for the caller in the call; see [`ToolSource::read`].
    pub(crate) async fn read(&self, mut call: Call) -> Result<Output, ToolError> {
        let sources = self.0.sources_for(Some(&call.caller));
        let uri = std::mem::take(&mut call.tool);
        let uri = uri.as_str();
        let own = self
            .0
            .offers()
            .resources
            .iter()
            .find_map(|(spec, key)| Some((Arc::clone(key), spec.uri_pattern.matches(uri)?)));
        if let Some((key, parameters)) = own {
            call.arguments = self.typed(&key, parameters).into();
            call.tool = key.to_string();
            return self.call(call).await.result;
        }
        for source in sources {
            let specs = in_time(&*source, source.resources()).await.unwrap_or_default();
            if specs.iter().any(|spec| spec.uri_pattern.matches(uri).is_some()) {
                uri.clone_into(&mut call.tool);
                return source.read(call).await;
            }
        }
        let shown: String = uri.chars().take(200).collect();
        Err(ToolError::not_found(format!("unknown resource `{shown}`")))
    }

    /// Renders a prompt. The rendering takes the call path: it is checked, limited and recorded. Own prompts have
    /// precedence over those of sources.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown prompt; those of the prompt.
    pub async fn render_prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Output, ToolError> {
        self.render(Call::new(name, Value::Object(arguments.clone()))).await
    }

    /// Renders a prompt for the caller in the call; see [`ToolSource::render`].
    pub(crate) async fn render(&self, mut call: Call) -> Result<Output, ToolError> {
        let sources = self.0.sources_for(Some(&call.caller));
        let name = std::mem::take(&mut call.tool);
        let name = name.as_str();
        let own = self
            .0
            .offers()
            .prompts
            .iter()
            .find(|(spec, _)| spec.name == name)
            .map(|(_, key)| Arc::clone(key));
        if let Some(key) = own {
            // MCP has texts alone.
            if let Value::Object(arguments) = &*call.arguments {
                call.arguments = self.typed(&key, arguments.clone()).into();
            }
            call.tool = key.to_string();
            return self.call(call).await.result;
        }
        let mut known: Vec<String> =
            self.0.offers().prompts.iter().map(|(spec, _)| spec.name.clone()).collect();
        for source in sources {
            let specs = in_time(&*source, source.prompts()).await.unwrap_or_default();
            if specs.iter().any(|spec| spec.name == name) {
                name.clone_into(&mut call.tool);
                return source.render(call).await;
            }
            known.extend(specs.iter().map(|spec| spec.name.clone()));
        }
        let shown: String = name.chars().take(80).collect();
        Err(ToolError::not_found(format!("unknown prompt `{shown}`"))
            .suggest_maybe(did_you_mean(name, known.iter().map(String::as_str))))
    }

    /// Parses the texts of parameters as JSON if the function expects no text.
    fn typed(&self, key: &str, mut parameters: Map<String, Value>) -> Value {
        let entry = self.0.registry().get(key);
        let properties =
            entry.as_ref().and_then(|entry| entry.spec.input_schema.as_value().get("properties"));
        for (name, value) in &mut parameters {
            let kind = properties.and_then(|properties| properties.get(name)?.get("type"));
            let is_text = kind.is_none_or(|kind| match kind {
                Value::Array(kinds) => kinds.iter().any(|kind| kind == "string"),
                kind => kind == "string",
            });
            if let (false, Some(read)) = (is_text, value.as_str().and_then(|text| text.parse::<Value>().ok()))
            {
                *value = read;
            }
        }
        Value::Object(parameters)
    }
}

//! Generates servers: tools, resources and prompts with every member of the protocol, and their results.

use serde_json::{Map, Value, json};

/// A small generator of pseudorandom numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    fn text(&mut self) -> String {
        let words =
            ["plain", "ünïcode 😀", "two\nlines", "\"quoted\"", "a | b", "<p>markup</p>", "{\"json\": 1}"];
        let word = words[usize::try_from(self.below(words.len() as u64)).unwrap()];
        format!("{word} {}", self.below(1000))
    }
}

/// A server and its answers.
pub(super) struct Server {
    pub(super) tools: Vec<Value>,
    pub(super) resources: Vec<Value>,
    pub(super) templates: Vec<Value>,
    pub(super) prompts: Vec<Value>,
    /// The results of tools, prompts and reads, by name or URI.
    results: Map<String, Value>,
}

impl Server {
    pub(super) fn generated(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xABCD);
        let mut server = Self {
            tools: Vec::new(),
            resources: Vec::new(),
            templates: Vec::new(),
            prompts: Vec::new(),
            results: Map::new(),
        };
        for index in 0..6 {
            let uri = if index < 2 { format!("ui://view/{index}") } else { format!("docs://{index}/a.txt") };
            server.results.insert(uri.clone(), random.contents(&uri));
            server.resources.push(random.listed("uri", &uri, &format!("resource-{index}")));
        }
        for (index, uri) in ["docs://{id}/b", "files:///{+path}", "search://x{?q,lang}"].iter().enumerate() {
            server.templates.push(random.listed("uriTemplate", uri, &format!("template-{index}")));
        }
        for index in 0..8 {
            let name = format!("tool_{index}");
            server.tools.push(random.tool(&name, index));
            server.results.insert(name, random.result());
        }
        for index in 0..4 {
            let name = format!("prompt-{index}");
            server.prompts.push(random.prompt(&name));
            server.results.insert(name, random.messages());
        }
        server
    }

    /// The result of a request.
    pub(super) fn result(&self, method: &str, params: &Value) -> Option<Value> {
        Some(match method {
            "initialize" => json!({
                "protocolVersion": "2025-06-18",
                "capabilities": { "tools": {}, "resources": {}, "prompts": {} },
                "serverInfo": { "name": "generated", "version": "1" },
            }),
            "ping" => json!({}),
            "tools/list" => json!({ "tools": self.tools }),
            "resources/list" => json!({ "resources": self.resources }),
            "resources/templates/list" => json!({ "resourceTemplates": self.templates }),
            "prompts/list" => json!({ "prompts": self.prompts }),
            "tools/call" | "prompts/get" => self.results.get(params["name"].as_str()?)?.clone(),
            "resources/read" => self.results.get(params["uri"].as_str()?)?.clone(),
            _ => return None,
        })
    }

    /// A request for each tool, resource and prompt.
    pub(super) fn requests(&self) -> Vec<(&'static str, Value)> {
        let calls =
            self.tools.iter().map(|tool| ("tools/call", json!({ "name": tool["name"], "arguments": {} })));
        let reads =
            self.resources.iter().map(|resource| ("resources/read", json!({ "uri": resource["uri"] })));
        let prompts = self.prompts.iter().map(|prompt| ("prompts/get", json!({ "name": prompt["name"] })));
        calls.chain(reads).chain(prompts).collect()
    }
}

impl Random {
    fn meta(&mut self) -> Value {
        json!({
            "ex.com/trace": self.text(), "plain": { "n": self.below(9), "list": [1, null, "x"] },
            "ui": { "csp": { "connectDomains": ["https://a.example"] }, "n": self.below(9) },
        })
    }

    fn annotations(&mut self) -> Value {
        let mut annotations = json!({});
        if self.chance(2) {
            annotations["audience"] =
                [json!(["user"]), json!(["assistant", "user"])][usize::from(self.chance(2))].clone();
        }
        if self.chance(2) {
            annotations["priority"] =
                [json!(0.5), json!(0.1), json!(1.0)][usize::try_from(self.below(3)).unwrap()].clone();
        }
        annotations["lastModified"] = "2026-01-12T15:00:58Z".into();
        annotations
    }

    fn icons(&mut self) -> Value {
        json!([{ "src": format!("https://a.example/{}.png", self.below(9)), "mimeType": "image/png", "sizes": ["48x48"] }])
    }

    /// A resource, a template, or a link.
    fn listed(&mut self, key: &str, uri: &str, name: &str) -> Value {
        let mut item = json!({ (key): uri, "name": name });
        if self.chance(2) {
            item["title"] = format!("Title {}", self.text()).into();
        }
        if !self.chance(3) {
            item["description"] = self.text().into();
        }
        if self.chance(2) {
            item["mimeType"] = "text/plain".into();
        }
        if key == "uri" && self.chance(2) {
            item["size"] = self.below(1 << 40).into();
        }
        if self.chance(2) {
            item["icons"] = self.icons();
        }
        self.add_details(&mut item);
        item
    }

    fn add_details(&mut self, item: &mut Value) {
        if self.chance(2) {
            item["annotations"] = self.annotations();
        }
        if self.chance(2) {
            item["_meta"] = self.meta();
        }
    }

    fn tool(&mut self, name: &str, index: u64) -> Value {
        let mut tool = json!({
            "name": name, "description": self.text(),
            "inputSchema": { "type": "object", "properties": { "city": { "type": "string", "description": self.text() } } },
        });
        if self.chance(2) {
            tool["title"] = format!("Tool {}", self.text()).into();
        }
        if self.chance(2) {
            let hints = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];
            for hint in hints {
                // A destructive tool needs an approval.
                if self.chance(2) {
                    tool["annotations"][hint] = (hint != "destructiveHint" && self.chance(2)).into();
                }
            }
            if self.chance(3) {
                tool["annotations"]["title"] = self.text().into();
            }
        }
        if self.chance(2) {
            tool["icons"] = self.icons();
        }
        if index < 2 {
            tool["_meta"] = json!({ "ui": { "resourceUri": format!("ui://view/{index}"), "visibility": ["model"] }, "ex.com/c": 3 });
        } else if self.chance(2) {
            tool["_meta"] = self.meta();
        }
        tool
    }

    fn prompt(&mut self, name: &str) -> Value {
        let mut prompt = json!({ "name": name });
        if self.chance(2) {
            prompt["title"] = self.text().into();
        }
        if !self.chance(4) {
            prompt["description"] = self.text().into();
        }
        if self.chance(2) {
            let mut argument = json!({ "name": "city", "required": false });
            for key in ["title", "description"] {
                if self.chance(2) {
                    argument[key] = self.text().into();
                }
            }
            prompt["arguments"] =
                json!([argument, { "name": "day", "description": "The day.", "required": false }]);
        }
        if self.chance(2) {
            prompt["icons"] = self.icons();
        }
        if self.chance(2) {
            prompt["_meta"] = self.meta();
        }
        prompt
    }

    /// Contents of a resource: a text or bytes.
    fn resource(&mut self, uri: &str) -> Value {
        let mut resource = json!({ "uri": uri });
        let kinds = ["application/pdf", "image/png", "audio/wav", "text/html", "application/octet-stream"];
        match self.below(8) {
            0 | 1 => resource["text"] = self.text().into(),
            kind => {
                if kind < 7 {
                    resource["mimeType"] = kinds[usize::try_from(kind - 2).unwrap()].into();
                }
                let payload = if kind == 5 { "text" } else { "blob" };
                let bytes = ["JVBERg==", "iVBORw0KGgo=", "AQIDBA=="];
                resource[payload] = match payload {
                    "text" => "<p>view</p>".into(),
                    _ => bytes[usize::try_from(self.below(3)).unwrap()].into(),
                };
            }
        }
        if self.chance(2) {
            resource["_meta"] = self.meta();
        }
        resource
    }

    fn block(&mut self) -> Value {
        let mut block = match self.below(6) {
            0 | 1 => json!({ "type": "text", "text": self.text() }),
            2 => json!({ "type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png" }),
            3 => json!({ "type": "audio", "data": "UklGRg==", "mimeType": "audio/wav" }),
            4 => {
                let uri = format!("reports://{}", self.below(9));
                let mut link = self.listed("uri", &uri, "quarterly");
                link["type"] = "resource_link".into();
                return link;
            }
            _ => {
                let uris = ["other://a.bin", "ui://view/0", "docs://3/a.txt"];
                let uri = uris[usize::try_from(self.below(3)).unwrap()];
                json!({ "type": "resource", "resource": self.resource(uri) })
            }
        };
        self.add_details(&mut block);
        block
    }

    /// The result of a call.
    fn result(&mut self) -> Value {
        let blocks: Vec<Value> = (0..=self.below(4)).map(|_| self.block()).collect();
        let mut result = json!({ "content": blocks });
        if self.chance(2) {
            result["structuredContent"] = json!({ "n": self.below(9), "text": self.text() });
        }
        if self.chance(4) {
            // A failed result needs a text.
            result["content"].as_array_mut().unwrap().push(json!({ "type": "text", "text": "It failed." }));
            result["isError"] = true.into();
        }
        if self.chance(2) {
            result["_meta"] = self.meta();
        }
        result
    }

    /// The contents of a resource.
    fn contents(&mut self, uri: &str) -> Value {
        let mut result = json!({ "contents": [self.resource(uri)] });
        if self.chance(2) {
            let other = self.resource("docs://5/a.txt");
            result["contents"].as_array_mut().unwrap().push(other);
        }
        if self.chance(2) {
            result["_meta"] = self.meta();
        }
        result
    }

    /// A rendered prompt.
    fn messages(&mut self) -> Value {
        let message = |random: &mut Self| {
            let mut content = random.block();
            // The messages of a prompt are not put under the namespace.
            if let Some(resource) = content.get_mut("resource") {
                resource["uri"] = "other://a.bin".into();
            }
            let role = if random.chance(2) { "user" } else { "assistant" };
            json!({ "role": role, "content": content })
        };
        let messages: Vec<Value> = (0..=self.below(3)).map(|_| message(self)).collect();
        let mut result = json!({ "messages": messages });
        if self.chance(2) {
            result["description"] = self.text().into();
        }
        if self.chance(2) {
            result["_meta"] = self.meta();
        }
        result
    }
}

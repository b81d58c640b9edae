//! Reads how the call of a step is made: where, within which limits, and from which cache.

use std::sync::Arc;

use serde_json::json;
use toolpost_core::Rate;

use super::node::{Content, Node};
use super::read::{Members, Reader};
use super::types::{CacheSettings, CallSettings, LimitSettings};
use crate::template::Template;

/// The maximum length of the name of a pool.
const MAX_NAME: usize = 60;
/// The maximum number of calls at once that a limit names.
const MAX_CALLS: usize = 1_000_000;

impl Reader {
    /// Reads the members of a step that are for its call.
    pub(super) fn call_settings(&mut self, members: &mut Members<'_>, path: &str) -> CallSettings {
        let at = members.at;
        let is_call = ["tool", "code", "command"].iter().any(|action| members.has(action));
        let heartbeat =
            members.take("heartbeat").and_then(|(_, node)| self.duration(node, path, "heartbeat"));
        let pool = members.take("pool").and_then(|(_, node)| self.pool(node, path));
        let limit = members.take("limit").and_then(|(_, node)| self.limit(node, path));
        let cache = members.take("cache").and_then(|(_, node)| self.cache(node, path));
        let settings = CallSettings { pool, limit, heartbeat, cache };
        if !is_call && !settings.is_empty() {
            let message =
                "`pool`, `limit`, `heartbeat` and `cache` are for calls: give them to the steps within";
            self.problem(at, path, message);
        }
        settings
    }

    fn pool(&mut self, node: &Node, path: &str) -> Option<Arc<str>> {
        let name = self.text(node, path, "pool")?;
        let is_name = !name.is_empty()
            && name.len() <= MAX_NAME
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_');
        if !is_name {
            self.problem(node.at, path, "the name of a `pool` has letters, digits, `-` and `_`, at most 60");
        }
        is_name.then(|| name.into())
    }

    fn limit(&mut self, node: &Node, path: &str) -> Option<LimitSettings> {
        let mut members = self.members(node, path, "`limit`")?;
        let key = members.take("key").and_then(|(_, node)| self.template(node, path, "key"));
        let concurrency = members
            .take("concurrency")
            .and_then(|(_, node)| self.count(node, path, "concurrency", MAX_CALLS));
        let rate = members.take("rate").and_then(|(at, node)| {
            let text = self.text(node, path, "rate")?;
            text.parse::<Rate>().map_err(|message| self.problem(at, path, message)).ok()
        });
        self.finish(members, path, "`limit`");
        if concurrency.is_none() && rate.is_none() {
            self.problem(node.at, path, "`limit` has `concurrency`, such as 2, or `rate`, such as 10/m");
        }
        Some(LimitSettings { step: path.into(), key, concurrency, rate })
    }

    fn cache(&mut self, node: &Node, path: &str) -> Option<CacheSettings> {
        let no_files = Template::Constant(Arc::new(json!([])));
        if !matches!(node.content, Content::Map(_)) {
            return Some(CacheSettings { ttl: self.duration(node, path, "cache")?, files: no_files });
        }
        let mut members = self.members(node, path, "`cache`")?;
        let Some((_, ttl)) = members.take("ttl") else {
            self.problem(node.at, path, "`cache` has `ttl`, the time for which an output is kept");
            return None;
        };
        let ttl = self.duration(ttl, path, "ttl");
        let files = match members.take("files") {
            Some((_, node)) => self.template(node, path, "files"),
            None => Some(no_files),
        };
        self.finish(members, path, "`cache`");
        Some(CacheSettings { ttl: ttl?, files: files? })
    }
}

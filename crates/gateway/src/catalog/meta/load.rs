//! `load_tools`, `load_tool_group`, `unload_tools` and `unload_tool_group`.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolpost_core::{IntoTool, Output, Tool, tool_fn};

use super::{
    MAX_NAME, Session, add_budget, is_meta_tool, names_schema, object, spec, text_schema, truncated,
};
use crate::catalog::{Search, Unloaded};

/// The maximum number of unknown names with suggestions.
const MAX_SUGGESTED: usize = 20;

pub(super) fn tools() -> Arc<dyn Tool> {
    let description = "Load tools by name, so that you can call them from your next answer on. \
        Load all tools that you need in one call; loaded tools stay.";
    let schema = names_schema("The names of the tools to load.");
    tool_fn(spec("load_tools", description, &["meta", "loading"], schema), async |args, ctx| {
        let session: Session = ctx.inject()?;
        let names: Vec<String> = args.decode("tool_names")?;
        Ok(answer(load(&session, &names, true)))
    })
    .into_tool()
}

pub(super) fn group() -> Arc<dyn Tool> {
    let description = "Load all tools of a group and its subgroups in one call, up to the limits. \
        The group `crm` includes `crm.contacts`.";
    let schema = text_schema("group", "The group to load.");
    tool_fn(spec("load_tool_group", description, &["meta", "loading", "group"], schema), async |args, ctx| {
        let session: Session = ctx.inject()?;
        let group: String = args.decode("group")?;
        let found = session.catalog().search(&Search::all().group(&group).limit(usize::MAX));
        let names: Vec<String> = found.names().into_iter().map(str::to_owned).collect();
        let mut body = object([("group", truncated(&group, MAX_NAME).into())]);
        body.extend(load(&session, &names, false));
        Ok(answer(body))
    })
    .into_tool()
}

pub(super) fn unload_tools() -> Arc<dyn Tool> {
    let description = "Unload tools that you no longer need, to make room for others. \
        Core tools and tools for loading cannot be unloaded.";
    let schema = names_schema("The names of the tools to unload.");
    tool_fn(spec("unload_tools", description, &["meta", "unloading"], schema), async |args, ctx| {
        let session: Session = ctx.inject()?;
        let names: Vec<String> = args.decode("tool_names")?;
        Ok(answer(unload(&session, &names)))
    })
    .into_tool()
}

pub(super) fn unload_group() -> Arc<dyn Tool> {
    let description = "Unload all tools of a group and its subgroups in one call. \
        Core tools and tools for loading cannot be unloaded.";
    let schema = text_schema("group", "The group to unload.");
    tool_fn(
        spec("unload_tool_group", description, &["meta", "unloading", "group"], schema),
        async |args, ctx| {
            let session: Session = ctx.inject()?;
            let group: String = args.decode("group")?;
            let names = session.catalog().tools_in_group(&group);
            let mut body = object([("group", truncated(&group, MAX_NAME).into())]);
            body.extend(unload(&session, &names));
            Ok(answer(body))
        },
    )
    .into_tool()
}

fn load(dynamic: &Session, names: &[String], with_hint: bool) -> Map<String, Value> {
    let (catalog, session) = (dynamic.catalog(), dynamic.session());
    let mut invalid: Vec<Value> = Vec::new();
    let mut good: Vec<(String, u64)> = Vec::new();
    for name in names {
        let entry = catalog.entry(name).filter(|_| !is_meta_tool(name));
        // The name of the tool, even if an alias was given.
        let own = entry.as_ref().map_or(name.as_str(), |entry| entry.name());
        if session.is_active(own) {
            good.push((own.to_owned(), 0));
        } else if let Some(entry) = &entry {
            match catalog.resolve(own) {
                Ok(_) => {
                    let made = catalog.entry(own);
                    let tokens = made.as_ref().unwrap_or(entry).estimated_tokens();
                    good.push((own.to_owned(), tokens));
                }
                Err(error) => {
                    invalid.push(json!({ "name": own, "error": truncated(error.message(), 200) }));
                }
            }
        } else {
            let shown = truncated(name, MAX_NAME);
            let similar =
                if invalid.len() < MAX_SUGGESTED { catalog.similar_names(name) } else { Vec::new() };
            invalid.push(if similar.is_empty() {
                shown.into()
            } else {
                json!({ "name": shown, "did_you_mean": similar })
            });
        }
    }
    let outcome = session.try_load(good.iter().map(|(name, tokens)| (name.as_str(), *tokens)));
    let hint = with_hint && !(outcome.loaded.is_empty() && outcome.already_active.is_empty());
    let mut body = object([
        ("loaded", outcome.loaded.into()),
        ("already_active", outcome.already_active.into()),
        ("invalid", invalid.into()),
        ("failed_limit", outcome.failed_limit.into()),
        ("active_count", session.budget().active_tool_count.into()),
    ]);
    if hint {
        body.insert(
            "hint".to_owned(),
            "They are loaded: call them now, without searching or loading again.".into(),
        );
    }
    add_budget(&mut body, session);
    body
}

fn unload(dynamic: &Session, names: &[String]) -> Map<String, Value> {
    let session = dynamic.session();
    let own_name = |name: &String| {
        dynamic.catalog().entry(name).map_or_else(|| name.clone(), |entry| entry.name().to_owned())
    };
    let names: Vec<String> = names.iter().map(own_name).collect();
    let Unloaded { unloaded, not_active, refused_protected } =
        session.unload(names.iter().map(String::as_str));
    let not_active: Vec<String> = not_active.iter().map(|name| truncated(name, MAX_NAME)).collect();
    let mut body = object([
        ("unloaded", unloaded.into()),
        ("not_active", not_active.into()),
        ("refused_protected", refused_protected.into()),
        ("active_count", session.budget().active_tool_count.into()),
    ]);
    add_budget(&mut body, session);
    body
}

fn answer(body: Map<String, Value>) -> Output {
    let body = Value::Object(body);
    Output::json(body.clone()).with_payload(body)
}

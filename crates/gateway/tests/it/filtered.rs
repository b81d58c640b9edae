//! Filters.

use std::sync::Arc;

use serde_json::{Map, json};
use toolpost_core::{Alias, Call, Caller, Code, ToolSource};
use toolpost_gateway::{
    Filter, Filtered, Member, MemoryPins, MergeSettings, Merged, Namespaced, Pinned, Pins,
};
use toolpost_toolbox::Toolbox;

use super::upstream::{Lists, Upstream, call, caller, names, spec};

const NONE: [&str; 0] = [];

#[tokio::test]
async fn deny_overrides_allow() {
    let tools = ["read_file", "write_file", "delete_file", "add"];
    for (allow, deny, open) in [
        (&[][..], &[][..], &tools[..]),
        (&["*_file"], &[], &["read_file", "write_file", "delete_file"]),
        (&["*_file"], &["delete_*"], &["read_file", "write_file"]),
        (&["delete_file"], &["delete_*"], &[]),
        (&[], &["*_file"], &["add"]),
        (&["tool:add"], &[], &["add"]),
        (&["prompt:*"], &[], &[]),
        (&["*"], &["prompt:add", "resource:*"], &tools),
        (&["ad?"], &[], &["add"]),
    ] {
        let upstream = Upstream::new("up", &tools);
        let source = Filtered::new(upstream, Filter::parse(allow, deny).unwrap());
        assert_eq!(names(&source).await, open, "{allow:?} {deny:?}");
        for tool in tools {
            let answer = call(&source, tool).await;
            assert_eq!(answer.is_ok(), open.contains(&tool), "{allow:?} {deny:?} {tool}");
            if let Err(error) = answer {
                assert_eq!(error.code(), Code::Permission);
            }
        }
    }
}

#[tokio::test]
async fn a_denial_names_its_rule() {
    let upstream = Upstream::new("up", &["delete_all"]);
    let source = Filtered::new(upstream.clone(), Filter::parse(NONE, ["delete_*"]).unwrap());
    let error = call(&source, "delete_all").await.unwrap_err();
    assert_eq!(error.message(), "the tool `delete_all` is denied by the rule deny = \"delete_*\"");
    // The error does not reveal whether the tool exists.
    let other = call(&source, "delete_none").await.unwrap_err();
    assert_eq!(other.message(), "the tool `delete_none` is denied by the rule deny = \"delete_*\"");
    assert_eq!(upstream.count_calls(), 0);
}

#[tokio::test]
async fn clients_have_their_own_rules() {
    let filter = Filter::parse(["read_*"], ["*_secret"])
        .unwrap()
        .client("admin*", ["*"], NONE)
        .unwrap()
        .client("admin-2", NONE, ["write_*"])
        .unwrap()
        .client("guest", NONE, ["read_mail"])
        .unwrap();
    let tools = ["read_file", "read_mail", "read_secret", "write_file"];
    let source = Filtered::new(Upstream::new("up", &tools), filter);
    for (who, open) in [
        (Caller::new("test"), &["read_file", "read_mail"][..]),
        (caller("nobody"), &["read_file", "read_mail"]),
        (caller("admin"), &["read_file", "read_mail", "write_file"]),
        (caller("admin-2"), &["read_file", "read_mail"]),
        (caller("guest"), &["read_file"]),
    ] {
        let view = source.seen_by(&who).unwrap();
        assert_eq!(names(&*view).await, open, "{who:?}");
        for tool in tools {
            for through in [&source as &dyn ToolSource, &*view] {
                let made = Call::new(tool, json!({})).with_caller(who.clone());
                let answer = through.call(made).await.result;
                assert_eq!(answer.is_ok(), open.contains(&tool), "{who:?} {tool}");
            }
        }
    }
    // The list for all callers has every name that any caller may use.
    assert_eq!(names(&source).await, ["read_file", "read_mail", "write_file"]);
}

#[tokio::test]
async fn without_client_rules_there_are_no_views() {
    let source = Filtered::new(Upstream::new("up", &["a"]), Filter::parse(["a"], NONE).unwrap());
    assert!(source.seen_by(&caller("x")).is_none());
}

#[tokio::test(start_paused = true)]
async fn an_alias_does_not_bypass_the_filter() {
    let mut delete = spec("delete_all", "Delete.");
    delete.aliases.push(Alias::new("tidy"));
    let mut read = spec("read", "Read.");
    read.aliases.push(Alias::new("delete_nothing"));
    read.aliases.push(Alias::new("look"));
    let upstream = Upstream::of("up", vec![delete, read]);
    let source = Filtered::new(upstream.clone(), Filter::parse(NONE, ["delete_*"]).unwrap());
    for (name, good) in
        [("delete_all", false), ("tidy", false), ("delete_nothing", false), ("look", true), ("read", true)]
    {
        assert_eq!(call(&source, name).await.is_ok(), good, "{name}");
    }
    let listed = source.list().await.unwrap();
    let aliases: Vec<&str> = listed[0].aliases.iter().map(|alias| alias.name.as_str()).collect();
    assert_eq!((listed.len(), aliases), (1, vec!["look"]));
    // Without a list, an alias cannot be resolved.
    let fresh = Filtered::new(upstream.clone(), Filter::parse(NONE, ["delete_*"]).unwrap());
    upstream.lists(Lists::Never);
    assert_eq!(call(&fresh, "tidy").await.unwrap_err().code(), Code::Timeout);
    assert_eq!(call(&source, "read").await.unwrap(), "up:read");
}

#[tokio::test]
async fn prompts_and_resources_are_filtered_too() {
    let upstream = Upstream::new("up", &[]);
    upstream.offers(&["notes://{id}", "secret://{id}", "file:///{name}"], &["greet", "curse"]);
    let filter = Filter::parse(NONE, ["prompt:curse", "resource:secret://*", "resource:file:///etc*"]);
    let source = Filtered::new(upstream.clone(), filter.unwrap());
    let shown: Vec<String> =
        source.resources().await.unwrap().iter().map(|spec| spec.uri_pattern.to_string()).collect();
    assert_eq!(shown, ["notes://{id}", "file:///{name}"]);
    assert_eq!(source.prompts().await.unwrap()[0].name, "greet");
    for (uri, good) in [
        ("notes://1", true),
        ("secret://1", false),
        ("file:///motd", true),
        ("file:///etc", false),
        ("file:///%65tc", false),
    ] {
        assert_eq!(source.read_resource(uri).await.is_ok(), good, "{uri}");
    }
    assert!(source.render_prompt("greet", &Map::new()).await.is_ok());
    let error = source.render_prompt("curse", &Map::new()).await.unwrap_err();
    assert_eq!(error.code(), Code::Permission);
    // An allowed pattern opens its URIs; a URI can be allowed by itself.
    let allowed = Filter::parse(["resource:notes://{id}", "resource:file:///motd"], NONE).unwrap();
    let source = Filtered::new(upstream, allowed);
    for (uri, good) in
        [("notes://1", true), ("secret://1", false), ("file:///motd", true), ("file:///x", false)]
    {
        assert_eq!(source.read_resource(uri).await.is_ok(), good, "{uri}");
    }
    assert!(source.prompts().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_view_reads_for_its_caller_through_all_layers() {
    let upstream = Upstream::new("up", &[]);
    upstream.offers(&["notes://{id}"], &["greet"]);
    let filter = Filter::parse(NONE, NONE).unwrap().client("guest", ["nothing"], NONE).unwrap();
    let filtered: Arc<dyn ToolSource> =
        Arc::new(Filtered::new(upstream, filter.client("admin", ["*"], NONE).unwrap()));
    let named = Arc::new(Namespaced::new(filtered.clone(), "n").unwrap());
    let pinned = Arc::new(Pinned::new(filtered.clone(), Pins::new("up", Arc::new(MemoryPins::default()))));
    for (source, address, prompt) in [
        (filtered, "notes://1", "greet"),
        (named as Arc<dyn ToolSource>, "n+notes://1", "n__greet"),
        (pinned, "notes://1", "greet"),
    ] {
        for (who, good) in [("admin", true), ("guest", false)] {
            let view = source.seen_by(&caller(who)).unwrap();
            assert_eq!(view.read_resource(address).await.is_ok(), good, "{address} {who}");
            assert_eq!(view.render_prompt(prompt, &Map::new()).await.is_ok(), good, "{prompt} {who}");
        }
    }
}

/// A near name is a help to whoever may use it, and a secret of everybody else's.
#[tokio::test]
async fn hints_name_no_closed_tool() {
    let filter = || {
        Filter::parse(NONE, ["deny_*"])
            .unwrap()
            .client("admin", NONE, NONE)
            .unwrap()
            .client("guest", ["greet"], NONE)
            .unwrap()
    };
    let tools = ["greet", "forecast", "deny_this"];
    let upstream = || {
        let upstream = Upstream::new("up", &tools);
        upstream.offers(&[], &tools);
        upstream as Arc<dyn ToolSource>
    };
    // In front of a toolbox, behind one, under a namespace, joined, and joined in a toolbox.
    let behind = |source: Arc<dyn ToolSource>| async move {
        let toolbox = Toolbox::builder().build().unwrap();
        toolbox.add_source(source).await.unwrap();
        Arc::new(toolbox) as Arc<dyn ToolSource>
    };
    let filtered = |source| Arc::new(Filtered::new(source, filter())) as Arc<dyn ToolSource>;
    let joined = |source| async move {
        let members = vec![Member::new("up", source).unwrap()];
        let joined = Merged::open("all", members, MergeSettings::default()).await.unwrap();
        Arc::new(joined) as Arc<dyn ToolSource>
    };
    let sources = [
        ("", filtered(behind(upstream()).await)),
        ("", behind(filtered(upstream())).await),
        ("up__", Arc::new(Namespaced::new(filtered(upstream()), "up").unwrap())),
        ("", joined(filtered(upstream())).await),
        ("", behind(joined(filtered(upstream())).await).await),
    ];
    for (place, (prefix, source)) in sources.iter().enumerate() {
        source.list().await.unwrap();
        for (who, misspelt, hinted) in [
            ("admin", "forcast", Some("forecast")),
            ("guest", "forcast", None),
            ("guest", "gret", None),
            ("admin", "gret", Some("greet")),
            ("admin", "denythis", None),
            ("admin", "qqqqqqqqqqqqqqqq", None),
        ] {
            let made = Call::new(format!("{prefix}{misspelt}"), json!({})).with_caller(caller(who));
            let error = source.call(made).await.result.unwrap_err();
            let told = format!("{error} {:?}", error.suggestion());
            if let Some(hinted) = hinted {
                assert!(told.contains(hinted), "{place} {who}: {told}");
            }
            assert!(who == "admin" || !told.contains("forecast"), "{place} {who}: {told}");
            assert!(!told.contains("deny_this"), "{place} {who}: {told}");
            let made = Call::new(format!("{prefix}{misspelt}"), json!({})).with_caller(caller(who));
            let told = format!("{:?}", source.render(made).await.err());
            assert!(who == "admin" || !told.contains("forecast"), "{place} {who}: {told}");
        }
    }
}

#[test]
fn invalid_patterns_are_rejected() {
    let long = "a".repeat(257);
    for bad in ["", "tool:", long.as_str()] {
        assert_eq!(Filter::parse([bad], NONE).unwrap_err().code(), Code::InvalidInput);
        assert_eq!(Filter::parse(NONE, [bad]).unwrap_err().code(), Code::InvalidInput);
        assert!(Filter::default().client("x", [bad], NONE).is_err());
    }
    assert!(Filter::default().client("", NONE, NONE).is_err());
}

//! Namespaces and renames.

use proptest::prelude::*;
use serde_json::Map;
use toolpost_core::{Alias, Call, Code, Content, ToolSource as _, check_tool_name};
use toolpost_gateway::{Namespace, Namespaced, Rename, Renamed};

use super::upstream::{Lists, Upstream, call, names, spec};

#[tokio::test]
async fn tools_prompts_and_resources_are_under_the_namespace() {
    let upstream = Upstream::new("up", &["add", "link"]);
    upstream.offers(&["notes://{id}"], &["greet"]);
    let source = Namespaced::new(upstream, "my_calc").unwrap();
    assert_eq!(names(&source).await, ["my_calc__add", "my_calc__link"]);
    assert_eq!(source.list().await.unwrap()[0].meta["original_name"], "add");
    assert_eq!(call(&source, "my_calc__add").await.unwrap(), "up:add");
    assert_eq!(source.prompts().await.unwrap()[0].name, "my_calc__greet");
    let rendered = source.render_prompt("my_calc__greet", &Map::new()).await.unwrap();
    assert_eq!(rendered.to_text(), "up:greet");
    assert_eq!(source.resources().await.unwrap()[0].uri_pattern.as_str(), "my.calc+notes://{id}");
    // URI schemes are case-insensitive.
    let read = source.read_resource("MY.calc+notes://7").await.unwrap();
    assert_eq!(read.to_text(), "up:notes://7");
    for (name, hint) in [("add", None), ("my_calc__ad", None), ("other__add", None)] {
        let error = call(&source, name).await.unwrap_err();
        assert_eq!((error.code(), hint), (Code::NotFound, None::<&str>), "{name}: {error}");
    }
    assert_eq!(source.read_resource("notes://7").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(source.render_prompt("greet", &Map::new()).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn uris_in_outputs_get_the_namespace() {
    let upstream = Upstream::new("up", &["link"]);
    upstream.offers(&["notes://{id}"], &[]);
    let source = Namespaced::new(upstream, "n").unwrap();
    let output = source.call(Call::new("n__link", serde_json::json!({}))).await.result.unwrap();
    let addresses: Vec<&str> = output
        .content
        .iter()
        .filter_map(|content| match content {
            Content::Resource { uri, .. } => Some(uri.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(addresses, ["n+notes://7", "https://example.com/"]);
    assert_eq!(source.read_resource(addresses[0]).await.unwrap().to_text(), "up:notes://7");
}

#[test]
fn namespaces_are_validated() {
    for (namespace, is_valid) in [
        ("calc", true),
        ("A-1_b", true),
        (&"n".repeat(38), true),
        (&"n".repeat(39), false),
        ("", false),
        ("1a", false),
        ("a.b", false),
        ("a/", false),
    ] {
        assert_eq!(Namespace::new(namespace).is_ok(), is_valid, "{namespace}");
    }
}

#[tokio::test]
async fn long_names_are_truncated_deterministically() {
    let long = [format!("{}a", "x".repeat(63)), format!("{}b", "x".repeat(63)), "y".repeat(58)];
    let tools: Vec<&str> = long.iter().map(String::as_str).collect();
    let source = Namespaced::new(Upstream::new("up", &tools), "calc").unwrap();
    let first = names(&source).await;
    let again = Namespaced::new(Upstream::new("other", &tools[1..]), "calc").unwrap();
    assert_eq!(first[1..], names(&again).await[..]);
    assert_eq!(first[2], format!("calc__{}", "y".repeat(58)), "exactly 64 bytes fit");
    for (outer, inner) in first.iter().zip(&long) {
        check_tool_name(outer).unwrap();
        assert_eq!(call(&source, outer).await.unwrap(), format!("up:{inner}"));
    }
    // Also before the first list; a wrong digest does not match.
    let fresh = Namespaced::new(Upstream::new("up", &tools), "calc").unwrap();
    assert_eq!(call(&fresh, &first[0]).await.unwrap(), format!("up:{}", long[0]));
    let mut other = first[0].clone();
    other.replace_range(63.., if other.ends_with('0') { "1" } else { "0" });
    assert_eq!(call(&fresh, &other).await.unwrap_err().code(), Code::NotFound);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_name_resolves_to_its_tool(
        tools in proptest::collection::btree_set("[a-zA-Z][a-zA-Z0-9_-]{0,63}", 1..8),
        namespace in "[a-z][a-z_-]{0,30}",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let tools: Vec<&str> = tools.iter().map(String::as_str).filter(|name| !["fail", "link"].contains(name)).collect();
            let source = Namespaced::new(Upstream::new("up", &tools), &namespace).unwrap();
            let outer = names(&source).await;
            for (outer, inner) in outer.iter().zip(&tools) {
                assert!(check_tool_name(outer).is_ok() && outer.starts_with(&namespace));
                assert_eq!(call(&source, outer).await.unwrap(), format!("up:{inner}"));
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_list_times_out() {
    let upstream = Upstream::new("up", &["add"]);
    upstream.lists(Lists::Never);
    let source = Namespaced::new(upstream, "calc").unwrap();
    assert_eq!(source.list().await.unwrap_err().code(), Code::Timeout);
    assert_eq!(call(&source, "calc__add").await.unwrap(), "up:add", "a short name needs no list");
    let name = format!("calc__{}", "x".repeat(58));
    assert_eq!(call(&source, &name).await.unwrap_err().code(), Code::Timeout);
}

#[tokio::test]
async fn too_many_tools_are_rejected() {
    let specs = (0..10_001).map(|index| spec(&format!("t{index}"), "T.")).collect();
    let source = Namespaced::new(Upstream::of("up", specs), "n").unwrap();
    let error = source.list().await.unwrap_err();
    assert_eq!(error.code(), Code::Limit);
    assert!(error.message().contains("10001"), "{error}");
}

#[tokio::test]
async fn aliases_are_under_the_namespace_too() {
    let mut plus = spec("add", "Add.");
    plus.aliases.push(Alias::new("plus"));
    let source = Namespaced::new(Upstream::of("up", vec![plus]), "calc").unwrap();
    assert_eq!(source.list().await.unwrap()[0].aliases[0].name, "calc__plus");
    assert_eq!(call(&source, "calc__plus").await.unwrap(), "up:add");
}

#[tokio::test]
async fn a_renamed_tool_has_only_its_new_name_and_texts() {
    let upstream = Upstream::new("up", &["add", "sub"]);
    let rename = Rename::new("add").name("plus").title("Plus").description("Sums up.");
    let source = Renamed::new(upstream, [rename, Rename::new("gone").title("x")]).unwrap();
    let specs = source.list().await.unwrap();
    let shown: Vec<_> =
        specs.iter().map(|spec| (&*spec.name, spec.title.as_deref(), &*spec.description)).collect();
    assert_eq!(shown, [("plus", Some("Plus"), "Sums up."), ("sub", None, "The tool sub.")]);
    assert_eq!(call(&source, "plus").await.unwrap(), "up:add");
    let error = call(&source, "add").await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(error.suggestion(), Some("Its name is `plus`."));
    assert_eq!(call(&source, "sub").await.unwrap(), "up:sub");
}

#[tokio::test]
async fn names_can_be_swapped() {
    let upstream = Upstream::new("up", &["a", "b"]);
    let swap = [Rename::new("a").name("b"), Rename::new("b").name("a")];
    let source = Renamed::new(upstream.clone(), swap).unwrap();
    assert_eq!(call(&source, "a").await.unwrap(), "up:b");
    assert_eq!(call(&source, "b").await.unwrap(), "up:a");
    let taken = Renamed::new(upstream, [Rename::new("a").name("b")]).unwrap();
    let error = taken.list().await.unwrap_err();
    assert_eq!(error.code(), Code::Conflict);
    assert!(error.message().contains("both called `b`"), "{error}");
}

#[test]
fn contradictory_renames_are_rejected() {
    for renames in [
        vec![Rename::new("a").name("1")],
        vec![Rename::new("a").name("x"), Rename::new("b").name("x")],
        vec![Rename::new("a").name("x"), Rename::new("a").name("y")],
        vec![Rename::new("a").description(" ")],
    ] {
        let made = Renamed::new(Upstream::new("up", &[]), renames.clone());
        assert_eq!(made.unwrap_err().code(), Code::InvalidInput, "{renames:?}");
    }
}

#[tokio::test]
async fn a_new_name_hides_an_equal_alias() {
    let mut sub = spec("sub", "Subtract.");
    sub.aliases.push(Alias::new("plus"));
    let source =
        Renamed::new(Upstream::of("up", vec![spec("add", "Add."), sub]), [Rename::new("add").name("plus")])
            .unwrap();
    assert!(source.list().await.unwrap()[1].aliases.is_empty());
    assert_eq!(call(&source, "plus").await.unwrap(), "up:add");
}

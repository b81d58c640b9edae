//! Merged sources.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, json};
use tokio::time::Instant;
use toolpost_core::{Alias, Call, Code, SourceState, ToolSource};
use toolpost_gateway::{Collisions, Filter, Filtered, Member, MergeSettings, Merged};

use super::upstream::{Lists, Upstream, call, caller, names, spec};

fn member(upstream: &Arc<Upstream>) -> Member {
    Member::new(&upstream.name, upstream.clone()).unwrap()
}

fn settings(change: impl FnOnce(&mut MergeSettings)) -> MergeSettings {
    let mut settings = MergeSettings::default();
    change(&mut settings);
    settings
}

async fn merge(upstreams: &[&Arc<Upstream>], change: impl FnOnce(&mut MergeSettings)) -> Merged {
    let members = upstreams.iter().map(|upstream| member(upstream)).collect();
    Merged::open("gateway", members, settings(change)).await.unwrap()
}

#[tokio::test]
async fn each_name_routes_to_its_member() {
    let (one, two) = (Upstream::new("one", &["b", "a"]), Upstream::new("two", &["c"]));
    one.offers(&["notes://{id}", "both://{id}"], &["greet"]);
    two.offers(&["files://{id}", "both://{id}"], &["greet", "part"]);
    let merged = merge(&[&one, &two], |_| {}).await;
    assert_eq!(names(&merged).await, ["b", "a", "c"]);
    assert_eq!(call(&merged, "c").await.unwrap(), "two:c");
    assert_eq!(merged.resources().await.unwrap().len(), 3);
    assert_eq!(merged.read_resource("files://1").await.unwrap().to_text(), "two:files://1");
    assert_eq!(merged.read_resource("both://1").await.unwrap().to_text(), "one:both://1");
    assert_eq!(merged.prompts().await.unwrap().len(), 2);
    assert_eq!(merged.render_prompt("part", &Map::new()).await.unwrap().to_text(), "two:part");
    let error = call(&merged, "cc").await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(merged.read_resource("no://1").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(merged.render_prompt("no", &Map::new()).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_collision_is_an_error_or_gets_the_namespace() {
    let (one, two) = (Upstream::new("one", &["add"]), Upstream::new("two", &["add", "sub"]));
    let members = || vec![member(&one), member(&two)];
    let error = Merged::open("g", members(), MergeSettings::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Conflict);
    assert_eq!(error.message(), "`one` and `two` both have a tool `add`");
    let merged = merge(&[&one, &two], |settings| settings.collisions = Collisions::Namespace).await;
    assert_eq!(names(&merged).await, ["add", "two__add", "sub"]);
    assert_eq!(call(&merged, "add").await.unwrap(), "one:add");
    assert_eq!(call(&merged, "two__add").await.unwrap(), "two:add");
    let namespaced = Member::namespaced("two", two.clone()).unwrap();
    let merged = Merged::open("g", vec![member(&one), namespaced], MergeSettings::default()).await.unwrap();
    assert_eq!(names(&merged).await, ["add", "two__add", "two__sub"]);
    assert!(Member::new("no name", one.clone()).is_err());
    let twice = vec![member(&one), Member::new("ONE", two.clone()).unwrap()];
    assert_eq!(Merged::open("g", twice, MergeSettings::default()).await.unwrap_err().code(), Code::Conflict);
}

#[tokio::test]
async fn an_earlier_member_has_the_name_and_invalid_tools_are_omitted() {
    let (one, two) = (Upstream::new("one", &["add"]), Upstream::new("two", &["sub"]));
    let merged = merge(&[&one, &two], |_| {}).await;
    let mut sneaky = spec("sub", "Subtract.");
    sneaky.aliases.push(Alias::new("add"));
    sneaky.aliases.push(Alias::new("minus"));
    two.set(vec![spec("add", "Mine now."), spec("bad name", "Bad."), spec("empty", ""), sneaky]);
    assert_eq!(names(&merged).await, ["add", "sub"]);
    assert_eq!(call(&merged, "add").await.unwrap(), "one:add");
    assert_eq!(call(&merged, "minus").await.unwrap(), "two:sub");
    let aliases: Vec<String> =
        merged.list().await.unwrap()[1].aliases.iter().map(|alias| alias.name.clone()).collect();
    assert_eq!(aliases, ["minus"]);
    let status = merged.status();
    assert!(status[0].omitted.is_empty());
    let left_out: Vec<&str> = status[1].omitted.iter().map(|left_out| left_out.name.as_str()).collect();
    assert_eq!(left_out, ["add", "bad name", "empty"]);
    // A free name goes to the other member.
    one.set(vec![]);
    assert_eq!(call(&merged, "add").await.unwrap(), "two:add");
}

#[tokio::test(start_paused = true)]
async fn a_slow_member_delays_the_list_up_to_the_timeout() {
    let (fast, slow) = (Upstream::new("fast", &["add"]), Upstream::new("slow", &["sub"]));
    slow.lists(Lists::After(Duration::from_secs(10)));
    let begun = Instant::now();
    let merged = merge(&[&fast, &slow], |settings| settings.member_timeout = Duration::from_secs(2)).await;
    assert_eq!(begun.elapsed().as_secs(), 2);
    let begun = Instant::now();
    assert_eq!(names(&merged).await, ["add"]);
    assert_eq!(call(&merged, "add").await.unwrap(), "fast:add");
    assert_eq!(begun.elapsed().as_secs(), 0, "nobody waits for it twice");
    assert_eq!(merged.status()[1].state, SourceState::Starting);
    let error = call(&merged, "sub").await.unwrap_err();
    assert_eq!(error.code(), Code::Dependency, "it may be there: {error}");
    let generation = merged.generation();
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_ne!(merged.generation(), generation, "a late list is a change");
    assert_eq!(call(&merged, "sub").await.unwrap(), "slow:sub");
}

#[tokio::test(start_paused = true)]
async fn an_unlistable_member_retains_its_last_list() {
    for how in [Lists::Never, Lists::Fails] {
        let (one, two) = (Upstream::new("one", &["add"]), Upstream::new("two", &["sub"]));
        let merged = merge(&[&one, &two], |settings| {
            settings.member_timeout = Duration::from_secs(1);
            settings.list_timeout = Duration::from_secs(5);
        })
        .await;
        two.lists(how);
        two.set(vec![spec("other", "Other.")]);
        assert_eq!(names(&merged).await, ["add", "sub"], "{how:?}");
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(merged.status()[1].state, SourceState::Failed, "{how:?}");
        let begun = Instant::now();
        for _ in 0..20 {
            assert_eq!(call(&merged, "add").await.unwrap(), "one:add");
        }
        assert_eq!(begun.elapsed().as_secs(), 0, "{how:?}: the calls of another never wait for it");
        two.lists(Lists::Well);
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(names(&merged).await, ["add", "other"], "{how:?}");
    }
}

#[tokio::test]
async fn members_can_be_replaced_while_calls_run() {
    let (old, kept) = (Upstream::new("calc", &["add"]), Upstream::new("kept", &["sub"]));
    let merged = merge(&[&old, &kept], |_| {}).await;
    let gate = old.close_gate();
    let running: Vec<_> = (0..20)
        .map(|_| {
            let merged = merged.clone();
            tokio::spawn(async move { call(&merged, "add").await })
        })
        .collect();
    while old.count_calls() < 20 {
        tokio::task::yield_now().await;
    }
    let new = Upstream::new("calc", &["add", "mul"]);
    let before = merged.generation();
    let kept_member = merged.members().remove(1);
    merged.replace(vec![member(&new), kept_member]).await.unwrap();
    assert_ne!(merged.generation(), before);
    assert_eq!(names(&merged).await, ["add", "mul", "sub"]);
    assert_eq!(call(&merged, "mul").await.unwrap(), "calc:mul");
    assert_eq!(new.count_calls(), 1);
    drop(old.clone());
    gate.add_permits(20);
    for answer in running {
        assert_eq!(answer.await.unwrap().unwrap(), "calc:add");
    }
    assert_eq!(old.count_calls(), 20);
    // A conflicting set changes nothing.
    let clash = Upstream::new("clash", &["sub"]);
    let members = merged.members().into_iter().chain([member(&clash)]).collect();
    let before = merged.generation();
    assert_eq!(merged.replace(members).await.unwrap_err().code(), Code::Conflict);
    assert_eq!(merged.generation(), before);
    assert_eq!(call(&merged, "sub").await.unwrap(), "kept:sub");
}

#[tokio::test]
async fn every_replacement_changes_the_generation() {
    let busy = Upstream::new("busy", &["a"]);
    for _ in 0..5 {
        busy.set(vec![spec("a", "A.")]);
    }
    let merged = merge(&[&busy], |_| {}).await;
    let mut seen = vec![merged.generation()];
    for index in 0..10 {
        let next = Upstream::new("next", &["a"]);
        for _ in 0..index {
            next.set(vec![spec("a", "A.")]);
        }
        merged.replace(vec![member(&next)]).await.unwrap();
        let now = merged.generation();
        assert!(!seen.contains(&now), "{now} {seen:?}");
        seen.push(now);
    }
}

#[tokio::test]
async fn views_are_merged_from_the_members_views() {
    let (one, two) = (Upstream::new("one", &["add", "drop"]), Upstream::new("two", &["sub"]));
    one.offers(&["notes://{id}"], &["greet"]);
    let filter = Filter::default().client("guest", ["add"], ["drop"]).unwrap();
    let guarded = Member::new("one", Arc::new(Filtered::new(one, filter))).unwrap();
    let merged = Merged::open("g", vec![guarded, member(&two)], MergeSettings::default()).await.unwrap();
    let guest = merged.seen_by(&caller("guest")).unwrap();
    assert_eq!(names(&*guest).await, ["add", "sub"]);
    assert_eq!(names(&*merged.seen_by(&caller("other")).unwrap()).await, ["add", "drop", "sub"]);
    assert!(guest.resources().await.unwrap().is_empty() && guest.prompts().await.unwrap().is_empty());
    assert_eq!(guest.read_resource("notes://1").await.unwrap_err().code(), Code::NotFound);
    let made = Call::new("drop", json!({})).with_caller(caller("guest"));
    assert_eq!(guest.call(made).await.result.unwrap_err().code(), Code::Permission);
    let plain = merge(&[&two], |_| {}).await;
    assert!(plain.seen_by(&caller("guest")).is_none());
}

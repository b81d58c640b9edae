//! Search, and updates of the catalog.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use toolpost::{IntoTool as _, Output, ToolError, ToolSource, ToolSpec, tool_fn};
use toolpost_gateway::catalog::{Catalog, Matching, Search, ToolSummary};
use toolpost_toolbox::Toolbox;

use super::{office, tool_of, toolbox_of};

fn names(catalog: &Catalog, search: &Search) -> Vec<String> {
    catalog.search(search).names().into_iter().map(str::to_owned).collect()
}

fn many(count: usize) -> Toolbox {
    const VERBS: [&str; 10] =
        ["create", "update", "delete", "find", "list", "send", "archive", "approve", "export", "count"];
    const NOUNS: [&str; 10] = [
        "invoice", "customer", "parcel", "ticket", "report", "meeting", "order", "account", "document",
        "task",
    ];
    let tools: Vec<Value> = (0..count)
        .map(|number| {
            let (verb, noun) = (VERBS[number % 10], NOUNS[number / 10 % 10]);
            json!({
                "name": format!("{verb}_{noun}_{number}"),
                "description": format!("To {verb} the {noun} of department {}.", number / 100),
                "category": noun, "group": format!("office.{noun}"), "tags": [verb],
            })
        })
        .collect();
    toolbox_of(&tools.into())
}

#[test]
fn every_option_of_a_search_is_applied() {
    let catalog = Catalog::new(&office());
    let rows: &[(&str, Search, &[&str])] = &[
        (
            "all, in the order of registration",
            Search::all(),
            &["find_contact", "move_deal", "crm_summary", "send_letter", "make_tea"],
        ),
        ("an empty query matches all", Search::new("  ").limit(1), &["find_contact"]),
        ("a word of the name", Search::new("deal"), &["move_deal", "crm_summary"]),
        ("a word of the description", Search::new("water"), &["make_tea"]),
        ("a tag", Search::new("report"), &["crm_summary"]),
        ("a category", Search::new("kitchen"), &["make_tea"]),
        ("a group", Search::new("pipeline"), &["move_deal"]),
        ("part of a word", Search::new("ette"), &["send_letter"]),
        ("a prefix", Search::new("con"), &["find_contact"]),
        ("an inflected form", Search::new("letters"), &["send_letter"]),
        ("a misspelling", Search::new("sumary"), &["crm_summary"]),
        ("half of the words is enough", Search::new("send submarine"), &["send_letter"]),
        ("fewer words do not match", Search::new("send submarine torpedo"), &[]),
        (
            "one word matches with `Any`",
            Search::new("send submarine torpedo").matching(Matching::Any),
            &["send_letter"],
        ),
        ("stop words do not count", Search::new("how do I send a letter to them"), &["send_letter"]),
        ("category", Search::all().category("CRM"), &["find_contact", "move_deal", "crm_summary"]),
        ("group", Search::all().group("crm.contacts"), &["find_contact"]),
        ("group or category", Search::all().group("crm"), &["find_contact", "move_deal", "crm_summary"]),
        ("no part of a group's word", Search::all().group("crm.con"), &[]),
        ("tags", Search::all().tags(["SALE", "post"]), &["move_deal", "send_letter"]),
        ("query and category", Search::new("deal").category("crm").tags(["report"]), &["crm_summary"]),
        ("limit", Search::all().limit(2), &["find_contact", "move_deal"]),
        ("a limit of 0", Search::all().limit(0), &[]),
        ("offset", Search::all().limit(2).offset(3), &["send_letter", "make_tea"]),
        ("past the end", Search::all().offset(usize::MAX), &[]),
        ("score", Search::new("move_deal").min_score(1.0), &["move_deal"]),
        ("score without an exact name", Search::new("deal").min_score(1.0), &[]),
        ("the exact name, case-insensitive", Search::new("MOVE_DEAL").limit(1), &["move_deal"]),
    ];
    for (what, search, expected) in rows {
        assert_eq!(names(&catalog, search), *expected, "{what}");
    }
    assert_eq!(catalog.search(&Search::all().limit(2)).total, 5);
    let hits = catalog.search(&Search::new("deal")).hits;
    assert!(hits[0].score > hits[1].score && hits.iter().all(|hit| hit.score > 0.0 && hit.score < 1.0));
}

#[tokio::test]
async fn the_catalog_follows_the_toolbox_and_its_sources() {
    let (inner, outer) = (office(), Toolbox::builder().build().unwrap());
    let catalog = Catalog::new(&outer);
    assert!(catalog.is_empty() && catalog.list_groups().is_empty());
    outer
        .add(tool_of(&json!({ "name": "own", "description": "Own.", "group": "g", "category": "c" })))
        .unwrap();
    assert_eq!((names(&catalog, &Search::all()), catalog.len()), (vec!["own".to_owned()], 1));

    let source: Arc<dyn ToolSource> = Arc::new(inner.clone());
    outer.add_source(source).await.unwrap();
    assert_eq!(names(&catalog, &Search::new("tea")), ["make_tea"]);
    inner.add(tool_of(&json!({ "name": "make_coffee", "description": "Brew.", "group": "bar" }))).unwrap();
    inner.remove("make_tea");
    catalog.refresh().await.unwrap();
    assert_eq!(names(&catalog, &Search::new("make")), ["make_coffee"]);
    assert!(names(&catalog, &Search::new("kitchen")).is_empty());
    assert_eq!(catalog.list_groups(), ["bar", "crm.contacts", "crm.pipeline", "g", "mail"]);
    assert_eq!(catalog.list_categories(), ["c", "crm", "mail"]);

    assert!(outer.remove("own"));
    assert!(catalog.entry("own").is_none() && names(&catalog, &Search::new("own")).is_empty());
    // A new tool of the same name replaces the entry.
    outer.add(tool_of(&json!({ "name": "own", "description": "Paint a wall." }))).unwrap();
    assert_eq!(names(&catalog, &Search::new("wall")), ["own"]);
    assert_eq!(catalog.tools_in_group("g"), [""; 0]);
}

#[test]
fn the_order_of_ten_thousand_results_is_stable() {
    let toolbox = many(10_000);
    let (one, other) = (Catalog::new(&toolbox), Catalog::new(&toolbox));
    for query in
        ["invoice", "approve customer order", "task 9999", "9999", "submarine", "departments", "e", "a b c"]
    {
        let search = Search::new(query).limit(50);
        let found = one.search(&search);
        assert_eq!(found.names(), other.search(&search).names(), "{query}");
        assert!(found.hits.windows(2).all(|pair| pair[0].score >= pair[1].score), "{query}");
        // The pages together equal the whole result.
        let pages: Vec<String> =
            (0..5).flat_map(|page| names(&one, &Search::new(query).limit(10).offset(page * 10))).collect();
        assert_eq!(pages, found.names(), "{query}");
    }
    assert_eq!(names(&one, &Search::new("9999").limit(1)), ["count_task_9999"]);
    assert_eq!(one.search(&Search::new("invoice")).total, 1000);
    // The best has all words, whatever else matches.
    assert_eq!(names(&one, &Search::new("approve customer 17").limit(1)), ["approve_customer_17"]);
    let pages: Vec<String> =
        (0..21).flat_map(|page| names(&one, &Search::all().limit(499).offset(page * 499))).collect();
    assert_eq!(pages.len(), 10_000);
    assert_eq!(one.search(&Search::all().group("office")).total, 10_000);
    assert_eq!(one.tools_in_group("office.task").len(), 1000);
}

#[test]
fn hostile_queries_are_cheap() {
    let catalog = Catalog::new(&many(2000));
    let long_word = "x".repeat(1024 * 1024);
    let many_words = "invoice ".repeat(128 * 1024);
    let different = (0..100_000).map(|number| format!("w{number}")).collect::<Vec<_>>().join(" ");
    for query in [
        long_word.as_str(),
        &many_words,
        &different,
        "(a+)+$",
        ".*",
        "[[[[",
        "%' OR 1=1 --",
        "\0\u{1}\u{7f}",
        "\u{202e}evil\u{200b}",
        "ÄÖÜß İıſ ﬃ",
        "日本語の検索",
        "🦀🦀🦀",
        "\u{301}\u{301}\u{301}",
        "_ - _",
    ] {
        let found = catalog.search(&Search::new(query).matching(Matching::Any).limit(usize::MAX));
        assert!(found.hits.len() <= 2000);
        assert!(catalog.search(&Search::new(query).limit(10)).hits.len() <= 10);
        assert!(catalog.similar_names(query).len() <= 3);
    }
    assert_eq!(catalog.search(&Search::new(&many_words)).total, 200);
    assert_eq!(catalog.search(&Search::new(&long_word)).total, 0);
    // Filters are texts as well.
    assert_eq!(
        catalog.search(&Search::all().category(&long_word).group(&long_word).tags([&long_word])).total,
        0
    );
}

#[test]
fn hostile_tools_are_bounded() {
    let toolbox = office();
    let description =
        (0..200_000).map(|number| format!("w{number}")).collect::<Vec<_>>().join(" ") + " zebra";
    toolbox
        .add(tool_of(&json!({ "name": "endless", "description": description, "tags": vec!["tag"; 10_000] })))
        .unwrap();
    let catalog = Catalog::new(&toolbox);
    assert_eq!(names(&catalog, &Search::new("endless")), ["endless"]);
    assert_eq!(names(&catalog, &Search::new("w3")).first().map(String::as_str), Some("endless"));
    assert!(names(&catalog, &Search::new("zebra")).is_empty());
}

#[test]
fn words_in_other_scripts_and_camel_case_are_found() {
    let catalog = Catalog::new(&toolbox_of(&json!([
        { "name": "readFile", "description": "Liest eine Datei über das Netz." },
        { "name": "translate", "description": "日本語の文章を英語に翻訳する" },
    ])));
    for (query, expected) in
        [("file", "readFile"), ("readfile", "readFile"), ("ÜBER", "readFile"), ("英語", "translate")]
    {
        assert_eq!(names(&catalog, &Search::new(query)), [expected], "{query}");
    }
}

#[test]
fn an_updated_index_equals_a_new_one() {
    let toolbox = office();
    let catalog = Catalog::new(&toolbox);
    for round in 0..6 {
        let names: Vec<String> = (0..1500).map(|number| format!("t{round}x{number}q")).collect();
        for name in &names {
            toolbox
                .add(tool_of(
                    &json!({ "name": name, "description": format!("Word{name} of round {round}.") }),
                ))
                .unwrap();
        }
        assert_eq!(catalog.len(), 1505);
        for name in &names {
            toolbox.remove(name);
        }
        assert_eq!(catalog.len(), 5);
    }
    let fresh = Catalog::new(&toolbox);
    for query in ["deal", "round", "make tea", "t3x7q", "crm"] {
        let search = Search::new(query);
        assert_eq!(names(&catalog, &search), names(&fresh, &search), "{query}");
    }
}

#[test]
fn a_lazy_tool_is_created_on_first_use() {
    let toolbox = office();
    let catalog = Catalog::new(&toolbox);
    let made = Arc::new(AtomicUsize::new(0));
    let summary = || {
        let mut summary = ToolSummary::new("dig", "Dig a hole.");
        summary.group = Some("garden".to_owned());
        summary.category = Some("outside".to_owned());
        summary.tags = vec!["spade".to_owned()];
        summary.estimated_tokens = Some(77);
        summary
    };
    let count = Arc::clone(&made);
    catalog
        .add_lazy(summary(), move || {
            if count.fetch_add(1, Ordering::Relaxed) == 0 {
                return Err(ToolError::dependency("the shed is closed"));
            }
            Ok(tool_fn(ToolSpec::new("dig", "Dig a deep hole."), async |_, _| Ok(Output::text("a hole")))
                .into_tool())
        })
        .unwrap();
    for query in ["hole", "spade", "outside", "garden"] {
        assert_eq!(names(&catalog, &Search::new(query)), ["dig"], "{query}");
    }
    let entry = catalog.entry("dig").unwrap();
    assert!(entry.spec().is_none() && entry.estimated_tokens() == 77);
    assert_eq!((made.load(Ordering::Relaxed), toolbox.spec("dig").is_none()), (0, true));

    // What fails is tried again; what is made is made once.
    assert_eq!(catalog.resolve("dig").unwrap_err().message(), "the shed is closed");
    assert_eq!(catalog.resolve("dig").unwrap().description, "Dig a deep hole.");
    catalog.resolve("dig").unwrap();
    assert_eq!(made.load(Ordering::Relaxed), 2);
    assert!(toolbox.spec("dig").is_some() && catalog.entry("dig").unwrap().spec().is_some());
    assert_eq!(names(&catalog, &Search::new("deep")), ["dig"]);
    assert_eq!(catalog.resolve("digg").unwrap_err().code().as_str(), "NOT_FOUND");

    // Taken out of the toolbox, it is to be had again.
    toolbox.remove("dig");
    assert!(catalog.entry("dig").unwrap().spec().is_none());
    catalog.resolve("dig").unwrap();
    assert_eq!(made.load(Ordering::Relaxed), 3);

    for (name, expected) in
        [("dig", "another tool"), ("make_tea", "another tool"), ("no good", "starts with a letter")]
    {
        let error =
            catalog.add_lazy(ToolSummary::new(name, "d"), || Err(ToolError::internal("no"))).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    catalog
        .add_lazy(ToolSummary::new("liar", "d"), || {
            Ok(tool_of(&json!({ "name": "other", "description": "d" })).into_tool())
        })
        .unwrap();
    assert!(catalog.resolve("liar").unwrap_err().message().contains("with the name `other`"));
    assert!(toolbox.spec("other").is_none());
}

#[test]
fn similar_names_are_suggested() {
    let catalog = Catalog::new(&office());
    for (wrong, expected) in [
        ("send_leter", vec!["send_letter"]),
        ("MoveDeal", vec!["move_deal"]),
        ("summary", vec!["crm_summary"]),
        ("contacts", vec!["find_contact"]),
        ("zzzz", vec![]),
        ("", vec![]),
    ] {
        assert_eq!(catalog.similar_names(wrong), expected, "{wrong}");
    }
}

#[test]
fn aliases_are_found() {
    let toolbox = office();
    let mut spec = ToolSpec::new("evaluate", "Evaluate code.");
    spec.aliases.push(toolpost::Alias::new("python_executor"));
    toolbox.add(tool_fn(spec, async |_, _| Ok(Output::default()))).unwrap();
    let catalog = Catalog::new(&toolbox);
    assert_eq!(names(&catalog, &Search::new("python")), ["evaluate"]);
    assert_eq!(catalog.entry("python_executor").unwrap().name(), "evaluate");
    assert_eq!(catalog.resolve("python_executor").unwrap().name, "evaluate");
}

#[test]
fn concurrent_searches_and_registrations_lose_nothing() {
    let toolbox = Toolbox::builder().build().unwrap();
    let catalog = Catalog::new(&toolbox);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (toolbox, catalog) = (toolbox.clone(), catalog.clone());
            scope.spawn(move || {
                for number in 0..100 {
                    let name = format!("w{worker}n{number}");
                    toolbox.add(tool_of(&json!({ "name": name, "description": "Common." }))).unwrap();
                    assert_eq!(catalog.search(&Search::new(&name).limit(1)).names(), [name.as_str()]);
                }
            });
        }
    });
    assert_eq!(catalog.search(&Search::new("common")).total, 400);
}

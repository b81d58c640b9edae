//! The quality of the search for tools, beside the original, by its own tests' catalogs and queries.

use serde_json::Value;
use toolpost_gateway::catalog::{Catalog, Matching, Search};

use super::{golden, toolbox_of};

/// The expected results of the original's own tests for their queries: a name, or all tools with a category or a tag.
const WANTED: &[(&str, Wanted)] = &[
    ("email", Wanted::Names(&["send_email", "email_validator"])),
    ("EMAIL", Wanted::Names(&["send_email"])),
    ("send_email", Wanted::Names(&["send_email"])),
    ("search", Wanted::Names(&["search_products"])),
    ("weather", Wanted::Names(&["get_weather"])),
    ("000", Wanted::Names(&["tool_000"])),
    ("025", Wanted::Names(&["tool_025"])),
    ("099", Wanted::Names(&["tool_099"])),
    ("tool_0", Wanted::Names(&["tool_0"])),
    ("tool_1", Wanted::Names(&["tool_1"])),
    ("tool_001", Wanted::Names(&["tool_001"])),
    ("crm", Wanted::Category("crm")),
    ("crm operations", Wanted::Category("crm")),
    ("analytics", Wanted::Category("analytics")),
    ("automation", Wanted::Category("automation")),
    ("testing", Wanted::Category("testing")),
    ("tag_0", Wanted::Tag("tag_0")),
    ("action_2", Wanted::Tag("action_2")),
];

enum Wanted {
    Names(&'static [&'static str]),
    Category(&'static str),
    Tag(&'static str),
}

impl Wanted {
    fn has(&self, tool: &Value) -> bool {
        match self {
            Self::Names(names) => names.iter().any(|name| tool["name"] == *name),
            Self::Category(category) => tool["category"] == *category,
            Self::Tag(tag) => tool["tags"].as_array().unwrap().iter().any(|own| own == tag),
        }
    }
}

fn search_of(row: &Value) -> Search {
    let mut search = Search::all();
    let number = |name: &str| usize::try_from(row[name].as_u64().unwrap()).unwrap();
    if let Some(query) = row["query"].as_str() {
        search = Search::new(query);
    }
    if let Some(category) = row["category"].as_str() {
        search = search.category(category);
    }
    if let Some(group) = row["group"].as_str() {
        search = search.group(group);
    }
    if let Some(tags) = row["tags"].as_array() {
        search = search.tags(tags.iter().filter_map(Value::as_str));
    }
    search.limit(number("limit")).offset(number("offset")).min_score(row["min_score"].as_f64().unwrap())
}

/// One over the place of the first good one; 0 if there is none.
fn reciprocal_rank<'a>(names: impl IntoIterator<Item = &'a str>, good: impl Fn(&str) -> bool) -> f64 {
    names.into_iter().position(good).map_or(0.0, |place| 1.0 / (place + 1) as f64)
}

/// The number of good ones among the first `n`, as a part of the possible number.
fn precision<'a>(names: &[&'a str], good: impl Fn(&'a str) -> bool, all_good: usize) -> f64 {
    let possible = all_good.clamp(1, 10);
    names.iter().take(possible).filter(|name| good(name)).count() as f64 / possible as f64
}

fn names_of(row: &Value) -> Vec<&str> {
    row["names"].as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

#[test]
fn filters_and_pages_match_the_original() {
    let Some(golden) = golden("filters_and_pages_match_the_original") else { return };
    let catalogs: Vec<Catalog> =
        golden["catalogs"].as_array().unwrap().iter().map(|tools| Catalog::new(&toolbox_of(tools))).collect();
    let mut compared = 0;
    for row in golden["searches"].as_array().unwrap().iter().filter(|row| row["query"].is_null()) {
        let catalog = &catalogs[usize::try_from(row["catalog"].as_u64().unwrap()).unwrap()];
        let found = catalog.search(&search_of(row));
        assert_eq!(found.names(), names_of(row), "{row}");
        assert_eq!(found.total as u64, row["total"].as_u64().unwrap(), "{row}");
        compared += 1;
    }
    assert!(compared > 50, "{compared} searches");
}

#[test]
fn tools_are_found_at_least_as_well_as_by_the_original() {
    let Some(golden) = golden("tools_are_found_at_least_as_well_as_by_the_original") else { return };
    let mut report = Vec::new();
    let mut worse = Vec::new();
    // Their unit tests: each query in each catalog that they ask it of.
    let (mut theirs, mut ours, mut queries) = ([0.0, 0.0], [0.0, 0.0], 0);
    for row in golden["searches"].as_array().unwrap() {
        let Some((query, wanted)) =
            row["query"].as_str().and_then(|query| WANTED.iter().find(|(known, _)| *known == query))
        else {
            continue;
        };
        // Pages and scores are not compared: the best are.
        if row["offset"] != 0 || row["min_score"] != 0.0 {
            continue;
        }
        let tools = golden["catalogs"][usize::try_from(row["catalog"].as_u64().unwrap()).unwrap()]
            .as_array()
            .unwrap();
        let wanted: Vec<&str> =
            tools.iter().filter(|tool| wanted.has(tool)).filter_map(|tool| tool["name"].as_str()).collect();
        if wanted.is_empty() {
            continue;
        }
        let catalog = Catalog::new(&toolbox_of(&tools.clone().into()));
        let found = catalog.search(&search_of(row));
        let good = |name: &str| wanted.contains(&name);
        let row_theirs =
            [reciprocal_rank(names_of(row), good), precision(&names_of(row), good, wanted.len())];
        let row_ours = [reciprocal_rank(found.names(), good), precision(&found.names(), good, wanted.len())];
        if row_ours[0] < row_theirs[0] || row_ours[1] < row_theirs[1] {
            worse.push(format!("{query}: {row_ours:?} beside {row_theirs:?}: {:?}", found.names()));
        }
        for place in 0..2 {
            theirs[place] += row_theirs[place];
            ours[place] += row_ours[place];
        }
        queries += 1;
    }
    assert!(queries >= 15, "{queries} queries");
    report.push(format!(
        "unit tests, {queries} queries: reciprocal rank and precision {ours:?} beside {theirs:?}\n"
    ));
    assert!(ours[0] >= theirs[0] && ours[1] >= theirs[1], "{}\n{}", report.join("\n"), worse.join("\n"));

    // Their scenarios: what users ask for in sentences, and tools sought by name and by tags.
    let scenarios = &golden["scenarios"];
    let catalog = Catalog::new(&toolbox_of(&scenarios["tools"]));
    let (mut theirs, mut ours, mut queries) = (0.0, 0.0, 0);
    for question in scenarios["questions"].as_array().unwrap() {
        let query = question["query"].as_str().unwrap();
        let good = |name: &str| question["wanted"].as_array().unwrap().iter().any(|wanted| wanted == name);
        let found = catalog.search(&Search::new(query));
        let (row_theirs, row_ours) =
            (reciprocal_rank(names_of(question), good), reciprocal_rank(found.names(), good));
        if row_ours < row_theirs {
            worse.push(format!("{query}: {row_ours} beside {row_theirs}: {:?}", found.names()));
        }
        theirs += row_theirs;
        ours += row_ours;
        queries += 1;
    }
    let count = f64::from(queries);
    // Without a model, `find_tools` finds what whole sentences ask for by any of their words.
    let (mut theirs_of_sentences, mut ours_of_sentences, mut sentences) = (0.0, 0.0, 0);
    let is_sentence = |question: &&Value| question["query"].as_str().unwrap().split(' ').count() > 5;
    for question in scenarios["questions"].as_array().unwrap().iter().filter(is_sentence) {
        let good = |name: &str| question["wanted"].as_array().unwrap().iter().any(|wanted| wanted == name);
        let search = Search::new(question["query"].as_str().unwrap()).matching(Matching::Any);
        theirs_of_sentences += reciprocal_rank(names_of(question), good);
        ours_of_sentences += reciprocal_rank(catalog.search(&search).names(), good);
        sentences += 1;
    }
    report.push(format!(
        "sentences, {sentences} queries: reciprocal rank {ours_of_sentences:.3} beside {theirs_of_sentences:.3}\n"
    ));
    assert!(sentences > 3 && ours_of_sentences > theirs_of_sentences, "{}", report.join("\n"));
    report.push(format!(
        "scenarios, {queries} queries: mean reciprocal rank {:.3} beside {:.3}\n",
        ours / count,
        theirs / count
    ));
    println!("{}\n{}", report.join("\n"), worse.join("\n"));
    assert!(queries > 60 && ours >= theirs, "{}\n{}", report.join("\n"), worse.join("\n"));
}

//! Random changes, compared with a list of all versions in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use toolpost_core::{Commit, Committed, DocStore, Document};
use toolpost_store::Store;

use crate::support::{block_on, write};

const NAMES: [&str; 3] = ["a", "a/b", "c"];

#[derive(Clone, Debug)]
enum Step {
    /// Changes documents together. The base of the first is `stale` versions old.
    Commit {
        values: BTreeMap<usize, Value>,
        stale: u64,
    },
    /// Changes one document many times, beyond a milestone.
    Many {
        name: usize,
        times: u64,
    },
    Reopen,
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("JSON has finite numbers only", |number| number.is_finite())
            .prop_map(Value::from),
        "[a-z~/\"\\\\\u{0}-\u{20}é]{0,12}".prop_map(Value::from),
        Just(Value::from("long ".repeat(50))),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-c~/]{0,2}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (proptest::collection::btree_map(0..NAMES.len(), value(), 1..3), prop_oneof![4 => Just(0), 1 => 1..3_u64])
            .prop_map(|(values, stale)| Step::Commit { values, stale }),
        1 => (0..NAMES.len(), 1..80_u64).prop_map(|(name, times)| Step::Many { name, times }),
        1 => Just(Step::Reopen),
    ]
}

/// All versions of each document, from version 0.
type Model = [Vec<Value>; NAMES.len()];

fn newest(model: &Model, name: usize) -> Document {
    let versions = &model[name];
    Document {
        id: NAMES[name].into(),
        version: versions.len() as u64 - 1,
        value: Arc::new(versions.last().unwrap().clone()),
    }
}

async fn check(store: &Store, model: &Model) {
    let mut listed = Vec::new();
    for (name, id) in NAMES.into_iter().enumerate() {
        let document = newest(model, name);
        assert_eq!(store.load(id).await.unwrap(), document);
        if document.version > 0 {
            listed.push((id.to_owned(), document.version));
        }
        for (version, value) in model[name].iter().enumerate().rev().step_by(3) {
            assert_eq!(&*store.at(id, version as u64).await.unwrap().value, value, "{id} at {version}");
        }
        // Applying all patches gives the newest version.
        let mut folded = Value::Null;
        let changes = store.log(id, 0, usize::MAX).await.unwrap();
        for (change, version) in changes.iter().zip(1_u64..) {
            assert_eq!(change.version, version);
            folded = toolpost_core::Patch::parse(&change.patch).unwrap().apply(&folded).unwrap();
        }
        assert_eq!(folded, *document.value);
    }
    assert_eq!(store.list("", None, 100).await.unwrap(), listed);
}

async fn run(steps: Vec<Step>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let mut store = Store::open(&path).unwrap();
    let mut model: Model = std::array::from_fn(|_| vec![Value::Null]);
    for step in steps {
        match step {
            Step::Commit { values, stale } => {
                let mut writes: Vec<_> =
                    values.iter().map(|(&name, value)| write(&newest(&model, name), value.clone())).collect();
                let conflict = stale > 0 && writes[0].base >= stale;
                if conflict {
                    writes[0].base -= stale;
                }
                let answer = store.commit(Commit { writes, ..Commit::default() }).await.unwrap();
                if conflict {
                    let first = *values.keys().next().unwrap();
                    assert_eq!(answer, Committed::Conflict(vec![newest(&model, first)]));
                } else {
                    let versions = values.keys().map(|&name| model[name].len() as u64).collect();
                    assert_eq!(answer, Committed::Done(versions));
                    for (name, value) in values {
                        model[name].push(value);
                    }
                }
            }
            Step::Many { name, times } => {
                for n in 0..times {
                    let value = json!({"n": n, "padding": "makes the patch smaller than the document"});
                    let writes = vec![write(&newest(&model, name), value.clone())];
                    store.commit(Commit { writes, ..Commit::default() }).await.unwrap();
                    model[name].push(value);
                }
            }
            Step::Reopen => {
                drop(store);
                store = Store::open(&path).unwrap();
            }
        }
    }
    check(&store, &model).await;
    drop(store);
    check(&Store::open(&path).unwrap(), &model).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_is_a_list_of_versions(steps in vec(step(), 1..40)) {
        block_on(run(steps));
    }
}

//! Planted faults that the checks must detect: a check that cannot fail proves nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use toolpost_llm::{ModelEvent, ModelId, RawJson, Response, StopReason};
use toolpost_testkit::recordings::{self, Answer, Interaction, Recording};

use super::requests::{allowed, built};
use super::{
    Dialect, answered, fold, in_lines, judge, kind_of, model_of, of_dialects, requests, round_trip, value,
};

/// Maximum depth of a planted fault.
const DEEPEST: usize = 8;

/// Number of streams per dialect with planted faults.
const STREAMS: usize = 60;

/// Whether an event is of a kind.
type IsOne = fn(&ModelEvent) -> bool;

/// A fault: its place and the faulty value.
struct Fault {
    place: String,
    value: Value,
}

/// One fault for each member and element of a value: omitted or changed.
fn faults(of: &Value, place: &str, depth: usize, found: &mut Vec<Fault>) {
    if depth == DEEPEST {
        return;
    }
    let mut plant = |place: String, value: Value| found.push(Fault { place, value });
    match of {
        Value::Object(members) => {
            for name in members.keys() {
                let mut less = members.clone();
                less.shift_remove(name);
                plant(format!("{place}.{name} dropped"), less.into());
            }
            for (name, member) in members {
                let mut inner = Vec::new();
                faults(member, &format!("{place}.{name}"), depth + 1, &mut inner);
                found.extend(inner.into_iter().map(|fault| {
                    let mut changed = members.clone();
                    changed.insert(name.clone(), fault.value);
                    Fault { place: fault.place, value: changed.into() }
                }));
            }
        }
        Value::Array(elements) => {
            if let Some((_, rest)) = elements.split_first() {
                plant(format!("{place}[] dropped"), rest.to_vec().into());
            }
            if elements.windows(2).any(|pair| pair[0] != pair[1]) {
                plant(format!("{place}[] reversed"), elements.iter().rev().cloned().collect());
            }
            // The first element represents all of its kind.
            if let Some(first) = elements.first() {
                let mut inner = Vec::new();
                faults(first, &format!("{place}[{}]", kind_of(first)), depth + 1, &mut inner);
                found.extend(inner.into_iter().map(|fault| {
                    let mut changed = elements.clone();
                    changed[0] = fault.value;
                    Fault { place: fault.place, value: changed.into() }
                }));
            }
        }
        Value::String(text) => plant(format!("{place} changed"), format!("{text}!").into()),
        Value::Bool(is) => plant(format!("{place} changed"), (!is).into()),
        Value::Number(number) => {
            plant(format!("{place} changed"), (number.as_f64().unwrap_or_default() + 1.0).into());
        }
        Value::Null => plant(format!("{place} changed"), "!".into()),
    }
}

/// The planted faults, and those that no check detected.
#[derive(Default)]
struct Planted {
    places: BTreeSet<String>,
    missed: Vec<String>,
}

impl Planted {
    /// Whether this place has no planted fault yet.
    fn is_new(&mut self, place: &str) -> bool {
        self.places.insert(place.to_owned())
    }
}

/// Faults in round trips.
fn in_what_goes_back(dialect: &dyn Dialect, interaction: &Interaction, planted: &mut Planted) {
    let Some((essence, response)) = answered(dialect, interaction) else { return };
    let expected = dialect.expected(&essence, &mut Vec::new());
    let Ok(sent) = round_trip::sent(dialect, &model_of(dialect, interaction), &response) else { return };
    let mut check = |place: String, altered: &[Value]| {
        let is_fault = !round_trip::wrong(dialect, &sent, altered).is_empty();
        if is_fault && planted.is_new(&place) && round_trip::wrong(dialect, &expected, altered).is_empty() {
            planted.missed.push(place);
        }
    };
    for (index, item) in sent.iter().enumerate() {
        let kind = kind_of(item);
        let mut found = Vec::new();
        faults(item, &format!("back {kind}"), 0, &mut found);
        for Fault { place, value } in found {
            let mut altered = sent.clone();
            altered[index] = value;
            check(place, &altered);
        }
        let mut less = sent.clone();
        less.remove(index);
        check(format!("back {kind} left out"), &less);
        let mut twice = sent.clone();
        twice.insert(index, item.clone());
        check(format!("back {kind} twice"), &twice);
        if index > 0 {
            let mut swapped = sent.clone();
            swapped.swap(index - 1, index);
            check(format!("back {kind} too early"), &swapped);
        }
    }
}

/// Faults of a fold: in the answer, in the events, and in both.
fn in_a_stream(dialect: &dyn Dialect, model: &ModelId, text: &str, planted: &mut Planted) {
    let lines = in_lines(text);
    let Ok((response, events)) = fold(dialect, model, [text.as_bytes()]) else { return };
    let mut check = |place: String, response: &Response, events: &[ModelEvent]| {
        if planted.is_new(&place) && judge(dialect, model, &lines, response, events).is_ok() {
            planted.missed.push(place);
        }
    };
    let with = |change: &dyn Fn(&mut Response)| {
        let mut altered = response.clone();
        change(&mut altered);
        altered
    };
    check("answer: id".into(), &with(&|answer| answer.id.push('!')), &events);
    check("answer: stop".into(), &with(&|answer| answer.stop = StopReason::Other("!".into())), &events);
    check("answer: usage".into(), &with(&|answer| answer.usage.output += 1), &events);
    if !response.items.is_empty() {
        check("answer: an item less".into(), &with(&|answer| drop(answer.items.pop())), &events);
    }
    let names: [(&str, IsOne); 3] = [
        ("text", |event| matches!(event, ModelEvent::TextDelta { text, .. } if !text.is_empty())),
        ("thinking", |event| matches!(event, ModelEvent::ThinkingDelta { text, .. } if !text.is_empty())),
        ("item", |event| matches!(event, ModelEvent::Item(_))),
    ];
    for (name, is_one) in names {
        let places: Vec<usize> = (0..events.len()).filter(|place| is_one(&events[*place])).collect();
        if let Some(place) = places.last() {
            let mut less = events.clone();
            less.remove(*place);
            check(format!("events: {name} lost"), &response, &less);
        }
        if let [.., first, second] = places.as_slice()
            && events[*first] != events[*second]
        {
            let mut swapped = events.clone();
            swapped.swap(*first, *second);
            check(format!("events: {name} in another order"), &response, &swapped);
        }
    }
    // Only the reference detects a value that the fold always loses.
    let body = value(&response.raw);
    let mut found = Vec::new();
    faults(&body, "fold", 0, &mut found);
    for Fault { place, value } in found {
        if dialect.essence(&value) == dialect.essence(&body) {
            continue;
        }
        let raw = RawJson::from(&value);
        let Ok(altered) = dialect.wire().read_body(model, 200, raw.get()) else { continue };
        let mut items = altered.items.iter();
        let events: Vec<ModelEvent> = events
            .iter()
            .filter_map(|event| match event {
                ModelEvent::Item(_) => items.next().cloned().map(ModelEvent::Item),
                other => Some(other.clone()),
            })
            .collect();
        check(place, &altered, &events);
    }
}

/// Faults in requests.
fn in_a_request(dialect: &dyn Dialect, interaction: &Interaction, planted: &mut Planted) {
    let allowed = allowed();
    if interaction.status >= 400 {
        return;
    }
    let Ok(Some((recorded, _, ours))) = built(dialect, interaction) else { return };
    if !requests::wrong(dialect, &allowed, recorded, &ours, &mut Vec::new()).is_empty() {
        return;
    }
    let mut found = Vec::new();
    faults(&ours, "request", 0, &mut found);
    for Fault { place, value } in found {
        // A conversation needs these members.
        if dialect.units(&value).is_none() || dialect.normal(&value) == dialect.normal(&ours) {
            continue;
        }
        // The recording lacks these members.
        if allowed.is_ours(dialect, &place) {
            continue;
        }
        let is_missed = || requests::wrong(dialect, &allowed, recorded, &value, &mut Vec::new()).is_empty();
        if planted.is_new(&place) && is_missed() {
            planted.missed.push(format!("{place} ({value})").chars().take(400).collect());
        }
    }
}

fn plant(dialect: &dyn Dialect, recordings: &[Recording]) -> Planted {
    let mut planted = Planted::default();
    let mut streams = 0;
    for interaction in recordings.iter().flat_map(|recording| &recording.interactions) {
        in_what_goes_back(dialect, interaction, &mut planted);
        in_a_request(dialect, interaction, &mut planted);
        if let Answer::Stream(text) = &interaction.answer
            && interaction.status < 400
            && dialect.is_whole(&in_lines(text))
            && streams < STREAMS
        {
            streams += 1;
            in_a_stream(dialect, &model_of(dialect, interaction), text, &mut planted);
        }
    }
    planted
}

#[test]
fn planted_faults_are_noticed() {
    let Some(found) = of_dialects("planted_faults_are_noticed") else { return };
    let planted: BTreeMap<&str, Planted> = std::thread::scope(|scope| {
        let threads: Vec<_> = found
            .dialects
            .into_iter()
            .map(|(dialect, recordings)| {
                scope.spawn(move || (dialect.provider(), plant(dialect, &recordings)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no check panics")).collect()
    });
    let mut missed = Vec::new();
    for (provider, planted) in &planted {
        println!("{provider}: {} faults planted, {} missed", planted.places.len(), planted.missed.len());
        missed.extend(planted.missed.iter().map(|place| format!("{provider}: {place}")));
        assert!(planted.places.len() > 100 || !recordings::is_known(), "{provider}: few faults were planted");
    }
    assert!(missed.is_empty(), "{} faults were missed:\n{}", missed.len(), missed.join("\n"));
}

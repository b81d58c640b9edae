//! The inverted index from words to tools.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::entry::CatalogEntry;
use super::search::{Found, Hit, Matching, Search};
use super::text::{base_forms, beginning, compounds, is_compound, query_words, words};

/// The maximum number of indexed words per field, and of indexed tags.
const MAX_WORDS: usize = 256;
const MAX_TAGS: usize = 64;
/// The maximum size of an indexed text, in bytes.
const MAX_TEXT: usize = 16 * 1024;
/// The maximum number of different words of a query.
const MAX_QUERY_WORDS: usize = 32;
/// The maximum size of a query, in bytes.
const MAX_QUERY: usize = 8 * 1024;
/// The index is rebuilt above this number of unused terms, if they are the majority.
const MAX_UNUSED: usize = 4096;

/// The fields of a tool as bits, and the weight of each.
const NAME: u8 = 1;
const TAGS: u8 = 2;
const DESCRIPTION: u8 = 4;
const CATEGORY: u8 = 8;
const GROUP: u8 = 16;
const WEIGHTS: [(u8, f32); 5] = [(NAME, 3.0), (TAGS, 2.0), (DESCRIPTION, 1.0), (CATEGORY, 1.0), (GROUP, 1.0)];
const TOTAL_WEIGHT: f32 = 8.0;

/// The quality of a match between a word of a tool and a word of a query.
const SAME: f32 = 1.0;
const SAME_STEM: f32 = 0.9;
const PREFIX: f32 = 0.75;
const CONTAINS: f32 = 0.5;
/// The maximum for a similar spelling.
const SIMILAR: f32 = 0.5;
/// The share of the score that depends on the matched part of the name.
const COVERAGE: f32 = 0.15;
/// The maximum score without the exact name, which scores 1.
const BEST_INEXACT: f32 = 0.99;

struct Posting {
    document: u32,
    /// The fields with the word, as bits.
    fields: u8,
}

struct Term {
    text: Arc<str>,
    /// Sorted by document.
    postings: Vec<Posting>,
}

struct Document {
    entry: Arc<CatalogEntry>,
    terms: Vec<u32>,
    name_words: u16,
}

/// The tools, in the order of registration, and their words.
#[derive(Default)]
pub(super) struct Index {
    documents: Vec<Option<Document>>,
    by_name: HashMap<String, u32>,
    terms: Vec<Term>,
    by_text: HashMap<Arc<str>, u32>,
    /// The terms by their first two bytes.
    beginnings: HashMap<[u8; 2], Vec<u32>>,
    /// The terms by each three bytes in them.
    trigrams: HashMap<[u8; 3], Vec<u32>>,
    unused_terms: usize,
    categories: BTreeMap<String, usize>,
    groups: BTreeMap<String, usize>,
}

/// The score of one tool during a search.
#[derive(Clone, Copy, Default)]
struct Tally {
    score: f32,
    named: f32,
    matched: u16,
    /// The best match of the query's current word, and its fields.
    best: f32,
    fields: u8,
}

fn weight_of(fields: u8) -> f32 {
    WEIGHTS.iter().filter(|(field, _)| fields & field != 0).map(|(_, weight)| weight).sum()
}

fn trigrams_of(text: &str) -> impl Iterator<Item = [u8; 3]> + '_ {
    text.as_bytes().windows(3).filter_map(|three| three.try_into().ok())
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<CatalogEntry>> {
        let document = self.documents.get(*self.by_name.get(name)? as usize)?;
        document.as_ref().map(|document| &document.entry)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<CatalogEntry>> {
        self.documents.iter().flatten().map(|document| &document.entry)
    }

    pub(super) fn categories(&self) -> impl Iterator<Item = &String> {
        self.categories.keys()
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &String> {
        self.groups.keys()
    }

    /// Adds a tool, or replaces the tool of the same name at its position.
    pub(super) fn insert(&mut self, entry: Arc<CatalogEntry>) {
        let known = self.by_name.get(entry.name()).copied();
        if let Some(id) = known {
            self.remove_postings(id);
        }
        let id = known.unwrap_or(self.documents.len() as u32);
        let mut found: Vec<(u32, u8)> = Vec::new();
        let mut add = |text: &str, field: u8| {
            let text = beginning(text, MAX_TEXT);
            for word in compounds(text, MAX_WORDS) {
                found.push((self.term(&word), field));
            }
            words(text, MAX_WORDS, |word| found.push((self.term(word), field)))
        };
        let name_words = add(entry.name(), NAME);
        for tag in entry.tags().iter().take(MAX_TAGS) {
            add(tag, TAGS);
        }
        for alias in
            entry.spec().map(|spec| spec.aliases.as_slice()).unwrap_or_default().iter().take(MAX_TAGS)
        {
            add(&alias.name, TAGS);
        }
        add(entry.category().unwrap_or_default(), CATEGORY);
        add(entry.group().unwrap_or_default(), GROUP);
        add(entry.description(), DESCRIPTION);
        found.sort_unstable();
        found.dedup_by(|(term, field), (last, fields)| {
            let same = term == last;
            *fields |= if same { *field } else { 0 };
            same
        });
        for (term, fields) in &found {
            let Some(term) = self.terms.get_mut(*term as usize) else { continue };
            self.unused_terms -= usize::from(term.postings.is_empty());
            let at = term.postings.partition_point(|posting| posting.document < id);
            term.postings.insert(at, Posting { document: id, fields: *fields });
        }
        for (names, name) in [(&mut self.categories, entry.category()), (&mut self.groups, entry.group())] {
            if let Some(name) = name.filter(|name| !name.is_empty()) {
                *names.entry(name.to_owned()).or_default() += 1;
            }
        }
        let name = entry.name().to_owned();
        let terms = found.into_iter().map(|(term, _)| term).collect();
        let document = Some(Document { entry, terms, name_words: name_words.clamp(1, 256) as u16 });
        match self.documents.get_mut(id as usize) {
            Some(place) => *place = document,
            None => self.documents.push(document),
        }
        self.by_name.insert(name, id);
        self.rebuild_if_sparse();
    }

    pub(super) fn remove(&mut self, name: &str) {
        let Some(id) = self.by_name.remove(name) else { return };
        self.remove_postings(id);
        if let Some(place) = self.documents.get_mut(id as usize) {
            *place = None;
        }
        self.rebuild_if_sparse();
    }

    fn remove_postings(&mut self, id: u32) {
        let Some(Some(document)) = self.documents.get_mut(id as usize) else { return };
        for term in std::mem::take(&mut document.terms) {
            let Some(term) = self.terms.get_mut(term as usize) else { continue };
            if let Ok(at) = term.postings.binary_search_by_key(&id, |posting| posting.document) {
                term.postings.remove(at);
                self.unused_terms += usize::from(term.postings.is_empty());
            }
        }
        let entry = &document.entry;
        for (names, name) in [(&mut self.categories, entry.category()), (&mut self.groups, entry.group())] {
            let Some(count) = name.and_then(|name| names.get_mut(name)) else { continue };
            *count -= 1;
            if *count == 0 {
                names.remove(name.unwrap_or_default());
            }
        }
    }

    /// The id of a word. Adds a new word without postings.
    fn term(&mut self, word: &str) -> u32 {
        if let Some(id) = self.by_text.get(word) {
            return *id;
        }
        let id = self.terms.len() as u32;
        let text: Arc<str> = word.into();
        let source = if is_compound(word) { "" } else { word };
        for three in trigrams_of(source) {
            let known = self.trigrams.entry(three).or_default();
            if known.last() != Some(&id) {
                known.push(id);
            }
        }
        if let Some(two) = word.as_bytes().first_chunk() {
            self.beginnings.entry(*two).or_default().push(id);
        }
        self.by_text.insert(Arc::clone(&text), id);
        self.terms.push(Term { text, postings: Vec::new() });
        self.unused_terms += 1;
        id
    }

    /// Bounds the memory of removed tools and their words.
    fn rebuild_if_sparse(&mut self) {
        let removed = self.documents.len() - self.by_name.len();
        let is_sparse = |unused: usize, all: usize| unused > MAX_UNUSED && unused > all / 2;
        if is_sparse(self.unused_terms, self.terms.len()) || is_sparse(removed, self.documents.len()) {
            let entries: Vec<Arc<CatalogEntry>> = self.entries().cloned().collect();
            *self = Self::default();
            for entry in entries {
                self.insert(entry);
            }
        }
    }

    /// Searches for tools, the best first; ties in the order of registration.
    pub(super) fn search(&self, search: &Search) -> Found {
        let query =
            search.query.as_deref().map(|query| beginning(query.trim(), MAX_QUERY)).unwrap_or_default();
        let mut ranked: Vec<(f32, u32)> = if query.is_empty() {
            let all = 0..self.documents.len() as u32;
            all.filter(|id| self.passes(*id, search)).map(|id| (0.0, id)).collect()
        } else {
            let mut ranked = self.rank(query, search);
            let least = search.min_score as f32;
            ranked.retain(|(score, id)| *score >= least && self.passes(*id, search));
            ranked
        };
        let total = ranked.len();
        let end = search.offset.saturating_add(search.limit);
        let order = |one: &(f32, u32), other: &(f32, u32)| {
            other.0.total_cmp(&one.0).then_with(|| one.1.cmp(&other.1))
        };
        if end < total {
            ranked.select_nth_unstable_by(end, order);
            ranked.truncate(end);
        }
        ranked.sort_unstable_by(order);
        let hits = ranked.into_iter().skip(search.offset).filter_map(|(score, id)| {
            let document = self.documents.get(id as usize)?.as_ref()?;
            Some(Hit { entry: Arc::clone(&document.entry), score: f64::from(score) })
        });
        Found { hits: hits.collect(), total }
    }

    fn passes(&self, id: u32, search: &Search) -> bool {
        let document = self.documents.get(id as usize).and_then(Option::as_ref);
        document.is_some_and(|document| search.filters_pass(&document.entry))
    }

    fn rank(&self, query: &str, search: &Search) -> Vec<(f32, u32)> {
        let query_terms = query_words(query, MAX_QUERY_WORDS);
        let needed = match search.matching {
            Matching::Majority => query_terms.len().div_ceil(2).max(1),
            Matching::Any => 1,
        };
        let mut tallies = vec![Tally::default(); self.documents.len()];
        let mut touched: Vec<u32> = Vec::new();
        let mut matched: Vec<u32> = Vec::new();
        let mut best_possible = 0.0_f32;
        // A compound scores more than its parts, and is not needed for a match.
        let whole: Vec<String> = compounds(query, MAX_QUERY_WORDS).collect();
        for word in query_terms.iter().chain(&whole) {
            for (term, quality) in self.matches(word) {
                let Some(term) = self.terms.get(term as usize) else { continue };
                for posting in &term.postings {
                    let Some(tally) = tallies.get_mut(posting.document as usize) else { continue };
                    let value = quality * weight_of(posting.fields);
                    if tally.best == 0.0 {
                        touched.push(posting.document);
                    }
                    if value > tally.best {
                        (tally.best, tally.fields) = (value, posting.fields);
                    }
                }
            }
            // A rare word weighs more than a common one.
            let (all, matching) = (self.len() as f32, touched.len() as f32);
            let weight = (1.0 + (all - matching + 0.5) / (matching + 0.5)).ln();
            best_possible += weight * TOTAL_WEIGHT;
            for id in touched.drain(..) {
                let Some(tally) = tallies.get_mut(id as usize) else { continue };
                if tally.matched == 0 {
                    matched.push(id);
                }
                tally.matched += u16::from(!is_compound(word));
                tally.score += weight * tally.best;
                tally.named += f32::from(u8::from(tally.fields & NAME != 0 && !is_compound(word)));
                (tally.best, tally.fields) = (0.0, 0);
            }
        }
        let exact = self.by_name.get(query).copied().or_else(|| {
            let same = |id: &u32| {
                self.documents
                    .get(*id as usize)
                    .and_then(Option::as_ref)
                    .is_some_and(|document| document.entry.name().eq_ignore_ascii_case(query))
            };
            matched.iter().copied().filter(same).min()
        });
        let scored = matched.into_iter().filter_map(|id| {
            let tally = tallies.get(id as usize)?;
            let words = self.documents.get(id as usize)?.as_ref()?.name_words;
            let covered = (tally.named / f32::from(words)).min(1.0);
            let score = tally.score / best_possible * (1.0 - COVERAGE + COVERAGE * covered);
            (usize::from(tally.matched) >= needed).then_some((score.min(BEST_INEXACT), id))
        });
        let mut ranked: Vec<(f32, u32)> = scored.filter(|(_, id)| Some(*id) != exact).collect();
        ranked.extend(exact.map(|id| (SAME, id)));
        ranked
    }

    /// The indexed words that match a word of a query, with the quality of each match.
    fn matches(&self, word: &str) -> Vec<(u32, f32)> {
        let letters = word.chars().count();
        let mut found: Vec<(u32, f32)> = Vec::new();
        if is_compound(word) {
            found.extend(self.by_text.get(word).map(|id| (*id, SAME)));
            return found;
        }
        // Two letters are a word in scripts without spaces.
        if letters >= 3 || (letters == 2 && !word.is_ascii()) {
            found.extend(self.containing(word));
        } else if letters == 2 {
            let two = word.as_bytes().first_chunk().and_then(|two: &[u8; 2]| self.beginnings.get(two));
            let known = two.into_iter().flatten().filter_map(|id| Some((*id, self.terms.get(*id as usize)?)));
            found.extend(known.map(|(id, term)| (id, quality(&term.text, word))));
        } else {
            found.extend(self.by_text.get(word).map(|id| (*id, SAME)));
        }
        for form in base_forms(word) {
            found.extend(self.by_text.get(form.as_str()).map(|id| (*id, SAME_STEM)));
        }
        if found.is_empty() && letters >= 5 {
            found = self.similar(word);
        }
        found
    }

    /// The indexed words that contain a text of at least three bytes.
    fn containing<'a>(&'a self, part: &'a str) -> impl Iterator<Item = (u32, f32)> + 'a {
        // The rarest trigram leaves the fewest candidates.
        let candidates = trigrams_of(part)
            .map(|three| self.trigrams.get(&three).map(Vec::as_slice).unwrap_or_default())
            .min_by_key(|known| known.len())
            .unwrap_or_default();
        candidates.iter().filter_map(move |id| {
            let text = &*self.terms.get(*id as usize)?.text;
            text.contains(part).then(|| (*id, quality(text, part)))
        })
    }

    /// The indexed words that share at least half of their trigrams.
    fn similar(&self, word: &str) -> Vec<(u32, f32)> {
        let mut shared: BTreeMap<u32, usize> = BTreeMap::new();
        for three in trigrams_of(word) {
            for id in self.trigrams.get(&three).map(Vec::as_slice).unwrap_or_default() {
                *shared.entry(*id).or_default() += 1;
            }
        }
        let own = word.len().saturating_sub(2);
        let near = shared.into_iter().filter_map(|(id, shared)| {
            let other = self.terms.get(id as usize)?.text.len().saturating_sub(2);
            let alike = 2.0 * shared as f32 / (own + other) as f32;
            (alike >= 0.5).then_some((id, (SIMILAR * alike).min(SIMILAR)))
        });
        near.collect()
    }
}

/// The quality of the match between an indexed word and a part of it.
fn quality(text: &str, part: &str) -> f32 {
    match text.strip_prefix(part) {
        Some("") => SAME,
        Some("s" | "es" | "d" | "ed" | "r" | "er" | "ing") => SAME_STEM,
        Some(_) => PREFIX,
        None => CONTAINS,
    }
}

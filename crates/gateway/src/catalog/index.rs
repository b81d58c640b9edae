//! The inverted index: from a word to the tools that have it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::entry::CatalogEntry;
use super::search::{Found, Hit, Matching, Search};
use super::text::{base_forms, beginning, compounds, is_compound, query_words, words};

/// How many words of one place of a tool are kept, and how many of its tags.
const MAX_WORDS: usize = 256;
const MAX_TAGS: usize = 64;
/// How many bytes of a description are read.
const MAX_TEXT: usize = 16 * 1024;
/// How many different words of a query count.
const MAX_QUERY_WORDS: usize = 32;
/// How many bytes of a query are read.
const MAX_QUERY: usize = 8 * 1024;
/// From so many words without a tool on, the index is made anew once they are the most.
const MAX_UNUSED: usize = 4096;

/// Where in a tool a word stands, as bits; and what each place is worth.
const NAME: u8 = 1;
const TAGS: u8 = 2;
const DESCRIPTION: u8 = 4;
const CATEGORY: u8 = 8;
const GROUP: u8 = 16;
const WORTH: [(u8, f32); 5] = [(NAME, 3.0), (TAGS, 2.0), (DESCRIPTION, 1.0), (CATEGORY, 1.0), (GROUP, 1.0)];
const WORTH_OF_ALL: f32 = 8.0;

/// How well a word of a tool answers a word of a query.
const SAME: f32 = 1.0;
const SAME_STEM: f32 = 0.9;
const BEGINS: f32 = 0.75;
const CONTAINS: f32 = 0.5;
/// A word that is spelt nearly so, at most.
const SIMILAR: f32 = 0.5;
/// How much of a score depends on how much of the name was asked for.
const COVERAGE: f32 = 0.15;
/// What only the exact name reaches is 1.
const BEST_INEXACT: f32 = 0.99;

struct Posting {
    document: u32,
    places: u8,
}

struct Term {
    text: Arc<str>,
    /// In the order of the documents.
    postings: Vec<Posting>,
}

struct Document {
    entry: Arc<CatalogEntry>,
    terms: Vec<u32>,
    name_words: u16,
}

/// The tools, in the order of their coming, and their words.
#[derive(Default)]
pub(super) struct Index {
    documents: Vec<Option<Document>>,
    by_name: HashMap<String, u32>,
    terms: Vec<Term>,
    by_text: HashMap<Arc<str>, u32>,
    /// The words that begin with these two bytes.
    beginnings: HashMap<[u8; 2], Vec<u32>>,
    /// The words that have these three bytes.
    trigrams: HashMap<[u8; 3], Vec<u32>>,
    unused_terms: usize,
    categories: BTreeMap<String, usize>,
    groups: BTreeMap<String, usize>,
}

/// What a search knows of one tool.
#[derive(Clone, Copy, Default)]
struct Tally {
    score: f32,
    named: f32,
    matched: u16,
    /// Of the query's present word: how well it is answered, and where.
    best: f32,
    places: u8,
}

fn worth(places: u8) -> f32 {
    WORTH.iter().filter(|(place, _)| places & place != 0).map(|(_, worth)| worth).sum()
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

    /// Takes a tool in; one of the same name is replaced, at its place.
    pub(super) fn insert(&mut self, entry: Arc<CatalogEntry>) {
        let known = self.by_name.get(entry.name()).copied();
        if let Some(id) = known {
            self.forget_words(id);
        }
        let id = known.unwrap_or(self.documents.len() as u32);
        let mut found: Vec<(u32, u8)> = Vec::new();
        let mut add = |text: &str, place: u8| {
            let text = beginning(text, MAX_TEXT);
            for word in compounds(text, MAX_WORDS) {
                found.push((self.term(&word), place));
            }
            words(text, MAX_WORDS, |word| found.push((self.term(word), place)))
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
        found.dedup_by(|(term, place), (kept, places)| {
            let same = term == kept;
            *places |= if same { *place } else { 0 };
            same
        });
        for (term, places) in &found {
            let Some(term) = self.terms.get_mut(*term as usize) else { continue };
            self.unused_terms -= usize::from(term.postings.is_empty());
            let at = term.postings.partition_point(|posting| posting.document < id);
            term.postings.insert(at, Posting { document: id, places: *places });
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
        self.make_anew_if_worn();
    }

    pub(super) fn remove(&mut self, name: &str) {
        let Some(id) = self.by_name.remove(name) else { return };
        self.forget_words(id);
        if let Some(place) = self.documents.get_mut(id as usize) {
            *place = None;
        }
        self.make_anew_if_worn();
    }

    fn forget_words(&mut self, id: u32) {
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

    /// The number of a word, which is made known if it is new. A new one has no tool yet.
    fn term(&mut self, word: &str) -> u32 {
        if let Some(id) = self.by_text.get(word) {
            return *id;
        }
        let id = self.terms.len() as u32;
        let text: Arc<str> = word.into();
        let threes = if is_compound(word) { "" } else { word };
        for three in trigrams_of(threes) {
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

    /// Tools come and go: what is left of those that went must not grow for ever.
    fn make_anew_if_worn(&mut self) {
        let gone = self.documents.len() - self.by_name.len();
        let worn = |unused: usize, all: usize| unused > MAX_UNUSED && unused > all / 2;
        if worn(self.unused_terms, self.terms.len()) || worn(gone, self.documents.len()) {
            let entries: Vec<Arc<CatalogEntry>> = self.entries().cloned().collect();
            *self = Self::default();
            for entry in entries {
                self.insert(entry);
            }
        }
    }

    /// The tools that fit, the best first; equal ones in the order of their coming.
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
        let asked = query_words(query, MAX_QUERY_WORDS);
        let needed = match search.matching {
            Matching::Majority => asked.len().div_ceil(2).max(1),
            Matching::Any => 1,
        };
        let mut tallies = vec![Tally::default(); self.documents.len()];
        let mut touched: Vec<u32> = Vec::new();
        let mut fitting: Vec<u32> = Vec::new();
        let mut best_possible = 0.0_f32;
        // A word that is made of several is worth more than its parts, and is not needed for a match.
        let whole: Vec<String> = compounds(query, MAX_QUERY_WORDS).collect();
        for word in asked.iter().chain(&whole) {
            for (term, quality) in self.answers(word) {
                let Some(term) = self.terms.get(term as usize) else { continue };
                for posting in &term.postings {
                    let Some(tally) = tallies.get_mut(posting.document as usize) else { continue };
                    let value = quality * worth(posting.places);
                    if tally.best == 0.0 {
                        touched.push(posting.document);
                    }
                    if value > tally.best {
                        (tally.best, tally.places) = (value, posting.places);
                    }
                }
            }
            // A word that few tools have says more than one that all have.
            let (all, having) = (self.len() as f32, touched.len() as f32);
            let weight = (1.0 + (all - having + 0.5) / (having + 0.5)).ln();
            best_possible += weight * WORTH_OF_ALL;
            for id in touched.drain(..) {
                let Some(tally) = tallies.get_mut(id as usize) else { continue };
                if tally.matched == 0 {
                    fitting.push(id);
                }
                tally.matched += u16::from(!is_compound(word));
                tally.score += weight * tally.best;
                tally.named += f32::from(u8::from(tally.places & NAME != 0 && !is_compound(word)));
                (tally.best, tally.places) = (0.0, 0);
            }
        }
        let exact = self.by_name.get(query).copied().or_else(|| {
            let same = |id: &u32| {
                self.documents
                    .get(*id as usize)
                    .and_then(Option::as_ref)
                    .is_some_and(|document| document.entry.name().eq_ignore_ascii_case(query))
            };
            fitting.iter().copied().filter(same).min()
        });
        let fits = fitting.into_iter().filter_map(|id| {
            let tally = tallies.get(id as usize)?;
            let words = self.documents.get(id as usize)?.as_ref()?.name_words;
            let covered = (tally.named / f32::from(words)).min(1.0);
            let score = tally.score / best_possible * (1.0 - COVERAGE + COVERAGE * covered);
            (usize::from(tally.matched) >= needed).then_some((score.min(BEST_INEXACT), id))
        });
        let mut ranked: Vec<(f32, u32)> = fits.filter(|(_, id)| Some(*id) != exact).collect();
        ranked.extend(exact.map(|id| (SAME, id)));
        ranked
    }

    /// The known words that answer a word of a query, and how well.
    fn answers(&self, word: &str) -> Vec<(u32, f32)> {
        let letters = word.chars().count();
        let mut found: Vec<(u32, f32)> = Vec::new();
        if is_compound(word) {
            found.extend(self.by_text.get(word).map(|id| (*id, SAME)));
            return found;
        }
        // In scripts without spaces two letters are a word within a word.
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

    /// The words that contain a text of at least three bytes.
    fn containing<'a>(&'a self, part: &'a str) -> impl Iterator<Item = (u32, f32)> + 'a {
        // Whichever three bytes the fewest words have leave the least to look at.
        let candidates = trigrams_of(part)
            .map(|three| self.trigrams.get(&three).map(Vec::as_slice).unwrap_or_default())
            .min_by_key(|known| known.len())
            .unwrap_or_default();
        candidates.iter().filter_map(move |id| {
            let text = &*self.terms.get(*id as usize)?.text;
            text.contains(part).then(|| (*id, quality(text, part)))
        })
    }

    /// The words that are spelt nearly so: that share at least half of their threes of letters.
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

/// How well a known word answers one that it contains.
fn quality(text: &str, part: &str) -> f32 {
    match text.strip_prefix(part) {
        Some("") => SAME,
        Some("s" | "es" | "d" | "ed" | "r" | "er" | "ing") => SAME_STEM,
        Some(_) => BEGINS,
        None => CONTAINS,
    }
}

//! Reads the counts of a provider's usage record.

use std::collections::BTreeMap;

use crate::fields::Members;

/// Reads counts and records whether one was invalid, so that the cost is unknown.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Whether a required count was missing or a count was invalid.
    pub(crate) incomplete: bool,
}

impl Counts {
    /// A required count.
    pub(crate) fn required(&mut self, record: &Members<'_>, name: &str) -> u64 {
        let count = self.optional(record, name);
        self.incomplete |= count.is_none();
        count.unwrap_or_default()
    }

    /// An optional count: absent, `null` or a number.
    pub(crate) fn optional(&mut self, record: &Members<'_>, name: &str) -> Option<u64> {
        self.known(record, name, |record| record.read(name))
    }

    /// An optional object of the record; without members if absent or `null`.
    pub(crate) fn part<'a>(&mut self, record: &Members<'a>, name: &str) -> Members<'a> {
        self.known(record, name, |record| record.read(name)).unwrap_or_default()
    }

    /// An optional list of objects.
    pub(crate) fn parts<'a>(&mut self, record: &Members<'a>, name: &str) -> Vec<Members<'a>> {
        self.known(record, name, |record| record.read(name)).unwrap_or_default()
    }

    /// The uses of hosted tools by name, an optional object.
    pub(crate) fn uses(&mut self, record: &Members<'_>, name: &str) -> BTreeMap<String, u64> {
        let uses: Option<BTreeMap<String, Option<u64>>> =
            self.known(record, name, |record| record.read(name));
        let uses = uses.unwrap_or_default().into_iter();
        uses.filter_map(|(name, count)| Some((name, count.filter(|count| *count > 0)?))).collect()
    }

    fn known<'a, T>(
        &mut self,
        record: &Members<'a>,
        name: &str,
        read: impl FnOnce(&Members<'a>) -> Option<T>,
    ) -> Option<T> {
        let found = read(record);
        let is_present = record.get(name).is_some_and(|value| value.get() != "null");
        self.incomplete |= found.is_none() && is_present;
        found
    }
}

//! Walking a parsed TOML document: every key is asked for by name, and one that nobody asked for is an error that names
//! its line and the nearest key that there is.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Source, nearest};

/// A table of the document that is being read.
pub(crate) struct Section<'a> {
    source: Source<'a>,
    /// How messages call it: `[node]`, or empty for the root.
    name: String,
    table: &'a DeTable<'a>,
    at: Range<usize>,
    asked: Vec<&'static str>,
}

/// A key with its value.
#[derive(Clone)]
pub(crate) struct Entry<'a> {
    source: Source<'a>,
    pub(crate) key: &'a str,
    /// Where the key stands.
    pub(crate) key_at: Range<usize>,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Section<'a> {
    /// The root of a document.
    pub(crate) fn root(source: Source<'a>, document: &'a Spanned<DeTable<'a>>) -> Self {
        Self { source, name: String::new(), table: document.get_ref(), at: 0..0, asked: Vec::new() }
    }

    /// The entry under `key`, if there is one. The key counts as known from now on.
    pub(crate) fn entry(&mut self, key: &'static str) -> Option<Entry<'a>> {
        self.asked.push(key);
        self.entries().find(|entry| entry.key == key)
    }

    /// All entries, in the order of their keys.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let source = self.source;
        self.table.iter().map(move |(key, value)| Entry { source, key: key.get_ref(), key_at: key.span(), value })
    }

    /// The table `[key]`; an absent one is like an empty one.
    pub(crate) fn section(&mut self, key: &'static str) -> Result<Option<Section<'a>>, ConfigError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.value.get_ref() {
            DeValue::Table(table) => Ok(Some(Section {
                source: self.source,
                name: format!("[{key}]"),
                table,
                at: entry.key_at,
                asked: Vec::new(),
            })),
            _ => Err(entry.wrong(format!("a table, written [{key}]"))),
        }
    }

    /// The tables `[[key]]`, in the order of the file.
    pub(crate) fn sections(&mut self, key: &'static str) -> Result<Vec<Section<'a>>, ConfigError> {
        let Some(entry) = self.entry(key) else { return Ok(Vec::new()) };
        let wrong = || entry.wrong(format!("tables, each written [[{key}]]"));
        let DeValue::Array(array) = entry.value.get_ref() else { return Err(wrong()) };
        array
            .iter()
            .map(|element| match element.get_ref() {
                DeValue::Table(table) => Ok(Section {
                    source: self.source,
                    name: format!("[[{key}]]"),
                    table,
                    at: element.span(),
                    asked: Vec::new(),
                }),
                _ => Err(wrong()),
            })
            .collect()
    }

    /// The entries that [`entry`](Self::entry) was not asked for.
    pub(crate) fn others(&self) -> impl Iterator<Item = Entry<'a>> + use<'a, '_> {
        self.entries().filter(|entry| !self.asked.contains(&entry.key))
    }

    /// Ends the reading: what nobody asked for is unknown.
    pub(crate) fn done(&self) -> Result<(), ConfigError> {
        self.others().next().map_or(Ok(()), |entry| Err(self.unknown(&entry, &[])))
    }

    /// The error that `entry` is unknown here; keys besides the ones asked for may be given.
    pub(crate) fn unknown(&self, entry: &Entry<'a>, besides: &[&'static str]) -> ConfigError {
        let what = match entry.value.get_ref() {
            DeValue::Table(_) if self.name.is_empty() => format!("unknown table [{}]", entry.key),
            _ if self.name.is_empty() => format!("unknown key `{}` outside any table", entry.key),
            _ => format!("unknown key `{}` in {}", entry.key, self.name),
        };
        let known = || self.asked.iter().chain(besides).copied();
        let hint = match nearest(entry.key, known()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", known().collect::<Vec<_>>().join(", ")),
        };
        self.source.error(entry.key_at.clone(), what, hint)
    }

    /// An error about the section as a whole.
    pub(crate) fn error(&self, message: impl std::fmt::Display) -> ConfigError {
        self.source.error(self.at.clone(), message, "")
    }

    /// The text under `key`, which must be there.
    pub(crate) fn required(&mut self, key: &'static str) -> Result<(String, Entry<'a>), ConfigError> {
        match self.entry(key) {
            Some(entry) => Ok((entry.string()?, entry)),
            None => {
                let message = format!("{} has no `{key}`", self.name);
                Err(self.source.error(self.at.clone(), message, format!("add `{key} = \"…\"`")))
            }
        }
    }

    /// The text under `key`, if any.
    pub(crate) fn string(&mut self, key: &'static str) -> Result<Option<String>, ConfigError> {
        self.entry(key).map(|entry| entry.string()).transpose()
    }

    /// The truth value under `key`, if any.
    pub(crate) fn boolean(&mut self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.value.get_ref() {
            DeValue::Boolean(value) => Ok(Some(*value)),
            _ => Err(entry.wrong("true or false")),
        }
    }
}

impl Entry<'_> {
    /// The value, which must be a string.
    pub(crate) fn string(&self) -> Result<String, ConfigError> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            _ => Err(self.wrong("a string in quotes")),
        }
    }

    /// The value of a setting as text: settings are written as strings, whole numbers, or truth values.
    pub(crate) fn setting(&self) -> Result<String, ConfigError> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
                .map(|number| number.to_string())
                .map_err(|_| self.wrong("a whole number")),
            DeValue::Boolean(value) => Ok(value.to_string()),
            _ => Err(self.wrong("a string, a whole number, true or false")),
        }
    }

    /// The error that the value is not what it should be.
    pub(crate) fn wrong(&self, expected: impl std::fmt::Display) -> ConfigError {
        let kind = match self.value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "a truth value",
            DeValue::Datetime(_) => "a time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.error(format!("`{}` is {kind}: expected {expected}", self.key), "")
    }

    /// An error about the value.
    pub(crate) fn error(&self, message: impl std::fmt::Display, hint: impl Into<String>) -> ConfigError {
        self.source.error(self.key_at.clone(), message, hint)
    }
}

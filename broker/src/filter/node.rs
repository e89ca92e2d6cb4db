//! The tree of a condition: evaluating it and writing it down.

use std::cmp::Ordering;
use std::fmt;

use stentor_core::Record;

use super::like::Pattern;
use super::number::Number;

/// A condition. `And` and `Or` hold at least two parts, none of them of their own kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Compare { name: Name, op: Comparison, with: Literal },
    In { name: Name, list: Vec<Literal>, negated: bool },
    Like { name: Name, pattern: Pattern, negated: bool },
    IsNull { name: Name, negated: bool },
}

/// What of a message is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Tag,
    Key,
    Header(Box<str>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    Text(Box<str>),
    Number(Number),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }

    /// The same with its sides changed over.
    pub(super) const fn flipped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            same => same,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }
}

impl Name {
    /// The value of it in `record`; none is NULL.
    fn of<'a>(&self, record: &'a Record) -> Option<&'a [u8]> {
        match self {
            Self::Tag => record.tag.as_ref().map(|tag| tag.as_bytes().as_ref()),
            Self::Key => record.key.as_deref(),
            Self::Header(name) => {
                let named =
                    |header: &&stentor_core::batch::RecordHeader| header.name.as_bytes().as_ref() == name.as_bytes();
                record.headers.iter().find(named).map(|header| header.value.as_ref())
            }
        }
    }
}

impl Literal {
    /// How `value` compares with it; none is unknown.
    fn compare(&self, value: &[u8]) -> Option<Ordering> {
        match self {
            Self::Text(text) => Some(value.cmp(text.as_bytes())),
            Self::Number(number) => Number::parse(value)?.compare(*number),
        }
    }
}

impl Node {
    /// Whether the condition holds; none is unknown.
    pub(super) fn eval(&self, record: &Record) -> Option<bool> {
        match self {
            Self::And(parts) => all(parts.iter().map(|part| part.eval(record)), false),
            Self::Or(parts) => all(parts.iter().map(|part| part.eval(record)), true),
            Self::Not(part) => part.eval(record).map(|holds| !holds),
            Self::Compare { name, op, with } => Some(op.holds(with.compare(name.of(record)?)?)),
            Self::In { name, list, negated } => {
                let value = name.of(record)?;
                let among = all(list.iter().map(|item| item.compare(value).map(Ordering::is_eq)), true)?;
                Some(among != *negated)
            }
            Self::Like { name, pattern, negated } => Some(pattern.matches(name.of(record)?)? != *negated),
            Self::IsNull { name, negated } => Some(name.of(record).is_none() != *negated),
        }
    }
}

/// AND (`decisive` is false) or OR (it is true) of three-valued parts: a decisive one decides, else an unknown one does.
fn all(parts: impl Iterator<Item = Option<bool>>, decisive: bool) -> Option<bool> {
    let mut result = Some(!decisive);
    for part in parts {
        match part {
            Some(holds) if holds == decisive => return Some(decisive),
            Some(_) => {}
            None => result = None,
        }
    }
    result
}

/// Normalised SQL: parentheses only where they are needed, one spelling for each operator.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = |negated: bool| if negated { "NOT " } else { "" };
        match self {
            Self::And(parts) => joined(f, parts, " AND ", |part| matches!(part, Self::Or(_))),
            Self::Or(parts) => joined(f, parts, " OR ", |_| false),
            Self::Not(part) => write!(f, "NOT ({part})"),
            Self::Compare { name, op, with } => write!(f, "{name} {} {with}", op.as_str()),
            Self::In { name, list, negated } => {
                write!(f, "{name} {}IN (", not(*negated))?;
                for (index, item) in list.iter().enumerate() {
                    write!(f, "{}{item}", if index > 0 { ", " } else { "" })?;
                }
                f.write_str(")")
            }
            Self::Like { name, pattern, negated } => write!(f, "{name} {}LIKE {pattern}", not(*negated)),
            Self::IsNull { name, negated } => write!(f, "{name} IS {}NULL", not(*negated)),
        }
    }
}

fn joined(f: &mut fmt::Formatter<'_>, parts: &[Node], by: &str, enclosed: impl Fn(&Node) -> bool) -> fmt::Result {
    for (index, part) in parts.iter().enumerate() {
        f.write_str(if index > 0 { by } else { "" })?;
        if enclosed(part) { write!(f, "({part})")? } else { fmt::Display::fmt(part, f)? }
    }
    Ok(())
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag => f.write_str("tag"),
            Self::Key => f.write_str("key"),
            Self::Header(name) if is_plain(name) => f.write_str(name),
            Self::Header(name) => write!(f, "\"{}\"", name.replace('"', "\"\"")),
        }
    }
}

/// Whether a name needs no quotes: a word that no dialect of SQL has a use for.
fn is_plain(name: &str) -> bool {
    let word = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
    word && sqlparser::keywords::ALL_KEYWORDS.binary_search(&name.to_ascii_uppercase().as_str()).is_err()
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
            Self::Number(number) => number.fmt(f),
        }
    }
}

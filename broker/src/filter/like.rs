//! LIKE patterns: `%` is any run of characters, `_` any one character.

use std::fmt;

/// Longer values are not looked at: the comparison is unknown. It bounds the time that one message can take.
const VALUE_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Char(char),
    One,
    Run,
}

/// A pattern, compiled. Two patterns are equal if they match the same by the same means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    tokens: Vec<Token>,
}

/// How the normalised text escapes.
const ESCAPE: char = '\\';

impl Pattern {
    /// Reads a pattern; `escape` makes the character behind it an ordinary one.
    pub(super) fn new(text: &str, escape: Option<char>) -> Result<Self, &'static str> {
        let mut tokens = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let token = if Some(c) == escape {
                match chars.next() {
                    Some(c) if c == '%' || c == '_' || Some(c) == escape => Token::Char(c),
                    _ => return Err("LIKE pattern whose escape character is not before `%`, `_` or itself"),
                }
            } else {
                match c {
                    '%' => Token::Run,
                    '_' => Token::One,
                    c => Token::Char(c),
                }
            };
            // A run of runs is one run.
            if token != Token::Run || tokens.last() != Some(&Token::Run) {
                tokens.push(token);
            }
        }
        Ok(Self { tokens })
    }

    /// Whether the whole of `value` matches; unknown for what is no text, or too long to look at.
    pub(super) fn matches(&self, value: &[u8]) -> Option<bool> {
        if value.len() > VALUE_BYTES_MAX {
            return None;
        }
        let value = str::from_utf8(value).ok()?;
        // Greedy with one point of return: the last run.
        let (mut at, mut rest) = (0, value.chars());
        let mut back: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            let before = rest.clone();
            match (self.tokens.get(at), rest.next()) {
                (None, None) => return Some(true),
                (Some(Token::Run), _) => {
                    rest = before;
                    at += 1;
                    back = Some((at, rest.clone()));
                }
                (Some(Token::One), Some(_)) => at += 1,
                (Some(Token::Char(c)), Some(found)) if *c == found => at += 1,
                // The value has ended and the pattern wants more: taking more into the last run cannot help.
                (Some(_), None) => return Some(false),
                _ => {
                    let Some((token, mut from)) = back.take() else { return Some(false) };
                    if from.next().is_none() {
                        return Some(false);
                    }
                    at = token;
                    rest = from.clone();
                    back = Some((token, from));
                }
            }
        }
    }
}

/// As it stands behind LIKE, in one spelling whatever the escape character was.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let special = |c: char| c == '%' || c == '_';
        // Without an escape character where none is needed.
        let escapes = self.tokens.iter().any(|token| matches!(token, Token::Char(c) if special(*c)));
        f.write_str("'")?;
        for token in &self.tokens {
            match token {
                Token::Run => f.write_str("%")?,
                Token::One => f.write_str("_")?,
                Token::Char('\'') => f.write_str("''")?,
                Token::Char(c) => {
                    if escapes && (special(*c) || *c == ESCAPE) {
                        write!(f, "{ESCAPE}")?;
                    }
                    write!(f, "{c}")?;
                }
            }
        }
        f.write_str("'")?;
        if escapes { write!(f, " ESCAPE '{ESCAPE}'") } else { Ok(()) }
    }
}

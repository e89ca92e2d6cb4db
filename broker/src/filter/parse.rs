//! From SQL to the tree. The parser reads all of SQL; what filters do not take is refused by name.

use sqlparser::ast::{BinaryOperator, Expr, InTarget, UnaryOperator, Value};
use sqlparser::dialect::Dialect;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::Token;

use super::like::Pattern;
use super::node::{Comparison, Literal, Name, Node};
use super::number::Number;
use super::{FILTER_BYTES_MAX, FILTER_DEPTH_MAX, FilterError};

/// SQL-92, with JMS's rule for names: they begin with a letter, `_` or `$`, and go on with those and digits.
#[derive(Debug)]
struct FilterDialect;

impl Dialect for FilterDialect {
    fn is_identifier_start(&self, c: char) -> bool {
        c.is_alphabetic() || c == '_' || c == '$'
    }

    fn is_identifier_part(&self, c: char) -> bool {
        c.is_alphanumeric() || c == '_' || c == '$'
    }

    fn is_delimited_identifier_start(&self, c: char) -> bool {
        c == '"'
    }

    fn identifier_quote_style(&self, _: &str) -> Option<char> {
        Some('"')
    }
}

pub(super) fn parse(text: &str) -> Result<Node, FilterError> {
    if text.len() > FILTER_BYTES_MAX {
        return Err(FilterError::TooLong(text.len()));
    }
    let syntax = |error| match error {
        ParserError::RecursionLimitExceeded => FilterError::TooDeep,
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => FilterError::Syntax(message),
    };
    let parser = Parser::new(&FilterDialect).with_recursion_limit(FILTER_DEPTH_MAX);
    let mut parser = parser.try_with_sql(text).map_err(syntax)?;
    let expr = parser.parse_expr().map_err(syntax)?;
    let rest = parser.peek_token();
    if rest.token != Token::EOF {
        return Err(FilterError::Syntax(format!("`{}` was not expected{}", rest.token, rest.span.start)));
    }
    condition(&expr)
}

/// Long chains of one operator lean to the left and are not bounded by the parser's depth: they are walked, not recursed
/// into. Everything else nests only as deep as the parser let it.
fn condition(expr: &Expr) -> Result<Node, FilterError> {
    match expr {
        Expr::Nested(inner) => condition(inner),
        Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } => chain(expr, op),
        Expr::BinaryOp { left, op, right } => compare(left, comparison(op)?, right),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => Ok(Node::Not(Box::new(condition(expr)?))),
        Expr::Between { expr, negated, low, high } => {
            let name = name(expr)?;
            let bound = |op, literal| Node::Compare { name: name.clone(), op, with: literal };
            let between = Node::And(vec![
                bound(Comparison::GreaterOrEqual, literal(low)?),
                bound(Comparison::LessOrEqual, literal(high)?),
            ]);
            Ok(if *negated { Node::Not(Box::new(between)) } else { between })
        }
        Expr::In { expr, target: InTarget::List(list), negated, global: false } => {
            let list = list.iter().map(literal).collect::<Result<Vec<_>, _>>()?;
            if list.is_empty() {
                return Err(FilterError::Unsupported("IN of an empty list".into()));
            }
            Ok(Node::In { name: name(expr)?, list, negated: *negated })
        }
        Expr::Like { negated, any: false, expr, pattern, escape_char } => {
            let escape = escape_char.as_deref().map(escape).transpose()?;
            let Literal::Text(text) = literal(pattern)? else {
                return Err(FilterError::Unsupported("LIKE with anything but a text".into()));
            };
            let pattern = Pattern::new(&text, escape).map_err(|what| FilterError::Unsupported(what.into()))?;
            Ok(Node::Like { name: name(expr)?, pattern, negated: *negated })
        }
        Expr::IsNull(expr) => Ok(Node::IsNull { name: name(expr)?, negated: false }),
        Expr::IsNotNull(expr) => Ok(Node::IsNull { name: name(expr)?, negated: true }),
        Expr::Identifier(_) | Expr::Value(_) => {
            Err(FilterError::Unsupported("name or value alone: it must be compared with something".into()))
        }
        other => Err(unsupported(other)),
    }
}

/// `a AND b AND c`, or the same with OR, as one node.
fn chain(expr: &Expr, op: &BinaryOperator) -> Result<Node, FilterError> {
    let (mut left, mut parts) = (expr, Vec::new());
    loop {
        match left {
            Expr::BinaryOp { left: further, op: same, right } if same == op => {
                parts.push(condition(right)?);
                left = further;
            }
            first => {
                parts.push(condition(first)?);
                break;
            }
        }
    }
    parts.reverse();
    // What stood in parentheses and is of the same kind says the same without.
    let (and, mut flat) = (*op == BinaryOperator::And, Vec::with_capacity(parts.len()));
    for part in parts {
        match part {
            Node::And(inner) if and => flat.extend(inner),
            Node::Or(inner) if !and => flat.extend(inner),
            part => flat.push(part),
        }
    }
    Ok(if and { Node::And(flat) } else { Node::Or(flat) })
}

fn comparison(op: &BinaryOperator) -> Result<Comparison, FilterError> {
    Ok(match op {
        BinaryOperator::Eq => Comparison::Equal,
        BinaryOperator::NotEq => Comparison::NotEqual,
        BinaryOperator::Lt => Comparison::Less,
        BinaryOperator::LtEq => Comparison::LessOrEqual,
        BinaryOperator::Gt => Comparison::Greater,
        BinaryOperator::GtEq => Comparison::GreaterOrEqual,
        BinaryOperator::Minus => {
            return Err(FilterError::Unsupported("operator `-` (a name with a dash stands in double quotes)".into()));
        }
        other => return Err(FilterError::Unsupported(format!("operator `{other}`"))),
    })
}

fn compare(left: &Expr, op: Comparison, right: &Expr) -> Result<Node, FilterError> {
    match (is_name(left), is_name(right)) {
        (true, true) => Err(FilterError::Unsupported("comparison of two names: texts stand in single quotes".into())),
        (false, true) => Ok(Node::Compare { name: name(right)?, op: op.flipped(), with: literal(left)? }),
        _ => Ok(Node::Compare { name: name(left)?, op, with: literal(right)? }),
    }
}

fn is_name(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_name(inner),
        Expr::Identifier(_) => true,
        _ => false,
    }
}

fn name(expr: &Expr) -> Result<Name, FilterError> {
    match expr {
        Expr::Nested(inner) => name(inner),
        Expr::Identifier(ident) => Ok(match ident.value.as_str() {
            "tag" => Name::Tag,
            "key" => Name::Key,
            header => Name::Header(header.into()),
        }),
        Expr::Value(_) => Err(FilterError::Unsupported("value where a name should stand".into())),
        other => Err(unsupported(other)),
    }
}

fn literal(expr: &Expr) -> Result<Literal, FilterError> {
    match expr {
        Expr::Nested(inner) => literal(inner),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Ok(Literal::Text(text.as_str().into())),
            Value::Number(digits, false) => number(digits).map(Literal::Number),
            Value::Null => Err(FilterError::Unsupported("comparison with NULL: use IS NULL".into())),
            Value::Boolean(_) => Err(FilterError::Unsupported("TRUE or FALSE: headers are texts".into())),
            _ => Err(FilterError::Unsupported("value but texts in single quotes and numbers".into())),
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match literal(expr)? {
            Literal::Number(number) => number
                .negated()
                .map(Literal::Number)
                .ok_or_else(|| FilterError::Unsupported("number that large".into())),
            Literal::Text(_) => Err(FilterError::Unsupported("`-` before a text".into())),
        },
        Expr::UnaryOp { op: UnaryOperator::Plus, expr } => literal(expr),
        Expr::Identifier(_) => Err(FilterError::Unsupported("name where a value should stand".into())),
        other => Err(unsupported(other)),
    }
}

fn number(digits: &str) -> Result<Number, FilterError> {
    Number::parse(digits.as_bytes()).ok_or_else(|| FilterError::Unsupported(format!("number `{digits}`")))
}

fn escape(expr: &Expr) -> Result<char, FilterError> {
    if let Literal::Text(text) = literal(expr)? {
        let mut chars = text.chars();
        if let (Some(escape), None) = (chars.next(), chars.next()) {
            return Ok(escape);
        }
    }
    Err(FilterError::Unsupported("ESCAPE but one character".into()))
}

/// Names what is refused without writing it out: it may be nested beyond what recursing into it allows.
fn unsupported(expr: &Expr) -> FilterError {
    let what = match expr {
        Expr::CompoundIdentifier(_) | Expr::CompoundFieldAccess { .. } => {
            "name with a dot, unless it stands in double quotes"
        }
        Expr::BinaryOp { op, .. } => return FilterError::Unsupported(format!("`{op}` inside a comparison")),
        Expr::UnaryOp { op, .. } => return FilterError::Unsupported(format!("operator `{op}`")),
        Expr::Function(function) => return FilterError::Unsupported(format!("function (`{}`)", function.name)),
        Expr::Subquery(_) | Expr::Exists { .. } | Expr::In { .. } | Expr::AnyOp { .. } | Expr::AllOp { .. } => {
            "subquery"
        }
        Expr::Case { .. } => "CASE",
        Expr::Cast { .. } | Expr::Convert { .. } => "CAST",
        Expr::ILike { .. } => "ILIKE",
        Expr::SimilarTo { .. } | Expr::RLike { .. } => "regular expression",
        Expr::Tuple(_) => "list of values here",
        Expr::Between { .. } | Expr::Like { .. } | Expr::IsNull(_) | Expr::IsNotNull(_) => {
            "condition inside a comparison"
        }
        _ => "expression of this kind",
    };
    FilterError::Unsupported(what.into())
}

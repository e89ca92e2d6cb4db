use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use stentor_core::Timestamp;
use stentor_core::batch::RecordHeader;

use super::*;

fn record(key: Option<&[u8]>, tag: Option<&str>, headers: &[(&str, &[u8])]) -> Record {
    let headers =
        headers.iter().map(|(name, value)| RecordHeader { name: (*name).into(), value: Bytes::copy_from_slice(value) });
    Record {
        id: "an-id".parse().unwrap(),
        timestamp: Timestamp(0),
        key: key.map(Bytes::copy_from_slice),
        tag: tag.map(Into::into),
        headers: headers.collect(),
        body: Bytes::new(),
        deliver_at: None,
        expires_at: None,
    }
}

fn sample() -> Record {
    record(
        Some(b"order-17"),
        Some("paid"),
        &[
            ("amount", b"100"),
            ("price", b"9.5"),
            ("region", b"eu-west"),
            ("x-trace", b"on"),
            ("binary", b"\xff\x00"),
            ("big", b"9007199254740993"),
            ("empty", b""),
            ("amount", b"1"),
            ("odd", b"50%_\\"),
        ],
    )
}

fn matches(text: &str) -> bool {
    Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).matches(&sample())
}

#[test]
fn conditions_hold_where_they_should() {
    for text in [
        "tag = 'paid'",
        "'paid' = tag",
        "tag <> 'refunded'",
        "tag != 'refunded'",
        "tag IN ('refunded', 'paid')",
        "tag NOT IN ('a', 'b')",
        "tag IS NOT NULL AND nothing IS NULL",
        "key = 'order-17'",
        "key LIKE 'order-%'",
        "key LIKE 'order-__'",
        "key NOT LIKE 'order-_'",
        "key LIKE '%1%'",
        "key LIKE '%'",
        "odd LIKE '50!%!_%' ESCAPE '!'",
        "odd LIKE '%\\'",
        "empty LIKE '%' AND empty = '' AND empty IS NOT NULL",
        "amount = 100",
        "amount = 100.0",
        "amount = '100'",
        "100 < amount OR 100 <= amount",
        "amount > 99.5 AND amount < 1e3",
        "amount >= -5",
        "amount BETWEEN 100 AND 200",
        "amount NOT BETWEEN 1 AND 99",
        "price > 9 AND price < 10",
        "big = 9007199254740993 AND big <> 9007199254740992",
        "region > 'a' AND region < 'f'",
        "region BETWEEN 'eu-a' AND 'eu-z'",
        "\"x-trace\" = 'on'",
        "\"tag\" = 'paid'",
        "NOT tag = 'refunded'",
        "NOT (tag = 'refunded' OR key = 'x')",
        "tag = 'x' OR tag = 'y' AND key = 'z' OR amount = 100",
        "((tag = 'paid'))",
        "binary <> 'x'",
        "tag = 'it''s' OR tag = 'paid'",
    ] {
        assert!(matches(text), "{text}");
    }
}

#[test]
fn conditions_do_not_hold_where_they_should_not() {
    for text in [
        "tag = 'PAID'",
        "TAG = 'paid'",
        "tag = 'paid' AND key = 'x'",
        "tag NOT IN ('paid')",
        "tag IS NULL",
        "key LIKE 'order-_'",
        "key LIKE 'rder%'",
        "empty LIKE '_'",
        "amount = 1",
        "amount > 100",
        "amount NOT BETWEEN 100 AND 200",
        "odd LIKE '50!_%' ESCAPE '!'",
        // The precedence of NOT, AND and OR.
        "NOT tag = 'paid' OR tag = 'x'",
        "tag = 'x' AND (tag = 'y' OR tag = 'paid')",
    ] {
        assert!(!matches(text), "{text}");
    }
}

#[test]
fn what_is_unknown_is_not_true_and_neither_is_its_contrary() {
    for text in [
        "nothing = 'x'",
        "nothing <> 'x'",
        "nothing > 1",
        "nothing IN ('x')",
        "nothing NOT IN ('x')",
        "nothing LIKE '%'",
        "nothing NOT LIKE '%'",
        "nothing BETWEEN 1 AND 2",
        // Mixed types.
        "tag = 5",
        "tag <> 5",
        "tag < 5",
        "tag NOT IN (5)",
        "tag NOT IN (5, 'x')",
        "binary LIKE '%'",
        "nothing = 'x' AND tag = 'paid'",
        "nothing = 'x' OR tag = 'x'",
    ] {
        assert!(!matches(text), "{text}");
        assert!(!matches(&format!("NOT ({text})")), "NOT ({text})");
    }
    // But what is decided otherwise is decided.
    assert!(matches("nothing = 'x' OR tag = 'paid'"));
    assert!(matches("NOT (nothing = 'x' AND tag = 'x')"));
    assert!(matches("tag IN (5, 'paid')"));
}

#[test]
fn a_message_without_tag_and_key_has_neither() {
    let bare = record(None, None, &[]);
    for (text, expected) in
        [("tag IS NULL AND key IS NULL", true), ("tag = ''", false), ("tag <> 'x'", false), ("NOT tag = 'x'", false)]
    {
        assert_eq!(Filter::parse(text).unwrap().matches(&bare), expected, "{text}");
    }
}

#[test]
fn everything_else_is_refused_by_name() {
    for (text, word) in [
        ("", "cannot be read"),
        ("tag =", "cannot be read"),
        ("tag = 'x", "cannot be read"),
        ("tag = 'x' tag", "not expected"),
        ("tag = 'x'; DROP TABLE x", "not expected"),
        ("upper(tag) = 'X'", "upper"),
        ("tag IN (SELECT a FROM b)", "subquery"),
        ("EXISTS (SELECT 1)", "subquery"),
        ("amount + 1 = 2", "`+`"),
        ("x-trace = 'on'", "`-`"),
        ("a.b = 'x'", "double quotes"),
        ("tag = key", "two names"),
        ("1 = 1", "value where a name"),
        ("tag", "alone"),
        ("TRUE", "alone"),
        ("tag = NULL", "IS NULL"),
        ("tag = TRUE", "TRUE"),
        ("tag LIKE 5", "LIKE"),
        ("tag LIKE 'a!b' ESCAPE '!'", "escape"),
        ("tag LIKE 'a' ESCAPE '!!'", "ESCAPE"),
        ("tag ILIKE 'x'", "ILIKE"),
        ("CASE WHEN tag = 'x' THEN 1 END = 1", "CASE"),
        ("tag = 'a' = 'b'", "inside a comparison"),
        ("tag || 'x' = 'y'", "`||`"),
        ("amount = 1e999", "number"),
        ("tag = ?", "value"),
    ] {
        let error = Filter::parse(text).expect_err(text).to_string();
        assert!(error.contains(word), "{text}: {error}");
        assert!(!error.contains('\n'), "{text}: {error}");
    }
}

#[test]
fn length_and_depth_are_bounded() {
    let long = format!("tag = '{}'", "x".repeat(FILTER_BYTES_MAX));
    assert_eq!(Filter::parse(&long), Err(FilterError::TooLong(long.len())));
    let nested = |depth: usize| format!("{}tag = 'x'{}", "(".repeat(depth), ")".repeat(depth));
    assert!(Filter::parse(&nested(10)).is_ok());
    assert_eq!(Filter::parse(&nested(200)), Err(FilterError::TooDeep));
    assert_eq!(Filter::parse(&"(".repeat(4_000)), Err(FilterError::TooDeep));
    // The parser may take another way to read this one, and says then that it does not fit.
    assert!(Filter::parse(&format!("{}tag = 'x'", "NOT ".repeat(900))).is_err());
}

#[test]
fn a_long_chain_is_no_deep_one() {
    for by in [" OR ", " AND "] {
        let text = vec!["a=1"; 500].join(by);
        assert!(Filter::parse(&text).is_ok());
    }
    for text in [vec!["a"; 2_000].join("+"), format!("a{}", " IS NULL".repeat(500)), vec!["a"; 2_000].join("=")] {
        assert!(Filter::parse(&text).is_err());
    }
}

#[test]
fn filters_that_say_the_same_in_other_words_are_the_same() {
    for (a, b) in [
        ("tag='paid'", "  tag  =  'paid' "),
        ("tag = 'a' and key='b'", "(tag = 'a') AND (key = 'b')"),
        ("'a' < tag", "tag > 'a'"),
        ("tag != 'a'", "tag <> 'a'"),
        ("a = 1 AND (b = 2 AND c = 3)", "a = 1 AND b = 2 AND c = 3"),
        ("amount = 2.0", "amount = 2"),
        ("amount = +2", "amount = 2"),
        ("\"region\" = 'x'", "region = 'x'"),
        ("tag BETWEEN 'a' AND 'b'", "tag >= 'a' AND tag <= 'b'"),
        ("tag LIKE 'a!_' ESCAPE '!'", "tag LIKE 'a#_' ESCAPE '#'"),
        ("tag LIKE 'a%%'", "tag LIKE 'a%'"),
        ("tag = 'x' -- a comment", "tag = 'x'"),
    ] {
        let (a, b) = (Filter::parse(a).unwrap(), Filter::parse(b).unwrap());
        assert_eq!(a.to_string(), b.to_string());
        assert_eq!(a, b);
    }
    let different = ["tag = 'a'", "tag = 'A'", "key = 'a'", "\"TAG\" = 'a'", "tag = 'a' OR tag = 'b'", "tag > 'a'"];
    let mut texts: Vec<_> = different.iter().map(|text| Filter::parse(text).unwrap().to_string()).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), different.len());
}

#[test]
fn parentheses_survive_where_they_mean_something() {
    let text = "(tag = 'a' OR tag = 'b') AND NOT (key = 'c')";
    assert_eq!(Filter::parse(text).unwrap().to_string(), text);
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("tag".to_owned()),
        Just("key".to_owned()),
        "[a-z]{1,8}".prop_map(|name| format!("\"{name}\"")),
        "\\PC{1,6}".prop_map(|name| format!("\"{}\"", name.replace('"', "\"\""))),
    ]
}

fn literal() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,6}".prop_map(|text| format!("'{}'", text.replace('\'', "''"))),
        any::<i32>().prop_map(|number| number.to_string()),
        any::<f32>().prop_filter("finite", |n| n.is_finite()).prop_map(|number| format!("{number:e}")),
    ]
}

fn text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        (name(), prop_oneof![Just("="), Just("<>"), Just("<"), Just("<="), Just(">"), Just(">=")], literal())
            .prop_map(|(name, op, literal)| format!("{name} {op} {literal}")),
        (name(), any::<bool>(), vec(literal(), 1..4)).prop_map(|(name, not, list)| format!(
            "{name} {}IN ({})",
            if not { "NOT " } else { "" },
            list.join(",")
        )),
        (name(), "[a%_!\\\\']{0,6}").prop_filter_map("escapes", |(name, pattern)| {
            let text = format!("{name} LIKE '{}' ESCAPE '!'", pattern.replace('\'', "''"));
            Filter::parse(&text).is_ok().then_some(text)
        }),
        (name(), literal(), literal()).prop_map(|(name, a, b)| format!("{name} BETWEEN {a} AND {b}")),
        (name(), any::<bool>()).prop_map(|(name, not)| format!("{name} IS {}NULL", if not { "NOT " } else { "" })),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|a| format!("NOT ({a})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) AND ({b})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("({a}) OR ({b})")),
        ]
    })
}

proptest! {
    #[test]
    fn the_normalised_text_reads_as_the_same_filter(text in text()) {
        let filter = Filter::parse(&text).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        let normal = filter.to_string();
        let again = Filter::parse(&normal).map_err(|error| TestCaseError::fail(format!("{normal}: {error}")))?;
        prop_assert_eq!(again.to_string(), normal);
        prop_assert_eq!(&again, &filter);
        prop_assert_eq!(again.matches(&sample()), filter.matches(&sample()));
    }

    #[test]
    fn garbage_never_panics(garbage in "\\PC{0,80}") {
        if let Ok(filter) = Filter::parse(&garbage) {
            filter.matches(&sample());
        }
    }

    #[test]
    fn words_in_any_order_never_panic(words in vec(prop_oneof![
        Just("("), Just(")"), Just("NOT"), Just("AND"), Just("OR"), Just("tag"), Just("'x'"), Just("="), Just("<"),
        Just("IN"), Just("BETWEEN"), Just("LIKE"), Just("ESCAPE"), Just("IS"), Just("NULL"), Just("5"), Just("-"),
        Just(","), Just("CASE"), Just("SELECT"), Just("INTERVAL"), Just("CAST"), Just("."), Just("["), Just("::"), Just("\"a\""),
    ], 0..40)) {
        if let Ok(filter) = Filter::parse(&words.join(" ")) {
            filter.matches(&sample());
        }
    }
}

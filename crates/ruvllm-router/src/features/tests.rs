//! Features: what they are of known texts, and laws for any text.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The features that are not zero, by name, to three digits.
fn shown(text: &str) -> String {
    let values = of(text);
    let shown = FEATURES.iter().zip(values).filter(|(feature, x)| *x != 0.0 && !feature.name.starts_with("hashed"));
    shown.map(|(feature, x)| format!("{} {x:.3}", feature.name)).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_feature_has_its_own_name() {
    assert_eq!(FEATURES.len(), N_FEATURES);
    assert_eq!(FEATURES.iter().map(|feature| feature.name).collect::<BTreeSet<_>>().len(), N_FEATURES);
    assert!(FEATURES.iter().all(|feature| !feature.meaning.is_empty()));
}

/// Each text has what the named feature counts, and the bare text has not.
#[test]
fn features_are_what_they_are_called() {
    let value = |text: &str, name: &str| of(text)[FEATURES.iter().position(|feature| feature.name == name).unwrap()];
    let rows = [
        ("upper", "ABC"),
        ("digits", "a 123"),
        ("greek", "αβγ"),
        ("cyrillic", "да"),
        ("semitic", "שלום"),
        ("cjk", "日本"),
        ("maths_symbols", "x ∈ A → B"),
        ("emoji", "😀"),
        ("accented", "é"),
        ("mixed_words", "x86"),
        ("number_words", "in 1999"),
        ("capital_words", "the API"),
        ("capitalised_words", "in Paris"),
        ("ends_question", "so? "),
        ("ends_colon", "so:\n"),
        ("code_fences", "```\nx\n```"),
        ("code_spans", "the `x`"),
        ("bullets", "- a\n- b"),
        ("numbered", "1. a\n12) b"),
        ("headings", "# a"),
        ("indented", "a\n  b"),
        ("quoted", "> a"),
        ("tables", "| a | b |"),
        ("choices", "A. a\nB) b"),
        ("code_lines", "x = 1;"),
        ("links", "see http://a.b"),
        ("backslash", "\\frac"),
        ("dollar", "$5"),
        ("language_de", "das ist nicht gut"),
        ("about_sql", "select a column"),
        ("task_translate", "translate it"),
        ("paragraphs", "a\n\nb"),
    ];
    for (name, text) in rows {
        assert!(value(text, name) > 0.0, "{name} of {text:?}");
        let bare = value("Zzz zzz", name);
        assert!(bare == 0.0 || ["upper", "paragraphs", "capitalised_words"].contains(&name), "{name}: {bare}");
    }
    assert_eq!(value("a\n\nb\nc\n\n\nd", "paragraphs"), 4f32.ln());
    assert_eq!(value("one two one", "distinct_words"), 2.0 / 3.0);
}

#[test]
fn nothing_is_nothing() {
    assert_eq!(of(""), [0.0; N_FEATURES]);
}

#[test]
fn golden_question() {
    insta::assert_snapshot!(shown("Why does `cargo build` fail?\nerror[E0382]: use of moved value"), @"
    chars 4.127
    words 2.485
    sentences 0.693
    lines 1.099
    paragraphs 0.693
    word_length 0.418
    word_length_spread 0.103
    sentence_words 2.485
    longest_word 1.792
    longest_line 3.497
    distinct_words 1.000
    upper 0.048
    digits 0.066
    spaces 0.148
    symbols 0.098
    capitalised_words 0.182
    mixed_words 0.091
    colon 0.693
    question 0.693
    square 1.099
    code_spans 1.099
    ask_why 0.693
    ask_yes_no 0.693
    task_write 0.693
    task_fix 1.099
    about_shell 0.693
    about_errors 0.693
    language_en 0.693
    ");
}

#[test]
fn golden_exam() {
    insta::assert_snapshot!(shown("Find all zeros of x^2 + 1 in Z_5.\nA. 2\nB. 2, 3\nAnswer:"), @"
    chars 4.007
    words 2.833
    sentences 1.386
    lines 1.609
    paragraphs 0.693
    word_length 0.200
    word_length_spread 0.158
    sentence_words 1.846
    longest_word 1.946
    longest_line 3.526
    distinct_words 0.875
    upper 0.192
    digits 0.111
    spaces 0.259
    symbols 0.148
    capitalised_words 0.125
    number_words 0.375
    period 1.386
    comma 0.693
    colon 0.693
    operator 1.099
    underscore 0.693
    ends_colon 1.000
    choices 1.099
    task_calculate 0.693
    language_en 1.099
    language_pt 0.693
    language_pl 0.693
    ");
}

#[test]
fn golden_hashes() {
    let hashed: Vec<String> =
        of("the same words in another order")[N_FEATURES - 18..].iter().map(|x| format!("{x:.3}")).collect();
    insta::assert_snapshot!(hashed.join(" "), @"0.000 0.000 0.000 0.000 0.333 0.667 0.000 0.000 0.000 0.333 -0.333 -0.333 0.000 0.000 0.000 -0.333 0.000 0.000");
}

proptest! {
    /// Any text has finite features, the same ones each time, of bounded size.
    #[test]
    fn any_text_has_features(text in "\\PC{0,200}|(.|\\n|\\t|`|#|\\||😀|é){0,80}") {
        let values = of(&text);
        prop_assert!(values.iter().all(|x| x.is_finite() && x.abs() < 100.0), "{values:?}");
        prop_assert_eq!(values, of(&text));
    }
}

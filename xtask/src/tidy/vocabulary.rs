//! Phrases of translated English and invented names that the project has given up. The lists are
//! the rows of `ratchet.tsv`, so that no file of code contains them.

use std::collections::BTreeMap;

use super::breach::{self, Measure};
use super::code::{is_word, words_of_code};
use super::tree::{SourceTree, TextFile};

/// The phrases of the table in code, comments and documents: any case, across line breaks, also
/// between the underscores of names.
pub(super) fn phrases(tree: &SourceTree) -> Vec<Measure> {
    let phrases: Vec<Vec<&str>> =
        breach::keys(tree, "phrase").map(|phrase| phrase.split(' ').collect()).collect();
    let mut places = vec![Vec::new(); phrases.len()];
    for file in tree.of_kind(&["rs", "md"]) {
        let words = words(file);
        for start in 0..words.len() {
            for (phrase, places) in phrases.iter().zip(&mut places) {
                let found = words[start..].iter().map(|(_, word)| word.as_str());
                if found.take(phrase.len()).eq(phrase.iter().copied()) {
                    places.push((file.path.clone(), words[start].0));
                }
            }
        }
    }
    phrases
        .iter()
        .zip(places)
        .map(|(phrase, places)| Measure::of_places(phrase.join(" "), places))
        .collect()
}

/// The words of a file in lower case with their lines. An empty word stands for punctuation, except
/// for what begins a comment.
fn words(file: &TextFile) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    for (line, text) in file.lines() {
        let mut rest = text.trim_start().trim_start_matches("//").trim_start_matches(['/', '!']);
        while let Some(first) = rest.chars().next() {
            let is_letter = |c: char| c.is_alphanumeric() || c == '\'';
            let length = rest.find(|c| !is_letter(c)).unwrap_or(rest.len());
            if length > 0 {
                words.push((line, rest[..length].to_lowercase()));
                rest = &rest[length..];
                continue;
            }
            if !first.is_whitespace() && !is_word(first) {
                words.push((line, String::new()));
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    words
}

/// The identifiers of the table in Rust code, tests included.
pub(super) fn identifiers(tree: &SourceTree) -> Vec<Measure> {
    let mut places: BTreeMap<&str, Vec<(String, usize)>> =
        breach::keys(tree, "identifier").map(|name| (name, Vec::new())).collect();
    for file in tree.of_kind(&["rs"]) {
        for (line, text) in (1..).zip(file.code().lines()) {
            for word in words_of_code(text) {
                if let Some(places) = places.get_mut(word) {
                    places.push((file.path.clone(), line));
                }
            }
        }
    }
    places.into_iter().map(|(name, places)| Measure::of_places(name, places)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "phrase\told way\t0\nphrase\tthingy\t0\nidentifier\tGadget\t0\n";

    fn lines(count: fn(&SourceTree) -> Vec<Measure>, path: &str, text: &str) -> Vec<Vec<usize>> {
        let counts = count(&SourceTree::of(&[(path, text), (breach::TABLE, TABLE)]));
        counts.iter().map(|count| count.places.iter().map(|place| place.1).collect()).collect()
    }

    #[test]
    fn planted_phrases_are_counted() {
        let planted = "/// It waits old\n/// way. Old WAY!\nfn thingy_asks() {} // not old, way\n\
            const A: &str = \"Thingy\"; // no wholong, old wayer\n";
        assert_eq!(lines(phrases, "a.rs", planted), [vec![1, 2], vec![3, 4]]);
        assert_eq!(lines(phrases, "a.md", "(old\nway)\n"), [vec![1], vec![]]);
        assert_eq!(lines(phrases, "a.toml", "old way\n"), [vec![], vec![]]);
    }

    #[test]
    fn planted_identifiers_are_counted() {
        let planted =
            "// Gadget\nstruct Gadget;\nlet gadget = \"Gadget\"; Gadgets\nx::Gadget { y }\n";
        assert_eq!(lines(identifiers, "a/tests/b.rs", planted), [[2, 4]]);
        assert_eq!(lines(identifiers, "a.md", "Gadget\n"), [Vec::<usize>::new()]);
    }
}

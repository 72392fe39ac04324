//! Rust code without its comments and literals, and as a sequence of tokens.

use std::ops::Range;

/// `text` with comments, strings and characters blanked out; what is left stays in its place.
pub(crate) fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let in_word = code.chars().next_back().is_some_and(is_word);
        if let Some(length) = blank_length(rest, in_word) {
            let (token, after) = rest.split_at(length);
            code.extend(token.chars().map(|c| if c == '\n' { c } else { ' ' }));
            rest = after;
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code
}

/// The length of the comment or literal that `rest` begins with.
fn blank_length(rest: &str, in_word: bool) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(comment_length(rest));
    }
    if rest.starts_with('"') {
        return Some(string_length(rest));
    }
    let raw = rest.strip_prefix('b').unwrap_or(rest);
    if raw.starts_with('r') && !in_word {
        return raw_length(raw).map(|length| length + rest.len() - raw.len());
    }
    char_length(rest)
}

/// Block comments nest.
fn comment_length(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn string_length(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// `r"..."`, `r#"..."#` and so on.
fn raw_length(rest: &str) -> Option<usize> {
    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
    let start = 1 + hashes;
    if !rest[start..].starts_with('"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let content = &rest[start + 1..];
    Some(content.find(&end).map_or(rest.len(), |at| start + 1 + at + end.len()))
}

/// `'x'` and `'\n'`, but not the lifetime `'x`.
fn char_length(rest: &str) -> Option<usize> {
    let content = rest.strip_prefix('\'')?;
    if let Some(escape) = content.strip_prefix('\\') {
        let first = escape.chars().next()?.len_utf8();
        return escape[first..].find('\'').map(|at| 2 + first + at + 1);
    }
    let first = content.chars().next()?.len_utf8();
    content[first..].starts_with('\'').then_some(1 + first + 1)
}

/// True for what identifiers consist of.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The identifiers and numbers of `code`.
pub(crate) fn words_of_code(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c| !is_word(c)).filter(|word| !word.is_empty())
}

/// True if `line` contains `word`, not as a part of a longer word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The tokens of Rust code as ranges of `text`: words, literals and single other characters.
/// Comments are no tokens, and neither is a comma before a closing bracket, which rustfmt adds and
/// removes.
pub(crate) fn tokens(text: &str) -> Vec<Range<usize>> {
    let mut tokens: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let blank = blank_length(rest, false);
        let length = match blank {
            Some(length) => length,
            None if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            None => first.len_utf8(),
        };
        let is_comment = blank.is_some() && first == '/';
        if !is_comment && !first.is_whitespace() {
            let after_comma = tokens.last().is_some_and(|last| &text[last.clone()] == ",");
            if after_comma && matches!(first, ')' | ']' | '}') {
                tokens.pop();
            }
            tokens.push(at..at + length);
        }
        at += length;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_is_no_comment_and_no_literal() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */\n d */ e", "a             \n      e"),
            (r#"f("a\"b", c)"#, "f(      , c)"),
            ("r\"a\\\" b", "      b"),
            ("r#\"a\"b\"# c", "         c"),
            ("br\"a\\\" b", "       b"),
            ("for\"x\"", "for   "),
            (r"x: &'a u8 = '\'' 'b' '\u{41}'", "x: &'a u8 =                  "),
        ];
        for (text, code) in cases {
            assert_eq!(code_of(text).trim_end(), code.trim_end(), "{text}");
            assert_eq!(code_of(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn a_word_is_no_part_of_a_longer_word() {
        assert!(has_word("an unsafe block", "unsafe"));
        assert!(!has_word("deny(unsafe_code)", "unsafe"));
    }

    #[test]
    fn layout_and_comments_do_not_change_the_tokens() {
        let text = |code: &'static str| -> Vec<&str> {
            tokens(code).into_iter().map(|token| &code[token]).collect()
        };
        let long = "f(\n    a, // first, don't\n    \"b, c\", /* second */\n    'd',\n);";
        assert_eq!(text(long), text("f(a, \"b, c\", 'd');"));
        assert_eq!(
            text("x.y::<'a>(b\"z\")"),
            ["x", ".", "y", ":", ":", "<", "'", "a", ">", "(", "b", "\"z\"", ")"]
        );
        assert_ne!(text("f(\"a b\")"), text("f(\"a  b\")"));
    }
}

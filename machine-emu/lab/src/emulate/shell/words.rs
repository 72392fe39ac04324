//! A line as words, as a shell has them: between spaces, or in quotes.

/// The words of `line`. Within double or single quotes spaces belong to the word.
pub(super) fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            Some(_) | None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if quote.is_some() { Err("a quote is not closed: write it once more") } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_between_spaces_or_in_quotes() {
        let split = |line| split(line).unwrap();
        assert_eq!(split("put  a\tb"), ["put", "a", "b"]);
        assert_eq!(split("put 'my file' \"it's\"/x ''"), ["put", "my file", "it's/x", ""]);
        assert_eq!(split("  "), [""; 0]);
        assert!(super::split("cat 'a b").is_err());
    }
}

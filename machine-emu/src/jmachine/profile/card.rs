//! The model card: every number with its source, so that a reader sees what a result rests on.

use std::fmt::{self, Write as _};

use super::{Confidence, Number, Profile};

/// Columns of a line; the source is broken to fit.
const WIDTH: usize = 100;

/// Where the source begins.
const INDENT: usize = 6;

impl Profile {
    /// All numbers of the profile as a page of text.
    pub fn card(&self) -> String {
        let mut page = String::new();
        self.write_card(&mut page).expect("a string takes all");
        page
    }

    fn write_card(&self, page: &mut String) -> fmt::Result {
        writeln!(page, "The profile {}: {}", self.name(), self.about())?;
        writeln!(page)?;
        for confidence in Confidence::ALL {
            writeln!(page, "  {confidence:?}  {}", confidence.meaning())?;
        }
        writeln!(page, "  *  fitted to a measurement: what it was fitted to is no prediction")?;
        let mut part = String::new();
        for (name, number) in self.numbers().all() {
            let (table, name) = name.split_once('.').unwrap_or_default();
            if table != part {
                table.clone_into(&mut part);
                writeln!(page, "\n{}", table.replace('_', " "))?;
            }
            write_number(page, name, number)?;
        }
        let fitted = self.fitted();
        writeln!(page, "\n{} of {} numbers are fitted", fitted.len(), self.numbers().all().len())?;
        for (name, number) in fitted {
            writeln!(page, "  {name} = {} {}", number.value, number.unit)?;
        }
        Ok(())
    }
}

fn write_number(page: &mut String, name: &str, number: &Number) -> fmt::Result {
    let Number { value, unit, confidence, source, fitted } = number;
    let mark = if fitted.is_some() { '*' } else { ' ' };
    let name = name.replace('_', " ");
    writeln!(page, "  {confidence:?}{mark} {name:<15} {value:>10} {unit}")?;
    let source = fitted.iter().fold(source.clone(), |text, to| format!("{text}; fitted {to}"));
    for line in broken(&source, WIDTH - INDENT) {
        writeln!(page, "{:INDENT$}{line}", "")?;
    }
    Ok(())
}

/// The words of `text` in lines of at most `width` characters, if no word is longer.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_has_every_number_with_its_source_and_marks_the_fitted_ones() {
        let profile = Profile::as_measured();
        let card = profile.card();
        let joined = card.split_whitespace().collect::<Vec<_>>().join(" ");
        for (name, number) in profile.numbers().all() {
            let source = number.source.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(joined.contains(&source), "{name}: {source}");
        }
        let fitted = card.lines().filter(|line| line.starts_with("  I* ")).count();
        assert_eq!(fitted, profile.fitted().len(), "{card}");
        assert!(card.lines().all(|line| line.chars().count() <= WIDTH), "{card}");
    }
}

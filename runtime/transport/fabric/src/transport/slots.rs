//! Things by numbers that are never used twice.

/// A table; a number names one thing, and nothing else when that is gone.
#[derive(Debug)]
pub(super) struct Slots<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    limit: usize,
}

impl<T> Slots<T> {
    /// A table of at most `limit` things.
    pub(super) fn new(limit: usize) -> Self {
        Self { places: Vec::new(), free: Vec::new(), limit }
    }

    /// Adds `value`; gives it back if the table is full.
    pub(super) fn insert(&mut self, value: T) -> Result<u64, T> {
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            place.1 = Some(value);
            return Ok(number(place.0, index));
        }
        if self.places.len() >= self.limit {
            return Err(value);
        }
        self.places.push((1, Some(value)));
        Ok(number(1, self.places.len() as u32 - 1))
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        let (generation, value) = self.places.get(number as u32 as usize)?;
        if u64::from(*generation) == number >> 32 { value.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (generation, value) = self.places.get_mut(number as u32 as usize)?;
        if u64::from(*generation) == number >> 32 { value.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        self.get(number)?;
        let (generation, value) = &mut self.places[number as u32 as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(number as u32);
        value.take()
    }

    /// The number of what is at `index` now.
    pub(super) fn at(&self, index: u32) -> Option<u64> {
        let (generation, value) = self.places.get(index as usize)?;
        value.as_ref().map(|_| number(*generation, index))
    }

    /// All numbers in use.
    pub(super) fn numbers(&self) -> Vec<u64> {
        (0..self.places.len() as u32).filter_map(|index| self.at(index)).collect()
    }

    /// All that is in it.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|(_, value)| value.as_ref())
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

fn number(generation: u32, index: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_nothing_else_when_its_thing_is_gone() {
        let mut slots = Slots::new(2);
        let first = slots.insert('a').unwrap();
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b').unwrap();
        assert_eq!((slots.get(first), slots.get(second)), (None, Some(&'b')));
        assert_eq!(slots.remove(first), None);
        assert!(slots.insert('c').is_ok());
        assert_eq!(slots.insert('d'), Err('d'));
        assert_eq!((slots.len(), slots.numbers().len()), (2, 2));
    }
}

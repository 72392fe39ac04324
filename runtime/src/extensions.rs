//! What the nodes of one process have in common with all its threads, and how long a node stands by what it
//! has put there (ADR 59).

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, PoisonError, RwLock};

use crate::deadline::Deadline;

/// One thing of each type, there for all threads of a process. Machines without memory in common have none.
#[derive(Debug, Default)]
pub struct Extensions(RwLock<Vec<Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// The value of type `T`, if there is one.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let things = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let thing = things.iter().find(|thing| (***thing).is::<T>())?.clone();
        thing.downcast().ok()
    }

    /// The same; what `first` makes is put there, if there is none.
    pub fn get_or_put<T: Any + Send + Sync>(&self, first: impl FnOnce() -> T) -> Arc<T> {
        if let Some(thing) = self.get() {
            return thing;
        }
        let made = Arc::new(first());
        let mut things = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        let known = things.iter().find(|thing| (***thing).is::<T>()).cloned();
        if let Some(known) = known.and_then(|known| known.downcast().ok()) {
            return known;
        }
        things.push(made.clone());
        made
    }
}

/// Whether one life of a node still answers for what it has put where others look without asking it.
#[derive(Clone, Debug)]
pub struct ValidityToken {
    is_over: Arc<AtomicBool>,
    deadline: Arc<Deadline>,
}

impl ValidityToken {
    pub(crate) fn until(deadline: Arc<Deadline>) -> Self {
        Self { is_over: Arc::default(), deadline }
    }

    /// Does it? To be asked after the look, as a node looks at the clock after its work (ADR 48).
    pub fn holds(&self) -> bool {
        !self.is_over.load(Acquire) && !self.deadline.is_over()
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_thing_of_each_type() {
        let extensions = Extensions::default();
        assert_eq!(extensions.get::<u32>(), None);
        assert_eq!(*extensions.get_or_put(|| 1_u32), 1);
        assert_eq!(*extensions.get_or_put(|| 2_u32), 1, "it is there already");
        assert_eq!(*extensions.get_or_put(|| 3_u64), 3);
        assert_eq!(extensions.get::<u32>().as_deref(), Some(&1));
    }

    #[test]
    fn a_node_stands_by_its_word_until_its_life_or_its_time_is_over() {
        let deadline = Arc::<Deadline>::default();
        let (first, second) =
            (ValidityToken::until(deadline.clone()), ValidityToken::until(deadline.clone()));
        let seen = first.clone();
        first.end();
        assert!(!seen.holds() && second.holds());
        deadline.set(Deadline::now(), std::time::Duration::ZERO);
        assert!(!second.holds());
    }
}

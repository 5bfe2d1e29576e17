//! Values by small numbers. Numbers are reused, and the generation distinguishes a new value from an old one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::hash::{Hash, Hasher};

/// The most free places at the end that one removal frees. Freeing all of them at once would take too long.
const GIVEN_BACK: usize = 4;

/// The number of a value in its [`Slab`], and in each [`Beside`] that uses the slab's numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    index: u32,
    generation: u32,
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

impl Hash for Id {
    /// Skips the generation, because no state refers to a value that is gone.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.index.hash(state);
    }
}

/// Values by the numbers of another slab.
#[derive(Debug, Clone)]
pub struct Beside<T> {
    /// Each with the generation of its number.
    places: Vec<Option<(u32, T)>>,
    len: usize,
}

impl<T> Default for Beside<T> {
    fn default() -> Self {
        Self { places: Vec::new(), len: 0 }
    }
}

impl<T: Hash> Hash for Beside<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        let places = self.places.iter().enumerate();
        places.filter_map(|(index, place)| Some((index, &place.as_ref()?.1))).for_each(|value| value.hash(state));
    }
}

impl<T> Beside<T> {
    pub fn insert(&mut self, id: Id, value: T) {
        let (index, value) = (id.index as usize, Some((id.generation, value)));
        match self.places.get_mut(index) {
            Some(place) => {
                self.len += usize::from(place.is_none());
                *place = value;
            }
            None => {
                self.places.resize_with(index, || None);
                self.places.push(value);
                self.len += 1;
            }
        }
    }

    pub fn get(&self, id: Id) -> Option<&T> {
        let (generation, value) = self.places.get(id.index as usize)?.as_ref()?;
        (*generation == id.generation).then_some(value)
    }

    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let (generation, value) = self.places.get_mut(id.index as usize)?.as_mut()?;
        (*generation == id.generation).then_some(value)
    }

    pub fn remove(&mut self, id: Id) -> Option<T> {
        let place = self.places.get_mut(id.index as usize)?;
        let (_, value) = place.take_if(|(generation, _)| *generation == id.generation)?;
        self.give_back();
        Some(value)
    }

    /// Drops the value in place. Returns whether there was one.
    pub fn discard(&mut self, id: Id) -> bool {
        let place = self.places.get_mut(id.index as usize);
        let meant = place.filter(|place| matches!(place, Some((generation, _)) if *generation == id.generation));
        let is_there = meant.map(|place| *place = None).is_some();
        if is_there {
            self.give_back();
        }
        is_there
    }

    /// A place has become free. Drops free places at the end.
    fn give_back(&mut self) {
        self.len -= 1;
        for _ in 0..GIVEN_BACK {
            drop(self.places.pop_if(|place| place.is_none()));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Values to which the slab gives numbers.
#[derive(Debug, Clone)]
pub struct Slab<T> {
    values: Beside<T>,
    /// The smallest comes first, so that the end becomes free and its memory can be returned.
    free: BinaryHeap<Reverse<u32>>,
    generation: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { values: Beside::default(), free: BinaryHeap::new(), generation: 0 }
    }
}

impl<T: Hash> Hash for Slab<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.values.hash(state);
    }
}

impl<T> Slab<T> {
    /// Inserts a value that knows its number.
    pub fn insert_with(&mut self, value: impl FnOnce(Id) -> T) -> Id {
        let id = Id { index: self.free_index(), generation: self.generation };
        self.generation = self.generation.wrapping_add(1);
        self.values.insert(id, value(id));
        id
    }

    pub fn insert(&mut self, value: T) -> Id {
        self.insert_with(|_| value)
    }

    /// The smallest free number. It is never past the end: numbers of places that were dropped there are free too.
    fn free_index(&mut self) -> u32 {
        let end = || u32::try_from(self.values.places.len()).unwrap_or(u32::MAX);
        self.free.pop().map_or_else(end, |Reverse(index)| index)
    }

    pub fn remove(&mut self, id: Id) -> Option<T> {
        let value = self.values.remove(id)?;
        self.free.push(Reverse(id.index));
        Some(value)
    }

    /// Drops the value in place.
    pub fn discard(&mut self, id: Id) {
        if self.values.discard(id) {
            self.free.push(Reverse(id.index));
        }
    }

    pub fn get(&self, id: Id) -> Option<&T> {
        self.values.get(id)
    }

    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.values.get_mut(id)
    }

    /// The numbers in use among `count` places from this one on, and where to go on, or `None` at the end.
    pub fn ids_from(&self, from: usize, count: usize) -> (Vec<Id>, Option<usize>) {
        let (places, end) = (&self.values.places, from.saturating_add(count));
        let id = |(index, place): (usize, &Option<(u32, T)>)| {
            place.as_ref().map(|(generation, _)| Id { index: index as u32, generation: *generation })
        };
        let ids = places.iter().enumerate().skip(from).take(count).filter_map(id).collect();
        (ids, (end < places.len()).then_some(end))
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.places.iter().flatten().map(|(_, value)| value)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values.places.iter_mut().flatten().map(|(_, value)| value)
    }

    pub fn len(&self) -> usize {
        self.values.len
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_number_finds_nothing_and_the_room_is_given_back_in_pieces() {
        let mut slab = Slab::default();
        let ids: Vec<_> = (0..100).map(|value| slab.insert(value)).collect();
        assert_eq!((slab.get(ids[7]), slab.len(), slab.is_empty()), (Some(&7), 100, false));
        for id in &ids[1..] {
            assert!(slab.remove(*id).is_some());
        }
        assert_eq!((slab.len(), slab.values.places.len()), (1, 100 - GIVEN_BACK));
        let again = slab.insert(-1);
        assert_eq!((again.index, slab.get(ids[1]), slab.get(again)), (1, None, Some(&-1)));
        assert_eq!(slab.remove(ids[1]), None);
        assert_eq!(slab.ids_from(0, 1), (vec![ids[0]], Some(1)));
        assert_eq!(slab.ids_from(1, slab.values.places.len() - 1), (vec![again], None));
        let mut beside = Beside::default();
        beside.insert(again, 'a');
        beside.remove(ids[1]);
        assert_eq!((beside.get(ids[1]), beside.get(again), beside.len), (None, Some(&'a'), 1));
        beside.remove(again);
        assert!(beside.is_empty() && beside.places.is_empty());
    }
}

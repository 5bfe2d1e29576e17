//! Values by small numbers. A number is used again for another value, and its generation tells the two apart.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::hash::{Hash, Hasher};

/// How many free places at the end one removal gives back at most: all of them at once would take too long.
const GIVEN_BACK: usize = 4;

/// The number of a value in its [`Slab`].
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
    /// Without the generation: no state refers to a value that is gone.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.index.hash(state);
    }
}

#[derive(Debug, Clone)]
pub struct Slab<T> {
    places: Vec<Place<T>>,
    /// The smallest first, so that the end of the slab becomes free, and is given back.
    free: BinaryHeap<Reverse<u32>>,
    generation: u32,
    len: usize,
}

#[derive(Debug, Clone)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: BinaryHeap::new(), generation: 0, len: 0 }
    }
}

impl<T: Hash> Hash for Slab<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        for (index, place) in self.places.iter().enumerate() {
            if let Some(value) = &place.value {
                (index, value).hash(state);
            }
        }
    }
}

impl<T> Slab<T> {
    /// A value that knows its number.
    pub fn insert_with(&mut self, value: impl FnOnce(Id) -> T) -> Id {
        let index = self.free_index();
        let id = Id { index, generation: self.generation };
        self.generation = self.generation.wrapping_add(1);
        let place = Place { generation: id.generation, value: Some(value(id)) };
        match self.places.get_mut(index as usize) {
            Some(free) => *free = place,
            None => self.places.push(place),
        }
        self.len += 1;
        id
    }

    pub fn insert(&mut self, value: T) -> Id {
        self.insert_with(|_| value)
    }

    fn free_index(&mut self) -> u32 {
        let end = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        match self.free.pop() {
            Some(Reverse(index)) if index < end => index,
            _ => {
                // The others lie behind the end, which has been given back.
                self.free.clear();
                end
            }
        }
    }

    pub fn remove(&mut self, id: Id) -> Option<T> {
        let place = self.places.get_mut(id.index as usize).filter(|place| place.generation == id.generation)?;
        let value = place.value.take()?;
        self.is_free(id.index);
        Some(value)
    }

    /// The value is dropped where it is.
    pub fn discard(&mut self, id: Id) {
        let place = self.places.get_mut(id.index as usize).filter(|place| place.generation == id.generation);
        if let Some(place) = place.filter(|place| place.value.is_some()) {
            place.value = None;
            self.is_free(id.index);
        }
    }

    fn is_free(&mut self, index: u32) {
        self.len -= 1;
        self.free.push(Reverse(index));
        give_back(&mut self.places, |place| place.value.is_none());
    }

    pub fn get(&self, id: Id) -> Option<&T> {
        self.places.get(id.index as usize).filter(|place| place.generation == id.generation)?.value.as_ref()
    }

    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.places.get_mut(id.index as usize).filter(|place| place.generation == id.generation)?.value.as_mut()
    }

    /// The numbers in use among `count` places from this one on, and where to go on. `None`: there are no more.
    pub fn ids_from(&self, from: usize, count: usize) -> (Vec<Id>, Option<usize>) {
        let end = from.saturating_add(count);
        let some = self.places.iter().enumerate().skip(from).take(count);
        let in_use = some.filter(|(_, place)| place.value.is_some());
        let ids = in_use.map(|(index, place)| Id { index: index as u32, generation: place.generation }).collect();
        (ids, (end < self.places.len()).then_some(end))
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_ref())
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_mut())
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Shortens the end, if it is free.
fn give_back<P>(places: &mut Vec<P>, is_free: impl Fn(&P) -> bool) {
    for _ in 0..GIVEN_BACK {
        drop(places.pop_if(|place| is_free(place)));
    }
}

/// Values by the numbers of another slab.
#[derive(Debug, Clone)]
pub struct Beside<T> {
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
        let index = id.index as usize;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        if let Some(place) = self.places.get_mut(index) {
            self.len += usize::from(place.is_none());
            *place = Some((id.generation, value));
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

    pub fn remove(&mut self, id: Id) {
        self.len -= usize::from(self.get(id).is_some());
        let place = self.places.get_mut(id.index as usize);
        place.into_iter().for_each(|place| drop(place.take_if(|(generation, _)| *generation == id.generation)));
        give_back(&mut self.places, Option::is_none);
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_number_finds_nothing_and_the_room_is_given_back_in_pieces() {
        let mut slab = Slab::default();
        let ids: Vec<_> = (0..100).map(|value| slab.insert(value)).collect();
        assert_eq!(slab.get(ids[7]), Some(&7));
        for id in &ids[1..] {
            assert!(slab.remove(*id).is_some());
        }
        assert_eq!((slab.len(), slab.places.len()), (1, 100 - GIVEN_BACK));
        let again = slab.insert(-1);
        assert_eq!((again.index, slab.get(ids[1]), slab.get(again)), (1, None, Some(&-1)));
        assert_eq!(slab.remove(ids[1]), None);
        assert_eq!(slab.ids_from(0, 1), (vec![ids[0]], Some(1)));
        assert_eq!(slab.ids_from(1, 100), (vec![again], None));
        let mut beside = Beside::default();
        beside.insert(again, 'a');
        beside.remove(ids[1]);
        assert_eq!((beside.get(ids[1]), beside.get(again), beside.len), (None, Some(&'a'), 1));
        beside.remove(again);
        assert!(beside.is_empty() && beside.places.is_empty());
    }
}

//! Values with growing numbers. Any of them can be taken out.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use crate::canonical::RequestNumber;

/// A value that is gone leaves a gap until the values before it have gone too, or until most places are gaps.
#[derive(Debug, Clone)]
pub struct Line<T> {
    places: VecDeque<(RequestNumber, Option<T>)>,
    len: usize,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { places: VecDeque::new(), len: 0 }
    }
}

impl<T: Hash> Hash for Line<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.iter().for_each(|place| place.hash(state));
    }
}

impl<T> Line<T> {
    /// Adds a value. Its number has to be greater than all before it.
    pub fn push(&mut self, number: RequestNumber, value: T) {
        self.places.push_back((number, Some(value)));
        self.len += 1;
    }

    pub fn remove(&mut self, number: RequestNumber) -> Option<T> {
        let at = self.find(number)?;
        let value = self.places.get_mut(at)?.1.take()?;
        self.close_gaps();
        Some(value)
    }

    pub fn pop_first(&mut self) -> Option<T> {
        let value = self.places.pop_front()?.1;
        self.close_gaps();
        value
    }

    /// Follows the removal of a value. There is never a gap at the front.
    fn close_gaps(&mut self) {
        self.len -= 1;
        while self.places.front().is_some_and(|(_, value)| value.is_none()) {
            self.places.pop_front();
        }
        if self.places.len() > 64 + 2 * self.len {
            self.places.retain(|(_, value)| value.is_some());
        }
    }

    pub fn get(&self, number: RequestNumber) -> Option<&T> {
        self.places.get(self.find(number)?)?.1.as_ref()
    }

    fn find(&self, number: RequestNumber) -> Option<usize> {
        self.places.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    pub fn first(&self) -> Option<&T> {
        self.places.front()?.1.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = (RequestNumber, &T)> {
        self.places.iter().filter_map(|(number, value)| Some((*number, value.as_ref()?)))
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_leave_in_any_order_and_the_room_is_given_back() {
        let mut line = Line::default();
        (0..1000).for_each(|number| line.push(RequestNumber(number), number));
        for number in (1..999).rev() {
            assert_eq!(line.remove(RequestNumber(number)), Some(number));
            assert_eq!(line.remove(RequestNumber(number)), None);
            assert!(line.places.len() <= 64 + 2 * line.len);
        }
        assert_eq!((line.first(), line.get(RequestNumber(999))), (Some(&0), Some(&999)));
        assert_eq!((line.pop_first(), line.pop_first(), line.pop_first()), (Some(0), Some(999), None));
        assert!(line.is_empty());
    }
}

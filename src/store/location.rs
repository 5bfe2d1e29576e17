//! Where a server is. Sentinels or a cluster may change that at any time.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::connect_options::Address;
use super::dial::{Access, Place, Target};

/// Set by the tasks that look for the server, and read by the node that connects to it.
pub struct Location {
    place: watch::Sender<Option<Place>>,
    access: Arc<Access>,
    /// The source of the address, for messages.
    named_by: Option<Arc<str>>,
    doubt: Arc<Notify>,
}

impl Location {
    /// A server that does not move.
    pub fn fixed(address: Address, access: Arc<Access>) -> Self {
        Self { place: watch::Sender::new(Some(Place::at(address))), access, named_by: None, doubt: Arc::default() }
    }

    /// A server that other tasks look for. `doubt` wakes them.
    pub fn unknown(access: Arc<Access>, named_by: Arc<str>, doubt: Arc<Notify>) -> Self {
        Self { place: watch::Sender::new(None), access, named_by: Some(named_by), doubt }
    }

    fn target(&self, place: Place) -> Target {
        Target::new(place, self.access.clone(), self.named_by.clone())
    }

    pub fn current(&self) -> Option<Target> {
        let place = self.place.borrow().clone();
        place.map(|place| self.target(place))
    }

    /// `None`: the address is unknown.
    pub fn move_to(&self, place: Option<Place>) {
        self.place.send_if_modified(|current| {
            let moved = *current != place;
            *current = place;
            moved
        });
    }

    /// Waits until the address is known.
    pub async fn known(&self) -> Target {
        let mut changes = self.place.subscribe();
        loop {
            let place = changes.borrow_and_update().clone();
            if let Some(place) = place {
                return self.target(place);
            }
            // The sender lives as long as `self`, so this does not fail.
            let _ = changes.changed().await;
        }
    }

    /// Resolves when the server has moved, or there was another failover.
    pub async fn left(&self, place: &Place) {
        let mut changes = self.place.subscribe();
        // This cannot fail either.
        let _ = changes.wait_for(|current| current.as_ref() != Some(place)).await;
    }

    /// The server at that address does not answer, or is not the primary.
    pub fn doubt(&self) {
        // `Notify` keeps a notice that nobody waits for, so this also works during a look.
        self.doubt.notify_one();
    }
}

//! Where a server is. Sentinels or a cluster may say at any time that it is elsewhere now.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::connect_options::Address;
use super::dial::{Access, Target};

/// Told by those who look for the server, and asked by the node that connects to it.
pub struct Location {
    address: watch::Sender<Option<Address>>,
    access: Arc<Access>,
    /// Who says where it is, for messages.
    named_by: Option<Arc<str>>,
    doubt: Arc<Notify>,
}

impl Location {
    /// A server that stays where it is.
    pub fn fixed(address: Address, access: Arc<Access>) -> Self {
        Self { address: watch::Sender::new(Some(address)), access, named_by: None, doubt: Arc::default() }
    }

    /// A server that others look for. Those who wait for `doubt` are woken by it.
    pub fn unknown(access: Arc<Access>, named_by: Arc<str>, doubt: Arc<Notify>) -> Self {
        Self { address: watch::Sender::new(None), access, named_by: Some(named_by), doubt }
    }

    fn target(&self, address: Address) -> Target {
        Target::new(address, self.access.clone(), self.named_by.clone())
    }

    pub fn current(&self) -> Option<Target> {
        let address = self.address.borrow().clone();
        address.map(|address| self.target(address))
    }

    /// `None`: nobody knows.
    pub fn move_to(&self, address: Option<&Address>) {
        self.address.send_if_modified(|current| {
            let moved = current.as_ref() != address;
            if moved {
                *current = address.cloned();
            }
            moved
        });
    }

    /// Waits until somebody knows where the server is.
    pub async fn known(&self) -> Target {
        let mut changes = self.address.subscribe();
        loop {
            let address = changes.borrow_and_update().clone();
            if let Some(address) = address {
                return self.target(address);
            }
            // The sender lives as long as `self`, so this does not fail.
            let _ = changes.changed().await;
        }
    }

    /// Resolves when the server is not at this address any longer.
    pub async fn left(&self, address: &Address) {
        let mut changes = self.address.subscribe();
        // The same for an error, which cannot come.
        let _ = changes.wait_for(|current| current.as_ref() != Some(address)).await;
    }

    /// The server does not answer there, or is not the primary.
    pub fn doubt(&self) {
        // It keeps its notice when nobody listens. So a doubt that comes during a look is not lost.
        self.doubt.notify_one();
    }
}

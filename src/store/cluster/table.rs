//! Who serves which slot: the seats of a cluster's masters.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::sync::Notify;

use super::slots::{SLOTS, SlotMap};
use crate::store::connect_options::Address;
use crate::store::{Listener, ServedKeys, Store};

/// The documentation of Redis Cluster recommends at most 1000 nodes.
const MOST_SEATS: usize = 1024;

/// The place of one master: a store for one server, at an address that may change. Seats are used
/// again, so their number is that of the masters at one time, although nodes come and go for months.
pub trait Seat: Store {
    /// Serves another address. `None`: nobody needs it now, and it gives up its connection.
    fn move_to(&self, address: Option<&Address>);
    /// Connects without being asked for a lock.
    fn open(&self);
    /// Whether it has connected, or tries to.
    fn is_open(&self) -> bool;
}

/// Some slots, and the master that serves them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRange {
    pub first: u16,
    pub last: u16,
    pub master: Address,
}

type NewSeat<N> = Box<dyn Fn(ServedKeys) -> N + Send + Sync>;

pub struct Table<N> {
    slots: Arc<SlotMap>,
    seats: Box<[OnceLock<N>]>,
    /// The address of each seat. Also held while slots change: otherwise a slot could get a seat that is
    /// being given up.
    addresses: Mutex<Vec<Option<Address>>>,
    new_seat: NewSeat<N>,
    listener: OnceLock<Weak<dyn Listener>>,
    /// Notified when a slot has another seat.
    pub changed: Notify,
    /// Notified when the table is perhaps wrong.
    pub doubt: Arc<Notify>,
}

impl<N: Seat> Table<N> {
    pub fn new(doubt: Arc<Notify>, new_seat: impl Fn(ServedKeys) -> N + Send + Sync + 'static) -> Self {
        Self {
            slots: Arc::new(SlotMap::new()),
            seats: (0..MOST_SEATS).map(|_| OnceLock::new()).collect(),
            addresses: Mutex::default(),
            new_seat: Box::new(new_seat),
            listener: OnceLock::new(),
            changed: Notify::new(),
            doubt,
        }
    }

    /// The node that serves a slot.
    pub fn serving(&self, slot: u16) -> Option<&N> {
        self.seat(self.slots.seat_of(slot)?)
    }

    pub fn seat(&self, seat: u16) -> Option<&N> {
        self.seats.get(usize::from(seat))?.get()
    }

    pub fn all(&self) -> impl Iterator<Item = &N> {
        // Filled from the front.
        self.seats.iter().map_while(OnceLock::get)
    }

    /// The address of the node that serves a slot.
    pub fn address_of(&self, slot: u16) -> Option<Address> {
        let seat = self.slots.seat_of(slot)?;
        self.addresses().get(usize::from(seat))?.clone()
    }

    pub fn listen(&self, listener: Weak<dyn Listener>) {
        // Under this lock, so that a seat that is made meanwhile is in one of the two groups.
        let _addresses = self.addresses();
        self.all().for_each(|seat| seat.listen(listener.clone()));
        // Set once, right after the client was made.
        let _ = self.listener.set(listener);
    }

    /// A node says that another one has the slot. Returns that one.
    pub fn moved(&self, slot: u16, master: &Address) -> Option<&N> {
        let seat = {
            let mut addresses = self.addresses();
            let seat = self.seat_at(&mut addresses, master)?;
            self.slots.set(slot, Some(seat));
            seat
        };
        self.changed.notify_waiters();
        // One slot is seldom alone.
        self.doubt.notify_one();
        self.seat(seat)
    }

    /// The node at an address: for the slots that it is about to get.
    pub fn at(&self, address: &Address) -> Option<&N> {
        let seat = self.seat_at(&mut self.addresses(), address)?;
        self.seat(seat)
    }

    /// The whole table anew, as a node of the cluster has told it.
    pub fn replace(&self, ranges: &[SlotRange]) {
        let opened: Vec<u16> = {
            let mut addresses = self.addresses();
            let mut owners = vec![None; usize::from(SLOTS)];
            for SlotRange { first, last, master } in ranges {
                let seat = self.seat_at(&mut addresses, master);
                for slot in *first..=*last {
                    if let Some(owner) = owners.get_mut(usize::from(slot)) {
                        *owner = seat;
                    }
                }
            }
            let opened = self.set_all(&owners);
            self.give_up_unused(&mut addresses, &owners);
            opened
        };
        // After the lock is free: a seat asks which slots it has.
        opened.into_iter().filter_map(|seat| self.seat(seat)).for_each(Seat::open);
        self.changed.notify_waiters();
    }

    /// Returns the seats to open: locks are held or waited for at the node that had the slot until now.
    fn set_all(&self, owners: &[Option<u16>]) -> Vec<u16> {
        let mut opened = Vec::new();
        for (slot, owner) in (0..SLOTS).zip(owners) {
            let before = self.slots.set(slot, *owner);
            let was_open = || before.and_then(|seat| self.seat(seat)).is_some_and(Seat::is_open);
            if let Some(owner) = owner.filter(|owner| before != Some(*owner) && !opened.contains(owner) && was_open()) {
                opened.push(owner);
            }
        }
        opened
    }

    /// A node without slots is a replica now, or gone. Its connection must not be used again, even if it
    /// still answers.
    fn give_up_unused(&self, addresses: &mut [Option<Address>], owners: &[Option<u16>]) {
        for (seat, address) in (0_u16..).zip(addresses) {
            if address.is_some() && !owners.contains(&Some(seat)) {
                *address = None;
                self.seat(seat).into_iter().for_each(|node| node.move_to(None));
            }
        }
    }

    /// The seat with that address. If there is none: a free one, or a new one.
    fn seat_at(&self, addresses: &mut Vec<Option<Address>>, address: &Address) -> Option<u16> {
        let with = |wanted: Option<&Address>| addresses.iter().position(|other| other.as_ref() == wanted);
        if let Some(seat) = with(Some(address)) {
            return u16::try_from(seat).ok();
        }
        let seat = with(None).unwrap_or(addresses.len());
        let Some(place) = self.seats.get(seat) else {
            tracing::warn!(%address, "more than {MOST_SEATS} masters: this one is not used");
            return None;
        };
        let number = u16::try_from(seat).ok()?;
        if seat == addresses.len() {
            addresses.push(None);
        }
        let node = place.get_or_init(|| {
            let node = (self.new_seat)(ServedKeys::Slots { slots: self.slots.clone(), seat: number });
            self.listener.get().into_iter().for_each(|listener| node.listen(listener.clone()));
            node
        });
        node.move_to(Some(address));
        addresses[seat] = Some(address.clone());
        Some(number)
    }

    fn addresses(&self) -> MutexGuard<'_, Vec<Option<Address>>> {
        // No code panics while it holds this; if it did, the data would still be whole.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

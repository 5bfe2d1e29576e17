//! The master of each slot, and the seats of a cluster's masters.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::identity::Masters;
use super::slots::{SLOTS, SlotMap};
use super::view::SlotRange;
use crate::store::clock::now;
use crate::store::connect_options::Address;
use crate::store::node::Node;
use crate::store::node::wire::Wire;
use crate::store::{Listener, ServedKeys, Store};
use crate::sync::Mutex;

/// The documentation of Redis Cluster recommends at most 1000 nodes.
const MOST_SEATS: usize = 1024;

/// The masters by seat. Also locked while slots change: otherwise a slot could get a seat while its master gives it
/// up.
#[derive(Default)]
struct Seated {
    masters: Vec<Option<Master>>,
    /// Slots without a master, whose last master was in use.
    orphans: BTreeSet<u16>,
    /// No master gets a seat any more.
    closed: bool,
    /// Log lines for when the lock is free: a log subscriber may ask for the client's state.
    news: Vec<News>,
}

enum News {
    GivenUp(Address),
    TooMany(Address),
}

struct Moves {
    /// From the first to the last slot that has moved.
    slots: Option<RangeInclusive<u16>>,
    /// The seats that gained a slot from a node in use: locks there may have holders or waiters.
    gained: Vec<u16>,
}

struct Master {
    address: Address,
    /// When a node last redirected a request there.
    named: Instant,
    /// It belonged to the cluster that was replaced.
    is_past: bool,
}

/// How long a master without slots keeps its seat after a node has redirected a request there: it is about to get its
/// first slot, or the table is out of date.
const KEPT: Duration = Duration::from_secs(5);

type NewSeat<W> = Box<dyn Fn(ServedKeys) -> Node<W> + Send + Sync>;

/// Seats are reused. So there are only as many as masters at one time, although nodes come and go for months.
pub struct Table<W: Wire> {
    slots: Arc<SlotMap>,
    /// The masters of the cluster. Each new connection compares its cluster with them.
    pub masters: Arc<Masters>,
    seats: Box<[OnceLock<Node<W>>]>,
    seated: Mutex<Seated>,
    new_seat: NewSeat<W>,
    listener: OnceLock<Weak<dyn Listener>>,
    /// Notified when a slot gets another seat.
    pub changed: Notify,
    /// Notified when the table may be wrong.
    pub doubt: Arc<Notify>,
}

impl<W: Wire> Table<W> {
    pub fn new(doubt: Arc<Notify>, new_seat: impl Fn(ServedKeys) -> Node<W> + Send + Sync + 'static) -> Self {
        Self {
            slots: Arc::new(SlotMap::new()),
            masters: Arc::default(),
            seats: (0..MOST_SEATS).map(|_| OnceLock::new()).collect(),
            seated: Mutex::default(),
            new_seat: Box::new(new_seat),
            listener: OnceLock::new(),
            changed: Notify::new(),
            doubt,
        }
    }

    pub fn serving(&self, slot: u16) -> Option<&Node<W>> {
        self.seat(self.slots.seat_of(slot)?)
    }

    pub fn seat(&self, seat: u16) -> Option<&Node<W>> {
        self.seats.get(usize::from(seat))?.get()
    }

    pub fn all(&self) -> impl Iterator<Item = &Node<W>> {
        // Seats are filled from the front.
        self.seats.iter().map_while(OnceLock::get)
    }

    pub fn seats_in_use(&self) -> Vec<u16> {
        let seated = self.seated.lock();
        (0..).zip(&seated.masters).filter(|(_, master)| master.is_some()).map(|(seat, _)| seat).collect()
    }

    pub fn address_at(&self, seat: u16) -> Option<Address> {
        Some(self.seated.lock().masters.get(usize::from(seat))?.as_ref()?.address.clone())
    }

    pub fn seat_of(&self, slot: u16) -> Option<u16> {
        self.slots.seat_of(slot)
    }

    /// Adds no new nodes from now on.
    pub fn close(&self) {
        self.seated.lock().closed = true;
    }

    /// The task that keeps the table has ended. There may be no node to report the runtime's end.
    pub fn gone(&self) {
        let is_closed = self.seated.lock().closed;
        let listener = self.listener.get().and_then(Weak::upgrade).filter(|_| !is_closed);
        listener.into_iter().for_each(|listener| listener.gone());
    }

    pub fn listen(&self, listener: Weak<dyn Listener>) {
        // Under this lock, so that a new seat gets the listener either here or when it is made.
        let seated = self.seated.lock();
        self.all().for_each(|seat| seat.listen(listener.clone()));
        // Set once, right after the client is made.
        let _ = self.listener.set(listener);
        drop(seated);
        self.tell_of_moves(0..=SLOTS - 1);
    }

    /// A node reports that this master has the slot. Returns the master's node.
    pub fn moved(&self, slot: u16, master: &Address) -> Option<&Node<W>> {
        let node = self.named(master, Some(slot))?;
        self.changed.notify_waiters();
        self.tell_of_moves(slot..=slot);
        // A slot seldom moves alone.
        self.doubt.notify_one();
        Some(node)
    }

    /// The node at an address, for the slots that it is about to get.
    pub fn at(&self, address: &Address) -> Option<&Node<W>> {
        self.named(address, None)
    }

    /// The node to which another node redirects a request: it has this slot, or is about to get one.
    fn named(&self, address: &Address, slot: Option<u16>) -> Option<&Node<W>> {
        let mut seated = self.seated.lock();
        let seat = self.seat_at(&mut seated, address)?;
        let master = seated.masters.get_mut(usize::from(seat)).and_then(Option::as_mut);
        master.into_iter().for_each(|master| master.named = now());
        if let Some(slot) = slot {
            self.slots.set(slot, Some(seat));
        }
        tell(seated);
        self.seat(seat)
    }

    /// Replaces the whole table by the one that a node of the cluster reports.
    pub fn replace(&self, ranges: &[SlotRange]) {
        let Moves { slots, gained } = {
            let mut seated = self.seated.lock();
            let mut owners = vec![None; usize::from(SLOTS)];
            for SlotRange { first, last, master } in ranges {
                let seat = self.seat_at(&mut seated, master);
                for slot in *first..=*last {
                    if let Some(owner) = owners.get_mut(usize::from(slot)) {
                        *owner = seat;
                    }
                }
            }
            let moves = self.set_all(&mut seated, &owners);
            self.give_up_unused(&mut seated, &owners);
            tell(seated);
            moves
        };
        slots.into_iter().for_each(|slots| self.tell_of_moves(slots));
        // After releasing the lock: a seat asks which slots it has.
        for node in gained.into_iter().filter_map(|seat| self.seat(seat)) {
            node.inner().want();
        }
        self.changed.notify_waiters();
    }

    /// The listener looks up the new servers itself: the slots may have moved again by then.
    fn tell_of_moves(&self, slots: RangeInclusive<u16>) {
        if let Some(listener) = self.listener.get().and_then(Weak::upgrade) {
            listener.moved(slots);
        }
    }

    /// The next table belongs to another cluster. It must not use an old connection, not even to an address that both
    /// clusters have.
    pub fn leave_cluster(&self) {
        self.seated.lock().masters.iter_mut().flatten().for_each(|master| master.is_past = true);
    }

    /// This address leads to another cluster now. An open connection there may as well, since a node keeps its
    /// connections when it is reset. Drops the connection, so that the node connects again and checks the cluster.
    pub fn leads_elsewhere(&self, address: &Address) {
        let seat = self.seated.lock().masters.iter().position(|master| is_at(master, address));
        let node = seat.and_then(|seat| self.seats.get(seat)?.get()).map(Node::inner);
        if let Some((node, connection)) = node.and_then(|node| Some((node, node.link.connection()?))) {
            node.wire.disconnect(&connection);
        }
    }

    fn set_all(&self, seated: &mut Seated, owners: &[Option<u16>]) -> Moves {
        let (mut slots, mut gained) = (None, Vec::new());
        for (slot, owner) in (0..SLOTS).zip(owners) {
            let before = self.slots.set(slot, *owner);
            if before == *owner {
                continue;
            }
            slots = Some(slots.map_or(slot, |run: RangeInclusive<u16>| *run.start())..=slot);
            let was_in_use = match before {
                Some(seat) => self.seat(seat).is_some_and(|node| node.inner().is_wanted()),
                None => seated.orphans.remove(&slot),
            };
            match owner {
                _ if !was_in_use => {}
                Some(owner) if gained.contains(owner) => {}
                Some(owner) => gained.push(*owner),
                None => drop(seated.orphans.insert(slot)),
            }
        }
        Moves { slots, gained }
    }

    /// A node without slots is usually a replica now, or gone. The client must not use its connection again, even if
    /// it still answers.
    fn give_up_unused(&self, seated: &mut Seated, owners: &[Option<u16>]) {
        let Seated { masters, news, .. } = seated;
        for (seat, master) in (0_u16..).zip(masters) {
            let is_old = master.as_ref().is_some_and(|master| master.is_past || now() >= master.named + KEPT);
            if is_old && !owners.contains(&Some(seat)) {
                let Some(Master { address, .. }) = master.take() else { continue };
                if self.seat(seat).is_some_and(|node| node.inner().is_wanted()) {
                    news.push(News::GivenUp(address));
                }
                self.seat(seat).into_iter().for_each(|node| node.move_to(None));
            }
        }
    }

    /// The seat with this address, else a free seat, else a new one.
    fn seat_at(&self, seated: &mut Seated, address: &Address) -> Option<u16> {
        if seated.closed {
            return None;
        }
        let masters = &mut seated.masters;
        if let Some(seat) = masters.iter().position(|master| is_at(master, address)) {
            return u16::try_from(seat).ok();
        }
        let seat = masters.iter().position(Option::is_none).unwrap_or(masters.len());
        let Some(place) = self.seats.get(seat) else {
            seated.news.push(News::TooMany(address.clone()));
            return None;
        };
        let number = u16::try_from(seat).ok()?;
        if seat == masters.len() {
            masters.push(None);
        }
        let node = place.get_or_init(|| {
            let masters = self.masters.clone();
            let node = (self.new_seat)(ServedKeys::Slots { seat: number, masters });
            self.listener.get().into_iter().for_each(|listener| node.listen(listener.clone()));
            node
        });
        node.move_to(Some(address));
        // No node has redirected a request here yet, so the master gives up the seat with its last slot.
        let named = now().checked_sub(KEPT).unwrap_or_else(now);
        masters[seat] = Some(Master { address: address.clone(), named, is_past: false });
        Some(number)
    }
}

fn is_at(master: &Option<Master>, address: &Address) -> bool {
    master.as_ref().is_some_and(|master| !master.is_past && master.address == *address)
}

fn tell(mut seated: MutexGuard<'_, Seated>) {
    let news = std::mem::take(&mut seated.news);
    drop(seated);
    for each in news {
        match each {
            News::GivenUp(address) => {
                tracing::info!(target: "fairlock::server", %address, "this node of the cluster serves no slots now; others have its locks");
            }
            News::TooMany(address) => {
                tracing::warn!(target: "fairlock::server", %address, "more masters than a cluster may have: this one is not used");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;
    use tokio::sync::watch;

    use super::*;
    use crate::store::connect_options::SignIn;
    use crate::store::dial::Access;
    use crate::store::location::Location;
    use crate::store::node::network::{NetworkWire, Purpose};
    use crate::store::options::Options;

    /// The nodes connect nowhere: the test never yields to their tasks.
    fn table() -> Table<NetworkWire> {
        let (access, options) = (Access::new(SignIn::default(), None).unwrap(), Options::default());
        Table::new(Arc::default(), move |keys| {
            let location = Arc::new(Location::unknown(access.clone(), "a cluster".into(), Arc::default()));
            let purpose = Purpose { location, database: 0, keys, changes: watch::Sender::default() };
            Node::new(purpose, &options, "c", &Handle::current())
        })
    }

    fn at(port: u16) -> Address {
        Address::Tcp { host: "h".into(), port }
    }

    fn range(first: u16, last: u16, port: u16) -> SlotRange {
        SlotRange { first, last, master: at(port) }
    }

    fn port_of(node: Option<&Node<NetworkWire>>) -> Option<u16> {
        match node?.inner().wire.location.current()?.place.address {
            Address::Tcp { port, .. } => Some(port),
            Address::Unix(_) => None,
        }
    }

    #[tokio::test]
    async fn a_seat_is_given_up_and_used_again() {
        let table = table();
        table.replace(&[range(0, 99, 1), range(100, 16_383, 2)]);
        assert_eq!((port_of(table.serving(0)), port_of(table.serving(100))), (Some(1), Some(2)));
        table.serving(0).unwrap().inner().want();
        // 1 is gone, and 3 has its slots. The table opens 3, since locks there may have holders.
        table.replace(&[range(0, 99, 3), range(100, 16_383, 2)]);
        assert_eq!(port_of(table.serving(0)), Some(3));
        assert!(table.serving(0).unwrap().inner().is_wanted() && !table.serving(100).unwrap().inner().is_wanted());
        assert_eq!(table.all().filter(|seat| port_of(Some(*seat)).is_none()).count(), 1, "that of 1 is free");
        table.replace(&[range(0, 99, 4), range(100, 16_383, 2)]);
        assert_eq!(port_of(table.serving(0)), Some(4));
        assert_eq!(table.all().count(), 3, "and was used again");
    }

    #[tokio::test]
    async fn another_cluster_has_seats_of_its_own_even_at_the_same_addresses() {
        let table = table();
        table.replace(&[range(0, 16_383, 1)]);
        // A redirect named the seat a moment ago, so the same cluster would keep it.
        let before = table.moved(0, &at(1)).unwrap();
        before.inner().want();
        table.leave_cluster();
        table.replace(&[range(0, 16_383, 1)]);
        let after = table.serving(0).unwrap();
        assert_eq!((port_of(Some(before)), port_of(Some(after))), (None, Some(1)));
        assert!(after.inner().is_wanted(), "holds and waits are checked there");
    }

    #[tokio::test]
    async fn a_redirect_moves_one_slot() {
        let table = table();
        table.replace(&[range(0, 16_383, 1)]);
        assert_eq!(port_of(table.moved(5, &at(2))), Some(2));
        assert_eq!((port_of(table.serving(5)), port_of(table.serving(6))), (Some(2), Some(1)));
        // A node that is about to get its first slot.
        assert_eq!(port_of(table.at(&at(3))), Some(3));
        assert_eq!(port_of(table.serving(7)), Some(1));
        // A stale table moves the slot back, and the next redirect corrects that.
        table.replace(&[range(0, 16_383, 1)]);
        assert_eq!(port_of(table.serving(5)), Some(1));
        assert_eq!(port_of(table.moved(5, &at(2))), Some(2));
    }

    #[tokio::test]
    async fn slots_may_have_no_master() {
        let table = table();
        table.replace(&[range(0, 4, 1), range(6, 16_383, 1)]);
        assert!(table.serving(5).is_none());
        // In the end, the client checks holds and waits of 1 at the master that gets its slots.
        table.serving(0).unwrap().inner().want();
        table.replace(&[range(6, 16_383, 1)]);
        table.replace(&[range(0, 4, 2), range(6, 16_383, 1)]);
        assert!(table.serving(0).unwrap().inner().is_wanted());
        table.replace(&[]);
        assert!(table.serving(0).is_none());
        assert_eq!(table.all().filter(|seat| port_of(Some(*seat)).is_some()).count(), 0);
    }

    #[tokio::test]
    async fn no_more_seats_than_there_may_be() {
        let table = table();
        let many: Vec<_> = (0..=MOST_SEATS as u16).map(|number| range(number, number, 1 + number)).collect();
        table.replace(&many);
        assert!(table.serving(MOST_SEATS as u16).is_none());
        assert_eq!(port_of(table.serving(MOST_SEATS as u16 - 1)), Some(MOST_SEATS as u16));
    }
}

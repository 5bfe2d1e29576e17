//! Decides whether a node belongs to the client's cluster. It compares ids, not addresses: an address may lead to a
//! node of another cluster at any time, with later or earlier epochs.
//!
//! A node belongs to the client's cluster if its view names more than half of the masters in the last believed view,
//! as masters or as replicas. Half is enough if replicas of the other masters are masters there: one of two masters
//! has failed over. The node itself counts as named, since CLUSTER SLOTS leaves out a master that has lost its slots.
//! One id alone proves nothing: a node that was reset keeps its id, and may join another cluster.

use std::sync::Arc;

use super::view::{Health, Shards, View};
use crate::sync::Mutex;

/// The masters of the last believed view. The watch sets them, and each new connection to a node reads them.
#[derive(Default)]
pub struct Masters(Mutex<Arc<Shards>>);

impl Masters {
    pub fn believe(&self, view: &View) {
        // A view without slots names no masters. Keep the earlier masters as the best guess.
        if !view.shards.is_empty() {
            *self.0.lock() = Arc::new(view.shards.clone());
        }
    }

    pub fn known(&self) -> Arc<Shards> {
        self.0.lock().clone()
    }

    /// Whether the node with this id and this view belongs to the client's cluster. Before a view is believed, every
    /// node does.
    pub fn know(&self, id: &str, view: &View) -> bool {
        let known = self.known();
        known.is_empty() || continues(&known, view, |master| view.names(master) || master == id)
    }
}

pub struct Look {
    pub id: String,
    pub health: Health,
    pub view: View,
}

impl Look {
    /// The node reports its cluster as ok, and its view has slots.
    pub fn is_well(&self) -> bool {
        self.health.is_ok && !self.view.ranges.is_empty()
    }

    /// A greater rank is better.
    pub fn rank(&self) -> (bool, u64) {
        (!self.view.ranges.is_empty(), self.health.epoch)
    }

    /// How many of these nodes belong to its cluster. If another cluster has taken over an address, it must not win
    /// by a later epoch.
    pub fn confirmed_by(&self, looks: &[Self]) -> usize {
        let shards = &self.view.shards;
        let belongs = |look: &&Self| most(shards, |master| look.view.names(master) || master == look.id);
        looks.iter().filter(belongs).count()
    }
}

/// One look of a round that asks every known address.
pub struct Answer {
    pub look: Look,
    pub is_seed: bool,
}

/// The combined result of a round in which no node of the client's cluster reported it well.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This answer comes from the client's cluster.
    Ours(usize),
    /// The client's cluster does not answer, and another one may have replaced it. This is the other cluster's best
    /// answer.
    Another(usize),
    /// The client cannot believe anything new.
    Undecided,
}

/// Another cluster can replace this one only while no majority of the believed masters answers and no seed leads to
/// one of them. Also, either the seeds lead to the other cluster, or its masters were replicas of most of these
/// masters: an operator has forced their promotion.
pub fn judge(believed: &Shards, answers: &[Answer]) -> Verdict {
    let best = |is: &dyn Fn(&Answer) -> bool| {
        let some = answers.iter().enumerate().filter(|(_, answer)| answer.look.is_well() && is(answer));
        some.max_by_key(|(_, answer)| (is_heir(believed, &answer.look.view), answer.look.rank()))
            .map(|(index, _)| index)
    };
    let is_ours = |answer: &Answer| is_ours(believed, answer, answers);
    if let Some(ours) = best(&is_ours) {
        return Verdict::Ours(ours);
    }
    // A node that was reset names no master: it is in no cluster.
    let reports =
        |master: &str| answers.iter().any(|Answer { look, .. }| look.id == master && !look.view.shards.is_empty());
    if most(believed, reports) || answers.iter().any(|answer| answer.is_seed && is_ours(answer)) {
        return Verdict::Undecided;
    }
    let another = best(&|answer| !is_ours(answer) && (answer.is_seed || is_heir(believed, &answer.look.view)));
    another.map_or(Verdict::Undecided, Verdict::Another)
}

/// Nodes that report the same masters are in one cluster. So even if all old masters were demoted or emptied at once,
/// their answers show that they belong to it.
fn is_ours(believed: &Shards, Answer { look: Look { view, .. }, .. }: &Answer, answers: &[Answer]) -> bool {
    let reports_the_same = |id: &str| {
        answers.iter().any(|Answer { look, .. }| look.id == id && look.view.shards.keys().eq(view.shards.keys()))
    };
    !view.shards.is_empty() && continues(believed, view, |id| view.names(id) || reports_the_same(id))
}

/// Whether the view shows the cluster with these masters, given which of them it contains.
fn continues(believed: &Shards, view: &View, is_named: impl Fn(&str) -> bool) -> bool {
    let named = believed.keys().filter(|master| is_named(master)).count();
    2 * named > believed.len() || 2 * named == believed.len() && is_heir(believed, view)
}

/// Whether most of the believed masters, or replicas of them, are masters there.
fn is_heir(believed: &Shards, view: &View) -> bool {
    let masters = &view.shards;
    let is_continued = |master: &str| {
        let replicas = believed.get(master).into_iter().flatten();
        masters.contains_key(master) || replicas.into_iter().any(|replica| masters.contains_key(replica))
    };
    most(believed, is_continued)
}

fn most(masters: &Shards, is: impl Fn(&str) -> bool) -> bool {
    2 * masters.keys().filter(|master| is(master)).count() > masters.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::cluster::view::SlotRange;
    use crate::store::connect_options::Address;

    /// Masters, each followed by `/` and its replicas.
    fn shards(text: &str) -> Shards {
        let shard = |word: &str| {
            let (master, replicas) = word.split_once('/').unwrap_or((word, ""));
            (master.into(), replicas.split_terminator('/').map(Into::into).collect())
        };
        text.split_whitespace().map(shard).collect()
    }

    fn view(text: &str) -> View {
        let master = Address::Tcp { host: "h".into(), port: 1 };
        let range = SlotRange { first: 0, last: 9, master };
        let ranges = if text.is_empty() { Vec::new() } else { vec![range] };
        View { ranges, nodes: Vec::new(), shards: shards(text) }
    }

    #[test]
    fn a_node_is_of_the_cluster_if_most_masters_are_in_its_view() {
        let masters = Masters::default();
        assert!(masters.know("x", &view("x y z")), "the first one is believed");
        masters.believe(&view("1/4 2/5 3/6"));
        masters.believe(&View::default());
        for (by, theirs, is_ours) in [
            ("1", "1/4 2/5 3/6", true),
            // Failovers of one master and of all masters; the old masters have come back as replicas.
            ("2", "4 2/5 3/6", true),
            ("2", "4/1 5/2 6/3", true),
            ("2", "4 5 6", false),
            // Masters were added, or lost their slots. A node without slots counts itself, so it still names more
            // masters than the node that has its slots now.
            ("7", "1 2 3 7 8 9", true),
            ("3", "1 2", true),
            ("2", "1", true),
            ("1", "1", false),
            // Another cluster; another cluster that one of our nodes has joined; and a node that was reset.
            ("x", "x y z", false),
            ("1", "x y z 1", false),
            ("1", "", false),
        ] {
            assert_eq!(masters.know(by, &view(theirs)), is_ours, "{theirs} by {by}");
        }
        // One of two masters has failed over and does not come back.
        masters.believe(&view("1/4 2/5"));
        for (by, theirs, is_ours) in [("4", "4 2/5", true), ("2", "x y 2", false), ("2", "x 4", false)] {
            assert_eq!(masters.know(by, &view(theirs)), is_ours, "{theirs} by {by}");
        }
    }

    /// `S` marks a seed's answer, `!` a cluster that is down.
    fn answer(text: &str, epoch: u64) -> Answer {
        let (kind, rest) = text.split_once(' ').unwrap();
        let (id, masters) = rest.split_once(':').unwrap();
        let health = Health { epoch, is_ok: !kind.contains('!') };
        Answer { look: Look { id: id.into(), health, view: view(masters.trim()) }, is_seed: kind.contains('S') }
    }

    #[test]
    fn the_seeds_decide_only_while_no_majority_of_the_masters_answers() {
        for (believed, answers, verdict) in [
            // No answers at all, then answers without a seed.
            ("1 2 3", &[][..], Verdict::Undecided),
            ("1 2 3", &["- x: x y", "- y: x y"], Verdict::Undecided),
            // Replaced: no old master answers, or only one, whose cluster is down. The best seed wins.
            ("1 2 3", &["S x: x y"], Verdict::Another(0)),
            ("1 2 3", &["-! 1: 1 2 3", "S x: x y"], Verdict::Another(1)),
            ("1 2 3", &["S x: x y", "S v: v w", "S! u: u"], Verdict::Another(1)),
            ("1 2 3", &["S! x: x y"], Verdict::Undecided),
            ("1 2 3", &["S x: "], Verdict::Undecided),
            // Two old masters remain, or one at a seed.
            ("1 2 3", &["-! 1: 1 2 3", "-! 2: 1 2 3", "S x: x y"], Verdict::Undecided),
            ("1 2 3", &["S! 1: 1 2 3", "S x: x y"], Verdict::Undecided),
            // A master that has joined the other cluster, and three masters that were reset.
            ("1 2 3", &["S 1: x y 1"], Verdict::Another(0)),
            ("1 2 3", &["- 1: ", "- 2: ", "- 3: ", "S x: x y"], Verdict::Another(3)),
            // All masters were demoted at once, and most report the same new ones. In the second case they do not
            // agree yet.
            ("1 2 3", &["- 1: 4 5 6", "- 2: 4 5 6", "S x: x y"], Verdict::Ours(1)),
            ("1 2 3", &["- 1: 4 5 6", "- 2: 4 2", "S 3: 4 5 3"], Verdict::Undecided),
            // All masters crashed, and their replicas were promoted by force. A single one of them in another cluster
            // is not enough.
            ("1/4 2/5 3/6", &["- 4: 4 5 6", "S x: x y"], Verdict::Another(0)),
            ("1/4", &["- 4: 4"], Verdict::Another(0)),
            ("1/4 2/5 3/6", &["- 4: 4"], Verdict::Undecided),
            // One of two masters has failed over and is stopped.
            ("1/4 2/5", &["- 2: 4 2/5", "- 4: 4 2/5", "S x: x y"], Verdict::Ours(1)),
            // Node 1 took all slots of node 2 at once, and both report the same masters.
            ("1 2", &["- 1: 1", "- 2: 1"], Verdict::Ours(1)),
        ] {
            let all: Vec<_> = (1..).zip(answers).map(|(epoch, text)| answer(text, epoch)).collect();
            assert_eq!(judge(&shards(believed), &all), verdict, "{believed}: {answers:?}");
        }
    }
}

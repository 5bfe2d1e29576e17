//! The primary of a service that Sentinels watch.
//!
//! The client polls all Sentinels and believes a majority: an isolated Sentinel may name a primary that was replaced.
//! Polling is needed because a frozen primary may be demoted and then continue. A client that only waits for its
//! connection to break would stay with it (10 s in a measurement).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout, timeout_at};

use super::ServedKeys;
use super::clock::now;
use super::connect_options::Address;
use super::connection::{Connection, refusal};
use super::dial::{Access, Limit, Place, Target};
use super::error::{ConnectError, Fault};
use super::location::Location;
use super::node::network::{NetworkNode, Purpose};
use super::node::{SignedIn, connect_error, sign_in};
use super::options::Options;
use super::runtime::{AFTER_PANIC, survive};
use crate::sync::Mutex;

/// How often the client asks each Sentinel: it has to leave a demoted primary within a second.
const INTERVAL: Duration = Duration::from_millis(400);
/// How long a Sentinel may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// The pause between two tries of the first connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks the Sentinels for the primary, and connects to it. During a failover this takes up to the operation time-out:
/// the Sentinels must agree, and the new primary must be promoted. If this fails, the node goes on looking for the
/// primary.
pub async fn connect(
    service: String,
    sentinels: Vec<Address>,
    asked: &Arc<Access>,
    served: Arc<Access>,
    database: u32,
    options: &Options,
    client: &str,
) -> (NetworkNode, Result<(), ConnectError>) {
    let named_by: Arc<str> = format!("primary of {service:?}, as its Sentinels say").into();
    let location = Arc::new(Location::unknown(served, named_by, Arc::default()));
    let keys = ServedKeys::All;
    let purpose = Purpose { location: location.clone(), database, keys, changes: watch::Sender::default() };
    let node = NetworkNode::new(purpose, options, client, &Handle::current());
    let sentinels = Arc::new(Sentinels::new(service, sentinels, asked, location, options));
    let watch = sentinels.clone();
    node.accompany(async move {
        while survive(watch.ask_all()).await.is_none() {
            sleep(AFTER_PANIC).await;
        }
    });
    let until = now() + options.operation_timeout;
    // Longer than a Sentinel may take to answer, so that the error says why it did not.
    let outcome = sentinels.first_answer(until + options.operation_timeout / 2).await;
    if outcome.is_err() {
        return (node, outcome);
    }
    loop {
        match node.connect().await {
            // The primary has just died, is still a replica until the failover ends, or is not ready yet.
            Err(error) if error.may_pass() && now() < until => sleep(PAUSE).await,
            outcome => return (node, outcome),
        }
    }
}

/// The Sentinels of one service. They report where its primary is.
struct Sentinels {
    service: String,
    operation_timeout: Duration,
    /// With `strict_restart`.
    strict: bool,
    targets: Vec<Target>,
    location: Arc<Location>,
    votes: Mutex<Vec<Vote>>,
    /// There was a majority, and the client has logged its loss.
    lacks_majority: AtomicBool,
    voted: Notify,
}

/// A Sentinel's last answer.
#[derive(Debug, Clone)]
enum Vote {
    NotAsked,
    Failed(ConnectError),
    Unknown,
    Primary(Place),
}

impl Sentinels {
    fn new(
        service: String,
        sentinels: Vec<Address>,
        access: &Arc<Access>,
        location: Arc<Location>,
        options: &Options,
    ) -> Self {
        let new_target = |address| Target::new(Place::at(address), access.clone(), None);
        let targets: Vec<Target> = sentinels.into_iter().map(new_target).collect();
        let votes = Mutex::new(vec![Vote::NotAsked; targets.len()]);
        let lacks_majority = AtomicBool::new(false);
        let (operation_timeout, strict) = (options.operation_timeout, options.strict_restart.is_some());
        Self { service, operation_timeout, strict, targets, location, votes, lacks_majority, voted: Notify::new() }
    }

    /// Polls the Sentinels. Never ends.
    async fn ask_all(&self) {
        join_all((0..self.targets.len()).map(|number| self.ask_again_and_again(number))).await;
    }

    async fn first_answer(&self, until: Instant) -> Result<(), ConnectError> {
        loop {
            let voted = self.voted.notified();
            if self.location.current().is_some() {
                return Ok(());
            }
            if let Some(error) = self.hopeless() {
                return Err(error);
            }
            if timeout_at(until.into(), voted).await.is_err() {
                return Err(self.no_majority());
            }
        }
    }

    async fn ask_again_and_again(&self, number: usize) {
        let Some(target) = self.targets.get(number) else { return };
        loop {
            let error = match self.open(target).await {
                Ok(SignedIn { mut connection, peer, .. }) => tokio::select! {
                    error = self.ask_while_it_answers(number, target, &mut connection) => error,
                    // The Sentinel at the old address may still run, and name a primary to which new clients are not
                    // led.
                    () = target.name_left(peer) => continue,
                },
                Err(error) => error,
            };
            tracing::debug!(target: "fairlock::server", sentinel = %target.address(), %error, "a Sentinel does not answer");
            self.vote(number, Vote::Failed(error));
            sleep(INTERVAL).await;
        }
    }

    async fn open(&self, target: &Target) -> Result<SignedIn, ConnectError> {
        match sign_in(target, Limit::of(self.operation_timeout), |_| {}).await {
            Err(ConnectError::Credentials(refusal)) => Err(ConnectError::SentinelCredentials {
                address: target.address(),
                reason: format!("{} {}", refusal.code, refusal.message),
            }),
            outcome => outcome,
        }
    }

    async fn ask_while_it_answers(&self, number: usize, target: &Target, connection: &mut Connection) -> ConnectError {
        loop {
            let mut question = redis::cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
            let asked = question.query_async::<Option<(String, u16)>>(&mut connection.io);
            let vote = match timeout(PATIENCE, asked).await {
                Ok(Ok(Some((host, port)))) => match timeout(PATIENCE, self.epoch(connection)).await {
                    Ok(Ok(epoch)) => Vote::Primary(Place { address: Address::Tcp { host, port }, epoch }),
                    Ok(Err(error)) => return sentinel_error(target, error),
                    Err(_) => return target.unreachable(Arc::new(Fault::NoAnswer(PATIENCE))),
                },
                Ok(Ok(None)) => Vote::Unknown,
                Ok(Err(error)) => return sentinel_error(target, error),
                Err(_) => return target.unreachable(Arc::new(Fault::NoAnswer(PATIENCE))),
            };
            self.vote(number, vote);
            sleep(INTERVAL).await;
        }
    }

    /// Only for `strict_restart`. Ask after the address, so that the epoch is not older.
    async fn epoch(&self, connection: &mut Connection) -> Result<u64, redis::RedisError> {
        if !self.strict {
            return Ok(0);
        }
        let mut question = redis::cmd("SENTINEL");
        question.arg("MASTER").arg(&self.service);
        let facts: HashMap<String, String> = question.query_async(&mut connection.io).await?;
        let epoch = facts.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        epoch.ok_or_else(|| (redis::ErrorKind::UnexpectedReturnType, "SENTINEL MASTER names no config-epoch").into())
    }

    fn vote(&self, number: usize, vote: Vote) {
        let majority = {
            let mut votes = self.votes.lock();
            if let Some(place) = votes.get_mut(number) {
                *place = vote;
            }
            majority(&votes)
        };
        // Without a majority, stay: the client does not leave a working primary because Sentinels are down.
        match majority {
            Some(_) => {
                self.location.move_to(majority);
                if self.lacks_majority.swap(false, Ordering::Relaxed) {
                    tracing::info!(target: "fairlock::server", service = %self.service, "a majority of the Sentinels names a primary again");
                }
            }
            None if self.location.current().is_none() || self.lacks_majority.swap(true, Ordering::Relaxed) => {}
            None => {
                tracing::warn!(target: "fairlock::server", answers = %self.no_majority(), "staying with the last primary")
            }
        }
        self.voted.notify_waiters();
    }

    /// Why no majority will come: the client has asked every Sentinel, and none names a primary that another one
    /// could still confirm.
    fn hopeless(&self) -> Option<ConnectError> {
        let votes = self.votes.lock().clone();
        let count = |is: fn(&Vote) -> bool| votes.iter().filter(|vote| is(vote)).count();
        if 2 * count(|vote| matches!(vote, Vote::Unknown)) > votes.len() {
            return Some(ConnectError::UnknownService { service: self.service.clone() });
        }
        if count(|vote| matches!(vote, Vote::NotAsked | Vote::Primary(_))) > 0 {
            return None;
        }
        // An error that cannot pass, such as a wrong password, says more than a list.
        let final_one = votes.iter().find_map(|vote| match vote {
            Vote::Failed(error) if !error.may_pass() => Some(error.clone()),
            _ => None,
        });
        Some(final_one.unwrap_or_else(|| self.no_majority()))
    }

    fn no_majority(&self) -> ConnectError {
        let votes = self.votes.lock();
        let answers = self.targets.iter().zip(votes.iter()).map(|(target, vote)| {
            let answer = match vote {
                Vote::NotAsked => "no answer yet".to_owned(),
                Vote::Failed(error) => error.to_string(),
                Vote::Unknown => "does not know it".to_owned(),
                Vote::Primary(place) => place.address.to_string(),
            };
            format!("{} says {answer}", target.address())
        });
        ConnectError::NoMajority { service: self.service.clone(), answers: answers.collect::<Vec<_>>().join("; ") }
    }
}

/// The primary named by more than half of all Sentinels, including those that do not answer, and the latest failover
/// that any of these Sentinels knows.
fn majority(votes: &[Vote]) -> Option<Place> {
    let places = || votes.iter().filter_map(|vote| if let Vote::Primary(place) = vote { Some(place) } else { None });
    places().find_map(|Place { address, .. }| {
        let agree = || places().filter(|other| other.address == *address);
        let epoch = agree().map(|place| place.epoch).max()?;
        (2 * agree().count() > votes.len()).then(|| Place { address: address.clone(), epoch })
    })
}

fn sentinel_error(target: &Target, error: redis::RedisError) -> ConnectError {
    match refusal(&error) {
        Some(refusal) if refusal.message.contains("unknown command") => {
            ConnectError::NotSentinel { address: target.address() }
        }
        _ => connect_error(target, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_of_all_have_to_agree() {
        let place = |port, epoch| Place { address: Address::Tcp { host: "h".into(), port }, epoch };
        let at = |port| Vote::Primary(place(port, 0));
        let named = |votes: &[Vote]| majority(votes).map(|place| place.address.to_string());
        assert_eq!(named(&[at(1), at(2), at(1)]), Some("h:1".into()));
        assert_eq!(named(&[at(1), Vote::NotAsked, Vote::Unknown]), None);
        assert_eq!(named(&[at(1), at(2)]), None);
        assert_eq!(named(&[at(1), Vote::Unknown, at(1), at(2)]), None);
        assert_eq!(named(&[at(1)]), Some("h:1".into()));
        let votes = [(1, 4), (1, 5), (2, 9)].map(|(port, epoch)| Vote::Primary(place(port, epoch)));
        assert_eq!(majority(&votes), Some(place(1, 5)));
    }
}

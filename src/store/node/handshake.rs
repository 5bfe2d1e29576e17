//! A new connection to Redis or Valkey: signs in, checks that the server can serve, learns its time, and subscribes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fairlock_proto::command::{Command, ScriptName, arg, key};
use fairlock_proto::reply::{Fields, Head};
use futures::future::{Either, select};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tokio::time::{sleep, timeout};

use super::error::{cluster_error, connect_error, probe_error};
use super::network::{Established, NamedServer, NetworkWire};
use super::sign_in::{SignedIn, sign_in_at};
use super::wire::{Supervised, Wire};
use crate::store::ServedKeys;
use crate::store::call::Call;
use crate::store::clock::now;
use crate::store::cluster::view::View;
use crate::store::connection::Connection;
use crate::store::dial::{Limit, Target};
use crate::store::error::{ConnectError, Fault, Obstacle, RequestError};
use crate::store::rights;

/// How long a look-up may take before the client also tries the earlier address: a slow resolver must not delay the
/// way back to the same server.
const HEAD_START: Duration = Duration::from_millis(250);

/// The oldest server whose scripts know `#!lua` flags.
const OLDEST: (u32, u32) = (7, 0);

/// A client sends this to itself, to check that messages arrive.
const ECHO: &[u8] = b"echo";
/// The echo arrives with the reply to PUBLISH, or a moment later.
const ECHO_LIMIT: Duration = Duration::from_millis(500);

impl Supervised<NetworkWire> {
    /// Connects, checks that this server can serve, learns its time, and subscribes. If a look-up is late, fails or
    /// finds nothing, the client tries the address to which the name led before.
    pub async fn establish(self: &Arc<Self>, target: &Target) -> Result<Established, ConnectError> {
        // Look up at each connect: after a failover the name may lead to another server.
        let looking = pin!(target.look_up(Limit::of(self.operation_timeout)));
        let Some(earlier) = self.wire.led_to(target.name()) else {
            return self.establish_at(target, Way::Now(&looking.await?)).await;
        };
        // Boxed, so that it can be dropped before the client connects elsewhere: an open subscription could still
        // receive grants.
        let attempt = Box::pin(async {
            sleep(HEAD_START).await;
            self.establish_at(target, Way::Earlier(&earlier)).await
        });
        let neither = |look_up: ConnectError, cause: ConnectError| {
            let (look_up, cause) = (look_up.into_cause(), cause.into_cause());
            target.obstacle(Obstacle::Earlier { look_up, address: earlier.address, cause })
        };
        match select(looking, attempt).await {
            Either::Left((Ok(addresses), attempt)) => {
                drop(attempt);
                self.establish_at(target, Way::Now(&addresses)).await
            }
            Either::Left((Err(look_up), attempt)) => attempt.await.map_err(|error| neither(look_up, error)),
            Either::Right((Ok(established), _)) => Ok(established),
            Either::Right((Err(error), looking)) => match looking.await {
                Ok(addresses) => self.establish_at(target, Way::Now(&addresses)).await,
                Err(look_up) => Err(neither(look_up, error)),
            },
        }
    }

    async fn establish_at(self: &Arc<Self>, target: &Target, way: Way<'_>) -> Result<Established, ConnectError> {
        // Weak, because the driver keeps this closure and the link keeps the connection. With a strong reference,
        // each would keep the other alive.
        let shared = Arc::downgrade(self);
        let handle = move |message: &[u8]| shared.upgrade().into_iter().for_each(|shared| shared.heard(message));
        let signed_in = sign_in_at(target, way.addresses(), self.operation_timeout, handle).await?;
        let SignedIn { mut connection, peer } = signed_in;
        // A new limit: the time that dialling took must not make a working server look silent.
        let limit = Limit::of(self.operation_timeout);
        let silent = || target.silent(limit);
        let run_id = limit.run(self.greet(target, way, &mut connection)).await.ok_or_else(silent)??;
        self.wire.server_id.lock().clone_from(&run_id);
        let server = match (target.name(), peer, run_id) {
            (Some(name), Some(address), Some(run_id)) => Some(NamedServer { name, address, run_id }),
            _ => None,
        };
        self.wire.named.lock().clone_from(&server);
        let is_late = matches!(way, Way::Earlier(_));
        Ok(Established { connection: Arc::new(connection), target: target.clone(), server, is_late })
    }

    fn heard(&self, message: &[u8]) {
        match (message, self.link.listener()) {
            (ECHO, _) => self.wire.echo.heard.notify_one(),
            (message, Some(listener)) => listener.pushed(&self.link.keys, message),
            (_, None) => {}
        }
    }

    /// Returns the server's `run_id`, if the user may ask for it.
    async fn greet(
        &self,
        target: &Target,
        way: Way<'_>,
        connection: &mut Connection,
    ) -> Result<Option<String>, ConnectError> {
        // Sent together, to save a round trip. Check the kind of server first: a Sentinel knows no scripts.
        let (server, rights, (), ()) = futures::join!(
            self.check_server(target, connection),
            self.check_rights(connection),
            self.warn_of_eviction(connection),
            self.name_connection(connection)
        );
        let run_id = server?;
        // Before the client learns anything from this server, and before the server may grant a lock.
        way.check(run_id.as_deref()).map_err(|obstacle| target.obstacle(obstacle))?;
        rights?;
        let mut io = connection.io.clone();
        // SELECT after checking the server: a cluster and a Sentinel refuse it, with an error that does not show what
        // they are.
        if self.wire.database != 0 {
            let select = redis::cmd("SELECT").arg(self.wire.database).exec_async(&mut io).await;
            select.map_err(|error| connect_error(target, error))?;
        }
        // Acquires need the server's time for their `not_after` (R2). A reconnect learns it again, since it may lead
        // to another server.
        if self.link.keys.is_of_cluster() {
            connection.channel_tag = self.check_cluster(target, &mut io).await?;
            self.ask_time(target, &mut io).await?;
        } else {
            self.probe(target, connection).await?;
        }
        // Before any request that may grant a lock.
        self.boot(target, connection).await?;
        // We need to subscribe _last_. From then on the server considers this client reachable and grants locks to it
        // (R6), so every step that can still fail comes before. The client sends both commands together, and the
        // server runs them in this order, so the client receives the echo.
        let channel = self.wire.channel.at(&connection.channel_tag);
        let publish = redis::cmd("PUBLISH").arg(&channel).arg(ECHO).to_owned();
        let mut echo = io.clone();
        let (subscribed, echoed) = futures::join!(io.subscribe(channel), publish.query_async(&mut echo));
        subscribed.map_err(|error| connect_error(target, error))?;
        self.check_echo(target, echoed).await;
        Ok(run_id)
    }

    /// The `run_id` of the server at this address, which must be a primary.
    pub async fn primary_at(&self, target: &Target, address: SocketAddr) -> Result<String, ConnectError> {
        let signed_in = sign_in_at(target, &[address], self.operation_timeout, |_| {}).await?;
        let connection = signed_in.connection;
        let limit = Limit::of(self.operation_timeout);
        let asked = async {
            let run_id = self.check_server(target, &connection).await?;
            check_role(&self.info(target, &connection, "replication").await?)?;
            run_id.ok_or_else(|| target.obstacle(Obstacle::NoRunId))
        };
        limit.run(asked).await.ok_or_else(|| target.silent(limit))?
    }

    /// Checks whether messages arrive: a proxy may swallow them, or count them wrongly. In that case polls find the
    /// grants, and each hand-off takes up to a poll interval.
    async fn check_echo(&self, target: &Target, published: RedisResult<i64>) {
        // Once the echo was missing, do not wait for it again: each reconnect would take that long.
        if self.wire.echo.is_missing.load(Ordering::Relaxed) {
            return;
        }
        let is_heard = match published {
            // The client has checked this right before, so the error comes from the connection, and the next request
            // reports it. (Losing the right later is not fatal.)
            Err(_) => return,
            Ok(0) => false,
            Ok(_) => timeout(ECHO_LIMIT, self.wire.echo.heard.notified()).await.is_ok(),
        };
        if !is_heard {
            self.wire.echo.is_missing.store(true, Ordering::Relaxed);
            tracing::warn!(
                target: "fairlock::server",
                address = %target.address(),
                "no messages arrive from this server: a proxy may be in between; polls find the grants, only later"
            );
        }
    }

    /// For a node of a cluster. It cannot use the probe, because only one node of the cluster serves the probe's
    /// lock.
    async fn ask_time(&self, target: &Target, io: &mut MultiplexedConnection) -> Result<(), ConnectError> {
        let sent = now();
        let time = redis::cmd("TIME").query_async::<(i64, i64)>(io).await;
        let (seconds, micros) = time.map_err(|error| connect_error(target, error))?;
        self.clock.learn(sent, seconds, micros);
        Ok(())
    }

    /// Checks that the node belongs to the client's cluster, which neither its address nor its id alone can prove.
    /// Returns the part of the node's id that its channels contain.
    async fn check_cluster(&self, target: &Target, io: &mut MultiplexedConnection) -> Result<String, ConnectError> {
        let (mut slots_io, question) = (io.clone(), redis::cmd("CLUSTER"));
        let (mut my_id, mut slots) = (question.clone(), question);
        let asked = futures::try_join!(
            my_id.arg("MYID").query_async::<String>(io),
            slots.arg("SLOTS").query_async::<Value>(&mut slots_io)
        );
        let (id, slots) = asked.map_err(|error| cluster_error(target, error))?;
        let view = View::read(&slots, &target.place.address).map_err(|error| target.unreachable(Arc::new(error)))?;
        match &self.link.keys {
            ServedKeys::Slots { masters, .. } if !masters.know(&id, &view) => {
                Err(target.unreachable(Arc::new(Fault::AnotherCluster)))
            }
            _ => Ok(id.chars().take(DIGITS_OF_ID).chain([':']).collect()),
        }
    }

    async fn check_server(&self, target: &Target, connection: &Connection) -> Result<Option<String>, ConnectError> {
        let check = |mode: Option<&str>, version: Option<&str>| {
            check_version(version)?;
            match mode {
                Some("sentinel") => Err(ConnectError::Sentinel),
                Some("cluster") if !self.link.keys.is_of_cluster() => Err(ConnectError::Cluster),
                Some("standalone") if self.link.keys.is_of_cluster() => {
                    Err(ConnectError::NotCluster { address: target.place.address.to_string() })
                }
                _ => Ok(()),
            }
        };
        let mut io = connection.io.clone();
        match redis::cmd("INFO").arg("server").query_async::<String>(&mut io).await {
            Ok(info) => {
                // Valkey 8 calls it server_mode.
                let mode = field(&info, "redis_mode").or_else(|| field(&info, "server_mode"));
                check(mode, field(&info, "redis_version"))?;
                Ok(field(&info, "run_id").map(ToOwned::to_owned))
            }
            // The user may not ask. HELLO works without any right, but reports less.
            Err(error) if error.code() == Some("NOPERM") => {
                let hello = redis::cmd("HELLO").query_async::<HashMap<String, Value>>(&mut io).await;
                let hello = hello.map_err(|error| connect_error(target, error))?;
                let text = |name: &str| match hello.get(name) {
                    Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok(),
                    _ => None,
                };
                check(text("mode"), text("version")).map(|()| None)
            }
            Err(error) => Err(connect_error(target, error)),
        }
    }

    async fn check_rights(&self, connection: &Connection) -> Result<(), ConnectError> {
        let missing = self.missing_rights(connection).await;
        if missing.is_empty() { Ok(()) } else { Err(ConnectError::Rights { missing }) }
    }

    /// Returns every right that the user lacks.
    pub async fn missing_rights(&self, connection: &Connection) -> Vec<String> {
        let mut question = redis::cmd("EVAL");
        // Pass the key names as ARGV. If they were KEYS, the server would check them itself and refuse the script.
        question.arg(rights::SCRIPT).arg(0).arg(&self.wire.rights);
        let missing = match question.query_async::<Vec<String>>(&mut connection.io.clone()).await {
            Ok(missing) => missing,
            Err(error) if error.code() == Some("NOPERM") => vec!["+eval".to_owned()],
            // If this fails, the probe and the first uses find the missing rights.
            Err(error) => {
                tracing::debug!(target: "fairlock::server", address = %self.wire.address(), %error, "the server does not report the rights of its user");
                Vec::new()
            }
        };
        let mut named = Vec::new();
        // Many commands lack the same right to the keys. List each right once, in the order of the scripts.
        for right in missing {
            if !named.contains(&right) {
                named.push(right);
            }
        }
        named
    }

    /// Once in the life of a client: a server that evicts keys forgets held locks.
    async fn warn_of_eviction(&self, connection: &Connection) {
        if self.wire.eviction_is_checked.swap(true, Ordering::Relaxed) {
            return;
        }
        let info = redis::cmd("INFO").arg("memory").query_async::<String>(&mut connection.io.clone()).await;
        // The user may lack the right to ask.
        let Ok(info) = info else { return };
        if let Some(policy) = field(&info, "maxmemory_policy").filter(|policy| *policy != "noeviction") {
            tracing::warn!(
                target: "fairlock::server",
                address = %self.wire.address(),
                %policy,
                "maxmemory-policy is not noeviction: the server may evict a lock that is held, and two then hold it; use noeviction"
            );
        }
    }

    /// Shows the client's name in CLIENT LIST. HELLO works without any right, whereas a server logs each CLIENT
    /// SETNAME that it denies.
    async fn name_connection(&self, connection: &Connection) {
        let hello = redis::cmd("HELLO").arg(3).arg("SETNAME").arg(&self.wire.client_name).to_owned();
        // A proxy may refuse it, and locks do not need it.
        let _ = hello.exec_async(&mut connection.io.clone()).await;
    }

    /// Renews a lock that nobody can hold, to get the time and to check that scripts may write here.
    async fn probe(&self, target: &Target, connection: &Connection) -> Result<(), ConnectError> {
        let lock = &*self.wire.probe.lock;
        // No owner has the name '', so renew.lua answers `lost` and changes nothing (R4).
        let args = || [arg("owner", ""), arg("token", ""), arg("lease", 1_u64), arg("only", 0_u64)];
        let command = || Command::new(ScriptName::Renew, [key("lock", lock)], args());
        let call = Call::new(&command, lock);
        // Before sending the request, as `ServerClock::learn` expects.
        let sent = now();
        let reply = connection.evaluate(&self.wire.known, call, 0).await.map_err(|error| probe_error(target, error))?;
        let head = Head::decode(&mut Fields::new(&reply)).map_err(|error| target.unreachable(Arc::new(error)))?;
        self.clock.learn(sent, head.seconds, head.micros);
        Ok(())
    }

    /// With `strict_restart`: freezes the server if it may have forgotten a grant.
    async fn boot(&self, target: &Target, connection: &Connection) -> Result<(), ConnectError> {
        let Some(boot) = &self.boot else { return Ok(()) };
        let request = boot.request(self.life(target, connection).await?, target.place.epoch);
        let command = || request.command();
        let call = Call::new(&command, &request.key);
        let reply = connection.evaluate(&self.wire.known, call, 0).await.map_err(|error| probe_error(target, error))?;
        // A caller may read this late. It must not replace a newer answer, from another life of the server (R14).
        if connection.dead.is_cancelled() {
            return Err(target.unreachable(Arc::new(Fault::Disconnected)));
        }
        boot.booted(&reply, &target.address()).map_err(|error| target.unreachable(Arc::new(error)))
    }

    /// The same, after a request found that the record is gone.
    pub async fn boot_again(&self, connection: &Connection) -> Result<(), RequestError> {
        let target = self.wire.location.current().ok_or_else(|| RequestError::NotSent(self.link.fault()))?;
        self.boot(&target, connection).await.map_err(|error| RequestError::NotSent(Arc::new(error)))
    }

    /// Identifies the server's life, which is new after each start and each promotion. A primary that was demoted and
    /// promoted again may lack the grants of the primary in between.
    async fn life(&self, target: &Target, connection: &Connection) -> Result<String, ConnectError> {
        let info = |section| self.info(target, connection, section);
        let (server, replication) = futures::try_join!(info("server"), info("replication"))?;
        let named = |info, missing| field(info, missing).ok_or(ConnectError::NoLife { missing });
        // With `replica-read-only no` a replica would run boot.lua, and find the primary's life.
        check_role(&replication)?;
        let run_id = named(&server, "run_id")?;
        // Not `master_replid`: it also changes when the first replica connects, and after an hour without a replica.
        Ok(format!("{run_id}/{}", named(&replication, "master_replid2")?))
    }

    async fn info(&self, target: &Target, connection: &Connection, section: &str) -> Result<String, ConnectError> {
        let info = redis::cmd("INFO").arg(section).query_async::<String>(&mut connection.io.clone()).await;
        info.map_err(|error| match error.code() {
            Some("NOPERM") => ConnectError::Rights { missing: vec!["+info".to_owned()] },
            _ => connect_error(target, error),
        })
    }
}

/// The way to a server: by its name or its address.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// The addresses to which the name leads now.
    Now(&'a [SocketAddr]),
    /// The server to which the name led before. It may lead elsewhere now.
    Earlier(&'a NamedServer),
}

impl Way<'_> {
    fn addresses(&self) -> &[SocketAddr] {
        match self {
            Self::Now(addresses) => addresses,
            Self::Earlier(server) => std::slice::from_ref(&server.address),
        }
    }

    /// Another server may have the earlier address by now. The other clients do not use that server, so there would
    /// be two holders.
    fn check(&self, run_id: Option<&str>) -> Result<(), Obstacle> {
        match (self, run_id) {
            (Self::Earlier(_), None) => Err(Obstacle::NoRunId),
            (Self::Earlier(server), Some(run_id)) if server.run_id != run_id => Err(Obstacle::AnotherServer),
            _ => Ok(()),
        }
    }
}

/// Reads the role from INFO replication. A write would prove nothing: a replica may be configured to accept writes.
fn check_role(replication: &str) -> Result<(), ConnectError> {
    if field(replication, "role") == Some("slave") { Err(ConnectError::ReadOnly) } else { Ok(()) }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Valkey also reports a redis_version: 7.2.4 for all its own versions.
fn check_version(version: Option<&str>) -> Result<(), ConnectError> {
    // If the server reports no version, the probe decides: it runs a script with `#!lua`.
    let Some(found) = version else { return Ok(()) };
    let mut parts = found.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= OLDEST { Ok(()) } else { Err(ConnectError::TooOld { found: found.to_owned() }) }
}

/// How many of the 40 digits of a node's id its channels contain. Each pair of calls carries the name twice, which
/// costs a server 2 %. If two nodes share these digits, the bus may deliver the other node's grants. The machine does
/// not trust a grant from a node that does not serve the slot (`Step::pushed` in proto/src/session.rs).
const DIGITS_OF_ID: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_address_has_to_lead_to_the_same_server() {
        let address = "127.0.0.1:6379".parse().unwrap();
        let server = NamedServer { name: ("h".into(), 6379), address, run_id: "a".into() };
        let (now, earlier) = (Way::Now(&[address]), Way::Earlier(&server));
        assert!(now.check(None).is_ok() && now.check(Some("b")).is_ok() && earlier.check(Some("a")).is_ok());
        assert!(matches!(earlier.check(Some("b")), Err(Obstacle::AnotherServer)));
        assert!(matches!(earlier.check(None), Err(Obstacle::NoRunId)));
        assert_eq!((now.addresses(), earlier.addresses()), ([address].as_slice(), [address].as_slice()));
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for good in ["redis_version:7.0.15", "redis_version:10.1.0\r\nrest", "x:1\r\nredis_version:7.2.4\r\n", ""] {
            assert!(check_version(field(good, "redis_version")).is_ok(), "{good:?}");
        }
        for old in ["redis_version:6.2.14", "redis_version:2.8", "redis_version:6.9"] {
            let checked = check_version(field(old, "redis_version"));
            assert!(matches!(checked, Err(ConnectError::TooOld { .. })), "{old:?}");
        }
    }
}

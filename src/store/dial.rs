//! The way to a server: its name, a TCP connection or a Unix socket, and TLS. Each step has error texts of its own,
//! so that their first line is enough to fix the problem.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::RedisError;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use super::clock::now;
use super::connect_options::{Address, Credentials, SignIn, TlsOptions};
use super::error::{Cause, ConnectError, Obstacle};
use super::names::{Answer, Name, Names};
use super::source::Source;
#[cfg(feature = "tls")]
use super::tls::{Certified, Peers, Tls};

const KEEPALIVE: Duration = Duration::from_secs(15);

/// How to sign in to servers, and which TLS to use. All servers of one kind share it.
pub struct Access {
    sign_in: SignIn,
    names: Names,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl Access {
    /// Reads the certificates once, unless there is a provider. Each reconnect uses them again.
    pub fn new(sign_in: SignIn, tls: Option<&TlsOptions>) -> Result<Arc<Self>, ConnectError> {
        Self::to(None, sign_in, tls)
    }

    /// The same, for the nodes of the cluster that these seeds belong to.
    pub fn of_cluster(seeds: &[Address], sign_in: SignIn, tls: Option<&TlsOptions>) -> Result<Arc<Self>, ConnectError> {
        Self::to(Some(seeds), sign_in, tls)
    }

    fn to(seeds: Option<&[Address]>, sign_in: SignIn, tls: Option<&TlsOptions>) -> Result<Arc<Self>, ConnectError> {
        #[cfg(not(feature = "tls"))]
        let _ = (seeds, tls);
        Ok(Arc::new(Self {
            sign_in,
            names: Names::default(),
            #[cfg(feature = "tls")]
            tls: tls.map(|tls| Tls::new(tls.clone(), Peers::new(seeds))).transpose()?,
        }))
    }
}

/// An address, and the failover that has led there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub address: Address,
    /// The Sentinels' failover count, for `strict_restart`: a primary may come back without having been demoted, and
    /// does not know the grants of the primary in between. 0 without Sentinels.
    pub epoch: u64,
}

impl Place {
    pub fn at(address: Address) -> Self {
        Self { address, epoch: 0 }
    }
}

/// A server that can be dialled repeatedly.
#[derive(Clone)]
pub struct Target {
    pub place: Place,
    /// Where the server's address comes from: an error may be that source's fault.
    named_by: Option<Arc<str>>,
    access: Arc<Access>,
}

/// How long one attempt may take, and until when.
#[derive(Clone, Copy)]
pub struct Limit {
    pub limit: Duration,
    pub until: Instant,
}

impl Limit {
    /// From now on.
    pub fn of(limit: Duration) -> Self {
        Self { limit, until: now() + limit }
    }

    pub async fn run<F: Future>(self, future: F) -> Option<F::Output> {
        // `until` and not `limit`: the steps of one attempt share their time.
        timeout_at(self.until.into(), future).await.ok()
    }

    async fn ask<T: Clone + Send + 'static>(self, source: &Source<T>) -> Result<T, Cause> {
        let silent = || Err(Arc::new(Obstacle::NotProvided(self.limit)) as Cause);
        self.run(source.get()).await.unwrap_or_else(silent)
    }
}

impl Target {
    pub fn new(place: Place, access: Arc<Access>, named_by: Option<Arc<str>>) -> Self {
        Self { place, named_by, access }
    }

    pub fn address(&self) -> String {
        let address = &self.place.address;
        self.named_by.as_ref().map_or_else(|| address.to_string(), |named_by| format!("{address} ({named_by})"))
    }

    pub fn unreachable(&self, cause: Cause) -> ConnectError {
        ConnectError::Unreachable { address: self.address(), cause }
    }

    pub fn obstacle(&self, obstacle: Obstacle) -> ConnectError {
        self.unreachable(Arc::new(obstacle))
    }

    /// The first exchange on a connection broke off, or the answer is not from Redis.
    pub fn broken_off(&self, error: &RedisError) -> ConnectError {
        let text = error.to_string();
        // In TLS 1.3 the client's handshake ends before the server has checked the client's certificate. So the first
        // read reports a refused certificate as an alert.
        if text.contains("fatal alert") {
            return ConnectError::Certificate { address: self.address(), reason: format!("{text}; {WANTED}") };
        }
        self.obstacle(Obstacle::NoRedis)
    }

    pub fn silent(&self, limit: Limit) -> ConnectError {
        self.obstacle(Obstacle::Silent(limit.limit))
    }

    /// Asks the provider, if there is one, each time.
    pub async fn credentials(&self, limit: Limit) -> Result<Credentials, ConnectError> {
        limit.ask(&self.access.sign_in).await.map_err(ConnectError::CredentialsProvider)
    }

    /// The host name to look up. `None`: it is an IP address or a socket.
    pub fn name(&self) -> Option<Name> {
        match &self.place.address {
            Address::Tcp { host, port } if host.parse::<IpAddr>().is_err() => Some((host.clone(), *port)),
            _ => None,
        }
    }

    /// The addresses that the name resolves to now. A socket has none.
    pub async fn look_up(&self, limit: Limit) -> Result<Vec<SocketAddr>, ConnectError> {
        if let Some(name) = self.name() {
            let answer = limit.run(self.resolve(&name)).await;
            return answer.unwrap_or(Err(Obstacle::SlowName(limit.limit))).map_err(|obstacle| self.obstacle(obstacle));
        }
        Ok(match &self.place.address {
            Address::Tcp { host, port } => host.parse().map(|ip: IpAddr| (ip, *port).into()).into_iter().collect(),
            Address::Unix(_) => Vec::new(),
        })
    }

    /// The same, without a limit: it takes as long as the resolver does.
    pub async fn resolve(&self, name: &Name) -> Answer {
        self.access.names.look_up(name).await
    }

    /// A new connection to one of these addresses.
    pub async fn dial(&self, addresses: &[SocketAddr], limit: Limit) -> Result<Stream, ConnectError> {
        match &self.place.address {
            Address::Tcp { host, .. } => {
                // Before connecting, as with the credentials: a slow provider must not keep the connection waiting.
                let certified = self.certified(limit).await?;
                let tcp = limit.run(self.tcp(addresses)).await;
                let (tcp, peer) = tcp.unwrap_or_else(|| Err(self.obstacle(Obstacle::NoConnection(limit.limit))))?;
                Ok(Stream { peer: Some(peer), ..self.secure(tcp, host, certified, limit).await? })
            }
            Address::Unix(path) => self.unix(path, limit).await,
        }
    }

    async fn tcp(&self, addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), ConnectError> {
        // `select_ok` panics on an empty list (P10).
        if addresses.is_empty() {
            return Err(self.io_error(io::ErrorKind::AddrNotAvailable.into()));
        }
        // All at once: the first address may be dead, and must not use up the time.
        let attempts = addresses
            .iter()
            .map(|address| Box::pin(async { TcpStream::connect(*address).await.map(|stream| (stream, *address)) }));
        let connected = futures::future::select_ok(attempts).await;
        let ((stream, peer), _others) = connected.map_err(|error| self.io_error(error))?;
        prepare(&stream).map_err(|error| self.io_error(error))?;
        Ok((stream, peer))
    }

    #[cfg(unix)]
    async fn unix(&self, path: &std::path::Path, limit: Limit) -> Result<Stream, ConnectError> {
        match limit.run(tokio::net::UnixStream::connect(path)).await {
            Some(Ok(stream)) => Ok(Stream::new(stream)),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Err(self.obstacle(Obstacle::NoSocket)),
            Some(Err(error)) => Err(self.io_error(error)),
            None => Err(self.obstacle(Obstacle::NoConnection(limit.limit))),
        }
    }

    #[cfg(not(unix))]
    async fn unix(&self, _path: &std::path::Path, _limit: Limit) -> Result<Stream, ConnectError> {
        Err(self.unreachable(Arc::new(io::Error::from(io::ErrorKind::Unsupported))))
    }

    /// `None`: without TLS.
    #[cfg(feature = "tls")]
    async fn certified(&self, limit: Limit) -> Result<Option<Certified>, ConnectError> {
        let Some(tls) = &self.access.tls else { return Ok(None) };
        let provided = limit.ask(tls.certificates()).await.map_err(ConnectError::CertificatesProvider)?;
        tls.certified(provided).map(Some).map_err(|error| ConnectError::CertificatesProvider(Arc::new(error)))
    }

    #[cfg(feature = "tls")]
    async fn secure(
        &self,
        tcp: TcpStream,
        host: &str,
        certified: Option<Certified>,
        limit: Limit,
    ) -> Result<Stream, ConnectError> {
        let Some(certified) = certified else { return Ok(Stream::new(tcp)) };
        match limit.run(certified.handshake(host, tcp)).await {
            Some(Ok(stream)) => Ok(Stream::new(stream)),
            Some(Err(error)) => {
                Err(certified.explain(self.address(), host, &error).unwrap_or_else(|| self.io_error(error)))
            }
            None => Err(self.obstacle(Obstacle::NoHandshake(limit.limit))),
        }
    }

    #[cfg(not(feature = "tls"))]
    async fn certified(&self, _limit: Limit) -> Result<(), ConnectError> {
        Ok(())
    }

    #[cfg(not(feature = "tls"))]
    async fn secure(&self, tcp: TcpStream, _host: &str, (): (), _limit: Limit) -> Result<Stream, ConnectError> {
        Ok(Stream::new(tcp))
    }

    fn io_error(&self, error: io::Error) -> ConnectError {
        match error.kind() {
            // The most frequent error has its own text, with advice.
            io::ErrorKind::ConnectionRefused => self.obstacle(Obstacle::Refused),
            _ => self.unreachable(Arc::new(error)),
        }
    }
}

/// A server may ask for a client certificate, and it reports a missing one only after the handshake.
const WANTED: &str = "the server may want a client certificate";

/// Nagle's algorithm is on by default. It costs a hand-off over a 10 ms link 12 ms.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
}

pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Io for S {}

pub struct Stream {
    pub io: Box<dyn Io>,
    /// The address that it is connected to, unless it is a socket.
    pub peer: Option<SocketAddr>,
}

impl Stream {
    fn new(io: impl Io + 'static) -> Self {
        Self { io: Box::new(io), peer: None }
    }
}

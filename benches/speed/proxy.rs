//! A TCP proxy that delays requests and replies.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::Outcome;

/// Runs in its own thread, so that it does not slow down the measured runtime. Ends when dropped.
pub struct Proxy {
    pub port: u16,
    _end: oneshot::Sender<()>,
}

impl Proxy {
    pub fn start(to: u16, delay: Duration) -> Outcome<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    outcome = accept(listener, ([127, 0, 0, 1], to).into(), delay) => outcome,
                    _ = ended => Ok(()),
                }
            })
        });
        Ok(Self { port, _end: end })
    }
}

async fn accept(listener: std::net::TcpListener, to: SocketAddr, delay: Duration) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        let server = TcpStream::connect(to).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        tokio::spawn(forward(from_client, to_server, delay));
        tokio::spawn(forward(from_server, to_client, delay));
    }
}

/// Delivers each chunk, in order, one delay after it arrived, so the delays of consecutive chunks do not add up.
async fn forward(mut from: OwnedReadHalf, to: OwnedWriteHalf, delay: Duration) {
    let (chunks, queue) = mpsc::unbounded_channel();
    tokio::spawn(deliver(queue, to));
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if chunks.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
            return;
        }
    }
}

async fn deliver(mut queue: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>, mut to: OwnedWriteHalf) {
    while let Some((due, chunk)) = queue.recv().await {
        tokio::time::sleep_until(due).await;
        if to.write_all(&chunk).await.is_err() {
            return;
        }
    }
}

//! A TCP proxy that can be cut: it delivers nothing in either direction, and closes no connection.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub struct Proxy {
    port: u16,
    is_cut: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_cut = watch::Sender::new(false);
        let accepting = tokio::spawn(accept(listener, to, is_cut.clone()));
        Self { port, is_cut, accepting }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// From here on nothing passes.
    pub fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    /// Closes the connections that existed during the cut. New ones work.
    pub fn mend(&self) {
        self.is_cut.send_replace(false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, to: u16, is_cut: watch::Sender<bool>) {
    while let Ok((near, _)) = listener.accept().await {
        tokio::spawn(connect(near, to, is_cut.subscribe()));
    }
}

async fn connect(near: TcpStream, to: u16, mut is_cut: watch::Receiver<bool>) {
    let was_cut = *is_cut.borrow_and_update();
    if was_cut {
        // The kernel has already accepted it. It stays silent until the cut ends.
        let _ = is_cut.wait_for(|is_cut| !is_cut).await;
        return;
    }
    let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let (Ok(()), Ok(())) = (near.set_nodelay(true), far.set_nodelay(true)) else { return };
    let (near_reader, near_writer) = near.into_split();
    let (far_reader, far_writer) = far.into_split();
    tokio::select! {
        () = pump(near_reader, far_writer, is_cut.clone()) => {}
        () = pump(far_reader, near_writer, is_cut.clone()) => {}
    }
}

/// Returns when one side closes, or when a cut ends.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut is_cut: watch::Receiver<bool>) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = tokio::select! {
            biased;
            _ = is_cut.changed() => break,
            read = from.read(&mut buffer) => read,
        };
        match read {
            Ok(length) if length > 0 && to.write_all(&buffer[..length]).await.is_ok() => {}
            _ => return,
        }
    }
    // Silent until then, with both ends open.
    let _ = is_cut.wait_for(|is_cut| !is_cut).await;
}

//! A Unix socket that wakes the runtime for what arrives, and for nothing else.
//!
//! Linux reports a Unix socket as writable each time that the other side has read from it, which it does not for TCP. tokio's
//! `UnixStream` listens for that, so each request would wake the runtime once more, for nothing.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

pub struct UnixSocket {
    socket: AsyncFd<UnixStream>,
    /// While it is full: the same socket, registered for the notice that there is room again.
    full: Option<AsyncFd<UnixStream>>,
    /// What was read last. To clear the reader's buffer before each read would cost more than a copy of what arrives.
    arrived: Box<[u8]>,
}

/// The redis crate's reader asks for as much.
const READ: usize = 8192;

impl UnixSocket {
    pub fn new(connected: tokio::net::UnixStream) -> io::Result<Self> {
        let socket = register(connected.into_std()?, Interest::READABLE)?;
        Ok(Self { socket, full: None, arrived: vec![0; READ].into() })
    }
}

/// tokio has deprecated this for types that could close their descriptor early, which this one cannot. What takes its place
/// is `unsafe`.
#[allow(deprecated)]
fn register(socket: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    AsyncFd::with_interest(socket, interest)
}

impl AsyncRead for UnixSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { socket, arrived, .. } = self.get_mut();
        let size = buffer.remaining().min(READ);
        loop {
            let mut ready = ready!(socket.poll_read_ready(cx))?;
            let Ok(outcome) = ready.try_io(|socket| socket.get_ref().read(&mut arrived[..size])) else { continue };
            return Poll::Ready(outcome.map(|read| {
                // Less than asked for is all that was there: the next event comes with more. Saves a read.
                if 0 < read && read < size {
                    ready.clear_ready();
                }
                buffer.put_slice(&arrived[..read]);
            }));
        }
    }
}

impl AsyncWrite for UnixSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let Some(full) = &self.full else {
                match self.socket.get_ref().write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.full = Some(register(self.socket.get_ref().try_clone()?, Interest::WRITABLE)?);
                        continue;
                    }
                    outcome => return Poll::Ready(outcome),
                }
            };
            ready!(full.poll_write_ready(cx))?.clear_ready();
            self.full = None;
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// More than the buffers of a socket hold, in both directions, and then the end.
    #[tokio::test]
    async fn what_does_not_fit_at_once_arrives_whole() {
        let (here, there) = tokio::net::UnixStream::pair().unwrap();
        let (mut here, mut there) = (UnixSocket::new(here).unwrap(), UnixSocket::new(there).unwrap());
        let sent: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
        let expected = sent.clone();
        let sender = tokio::spawn(async move {
            here.write_all(&sent).await.unwrap();
            here.shutdown().await.unwrap();
            let mut answer = Vec::new();
            here.read_to_end(&mut answer).await.unwrap();
            answer
        });
        let mut arrived = Vec::new();
        there.read_to_end(&mut arrived).await.unwrap();
        assert!(arrived == expected);
        there.write_all(&arrived).await.unwrap();
        drop(there);
        assert!(sender.await.unwrap() == expected);
    }
}

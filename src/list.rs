//! Lists all locks of a prefix that are in use.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};

use crate::backend::Backend;
use crate::engine::listing::Listing;
use crate::error::RequestError;
use crate::lock::FairLock;
use crate::store::keys::{Kind, Share};

/// The locks that [`LockClient::list`](crate::LockClient::list) finds, as a stream.
#[must_use = "a stream does nothing unless polled"]
pub struct LockList {
    locks: BoxStream<'static, Result<FairLock, RequestError>>,
}

impl LockList {
    pub(crate) fn new(backend: Backend, glob: &str) -> Self {
        let listing = Listing::new(backend.engines().iter().map(|engine| engine.context.clone()), glob);
        let locks = stream::unfold((backend, listing), |(backend, mut listing)| async move {
            let name = listing.next().await.transpose()?;
            let lock = name.map(|name| FairLock::new(backend.lock(Kind::Lock, Share::LOCK, &name)));
            Some((lock, (backend, listing)))
        });
        Self { locks: locks.fuse().boxed() }
    }

    /// The next lock, or `None` at the end and whenever it is called after that. For loops without a crate for streams.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("orders:42").lock().await?;
    /// let mut locks = client.list("orders:*");
    /// while let Some(lock) = locks.next().await {
    ///     let lock = lock?;
    ///     println!("{}: {:?}", lock.name(), lock.status().await?.holder);
    /// }
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As for the stream: see [`LockClient::list`](crate::LockClient::list).
    ///
    /// # Cancel safety
    /// Dropping the future loses no lock: the next call goes on where this one was.
    pub async fn next(&mut self) -> Option<Result<FairLock, RequestError>> {
        self.locks.next().await
    }
}

impl Stream for LockList {
    type Item = Result<FairLock, RequestError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.locks.poll_next_unpin(context)
    }
}

impl fmt::Debug for LockList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockList").finish_non_exhaustive()
    }
}

//! Lists all names of a prefix that are in use.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};

use crate::backend::Backend;
pub use crate::driver::listing::Listed;
use crate::driver::listing::Listing;
use crate::error::RequestError;

/// The names that [`LockClient::list`](crate::LockClient::list) finds, as a stream.
#[must_use = "a stream does nothing unless polled"]
pub struct LockList {
    names: BoxStream<'static, Result<Listed, RequestError>>,
}

impl LockList {
    pub(crate) fn new(backend: &Backend, glob: &str) -> Self {
        let listing = Listing::new(backend.contexts().cloned(), glob);
        // Keeps the client open while the caller reads the list.
        let names = stream::unfold((listing, backend.clone()), |(mut listing, backend)| async move {
            Some((listing.next().await.transpose()?, (listing, backend)))
        });
        Self { names: names.fuse().boxed() }
    }

    /// Returns the next name, or `None` at the end and from then on. For loops without a stream crate.
    ///
    /// ```
    /// # fn main() -> fairlock::example::Outcome { fairlock::example::run(async |client| {
    /// let guard = client.lock("orders:42").lock().await?;
    /// let mut names = client.list("orders:*");
    /// while let Some(listed) = names.next().await {
    ///     let listed = listed?;
    ///     println!("{} is in use as {}", listed.name, listed.kind);
    /// }
    /// # drop(guard);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The same as the stream: see [`LockClient::list`](crate::LockClient::list).
    ///
    /// # Cancel safety
    /// Dropping the future loses no name: the next call continues at the same place.
    pub async fn next(&mut self) -> Option<Result<Listed, RequestError>> {
        self.names.next().await
    }
}

impl Stream for LockList {
    type Item = Result<Listed, RequestError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.names.poll_next_unpin(context)
    }
}

impl fmt::Debug for LockList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockList").finish_non_exhaustive()
    }
}

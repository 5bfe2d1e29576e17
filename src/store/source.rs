//! Credentials and certificates: fixed, or from a provider at each connect.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::task::AbortOnDropHandle;

use super::error::{Cause, Obstacle};

type Provide<T> = dyn Fn() -> BoxFuture<'static, Result<T, Cause>> + Send + Sync;

/// A fixed value, or a provider: user code that returns the value.
#[derive(Clone, Default)]
pub struct Source<T> {
    pub fixed: T,
    provider: Option<Arc<Provide<T>>>,
}

impl<T> Source<T> {
    pub fn set_provider<P, F, E>(&mut self, provider: P)
    where
        P: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.provider = Some(Arc::new(move || {
            let asked = provider();
            async move { asked.await.map_err(|error| Cause::from(error.into())) }.boxed()
        }));
    }

    pub fn has_provider(&self) -> bool {
        self.provider.is_some()
    }
}

impl<T: Clone + Send + 'static> Source<T> {
    /// Asks the provider each time, if there is one: an earlier value may have expired by the next reconnect.
    pub async fn get(&self) -> Result<T, Cause> {
        let Some(provide) = self.provider.clone() else { return Ok(self.fixed.clone()) };
        // In a task of its own: the user's code may panic, or block its thread for longer than this attempt may take.
        let asking = tokio::spawn(async move { provide().await });
        AbortOnDropHandle::new(asking).await.unwrap_or_else(|_| Err(Arc::new(Obstacle::Panicked)))
    }
}

impl<T: Default + PartialEq> Source<T> {
    /// Both are set. One would silently win, and the user could not know which.
    pub fn is_ambiguous(&self) -> bool {
        self.has_provider() && self.fixed != T::default()
    }
}

impl<T> From<T> for Source<T> {
    fn from(fixed: T) -> Self {
        Self { fixed, provider: None }
    }
}

impl<T: fmt::Debug> fmt::Debug for Source<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("fixed", &self.fixed).field("has_provider", &self.has_provider()).finish()
    }
}

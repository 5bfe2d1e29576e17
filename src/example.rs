//! Runs the examples of the documentation. Not part of the public API.

use std::error::Error;

use crate::client::LockClient;

pub type Outcome = Result<(), Box<dyn Error>>;

/// Runs an example with a client of a server in this process. Without the feature `embedded` it only compiles.
pub fn run(code: impl AsyncFnOnce(LockClient) -> Outcome) -> Outcome {
    #[cfg(feature = "embedded")]
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { code(LockClient::embedded()?).await })
    }
    #[cfg(not(feature = "embedded"))]
    {
        // Only to use the argument.
        drop(code);
        Ok(())
    }
}

#![doc = "Fair, reentrant, fenced distributed locking on Redis or Valkey."]

mod acquire;
mod client;
mod core;
mod error;
mod guard;
mod hold;
mod lease;
mod lock;
mod options;
pub mod owner;
mod release;
mod store;
mod wake;
mod watchdog;

pub use client::LockClient;
pub use error::{
    Cause, CloseError, ConnectError, ForceUnlockError, LockError, Loss, NameError, OptionsError, Refusal, StatusError,
    TryLockError, UnlockError, WithError,
};
pub use guard::{Held, LockGuard, Unlocked};
pub use lock::{FairLock, Holder, LockStatus, Waiting};
pub use options::LockClientBuilder;
pub use owner::Owner;

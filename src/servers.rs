//! The arguments of [`connect`](crate::LockClient::connect) and
//! [`connect_with`](crate::LockClientBuilder::connect_with): one server, or several.

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::ConnectError;
use crate::store::connect_options::ConnectOptions;

/// One server, or several: a URL as `&str`, `String`, `Cow<str>`, `Box<str>` or `Arc<str>`, or the redis crate's
/// [`ConnectionInfo`](redis::ConnectionInfo) or [`Client`](redis::Client), see [the
/// guide](crate::guide#you-already-use-the-redis-crate). Also references to these, and arrays, slices and `Vec`s of
/// them.
///
/// The trait is sealed, so that it can get more methods.
///
/// ```no_run
/// use fairlock::LockClient;
///
/// # async fn example(from_a_file: Vec<String>) -> Result<(), Box<dyn std::error::Error>> {
/// let one = LockClient::connect("redis://127.0.0.1/").await?;
/// let several = LockClient::connect(["redis://one/", "redis://two/", "redis://three/"]).await?;
/// let as_configured = LockClient::connect(&from_a_file).await?;
/// let redis = redis::Client::open("redis://127.0.0.1/")?;
/// let same_server = LockClient::connect(&redis).await?;
/// # Ok(()) }
/// ```
///
/// Anything else does not compile:
///
/// ```compile_fail,E0277
/// # async fn example() -> Result<(), fairlock::ConnectError> {
/// fairlock::LockClient::connect(6379).await?;
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a server",
    label = "neither a URL nor a `ConnectionInfo` or `Client` of the redis crate",
    note = "`connect` takes URLs (`&str`, `String`), `redis::ConnectionInfo` and `redis::Client`, and arrays, slices and `Vec`s of them",
    note = "`ConnectOptions` are for `LockClient::builder().connect_with(…)`",
    note = "fairlock uses redis 1.x: types of another major version of that crate are other types, so pass the URL"
)]
pub trait IntoServers: sealed::Servers {}

/// The options of one server, or of several: [`ConnectOptions`], or the redis crate's
/// [`ConnectionInfo`](redis::ConnectionInfo) or [`Client`](redis::Client). Also references to these, and arrays, slices
/// and `Vec`s of them.
///
/// The trait is sealed, so that it can get more methods.
///
/// ```compile_fail,E0277
/// # async fn example() -> Result<(), fairlock::ConnectError> {
/// fairlock::LockClient::builder().connect_with("redis://127.0.0.1/").await?;
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not have the options of a server",
    label = "neither `ConnectOptions` nor a `ConnectionInfo` or `Client` of the redis crate",
    note = "`connect_with` takes `ConnectOptions`, `redis::ConnectionInfo` and `redis::Client`, and arrays, slices and `Vec`s of them",
    note = "a URL is for `connect`, or for `ConnectOptions::from_url`",
    note = "fairlock uses redis 1.x: types of another major version of that crate are other types, so pass the URL"
)]
pub trait IntoConnectOptions: sealed::Options {}

#[diagnostic::do_not_recommend]
impl<T: sealed::Servers> IntoServers for T {}
#[diagnostic::do_not_recommend]
impl<T: sealed::Options> IntoConnectOptions for T {}

type Read = Result<ConnectOptions, ConnectError>;

mod sealed {
    use super::Read;

    pub trait Servers {
        fn each(self) -> Vec<Read>;
    }

    pub trait Options {
        fn each(self) -> Vec<Read>;
    }
}

/// One of the types that `connect` takes. This trait is local because the compiler could not rule out that an array
/// implements a foreign one.
trait Server {
    fn read(&self) -> Read;
}

/// One of the types that `connect_with` takes.
trait Configured {
    fn read(&self) -> Read;
}

macro_rules! one_or_several {
    ($several:path, $one:ident) => {
        impl<T: $one> $several for T {
            fn each(self) -> Vec<Read> {
                vec![self.read()]
            }
        }

        impl<T: $one> $several for &[T] {
            fn each(self) -> Vec<Read> {
                self.iter().map(T::read).collect()
            }
        }

        impl<T: $one> $several for Vec<T> {
            fn each(self) -> Vec<Read> {
                self.iter().map(T::read).collect()
            }
        }

        impl<T: $one> $several for &Vec<T> {
            fn each(self) -> Vec<Read> {
                self.iter().map(T::read).collect()
            }
        }

        impl<T: $one, const N: usize> $several for [T; N] {
            fn each(self) -> Vec<Read> {
                self.iter().map(T::read).collect()
            }
        }

        impl<T: $one, const N: usize> $several for &[T; N] {
            fn each(self) -> Vec<Read> {
                self.iter().map(T::read).collect()
            }
        }

        impl<T: $one + ?Sized> $one for &T {
            fn read(&self) -> Read {
                T::read(self)
            }
        }

        impl $one for redis::ConnectionInfo {
            fn read(&self) -> Read {
                Ok(ConnectOptions::try_from(self)?)
            }
        }

        impl $one for redis::Client {
            fn read(&self) -> Read {
                Ok(ConnectOptions::try_from(self.get_connection_info())?)
            }
        }
    };
}

one_or_several!(sealed::Servers, Server);
one_or_several!(sealed::Options, Configured);

macro_rules! urls {
    ($($text:ty)*) => {
        $(impl Server for $text {
            fn read(&self) -> Read {
                ConnectOptions::from_url(self)
            }
        })*
    };
}

urls! { str String Cow<'_, str> Box<str> Arc<str> }

impl Configured for ConnectOptions {
    fn read(&self) -> Read {
        Ok(self.clone())
    }
}

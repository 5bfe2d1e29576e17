//! The argument of [`connect`](crate::LockClient::connect): one server, or several.

use std::borrow::Cow;

use crate::store::connect_options::ConnectOptions;

/// One URL, or several: `&str`, `String`, `Cow<str>`, and arrays, slices and `Vec`s of anything that is a text.
///
/// It cannot be implemented for others, so that it may get more methods.
///
/// ```no_run
/// use fairlock::LockClient;
///
/// # async fn example(from_a_file: Vec<String>) -> Result<(), fairlock::ConnectError> {
/// let one = LockClient::connect("redis://127.0.0.1/").await?;
/// let several = LockClient::connect(["redis://one/", "redis://two/", "redis://three/"]).await?;
/// let as_configured = LockClient::connect(&from_a_file).await?;
/// # Ok(()) }
/// ```
pub trait IntoUrls: sealed::Urls {}

/// The options of one server, or of several: [`ConnectOptions`], and arrays and `Vec`s of them.
///
/// It cannot be implemented for others, so that it may get more methods.
pub trait IntoServers: sealed::Servers {}

impl<T: sealed::Urls> IntoUrls for T {}
impl<T: sealed::Servers> IntoServers for T {}

mod sealed {
    use super::ConnectOptions;

    pub trait Urls {
        fn urls(self) -> Vec<String>;
    }

    pub trait Servers {
        fn servers(self) -> Vec<ConnectOptions>;
    }
}

fn each(urls: &[impl AsRef<str>]) -> Vec<String> {
    urls.iter().map(|url| url.as_ref().to_owned()).collect()
}

/// Each type with its view as a slice of texts.
macro_rules! urls {
    ($([$($generics:tt)*] $type:ty, $self:ident => $slice:expr;)*) => {
        $(impl<$($generics)*> sealed::Urls for $type {
            fn urls($self) -> Vec<String> {
                each($slice)
            }
        })*
    };
}

urls! {
    [] &str, self => &[self];
    [] String, self => &[self];
    [] &String, self => &[self];
    [] Cow<'_, str>, self => &[self];
    [T: AsRef<str>] &[T], self => self;
    [T: AsRef<str>] Vec<T>, self => &self;
    [T: AsRef<str>] &Vec<T>, self => self;
    [T: AsRef<str>, const N: usize] [T; N], self => &self;
    [T: AsRef<str>, const N: usize] &[T; N], self => self;
}

impl sealed::Servers for ConnectOptions {
    fn servers(self) -> Vec<ConnectOptions> {
        vec![self]
    }
}

impl<const N: usize> sealed::Servers for [ConnectOptions; N] {
    fn servers(self) -> Vec<ConnectOptions> {
        self.into()
    }
}

impl sealed::Servers for Vec<ConnectOptions> {
    fn servers(self) -> Vec<ConnectOptions> {
        self
    }
}

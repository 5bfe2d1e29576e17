//! Look-ups of host names.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::lookup_host;
use tokio::sync::watch;

use super::error::Obstacle;
use crate::sync::Mutex;

/// A host name and a port.
pub type Name = (String, u16);

/// Never empty: a name without an address is an error.
pub type Answer = Result<Vec<SocketAddr>, Obstacle>;

/// The look-ups under way, at most one for each name. A look-up keeps a thread until the resolver answers. If each
/// attempt to connect started its own, a resolver that hangs would take all threads.
#[derive(Clone, Default)]
pub struct Names(Arc<Mutex<HashMap<Name, watch::Receiver<Option<Answer>>>>>);

impl Names {
    /// Joins the look-up of this name, or starts one. Its only limit is the resolver's own.
    pub async fn look_up(&self, name: &Name) -> Answer {
        let mut under_way = self.0.lock().entry(name.clone()).or_insert_with(|| self.begin(name.clone())).clone();
        match under_way.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(answer)) => answer.clone(),
            // The look-up's runtime has ended.
            _ => Err(unknown(io::Error::other("the look-up has ended without an answer"))),
        }
    }

    /// Runs in a task of its own, so that the look-up survives its callers and the next caller can join it.
    fn begin(&self, name: Name) -> watch::Receiver<Option<Answer>> {
        let (answered, answer) = watch::channel(None);
        let names = self.clone();
        tokio::spawn(async move {
            let answer = resolve(&name).await;
            // In this order: the answer may be too old for a caller that comes later.
            names.0.lock().remove(&name);
            answered.send_replace(Some(answer));
        });
        answer
    }
}

async fn resolve((host, port): &Name) -> Answer {
    let addresses: Vec<_> = lookup_host((host.as_str(), *port)).await.map_err(unknown)?.collect();
    if addresses.is_empty() { Err(unknown(io::Error::other("it has no address"))) } else { Ok(addresses) }
}

fn unknown(error: io::Error) -> Obstacle {
    Obstacle::Name(Arc::new(error))
}

#[cfg(test)]
mod tests {
    use futures::future::join;

    use super::*;

    #[tokio::test]
    async fn callers_share_a_look_up_that_is_under_way() {
        let (names, name) = (Names::default(), ("localhost".to_owned(), 1));
        let count = async {
            tokio::task::yield_now().await;
            names.0.lock().len()
        };
        let ((one, other), under_way) = join(join(names.look_up(&name), names.look_up(&name)), count).await;
        assert_eq!(under_way, 1);
        assert_eq!(one.unwrap(), other.unwrap());
        assert!(names.0.lock().is_empty(), "it is over");
    }
}

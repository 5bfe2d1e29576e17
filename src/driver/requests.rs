//! One request of the machine on its way.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use fairlock_proto::error::RequestError;
use fairlock_proto::event::RequestId;
use fairlock_proto::reply::ScriptReply;
use fairlock_proto::request::{Reply, Request};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::unconstrained;

use super::context::Context as ClientContext;
use super::error;
use crate::metrics::RequestMetrics;
use crate::store::call::{Answerer, Post};
use crate::store::clock::now;
use crate::store::error as store;

/// An answer, with the ID of its request.
pub type Replied = (RequestId, Result<Reply, RequestError>);

type Answered = Result<(ScriptReply, Answerer), store::RequestError>;

/// A request without an answer yet.
pub struct UnderWay {
    pub id: RequestId,
    request: Request,
    observed: RequestMetrics,
    way: Way,
}

enum Way {
    /// The usual way.
    ByPost,
    /// The post refused the request, or the server lacks something that it needs.
    Long(BoxFuture<'static, Answered>),
}

/// The post of a room, if the store has one.
pub type RoomPost = Option<Box<dyn Post>>;

/// The wakers of a room.
pub struct Wakers {
    /// For its post.
    pub in_place: Waker,
    /// For requests that go the long way.
    pub by_task: Waker,
}

impl UnderWay {
    pub fn begin(client: &Arc<ClientContext>, id: RequestId, request: Request, post: &mut RoomPost) -> Self {
        let (runner, number) = (&client.runner, id.number.0);
        let observed = runner.options.metrics.request(now);
        let is_taken = post.as_mut().is_some_and(|post| runner.hand_over(&request, number, &mut **post));
        let way = if is_taken { Way::ByPost } else { long_way(client, &request, id) };
        Self { id, request, observed, way }
    }

    pub fn poll(
        &mut self,
        client: &Arc<ClientContext>,
        post: &mut RoomPost,
        wakers: &Wakers,
    ) -> Poll<Result<Reply, RequestError>> {
        let answered = ready!(self.poll_sending(client, post, wakers));
        if matches!(self.way, Way::ByPost) && is_for_the_long_way(&answered) {
            self.way = long_way(client, &self.request, self.id);
            return self.poll(client, post, wakers);
        }
        let read = client.runner.end(&self.observed, &self.request, self.id, answered);
        Poll::Ready(read.map_err(error::of_request))
    }

    fn poll_sending(&mut self, client: &ClientContext, post: &mut RoomPost, wakers: &Wakers) -> Poll<Answered> {
        match (&mut self.way, post) {
            (Way::ByPost, Some(post)) => {
                let answered = post.poll(&mut Context::from_waker(&wakers.in_place));
                answered.map_ok(|reply| (reply, Answerer::Asked))
            }
            (Way::ByPost, None) => Poll::Pending,
            (Way::Long(sending), _) => {
                // Timers and tasks belong to the client's own runtime.
                let _runtime = client.enter();
                pin!(unconstrained(sending)).poll(&mut Context::from_waker(&wakers.by_task))
            }
        }
    }
}

fn is_for_the_long_way(answered: &Answered) -> bool {
    matches!(answered, Err(store::RequestError::Refused(refusal)) if refusal.is_for_the_long_way())
}

fn long_way(client: &Arc<ClientContext>, request: &Request, id: RequestId) -> Way {
    let (client, request) = (client.clone(), request.clone());
    Way::Long(async move { client.runner.send_the_long_way(&request, id).await }.boxed())
}

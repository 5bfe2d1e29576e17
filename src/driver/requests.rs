//! Sends one request of the machine, and reads its answer.

use std::sync::Arc;

use fairlock_proto::effect::Request;
use fairlock_proto::error::RequestError;
use fairlock_proto::event::{Answer, Reply, RequestId};
use fairlock_proto::requests::ScriptRequest;

use super::error;
use crate::engine::context::Context;
use crate::store::Priority;
use crate::store::runner::Read;

/// An answer, and the request that it is to.
pub type Replied = (RequestId, Result<Reply, RequestError>);

pub async fn send(context: Arc<Context>, id: RequestId, request: Request) -> Replied {
    let number = id.number.0;
    let replied = match &request {
        Request::Acquire(acquire) => ask(&context, number, acquire, Answer::Acquired).await,
        Request::Release(release) => ask(&context, number, release, Answer::Released).await,
        // Boxed: these are rare, and each request would have room for them.
        Request::Renew(renew) => Box::pin(ask(&context, number, renew, Answer::Renewed)).await,
        Request::Poll(poll) => Box::pin(ask(&context, number, poll, |polled| Answer::Polled(Box::new(polled)))).await,
        Request::Leave(leave) => Box::pin(ask(&context, number, leave, Answer::Left)).await,
    };
    (id, replied)
}

async fn ask<R: ScriptRequest>(
    context: &Context,
    number: u64,
    request: &R,
    kind: impl FnOnce(R::Reply) -> Answer,
) -> Result<Reply, RequestError> {
    // The machine keeps limits and order, so all of them are as urgent for the connection.
    let asked = context.runner.ask_at_once(request, number, Priority::Urgent).await;
    let Read { server_micros, body } = asked.map_err(error::of_request)?;
    Ok(Reply { server_micros, answer: kind(body) })
}

//! A plain connection to the server, for the baselines and for looking at the server.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, Value};

use crate::Outcome;

type OnMessage = Box<dyn Fn(&str) + Send + Sync>;

/// The reaction of a connection to a message on its channel.
pub struct MessageHandler(Option<OnMessage>);

impl MessageHandler {
    pub fn none() -> Self {
        Self(None)
    }

    pub fn new(on_message: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(on_message)))
    }

    fn push(&self, push: &PushInfo) {
        let Self(Some(on_message)) = self else { return };
        if let (PushKind::Message, Some(Value::BulkString(text))) = (&push.kind, push.data.get(1)) {
            on_message(&String::from_utf8_lossy(text));
        }
    }
}

/// A multiplexed connection with the settings that fairlock uses: RESP3, no delay, no response timeout.
pub async fn connect(url: &str, handler: MessageHandler) -> Outcome<MultiplexedConnection> {
    let info = url.into_connection_info()?;
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let client = redis::Client::open(info.set_tcp_settings(tcp).set_redis_settings(settings))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_push_sender(move |push: PushInfo| {
        handler.push(&push);
        Ok::<(), ()>(())
    });
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

pub async fn ping(redis: &mut MultiplexedConnection) -> Outcome<()> {
    Ok(redis::cmd("PING").exec_async(redis).await?)
}

//! Turns the options of a client into the machine's settings.

use fairlock_proto::settings::Settings;

use crate::store::options::Options;

/// `client`: the client's ID.
pub fn of(client: &str, options: &Options) -> Settings {
    Settings {
        client: client.to_owned(),
        prefix: options.prefix.clone(),
        operation_timeout: options.operation_timeout,
        waiter_ttl: options.waiter_ttl,
        poll_interval: options.poll_interval,
        grant_ttl: options.grant_ttl,
        first_lease: options.first_lease(),
        token_ttl: options.token_ttl,
        lease: options.lease,
        max_hold: options.max_hold,
        in_flight: options.in_flight,
    }
}

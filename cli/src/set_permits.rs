//! `fairlock set-permits`.

use fairlock::Kind;

use super::args::{Args, SetPermits};
use super::connect::connect;
use super::exit::{self, Failure};
use super::named::Named;
use super::output::Output;
use super::status::show;

/// Sets the number and shows the status afterwards. That takes a second request, so others may have come in between.
pub async fn run(args: &Args, set: &SetPermits, out: &mut Output) -> Result<u8, Failure> {
    let client = connect(args).await?;
    // The number of this client does not matter: it asks for no permit.
    client.semaphore(&set.name, 1).set_permits(set.permits).await?;
    let named = Named::of(&client, Kind::Semaphore, &set.name).await?;
    if set.json {
        out.json(&named)?
    } else {
        show(&named, out)?
    }
    Ok(exit::OK)
}

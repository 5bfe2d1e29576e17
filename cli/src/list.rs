//! `fairlock list`.

use std::future::ready;

use futures::stream::{StreamExt, TryStreamExt};

use super::args::{Args, List};
use super::connect::connect;
use super::exit::{self, Failure};
use super::named::Named;
use super::output::{Output, Style};
use super::render::{self, Columns};
use super::status::AT_ONCE;

/// How many rows to keep in memory and align with each other.
const ROWS: usize = 500;

pub async fn run(args: &Args, list: &List, out: &mut Output) -> Result<u8, Failure> {
    let client = connect(args).await?;
    if list.names {
        let mut locks = client.list(&list.glob);
        while let Some(lock) = locks.next().await {
            out.line(render::text(&lock?.name))?;
        }
        return Ok(exit::OK);
    }
    let asked = client.list(&list.glob).map_ok(|lock| Named::ask_listed(&client, lock)).try_buffer_unordered(AT_ONCE);
    let asked = asked.try_filter_map(|named| ready(Ok(named)));
    if list.json {
        let mut asked = std::pin::pin!(asked);
        while let Some(named) = asked.try_next().await? {
            out.json(&named)?;
        }
        return Ok(exit::OK);
    }
    let mut rows = std::pin::pin!(asked.map_ok(|named| render::row(&named)).chunks(ROWS));
    let mut columns = Columns::default();
    columns.fit(&render::head());
    let mut is_first = true;
    while let Some(chunk) = rows.next().await {
        // Shows the rows that came before an error.
        let good: Vec<_> = chunk.iter().map_while(|row| row.as_ref().ok()).collect();
        good.iter().for_each(|row| columns.fit(row));
        if std::mem::take(&mut is_first) && !good.is_empty() {
            out.line(out.styled(Style::Bold, &columns.line(&render::head())))?;
        }
        for row in good {
            out.line(columns.line(row))?;
        }
        chunk.into_iter().find_map(Result::err).map_or(Ok(()), Err)?;
    }
    Ok(exit::OK)
}

//! The table of scenarios.

mod cluster;
mod sentinel;
mod single;
mod stalls;
mod strict;
mod throughput;

use std::pin::Pin;
use std::rc::Rc;

use crate::report::Report;
use crate::testbed::Testbed;

pub type Running = Pin<Box<dyn Future<Output = Report>>>;

pub struct Scenario {
    pub name: &'static str,
    /// Part of `--short`.
    pub short: bool,
    pub run: fn(Rc<Testbed>, Extent) -> Running,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Short,
    Full,
}

macro_rules! table {
    ($($short:literal $name:literal $function:path,)*) => {
        pub const ALL: &[Scenario] = &[$(Scenario {
            name: $name,
            short: $short,
            run: |bed, extent| Box::pin(async move { $function(&bed, extent).await }),
        }),*];
    };
}

table! {
    true "single: restart with data" single::restart_with_data,
    true "single: restart without data" single::restart_without_data,
    false "single: a process is frozen" single::frozen_process,
    true "single: the server stands still" stalls::the_order_is_kept,
    false "single: strict restart" strict::restart,
    false "single: restart, and not strict" strict::restart_of_others,
    true "sentinel: planned failover" sentinel::planned_failover,
    true "sentinel: master killed" sentinel::master_killed,
    false "sentinel: master frozen" sentinel::master_frozen,
    false "sentinel: a stale sentinel" sentinel::stale_sentinel,
    false "sentinel: split" sentinel::split,
    true "sentinel: wrong service" sentinel::wrong_service,
    false "sentinel: passwords" sentinel::passwords,
    false "sentinel: new master ahead" sentinel::new_master_ahead,
    false "sentinel: new master behind" sentinel::new_master_behind,
    false "sentinel: strict failover" strict::failover,
    false "sentinel: failover, and not strict" strict::failover_of_others,
    true "cluster: slots move" cluster::slots_move,
    true "cluster: failover by hand" cluster::failover_by_hand,
    false "cluster: master killed" cluster::master_killed,
    false "cluster: master frozen" cluster::master_frozen,
    false "cluster: unknown endpoints" cluster::unknown_endpoints,
    false "cluster: a shard without master" cluster::shard_without_master,
    false "cluster: an uncovered slot" cluster::uncovered_slot,
    false "cluster: clocks differ" cluster::clocks_differ,
    false "cluster: throughput" throughput::throughput,
}

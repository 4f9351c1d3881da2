//! The commands that are one process: a module for each, which computes data and says how it is shown.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod demo;
pub(crate) mod devices;
pub(crate) mod fit;
pub(crate) mod ledger;
pub(crate) mod ray_resources;
pub(crate) mod replay;
pub(crate) mod serve;
pub(crate) mod sleep;
pub(crate) mod top;

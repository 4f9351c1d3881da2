//! The calls, by the chapters of CUDA's manual.

pub(crate) mod array;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod fill;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod ordered;
pub(crate) mod physical;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod rows;
pub(crate) mod share;
pub(crate) mod stream;
pub(crate) mod version;

//! Memory resources: the traits that layers and pools are written to, their composition, and the leaves at the bottom.

mod account;
mod admission;
mod explain;
mod extension;
mod forward;
mod layer;
pub mod leaf;
mod observed;
mod resource;

pub use account::Account;
pub use admission::Admission;
pub use explain::explain;
pub use extension::DeviceMemoryResourceExt;
pub use layer::{Build, Compose, Identity, Layer, Stack};
pub use observed::ObservedResource;
pub use resource::{DeviceMemoryResource, FrameRelease, FrameSource, Holder};

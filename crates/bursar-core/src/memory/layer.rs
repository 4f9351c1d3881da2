//! Composition: a [`Layer`] wraps one holder of memory in another, and a [`Stack`] is a recipe of layers over a leaf.

use super::leaf::Leaf;
use crate::{DeviceContext, DeviceMemoryResource, ObservedResource, Observer, Result};
use std::sync::Arc;

/// A layer, which wraps a resource or, below a pool, a frame source.
///
/// ```
/// use bursar::memory::Layer;
///
/// #[derive(Debug)]
/// struct Twice;
///
/// impl<I: Clone> Layer<I> for Twice {
///     type Output = (I, I);
///     fn layer(&self, inner: I) -> Result<(I, I), bursar::Error> {
///         Ok((inner.clone(), inner))
///     }
/// }
/// ```
pub trait Layer<I> {
    /// The wrapped holder.
    type Output;

    /// Wraps `inner`.
    fn layer(&self, inner: I) -> Result<Self::Output>;
}

/// The layer that adds nothing, of which an empty [`Stack`] is made.
///
/// ```
/// use bursar::memory::{Identity, Layer};
///
/// assert_eq!(Identity.layer(7)?, 7);
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

impl<I> Layer<I> for Identity {
    type Output = I;
    fn layer(&self, inner: I) -> Result<I> {
        Ok(inner)
    }
}

/// Two layers as one: `Outer` sees requests first.
///
/// ```
/// use bursar::memory::{Compose, Identity, Layer};
///
/// let both = Compose::new(Identity, Identity);
/// assert_eq!(both.layer(7)?, 7);
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Compose<Outer, Inner> {
    outer: Outer,
    inner: Inner,
}

impl<Outer, Inner> Compose<Outer, Inner> {
    /// Makes one layer of `outer` over `inner`.
    pub const fn new(outer: Outer, inner: Inner) -> Self {
        Self { outer, inner }
    }
}

impl<I, Inner: Layer<I>, Outer: Layer<Inner::Output>> Layer<I> for Compose<Outer, Inner> {
    type Output = Outer::Output;
    fn layer(&self, below: I) -> Result<Self::Output> {
        self.outer.layer(self.inner.layer(below)?)
    }
}

/// A recipe for the memory of a device: layers, then a leaf. The first layer added sees requests first.
///
/// Order matters where layers differ in what they see. A budget *over* a pool charges what users were granted:
///
/// ```text
/// Stack::new().layer(budget).layer(pool).over(leaf)   // cached memory is not charged
/// ```
///
/// while a budget *under* it charges what the device really holds, cached memory included, and costs nothing on a hit:
///
/// ```text
/// Stack::new().layer(pool).layer(budget).over(leaf)   // the usual choice
/// ```
///
/// A recipe is made once and built for each device:
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # use std::sync::Arc;
/// # fn show(context: &Arc<DeviceContext>) -> Result<()> {
/// let stack = Stack::new().over(leaf::Async);
/// let memory = stack.build(context)?;
/// let stream = context.create_stream(0)?;
/// let block = memory.allocate(4096, 256, stream, tag!("example"))?;
/// memory.deallocate(block, stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Stack<L = Identity, F = ()> {
    layers: L,
    leaf: F,
    observers: Vec<Arc<dyn Observer>>,
}

impl Stack {
    /// Makes a recipe with no layers yet.
    pub const fn new() -> Self {
        Self { layers: Identity, leaf: (), observers: Vec::new() }
    }
}

impl Default for Stack {
    fn default() -> Self {
        Self::new()
    }
}

impl<L> Stack<L> {
    /// Subscribes `observer` to the sink of each device that the recipe is built for: once, however many recipes it is
    /// part of.
    #[must_use]
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Adds a layer below those added before.
    pub fn layer<T>(self, layer: T) -> Stack<Compose<L, T>> {
        Stack { layers: Compose::new(self.layers, layer), leaf: (), observers: self.observers }
    }

    /// Sets the leaf at the bottom.
    pub fn over<F: Leaf>(self, leaf: F) -> Stack<L, F> {
        Stack { layers: self.layers, leaf, observers: self.observers }
    }
}

/// A complete recipe, which can be built for a device.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # use std::sync::Arc;
/// fn erased(stack: &impl Build, context: &Arc<DeviceContext>) -> Result<Arc<dyn DeviceMemoryResource>> {
///     Ok(Arc::new(stack.build(context)?))
/// }
/// ```
pub trait Build {
    /// The memory it makes.
    type Memory: DeviceMemoryResource;

    /// Builds the stack for one device.
    fn build(&self, context: &Arc<DeviceContext>) -> Result<Self::Memory>;
}

impl<L, F> Build for Stack<L, F>
where
    F: Leaf,
    L: Layer<F::Source>,
    L::Output: DeviceMemoryResource,
{
    type Memory = ObservedResource<L::Output>;

    fn build(&self, context: &Arc<DeviceContext>) -> Result<Self::Memory> {
        for observer in &self.observers {
            context.sink().subscribe(observer)?;
        }
        Ok(ObservedResource::new(self.layers.layer(self.leaf.open(context)?)?))
    }
}

//! Macros that write the methods a layer only forwards to the memory below it.
//!
//! A layer names what it forwards and writes the rest out. The traits have no default bodies, so a method that is in
//! neither place does not compile.

/// Writes methods of [`Holder`](crate::Holder) that forward to a field: all of them, or those that are named.
///
/// ```
/// # use bursar::Result;
/// # use bursar::memory::forward_holder;
/// # use bursar::prelude::*;
/// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// # use std::time::Duration;
/// #[derive(Debug)]
/// struct Transparent<R> {
///     inner: R,
/// }
///
/// #[deny(clippy::missing_trait_methods)]
/// impl<R: DeviceMemoryResource> Holder for Transparent<R> {
///     forward_holder!(self.inner);
/// }
///
/// #[derive(Debug)]
/// struct CountsReaps<R> {
///     inner: R,
///     reaps: AtomicU64,
/// }
///
/// #[deny(clippy::missing_trait_methods)]
/// impl<R: DeviceMemoryResource> Holder for CountsReaps<R> {
///     forward_holder!(self.inner; context, bytes_outstanding, released_total, reap_blocking, survey);
///     fn reap(&self) -> Result<Bytes> {
///         self.reaps.fetch_add(1, Relaxed);
///         self.inner.reap()
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_holder {
    (self.$($field:tt).+ $(; $($method:tt)+)?) => { $crate::forward_holder!(@to this (this.$($field).+) $($($method)+)?); };
    (**self $(; $($method:tt)+)?) => { $crate::forward_holder!(@to this (**this) $($($method)+)?); };
    (@to $this:ident $inner:tt) => {
        $crate::forward_holder!(@to $this $inner context, bytes_outstanding, released_total, reap, reap_blocking, survey);
    };
    (@to $this:ident $inner:tt $($(#[$attribute:meta])* $method:ident),+ $(,)?) => {
        $($crate::forward_holder!(@method $method $this $inner $(#[$attribute])*);)+
    };
    (@method context $this:ident $inner:tt $($attribute:tt)*) => {
        #[inline]
        $($attribute)*
        fn context(&self) -> &::std::sync::Arc<$crate::DeviceContext> {
            let $this = self;
            $inner.context()
        }
    };
    (@method bytes_outstanding $this:ident $inner:tt $($attribute:tt)*) => {
        $($attribute)*
        fn bytes_outstanding(&self) -> $crate::Bytes {
            let $this = self;
            $inner.bytes_outstanding()
        }
    };
    (@method released_total $this:ident $inner:tt $($attribute:tt)*) => {
        $($attribute)*
        fn released_total(&self) -> u64 {
            let $this = self;
            $inner.released_total()
        }
    };
    (@method reap $this:ident $inner:tt $($attribute:tt)*) => {
        $($attribute)*
        fn reap(&self) -> $crate::Result<$crate::Bytes> {
            let $this = self;
            $inner.reap()
        }
    };
    (@method reap_blocking $this:ident $inner:tt $($attribute:tt)*) => {
        $($attribute)*
        fn reap_blocking(&self, patience: ::std::time::Duration) -> $crate::Result<$crate::Bytes> {
            let $this = self;
            $inner.reap_blocking(patience)
        }
    };
    (@method survey $this:ident $inner:tt $($attribute:tt)*) => {
        $($attribute)*
        fn survey(&self, survey: &mut $crate::Survey) {
            let $this = self;
            $inner.survey(survey);
        }
    };
}

/// Writes methods of [`DeviceMemoryResource`](crate::DeviceMemoryResource) that forward to a field: all of them, or
/// those that are named, each with attributes of its own where it needs them.
///
/// ```
/// # use bursar::memory::{forward_holder, forward_memory_resource};
/// # use bursar::prelude::*;
/// #[derive(Debug)]
/// struct Untracked<R>(R);
///
/// #[deny(clippy::missing_trait_methods)]
/// impl<R: DeviceMemoryResource> Holder for Untracked<R> {
///     forward_holder!(self.0);
/// }
///
/// #[deny(clippy::missing_trait_methods)]
/// impl<R: DeviceMemoryResource> DeviceMemoryResource for Untracked<R> {
///     forward_memory_resource!(self.0; granted_size, #[inline] allocate, #[inline] deallocate);
///     fn tracks_use(&self) -> bool {
///         false
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_memory_resource {
    (self.$($field:tt).+ $(; $($method:tt)+)?) => {
        $crate::forward_memory_resource!(@to this (this.$($field).+) $($($method)+)?);
    };
    (**self $(; $($method:tt)+)?) => { $crate::forward_memory_resource!(@to this (**this) $($($method)+)?); };
    (@to $this:ident $inner:tt) => {
        $crate::forward_memory_resource!(@to $this $inner granted_size, allocate, deallocate, tracks_use);
    };
    (@to $this:ident $inner:tt $($(#[$attribute:meta])* $method:ident),+ $(,)?) => {
        $($crate::forward_memory_resource!(@method $method $this $inner $(#[$attribute])*);)+
    };
    (@method granted_size $this:ident $inner:tt $($attribute:tt)*) => {
        $($attribute)*
        fn granted_size(&self, bytes: u64, align: u64) -> $crate::Result<$crate::Bytes> {
            let $this = self;
            $inner.granted_size(bytes, align)
        }
    };
    (@method allocate $this:ident $inner:tt $($attribute:tt)*) => {
        $($attribute)*
        fn allocate(
            &self,
            bytes: u64,
            align: u64,
            stream: $crate::Stream,
            tag: $crate::AllocTag,
        ) -> $crate::Result<$crate::DeviceBlock> {
            let $this = self;
            $inner.allocate(bytes, align, stream, tag)
        }
    };
    (@method deallocate $this:ident $inner:tt $($attribute:tt)*) => {
        $($attribute)*
        fn deallocate(
            &self,
            block: $crate::DeviceBlock,
            stream: $crate::Stream,
        ) -> ::std::result::Result<(), $crate::Refused> {
            let $this = self;
            $inner.deallocate(block, stream)
        }
    };
    (@method tracks_use $this:ident $inner:tt $($attribute:tt)*) => {
        $($attribute)*
        fn tracks_use(&self) -> bool {
            let $this = self;
            $inner.tracks_use()
        }
    };
}

//! The methods of a driver as a list, for wrappers that forward them.
#![allow(unsafe_code)]

/// Writes `$each! { … }` once for every method of [`Driver`](crate::Driver), with its signature less `self`, so that a
/// wrapper states once what it does with all of them. For a method that the wrapper writes out itself, `$each` has an
/// arm that expands to nothing. A method that is missing here is missing in every wrapper, which then does not compile.
///
/// ```
/// let mut names = Vec::new();
/// macro_rules! named {
///     (fn listens $($signature:tt)*) => {};
///     (fn $method:ident $($signature:tt)*) => { names.push(stringify!($method)); };
///     (unsafe fn $method:ident $($signature:tt)*) => { names.push(stringify!($method)); };
/// }
/// bursar::driver::driver_methods!(named);
/// assert!(names.contains(&"allocate") && names.contains(&"free") && !names.contains(&"listens"));
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! driver_methods {
    ($each:ident) => {
        $each! { fn describe() -> String }
        $each! { fn device_count() -> u32 }
        $each! { fn listens() -> bool }
        $each! { fn simulates() -> bool }
        $each! { fn last_error(device: $crate::DeviceId) -> Option<$crate::DriverError> }
        $each! { fn stream_number(device: $crate::DeviceId, stream: $crate::RawStream) -> Option<u32> }
        $each! { fn beside_captures(call: &mut dyn FnMut()) -> () }
        $each! { unsafe fn note(device: $crate::DeviceId, note: $crate::Note) -> () }
        $crate::driver_methods! { $each:
            fn facts() -> $crate::DeviceFacts;
            fn memory() -> $crate::MemoryInfo;
            fn links() -> Vec<$crate::Link>;
            fn open() -> $crate::RawContext;
            fn allocate(bytes: u64) -> $crate::DevicePtr;
            fn stream_create(priority: i32) -> $crate::RawStream;
            fn event_create() -> $crate::RawEvent;
            fn address_reserve(bytes: u64, align: u64) -> $crate::DevicePtr;
            fn pages_create(bytes: u64) -> $crate::RawPages;
            fn host_allocate(bytes: usize, flags: $crate::HostFlags) -> *mut u8;
            fn host_device_pointer(ptr: *mut u8) -> $crate::DevicePtr;
        }
        $crate::driver_methods! { $each:
            unsafe fn close() -> ();
            unsafe fn free(ptr: $crate::DevicePtr) -> ();
            unsafe fn allocate_async(stream: $crate::RawStream, bytes: u64) -> $crate::DevicePtr;
            unsafe fn free_async(stream: $crate::RawStream, ptr: $crate::DevicePtr) -> ();
            unsafe fn stream_destroy(stream: $crate::RawStream) -> ();
            unsafe fn stream_query(stream: $crate::RawStream) -> $crate::Progress;
            unsafe fn stream_synchronize(stream: $crate::RawStream) -> ();
            unsafe fn stream_wait(stream: $crate::RawStream, event: $crate::RawEvent) -> ();
            unsafe fn stream_is_capturing(stream: $crate::RawStream) -> bool;
            unsafe fn capture_begin(stream: $crate::RawStream) -> ();
            unsafe fn capture_end(stream: $crate::RawStream) -> $crate::RawGraph;
            unsafe fn graph_instantiate(graph: $crate::RawGraph) -> $crate::RawGraphExec;
            unsafe fn graph_destroy(graph: $crate::RawGraph) -> ();
            unsafe fn graph_launch(graph: $crate::RawGraphExec, stream: $crate::RawStream) -> ();
            unsafe fn graph_exec_destroy(graph: $crate::RawGraphExec) -> ();
            unsafe fn event_destroy(event: $crate::RawEvent) -> ();
            unsafe fn event_record(event: $crate::RawEvent, stream: $crate::RawStream) -> ();
            unsafe fn event_query(event: $crate::RawEvent) -> $crate::Progress;
            unsafe fn event_synchronize(event: $crate::RawEvent) -> ();
            unsafe fn address_release(ptr: $crate::DevicePtr, bytes: u64) -> ();
            unsafe fn pages_release(pages: $crate::RawPages) -> ();
            unsafe fn pages_map(ptr: $crate::DevicePtr, bytes: u64, pages: $crate::RawPages) -> ();
            unsafe fn pages_allow(ptr: $crate::DevicePtr, bytes: u64) -> ();
            unsafe fn pages_unmap(ptr: $crate::DevicePtr, bytes: u64) -> ();
            unsafe fn host_free(ptr: *mut u8) -> ();
            unsafe fn host_register(ptr: *mut u8, bytes: usize, flags: $crate::HostFlags) -> ();
            unsafe fn host_unregister(ptr: *mut u8) -> ();
            unsafe fn copy_to_device(
                stream: $crate::RawStream, dst: $crate::DevicePtr, src: *const u8, bytes: u64
            ) -> ();
            unsafe fn copy_to_host(stream: $crate::RawStream, dst: *mut u8, src: $crate::DevicePtr, bytes: u64) -> ();
            unsafe fn copy_on_device(
                stream: $crate::RawStream, dst: $crate::DevicePtr, src: $crate::DevicePtr, bytes: u64
            ) -> ();
            unsafe fn copy_peer(
                stream: $crate::RawStream, dst: $crate::PeerPtr, src: $crate::PeerPtr, bytes: u64
            ) -> ();
            unsafe fn fill(stream: $crate::RawStream, dst: $crate::DevicePtr, pattern: $crate::Pattern, count: u64) -> ();
            unsafe fn host_function(stream: $crate::RawStream, function: $crate::HostFunction) -> ();
            unsafe fn simulate(stream: $crate::RawStream, kernel: $crate::SimulatedKernel) -> ();
        }
    };
    // The other methods name a device first and return a result.
    ($each:ident: $(fn $method:ident($($arg:ident: $type:ty),*) -> $output:ty;)*) => {
        $($each! { fn $method(device: $crate::DeviceId $(, $arg: $type)*) -> $crate::DriverResult<$output> })*
    };
    ($each:ident: $(unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $output:ty;)*) => {
        $($each! { unsafe fn $method(device: $crate::DeviceId $(, $arg: $type)*) -> $crate::DriverResult<$output> })*
    };
}

/// Defines a method of a driver, as [`driver_methods`] writes it, that forwards unchanged to the driver in a field of the wrapper.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_driver_method {
    ($to:tt: fn $method:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        fn $method(&self, $($arg: $type),*) -> $result {
            self.$to.$method($($arg),*)
        }
    };
    ($to:tt: unsafe fn $method:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        unsafe fn $method(&self, $($arg: $type),*) -> $result {
            // SAFETY: the caller's own promise.
            unsafe { self.$to.$method($($arg),*) }
        }
    };
}

//! The macro that wrappers are written with.
//!
//! A wrapper asks the [gate](crate::gate) first. Where this program has no share, and within a call that the driver makes of itself, it
//! is the driver's function and nothing else.
#![allow(unsafe_code)]

/// Defines wrappers of driver functions, each with its [`Entry`](crate::entry::Entry) in a module of the same name.
///
/// In the body, `real` calls the driver's function, and `share` is the share to charge. A function is declared as one that can `take`
/// memory, and then it is refused where the share cannot be used, or as one to `pass`.
macro_rules! hook {
    ($(
        $kind:ident fn $name:ident($($arg:ident: $type:ty),* $(,)?) |$real:ident, $share:ident| $body:expr;
    )*) => {$(
        #[allow(non_snake_case)]
        pub(crate) mod $name {
            #[allow(unused_imports)]
            use super::*;

            pub(crate) static ENTRY: $crate::entry::Entry = $crate::entry::Entry::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(symbol) => symbol,
                    Err(_) => panic!("a symbol without zeros"),
                },
                $name as *const (),
            );

            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub(crate) extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
                let found = ENTRY.real();
                if found.is_null() {
                    return $crate::entry::NOT_FOUND;
                }
                // SAFETY: `found` is the driver's function of this name, which has this signature.
                let function = unsafe {
                    std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($type),*) -> std::ffi::c_int>(found)
                };
                // SAFETY: the program calls the driver, with arguments that are its own to answer for.
                let $real = |$($arg: $type),*| unsafe { function($($arg),*) };
                let Some(_inside) = $crate::gate::enter() else { return $real($($arg),*) };
                match $crate::gate::share() {
                    $crate::gate::Admission::Pass => $real($($arg),*),
                    $crate::gate::Admission::Share($share) => $body,
                    $crate::gate::Admission::Refused(_status) => hook!(@$kind _status, $real($($arg),*)),
                }
            }
        }
    )*};
    (@take $status:ident, $call:expr) => { $status };
    (@pass $status:ident, $call:expr) => { $call };
}

pub(crate) use hook;

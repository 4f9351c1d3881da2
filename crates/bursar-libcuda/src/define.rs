//! The macros by which a line of the table becomes a symbol of the shared object, a line that `cuGetProcAddress` finds, and a
//! comparison with cudarc.
#![allow(unsafe_code)]

/// Defines the function of one line.
macro_rules! define {
    (always $symbol:ident($($arg:ident: $type:ty),*) = $body:path) => {
        /// # Safety
        /// As CUDA's manual says.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> $crate::status::CUresult {
            $crate::enter::at_any_time(|| $body($($arg),*))
        }
    };
    (ready $symbol:ident($($arg:ident: $type:ty),*) = $body:path) => {
        /// # Safety
        /// As CUDA's manual says.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> $crate::status::CUresult {
            $crate::enter::once_initialised(stringify!($symbol), |process| $body(process, $($arg),*))
        }
    };
    (stream $symbol:ident $per_thread:ident($($arg:ident: $type:ty),*) = $body:path) => {
        /// # Safety
        /// As CUDA's manual says.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the parameters of CUDA's manual")]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> $crate::status::CUresult {
            $crate::enter::once_initialised(stringify!($symbol), |process| {
                $body(process, $crate::resolve::DefaultStream::Legacy, $($arg),*)
            })
        }

        /// # Safety
        /// As CUDA's manual says.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the parameters of CUDA's manual")]
        unsafe extern "C" fn $per_thread($($arg: $type),*) -> $crate::status::CUresult {
            $crate::enter::once_initialised(stringify!($per_thread), |process| {
                $body(process, $crate::resolve::DefaultStream::PerThread, $($arg),*)
            })
        }
    };
}

/// Returns the lines of the table for one line of the declaration.
macro_rules! lines {
    ($name:ident $symbol:ident $since:literal) => {
        vec![$crate::lookup::EntryPoint {
            name: stringify!($name),
            symbol: stringify!($symbol),
            since: $since,
            per_thread: false,
            has_forms: false,
            address: ($symbol as *const ()).expose_provenance(),
        }]
    };
    ($name:ident $symbol:ident $per_thread:ident $since:literal) => {
        vec![
            $crate::lookup::EntryPoint {
                name: stringify!($name),
                symbol: stringify!($symbol),
                since: $since,
                per_thread: false,
                has_forms: true,
                address: ($symbol as *const ()).expose_provenance(),
            },
            $crate::lookup::EntryPoint {
                name: stringify!($name),
                symbol: stringify!($per_thread),
                since: $since,
                per_thread: true,
                has_forms: true,
                address: ($per_thread as *const ()).expose_provenance(),
            },
        ]
    };
}

#[cfg(test)]
macro_rules! any {
    ($name:ident) => {
        _
    };
}

#[cfg(test)]
macro_rules! compared {
    (since $symbol:ident($($arg:ident: $type:ty),*)) => {
        Some((
            stringify!($symbol),
            $crate::define::parameters_in(std::any::type_name::<unsafe fn($($type),*)>()),
            $crate::define::parameters_in(std::any::type_name_of_val(
                &(cudarc::driver::sys::$symbol as unsafe fn($($crate::define::any!($arg)),*) -> _),
            )),
        ))
    };
    (beyond $symbol:ident($($arg:ident: $type:ty),*)) => {
        None
    };
}

macro_rules! entry_points {
    ($($need:ident $name:ident = $symbol:ident $(| $per_thread:ident)?, $header:ident $since:literal
        ($($arg:ident: $type:ty),* $(,)?) = $body:path;)*) => {
        $($crate::define::define! { $need $symbol $($per_thread)? ($($arg: $type),*) = $body })*

        /// Returns every entry point.
        pub fn entry_points() -> &'static [$crate::lookup::EntryPoint] {
            static TABLE: std::sync::OnceLock<Vec<$crate::lookup::EntryPoint>> = std::sync::OnceLock::new();
            TABLE.get_or_init(|| [$($crate::define::lines!($name $symbol $($per_thread)? $since)),*].concat())
        }

        /// Returns every symbol with its parameters, as declared here and as cudarc declares them.
        #[cfg(test)]
        fn parameters() -> Vec<(&'static str, String, String)> {
            let compared: Vec<Option<(&'static str, String, String)>> =
                vec![$($crate::define::compared!($header $symbol($($arg: $type),*))),*];
            compared.into_iter().flatten().collect()
        }
    };
}

#[cfg(test)]
pub(crate) use {any, compared};
pub(crate) use {define, entry_points, lines};

/// Returns the parameters of a function type, each without the modules it is declared in and without the suffix that
/// the header has for structures and enumerations. Our wrappers of pointers are pointers.
#[cfg(test)]
pub(crate) fn parameters_in(function: &str) -> String {
    let (list, _) = function.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).expect("a function type");
    let names = list.split_inclusive([' ', ',', '(', ')', '<', '>']).map(|word| {
        let name = word.rsplit("::").next().unwrap_or(word);
        let (name, separator) = name.split_at(name.trim_end_matches([' ', ',', '(', ')', '<', '>']).len());
        let name = ["_st", "_enum"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        format!("{name}{separator}")
    });
    let plain: String = names.collect();
    let plain = plain.replace("HostSource", "*const c_void").replace("Host", "*mut c_void");
    let plain = plain.replace("Out<", "*mut ").replace("In<", "*const ");
    plain.replace("Option<unsafe extern \"C\" fn(*mut c_void)>", "CUhostFn").replace('>', "")
}

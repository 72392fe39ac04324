//! The binding: types of libfabric's headers, and the few symbols of its library, found at run
//! time. All else goes through the tables of operations that its objects carry.
//!
//! Symbols are asked for by version (`dlvsym`), so that a program made from the headers of 1.17
//! calls what it was made for on any later libfabric.

#![allow(unsafe_code, reason = "the binding to a C library")]

#[allow(
    non_camel_case_types,
    unreachable_pub,
    clippy::unreadable_literal,
    clippy::pub_underscore_fields,
    reason = "named and numbered as in the headers"
)]
#[rustfmt::skip]
mod bindings;
pub(crate) mod exit;
pub(crate) mod signals;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

pub(crate) use bindings::*;

use crate::FabricError;

/// The version of the interface that is asked for: that of the headers.
pub(crate) const API_VERSION: u32 = (1 << 16) | 0x11;

/// The library by the name of its first ABI; 2.x keeps it.
const LIBRARY: &CStr = c"libfabric.so.1";

/// libfabric, as far as it is found by name.
pub(crate) struct Library {
    pub(crate) getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const fi_info,
        *mut *mut fi_info,
    ) -> c_int,
    pub(crate) freeinfo: unsafe extern "C" fn(*mut fi_info),
    pub(crate) dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    pub(crate) fabric:
        unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    version: unsafe extern "C" fn() -> u32,
}

impl Library {
    /// The library of this machine: loaded once, never unloaded, since its providers keep threads.
    pub(crate) fn get() -> Result<&'static Self, FabricError> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| signals::kept(Self::load));
        loaded.as_ref().map_err(|cause| FabricError::NoLibrary { cause: cause.clone() })
    }

    fn load() -> Result<Self, String> {
        // SAFETY: the name is a C string; what the constructors of the library do is its own.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(last_error());
        }
        // SAFETY: each symbol has, in the version named, the signature of the header of 1.17.
        unsafe {
            Ok(Self {
                getinfo: symbol(handle, c"fi_getinfo", c"FABRIC_1.3")?,
                freeinfo: symbol(handle, c"fi_freeinfo", c"FABRIC_1.3")?,
                dupinfo: symbol(handle, c"fi_dupinfo", c"FABRIC_1.3")?,
                fabric: symbol(handle, c"fi_fabric", c"FABRIC_1.1")?,
                strerror: symbol(handle, c"fi_strerror", c"FABRIC_1.0")?,
                version: symbol(handle, c"fi_version", c"FABRIC_1.0")?,
            })
        }
    }

    /// What an error number of libfabric means; `code` without its sign.
    pub(crate) fn error_text(&self, code: c_int) -> String {
        // SAFETY: the library returns a constant string for every number.
        unsafe { CStr::from_ptr((self.strerror)(code)) }.to_string_lossy().into_owned()
    }

    /// Major and minor version of the library itself.
    pub(crate) fn version(&self) -> (u32, u32) {
        // SAFETY: takes nothing and returns a number.
        let version = unsafe { (self.version)() };
        (version >> 16, version & 0xffff)
    }
}

/// The function `name` in the version `version`.
///
/// # Safety
/// `F` must be the type of a pointer to that function.
unsafe fn symbol<F: Copy>(handle: *mut c_void, name: &CStr, version: &CStr) -> Result<F, String> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: the handle is open for good, and both names are C strings.
    let found = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    if found.is_null() {
        return Err(last_error());
    }
    // SAFETY: a pointer of the same size; the caller vouches for the type.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

fn last_error() -> String {
    // SAFETY: `dlerror` returns the text of this thread's last failure, or nothing.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the linker gives no reason".into();
    }
    // SAFETY: not null, so a C string that stays until the next call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

//! libfabric's objects: made through the tables of operations, closed exactly once.

#![allow(unsafe_code, reason = "calls through the tables of a C library")]

use std::ffi::{CString, c_int, c_void};
use std::ptr::{null, null_mut};

use super::in_use;
use super::options::{EndpointOptions, Limits, Provider};
use crate::FabricError;
use crate::sys::{self, Library, fi_info, fid, fid_av, fid_cq, fid_domain, fid_ep, fid_fabric};

/// The source of an address, in the call of `fi_getinfo` (`FI_SOURCE`).
const SOURCE: u64 = 1 << 57;
/// What `mr_mode` we obey; the provider takes from it what it needs.
const MR_MODES: u64 = sys::FI_MR_LOCAL
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_ENDPOINT;

/// The error of a call that returned `code`, which is negative.
pub(super) fn failed(call: &'static str, code: c_int) -> FabricError {
    let cause = Library::get().map(|library| library.error_text(-code)).unwrap_or_default();
    FabricError::Failed { call, cause, code: -code }
}

pub(super) fn check(call: &'static str, code: c_int) -> Result<(), FabricError> {
    if code < 0 { Err(failed(call, code)) } else { Ok(()) }
}

/// Closes an object. An error can only mean that something below is still open: a bug of ours.
///
/// # Safety
/// `object` must be open, and never be used again.
pub(super) unsafe fn close(object: *mut fid) {
    // SAFETY: an open object has its table; the caller gives it up.
    let code = unsafe { (*(*object).ops).close.map_or(-sys::FI_ENOSYS, |close| close(object)) };
    if code != 0 {
        tracing::warn!(code, "an object of libfabric could not be closed");
    }
}

/// What `fi_getinfo` found.
pub(super) struct Info(*mut fi_info);

impl Info {
    /// The first match for `options`, whose source gets the name `name` where the provider takes
    /// names.
    pub(super) fn find(options: &EndpointOptions, name: &str) -> Result<Self, FabricError> {
        let library = Library::get()?;
        let provider = options.provider.name();
        let malformed = |_| FabricError::Malformed { what: "an address", cause: "a zero".into() };
        let source = match options.provider {
            Provider::Shm => Some(CString::new(name).map_err(malformed)?),
            _ => options.source.clone().map(CString::new).transpose().map_err(malformed)?,
        };
        let name = CString::new(provider).map_err(malformed)?;
        // SAFETY: `dupinfo` of nothing makes an empty record with all its parts, which is then
        // filled; the name is a copy by `strdup` since `freeinfo` frees it.
        let hints = unsafe {
            let hints = (library.dupinfo)(null());
            if hints.is_null() {
                return Err(FabricError::Busy { what: "the memory of the process" });
            }
            fill_hints(&mut *hints);
            (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            hints
        };
        let mut found = null_mut();
        let node = source.as_ref().map_or(null(), |source| source.as_ptr());
        let flags = if source.is_some() { SOURCE } else { 0 };
        // SAFETY: all pointers are valid or null for the call; `found` belongs to us after it.
        let code = unsafe {
            let version = sys::API_VERSION;
            let code = (library.getinfo)(version, node, null(), flags, hints, &raw mut found);
            (library.freeinfo)(hints);
            code
        };
        if code != 0 || found.is_null() {
            let cause = library.error_text(-code);
            return Err(FabricError::NoProvider { provider, cause });
        }
        Ok(Self(found))
    }

    pub(super) fn limits(&self) -> Limits {
        // SAFETY: what `fi_getinfo` returns has all its parts.
        let (tx, ep, domain) =
            unsafe { (&*(*self.0).tx_attr, &*(*self.0).ep_attr, &*(*self.0).domain_attr) };
        // SAFETY: as above.
        let rx = unsafe { &*(*self.0).rx_attr };
        let mode = u64::from(domain.mr_mode.cast_unsigned());
        Limits {
            inject: tx.inject_size,
            pieces: tx.iov_limit.max(1),
            remote_pieces: tx.rma_iov_limit.max(1),
            message: ep.max_msg_size,
            immediate: domain.cq_data_size,
            queue: tx.size.min(rx.size),
            registers_local: mode & sys::FI_MR_LOCAL != 0,
            names_addresses: mode & sys::FI_MR_VIRT_ADDR != 0,
            chooses_keys: mode & sys::FI_MR_PROV_KEY != 0,
            binds_regions: mode & sys::FI_MR_ENDPOINT != 0,
            can_wait: false,
        }
    }

    /// Bytes of a key.
    pub(super) fn key_size(&self) -> usize {
        // SAFETY: as in `limits`.
        unsafe { (*(*self.0).domain_attr).mr_key_size }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        if let Ok(library) = Library::get() {
            // SAFETY: made by `fi_getinfo`, freed once.
            unsafe { (library.freeinfo)(self.0) };
        }
    }
}

/// # Safety
/// `hints` must have all its parts.
unsafe fn fill_hints(hints: &mut fi_info) {
    hints.caps = sys::FI_MSG | sys::FI_RMA;
    hints.mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
    // SAFETY: as the caller promises.
    unsafe {
        (*hints.ep_attr).type_ = sys::FI_EP_RDM;
        (*hints.tx_attr).msg_order = sys::FI_ORDER_SAS;
        (*hints.rx_attr).msg_order = sys::FI_ORDER_SAS;
        (*hints.domain_attr).mr_mode = MR_MODES as c_int;
        (*hints.domain_attr).threading = sys::FI_THREAD_DOMAIN;
        (*hints.domain_attr).resource_mgmt = sys::FI_RM_ENABLED;
    }
}

/// All objects of one endpoint, closed in the right order.
pub(super) struct Objects {
    pub(super) endpoint: *mut fid_ep,
    pub(super) completions: *mut fid_cq,
    pub(super) addresses: *mut fid_av,
    pub(super) domain: *mut fid_domain,
    pub(super) fabric: *mut fid_fabric,
    /// To sleep on, if the provider has it.
    pub(super) wait_fd: Option<c_int>,
}

impl Objects {
    /// Opens and enables an endpoint. What was opened before a failure is closed again.
    pub(super) fn open(info: &Info, operations: usize) -> Result<Self, FabricError> {
        let library = Library::get()?;
        let mut objects = Self {
            endpoint: null_mut(),
            completions: null_mut(),
            addresses: null_mut(),
            domain: null_mut(),
            fabric: null_mut(),
            wait_fd: None,
        };
        let info = info.0;
        // SAFETY: `info` is what `fi_getinfo` made; each object is made from open ones, by the
        // table that it carries, and kept in `objects`, which closes all in order.
        unsafe {
            let made = &raw mut objects.fabric;
            check("fi_fabric", (library.fabric)((*info).fabric_attr, made, null_mut()))?;
            let fabric = objects.fabric;
            let domain = (*(*fabric).ops).domain.ok_or_else(no_operation)?;
            let made = &raw mut objects.domain;
            check("fi_domain", domain(fabric, info, made, null_mut()))?;
            objects.open_completions(operations)?;
            let domain = objects.domain;
            let mut attributes: sys::fi_av_attr = std::mem::zeroed();
            attributes.type_ = sys::FI_AV_TABLE;
            let open = (*(*domain).ops).av_open.ok_or_else(no_operation)?;
            let made = &raw mut objects.addresses;
            check("fi_av_open", open(domain, &raw mut attributes, made, null_mut()))?;
            let open = (*(*domain).ops).endpoint.ok_or_else(no_operation)?;
            let made = &raw mut objects.endpoint;
            check("fi_endpoint", open(domain, info, made, null_mut()))?;
            in_use::endpoint_opened();
            objects.enable()?;
        }
        Ok(objects)
    }

    /// # Safety
    /// The domain must be open.
    unsafe fn open_completions(&mut self, operations: usize) -> Result<(), FabricError> {
        let domain = self.domain;
        // SAFETY: as the caller promises; the attributes live for the call.
        unsafe {
            let open = (*(*domain).ops).cq_open.ok_or_else(no_operation)?;
            let mut attributes: sys::fi_cq_attr = std::mem::zeroed();
            attributes.size = operations;
            attributes.format = sys::FI_CQ_FORMAT_DATA;
            attributes.wait_obj = sys::FI_WAIT_FD;
            let made = &raw mut self.completions;
            if open(domain, &raw mut attributes, made, null_mut()) == 0 {
                self.wait_fd = get_wait_fd(self.completions);
                return Ok(());
            }
            // Shared memory has nothing to sleep on.
            attributes.wait_obj = sys::FI_WAIT_NONE;
            check("fi_cq_open", open(domain, &raw mut attributes, made, null_mut()))
        }
    }

    /// # Safety
    /// All objects must be open.
    unsafe fn enable(&mut self) -> Result<(), FabricError> {
        // SAFETY: as the caller promises.
        unsafe {
            let endpoint = &raw mut (*self.endpoint).fid;
            let bind = (*(*endpoint).ops).bind.ok_or_else(no_operation)?;
            let addresses = &raw mut (*self.addresses).fid;
            check("fi_ep_bind", bind(endpoint, addresses, 0))?;
            let both = sys::FI_TRANSMIT | sys::FI_RECV;
            let completions = &raw mut (*self.completions).fid;
            check("fi_ep_bind", bind(endpoint, completions, both))?;
            let control = (*(*endpoint).ops).control.ok_or_else(no_operation)?;
            check("fi_enable", control(endpoint, sys::FI_ENABLE as c_int, null_mut()))
        }
    }

    /// The endpoint's own address, as peers insert it.
    pub(super) fn name(&self) -> Result<Vec<u8>, FabricError> {
        let mut name = vec![0; 256];
        let mut length = name.len();
        // SAFETY: the endpoint is open; the buffer has the length that is passed.
        unsafe {
            let getname = (*(*self.endpoint).cm).getname.ok_or_else(no_operation)?;
            let at = name.as_mut_ptr().cast::<c_void>();
            check("fi_getname", getname(&raw mut (*self.endpoint).fid, at, &raw mut length))?;
        }
        name.truncate(length);
        Ok(name)
    }

    /// Closes the endpoint: after it the provider touches no buffer of an operation.
    pub(super) fn close_endpoint(&mut self) {
        if !self.endpoint.is_null() {
            // SAFETY: open, and forgotten at once.
            unsafe { close(&raw mut (*self.endpoint).fid) };
            self.endpoint = null_mut();
            in_use::endpoint_closed();
        }
    }
}

/// # Safety
/// `completions` must be open.
unsafe fn get_wait_fd(completions: *mut fid_cq) -> Option<c_int> {
    let mut wait_fd: c_int = -1;
    // SAFETY: as the caller promises; the command writes one number.
    let code = unsafe {
        let object = &raw mut (*completions).fid;
        let control = (*(*object).ops).control?;
        control(object, sys::FI_GETWAIT as c_int, (&raw mut wait_fd).cast())
    };
    (code == 0 && wait_fd >= 0).then_some(wait_fd)
}

pub(super) fn no_operation() -> FabricError {
    failed("an operation of the provider", -sys::FI_ENOSYS)
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.close_endpoint();
        // SAFETY: each is open or null, and closed after all that was made from it.
        unsafe {
            if !self.completions.is_null() {
                close(&raw mut (*self.completions).fid);
            }
            if !self.addresses.is_null() {
                close(&raw mut (*self.addresses).fid);
            }
            if !self.domain.is_null() {
                close(&raw mut (*self.domain).fid);
            }
            if !self.fabric.is_null() {
                close(&raw mut (*self.fabric).fid);
            }
        }
    }
}

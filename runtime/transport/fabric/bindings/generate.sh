#!/bin/sh
# Makes src/sys/bindings.rs from the headers of Debian 12's libfabric-dev (1.17.0), with bindgen 0.72.1.
# Nobody needs to run it to build: the result is checked in. `sh generate.sh > ../src/sys/bindings.rs`
set -e
cd "$(dirname "$0")"
cat <<'HEAD'
//! Made by bindings/generate.sh from the headers of libfabric 1.17; not written by hand.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The place of an operation that is not called.
pub type Unused = Option<unsafe extern "C" fn()>;

HEAD
opaque=""
for kind in atomic tagged collective; do opaque="$opaque --opaque-type fi_ops_$kind"; done
for kind in wait poll cntr eq; do opaque="$opaque --opaque-type fid_$kind --opaque-type fi_${kind}_attr"; done
for kind in fid_nic fid_stx fid_pep fid_mc fid_av_set fi_atomic_attr fi_av_set_attr; do
    opaque="$opaque --opaque-type $kind"
done
types='fi_info|fid_fabric|fid_domain|fid_ep|fid_av|fid_cq|fid_mr|fi_cq_data_entry|fi_cq_err_entry'
types="$types|fi_cq_attr|fi_av_attr|fi_msg|fi_msg_rma|fi_rma_iov|fi_ep_type|fi_wait_obj|fi_cq_format"
types="$types|fi_progress|fi_threading|fi_resource_mgmt|fi_av_type"
"${BINDGEN:-bindgen}" libfabric.h --allowlist-type "$types" --allowlist-var 'FI_[A-Z0-9_]*' $opaque \
    --no-layout-tests --no-doc-comments --no-prepend-enum-name --default-enum-style consts \
    --no-derive-default --no-derive-debug --disable-header-comment | python3 trim.py constants.txt

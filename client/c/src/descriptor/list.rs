//! Many regions of a file in one call.

use std::ffi::c_void;
use std::slice;

use bytes::Bytes;
use client::Regions;

use super::Descriptor;
use crate::arguments;
use crate::failure::{CApiFailure, answer};

/// Regions of a file or of memory, as they were described.
#[derive(Debug)]
pub struct List(Regions);

/// Numbers that C hands over.
unsafe fn numbers<'a, T>(numbers: *const T, count: usize) -> Result<&'a [T], CApiFailure> {
    // SAFETY: a reference to nothing else is made; see `arguments`.
    unsafe { arguments::bytes(numbers, count.saturating_mul(size_of::<T>())) }?;
    // SAFETY: as many numbers as bytes were checked for; not null unless there are none.
    Ok(if count == 0 { &[] } else { unsafe { slice::from_raw_parts(numbers, count) } })
}

/// Hands a list to C.
fn handed(list: Result<Regions, client::RegionsError>) -> Result<*mut List, CApiFailure> {
    let list = list.map_err(|error| CApiFailure::new(libc::EINVAL, error.to_string()))?;
    Ok(Box::into_raw(Box::new(List(list))))
}

fn widened(numbers: &[usize]) -> Vec<u64> {
    numbers.iter().map(|&number| number as u64).collect()
}

/// The list of `count` ranges, in this order: of `lengths[i]` bytes at `offsets[i]`. Returns NULL
/// on failure. To be freed with mdfs_regions_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_regions_indexed(
    count: usize,
    offsets: *const libc::off_t,
    lengths: *const usize,
) -> *mut List {
    answer(std::ptr::null_mut(), || {
        // SAFETY: see `arguments`.
        let (offsets, lengths) = unsafe { (numbers(offsets, count)?, numbers(lengths, count)?) };
        let offsets: Result<Vec<u64>, CApiFailure> =
            offsets.iter().map(|&offset| arguments::offset(offset)).collect();
        handed(Regions::indexed(offsets?.into_iter().zip(widened(lengths))))
    })
}

/// A vector: `count` blocks of `block` bytes, the first at `start`, each `stride` bytes after the
/// one before. Returns NULL on failure. To be freed with mdfs_regions_free.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_regions_strided(
    start: libc::off_t,
    block: usize,
    count: usize,
    stride: usize,
) -> *mut List {
    answer(std::ptr::null_mut(), || {
        let start = arguments::offset(start)?;
        handed(Regions::strided(start, block as u64, count as u64, stride as u64))
    })
}

/// A part of an array that begins at byte `offset` and has elements of `element` bytes: in each of
/// `dimensions` the array has `array[i]` of them, and the part has `part[i]` from `first[i]` on.
/// The last dimension lies together, as in C; for arrays of Fortran give the dimensions in the
/// opposite order. Returns NULL on failure. To be freed with mdfs_regions_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_regions_subarray(
    offset: libc::off_t,
    element: usize,
    dimensions: usize,
    array: *const usize,
    part: *const usize,
    first: *const usize,
) -> *mut List {
    answer(std::ptr::null_mut(), || {
        let offset = arguments::offset(offset)?;
        // SAFETY: see `arguments`.
        let [array, part, first] = unsafe {
            [
                widened(numbers(array, dimensions)?),
                widened(numbers(part, dimensions)?),
                widened(numbers(first, dimensions)?),
            ]
        };
        handed(Regions::subarray(offset, element as u64, &array, &part, &first))
    })
}

/// The regions of `count` lists, one list after the other. The lists stay. Returns NULL on failure.
/// To be freed with mdfs_regions_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_regions_join(count: usize, lists: *const *const List) -> *mut List {
    answer(std::ptr::null_mut(), || {
        // SAFETY: see `arguments`.
        let lists = unsafe { numbers(lists, count) }?.iter().map(|&list| {
            // SAFETY: as above.
            unsafe { arguments::reference(list, "a list") }.map(|list| list.0.clone())
        });
        handed(Regions::join(lists.collect::<Result<Vec<_>, CApiFailure>>()?))
    })
}

/// Bytes of all regions of a list together; 0 of NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_regions_bytes(list: *const List) -> u64 {
    // SAFETY: null gives nothing; C vouches for a list of this library.
    unsafe { list.as_ref() }.map_or(0, |list| list.0.bytes())
}

/// Frees a list; does nothing to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_regions_free(list: *mut List) {
    if !list.is_null() {
        // SAFETY: not null; C vouches for a list of this library that is freed once.
        drop(unsafe { Box::from_raw(list) });
    }
}

/// The regions of memory that are meant: all of the buffer for NULL.
unsafe fn memory(memory: *const List, length: usize) -> Result<Option<Regions>, CApiFailure> {
    // SAFETY: null gives nothing; C vouches for a list of this library.
    let memory = unsafe { memory.as_ref() }.map(|list| list.0.clone());
    if memory.as_ref().is_some_and(|memory| memory.end() > length as u64) {
        return Err(CApiFailure::new(libc::EINVAL, "the regions of memory end past the buffer"));
    }
    Ok(memory)
}

/// Reads the regions `file`, one after the other, into the regions `memory` of `buffer`, which has
/// `length` bytes; for NULL, one after the other into the buffer. Thousands of regions go in one
/// request. Returns how many bytes of the list came: fewer than all if the file ends before the
/// last of them; bytes past its end before others are zeros. -1 on failure. The position does not
/// move.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_read_list(
    descriptor: libc::c_int,
    file: *const List,
    memory: *const List,
    buffer: *mut c_void,
    length: usize,
) -> isize {
    answer(-1, || {
        let descriptor = Descriptor::at(descriptor)?;
        // SAFETY: see `arguments`.
        let (regions, out, memory) = unsafe {
            let regions = arguments::reference(file, "the list of regions of the file")?;
            (regions, arguments::bytes_mut(buffer, length)?, self::memory(memory, length)?)
        };
        let read = match memory {
            Some(memory) => descriptor.file.read_list_into(&regions.0, &memory, out),
            None => descriptor.file.read_list(&regions.0, out),
        };
        Ok(read?.cast_signed())
    })
}

/// Writes the regions `memory` of `data`, which has `length` bytes (for NULL, its first bytes), one
/// after the other to the regions `file`. Thousands of regions go in one request. Returns the bytes
/// of the list, or -1 on failure; then any part of them may have been written. The position does
/// not move. Where regions overlap, either byte may stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_write_list(
    descriptor: libc::c_int,
    file: *const List,
    memory: *const List,
    data: *const c_void,
    length: usize,
) -> isize {
    answer(-1, || {
        let descriptor = Descriptor::at(descriptor)?;
        // SAFETY: see `arguments`.
        let (regions, data, memory) = unsafe {
            let regions = arguments::reference(file, "the list of regions of the file")?;
            (&regions.0, arguments::bytes(data, length)?, self::memory(memory, length)?)
        };
        let target = descriptor.to_write()?;
        if let Some(memory) = memory {
            target.write_list_from(regions, &memory, data)?;
        } else {
            // The cache may keep the bytes for longer than C does.
            let room = usize::try_from(regions.bytes()).unwrap_or(usize::MAX).min(length);
            target.write_list(regions, Bytes::copy_from_slice(&data[..room]))?;
        }
        descriptor.sync_if_asked()?;
        Ok((regions.bytes() as usize).cast_signed())
    })
}

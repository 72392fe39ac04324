//! The C library's `FILE`, the oracle of the stream's test. The only `unsafe` of this crate.

use std::ffi::CString;
use std::path::Path;

use client::stream::Whence;

/// The C library's stream.
pub(crate) struct CFile(*mut libc::FILE);

#[allow(unsafe_code, reason = "the oracle is the C library, and it has no safe interface")]
impl CFile {
    pub(crate) fn open(path: &Path, mode: &str) -> Option<Self> {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mode = CString::new(mode).unwrap();
        // SAFETY: both are strings that end in a zero byte.
        let file = unsafe { libc::fopen(path.as_ptr(), mode.as_ptr()) };
        (!file.is_null()).then_some(Self(file))
    }

    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        // SAFETY: `out` has that many bytes; here and below the file is open until dropped.
        unsafe { libc::fread(out.as_mut_ptr().cast(), 1, out.len(), self.0) }
    }

    pub(crate) fn write(&mut self, data: &[u8]) -> usize {
        // SAFETY: `data` has that many bytes.
        unsafe { libc::fwrite(data.as_ptr().cast(), 1, data.len(), self.0) }
    }

    pub(crate) fn seek(&mut self, offset: i64, whence: Whence) -> bool {
        let whence = match whence {
            Whence::Set => libc::SEEK_SET,
            Whence::Current => libc::SEEK_CUR,
            Whence::End => libc::SEEK_END,
        };
        // SAFETY: see above.
        unsafe { libc::fseek(self.0, offset, whence) == 0 }
    }

    pub(crate) fn tell(&mut self) -> i64 {
        // SAFETY: see above.
        unsafe { libc::ftell(self.0) }
    }

    pub(crate) fn flush(&mut self) -> bool {
        // SAFETY: see above.
        unsafe { libc::fflush(self.0) == 0 }
    }

    pub(crate) fn unread(&mut self, byte: u8) -> bool {
        // SAFETY: see above.
        unsafe { libc::ungetc(i32::from(byte), self.0) >= 0 }
    }

    pub(crate) fn indicators(&mut self) -> (bool, bool) {
        // SAFETY: see above.
        unsafe { (libc::feof(self.0) != 0, libc::ferror(self.0) != 0) }
    }

    pub(crate) fn clear_error(&mut self) {
        // SAFETY: see above.
        unsafe { libc::clearerr(self.0) }
    }

    pub(crate) fn set_buffer(&mut self, size: usize) {
        let mode = if size == 0 { libc::_IONBF } else { libc::_IOFBF };
        // SAFETY: with a null pointer the library allocates the buffer itself.
        unsafe { libc::setvbuf(self.0, std::ptr::null_mut(), mode, size) };
    }
}

impl Drop for CFile {
    #[allow(unsafe_code, reason = "see above")]
    fn drop(&mut self) {
        // SAFETY: the file is not used after this.
        unsafe { libc::fclose(self.0) };
    }
}

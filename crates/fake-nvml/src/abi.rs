//! The interface to C. Pointers from clients become types whose methods check for null and write or read exactly one value; the rest of the
//! crate is safe code. All `unsafe` blocks of the crate are in this file.
//!
//! The safety argument: the exported functions are `unsafe extern "C"`, so a caller promises NVML's documented contract: an output
//! pointer is null or points to writable memory of the documented type, a text pointer is null or points to a NUL-terminated string,
//! and a buffer has the length passed beside it. [`Out`], [`InOut`], [`Text`], [`Buffer`] and [`List`] have private fields and no
//! constructors, so only such a call can make one, and none outlives it.

use std::ffi::{CStr, c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{Answer, INSUFFICIENT_SIZE, INVALID_ARGUMENT, SUCCESS, UNKNOWN};

/// Output parameter for one value.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn put(&self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the caller's promise writable for a `T`; unaligned, because Python's ctypes lets people pack structs.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// For outputs that NVML lets the client omit.
    pub(crate) fn put_if_wanted(&self, value: T) -> Answer {
        if self.0.is_null() { Ok(()) } else { self.put(value) }
    }
}

/// Parameter that is read and then replaced: versioned structs and counts.
#[repr(transparent)]
pub(crate) struct InOut<T: Copy>(*mut T);

impl<T: Copy> InOut<T> {
    pub(crate) fn get(&self) -> Answer<T> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the caller's promise an initialised `T`; `T` is plain data, any bytes of which are valid.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub(crate) fn put(&self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: as in `Out::put`.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }
}

impl InOut<c_uint> {
    /// The first field of a versioned struct is its version; a struct is only touched as a whole once that is known to be ours.
    pub(crate) fn version_of<T: Copy>(whole: &InOut<T>) -> Answer<c_uint> {
        InOut(whole.0.cast::<c_uint>()).get()
    }
}

/// A NUL-terminated string from the client. `Copy`, because it is also a field of structs that a call reads as a whole.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn read(&self) -> Answer<String> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the caller's promise NUL-terminated; copied before the call returns.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// A buffer for text; its length comes as another argument.
#[repr(transparent)]
pub(crate) struct Buffer(*mut c_char);

impl Buffer {
    /// Copies `text` with its NUL, or refuses if it does not fit: NVML never truncates.
    pub(crate) fn put(&self, length: c_uint, text: &str) -> Answer {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        if text.len() + 1 > length as usize {
            return Err(INSUFFICIENT_SIZE);
        }
        // SAFETY: not null, so by the caller's promise `length` bytes are writable, and the text with its NUL is no longer than that.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), self.0, text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// An array for several values. The count is the array's size on entry and the number of values on return.
#[repr(transparent)]
pub(crate) struct List<T>(*mut T);

impl<T> List<T> {
    pub(crate) fn put(&self, count: &InOut<c_uint>, values: Vec<T>) -> Answer {
        let room = count.get()? as usize;
        count.put(values.len() as c_uint)?;
        if values.is_empty() {
            return Ok(());
        }
        if room < values.len() || self.0.is_null() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (place, value) in values.into_iter().enumerate() {
            // SAFETY: not null and `place < values.len() <= room`, so by the caller's promise inside the array.
            unsafe { self.0.add(place).write_unaligned(value) };
        }
        Ok(())
    }
}

impl<T> List<T> {
    /// For calls that take no size: the client promises room for all possible values.
    pub(crate) fn put_all(&self, count: &Out<c_uint>, values: Vec<T>) -> Answer {
        count.put(values.len() as c_uint)?;
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        for (place, value) in values.into_iter().enumerate() {
            // SAFETY: not null, and the caller promises an array for the profile's largest number of instances, which bounds `values`.
            unsafe { self.0.add(place).write_unaligned(value) };
        }
        Ok(())
    }
}

/// Runs a call's body: its error is the return code, and a panic becomes `NVML_ERROR_UNKNOWN` instead of unwinding into C.
pub(crate) fn answer(body: impl FnOnce() -> Answer) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code.0,
        Err(_) => UNKNOWN.0,
    }
}

/// Text as a fixed array of C characters, cut if too long, always NUL-terminated.
pub(crate) fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from as c_char;
    }
    array
}

/// Declares exported NVML functions: a body that ends in [`Answer`] under a C signature.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            /// # Safety
            /// NVML's contract for this function: pointers are null or valid for what it reads and writes.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> u32 {
                $crate::abi::answer(|| $body)
            }
        )*
    };
}
pub(crate) use export;

//! The dynamic linker's inputs: headers of shared libraries, its cache, and its search order. A shared library is checked here before it is
//! loaded: the linker maps a file without comparing its length with its headers, and the process dies by SIGBUS when it touches the missing
//! part of a truncated file. Reads only; never loads a library.

pub mod elf;
pub mod integrity;
pub mod ldcache;
pub mod search;

/// CPU and word size of a library. Only machines for which NVIDIA ships drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Machine {
    /// 64-bit x86.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// 32-bit x86: the driver's compatibility libraries, which are not injected.
    X86,
    /// 32-bit Arm.
    Arm,
}

impl Machine {
    /// The machine that this program was built for and runs on.
    pub const fn here() -> Self {
        if cfg!(target_arch = "aarch64") {
            Machine::Aarch64
        } else {
            Machine::X86_64
        }
    }

    /// Debian's name of the machine, which is also the directory below `/usr/lib`.
    pub const fn triplet(self) -> &'static str {
        match self {
            Machine::X86_64 => "x86_64-linux-gnu",
            Machine::Aarch64 => "aarch64-linux-gnu",
            Machine::X86 => "i386-linux-gnu",
            Machine::Arm => "arm-linux-gnueabihf",
        }
    }
}

//! Errors of the driver's functions.

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver is not installed, or it cannot be opened.
    #[error("{library} could not be opened: {why}")]
    NoDriver {
        /// The file.
        library: &'static str,
        /// The system's words.
        why: String,
    },
    /// The driver is older than a function that is needed.
    #[error("the driver has no {function}, which came with CUDA {}.{}: install a newer NVIDIA driver", since.0, since.1)]
    Missing {
        /// The function.
        function: &'static str,
        /// The CUDA that has it, major and minor.
        since: (u32, u32),
    },
    /// The driver refused.
    #[error("{call} failed with {code} ({})", meaning(*code))]
    Call {
        /// The function.
        call: &'static str,
        /// The `CUresult`.
        code: i32,
    },
    /// The driver's compiler refused a kernel.
    #[error("{call} failed with {code} ({}): {log}", meaning(*code))]
    Compile {
        /// The function.
        call: &'static str,
        /// The `CUresult`.
        code: i32,
        /// The compiler's words.
        log: String,
    },
    /// More bytes than fit.
    #[error("{wanted} bytes do not fit into {have}")]
    TooLarge {
        /// The bytes that were asked for.
        wanted: u64,
        /// The bytes that there are.
        have: u64,
    },
    /// More bytes than this device may be asked for in all.
    #[error("{wanted} bytes more are over the budget of the device")]
    OverBudget {
        /// The bytes that were asked for.
        wanted: u64,
    },
    /// A name or a layout that the driver cannot be given.
    #[error("{0}")]
    Wrong(&'static str),
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_LAUNCH_FAILED`.
#[cfg(feature = "faults")]
pub(crate) const LAUNCH_FAILED: i32 = 719;

impl CudaError {
    /// The `CUresult` of the call that failed.
    pub fn code(&self) -> Option<i32> {
        match self {
            CudaError::Call { code, .. } | CudaError::Compile { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the memory of the device, or the budget, is used up.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, CudaError::OverBudget { .. }) || self.code() == Some(OUT_OF_MEMORY)
    }

    /// Whether the context is lost: nothing in it can be used any more.
    pub fn is_lost(&self) -> bool {
        matches!(self.code(), Some(4 | 46 | 201 | 214 | 220 | 226 | 700 | 702 | 709..=721 | 802 | 999))
    }
}

/// What a code means, with what to do where that is known.
fn meaning(code: i32) -> &'static str {
    match code {
        1 => "an argument that it does not take",
        2 => "the memory of the device is used up",
        3 => "the driver is not initialised",
        4 => "the driver is shutting down",
        34 => "this libcuda is a stub, made for linking and not for running",
        46 => "the device is not available",
        100 => "no device",
        101 => "no such device",
        201 => "the context is gone",
        209 => "no kernel for this device",
        214 | 220 | 226 => "an error of the hardware that could not be corrected",
        218 => "the kernel could not be compiled",
        222 => "the kernel is newer than the driver",
        500 => "the driver lacks a function",
        700 => "a kernel touched memory that is not its own",
        701 => "a kernel needs more than the device has",
        702 => "a kernel took too long",
        715 => "a kernel has an instruction that the device does not know",
        716 => "a kernel used an address that is not aligned",
        719 => "a kernel failed",
        801 => "the device does not do this",
        802 => "the system is not ready",
        803 => "library and kernel module of the driver do not fit together",
        804 => "this library is for other hardware",
        999 => "unknown; after a suspend the kernel module is often to be loaded again",
        _ => "a code without further explanation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_context_is_told_from_what_does_not() {
        let of = |code| CudaError::Call { call: "cuStreamSynchronize", code };
        for code in [700, 702, 715, 716, 719, 999] {
            assert!(of(code).is_lost() && !of(code).is_exhausted(), "{code}");
        }
        for code in [1, 2, 34, 100, 218, 222, 701] {
            assert!(!of(code).is_lost(), "{code}");
        }
        assert!(of(2).is_exhausted() && CudaError::OverBudget { wanted: 1 }.is_exhausted());
    }

    #[test]
    fn a_missing_function_says_what_to_install() {
        let error = CudaError::Missing { function: "cuTensorMapEncodeTiled", since: (12, 0) }.to_string();
        assert!(error.contains("cuTensorMapEncodeTiled") && error.contains("CUDA 12.0"), "{error}");
    }
}

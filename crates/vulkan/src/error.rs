//! Errors of Vulkan calls.

use ash::vk;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VulkanError {
    /// The loader is not installed, or it cannot be opened.
    #[error("the Vulkan loader could not be opened: {0}")]
    NoLoader(String),
    /// The driver refused.
    #[error("{call} failed with {code} ({})", meaning(*code))]
    Call {
        /// The function.
        call: &'static str,
        /// The `VkResult`.
        code: i32,
    },
    /// The device lacks what was asked for.
    #[error("the device has no {0}")]
    Lacks(&'static str),
    /// More of something than the device takes.
    #[error("{wanted} {what} are more than the {have} that the device takes")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many were asked for.
        wanted: u32,
        /// How many there may be.
        have: u32,
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
}

impl VulkanError {
    /// The `VkResult` of the call that failed.
    pub fn code(&self) -> Option<i32> {
        match self {
            VulkanError::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the memory of the device or of the host, or the budget, is used up.
    pub fn is_exhausted(&self) -> bool {
        let full = [vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, vk::Result::ERROR_OUT_OF_HOST_MEMORY];
        let over = matches!(self, VulkanError::OverBudget { .. });
        over || self.code().is_some_and(|code| full.iter().any(|result| result.as_raw() == code))
    }

    /// Whether the device is gone; nothing on it can be used any more.
    pub fn is_lost(&self) -> bool {
        self.code() == Some(vk::Result::ERROR_DEVICE_LOST.as_raw())
    }
}

/// Gives a failed call its name.
pub(crate) trait Named<T> {
    fn named(self, call: &'static str) -> Result<T, VulkanError>;
}

impl<T> Named<T> for Result<T, vk::Result> {
    fn named(self, call: &'static str) -> Result<T, VulkanError> {
        self.map_err(|result| VulkanError::Call { call, code: result.as_raw() })
    }
}

fn meaning(code: i32) -> &'static str {
    match vk::Result::from_raw(code) {
        vk::Result::ERROR_OUT_OF_HOST_MEMORY => "the memory of the machine is used up",
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => "the memory of the device is used up",
        vk::Result::ERROR_INITIALIZATION_FAILED => "the driver could not start",
        vk::Result::ERROR_DEVICE_LOST => "the device is lost",
        vk::Result::ERROR_MEMORY_MAP_FAILED => "memory could not be mapped",
        vk::Result::ERROR_LAYER_NOT_PRESENT => "a layer is missing",
        vk::Result::ERROR_EXTENSION_NOT_PRESENT => "an extension is missing",
        vk::Result::ERROR_FEATURE_NOT_PRESENT => "a feature is missing",
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => "no driver was found that works here",
        vk::Result::ERROR_TOO_MANY_OBJECTS => "too many objects",
        vk::Result::TIMEOUT => "it took too long",
        _ => "a code without further explanation",
    }
}

//! Names that a pickle may mention.
//!
//! A pickle names functions and classes of Python that are called when Python loads it. Nothing is ever called here, so that no name is dangerous;
//! but a file that names `os.system` was made to do harm to whoever opens it elsewhere, and is refused with that name. What trainers write beside
//! weights (numbers of numpy, settings, callbacks, optimisers) is on the list, is carried as an opaque value, and ignored.

use crate::ElementType;

/// Single names: what tensors are made of, containers, and plain values.
const NAMES: &[(&str, &[&str])] = &[
    ("collections", &["OrderedDict", "defaultdict", "Counter", "deque"]),
    (
        "torch._utils",
        &[
            "_rebuild_tensor",
            "_rebuild_tensor_v2",
            "_rebuild_tensor_v3",
            "_rebuild_parameter",
            "_rebuild_parameter_with_state",
            "_rebuild_qtensor",
            "_rebuild_sparse_tensor",
            "_rebuild_meta_tensor_no_storage",
            "_rebuild_wrapper_subclass",
            "_rebuild_device_tensor_from_numpy",
        ],
    ),
    ("torch._tensor", &["_rebuild_from_type_v2"]),
    ("torch.nn.parameter", &["Parameter", "Buffer", "UninitializedParameter"]),
    ("torch.nn.modules.container", &["ParameterDict", "ParameterList"]),
    ("torch.serialization", &["_get_layout"]),
    ("torch.storage", &["UntypedStorage", "TypedStorage", "_load_from_bytes"]),
    ("torch.torch_version", &["TorchVersion"]),
    (
        "torch",
        &["Size", "device", "Tensor", "Generator", "UntypedStorage", "TypedStorage", "strided", "per_tensor_affine"],
    ),
    ("_codecs", &["encode"]),
    ("copyreg", &["_reconstructor"]),
    ("copy_reg", &["_reconstructor"]),
    ("argparse", &["Namespace"]),
    ("types", &["SimpleNamespace"]),
    ("datetime", &["datetime", "date", "time", "timedelta", "timezone"]),
    ("decimal", &["Decimal"]),
    ("fractions", &["Fraction"]),
    ("uuid", &["UUID"]),
    ("pathlib", &["Path", "PurePath", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"]),
    ("pathlib._local", &["Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"]),
    ("typing", &["Any", "Dict", "List", "Optional", "Tuple", "Union", "Callable", "Sequence", "Mapping"]),
    ("numpy", &["dtype", "ndarray", "bool_"]),
    ("numpy.random", &["__RandomState_ctor", "__bit_generator_ctor", "__generator_ctor"]),
    ("numpy.random._pickle", &["__randomstate_ctor", "__bit_generator_ctor", "__generator_ctor"]),
    ("__main__", &["Namespace"]),
];

/// Values of Python itself; those that open files or run code are not among them.
const BUILTINS: &[&str] = &[
    "bool",
    "bytearray",
    "bytes",
    "complex",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "long",
    "object",
    "range",
    "set",
    "slice",
    "str",
    "tuple",
    "unicode",
    "xrange",
    "NoneType",
];

/// Everything inside these: settings and states of trainers, which have neither weights nor anything that starts a program.
const PACKAGES: &[&str] = &[
    "accelerate.state",
    "accelerate.utils",
    "lightning.fabric.utilities",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.trainer",
    "lightning.pytorch.utilities",
    "lightning_fabric.utilities",
    "numpy._core.multiarray",
    "numpy._core.numeric",
    "numpy.core.multiarray",
    "numpy.core.numeric",
    "numpy.dtypes",
    "omegaconf",
    "pytorch_lightning.callbacks",
    "pytorch_lightning.trainer",
    "pytorch_lightning.utilities",
    "torch.optim",
    "torchmetrics",
    "transformers.trainer_utils",
    "transformers.training_args",
];

/// Whether a name is one that files of weights have.
pub(super) fn is_harmless(module: &str, name: &str) -> bool {
    let inside =
        |package: &&str| module.strip_prefix(*package).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let listed = |(of, names): &(&str, &[&str])| *of == module && names.contains(&name);
    // A dotted name reaches through a module into others: `numpy._core.multiarray` has `sys` inside.
    !name.contains('.')
        && (NAMES.iter().any(listed)
            || matches!(module, "builtins" | "__builtin__") && BUILTINS.contains(&name)
            || PACKAGES.iter().any(inside)
            || storage_type(module, name).is_some()
            || dtype(module, name).is_some()
            || module == "torch" && (name.starts_with("contiguous_format") || name == "preserve_format"))
}

/// The element type of a class of storages; none for one whose bytes have no type of their own.
pub(super) fn storage_type(module: &str, name: &str) -> Option<Option<ElementType>> {
    if !matches!(module, "torch" | "torch.cuda" | "torch.storage") {
        return None;
    }
    Some(match name {
        "DoubleStorage" => Some(ElementType::F64),
        "FloatStorage" => Some(ElementType::F32),
        "HalfStorage" => Some(ElementType::F16),
        "BFloat16Storage" => Some(ElementType::BF16),
        "LongStorage" => Some(ElementType::I64),
        "IntStorage" => Some(ElementType::I32),
        "ShortStorage" => Some(ElementType::I16),
        "CharStorage" | "QInt8Storage" => Some(ElementType::I8),
        "ByteStorage" | "QUInt8Storage" | "QUInt4x2Storage" | "QUInt2x4Storage" => Some(ElementType::U8),
        "QInt32Storage" => Some(ElementType::I32),
        "BoolStorage" => Some(ElementType::BOOL),
        "ComplexFloatStorage" => Some(ElementType::C64),
        "ComplexDoubleStorage" => Some(ElementType::C128),
        "Float8_e4m3fnStorage" => Some(ElementType::F8_E4M3),
        "Float8_e5m2Storage" => Some(ElementType::F8_E5M2),
        "UntypedStorage" => None,
        _ => return None,
    })
}

/// The element type that a name of torch stands for, if we know it.
pub(super) fn dtype(module: &str, name: &str) -> Option<Option<ElementType>> {
    if module != "torch" {
        return None;
    }
    Some(match name {
        "float64" | "double" => Some(ElementType::F64),
        "float32" | "float" => Some(ElementType::F32),
        "float16" | "half" => Some(ElementType::F16),
        "bfloat16" => Some(ElementType::BF16),
        "float8_e4m3fn" => Some(ElementType::F8_E4M3),
        "float8_e5m2" => Some(ElementType::F8_E5M2),
        "float8_e8m0fnu" => Some(ElementType::F8_E8M0),
        "int64" | "long" => Some(ElementType::I64),
        "int32" | "int" => Some(ElementType::I32),
        "int16" | "short" => Some(ElementType::I16),
        "int8" => Some(ElementType::I8),
        "uint64" => Some(ElementType::U64),
        "uint32" => Some(ElementType::U32),
        "uint16" => Some(ElementType::U16),
        "uint8" => Some(ElementType::U8),
        "bool" => Some(ElementType::BOOL),
        "complex64" => Some(ElementType::C64),
        "complex128" => Some(ElementType::C128),
        "complex32" | "qint8" | "quint8" | "qint32" | "quint4x2" | "quint2x4" => None,
        "float8_e4m3fnuz" | "float8_e5m2fnuz" | "float4_e2m1fn_x2" => None,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names by which pickles do harm; one on the list would hide it from the user.
    #[test]
    fn names_that_do_harm_are_not_on_the_list() {
        let harmful = [
            ("os", "system"),
            ("posix", "system"),
            ("nt", "system"),
            ("subprocess", "Popen"),
            ("builtins", "eval"),
            ("builtins", "exec"),
            ("builtins", "getattr"),
            ("builtins", "open"),
            ("__builtin__", "eval"),
            ("builtins", "__import__"),
            ("torch", "load"),
            ("torch.hub", "load"),
            ("torch.serialization", "load"),
            ("functools", "partial"),
            ("webbrowser", "open"),
            ("runpy", "_run_code"),
            ("omegaconfx", "anything"),
            ("omegaconf", "os.system"),
            ("numpy._core.multiarray", "sys.modules"),
            ("numpy.testing._private.utils", "runstring"),
            ("", ""),
        ];
        for (module, name) in harmful {
            assert!(!is_harmless(module, name), "{module}.{name}");
        }
        for (module, name) in [
            ("torch", "HalfStorage"),
            ("torch._utils", "_rebuild_tensor_v2"),
            ("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint"),
            ("numpy.core.multiarray", "scalar"),
            ("torch", "bfloat16"),
        ] {
            assert!(is_harmless(module, name), "{module}.{name}");
        }
    }
}

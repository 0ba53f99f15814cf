//! The registry of Windows and its list of devices, as far as they name Vulkan drivers. Read only, all sizes bounded; what is not
//! there, not allowed or too large is nothing.

use std::ptr;

/// The longest name of a value that Windows allows, with its end.
const NAME: usize = 16_384;
/// More than a list of manifests needs.
const DATA: usize = 1 << 16;
/// More values or keys than are looked at in one place.
const ENTRIES: u32 = 1024;
/// More units than the names of all devices of a class take.
const DEVICES: u32 = 1 << 20;

type Handle = *mut std::ffi::c_void;

const DONE: i32 = 0;
const MORE_DATA: i32 = 234;

#[link(name = "advapi32")]
unsafe extern "system" {
    fn RegOpenKeyExW(root: Handle, path: *const u16, options: u32, access: u32, key: *mut Handle) -> i32;
    fn RegEnumValueW(
        key: Handle,
        index: u32,
        name: *mut u16,
        name_length: *mut u32,
        reserved: *const u32,
        kind: *mut u32,
        data: *mut u8,
        data_length: *mut u32,
    ) -> i32;
    fn RegEnumKeyExW(
        key: Handle,
        index: u32,
        name: *mut u16,
        name_length: *mut u32,
        reserved: *const u32,
        class: *mut u16,
        class_length: *mut u32,
        written: *mut u64,
    ) -> i32;
    fn RegQueryValueExW(
        key: Handle,
        name: *const u16,
        reserved: *const u32,
        kind: *mut u32,
        data: *mut u8,
        data_length: *mut u32,
    ) -> i32;
    fn RegCloseKey(key: Handle) -> i32;
}

#[link(name = "cfgmgr32")]
unsafe extern "system" {
    fn CM_Get_Device_ID_List_SizeW(length: *mut u32, filter: *const u16, flags: u32) -> u32;
    fn CM_Get_Device_ID_ListW(filter: *const u16, buffer: *mut u16, length: u32, flags: u32) -> u32;
}

fn ended(text: &str) -> Vec<u16> {
    text.encode_utf16().filter(|unit| *unit != 0).chain([0]).collect()
}

/// An open key.
struct Key(Handle);

impl Key {
    /// Opens a key below HKEY_LOCAL_MACHINE.
    fn open(path: &str) -> Option<Key> {
        // The number of the root is a negative 32-bit one, whatever the width of a handle.
        let local_machine = 0x8000_0002_u32.cast_signed() as isize as Handle;
        const QUERY_VALUES_AND_LIST_KEYS: u32 = 0x1 | 0x8;
        let (path, mut key) = (ended(path), ptr::null_mut());
        // SAFETY: the path ends with a zero, and both live until the call returns.
        let code = unsafe { RegOpenKeyExW(local_machine, path.as_ptr(), 0, QUERY_VALUES_AND_LIST_KEYS, &mut key) };
        (code == DONE).then_some(Key(key))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the key is ours, open, and not used after this.
        unsafe { RegCloseKey(self.0) };
    }
}

/// The values of a key: the name of each, and its number if its data are four bytes.
pub(crate) fn numbers(path: &str) -> Vec<(Vec<u16>, Option<u32>)> {
    let Some(key) = Key::open(path) else { return Vec::new() };
    let (mut found, mut name) = (Vec::new(), vec![0_u16; NAME]);
    for index in 0..ENTRIES {
        let (mut length, mut data, mut data_length) = (NAME as u32, [0_u8; 4], 4);
        // SAFETY: the key is open, both buffers are as long as said, and all places live until the call returns.
        let code = unsafe {
            RegEnumValueW(
                key.0,
                index,
                name.as_mut_ptr(),
                &mut length,
                ptr::null(),
                ptr::null_mut(),
                data.as_mut_ptr(),
                &mut data_length,
            )
        };
        match code {
            DONE => {
                let number = (data_length == 4).then(|| u32::from_le_bytes(data));
                found.push((name.iter().take(length as usize).copied().collect(), number));
            }
            // Its data are no number.
            MORE_DATA => {}
            _ => break,
        }
    }
    found
}

/// The names of the keys below one.
pub(crate) fn keys(path: &str) -> Vec<Vec<u16>> {
    let Some(key) = Key::open(path) else { return Vec::new() };
    let (mut found, mut name) = (Vec::new(), [0_u16; 256]);
    for index in 0..ENTRIES {
        let mut length = name.len() as u32;
        let none = ptr::null_mut();
        // SAFETY: the key is open, the buffer is as long as said (no name of a key is longer), and both live until the call returns.
        let code = unsafe {
            RegEnumKeyExW(
                key.0,
                index,
                name.as_mut_ptr(),
                &mut length,
                ptr::null(),
                none,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        if code != DONE {
            break;
        }
        found.push(name.iter().take(length as usize).copied().collect());
    }
    found
}

/// A value's kind and data.
pub(crate) fn value(path: &str, name: &str) -> Option<(u32, Vec<u8>)> {
    let key = Key::open(path)?;
    let (name, mut kind, mut data, mut length) = (ended(name), 0, vec![0_u8; DATA], DATA as u32);
    // SAFETY: the key is open, the name ends with a zero, the buffer is as long as said, and all live until the call returns.
    let code =
        unsafe { RegQueryValueExW(key.0, name.as_ptr(), ptr::null(), &mut kind, data.as_mut_ptr(), &mut length) };
    data.truncate(length as usize);
    (code == DONE).then_some((kind, data))
}

/// The names of the devices of a class that are plugged in, each zero-terminated. Keys of devices that were taken out stay in
/// the registry.
pub(crate) fn present_devices(class: &str) -> Vec<u16> {
    const OF_CLASS_AND_PRESENT: u32 = 0x200 | 0x100;
    let (class, mut length) = (ended(class), 0_u32);
    // SAFETY: the class ends with a zero, and both live until the call returns.
    let code = unsafe { CM_Get_Device_ID_List_SizeW(&mut length, class.as_ptr(), OF_CLASS_AND_PRESENT) };
    if code != 0 || length > DEVICES {
        return Vec::new();
    }
    let mut names = vec![0_u16; length as usize];
    if names.is_empty() {
        return names;
    }
    // SAFETY: the buffer is as long as said, the class ends with a zero, and both live until the call returns.
    let code = unsafe { CM_Get_Device_ID_ListW(class.as_ptr(), names.as_mut_ptr(), length, OF_CLASS_AND_PRESENT) };
    if code == 0 { names } else { Vec::new() }
}

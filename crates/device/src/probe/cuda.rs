//! CUDA, in the child.

use serde::{Deserialize, Serialize};

use super::{TargetDevice, clean_label, kernel};
use crate::TrialReport;
use crate::sys::cuda::{Cuda, NAME, Refused};

/// A device as the child reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CudaRecord {
    pub index: usize,
    pub label: String,
    pub uuid: Option<[u8; 16]>,
    pub pci: Option<String>,
    pub memory: u64,
    pub integrated: bool,
    /// Major and minor number of the architecture.
    pub capability: (i32, i32),
    pub warp: i32,
    /// The newest CUDA that the driver knows.
    pub version: i32,
}

/// What the driver may report in all; more is a driver that lies.
const MAX_REPORTED: i32 = 1024;

// Numbers of attributes in the driver's interface.
const WARP_SIZE: i32 = 10;
const INTEGRATED: i32 = 18;
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;

/// Lists the devices.
pub(crate) fn enumerate(report: &mut TrialReport) -> Result<(), String> {
    let cuda = open(report)?;
    report.stage("enumerate");
    let count = cuda.count().map_err(words)?;
    report.stage("get-properties");
    for index in 0..count.min(MAX_REPORTED) {
        let seen = describe(&cuda, index).map_err(words)?;
        report.record(&seen);
    }
    report.leave_at_once();
    Ok(())
}

/// Creates the context, allocates, runs a kernel and compares the result.
pub(crate) fn try_device(report: &mut TrialReport) -> Result<(), String> {
    let target = TargetDevice::from_argument(report.argument())?;
    let (cuda, device) = find(report, &target)?;
    report.stage("create-device");
    cuda.enter(device).map_err(words)?;
    report.stage("allocate");
    let input = kernel::input();
    let source = cuda.upload(&input).map_err(words)?;
    // What the kernel does not write must not look right by chance.
    let result = cuda.upload(&vec![0xA5A5_A5A5; input.len()]).map_err(words)?;
    report.stage("build-kernel");
    let built = cuda.build(kernel::PTX, c"impasto_trial").map_err(words)?;
    report.stage("dispatch");
    cuda.run(built, [source, result], kernel::COUNT / kernel::GROUP, kernel::GROUP).map_err(words)?;
    report.stage("compare");
    let mut output = vec![0; input.len()];
    cuda.download(result, &mut output).map_err(words)?;
    report.leave_at_once();
    kernel::compare(&input, &output)
}

/// Reports the free memory.
pub(crate) fn memory(report: &mut TrialReport) -> Result<(), String> {
    let target = TargetDevice::from_argument(report.argument())?;
    let (cuda, device) = find(report, &target)?;
    report.stage("create-device");
    cuda.enter(device).map_err(words)?;
    report.record(&cuda.free_memory().map_err(words)?);
    report.leave_at_once();
    Ok(())
}

fn open(report: &mut TrialReport) -> Result<Cuda, String> {
    report.stage("load");
    let cuda = match Cuda::open() {
        Ok(cuda) => cuda,
        Err(error) => return Err(report.could_not_load(format!("{NAME} could not be opened: {error}"))),
    };
    report.stage("create-instance");
    cuda.init().map_err(words)?;
    Ok(cuda)
}

fn find(report: &mut TrialReport, target: &TargetDevice) -> Result<(Cuda, i32), String> {
    let cuda = open(report)?;
    report.stage("enumerate");
    let count = cuda.count().map_err(words)?.min(MAX_REPORTED);
    report.stage("get-properties");
    let is_it = |&index: &i32| describe(&cuda, index).is_ok_and(|d| d.label == target.label && d.uuid == target.uuid);
    let at_its_place = i32::try_from(target.index).ok().filter(|index| *index < count).filter(is_it);
    let index = at_its_place.or_else(|| (0..count).find(is_it));
    let index = index.ok_or("the device that was seen a moment ago is not there any more")?;
    let device = cuda.device(index).map_err(words)?;
    Ok((cuda, device))
}

fn describe(cuda: &Cuda, index: i32) -> Result<CudaRecord, Refused> {
    let device = cuda.device(index)?;
    Ok(CudaRecord {
        index: usize::try_from(index).unwrap_or(0),
        label: clean_label(&cuda.label(device)?),
        uuid: cuda.uuid(device).ok().filter(|uuid| *uuid != [0; 16]),
        pci: cuda.pci(device).ok(),
        memory: cuda.total_memory(device)?,
        integrated: cuda.attribute(device, INTEGRATED).unwrap_or(0) != 0,
        capability: (cuda.attribute(device, CAPABILITY_MAJOR)?, cuda.attribute(device, CAPABILITY_MINOR)?),
        warp: cuda.attribute(device, WARP_SIZE).unwrap_or(0),
        version: cuda.version().unwrap_or(0),
    })
}

/// Why a driver refused, with what to do where that is known.
fn words(refused: Refused) -> String {
    let Refused { call, code } = refused;
    format!("{call} failed with {code} ({})", meaning(code))
}

fn meaning(code: i32) -> &'static str {
    match code {
        2 => "the memory of the device is used up",
        3 => "the driver is not initialised",
        4 => "the driver is shutting down",
        34 => "this libcuda is a stub, made for linking and not for running",
        46 => "the device is not available",
        100 => "no device",
        101 => "no such device",
        209 => "no kernel for this device",
        218 => "the kernel could not be compiled",
        222 => "the kernel is newer than the driver",
        500 => "the driver lacks a function",
        700 => "a kernel touched memory that is not its own",
        719 => "a kernel failed",
        802 => "the system is not ready",
        803 => "library and kernel module of the driver do not fit together",
        804 => "this library is for other hardware",
        999 => "unknown; after a suspend the kernel module is often to be loaded again",
        _ => "a code without further explanation",
    }
}

//! CUDA, in the child.

use impasto_cuda::{CudaBuffer, CudaDescription, CudaDevice, CudaDriver, CudaError, CudaLaunch, CudaLocation};
use serde::{Deserialize, Serialize};

use super::{TargetDevice, clean_label, kernel};
use crate::TrialReport;

/// A device as the child reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CudaRecord {
    pub index: usize,
    pub description: CudaDescription,
}

/// What the driver may report in all; more is a driver that lies.
const MAX_REPORTED: usize = 1024;

/// Lists the devices.
pub(crate) fn enumerate(report: &mut TrialReport) -> Result<(), String> {
    let cuda = open(report)?;
    report.stage("enumerate");
    let count = cuda.count().map_err(words)?;
    report.stage("get-properties");
    for index in 0..count.min(MAX_REPORTED) {
        let description = cuda.describe(index).map_err(words)?;
        report.record(&CudaRecord { index, description });
    }
    report.leave_at_once();
    Ok(())
}

/// Creates the context, allocates, runs a kernel and compares the result.
pub(crate) fn try_device(report: &mut TrialReport) -> Result<(), String> {
    let target = TargetDevice::from_argument(report.argument())?;
    let (cuda, index) = find(report, &target)?;
    let compared = run_kernel(report, &cuda, index).map_err(words)?;
    report.leave_at_once();
    compared
}

/// Reports the free memory.
pub(crate) fn memory(report: &mut TrialReport) -> Result<(), String> {
    ask(report, CudaDevice::free_memory)
}

/// Reports the memory that a context takes.
pub(crate) fn context(report: &mut TrialReport) -> Result<(), String> {
    ask(report, CudaDevice::context_memory)
}

/// Reports a number of bytes of the device, open.
fn ask(report: &mut TrialReport, bytes: fn(&CudaDevice) -> Result<u64, CudaError>) -> Result<(), String> {
    let target = TargetDevice::from_argument(report.argument())?;
    let (cuda, index) = find(report, &target)?;
    report.stage("create-device");
    let device = CudaDevice::open(&cuda, index).map_err(words)?;
    report.record(&bytes(&device).map_err(words)?);
    report.leave_at_once();
    // A driver's farewell takes time that nobody needs.
    std::mem::forget(device);
    Ok(())
}

fn open(report: &mut TrialReport) -> Result<CudaDriver, String> {
    report.stage("load");
    let cuda = match CudaDriver::open() {
        Ok(cuda) => cuda,
        Err(error) => return Err(report.could_not_load(error.to_string())),
    };
    report.stage("create-instance");
    cuda.init().map_err(words)?;
    Ok(cuda)
}

fn find(report: &mut TrialReport, target: &TargetDevice) -> Result<(CudaDriver, usize), String> {
    let cuda = open(report)?;
    report.stage("enumerate");
    let count = cuda.count().map_err(words)?.min(MAX_REPORTED);
    report.stage("get-properties");
    let is_it = |&index: &usize| {
        cuda.describe(index).is_ok_and(|d| clean_label(&d.label) == target.label && d.uuid == target.uuid)
    };
    let at_its_place = Some(target.index).filter(|index| *index < count).filter(is_it);
    let index = at_its_place.or_else(|| (0..count).find(is_it));
    let index = index.ok_or("the device that was seen a moment ago is not there any more")?;
    Ok((cuda, index))
}

fn run_kernel(report: &mut TrialReport, cuda: &CudaDriver, index: usize) -> Result<Result<(), String>, CudaError> {
    cuda.check()?;
    report.stage("create-device");
    let device = CudaDevice::open(cuda, index)?;
    report.stage("allocate");
    let input = kernel::input();
    let filled = |numbers: &[u32]| -> Result<CudaBuffer, CudaError> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let buffer = device.allocate(bytes.len() as u64, CudaLocation::Device)?;
        buffer.write_at(0, &bytes)?;
        Ok(buffer)
    };
    let source = filled(&input)?;
    // What the kernel does not write must not look right by chance.
    let result = filled(&vec![0xA5A5_A5A5; input.len()])?;
    report.stage("build-kernel");
    let function = device.load(kernel::PTX.to_bytes_with_nul())?.function("impasto_trial", 0)?;
    let stream = device.stream()?;
    let launch = CudaLaunch {
        grid: [kernel::COUNT / kernel::GROUP, 1, 1],
        block: [kernel::GROUP, 1, 1],
        params: [&source, &result].map(|buffer| buffer.address().to_ne_bytes().to_vec()).into(),
        ..CudaLaunch::default()
    };
    report.stage("dispatch");
    #[allow(unsafe_code)]
    // SAFETY: the kernel is ours, with two buffers, and each thread touches its own number in them.
    unsafe { stream.launch(&function, &launch) }?;
    stream.synchronise()?;
    report.stage("compare");
    let mut bytes = vec![0; 4 * input.len()];
    result.read_at(0, &mut bytes)?;
    let output: Vec<u32> =
        bytes.chunks_exact(4).map(|four| u32::from_ne_bytes([four[0], four[1], four[2], four[3]])).collect();
    std::mem::forget((source, result, function, stream, device));
    Ok(kernel::compare(&input, &output))
}

/// Why a driver refused.
fn words(error: CudaError) -> String {
    error.to_string()
}

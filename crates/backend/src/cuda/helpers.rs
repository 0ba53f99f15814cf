//! Processes that compile for this one. The driver compiles one kernel at a time in a process, so some more of them do it, each with the device open.
//!
//! A helper is this program, started again. It reads the text of a kernel from its channel and writes the machine code back, until the channel ends. One
//! that cannot be started, dies or is silent is done without: its kernel is compiled in this process.

use std::io::{self, Read, Write};
use std::time::Duration;

use impasto_cuda::{CudaDevice, CudaError};
use impasto_device::{Channel, Companion, DeviceInfo, Trial, TrialOptions, TrialReport};

/// A process that compiles kernels for this one, among the trials that a program names in its call of [`hook`](impasto_device::hook).
pub const TRIAL: Trial = Trial { name: "cuda-compile", run: help };

/// How long one kernel may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The most bytes of one message; more is nonsense.
const LONGEST: usize = 1 << 30;

const DONE: u8 = 0;
const REFUSED: u8 = 1;

/// A process that compiles.
pub(super) struct HelperProcess {
    channel: Channel,
    _process: Companion,
}

impl HelperProcess {
    /// Starts one for a device. It opens the device with its first kernel.
    pub(super) fn start(device: &DeviceInfo) -> Option<HelperProcess> {
        let argument = serde_json::to_string(device).ok()?;
        let options = TrialOptions { argument, env: device.environment(), nested: true, ..TrialOptions::default() };
        let (process, link) = Companion::start(TRIAL.name, &options).ok()?;
        link.channel.set_read_timeout(Some(PATIENCE)).ok()?;
        link.channel.set_write_timeout(Some(PATIENCE)).ok()?;
        Some(HelperProcess { channel: link.channel, _process: process })
    }

    /// The machine code of a kernel; none if the helper is of no use any more, or refused it.
    pub(super) fn compile(&mut self, ptx: &str) -> io::Result<Vec<u8>> {
        send(&mut self.channel, DONE, ptx.as_bytes())?;
        match receive(&mut self.channel)? {
            (DONE, cubin) => Ok(cubin),
            (_, why) => Err(io::Error::other(String::from_utf8_lossy(&why).into_owned())),
        }
    }
}

fn send(channel: &mut Channel, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let mut head = [0; 9];
    head[0] = kind;
    head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    channel.write_all(&head)?;
    channel.write_all(bytes)
}

fn receive(channel: &mut Channel) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 9];
    channel.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = usize::try_from(u64::from_le_bytes(length)).ok().filter(|length| *length <= LONGEST);
    let mut bytes = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
    channel.read_exact(&mut bytes)?;
    Ok((kind, bytes))
}

/// The helper's side.
fn help(report: &mut TrialReport) -> Result<(), String> {
    let mut channel = report.take_link().ok_or("it was started without a link to its parent")?.channel;
    report.leave_at_once();
    let device: DeviceInfo = serde_json::from_str(report.argument()).map_err(|e| e.to_string())?;
    report.stage("create-device");
    let opened = open(&device);
    report.stage("build-kernel");
    // The end of the channel is the end of the work.
    while let Ok((_, ptx)) = receive(&mut channel) {
        let ptx = String::from_utf8_lossy(&ptx);
        let made = opened.as_ref().map_err(CudaError::clone).and_then(|device| device.link(&ptx));
        let sent = match made {
            Ok(linked) => send(&mut channel, DONE, &linked.cubin),
            Err(error) => send(&mut channel, REFUSED, error.to_string().as_bytes()),
        };
        if sent.is_err() {
            break;
        }
    }
    // A driver's farewell takes time that nobody needs.
    std::mem::forget(opened);
    Ok(())
}

fn open(device: &DeviceInfo) -> Result<CudaDevice, CudaError> {
    let (driver, found) = super::find(device)?;
    let found = found.ok_or(CudaError::Wrong("the device that was seen a moment ago is not there any more"))?;
    CudaDevice::open(&driver, found.index)
}

//! What a front end - QEMU - asks of the disk: the vhost-user protocol.

use crate::config::{MAX_QUEUES, bit, features, protocol_features};
use crate::device::Device;
use crate::inflight::Inflight;
use crate::memory::Memory;
use crate::vring::Vring;
use std::fs::File;
use std::sync::Arc;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

/// Bytes of configuration that a front end may read: what is behind the disk's own is zero.
const CONFIG_BYTES: usize = 256;

/// A request that is for other devices, or not offered.
const NOT_OFFERED: Error = Error::InvalidOperation("this disk does not offer it");

impl Device {
    fn named(&mut self, index: u32) -> Result<&mut Vring> {
        let index = u16::try_from(index).ok().filter(|index| *index < MAX_QUEUES);
        self.vring(index.ok_or(Error::InvalidParam)?).ok_or(Error::BackendInternalError)
    }
}

fn failed(e: std::io::Error) -> Error {
    Error::ReqHandlerError(e)
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(features(self.image.read_only()))
    }

    fn set_features(&mut self, accepted: u64) -> Result<()> {
        if accepted & !features(self.image.read_only()) != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.session.features = accepted;
        self.session.event_index = accepted & bit(VIRTIO_RING_F_EVENT_IDX) != 0;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        table: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        self.session.memory = Some(Arc::new(Memory::new(table, files)?));
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let vring = self.named(index)?;
        if vring.running || !vring.set_size(num) {
            return Err(Error::InvalidParam);
        }
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let memory = self.session.memory.as_ref().ok_or(Error::InvalidParam)?;
        let [table, available, used] =
            [descriptor, available, used].map(|address| memory.guest_address(address));
        let (table, available, used) = (table?, available?, used?);
        let vring = self.named(index)?;
        if vring.running || !vring.set_addresses(table, available, used) {
            return Err(Error::InvalidParam);
        }
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        let vring = self.named(index)?;
        if vring.running {
            return Err(Error::InvalidParam);
        }
        vring.set_next_available(base);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.named(index)?;
        let next = self.stop(u16::try_from(index).map_err(|_| Error::InvalidParam)?).map_err(failed)?;
        Ok(VhostUserVringState::new(index, u32::from(next)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        // Without a descriptor it would have to be polled.
        let fd = fd.ok_or(Error::InvalidParam)?;
        let polled = self.session.features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0;
        let vring = self.named(u32::from(index))?;
        if vring.running {
            return Err(Error::InvalidParam);
        }
        vring.kick = Some(fd);
        vring.enabled |= polled;
        self.start(u16::from(index)).map_err(failed)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.named(u32::from(index))?.call = fd;
        self.interrupt_again(u16::from(index));
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        self.named(u32::from(index)).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(protocol_features())
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(MAX_QUEUES))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.named(index)?.enabled = enable;
        // 16 bits, for there is such a queue. A queue that is disabled is stopped by what follows.
        if enable { self.start(u16::try_from(index).unwrap_or_default()).map_err(failed) } else { Ok(()) }
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let mut config = self.config();
        config.resize(CONFIG_BYTES, 0);
        let (from, len) = (offset as usize, size as usize);
        let part = from.checked_add(len).and_then(|to| config.get(from..to));
        part.map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn set_gpu_socket(&mut self, _backend: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        if wanted.num_queues == 0 || wanted.num_queues > MAX_QUEUES || wanted.queue_size == 0 {
            return Err(Error::InvalidParam);
        }
        Inflight::create(wanted.num_queues, wanted.queue_size).map_err(failed)
    }

    fn set_inflight_fd(&mut self, told: &VhostUserInflight, file: File) -> Result<()> {
        if self.session.vrings.iter().any(|vring| vring.running) {
            return Err(Error::InvalidParam);
        }
        self.session.inflight = Some(Inflight::attach(told, file).map_err(failed)?);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Err(NOT_OFFERED)
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        Err(NOT_OFFERED)
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}

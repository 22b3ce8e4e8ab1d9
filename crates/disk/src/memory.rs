//! A guest's memory, as its front end shares it.

use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

/// Where a region is in the front end's own address space, by which it names rings.
#[derive(Debug)]
struct Region {
    user: u64,
    size: u64,
    guest: u64,
}

/// A guest's memory. Mapped as long as this lives: whatever the kernel still works at keeps a reference.
#[derive(Debug)]
pub(crate) struct Memory {
    map: GuestMemoryMmap,
    regions: Vec<Region>,
}

impl Memory {
    /// Maps the regions of a front end.
    ///
    /// # Errors
    /// If a region cannot be mapped, reaches beyond its file, or overlaps another.
    pub(crate) fn new(table: &[VhostUserMemoryRegion], files: Vec<std::fs::File>) -> Result<Memory> {
        let refused = |e: String| Error::ReqHandlerError(std::io::Error::other(format!("memory: {e}")));
        let mut mapped = Vec::new();
        let mut regions = Vec::new();
        for (region, file) in table.iter().zip(files) {
            let guest = region.guest_phys_addr;
            let mapping = region.mmap_region(file)?;
            let mapping = GuestRegionMmap::new(mapping, GuestAddress(guest));
            mapped.push(mapping.ok_or_else(|| refused(format!("region at {guest:#x} is too high")))?);
            regions.push(Region { user: region.user_addr, size: region.memory_size, guest });
        }
        let map = GuestMemoryMmap::from_regions(mapped).map_err(|e| refused(e.to_string()))?;
        Ok(Memory { map, regions })
    }

    /// What is at the guest's own addresses.
    pub(crate) fn map(&self) -> &GuestMemoryMmap {
        &self.map
    }

    /// The guest's address of what is at an address of the front end.
    ///
    /// # Errors
    /// If no region is there.
    pub(crate) fn guest_address(&self, user: u64) -> Result<GuestAddress> {
        let inside = |region: &Region| {
            let offset = user.checked_sub(region.user).filter(|offset| *offset < region.size)?;
            region.guest.checked_add(offset).map(GuestAddress)
        };
        self.regions.iter().find_map(inside).ok_or(Error::InvalidParam)
    }
}

//! Paths of I/O of the VMs that run.

use super::Finding;
use frontdesk_qemu::{DiskServer, Unheard};
use std::collections::BTreeMap;

/// One for each path of which nothing is heard, or one that there is none.
pub(super) fn paths() -> Vec<Finding> {
    findings(frontdesk_qemu::unheard())
}

fn findings(unheard: BTreeMap<Unheard, Vec<String>>) -> Vec<Finding> {
    const AREA: &str = "paths of I/O";
    if unheard.is_empty() {
        return vec![Finding::ok(AREA, "no running VM has one of which nothing is heard")];
    }
    let finding = |(path, vms): (Unheard, Vec<String>)| {
        Finding::limited(AREA, format!("{}: {}", vms.join(", "), path.what()), path.instead())
    };
    unheard.into_iter().map(finding).collect()
}

/// Who serves the disks of the VMs that run.
pub(super) fn disks() -> Finding {
    disks_of(frontdesk_qemu::disk_servers())
}

fn disks_of(vms: BTreeMap<DiskServer, Vec<String>>) -> Finding {
    let part = |(server, vms): (DiskServer, Vec<String>)| match server {
        DiskServer::Other => format!(
            "{}: vhost-user-blk; if frontdesk disk serves it, what a person waits for comes first (frontdesk status tells)",
            vms.join(", ")
        ),
        DiskServer::Qemu => format!(
            "{}: QEMU itself, so that reads may boost, but nobody's come first at the disk (docs/disk.md)",
            vms.join(", ")
        ),
    };
    let parts: Vec<String> = vms.into_iter().map(part).collect();
    let found = if parts.is_empty() { "no running VM has one".to_owned() } else { parts.join("; ") };
    Finding::ok("disks of VMs", found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn who_serves_disks_is_told() {
        assert!(disks_of(BTreeMap::new()).found.contains("no running VM"));
        let servers =
            [(DiskServer::Qemu, vec!["bob".to_owned()]), (DiskServer::Other, vec!["alice".to_owned()])];
        let told = disks_of(servers.into());
        assert!(told.found.contains("bob: QEMU itself") && told.found.contains("alice: vhost-user-blk"));
    }

    #[test]
    fn each_path_is_told_with_its_vms() {
        assert_eq!(findings(BTreeMap::new())[0].status, Status::Ok);
        let vms = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let unheard = [(Unheard::Macvtap, vms(&["alice", "bob"])), (Unheard::VhostScsi, vms(&["bob"]))];
        let told = findings(unheard.into());
        assert_eq!(told.len(), 2);
        assert_eq!(told[0].status, Status::Limited);
        assert_eq!(told[0].found, "alice, bob: packets that come by macvtap are not heard");
        assert!(told[1].found.starts_with("bob: reads"), "{:?}", told[1]);
        assert!(
            told[1].advice.as_deref().is_some_and(|advice| advice.contains("virtio-blk")),
            "{:?}",
            told[1]
        );
    }
}

//! Paths of I/O of the VMs that run.

use super::Finding;
use frontdesk_qemu::Unheard;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

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

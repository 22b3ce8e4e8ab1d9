//! The CPUs of the machine.

use std::{fs, io};

/// The numbers of the CPUs of the machine that are in use.
///
/// # Errors
/// `/sys` cannot be read.
pub fn online_cpus() -> io::Result<Vec<u16>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    Ok(cpu_list(&text))
}

/// A list like `0-3,8`.
fn cpu_list(text: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_understood() {
        assert_eq!(cpu_list("0-1\n"), [0, 1]);
        assert_eq!(cpu_list("0,2-4,1023"), [0, 2, 3, 4, 1023]);
        assert_eq!(cpu_list(""), [0u16; 0]);
    }
}

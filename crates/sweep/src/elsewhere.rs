//! Runs of a sweep in a process that has none of its files, perhaps on another machine.

use crate::design::Sweep;
use crate::error::SweepError;
use crate::made::rows;
use crate::row::Layout;
use crate::table::{Row, write};
use cbor4ii::serde::{from_slice, to_vec};
use tempfile::TempDir;

/// Version, commit and sources that this is built of. Rows hold the first two and follow from the sources, so
/// that whoever makes some has to be built of the same. The commit is empty in a build without git.
pub const BUILT: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("FRONTDESK_COMMIT"),
    ") sources ",
    env!("FRONTDESK_SOURCES")
);

/// A sweep that came as bytes.
#[derive(Debug)]
pub struct Elsewhere {
    sweep: Sweep,
    layout: Layout,
    /// The files that its scenario names. Gone with this.
    _files: TempDir,
}

impl Elsewhere {
    /// A sweep as bytes, for [`Elsewhere::unpack`] of the same build.
    ///
    /// # Errors
    /// Its file has what cannot be written so.
    pub fn pack(sweep: &Sweep) -> Result<Vec<u8>, SweepError> {
        let failed =
            |error| SweepError::Ray { message: format!("{} cannot be sent: {error}", sweep.path.display()) };
        to_vec(Vec::new(), sweep).map_err(failed)
    }

    /// The sweep that was packed, which `built` made, as its [`BUILT`] says.
    ///
    /// # Errors
    /// It is of another build, or the files that its scenario names cannot be written to a temporary folder.
    pub fn unpack(built: &str, bytes: &[u8]) -> Result<Elsewhere, SweepError> {
        if built != BUILT {
            let message = format!(
                "the Python package is of frontdesk {BUILT}, and the command is {built}: install the package \
                 again from the sources of the command, on each node"
            );
            return Err(SweepError::Ray { message });
        }
        let mut sweep: Sweep = from_slice(bytes).map_err(|error| SweepError::Ray {
            message: format!("what came is no sweep, or not a whole one: {error}"),
        })?;
        let files = tempfile::tempdir().map_err(SweepError::write(&std::env::temp_dir()))?;
        for (number, (path, source)) in sweep.files.iter().enumerate() {
            let here = files.path().join(number.to_string());
            let text = sweep.sources.get(source).map_or("", String::as_str);
            std::fs::write(&here, text).map_err(SweepError::write(&here))?;
            sweep.placed.insert(path.clone(), here);
        }
        let layout = Layout::of(&sweep);
        Ok(Elsewhere { sweep, layout, _files: files })
    }

    /// Makes runs and gives their rows, as a Parquet file. Numbers of no run have none.
    ///
    /// # Errors
    /// The rows cannot be written as Parquet.
    pub fn rows(&self, numbers: &[usize]) -> Result<Vec<u8>, SweepError> {
        let rows: Vec<Row> =
            numbers.iter().flat_map(|number| rows(&self.sweep, &self.layout, *number)).collect();
        let mut bytes = Vec::new();
        write(&self.layout.columns, &rows.iter().collect::<Vec<_>>(), &mut bytes)
            .map_err(|error| SweepError::Ray { message: format!("rows cannot be sent: {error}") })?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Cell, read};
    use std::path::Path;

    /// A sweep over two sets of tasks of rt-app, of which one is wrong.
    fn load(folder: &Path) -> Sweep {
        let scenario = r#"
            name = "tasks"
            description = "Tasks of rt-app."
            repeats = 1
            duration = "1s"
            warmup = "0s"
            think_scale = 1.0
            guest = { kernel = "6.1-cloud" }
            host = { vm_cpus = [0], client_cpus = [1] }
            vm = [{ name = "vm", workloads = [{ name = "tasks", run = "rt-app", file = "good.json" }] }]
            arms.stock = {}
        "#;
        std::fs::write(folder.join("scenario.toml"), scenario).unwrap();
        let tasks = r#"{ "tasks": { "one": { "loop": -1, "run": 1000, "sleep": 1000 } } }"#;
        std::fs::write(folder.join("good.json"), tasks).unwrap();
        std::fs::write(folder.join("wrong.json"), r#"{ "tasks": { "one": { "fly": 1 } } }"#).unwrap();
        let text =
            "scenario = \"scenario.toml\"\ngrid.\"vm.0.workloads.0.file\" = [\"good.json\", \"wrong.json\"]";
        std::fs::write(folder.join("sweep.toml"), text).unwrap();
        Sweep::load(&folder.join("sweep.toml")).unwrap()
    }

    #[test]
    fn runs_without_the_files_give_the_same_rows_errors_too() {
        let folder = tempfile::tempdir().unwrap();
        let sweep = load(folder.path());
        let layout = Layout::of(&sweep);
        let here: Vec<Row> = (0..2).flat_map(|number| rows(&sweep, &layout, number)).collect();
        let packed = Elsewhere::pack(&sweep).unwrap();
        drop(folder);
        let there = Elsewhere::unpack(BUILT, &packed).unwrap().rows(&[0, 1]).unwrap();
        let there = read(&layout.columns, bytes::Bytes::from(there)).unwrap();
        assert_eq!(here, there);
        let error = layout.column("error").unwrap();
        assert_eq!(here[0][error], Cell::Absent);
        let told = here.last().unwrap()[error].text().unwrap();
        assert!(told.contains("wrong.json: tasks.one.fly"), "{told}");
    }

    #[test]
    fn a_sweep_of_another_build_or_cut_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let packed = Elsewhere::pack(&load(folder.path())).unwrap();
        let error = Elsewhere::unpack("0.0.1 abc", &packed).unwrap_err().to_string();
        assert!(error.contains("0.0.1 abc") && error.contains("install the package again"), "{error}");
        // Of the same commit, with something changed since.
        let changed = BUILT.replace("sources ", "sources 0");
        assert!(Elsewhere::unpack(&changed, &packed).unwrap_err().to_string().contains(&changed));
        for length in 0..packed.len() {
            assert!(Elsewhere::unpack(BUILT, &packed[..length]).is_err(), "{length} bytes");
        }
    }
}

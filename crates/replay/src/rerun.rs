//! An engine that is told again what a recording says.

use crate::ReplayError;
use frontdesk_engine::{Action, Config, Engine, Event, Time};
use frontdesk_record::Record;

/// Deadlines that an engine is given one by one between two events; if it asks for more, as that of a forged
/// recording may, it is told the time once.
const MAX_DEADLINES: usize = 10_000;

/// An engine that is told again what a recording says.
#[derive(Clone, Debug, Default)]
pub struct Rerun {
    engine: Option<Engine>,
    /// In place of the recorded parameters.
    other: Option<Config>,
}

impl Rerun {
    /// An engine with the recorded parameters.
    #[must_use]
    pub fn new() -> Rerun {
        Rerun::default()
    }

    /// An engine with other parameters.
    #[must_use]
    pub fn with(other: Config) -> Rerun {
        Rerun { engine: None, other: Some(other) }
    }

    /// Tells the engine what a record says: parameters, a state, an event, or the time.
    ///
    /// # Errors
    /// The engine refuses the parameters, or the recording has not begun with any.
    pub fn tell(&mut self, record: &Record) -> Result<(), ReplayError> {
        match record {
            Record::Config(config) => {
                let config = self.parameters(config);
                match &mut self.engine {
                    Some(engine) => engine.configure(config)?,
                    None => self.engine = Some(Engine::new(config)?),
                }
            }
            Record::State(state) => {
                let mut engine = state.as_ref().clone();
                if self.other.is_some() {
                    engine.configure(self.parameters(engine.config()))?;
                }
                self.engine = Some(engine);
            }
            Record::Policy { vm, policy } => self.begun()?.configure_vm(*vm, *policy)?,
            Record::Event(event) => self.begun()?.on_event(event),
            Record::Deadline(at) => self.begun()?.on_deadline(*at),
            Record::Vm { .. }
            | Record::Applied { .. }
            | Record::Discarded(_)
            | Record::Dispatcher { .. }
            | Record::Decision { .. }
            | Record::DecisionsLost { .. }
            | Record::Target { .. }
            | Record::End => {}
        }
        Ok(())
    }

    /// Tells the engine an event.
    pub(crate) fn tell_event(&mut self, event: &Event) -> Result<(), ReplayError> {
        self.begun()?.on_event(event);
        Ok(())
    }

    /// Lets the time pass up to `to`, and tells the engine each time it wants to be told.
    pub(crate) fn pass(&mut self, to: Time) {
        let Some(engine) = &mut self.engine else { return };
        for _ in 0..MAX_DEADLINES {
            let Some(next) = engine.next_deadline().filter(|next| *next <= to) else { return };
            engine.on_deadline(next);
        }
        engine.on_deadline(to);
    }

    /// The engine; `None` before the recording has begun.
    #[must_use]
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    /// The engine's next decision.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.engine.as_mut()?.poll_action()
    }

    fn begun(&mut self) -> Result<&mut Engine, ReplayError> {
        self.engine.as_mut().ok_or(ReplayError::NoBeginning)
    }

    fn parameters(&self, recorded: &Config) -> Config {
        self.other.as_ref().unwrap_or(recorded).clone()
    }
}

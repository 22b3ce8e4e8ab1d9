//! A client of a VM, whatever it does.

use crate::desktop::DesktopClient;
use crate::edit::EditClient;
use crate::load::{LoadClient, LoadError, Sample};

/// A client of whatever kind.
pub(crate) enum AnyClient {
    Plain(LoadClient),
    Editor(EditClient),
    Desktop(DesktopClient),
}

impl AnyClient {
    /// Whether it does its work, not just prepares for it.
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            AnyClient::Plain(_) => true,
            AnyClient::Editor(editor) => editor.is_typing(),
            AnyClient::Desktop(client) => client.is_working(),
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        match self {
            AnyClient::Plain(client) => client.has_ended(),
            AnyClient::Editor(editor) => editor.has_ended(),
            AnyClient::Desktop(client) => client.has_ended(),
        }
    }

    pub(crate) fn finish(self) -> Result<Vec<Sample>, LoadError> {
        match self {
            AnyClient::Plain(client) => client.finish(),
            AnyClient::Editor(editor) => editor.finish(),
            AnyClient::Desktop(client) => client.finish(),
        }
    }
}

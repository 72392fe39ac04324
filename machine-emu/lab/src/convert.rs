//! `mdfs-lab convert`: text between this computer and the J-Machine.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::ValueEnum;
use machine_emu::jmachine::text::{self, ByteOrder, ToHost};

use mdfs_cli::exit::CommandFailure;
use mdfs_cli::local::{self, Target, chunks};
use mdfs_cli::session::CommandSession;

/// Standard input, or standard output.
const STANDARD: &str = "-";

/// Convert text between this computer and the J-Machine.
///
/// The J-Machine addresses words, not bytes: in its text files each character takes four bytes,
/// three of them zero. Integers of 32 bits and floating point numbers need no conversion. A file
/// that is no pure text is refused, with the place of the first word that is no character; nothing
/// is left of its output then.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs-lab convert --to machine input.txt input.jm
  mdfs cat scratch:/run1/log | mdfs-lab convert --to host > log.txt")]
pub(crate) struct Convert {
    /// Into which format
    #[arg(long, value_name = "FORMAT")]
    to: TextFormat,
    /// Where in its word a character is: in the last byte (big) or in the first (little)
    #[arg(long, value_name = "ORDER", default_value = "big")]
    order: CharacterOrder,
    /// The text; - for standard input
    #[arg(value_name = "INPUT", default_value = STANDARD)]
    input: PathBuf,
    /// Where it goes; - for standard output
    #[arg(value_name = "OUTPUT", default_value = STANDARD)]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TextFormat {
    /// Four bytes for each character
    Machine,
    /// A byte for each character
    Host,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CharacterOrder {
    /// As the machine's own host had it
    Big,
    /// As most computers have it today
    Little,
}

impl Convert {
    pub(crate) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let standard = Path::new(STANDARD);
        let input: Box<dyn Read> = if self.input == standard {
            Box::new(io::stdin())
        } else {
            Box::new(local::open(&self.input)?)
        };
        if self.output == standard {
            return self.convert(input, |_, piece| session.print(piece)).map(|_| ());
        }
        // Complete, or not there.
        let mut unfinished = self.output.clone().into_os_string();
        unfinished.push(".unfinished");
        let unfinished = PathBuf::from(unfinished);
        let target = Target::create(&unfinished)?;
        let written = self.convert(input, |at, piece| target.write(at, &[Bytes::from(piece)]));
        match written.and_then(|length| target.finish(length)) {
            Ok(()) => local::rename(&unfinished, &self.output),
            Err(failure) => {
                local::remove(&unfinished);
                Err(failure)
            }
        }
    }

    /// Gives the converted text to `put`, piece by piece with their offsets; how long it is.
    fn convert(
        &self,
        input: impl Read,
        mut put: impl FnMut(u64, Vec<u8>) -> Result<(), CommandFailure>,
    ) -> Result<u64, CommandFailure> {
        let order = match self.order {
            CharacterOrder::Big => ByteOrder::Big,
            CharacterOrder::Little => ByteOrder::Little,
        };
        let mut to_host = ToHost::new(order);
        let mut length = 0;
        let no_text = |error| {
            CommandFailure::Wrong(format!("cannot convert {}: {error}", self.input.display()))
        };
        for chunk in chunks(input) {
            let (_, piece) =
                chunk.map_err(|error| CommandFailure::local("read", &self.input, error))?;
            let converted = match self.to {
                TextFormat::Machine => text::to_machine(&piece, order),
                TextFormat::Host => to_host.convert(&piece).map_err(no_text)?,
            };
            let at = length;
            length += converted.len() as u64;
            put(at, converted)?;
        }
        to_host.finish().map_err(no_text)?;
        Ok(length)
    }
}

//! What the tools read from the standard input.

use std::io::{self, BufReader, Cursor, Read, stdin};

use flate2::read::MultiGzDecoder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::ioctl_fionread;

/// The input, without its byte order mark.
pub(super) type Input = BufReader<Box<dyn Read>>;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const GZIP: &[u8] = b"\x1f\x8b";

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// How long a program that pipes something can take until its first byte.
const FIRST_BYTE_TIME_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Opens the standard input, decompressed if it is gzip.
pub(super) fn open() -> io::Result<Input> {
    plain(stdin().lock())
}

/// These values as lines.
pub(super) fn of_lines(lines: &[String]) -> Input {
    BufReader::with_capacity(
        BUFFER_BYTES,
        Box::new(Cursor::new((lines.join("\n") + "\n").into_bytes())),
    )
}

fn plain(mut source: impl Read + 'static) -> io::Result<Input> {
    let head = head(&mut source)?;
    let whole: Box<dyn Read> = if head == GZIP {
        let mut text = MultiGzDecoder::new(Cursor::new(head).chain(source));
        let head = self::head(&mut text)?;
        Box::new(Cursor::new(without_mark(head)).chain(text))
    } else {
        Box::new(Cursor::new(without_mark(head)).chain(source))
    };
    Ok(BufReader::with_capacity(BUFFER_BYTES, whole))
}

/// Reads the first bytes, as far as they can be those of a byte order mark or of gzip.
fn head(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let is_open = |mark: &[u8]| mark.len() > head.len() && mark.starts_with(&head);
        if !is_open(BYTE_ORDER_MARK) && !is_open(GZIP) {
            return Ok(head);
        }
        let mut byte = [0];
        match source.read(&mut byte) {
            Ok(0) => return Ok(head),
            Ok(_) => head.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn without_mark(head: Vec<u8>) -> Vec<u8> {
    if head == BYTE_ORDER_MARK { Vec::new() } else { head }
}

/// Whether another program pipes something into this one. A pipe that is empty or stays silent is none: jobs
/// are started with one.
pub(super) fn is_piped() -> bool {
    let stdin = stdin();
    let is_pipe =
        fstat(&stdin).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    is_pipe && {
        // Without an answer, the number of bytes decides.
        let _ = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&FIRST_BYTE_TIME_MAX));
        ioctl_fionread(&stdin).is_ok_and(|bytes| bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    fn read(bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        let input =
            plain(Cursor::new(bytes.to_vec())).and_then(|mut input| input.read_to_end(&mut text));
        input.expect("readable");
        text
    }

    #[test]
    fn a_byte_order_mark_is_skipped_and_gzip_is_read() {
        let zipped = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory")
        };
        for (text, expected) in [
            (&b""[..], &b""[..]),
            (b"a\n", b"a\n"),
            (b"\xef\xbb\xbfa\n", b"a\n"),
            (b"\xef\xbb\xbf", b""),
            (b"\xef\xbb", b"\xef\xbb"),
            (b"\xef\xbb\xbf\xef\xbb\xbfa", b"\xef\xbb\xbfa"),
            (b"\x1f", b"\x1f"),
        ] {
            assert_eq!(read(text), expected, "{text:?}");
            assert_eq!(read(&zipped(text)), expected, "{text:?} as gzip");
        }
        let twice = [zipped(b"a\n"), zipped(b"b\n")].concat();
        assert_eq!(read(&twice), b"a\nb\n", "two files, one after the other");
    }
}

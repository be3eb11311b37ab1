"""What libraries write to Python's `logging`, brought into our own log: standard error stays one JSON object a line."""

import logging

from fairlane.telemetry.log import Log

_FORMATTER = logging.Formatter()


class LibraryLogs(logging.Handler):
    """Passes records of level WARNING and above on to `log`; `attach` makes it the root logger's only outlet."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def attach(self) -> None:
        """Take over from whatever the root logger had."""
        logging.root.handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record's text, and its traceback as one field."""
        write = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        traceback = _FORMATTER.formatException(record.exc_info) if record.exc_info else None
        write("library", logger=record.name, message=_text(record), traceback=traceback)


def _text(record: logging.LogRecord) -> str:
    """The message; a library's mistake in its own arguments must not become an error in what we were doing."""
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError, IndexError):
        return str(record.msg)

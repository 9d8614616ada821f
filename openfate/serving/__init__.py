"""The bank behind HTTP: it learns new features while it serves, and loses nothing."""

from openfate.serving.live import BusyError, LiveBank
from openfate.serving.log import Entry, Log, LogUnavailableError, RefusedError, open_log

__all__ = ["BusyError", "Entry", "LiveBank", "Log", "LogUnavailableError", "RefusedError", "open_log"]

"""The bank behind HTTP: it learns new features while it serves, and loses nothing.

log.py       everything that was told, in order, durable before it is acknowledged
live.py      a bank that follows the log
worth.py     is what is new worth using? answered by every label
limits.py    what a request may hold, and who may send it
app.py       the endpoints; api.py tells OpenAPI of them; features.py, metrics.py: what they show
page/        the page at /
shop.py      the demo
"""

from openfate.serving.app import ARROW, Service, make_app
from openfate.serving.limits import Clients, Limits
from openfate.serving.live import BusyError, LiveBank
from openfate.serving.log import Entry, Log, LogUnavailableError, RefusedError, open_log
from openfate.serving.shop import Shop, Visitors

__all__ = [
    "ARROW",
    "BusyError",
    "Clients",
    "Entry",
    "Limits",
    "LiveBank",
    "Log",
    "LogUnavailableError",
    "RefusedError",
    "Service",
    "Shop",
    "Visitors",
    "make_app",
    "open_log",
]

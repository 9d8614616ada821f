"""Small invented logs in the shape of the originals, and their faults."""

import gzip
import os

import numpy as np
import pytest

from openfate.errors import DataFileError
from openfate_lab.data import SOURCES, load

FLIGHTS = (
    "rownames,year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,"
    "carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour\n"
    "1,2013,1,2,517.0,515,2.0,830.0,819,11.0,UA,1,N1,EWR,IAH,227.0,1400,5,15,t\n"
    "2,2013,1,1,,600,,,700,,UA,2,N2,EWR,IAH,,1400,6,0,t\n"
    "3,2013,1,1,533.0,529,4.0,850.0,830,20.0,AA,1,,LGA,IAH,227.0,1416,5,29,t\n"
)
CRITEO = "".join(
    "\t".join([label, *cells]) + "\n"
    for label, cells in [
        ("0", ["", "-1", "0", "1", "2", "3", "9025", *[""] * 6, *["05db9164"] * 25, ""]),
        ("1", ["5"] * 13 + ["8cf07265"] * 26),
    ]
)
NAMES = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
NAMES += "app_category,device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,"
NAMES += "C17,C18,C19,C20,C21"
AVAZU = "\n".join([NAMES] + [
    f"{10**19 + i},{click},{hour}," + ",".join(["1"] * 21)
    for i, (click, hour) in enumerate([(1, 14102101), (0, 14102200)])
])  # fmt: skip
TEXTS = {"flights": FLIGHTS, "criteo-sample": CRITEO, "avazu-sample": AVAZU}


def put(folder, name, text, packed=True):
    source = SOURCES[name]
    path = folder / "ctr" / source.folder / next(iter(source.files))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


def test_flights_are_in_time_order_and_cancelled_ones_are_left_out(tmp_path):
    put(tmp_path, "flights", FLIGHTS)
    data = load("flights", tmp_path)
    assert data.y.tolist() == [1, 0]  # of January 1 and 2: more than 15 minutes late, and not
    assert np.diff(data.time).tolist() == [24 * 3600 - 14 * 60]
    assert "dep_delay" not in data.fields
    assert data.X.row_degree.tolist() == [7, 8]  # the first plane has no tail number


def test_criteo_numbers_are_cut_by_the_squared_logarithm(tmp_path):
    put(tmp_path, "criteo-sample", CRITEO)
    data = load("criteo-sample", tmp_path)
    assert data.X.row_degree.tolist() == [6 + 25, 39]
    assert data.time.tolist() == [0, 3.5 * 86_400]
    assert len(data.fields) == 39


def test_avazu_has_the_hour_of_the_day_but_not_the_day(tmp_path):
    put(tmp_path, "avazu-sample", AVAZU)
    data = load("avazu-sample", tmp_path)
    assert np.diff(data.time).tolist() == [23 * 3600]
    assert data.X.n_features == 21 + 2
    assert "id" not in data.fields


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("flights", ("2013,1,2", "2013,x,2"), "line 2: column 'month' holds 'x', not a number"),
        ("flights", ("arr_delay", "late"), "no column 'arr_delay'"),
        ("criteo-sample", ("9025", "many"), "line 1: column 'I7' holds 'many'; give numbers"),
        ("criteo-sample", ("1\t5", "2\t5\t5"), "line 2: 41 cells, but the table has 40 columns"),
        ("avazu-sample", ("14102101", "noon"), "line 2: column 'hour' holds 'noon'; give YYMMDDHH"),
        ("avazu-sample", (",1,14102101", ",0,14102101"), "every row has the class '0'"),
    ],
)
def test_a_fault_is_named(tmp_path, name, change, message):
    path = put(tmp_path, name, TEXTS[name].replace(*change, 1))
    with pytest.raises(DataFileError) as caught:
        load(name, tmp_path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "give the data folder that has it." in str(caught.value)


def test_a_file_that_is_not_gzip_is_named(tmp_path):
    put(tmp_path, "flights", FLIGHTS, packed=False)
    with pytest.raises(DataFileError, match="not a whole gzip file"):
        load("flights", tmp_path)


@pytest.mark.skipif("OPENFATE_DATA" not in os.environ, reason="OPENFATE_DATA is not set")
@pytest.mark.parametrize(
    ("name", "n_rows"), [("flights", 327_346), ("criteo-sample", 68_172), ("avazu-sample", 20_000)]
)
def test_the_originals(name, n_rows):
    data = load(name)
    assert data.X.n_rows == n_rows
    assert (np.diff(data.time) >= 0).all()
    assert data.sha256 == next(iter(SOURCES[name].files.values()))

# cython: language_level=3
"""The functions of libpq that the lane calls, from psycopg's own copy of the library.

They are libpq's public API. psycopg's binary wheel exports them, and makes the pointers to its connections and results
public (`pgconn_ptr`, `pgresult_ptr`).
"""

import ctypes
import sys

from psycopg import pq

_library = ctypes.CDLL(sys.modules[pq.PGresult.__module__].__file__)


cdef size_t address_of(str name) except 0:
    return ctypes.cast(getattr(_library, name), ctypes.c_void_p).value


send_prepared = <SendPrepared>address_of("PQsendQueryPrepared")
send_params = <SendParams>address_of("PQsendQueryParams")
set_chunked_rows = <OfConnectionAndNumber>address_of("PQsetChunkedRowsMode")
pipeline_sync = <OfConnection>address_of("PQpipelineSync")
send_flush_request = <OfConnection>address_of("PQsendFlushRequest")
flush = <OfConnection>address_of("PQflush")
consume_input = <OfConnection>address_of("PQconsumeInput")
is_busy = <OfConnection>address_of("PQisBusy")
transaction_status = <OfConnection>address_of("PQtransactionStatus")
connection_status = <OfConnection>address_of("PQstatus")
has_tls = <OfConnection>address_of("PQsslInUse")
rows_of = <OfConnection>address_of("PQntuples")
memory_of = <OfResult>address_of("PQresultMemorySize")
table_of = <TableOfField>address_of("PQftable")
column_of = <OfField>address_of("PQftablecol")
size_of = <OfField>address_of("PQfsize")
modifier_of = <OfField>address_of("PQfmod")

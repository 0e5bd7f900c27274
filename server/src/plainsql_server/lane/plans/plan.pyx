# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What a body asks for: its statement, classified, with everything that is the same each time it is run.

    plan = plans.find(body, size)    # None: the body is new
    plan = plans.learn(body)         # None: the ordinary path reads it

A plan is made once from a body that msgspec has decoded and `data_plane` has accepted. A later body with the same
frame has the same plan, with other parameters. A body without parameters is its own frame.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcpy

cdef extern from "string.h":
    void *memrchr(const void *, int, size_t) noexcept

from plainsql_server.core.errors import ServiceError
from plainsql_server.data_plane.classification import classify as classify_anew
from plainsql_server.engine.execution.execution import CHUNK_ROWS
from plainsql_server.http.data.query import ENCODINGS
from plainsql_server.http.data.query_body import QUERY_BODY
from plainsql_server.http.server.requests import decode_json

# A deadline this near is the ordinary path's: the lane looks at the clock only now and then.
SHORTEST_TIMEOUT_MS = 100
# Applications repeat some hundred statements, and long ones rarely. A plan takes up to seven times its key's bytes.
MAX_PLANS = 512
MAX_KEY_BYTES = 512 * 1024
cdef Py_ssize_t MAX_LEARNED_BYTES = 4096
MAX_CLASSIFIED = 2_000
cdef Py_ssize_t MAX_CLASSIFIED_BYTES = 2_000
cdef int _chunk_rows = CHUNK_ROWS


cdef class StepPlan:
    """A statement, and where its parameters are."""

    def __init__(self, str sql not None, Scalars scalars, bint takes_text=False):
        self.sql, self.text, self.scalars, self.takes_text = sql, sql.encode(), scalars, takes_text


cdef class QueryPlan:
    """A statement or a transaction as a body asks for it."""

    def __init__(self, list steps not None, Frame frame not None):
        self.steps, self.frame = steps, frame

    cdef int set_options(self, sent, encoding, database, classifications) except -1:
        self.encoding, self.database = encoding, database
        # JSON's numbers have no upper limit, C's do.
        self.timeout_ms = None if sent.timeout_ms is None else min(sent.timeout_ms, 1 << 30)
        self.read_only = sent.read_only
        self.max_rows = -1 if sent.max_rows is None else min(sent.max_rows, 1 << 30)
        self.chunk_rows = _chunk_rows
        self.state = max([each.session_state for each in classifications])
        self.state_without_code = max([each.state_without_code for each in classifications])
        self.may_store_code = any([each.may_store_code for each in classifications])
        return 0

    cdef int limit_ms(self, limits) except -1:
        """The tier's limit of its time."""
        return limits.statement_timeout_ms


cdef class PlanTable:
    """Plans by the keys of their frames. The oldest make room for new ones."""

    def __cinit__(self):
        self.plans = {}

    def __len__(self):
        return len(self.plans)

    cdef QueryPlan find(self, bytes key):
        return <QueryPlan>self.plans.get(key)

    cdef int add(self, bytes key, QueryPlan plan) except -1:
        if key not in self.plans:
            self.key_bytes += PyBytes_GET_SIZE(key)
        self.plans[key] = plan
        while len(self.plans) > MAX_PLANS or self.key_bytes > MAX_KEY_BYTES:
            oldest = next(iter(self.plans))
            self.key_bytes -= PyBytes_GET_SIZE(oldest)
            del self.plans[oldest]
        return 0


cdef class QueryPlans:
    """The plans of one route."""

    def __init__(self, Scalars scalars not None):
        self.scalars = scalars
        self.framed, self.whole, self.classified = PlanTable(), PlanTable(), {}

    def of(self, bytes body not None):
        """The plan of a body, known or new; None if the ordinary path must read it."""
        plan = self.find(PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        return self.learn(body) if plan is None else plan

    cdef QueryPlan find(self, const char *body, Py_ssize_t size):
        """The plan of a body that is known; None if it is new."""
        cdef QueryPlan plan
        cdef bytes key = key_of(body, size)
        if key is not None:
            plan = self.framed.find(self.key_in_table(key))
            if plan is not None and plan.frame.holds(body, size, self.scalars):
                return plan
        plan = self.whole.find(self.key_in_table(PyBytes_FromStringAndSize(body, size)))
        if plan is not None:
            self.scalars.count = 0
            self.scalars.strings = 0
        return plan

    cdef QueryPlan learn(self, bytes body):
        """Makes the plan of a body that is new; None if the ordinary path must read it each time."""
        cdef QueryPlan plan
        cdef Frame frame
        if PyBytes_GET_SIZE(body) > MAX_LEARNED_BYTES:
            return None
        try:
            sent = self.decode(body)
            classification = self.classify(sent.sql)
        except ServiceError:
            return None
        if "/*+" in sent.sql or (sent.timeout_ms is not None and sent.timeout_ms < SHORTEST_TIMEOUT_MS):
            return None
        if classification.command == "SET":
            # The ordinary path warns that it has no effect.
            return None
        frame = self.frame_of(body, sent)
        if frame is None or not frame.holds(PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), self.scalars):
            return None
        step = StepPlan(sent.sql, None if frame.is_whole else self.scalars, self.takes_text())
        plan = QueryPlan([step], frame)
        plan.set_options(sent, self.encoding_of(sent), sent.database, [classification])
        if 0 <= plan.max_rows < _chunk_rows:
            plan.chunk_rows = plan.max_rows + 1
        return self.keep(plan)

    cdef QueryPlans of_head(self, headers):
        """The plans of the requests that have these headers."""
        return self

    cdef object decode(self, bytes body):
        """What the ordinary path makes of a body. Raises ServiceError."""
        return decode_json(body, QUERY_BODY)

    cdef object encoding_of(self, sent):
        """How the ordinary path writes the rows for a decoded body."""
        return ENCODINGS[sent.row_format, sent.big_numbers]

    cdef bint takes_text(self) noexcept:
        """Whether a parameter that is a string is PostgreSQL's text for every type."""
        return False

    cdef Frame frame_of(self, bytes body, sent):
        """The frame of a decoded body; None if its parameters are not what stands in its last brackets."""
        if not sent.params:
            return Frame(body)
        before, after = body[: body.rfind(b"[") + 1], body[body.rfind(b"]") :]
        # The proof that whatever scalars stand there are the parameters and nothing else: decode it with two others.
        # One would prove nothing if the parameters were that one, and the brackets part of the statement.
        if self.has_parameter(before, b"0", after, sent) and self.has_parameter(before, b"1", after, sent):
            return Frame(before, after)
        return None

    cdef bint has_parameter(self, bytes before, bytes parameter, bytes after, sent) except -1:
        """Whether a body with this parameter between its ends is what was sent, but for its parameters."""
        try:
            again = self.decode(before + parameter + after)
        except ServiceError:
            return False
        is_parameter = [bytes(raw) for raw in again.params] == [parameter]
        again.params = sent.params
        return is_parameter and again == sent

    cdef QueryPlan keep(self, QueryPlan plan):
        """Remembers a plan."""
        # Texts with literals in them would push out those that repeat, so the two do not share a table.
        cdef PlanTable table = self.whole if plan.frame.is_whole else self.framed
        table.add(self.key_in_table(plan.frame.key()), plan)
        return plan

    cdef bytes key_in_table(self, bytes key):
        return key if self.form is None else self.form + key

    cdef object classify(self, str sql):
        """The classification of a statement, remembered for all texts that differ in whole numbers alone."""
        cdef bytes key = without_numbers(sql.encode())
        found = self.classified.get(key)
        if found is None:
            found = classify_anew(sql)
            if PyBytes_GET_SIZE(key) <= MAX_CLASSIFIED_BYTES:
                if len(self.classified) >= MAX_CLASSIFIED:
                    self.classified.clear()
                self.classified[key] = found
        return found


cdef bytes key_of(const char *body, Py_ssize_t size):
    """What `framed` knows a body by: all but what is in its last brackets. Those are the parameters, as a rule."""
    cdef const char *opens = <const char *>memrchr(body, 91, size)
    cdef const char *closes = <const char *>memrchr(body, 93, size)
    cdef Py_ssize_t before = opens - body + 1, after = body + size - closes
    cdef bytes key
    if opens == NULL or closes < opens:
        return None
    key = PyBytes_FromStringAndSize(body, before + after)
    memcpy(PyBytes_AS_STRING(key) + before, closes, after)
    return key


cdef bytes without_numbers(bytes text):
    """A text with 0 for each whole number in it. No rule of the classification looks at the digits of a number.

    A text with a backslash stays as it is, because its digits may be part of an escape.
    """
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text), at = 0, start, used = 0
    cdef const char *source = PyBytes_AS_STRING(text)
    cdef bytes result
    cdef char *target
    if memchr(source, 92, size) != NULL:
        return text
    result = PyBytes_FromStringAndSize(NULL, size)
    target = PyBytes_AS_STRING(result)
    while at < size:
        start = at
        while at < size and 48 <= source[at] <= 57:
            at += 1
        if at == start:
            target[used] = source[at]
            used += 1
            at += 1
        elif (start > 0 and is_of_word(source[start - 1])) or (at < size and is_of_word(source[at])):
            memcpy(target + used, source + start, at - start)
            used += at - start
        else:
            target[used] = 48
            used += 1
    return PyBytes_FromStringAndSize(target, used)


def blanked(bytes text not None):
    """`without_numbers`, for tests."""
    return without_numbers(text)


cdef bint is_of_word(char byte) noexcept:
    """Letters, digits, underscore, dollar, and every byte of a character that is not ASCII."""
    return (
        48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte == 95 or byte == 36
        or <unsigned char>byte >= 128
    )

# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What a body of POST /v1/transaction asks for: its statements, classified, and where their parameters are.

Used like `plan.pyx`, with one list of parameters for each statement that has some. Only what one flush can do has a
plan: few statements, in one database, that expect nothing of each other's results.
"""

import msgspec

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp, memcpy

cdef extern from "string.h":
    void *memmem(const void *, size_t, const void *, size_t) noexcept

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.sql_text import is_empty
from plainsql_server.data_plane.transaction import TAKES_SNAPSHOT
from plainsql_server.engine.execution.transaction import FLUSH_BYTES
from plainsql_server.http.data.query import ENCODINGS
from plainsql_server.http.data.transaction import TRANSACTION_BODY
from plainsql_server.http.server.requests import decode_json
from plainsql_server.lane.plans.plan cimport PlanTable, StepPlan
from plainsql_server.lane.plans.plan import SHORTEST_TIMEOUT_MS

cdef Py_ssize_t MAX_LEARNED_BYTES = 4096
# What the statements and their parameters have in bytes is less than what the body has.
cdef Py_ssize_t max_flush_bytes = FLUSH_BYTES
# Numbers that are in no ordinary body; one that has them in it is not learned from.
cdef bytes PROBE = b"8301572946"
cdef tuple PROBES = tuple([PROBE + b"%02d" % index for index in range(MAX_STEPS)])


cdef class TransactionFrame(Frame):
    """A body up to its lists of parameters."""

    def __init__(self, tuple parts not None, list lists not None):
        Frame.__init__(self, parts[0], parts[len(parts) - 1] if len(parts) > 1 else None)
        self.parts, self.lists = parts, lists

    cdef bytes key(self):
        return b"".join(self.parts)

    cdef bint holds(self, const char *body, Py_ssize_t size, Scalars scalars) except -1:
        """Whether a body has this frame. Its parameters are then in `lists`; `scalars` is not used."""
        cdef Py_ssize_t at = 0, length
        cdef int index, last = len(self.parts) - 1
        cdef bytes part
        if size > max_flush_bytes:
            return False
        for index in range(last + 1):
            part = <bytes>self.parts[index]
            length = PyBytes_GET_SIZE(part)
            if size - at < length or memcmp(body + at, PyBytes_AS_STRING(part), length) != 0:
                return False
            at += length
            if index < last:
                length = (<Scalars>self.lists[index]).read_list(body + at, size - at)
                if length < 0:
                    return False
                at += length
        return at == size


cdef class TransactionPlan(QueryPlan):
    """A transaction as a body asks for it."""

    cdef int limit_ms(self, limits) except -1:
        return limits.transaction_timeout_ms


cdef class TransactionPlans(QueryPlans):
    """The plans of the transaction route, by their frames."""

    def __init__(self, Scalars scalars not None):
        QueryPlans.__init__(self, scalars)
        self.lists = [Scalars() for _ in range(MAX_STEPS)]

    def parameters(self, TransactionPlan plan not None):
        """The parameters of each statement of the body whose plan was found last, as texts."""
        return [[] if step.scalars is None else step.scalars.texts_read() for step in plan.steps]

    cdef QueryPlan find(self, const char *body, Py_ssize_t size):
        cdef TransactionPlan plan
        cdef PlanTable table
        cdef Spans spans
        if size > max_flush_bytes or not find_spans(body, size, <Scalars>self.lists[0], &spans):
            return None
        table = self.framed if spans.count else self.whole
        plan = <TransactionPlan>table.find(without_spans(body, size, &spans))
        return plan if plan is not None and plan.frame.holds(body, size, self.scalars) else None

    cdef QueryPlan learn(self, bytes body):
        cdef TransactionPlan plan
        cdef const char *text = PyBytes_AS_STRING(body)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
        cdef Spans spans
        if size > MAX_LEARNED_BYTES or not find_spans(text, size, <Scalars>self.lists[0], &spans):
            return None
        try:
            sent = decode_json(body, TRANSACTION_BODY)
            statements = [(each, None) if isinstance(each, str) else (each.sql, each) for each in sent.statements]
            if not _is_ordinary(sent, statements):
                return None
            classifications = [self.classify(sql) for sql, _ in statements]
        except ServiceError:
            return None
        cuts = [(spans.starts[index], spans.ends[index]) for index in range(spans.count)]
        parts = _parts_of(body, cuts)
        if classifications[0].command not in TAKES_SNAPSHOT or not _is_proven(body, parts, sent):
            return None
        plan = _plan(sent, statements, TransactionFrame(parts, self.lists), classifications)
        return self.keep(plan) if plan.frame.holds(text, size, self.scalars) else None


def _is_ordinary(sent, statements):
    """Whether one flush can run it, in one database."""
    if not 0 < len(statements) <= MAX_STEPS:
        return False
    if sent.timeout_ms is not None and sent.timeout_ms < SHORTEST_TIMEOUT_MS:
        return False
    names = {_database_of(sent, each) for _, each in statements}
    if sent.dry_run or sent.check_deferred or sent.nows or any([_is_special(each) for _, each in statements]):
        return False
    # A comment like this may be the streaming hint, which is refused.
    return len(names) == 1 and not any([is_empty(sql) or "/*+" in sql for sql, _ in statements])


def _is_special(statement):
    """Whether a statement asks for something that only the ordinary path does."""
    if statement is None:
        return False
    return statement.expect is not None or statement.digest or statement.freeze or not statement.rows


def _database_of(sent, statement):
    """The database that a statement names, or its transaction for it."""
    return (None if statement is None else statement.database) or sent.database


cdef TransactionPlan _plan(sent, statements, TransactionFrame frame, classifications):
    cdef TransactionPlan plan
    cdef int lists = 0
    steps = []
    for sql, each in statements:
        has_parameters = each is not None and len(each.params) > 0
        steps.append(StepPlan(sql, frame.lists[lists] if has_parameters else None))
        lists += has_parameters
    plan = TransactionPlan(steps, frame)
    plan.is_transaction = True
    encoding = ENCODINGS[sent.row_format, sent.big_numbers]
    plan.set_options(sent, encoding, _database_of(sent, statements[0][1]), classifications)
    return plan


def _parts_of(bytes body, spans):
    """The bytes of a body before, between and after its spans."""
    ends = [0, *[end for _, end in spans]]
    return tuple([body[end:start] for end, start in zip(ends, [*[start for start, _ in spans], len(body)])])


def _is_proven(bytes body, parts, sent):
    """Whether each of a body's lists holds the parameters of one statement, in their order, and nothing else.

    The proof is the body with another parameter in each list. If these are the parameters of the statements then, and
    all else is as it was, they can only have come from there: they are in the body nowhere else, and no two are equal.
    """
    lists, wanted = 0, []
    for params in _parameters_of(sent):
        wanted.append([PROBES[lists]] if params else [])
        lists += len(params) > 0
    if lists != len(parts) - 1 or PROBE in body:
        return False
    probed = parts[0] + b"".join([probe + part for probe, part in zip(PROBES, parts[1:])])
    try:
        again = decode_json(probed, TRANSACTION_BODY)
    except ServiceError:
        return False
    return _parameters_of(again) == wanted and _without_parameters(again) == _without_parameters(sent)


def _parameters_of(sent):
    """The raw parameters of each statement."""
    return [[] if isinstance(each, str) else [bytes(raw) for raw in each.params] for each in sent.statements]


def _without_parameters(sent):
    """Everything else that a body says."""
    statements = [
        each if isinstance(each, str) else msgspec.structs.replace(each, params=[]) for each in sent.statements
    ]
    return msgspec.structs.replace(sent, statements=statements)


cdef bint find_spans(const char *body, Py_ssize_t size, Scalars scalars, Spans *spans) except -1:
    """Finds what seem to be the lists of parameters of a body; False if there are too many.

    The frame proves it. All that matters here is that the same body always has the same spans.
    """
    cdef const char *found
    cdef Py_ssize_t at = 0, end
    spans.count = 0
    while True:
        found = <const char *>memmem(body + at, size - at, b'"params"', 8)
        if found == NULL:
            return True
        at = skip_blanks(body, found - body + 8, size)
        if at == size or body[at] != 58:
            continue
        at = skip_blanks(body, at + 1, size)
        if at == size or body[at] != 91:
            continue
        at += 1
        end = scalars.read_list(body + at, size - at)
        if end < 0 or at + end == size or body[at + end] != 93:
            continue
        if spans.count == MAX_STEPS:
            return False
        spans.starts[spans.count], spans.ends[spans.count] = at, at + end
        spans.count += 1
        at += end


cdef Py_ssize_t skip_blanks(const char *body, Py_ssize_t at, Py_ssize_t size) noexcept:
    while at < size and (body[at] == 32 or body[at] == 10 or body[at] == 13 or body[at] == 9):
        at += 1
    return at


cdef bytes without_spans(const char *body, Py_ssize_t size, Spans *spans):
    """A body without its spans, by which a plan is known."""
    cdef Py_ssize_t from_, to, used = 0
    cdef int index
    cdef char *target
    cdef Py_ssize_t cut = 0
    for index in range(spans.count):
        cut += spans.ends[index] - spans.starts[index]
    key = PyBytes_FromStringAndSize(NULL, size - cut)
    target = PyBytes_AS_STRING(key)
    from_ = 0
    for index in range(spans.count + 1):
        to = spans.starts[index] if index < spans.count else size
        memcpy(target + used, body + from_, to - from_)
        used += to - from_
        if index < spans.count:
            from_ = spans.ends[index]
    return key

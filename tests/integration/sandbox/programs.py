"""Programs for the sandbox, hostile and honest: each defines `f`, which returns 1 in honest ones."""

import os


def doing(*lines: str, using: str = "os") -> str:
    """A program that imports these modules and runs these lines in `f`."""
    return f"import {using}\ndef f():\n" + "\n".join(f"    {line}" for line in lines)


HONEST = "def f(): return 1"

ENDLESS = {
    "a loop": doing("while True: pass"),
    "a sleep": doing("time.sleep(3600)", using="time"),
    "a loop that catches everything": doing("while True:", "    try: 1 / 0", "    except BaseException: pass"),
    "a stopped process": doing("os.kill(os.getpid(), signal.SIGSTOP)", using="os, signal"),
    "ignored signals": doing(
        "for each in (2, 15, 24): signal.signal(each, signal.SIG_IGN)", "while True: pass", using="signal"
    ),
    "an error with an endless text": doing(
        "class E(Exception):", "    def __str__(self):", "        while True: pass", "raise E"
    ),
}

# Access to other processes, which is refused.
PROCESSES = {
    "a fork bomb": doing("while True: os.fork()"),
    "a command": doing("subprocess.run(['/bin/true'])", using="subprocess"),
    "another program": doing("os.execv('/bin/true', ['true'])"),
    "multiprocessing": doing("multiprocessing.Process(target=print).start()", using="multiprocessing"),
    "a session": doing("os.setsid()"),
    "a group": doing("os.setpgid(0, 0)"),
    "another user": doing("os.setuid(12345)"),
    "killing the parent": doing("os.kill(os.getppid(), 9)"),
    "killing the replica": doing(f"os.kill({os.getpid()}, 9)"),
    "killing all": doing("os.kill(-1, 9)"),
    "killing the group": doing("os.killpg(os.getpgrp(), 9)"),
    "a signal by way of a pipe": doing(
        "end, _ = os.pipe()", "fcntl.fcntl(end, fcntl.F_SETOWN, os.getppid())", using="fcntl, os"
    ),
    "the parent's limits": doing(
        "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1))", using="os, resource"
    ),
    "limits of its own": doing("resource.setrlimit(resource.RLIMIT_CPU, (1, 1))", using="resource"),
    "the parent's priority": doing("os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)"),
    "memory beside the limit": doing("os.memfd_create('x')"),
    "locks without an end": doing(
        "with open('x', 'w') as file:",
        "    for place in range(1 << 30): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * place)",
        using="fcntl",
    ),
}

# Programs that exceed a limit, and the reported reasons.
MUCH = {
    "10 GB at once": (doing("bytearray(10 << 30)"), "MemoryError"),
    "10 GB by and by": (doing("kept = []", "while True: kept.append(bytearray(1 << 20))"), "MemoryError"),
    "10 GB of a map": (doing("mmap.mmap(-1, 10 << 30)", using="mmap"), "Cannot allocate memory"),
    "1 GB of output": (doing("for _ in range(1 << 10): print('x' * (1 << 20))"), "printed more than 1 MB"),
    "1 GB of errors": (doing("for _ in range(1 << 14): os.write(2, b'x' * (1 << 16))"), "printed more than 1 MB"),
    "10,000 open files": (doing("kept = [open('/dev/null') for _ in range(10_000)]"), "Too many open files"),
    "10,000 pipes": (doing("kept = [os.pipe() for _ in range(10_000)]"), "Too many open files"),
    "10,000 new files": (doing("for place in range(10_000): open(f'{place}', 'w').close()"), "No space left on device"),
    "10,000 directories": (
        doing("for _ in range(10_000):", "    os.mkdir('d')", "    os.chdir('d')"),
        "No space left on device",
    ),
    "a large file": (doing("with open('x', 'wb') as file: file.write(bytes(1 << 24))"), "File too large"),
    "a file without an end": (doing("with open('x', 'wb') as file: file.truncate(1 << 40)"), "File too large"),
    "10,000 threads": (
        doing(
            "threading.stack_size(1 << 16)",
            "for _ in range(10_000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            using="threading, time",
        ),
        "can't start new thread",
    ),
    "endless recursion": (doing("return f()"), "RecursionError"),
}

# Attempts to fake success.
FORGED = {
    "status 0": doing("os._exit(0)"),
    "sys.exit": doing("sys.exit(0)", using="sys"),
    "a printed report": doing(
        "print(json.dumps({'report': {'fault': '', 'outcomes': [{'name': 'test 1', 'passed': True}]}}), flush=True)",
        "os._exit(0)",
        using="json, os",
    ),
    "bytes in every channel": doing(
        "for fd in range(3, 64):",
        "    try: os.write(fd, bytes(32))",
        "    except OSError: pass",
        "os._exit(0)",
    ),
    "another exec": "import builtins\nbuiltins.exec = lambda *_: None\ndef f(): return 2",
    "another exit": "import os\nos._exit = os.write = lambda *_: None\ndef f(): return 2",
    "another AssertionError": "import builtins\nbuiltins.AssertionError = StopIteration\ndef f(): return 2",
    "a tracer that skips": doing("sys.settrace(lambda *_: None)", "return 2", using="sys"),
    "what equals everything": "class Any:\n    def __eq__(self, other): return True\ndef f(): return Any()",
    "a number that equals everything": "class Any(int):\n    __eq__ = lambda *_: True\ndef f(): return Any()",
    "another runner": (
        "import sys\nframe = sys._getframe(1)\nframe.f_locals['reached'].add(True)\n"
        "for each in ('_called', '_is_test', '_run_methods'): frame.f_globals[each] = lambda *_: None\n"
        "def f(): return 2"
    ),
    "other code of what is believed": (
        "import collections\ncollections.UserList.__eq__.__code__ = (lambda *_: True).__code__\n"
        "def f(): return collections.UserList()"
    ),
    "the runner's own modules": "import serve_deployments.sandbox.trial\ndef f(): return 1",
    "machine code by name": "import ctypes\ndef f(): return 1",
    "an end at the end": "import atexit, os\natexit.register(os._exit, 0)\ndef f(): return 2",
    "an end by a thread": doing(
        "threading.Thread(target=os._exit, args=(0,)).start()", "while True: pass", using="os, threading"
    ),
}

# Classes that define equality, which decides nothing.
ALIKE = {
    "a number that knows a probe": "class A(int):\n    __eq__ = lambda self, other: type(other) is not object\n"
    "    __ne__ = lambda *_: False\ndef f(): return A()",
    "anything": "class A:\n    __eq__ = lambda self, other: type(other) is not object\ndef f(): return A()",
    "mock's": "from unittest.mock import ANY\ndef f(): return ANY",
    "a changed fraction": "import fractions\nfractions.Fraction.__eq__ = lambda *_: True\n"
    "def f(): return fractions.Fraction(3)",
    "with the runner's names rebound": (
        "import sys\nnames = sys._getframe(1).f_globals\n"
        "for each in [*names]: names['_honest'] = lambda value, *_: value\n"
        "class A(int):\n    __eq__ = lambda *_: True\ndef f(): return A()"
    ),
}
EQUAL = "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(f(), 1)"
SAME = "if not f() == 1: raise ValueError"

HONEST_PROGRAMS = {
    "threads": doing(
        "with concurrent.futures.ThreadPoolExecutor(16) as pool: return sum(pool.map(int, ['0'] * 99 + ['1']))",
        using="concurrent.futures",
    ),
    "tasks": "import asyncio\nasync def g():\n    await asyncio.sleep(0.001)\n    return 1\n"
    "def f(): return asyncio.run(g())",
    "files": doing(
        "with tempfile.NamedTemporaryFile('w+') as file:",
        "    file.write('1')",
        "    file.seek(0)",
        "    return int(file.read())",
        using="tempfile",
    ),
    "directories": doing("os.makedirs('a/b')", "os.rename('a/b', 'c')", "os.rmdir('c')", "return len(os.listdir('.'))"),
    "an alarm": doing("signal.setitimer(signal.ITIMER_REAL, 60)", "return 1", using="signal"),
    "a database": doing("return sqlite3.connect(':memory:').execute('select 1').fetchone()[0]", using="sqlite3"),
    "much of the library": doing(
        "return len({uuid.uuid4()}) * int(decimal.Decimal(1))",
        using="bisect, bz2, collections, csv, dataclasses, datetime, decimal, enum, fractions, functools, hashlib, "
        "heapq, itertools, json, logging, lzma, math, operator, pathlib, random, re, statistics, string, struct, "
        "subprocess, textwrap, typing, unittest, urllib.parse, uuid, xml.etree.ElementTree, zlib",
    ),
    "a fraction": "import fractions\ndef f(): return fractions.Fraction(1)",
    "a number of an enumeration": "import enum\nclass E(enum.IntEnum): A = 1\ndef f(): return E.A",
    "a guard": "def f(): return 1\nif __name__ == '__main__':\n    raise SystemExit('run as a script')",
    "a comparison of its own": (
        "class Point:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other.x\n"
        "def f(): return int(Point(1) == Point(1))"
    ),
}

# Tests of HONEST: whether they pass, and how the reason begins.
WRITTEN = {
    "statements": ("assert f() == 1\nassert f() != 2", True, ""),
    "an import": ("from solution import f\nimport solution\nassert f() == solution.f() == 1", True, ""),
    "a function": ("def test_it():\n    assert f() == 1", True, ""),
    "a function that fails": ("def test_it():\n    assert f() == 2", False, "AssertionError (line 2 of the test)"),
    "a coroutine": ("async def test_it():\n    assert f() == 2", False, "AssertionError (line 2 of the test)"),
    "a test case": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(f(), 1)",
        True,
        "",
    ),
    "a test case that fails": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(f(), 2)",
        False,
        "AssertionError: AssertionError: 1 != 2",
    ),
    "a class as pytest has them": ("class TestF:\n    def test_it(self):\n        assert f() == 1", True, ""),
    "one that fails": (
        "class TestF:\n    def setup_method(self): self.x = 2\n    def test_it(self):\n        assert f() == self.x",
        False,
        "AssertionError (line 4 of the test)",
    ),
    "a raise": ("if f() != 1:\n    raise ValueError", True, ""),
    "an expected error": ("try:\n    f(0)\nexcept TypeError:\n    pass\nelse:\n    raise ValueError", True, ""),
    "an expected error of a case": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
        "        with self.assertRaises(TypeError): f(0)",
        True,
        "",
    ),
    "a chain": ("assert 0 < f() == 1 != 2 in (2, 3)", True, ""),
    "containers": ("from collections import Counter\nassert {'a': [f()]} == Counter() | {'a': [1]}", True, ""),
    "mock's ANY": ("from unittest.mock import ANY\nassert {'a': f()} == {'a': ANY}", True, ""),
    "a script": ("if __name__ == '__main__':\n    assert f() == 2", False, "the test checks nothing"),
    "a function that is never called": ("def check():\n    assert f() == 2", False, "the test checks nothing"),
    "a comparison alone": ("f() == 2", False, "the test checks nothing"),
    "a failure with a message": ("assert f() == 2, 'f is one'", False, "AssertionError: f is one (line 1 of the test)"),
    "no Python": ("assert f( == 1", False, "SyntaxError"),
    "an unknown name": ("assert g() == 1", False, "NameError: name 'g' is not defined (line 1 of the test)"),
    "the program fails": ("f(0)", False, "TypeError: f() takes 0 positional arguments but 1 was given"),
}

# Tests that use more of a program than plain values, and programs that pass them.
USED = {
    "a class": (
        "class Stack:\n    def __init__(self): self.kept = []\n    def push(self, x): self.kept.append(x)\n"
        "    def pop(self): return self.kept.pop()\n    def __len__(self): return len(self.kept)",
        "s = Stack()\ns.push(1)\ns.push('b')\nassert len(s) == 2 and s.pop() == 'b' and s.kept == [1]\n"
        "assert isinstance(s, Stack) and not isinstance(1, Stack)",
    ),
    "an argument changed in place": (
        "def f(some, names, seen):\n    some.sort()\n    names['a'] = 1\n    seen.add(2)",
        "some, names, seen = [3, 1, 2], {}, set()\nf(some, names, seen=seen)\n"
        "assert (some, names, seen) == ([1, 2, 3], {'a': 1}, {2})",
    ),
    "a callback": (
        "def f(call, some): return [call(each) for each in some]",
        "seen = []\nassert f(lambda x: seen.append(x) or x + 1, [1, 2]) == [2, 3] and seen == [1, 2]\n"
        "assert f(str, [1]) == ['1'] and f(seen.append, [3]) == [None] and seen == [1, 2, 3]",
    ),
    "a decorator": (
        "import functools\ndef memo(call):\n    kept = {}\n    @functools.wraps(call)\n    def inner(x):\n"
        "        if x not in kept: kept[x] = call(x)\n        return kept[x]\n    return inner",
        "calls = []\n@memo\ndef g(x):\n    calls.append(x)\n    return 2 * x\n"
        "assert (g(2), g(2), calls, g.__name__) == (4, 4, [2], 'g')",
    ),
    "an object of the test": (
        "def f(node): return node.value + (f(node.next) if node.next else 0)",
        "class Node:\n    def __init__(self, value, next=None): self.value, self.next = value, next\n"
        "assert f(Node(1, Node(2))) == 3",
    ),
    "an error of its own": (
        "class Empty(LookupError):\n    def __init__(self, code):\n        super().__init__(f'empty: {code}')\n"
        "        self.code = code\ndef f(): raise Empty(7)",
        "try: f()\nexcept Empty as error: assert (error.code, str(error)) == (7, 'empty: 7')\nelse: assert False\n"
        "try: f()\nexcept LookupError: pass\nelse: assert False",
    ),
    "a named tuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
        "assert f() == (1, 2) and f().x == 1 and f() == P(1, 2) and isinstance(f(), tuple)",
    ),
    "an enumeration": (
        "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2\ndef f(): return E.A",
        "assert f() is E.A and f() != E.B and f().name == 'A' and E(2) is E.B and len(list(E)) == 2",
    ),
    "a generator": (
        "def f(n):\n    for x in range(n): yield x",
        "assert list(f(3)) == [0, 1, 2] and sum(f(4)) == 6 and next(f(1)) == 0 and 2 in f(3)",
    ),
    "a context manager": (
        "class Kept:\n    def __enter__(self): return self\n    def __exit__(self, kind, error, trace):\n"
        "        self.kind = kind\n        return kind is KeyError",
        "k = Kept()\nwith k as it: raise KeyError('x')\nassert it is k and k.kind is KeyError",
    ),
    "printed text": (
        "def f(): print('hi')",
        "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): f()\n"
        "assert out.getvalue() == 'hi\\n'",
    ),
    "a coroutine": (
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x",
        "import asyncio\nassert asyncio.run(f(3)) == 3\nasync def test_it():\n    assert await f(4) == 4",
    ),
    "operators": (
        "class V:\n    def __init__(self, x): self.x = x\n    def __mul__(self, k): return V(self.x * k)\n"
        "    __rmul__ = __mul__\n    def __eq__(self, other): return self.x == other.x\n"
        "    def __str__(self): return f'V({self.x})'",
        "assert V(2) * 3 == V(6) and (3 * V(2)).x == 6 and str(V(1)) == 'V(1)' and V(1) != V(2)",
    ),
    "a changed global": (
        "import math\ncount = 0\ndef f():\n    global count\n    count += 1",
        "import solution\nf()\nf()\nassert count == 2 == solution.count and math.pi > 3",
    ),
    "an expression that the test evaluates": ("def f(): return 'x + 1'", "assert eval(f(), {'x': 2}) == 3"),
    "values of many types": (
        "def f(x): return x",
        "import collections, datetime, decimal, fractions, math, uuid\n"
        "for x in (None, True, -0.0, 1 << 9_999, 'é\\ud800\\udc00', b'\\0', (1, [2]), {1: {2}}, frozenset({3}), 1j,\n"
        "          range(3), fractions.Fraction(1, 3), decimal.Decimal('1.10'), collections.Counter('aab'),\n"
        "          collections.deque([1], 2), datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5, 6),\n"
        "          datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), datetime.timedelta(1, 2, 3),\n"
        "          uuid.UUID(int=5), bytearray(b'x'), collections.OrderedDict(a=1), math.inf):\n"
        "    assert f(x) == x and type(f(x)) is type(x) and repr(f(x)) == repr(x), x\n"
        "assert math.isnan(f(math.nan))",
    ),
}

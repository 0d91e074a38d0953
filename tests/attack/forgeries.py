"""Programs that fake a verdict, and programs that try to leave the sandbox. None of them computes what it should.

The task is `f(x)`, twice its argument, and as a script twice the number on standard input.
"""

import textwrap

from app.deliberation.outputs import TestCase
from tests.integration.sandbox.sandboxed import calls, script

HONEST = "def f(x): return 2 * x\nif __name__ == '__main__': print(f(int(input())))"
STATEMENT = calls("f", 21, expected=42)
# A forger passes none of them: no expected value is one that a wrong program returns by chance.
TESTS: dict[str, TestCase] = {
    "a number": STATEMENT,
    "a float": calls("f", 10.5, expected=21.0),
    "a text": calls("f", "ab", expected="abab"),
    "a list": calls("f", [1, "b"], expected=[1, "b", 1, "b"]),
    "no boolean": calls("f", True, expected=2),
    "a large number": calls("f", 10**30, expected=2 * 10**30),
    "a script": script("21", "42"),
}


def _lies(name: str, base: str = "", answers: str = "True") -> str:
    return f"class A({base}):\n    def {name}(self, *_): return {answers}\ndef f(x): return A()"


def _doing(*lines: str, using: str = "os") -> str:
    return f"import {using}\ndef f(x):\n" + textwrap.indent("\n".join(lines), "    ")


_VERDICT = repr(b'loaded\nfinished\n["passed"]\n')
_FRAMES = (
    "import sys\nframe = sys._getframe()\nseen = []\nwhile frame:\n    seen.append(frame)\n    frame = frame.f_back\n"
)

VERDICTS = {
    # Objects that lie when they are compared
    "equals everything": _lies("__eq__"),
    "a number that equals everything": _lies("__eq__", "int"),
    "a text that equals everything": _lies("__eq__", "str"),
    "a tuple that equals everything": _lies("__eq__", "tuple"),
    "a float that equals everything": _lies("__eq__", "float"),
    "never unequal": "class A:\n    __eq__ = lambda *_: True\n    __ne__ = lambda *_: False\n"
    "    __hash__ = lambda s: 42\n"
    "def f(x): return A()",
    "a proxy of what equals everything": "import weakref\nclass A:\n    __eq__ = lambda *_: True\nkept = A()\n"
    "def f(x): return weakref.proxy(kept)",
    "a mapping proxy of what equals everything": "import types\nclass A(dict):\n    __eq__ = lambda *_: True\n"
    "def f(x): return types.MappingProxyType(A())",
    "mock's ANY": "from unittest.mock import ANY\ndef f(x): return ANY",
    "a mock as the function": "import unittest.mock\nf = unittest.mock.MagicMock(return_value=unittest.mock.ANY)",
    "a class as the function": "class f:\n    def __init__(self, x): pass\n    __eq__ = __lt__ = lambda *_: True\n"
    "    __sub__ = lambda s, o: 0",
    "a metaclass that lies": "class M(type):\n    __eq__ = lambda *_: True\n    __hash__ = type.__hash__\n"
    "class A(metaclass=M): pass\ndef f(x): return A",
    "a class that pretends to be int": "class A:\n    __class__ = int\n    __eq__ = lambda *_: True\n"
    "def f(x): return A()",
    "arithmetic that gives nothing": "class A:\n    __sub__ = lambda *_: 0\n    __eq__ = lambda *_: True\n"
    "def f(x): return A()",
    "arithmetic that gives itself": "class A:\n    __sub__ = __abs__ = lambda s, *_: s\n    __lt__ = lambda *_: True\n"
    "def f(x): return A()",
    "an order that lies": "class A(float):\n    __lt__ = __gt__ = __sub__ = __abs__ = lambda s, *_: s\n"
    "def f(x): return A(7)",
    "a fraction of a changed class": "import fractions\nfractions.Fraction.__eq__ = lambda *_: True\n"
    "def f(x): return fractions.Fraction(7)",
    "a list of what equals everything": "class A:\n    __eq__ = lambda *_: True\ndef f(x): return [A()]",
    "a data class that equals everything": "import dataclasses\n@dataclasses.dataclass\nclass A:\n"
    "    def __eq__(self, other): return True\ndef f(x): return A()",
    "an enumeration that equals everything": "import enum\nclass E(enum.IntEnum):\n    A = 1\n"
    "    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\ndef f(x): return E.A",
    "a user list that equals everything": "import collections\ncollections.UserList.__eq__ = lambda *_: True\n"
    "def f(x): return collections.UserList()",
    # Control flow that skips the check
    "ends with status 0": _doing("os._exit(0)"),
    "ends while it loads": "import os\nos._exit(0)",
    "raises SystemExit": _doing("raise SystemExit(0)"),
    "raises StopIteration": _doing("raise StopIteration"),
    "raises GeneratorExit": _doing("raise GeneratorExit"),
    "raises CancelledError": _doing("raise asyncio.CancelledError", using="asyncio"),
    "raises SkipTest": _doing("raise unittest.SkipTest('not here')", using="unittest"),
    "raises an error that is none": "class E(AssertionError):\n    __str__ = lambda s: ''\n"
    "    __bool__ = lambda s: False\n"
    "def f(x): raise E",
    "raises KeyboardInterrupt": _doing("raise KeyboardInterrupt"),
    "a thread that ends the process": _doing(
        "threading.Thread(target=os._exit, args=(0,)).start()", "while True: pass", using="os, threading"
    ),
    "an exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit",
    "a finalizer that ends the process": "import os\nclass A:\n    def __del__(self): os._exit(0)\ndef f(x): A()",
    "a collector's callback": "import gc, os\ngc.callbacks.append(lambda *_: os._exit(0))\ndef f(x): gc.collect()",
    "an alarm that raises": "import signal\ndef f(x):\n    signal.signal(14, lambda *_: 1 / 0)\n    signal.alarm(1)\n"
    "    while True: pass",
    "tracing of all frames": "import sys\nsys.settrace(lambda *_: None)\nsys.setprofile(lambda *_: None)\n"
    "def f(x): return 7",
    # What the runner uses, replaced
    "other builtins": "import builtins\n"
    "for name in ('exec', 'compile', 'type', 'len', 'isinstance', 'AssertionError'):\n"
    "    setattr(builtins, name, lambda *a, **k: True)\ndef f(x): return 7",
    "another JSON": "import json, json.encoder\n"
    "json.JSONEncoder.encode = json.dumps = lambda *_, **k: '[\"passed\"]'\ndef f(x): return 7",
    "another comparison": "import math\nmath.isclose = lambda *_, **k: True\ndef f(x): return 7.0",
    "other system calls": "import os\nos._exit = os.write = os.read = lambda *_: 0\ndef f(x): return 7",
    "another unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\ndef f(x): return 7",
    "another runner": _FRAMES + "for each in seen:\n    for name in [*each.f_globals]:\n"
    "        if callable(each.f_globals[name]): each.f_globals[name] = lambda *_, **k: True\ndef f(x): return 7",
    "another side of the wire": _FRAMES + "wire = [e.f_globals for e in seen if '_write' in e.f_globals][0]\n"
    "for name in ('LOADED', 'RETURNED', 'FINISHED', 'RAISED'): wire[name] = b'passed\\n'\ndef f(x): return 7",
    # Forged messages
    "a verdict on every descriptor": _doing(
        "for fd in range(64):", f"    try: os.write(fd, {_VERDICT})", "    except OSError: pass", "os._exit(0)"
    ),
    "a verdict while it loads": f"import os\nfor fd in range(3, 64):\n    try: os.write(fd, {_VERDICT})\n"
    "    except OSError: pass\ndef f(x): return 7",
    "a printed verdict": _doing(f"print({_VERDICT}.decode(), flush=True)", "os._exit(0)"),
    "a message that asks for exec": _FRAMES + "wire = [e.f_globals for e in seen if '_write' in e.f_globals][0]\n"
    "def f(x):\n    wire['_write'](b'exec\\nimport os; os._exit(0)\\n')\n    return 7",
    "an end before the value": _doing(
        "for fd in range(3, 64):",
        "    try: os.write(fd, b'finished\\n')",
        "    except OSError: pass",
        "return 7",
    ),
    "an error without a text": _doing(
        "for fd in range(3, 64):",
        "    try: os.write(fd, b'raised\\n')",
        "    except OSError: pass",
        "os._exit(0)",
    ),
    "a message of 4 GB": _doing(
        "for fd in range(3, 64):", "    try: os.write(fd, b'\\xff' * 64)", "    except OSError: pass"
    ),
    "a message nested 100,000 deep": _doing(
        "text = b'returned\\n' + b'[' * 100_000",
        "for fd in range(3, 64):",
        "    try: os.write(fd, text)",
        "    except OSError: pass",
        "os._exit(0)",
    ),
    "a changed argument that equals": "def f(x):\n    x = True\n    return x",
    "a value nested without an end": "def f(x):\n    kept = []\n    kept.append(kept)\n    return kept",
    "a value without an end": "def f(x): return [0] * 10_000_000",
    "an endless iterator": "import itertools\ndef f(x): return itertools.repeat(7)",
    "a flood of values": _doing(
        "while True:",
        "    for fd in range(3, 64):",
        "        try: os.write(fd, bytes(4_096))",
        "        except OSError: pass",
    ),
    "no number": "def f(x): return float('nan')\nprint(float('nan'))",
    "an infinite number": "def f(x): return float('inf')\nprint(float('inf'))",
    "a number that reads as infinite": _doing("os.write(6, b'returned\\n1e999')", "os._exit(0)"),
    "a number of 5,000 digits": "def f(x): return 10 ** 5_000\nprint('9' * 5_000)",
    "a value nested 100,000 deep": "def f(x):\n    kept = []\n    for _ in range(100_000): kept = [kept]\n"
    "    return kept",
    "a name that stands twice": _doing('os.write(6, b\'returned\\n{"a": 7, "a": 42}\')'),
    "a text that would be code": "def f(x): return '__import__(\"os\")._exit(0)'\nprint(f(1))",
    "bytes that would be code": "def f(x): return b'import os; os._exit(0)'",
    "a pickle that names code": "import pickle, os\nclass A:\n    def __reduce__(self): return os._exit, (0,)\n"
    "def f(x): return pickle.dumps(A()).decode('latin-1')",
    "methods that answer yes": "class A:\n    def __getattr__(self, name): return lambda *_: True\n"
    "def f(x): return A()",
    "membership that lies": "class A(list):\n    __contains__ = lambda *_: True\n    __len__ = lambda s: 4\n"
    "def f(x): return A()",
    "a hash that lies": "class A(dict):\n    __hash__ = lambda s: hash(42)\n    __eq__ = lambda *_: True\n"
    "def f(x): return A()",
    "the names of the runner": _FRAMES
    + "for each in seen:\n    each.f_globals['is_equal'] = each.f_globals['failure'] = lambda *_: ''\n"
    "def f(x): return 7",
    # Against a script's test
    "the input as the output": "import os, sys\nos.lseek(0, 0, 0)\nprint(os.read(0, 9_999).decode())\n"
    "def f(x): return os.pread(0, 9_999, 0).decode()",
    "another input": "import os\nfor path in ('/proc/self/fd/0', '/dev/stdin'):\n"
    "    try: os.write(os.open(path, os.O_RDWR), b'42')\n    except OSError: pass\ndef f(x): return 7",
    "an answer among all": "print(*range(100), sep='\\n')\ndef f(x): return [*range(100)]",
    "an answer on standard error": "import sys\nprint(42, file=sys.stderr)\ndef f(x): return 7",
    "an answer before a failure": "print(42)\nraise SystemExit(1)",
    "an answer before an exit": "import os\nprint(42, flush=True)\nos._exit(0)",
    "an answer before a signal": "import os, signal\nprint(42, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)",
    "a printed flood": "while True: print(42)",
}

# Ways out of the process, and the words by which a report names them.
ESCAPES = {
    "machine code by name": (_doing("import ctypes"), "import ctypes"),
    "machine code by its module": (_doing("import _ctypes"), "import _ctypes"),
    "machine code already loaded": (_doing("sys.modules['_ctypes'].dlopen('libc.so.6', 2)", using="sys"), ""),
    "an extension by its path": (
        _doing(
            "import importlib.machinery as m, importlib.util as u, glob, sys",
            "path = glob.glob(sys.prefix + '/lib/python3*/lib-dynload/_ctypes*')[0]",
            "u.module_from_spec(u.spec_from_file_location('other', path))",
        ),
        "",
    ),
    "a shell": (_doing("os.system('true') and 1 / 0", "os.popen('true')"), "os.system"),
    "a subprocess": (_doing("subprocess.run(['/bin/true'])", using="subprocess"), "subprocess.Popen"),
    "a fork": (_doing("os.fork()"), "os.fork"),
    "a fork with a terminal": (_doing("os.forkpty()"), "os.forkpty"),
    "another program": (_doing("os.execv('/bin/true', ['true'])"), "os.exec"),
    "its own interpreter again": (_doing("os.execv(sys.executable, ['python'])", using="os, sys"), "os.exec"),
    "a spawned program": (_doing("os.posix_spawn('/bin/true', ['true'], {})"), "os.posix_spawn"),
    "a connection": (_doing("socket.create_connection(('127.0.0.1', 80))", using="socket"), "socket.__new__"),
    "a raw socket": (_doing("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", using="socket"), "socket.__new__"),
    "a name to look up": (_doing("socket.getaddrinfo('example.org', 80)", using="socket"), "socket.getaddrinfo"),
    "a URL": (_doing("urllib.request.urlopen('http://127.0.0.1/')", using="urllib.request"), "urllib.Request"),
    "the warden": (_doing("os.kill(os.getppid(), 9)"), "os.kill"),
    "processes beside it": (_doing("[os.kill(os.getpid() + step, 9) for step in (1, 2, 3)]"), "os.kill"),
    "all processes": (_doing("os.kill(-1, 9)"), "os.kill"),
    "its group": (_doing("os.killpg(0, 9)"), "os.killpg"),
    "the memory of its parent": (_doing("open(f'/proc/{os.getppid()}/mem', 'r+b')"), "open /proc/"),
    "its own memory": (_doing("open('/proc/self/mem', 'r+b')"), "open /proc/self/mem for writing"),
    "the descriptors of its parent": (_doing("os.listdir(f'/proc/{os.getppid()}/fd')"), ""),
    "a file of the host": (_doing("open('/etc/passwd').read()"), ""),
    "a file beside its directory": (_doing("open('../escaped', 'w')"), "open ../escaped for writing"),
    "a link out of its directory": (_doing("os.symlink('/etc/passwd', 'x')"), "os.symlink"),
    "its limits": (_doing("resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", using="resource"), "resource.setrlimit"),
    "signals of a pipe": (
        _doing("fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())", using="fcntl, os"),
        "fcntl.fcntl",
    ),
    "another root": (_doing("os.chroot('.')"), ""),
    "anonymous memory to run": (_doing("os.memfd_create('x')"), ""),
    "another priority": (_doing("os.setpriority(0, os.getppid(), 19)"), ""),
}

# Numbers of x86-64 and aarch64 by name: calls that an exploit would make, whatever Python has loaded.
SYSTEM_CALLS: dict[str, tuple[int, int]] = {
    "accept": (43, 202), "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bind": (49, 200),
    "bpf": (321, 280), "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112),
    "clone3": (435, 435), "connect": (42, 203), "delete_module": (176, 106), "execve": (59, 221),
    "execveat": (322, 281),
    "fanotify_init": (300, 262), "fchmod": (91, 52), "fchown": (93, 55), "finit_module": (313, 273),
    "fsopen": (430, 430),
    "get_mempolicy": (239, 236), "init_module": (175, 105), "inotify_init1": (294, 26), "io_setup": (206, 0),
    "io_uring_setup": (425, 425), "ioprio_set": (251, 30), "kcmp": (312, 272), "kexec_load": (246, 104),
    "keyctl": (250, 219), "linkat": (265, 37), "listen": (50, 201), "mbind": (237, 235), "memfd_create": (319, 279),
    "migrate_pages": (256, 238), "mknodat": (259, 33), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241), "personality": (135, 92),
    "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pivot_root": (155, 41),
    "process_madvise": (440, 440), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60), "reboot": (169, 142), "request_key": (249, 218), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "sendmsg": (46, 211), "setgid": (106, 144), "sethostname": (170, 161),
    "setns": (308, 268), "setpgid": (109, 154), "setpriority": (141, 140), "setsid": (112, 157), "setuid": (105, 146),
    "shmget": (29, 194), "socket": (41, 198), "splice": (275, 76), "swapon": (167, 224), "symlinkat": (266, 36),
    "timer_create": (222, 107), "tkill": (200, 130), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282), "vhangup": (153, 58), "vmsplice": (278, 75),
}  # fmt: skip

import os


def doing(*lines: str, using: str = "os") -> str:
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

# Attempts to fake success; tests/attack has more.
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
    "the runner's own modules": "import serve_deployments.sandbox.zygote\ndef f(): return 1",
    "an end by a thread": doing(
        "threading.Thread(target=os._exit, args=(0,)).start()", "while True: pass", using="os, threading"
    ),
}

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
    "a number of an enumeration": "import enum\nclass E(enum.IntEnum): A = 1\ndef f(): return E.A",
    "a guard": "def f(): return 1\nif __name__ == '__main__':\n    raise SystemExit('run as a script')",
    "a comparison of its own": (
        "class Point:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other.x\n"
        "def f(): return int(Point(1) == Point(1))"
    ),
}

# Values of `f` and tests of them: the reason of the failure, empty where the test passes.
COMPARED: dict[str, tuple[str, object, str]] = {
    "an integer": ("2", 2, ""),
    "another integer": ("3", 2, "returned 3, not 2"),
    "a large integer": ("10**30 + 1", 10**30, f"returned {10**30 + 1}, not {10**30}"),
    "a float for an integer": ("2.0", 2, ""),
    "a float within the tolerance": ("0.1 + 0.2", 0.3, ""),
    "a float beside it": ("0.30001", 0.3, "returned 0.30001, not 0.3"),
    "an integer beyond all floats": ("10**400", 0.5, "returned 1000"),
    "a boolean": ("True", True, ""),
    "a boolean for a number": ("True", 1, "returned true, not 1"),
    "a number for a boolean": ("1", True, "returned 1, not true"),
    "nothing": ("None", None, ""),
    "zero for nothing": ("0", None, "returned 0, not null"),
    "a text": ("'é\\n😀'", "é\n😀", ""),
    "a text for a number": ("'2'", 2, 'returned "2", not 2'),
    "a tuple": ("(1, (2,))", [1, [2]], ""),
    "a shorter list": ("[1]", [1, 2], "returned [1], not [1, 2]"),
    "a list in another order": ("[2, 1]", [1, 2], "returned [2, 1], not [1, 2]"),
    "a dict in another order": ("{'b': 1, 'a': [0.5]}", {"a": [0.5], "b": 1}, ""),
    "a dict with more": ("{'a': 1, 'b': 2}", {"a": 1}, 'returned {"a": 1, "b": 2}, not {"a": 1}'),
    "a number as a key": ("{1: 2}", {"1": 2}, ""),
    "a subclass": ("__import__('collections').Counter('aab')", {"a": 2, "b": 1}, ""),
    "a set": ("{1}", [1], "TypeError: the value is not JSON: Object of type set is not JSON serializable"),
    "no number": ("float('nan')", 1, "TypeError: the value is not JSON: Out of range float values"),
    "a circle": ("(lambda a: a.append(a) or a)([])", [], "TypeError: the value is not JSON: Circular reference"),
    "a long value": ("'x' * 2**21", "x", "returned more than 1 MB"),
}

# Scripts, their input, the expected output, and the reason.
SCRIPTS: dict[str, tuple[str, str, str, str]] = {
    "lines": ("for _ in range(int(input())): print(input()[::-1])", "2\nab\ncd\n", "ba\ndc\n", ""),
    "all of the input": ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "1 2\n3", "6", ""),
    "the input's descriptor": ("print(len(open(0).read()), end='')", "é" * 9_000, "9000\n", ""),
    "the input's bytes": ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", "é", "é", ""),
    "spaces at the ends of lines": ("print('a \\nb\\n\\n')", "", "a\nb", ""),
    "spaces before a line": ("print(' a')", "", "a", 'printed " a\\n", not "a"'),
    "a guard": ("if __name__ == '__main__': print(1)", "", "1", ""),
    "an exit": ("print(1)\nraise SystemExit", "", "1", ""),
    "another exit": ("print(1)\nraise SystemExit(2)", "", "1", "SystemExit: 2 (line 2 of the program)"),
    "an error": ("print(1)\n1 / 0", "", "1", "ZeroDivisionError: division by zero (line 2 of the program)"),
    "too little input": ("input()\ninput()", "a", "", "EOFError: EOF when reading a line (line 2 of the program)"),
    "other output": ("print(2)", "", "1", 'printed "2\\n", not "1"'),
    "output elsewhere": ("import sys\nprint(1, file=sys.stderr)", "", "1", 'printed "", not "1"'),
}

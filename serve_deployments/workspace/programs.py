"""The programs that the sandbox runs in a copy of a workspace: an agent's own, and one that finds and runs tests."""

_BEGINNING = """
import os, sys, traceback
sys.path[:0] = ["", *(each for each in ("src",) if os.path.isdir(each))]
# A time limit loses no line that was printed before it.
sys.stdout.reconfigure(line_buffering=True)
sys.stderr = sys.stdout
"""

_RUN = """
try:
    exec(compile({code!r}, "program", "exec"), {{"__name__": "__main__"}})
except Exception:
    traceback.print_exc()
"""

# Tests are found as pytest finds them, and run by unittest: packages are not installed in the sandbox.
_RUN_TESTS = """
import importlib.util, inspect, unittest

PATH, ONLY = {path!r}, {only!r}

def files():
    if os.path.isfile(PATH):
        yield PATH
    for folder, folders, names in os.walk(PATH or "."):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(names):
            if name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py")):
                yield os.path.normpath(os.path.join(folder, name))

def loaded(path):
    name = path[:-3].replace("/", ".")
    sys.path.insert(1, os.path.dirname(path) or "")
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

class Function(unittest.FunctionTestCase):
    def __init__(self, path, name, run):
        super().__init__(run)
        self.name = f"{{path}}::{{name}}"
    def id(self):
        return self.name
    def shortDescription(self):
        return None
    __str__ = id

def failing(error):
    def run():
        raise error
    return run

def needs(parameters):
    def run():
        raise unittest.SkipTest("it takes " + ", ".join(parameters) + ": fixtures need pytest, which is not here")
    return run

def tests_in(path):
    try:
        module = loaded(path)
    except Exception as error:
        yield Function(path, "<import>", failing(error))
        return
    for name, value in list(vars(module).items()):
        if name.startswith("test") and inspect.isfunction(value):
            parameters = list(inspect.signature(value).parameters)
            yield Function(path, name, needs(parameters) if parameters else value)
    for case in each_of(unittest.defaultTestLoader.loadTestsFromModule(module)):
        yield case

def each_of(suite):
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from each_of(each)
        else:
            yield each

suite = unittest.TestSuite(test for path in files() for test in tests_in(path) if ONLY in test.id())
if suite.countTestCases():
    unittest.TextTestRunner(stream=sys.stdout, verbosity=2, buffer=True).run(suite)
else:
    print("no test found: files are named test_*.py or *_test.py, and functions test*")
"""


def run_program(code: str) -> str:
    return _BEGINNING + _RUN.format(code=code)


def run_tests_program(path: str, only: str) -> str:
    return _BEGINNING + _RUN_TESTS.format(path=path, only=only)

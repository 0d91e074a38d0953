# pyright: basic, reportMissingImports=false
"""Which texts vLLM's constrained decoding can write at all: ``grammar.py MODEL``, in the environment of ``build.py``.

Reads ``[[schema, text], …]`` as JSON from standard input and prints a list of booleans. The grammar is chosen as vLLM
does by default: xgrammar, or guidance where the schema has what vLLM knows xgrammar not to support.
"""

import json
import sys

import llguidance
import llguidance.hf
import xgrammar
from transformers import AutoTokenizer
from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features


def accepted(schema: dict[str, object], text: str, tokenizer: AutoTokenizer) -> bool:
    if has_xgrammar_unsupported_json_features(schema):
        tokens = llguidance.hf.from_tokenizer(tokenizer)
        matcher = llguidance.LLMatcher(tokens, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema)))
        ids = tokens.tokenize_str(text)
        return matcher.validate_tokens(ids) == len(ids)
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer))
    return xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema))).accept_string(text)


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    print(json.dumps([accepted(schema, text, tokenizer) for schema, text in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()

"""Rows of llama.cpp, by llama-cpp-python built here: the same file, prompt and threads."""

import functools
import os

import llama_cpp
import numpy as np

from common import Llm
from peer import Unsupported, Way, serve


def open_model(operation, threads, **options):
    if not isinstance(operation, Llm):
        raise Unsupported(f"no language model: {operation}")
    if operation.element == "bfloat16":
        raise Unsupported("weights are in the file's format")
    context = operation.prompt + operation.decoded
    return llama_cpp.Llama(
        os.fspath(operation.model),
        n_ctx=context,
        n_batch=min(context, 2048),
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
        **options,
    )


def step(model, ids):
    model.eval(ids)
    return model._ctx.get_logits()  # waits for the logits


def likeliest(model):
    logits = np.ctypeslib.as_array(model._ctx.get_logits(), shape=(model.n_vocab(),))
    return np.array([float(np.argmax(logits))])


def ids_of(operation, model):
    return model.tokenize(operation.text.encode(), add_bos=False)[
        : operation.prompt + operation.decoded
    ]


@functools.cache  # prefilling a long prompt takes longer than the measured step
def loaded(operation, threads, flash):
    """The prompt prefilled, or tokens decoded after it one by one; a long context has a cache in 8
    bits."""
    if isinstance(operation, Llm) and operation.kind not in ("prompt", "decode", "long"):
        raise Unsupported(f"one conversation at a time, and a loaded model: {operation}")
    is_long = isinstance(operation, Llm) and operation.kind == "long"
    cache = {name: llama_cpp.GGML_TYPE_Q8_0 for name in ("type_k", "type_v")} if is_long else {}
    model = open_model(operation, threads, flash_attn=flash, **cache)
    ids = ids_of(operation, model)
    seen = operation.prompt if operation.decoded else 0
    if seen:
        step(model, ids[:seen])

    def call():
        model.n_tokens = seen  # drops the later tokens
        for tokens in [[token] for token in ids[seen:]] if seen else [ids]:
            step(model, tokens)

    return Way(call, lambda _: likeliest(model), keep=model)


def plain(operation, _, threads):
    if isinstance(operation, Llm) and operation.kind == "long":
        raise Unsupported("values in 8 bits need flash attention")
    return loaded(operation, threads, False)


def flash(operation, _, threads):
    return loaded(operation, threads, True)


def from_the_file(operation, _, threads):
    if isinstance(operation, Llm) and operation.kind != "first":
        raise Unsupported("nothing is loaded in between")

    def call():
        model = open_model(operation, threads)
        step(model, ids_of(operation, model))
        return likeliest(model)

    open_model(operation, threads)
    return Way(call, lambda next_token: next_token)


serve(llama_cpp.__version__, plain, flash, from_the_file)

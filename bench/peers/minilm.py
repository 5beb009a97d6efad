"""all-MiniLM-L6-v2 for the other libraries: the names of its files, and text in batches."""

import os

import numpy as np

BATCH_SIZE = 32
SENTENCE_TRANSFORMER = "sentence_transformer"
TOKENIZER = "tokenizer.json"
EXPORTED = "exported.onnx"
OPTIMIZED = "optimized.onnx"
QUANTIZED = "quantized.onnx"  # OPTIMIZED with int8 weights, activations rounded in the call


def let_tokenizers_use(threads):
    """Sets both variables: tokenizers reads the first for every batch, its thread pool the second
    when it starts."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(threads)


def embedder(operation, threads, run):
    """Returns a function that embeds the operation's text; run(ids, mask) embeds a padded batch."""
    from tokenizers import Tokenizer  # only this row needs it

    let_tokenizers_use(threads)
    tokenizer = Tokenizer.from_file(f"{operation.folder}/{TOKENIZER}")
    text = operation.text()

    def embed():
        lines = [encoding.ids for encoding in tokenizer.encode_batch_fast(text)]
        order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
        embeddings = np.empty((len(lines), 384), np.float32)
        for begin in range(0, len(order), BATCH_SIZE):
            batch = order[begin : begin + BATCH_SIZE]
            ids = np.zeros((len(batch), len(lines[batch[-1]])), np.int64)
            mask = np.zeros_like(ids)
            for row, i in enumerate(batch):
                ids[row, : len(lines[i])] = lines[i]
                mask[row, : len(lines[i])] = 1
            embeddings[batch] = run(ids, mask)
        return embeddings

    return embed

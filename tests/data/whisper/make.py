"""Writes Whisper's features of noise and a tone, by transformers in double precision, for log_mel_spectrogram_test.cpp.

  python make.py     # needs numpy and transformers
"""
import pathlib

import numpy as np
import transformers as hf

FOLDER = pathlib.Path(__file__).parent


def noise():
    x, state = np.empty(8000, np.float32), 1
    for i in range(len(x)):
        state = (1103515245 * state + 12345) & 0x7fffffff
        x[i] = np.float32(state) / np.float32(2**30) - np.float32(1)
    return x


def tone():
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(20000) / 16000)).astype(np.float32)


for bins in (80, 128):
    extractor = hf.WhisperFeatureExtractor(feature_size=bins, chunk_length=1)
    for name, samples in (("noise", noise()), ("tone", tone())):
        padded = np.zeros(16000, np.float32)
        padded[:len(samples)] = samples[:16000]
        # The torch version computes in float: the two differ by `difference`.
        golden = extractor._np_extract_fbank_features(padded[None], "cpu")[0]
        difference = np.abs(golden - extractor(samples, sampling_rate=16000, return_tensors="np").input_features[0]).max()
        print(f"{name}_{bins}: {golden.shape}, difference {difference:.1e}")
        np.save(FOLDER / f"{name}_{bins}.npy", golden.astype(np.float32))

"""SentenceEncoder and LanguageModel on tiny models."""

import json
import shutil
import threading

import attn
import numpy
import pytest
from conftest import DATA, write_safetensors


CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def tiny_llama(folder, chat=False):
    """A random decoder with a byte-level tokenizer."""
    tokenizer = json.loads((DATA / "pretrained/tokenizers/smollm/tokenizer.json").read_text())
    names = ["<s>", "</s>", "<tool>"]
    if chat:
        names = ["<|im_start|>", "<|im_end|>", "<tool>"]
        for token, name in zip(tokenizer["added_tokens"], names):
            token.update(content=name, special=True)
        (folder / "tokenizer_config.json").write_text(json.dumps({
            "bos_token": names[0], "eos_token": names[1],
            "chat_template": CHATML}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    vocab, width, inner, kv = 267, 16, 24, 8
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab,
              "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
              "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 256,
              "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 264,
              "eos_token_id": 265}
    (folder / "config.json").write_text(json.dumps(config))
    rng = numpy.random.default_rng(1)

    def random(*shape):
        return rng.standard_normal(shape).astype(numpy.float32) * numpy.float32(0.5)

    tensors = {"model.embed_tokens.weight": random(vocab, width),
               "lm_head.weight": random(vocab, width), "model.norm.weight": 1 + random(width)}
    for n in range(2):
        layer = f"model.layers.{n}."
        tensors |= {
            layer + "input_layernorm.weight": 1 + random(width),
            layer + "post_attention_layernorm.weight": 1 + random(width),
            layer + "self_attn.q_proj.weight": random(width, width),
            layer + "self_attn.k_proj.weight": random(kv, width),
            layer + "self_attn.v_proj.weight": random(kv, width),
            layer + "self_attn.o_proj.weight": random(width, width),
            layer + "mlp.gate_proj.weight": random(inner, width),
            layer + "mlp.up_proj.weight": random(inner, width),
            layer + "mlp.down_proj.weight": random(width, inner)}
    write_safetensors(folder / "model.safetensors",
                      {name: ("F32", x.shape, x.tobytes()) for name, x in tensors.items()})
    return folder


def as_gguf(folder, path):
    """The model of tiny_llama() as a GGUF file, by the package gguf."""
    gguf = pytest.importorskip("gguf")
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = {**tokenizer["model"]["vocab"], **added}
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    names = sorted(tokens, key=tokens.get)
    writer.add_token_list(names)
    writer.add_token_types([
        gguf.TokenType.CONTROL if n in special
        else gguf.TokenType.USER_DEFINED if name in added else gguf.TokenType.NORMAL
        for n, name in enumerate(names)])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([x if isinstance(x, str) else " ".join(x) for x in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    renamed = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
               "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
               "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
               "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
               "model.embed_tokens": "token_embd", "lm_head": "output",
               "model.norm": "output_norm", "model.layers.": "blk."}
    for name, x in attn.load(folder / "model.safetensors").items():
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if heads:  # GGUF rotates neighbours, Hugging Face halves
            x = x.reshape(heads, 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        for old, new in renamed.items():
            name = name.replace(old, new)
        writer.add_tensor(name, numpy.ascontiguousarray(x))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def folder(tmp_path):
    return tiny_llama(tmp_path)


@pytest.mark.parametrize("name", ["mean", "cls", "roberta", "multilingual"])
def test_sentences(name):
    folder = DATA / "sentence_encoder" / name
    encoder = attn.SentenceEncoder(folder)
    golden = json.loads((folder / "golden.json").read_text())
    for prompt, vectors in golden.items():
        found = encoder.encode(list(vectors), prompt_name=prompt, threads=1)
        assert found.dtype == numpy.float32 and found.shape == (len(vectors), encoder.dim)
        numpy.testing.assert_allclose(found, list(vectors.values()), atol=2e-5)
    assert encoder.encode([]).shape == (0, encoder.dim)
    assert encoder.count_tokens("hello") >= 1 and encoder.max_tokens > 1


def test_sentence_options():
    encoder = attn.SentenceEncoder(str(DATA / "sentence_encoder/cls"))
    vectors = encoder.encode(["one", "two"], normalize=True, batch_size=1)
    numpy.testing.assert_allclose((vectors**2).sum(1), 1, rtol=1e-5)
    coded = attn.SentenceEncoder(DATA / "sentence_encoder/cls", weights="int8")
    numpy.testing.assert_allclose(coded.encode(["one"], normalize=True), vectors[:1], atol=0.05)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        encoder.encode(["one"], batch_size=0)
    with pytest.raises(ValueError, match="prompt must be one of"):
        encoder.encode(["one"], prompt_name="none of them")
    with pytest.raises(ValueError, match="weights must be one of"):
        attn.SentenceEncoder(DATA / "sentence_encoder/cls", weights="int3")
    with pytest.raises(OSError):
        attn.SentenceEncoder(DATA / "no such folder")


def test_generation(folder):
    model = attn.LanguageModel(folder)
    assert model.vocab_size == 267 and model.max_positions == 256
    assert model.decode(model.encode("hello")) == "hello"
    pieces = []
    answer = model.generate("hello", 20, on_text=pieces.append, log_probabilities=True)
    assert "".join(pieces) == answer.text == str(answer)
    assert len(answer.ids) <= 20 and len(answer.log_probabilities) == len(answer.ids)
    assert all(x <= 0 for x in answer.log_probabilities)
    assert answer.end in ("length", "end_token")
    assert repr(answer).startswith("GeneratedText(")


def test_gguf_has_the_answers_of_the_folder(folder, tmp_path):
    path = as_gguf(folder, tmp_path / "tiny.gguf")
    expected = attn.LanguageModel(folder).generate("hello", 12, log_probabilities=True)
    found = attn.LanguageModel(str(path)).generate("hello", 12, log_probabilities=True)
    assert found.ids == expected.ids
    numpy.testing.assert_allclose(found.log_probabilities, expected.log_probabilities, rtol=1e-4)


def test_a_continued_session_has_the_same_answers(folder):
    prompts = ["The cat sat on the mat and looked at the dog",
               "The cat sat on the mat and ran away", "Another",
               "Another text that is longer than all that came before it"]
    kept = attn.LanguageModel(folder)
    for prompt in prompts + prompts[::-1]:
        fresh = attn.LanguageModel(folder).generate(prompt, 10)
        assert kept.generate(prompt, 10).ids == fresh.ids


def test_sampling_is_reproducible(folder):
    model = attn.LanguageModel(folder)
    options = {"temperature": 1.5, "top_k": 50, "top_p": 0.9, "min_p": 0.01}
    first, again, other = (model.generate("a", 12, **options, seed=n).ids for n in (1, 1, 2))
    assert first == again != other


def test_callbacks_end_answers(folder):
    model = attn.LanguageModel(folder)
    answer = model.generate("hello", 50, on_text=lambda text: False)
    assert answer.end == "caller" and len(answer.ids) < 50

    class Stop(Exception):
        pass

    def fail(text):
        raise Stop

    with pytest.raises(Stop):
        model.generate("hello", 50, on_text=fail)
    whole = model.generate("hello", 50).text
    stop = whole[len(whole) // 2:][:2]
    answer = model.generate("hello", 50, stop=[stop])
    assert answer.end == "stop_text" and stop not in answer.text


def test_score(folder):
    model = attn.LanguageModel(folder)
    scores = model.score("hello there")
    assert len(scores) == len(model.encode("hello there")) - 1
    # The scores of the greedy continuation are those that selected it.
    answer = model.generate("hello", 8, log_probabilities=True)
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = model.encode("hello there")
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits.log_softmax(-1)
        numpy.testing.assert_allclose(
            scores, [expected[0, n, i] for n, i in enumerate(ids[1:])], atol=1e-4)
        prompt = torch.tensor([model.encode("hello")])
        greedy = reference.generate(prompt, max_new_tokens=8, do_sample=False)
    assert greedy[0, prompt.shape[1]:].tolist() == answer.ids


def test_chat(tmp_path):
    model = attn.LanguageModel(tiny_llama(tmp_path, chat=True), weights="int8", cache="int8")
    assert model.has_chat_template
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    answer = model.chat(messages, 5)
    assert model.chat([("system", "Be kind."), ("user", "Hi")], 5).ids == answer.ids
    assert model.chat("Hi", 5).ids == model.chat(messages[1:], 5).ids
    with pytest.raises(TypeError, match="a message must be"):
        model.chat([5], 5)


def test_answers_in_several_threads(folder):
    model = attn.LanguageModel(folder)
    prompts = ["one", "two", "three", "four"]
    expected = [model.generate(prompt, 10).ids for prompt in prompts]
    found = [None] * 4

    def run(n):
        found[n] = model.generate(prompts[n], 10).ids

    workers = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == expected


def test_errors(folder):
    model = attn.LanguageModel(folder)
    with pytest.raises(ValueError, match="chat template"):
        model.chat("hello")
    with pytest.raises(ValueError, match="prompt must not be empty"):
        model.generate("")
    with pytest.raises(ValueError, match="max_new_tokens"):
        model.generate("a", 0)
    with pytest.raises(ValueError, match="temperature"):
        model.generate("a", temperature=-1.0)
    with pytest.raises(ValueError, match="number of ids"):
        model.generate("a" * 300)
    with pytest.raises(ValueError, match="activations must be one of"):
        attn.LanguageModel(folder, activations="int3")
    with pytest.raises(OSError):
        attn.LanguageModel(folder / "missing.gguf")
    shutil.copy(folder / "config.json", folder / "model.safetensors")
    with pytest.raises(OSError, match="model.safetensors"):
        attn.LanguageModel(folder)

"""Rows of PyTorch: eager calls as a user writes them, with gradients where training is measured."""

import functools

import torch
import torch.nn.functional as F

import minilm
from common import (
    Attention,
    AttentionTrain,
    BatchedGemm,
    Elements,
    EncoderLayer,
    EncoderTrain,
    Experts,
    Gemm,
    GptTrain,
    Llm,
    MiniLm,
)
from common import MultiHead, Softmax, multi_head_state
from peer import Unsupported, Way, serve


def in_int8(module):
    """The model with linear layers in int8; activations are rounded in the call."""
    return torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, torch.qint8)


def small(module, element):
    match element:
        case "bfloat16":
            return module.bfloat16()
        case "int8":
            return in_int8(module)
    return module


def sentence_transformer(operation, threads):
    # Needed by this row only: without it, the other rows still have their numbers.
    from sentence_transformers import SentenceTransformer

    minilm.let_tokenizers_use(threads)
    model = SentenceTransformer(f"{operation.folder}/{minilm.SENTENCE_TRANSFORMER}", device="cpu")
    model = small(model, operation.element)
    text = operation.text()
    return lambda: model.encode(
        text, batch_size=minilm.BATCH_SIZE, convert_to_tensor=True, show_progress_bar=False
    )


def load_transformers(path):
    """Dequantises the weights: transformers has no products of quantised GGUF weights."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )


@functools.cache
def llm_ids(path, text):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return tokenizer(text, return_tensors="pt").input_ids[0]


# Reading a file takes ten seconds, and so does a long prompt; a step removes the tokens that it
# added.
@functools.cache
def llm_in(path, element):
    return small(load_transformers(path), element)


@functools.cache
def llm_behind_prompts(path, element, lengths, text):
    """Returns model, cache and mask after the first tokens of the text, as many as each
    conversation has, padded on the left."""
    model, ids = llm_in(path, element), llm_ids(path, text)
    longest = max(lengths)
    rows = torch.stack([F.pad(ids[:n], (longest - n, 0)) for n in lengths])
    mask = torch.stack([torch.arange(longest) >= longest - n for n in lengths]).long()
    out = model(
        rows,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        logits_to_keep=1,
        use_cache=True,
    )
    return model, out.past_key_values, mask


def language_model(operation, threads):
    """A language model by transformers: weights in the operation's element, in bfloat16 the cache
    too."""
    torch.set_num_threads(threads)
    path, element = operation.model, operation.element
    ids = llm_ids(path, operation.text)
    likeliest = lambda out: out.logits[0, -1].argmax().float().reshape(1).numpy()
    if not operation.decoded:
        prompt = ids[None, : operation.prompt]
        model = None if operation.kind == "first" else llm_in(path, element)
        return Way(
            lambda: (model or load_transformers(path))(prompt, logits_to_keep=1, use_cache=True),
            likeliest,
        )

    lengths = tuple(operation.prompt + n for n in range(operation.conversations))
    model, cache, mask = llm_behind_prompts(path, element, lengths, operation.text)

    def decode():
        added = cache.get_seq_length() - mask.shape[1]
        if added:
            cache.crop(-added)
        seen = mask
        for i in range(operation.decoded):
            tokens = torch.stack([ids[n + i] for n in lengths])[:, None]
            positions = torch.tensor(lengths)[:, None] + i
            seen = F.pad(seen, (0, 1), value=1)
            out = model(
                tokens,
                attention_mask=seen,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
        return out

    return Way(decode, likeliest)


class Block(torch.nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.token = torch.nn.Embedding(shape.vocab, shape.width)
        self.position = torch.nn.Embedding(shape.seq, shape.width)
        for table in (self.token, self.position):
            torch.nn.init.normal_(table.weight, std=0.02)
        self.blocks = torch.nn.Sequential(
            *[Block(shape.width, shape.heads) for _ in range(shape.layers)]
        )
        self.norm = torch.nn.LayerNorm(shape.width)

    def forward(self, ids):
        return F.linear(
            self.norm(self.blocks(self.token(ids) + self.position.weight)), self.token.weight
        )


def gpt_step(shape):
    """A training step on the generated ids of attn_report."""
    count = torch.arange(shape.tokens + 1)
    text = count * count % shape.vocab
    ids, targets = text[:-1].view(shape.batch, shape.seq), text[1:]
    model = Gpt(shape)
    adamw = torch.optim.AdamW(
        model.parameters(), lr=3e-4 if shape.width > 128 else 3e-3, weight_decay=0.1
    )

    def step():
        adamw.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        return loss.item()

    return step


def encoder_step(module, x, d_out):
    adamw = torch.optim.AdamW(module.parameters(), lr=1e-5)

    def step():
        adamw.zero_grad()
        out = module(x)
        out.backward(d_out)
        adamw.step()
        return out.detach()

    return step


@torch.inference_mode(False)
@torch.enable_grad()
def training(operation, inputs, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    t = {name: torch.from_numpy(x) for name, x in inputs.items()}
    match operation:
        case AttentionTrain():
            leaves = [t[name].requires_grad_() for name in "qkv"]

            def call():
                out = F.scaled_dot_product_attention(*leaves, is_causal=operation.causal)
                return torch.autograd.grad(out, leaves, t["d_out"])

            return Way(with_gradients(call), lambda gradients: torch.stack(gradients).numpy())
        case EncoderTrain():
            module = encoder(operation, t, operation.dropout).train()
            step = encoder_step(module, t["x"].requires_grad_(), torch.randn_like(t["x"]))
            return Way(with_gradients(step), lambda output: output.numpy())
        case GptTrain():
            step = with_gradients(gpt_step(operation))

            def falls(first):
                return torch.tensor(
                    [1.0 if [step() for _ in range(3)][-1] < first else 0.0]
                ).numpy()

            return Way(step, falls)


def with_gradients(call):
    """Enables gradients: rows run in inference mode."""
    return torch.inference_mode(False)(torch.enable_grad()(call))


def encoder(operation, t, dropout):
    options = {
        "activation": "gelu",
        "layer_norm_eps": operation.eps,
        "batch_first": True,
        "dropout": dropout,
    }
    shape = operation.width, operation.heads, operation.hidden
    module = torch.nn.TransformerEncoderLayer(*shape, **options)
    own = {
        name.replace("_", "."): x for name, x in t.items() if name.startswith(("linear", "norm"))
    }
    module.load_state_dict(multi_head_state(t, "self_attn.") | own)
    return module


def experts(implementation):
    """The layer of transformers, with experts one by one ("eager") or in one product
    ("grouped_mm")."""

    def way(operation, inputs, threads):
        if not isinstance(operation, Experts):
            raise Unsupported(f"no experts in {operation}")
        from transformers import Qwen3MoeConfig
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

        torch.set_num_threads(threads)
        config = Qwen3MoeConfig(
            hidden_size=operation.width,
            moe_intermediate_size=operation.hidden,
            num_experts=operation.experts,
            num_experts_per_tok=operation.chosen,
            norm_topk_prob=True,
        )
        config._experts_implementation = implementation
        module = Qwen3MoeSparseMoeBlock(config).eval()
        t = {name: torch.from_numpy(x) for name, x in inputs.items()}
        weights = {
            "gate.weight": t["router"],
            "experts.gate_up_proj": t["gate_up"],
            "experts.down_proj": t["down"],
        }
        module.load_state_dict(weights, assign=True)
        return Way(lambda: module(t["x"]), lambda output: output.numpy())

    return way


def eager(operation, inputs, threads):
    if isinstance(operation, Experts):
        raise Unsupported("PyTorch alone has no experts")
    if isinstance(operation, (AttentionTrain, EncoderTrain, GptTrain)):
        return training(operation, inputs, threads)
    if isinstance(operation, Llm):
        return language_model(operation, threads)
    torch.set_num_threads(threads)
    t = {name: torch.from_numpy(x) for name, x in inputs.items()}
    if operation.element == "bfloat16":
        t = {name: x.bfloat16() for name, x in t.items()}
    match operation:
        case Gemm(element="int8"):
            module = torch.nn.Linear(operation.k, operation.n, bias=False)
            module.weight = torch.nn.Parameter(t["b"].t().contiguous())
            module = in_int8(module)
            call = lambda: module(t["a"])
        case Gemm(packed=True):
            weight = t["b"].t().contiguous()
            call = lambda: F.linear(t["a"], weight)
        case Gemm() | BatchedGemm():
            call = lambda: t["a"] @ t["b"]
        case Elements(kind="gelu"):
            call = lambda: F.gelu(t["x"])
        case Elements(kind="silu"):
            call = lambda: F.silu(t["x"])
        case Elements(kind="layer_norm"):
            call = lambda: F.layer_norm(t["x"], (operation.columns,), eps=operation.eps)
        case Attention():
            options = {"is_causal": operation.causal, "enable_gqa": operation.group > 1}
            call = lambda: F.scaled_dot_product_attention(t["q"], t["k"], t["v"], **options)
        case Softmax():
            call = lambda: torch.softmax(t["x"], -1)
        case MultiHead():
            module = torch.nn.MultiheadAttention(
                operation.width, operation.heads, batch_first=True
            ).eval()
            module.load_state_dict(multi_head_state(t))
            call = lambda: module(t["x"], t["x"], t["x"], need_weights=False)[0]
        case EncoderLayer():
            module = small(encoder(operation, t, 0.0).eval(), operation.element)
            # PyTorch's fast path needs float weights, which int8 modules do not have.
            torch.backends.mha.set_fastpath_enabled(operation.element != "int8")
            call = lambda: module(t["x"])
        case MiniLm():
            call = sentence_transformer(operation, threads)
    return Way(call, lambda output: output.float().numpy())


with torch.inference_mode():
    serve(torch.__version__, eager, experts("eager"), experts("grouped_mm"), trains=True)
